"""The plan: what runs tonight and why. `ci.planning` makes it.

A plan is a value: it is written as JSON by the first job of the night, handed to every shard and judged by the gate.
Its hash covers everything in it, so a runner whose own reading of the tree differs refuses to start.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from ci.suites.quarantine import holds

SCHEMA = 1
"""Version of the JSON of a plan; raised when an older reader would misunderstand it."""

State = Literal["selected", "not-selected", "disabled", "empty"]
Kind = Literal["pytest", "script", "command"]


class Value(BaseModel):
    """A frozen value that reads back from its own JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Unit(Value):
    """What one fresh process runs: a test file, a plain script, or an external command.

    `tests` are the planned results. For pytest they are the functions that the syntax tree shows
    (`path::Class::test_name`); each may turn into several results by its parameters. For a script it is the path. For
    a command they are the tests of its manifest when it leaves JUnit, else one name: its exit code is the result.
    """

    suite: str
    kind: Kind
    path: str = Field(description="Test file from the repository's root; the suite's name for a command.")
    tests: tuple[str, ...] = ()
    seconds: float = Field(description="Predicted time.")
    command: str = Field("", description="The text that bash runs, for a command.")
    items: tuple[str, ...] = Field((), description="What NIGHTCAP_TESTS_FILE lists for a command.")
    junit: str = Field("", description="The JUnit file that the command leaves.")


class Shard(Value):
    """One part of a job: the units that one runner runs."""

    index: int = Field(description="From 1.")
    count: int
    seconds: float = Field(description="Predicted time of the shard.")
    units: tuple[Unit, ...]

    @property
    def id(self) -> str:
        """`2-of-4`: readable, and legal in an artifact's name."""
        return f"{self.index}-of-{self.count}"


class PlannedJob(Value):
    """One job of the spec, selected or not, and why."""

    key: str
    state: State
    reason: str
    pool: str
    gpus: int = 0
    sm: int | None = None
    setup: tuple[str, ...] = Field((), description="The pool's set-up commands.")
    suites: tuple[str, ...] = ()
    timeout: int = Field(description="Seconds that the job may take.")
    file_timeout: int = Field(0, description="Seconds that one unit may take.")
    disk_gib: int = Field(1, description="Free disk, for results and temporary files, without which no unit starts.")
    exclude_marks: tuple[str, ...] = ()
    env: dict[str, str] = {}
    artifacts: tuple[str, ...] = ()
    shards: tuple[Shard, ...] = ()
    quarantine: dict[str, str] = Field({}, description="Why, by id or glob of tests whose failure turns nothing red.")
    notes: tuple[str, ...] = Field(
        (), description="What a person should know: allowed empty suites, borrowed durations."
    )

    @property
    def selected(self) -> bool:
        """True when the job runs tonight."""
        return self.state == "selected"

    def quarantined(self, path: str, test: str) -> str:
        """Why a failure of this test of the unit `path` turns nothing red; empty for most tests."""
        return next((why for pattern, why in self.quarantine.items() if holds(pattern, path, test)), "")


class Plan(Value):
    """What runs tonight and why."""

    schema_version: int = SCHEMA
    workflow: str
    event: str
    filter: str
    inputs: dict[str, JsonValue] = Field({}, description="Effective inputs: defaults applied, whatever the event.")
    jobs: tuple[PlannedJob, ...]
    hash: str = ""

    @property
    def selected(self) -> tuple[PlannedJob, ...]:
        """The jobs that run, in the order of the spec."""
        return tuple(job for job in self.jobs if job.selected)

    def job(self, key: str) -> PlannedJob:
        """The job of that key. Raises KeyError when the plan has none."""
        for job in self.jobs:
            if job.key == key:
                return job
        raise KeyError(key)

    def sealed(self) -> Self:
        """This plan with its hash."""
        return self.model_copy(update={"hash": self._digest()})

    def intact(self) -> bool:
        """True when the hash is that of the content."""
        return self.hash == self._digest()

    def _digest(self) -> str:
        content: dict[str, Any] = self.model_dump(mode="json", exclude={"hash"})
        return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


def shard_index(text: str) -> tuple[int, int]:
    """(index from 1, count) of `2/4` or `2-of-4`. Raises ValueError with the allowed forms."""
    for separator in ("/", "-of-"):
        index, found, count = text.partition(separator)
        numbers = all(part.isascii() and part.isdigit() for part in (index, count))
        if found and numbers and 1 <= int(index) <= int(count):
            return int(index), int(count)
    raise ValueError(f"{text!r} is no shard: write it as 2/4 (or 2-of-4), from 1 to the count")
