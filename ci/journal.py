"""The journal: the append-only record of a shard, one JSON event a line, flushed to disk as it happens.

The runner writes it, the gate and the history read it. A reader accepts any prefix: a half-written last line is
counted, not an error, and everything before it holds.

Order within a shard: `shard_started`, then per unit `unit_started`, `collected`, `test_started`/`test_finished`...,
`unit_finished`, at last `shard_finished`. Whatever is missing says where the shard was when it died. A unit that is run
again (a resume after a crash, a retry) gets a new `attempt`, counted from 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

SCHEMA = 1

Outcome = Literal["passed", "failed", "skipped", "timed-out", "crashed"]
Ending = Literal["completed", "timed-out", "silent", "crashed", "no-tests", "interrupted", "infra"]


class Event(BaseModel):
    """What all events have: `at`, seconds since the epoch by the wall clock (durations use a steady clock)."""

    __test__: ClassVar[bool] = False  # pytest: TestStarted and TestFinished are no tests
    model_config = ConfigDict(extra="ignore", frozen=True)
    at: float


class ShardStarted(Event):
    """First line: whose journal this is, and on what it ran."""

    event: Literal["shard_started"] = "shard_started"
    schema_version: int = SCHEMA
    workflow: str
    job: str
    shard: str = Field(description="Such as 2-of-4.")
    run_attempt: int = Field(description="GitHub's attempt of the run, from 1.")
    plan_hash: str
    host: str
    environment: dict[str, str] = Field({}, description="Manifest: commit, image, driver, versions, GPU names.")


class UnitStarted(Event):
    event: Literal["unit_started"] = "unit_started"
    unit: str = Field(description="Path of the unit.")
    suite: str
    attempt: int
    reason: str = Field("", description="Why an attempt after the first was made.")


class Collected(Event):
    """The full ids, parameters included, that the unit's process will run."""

    event: Literal["collected"] = "collected"
    unit: str
    suite: str
    attempt: int
    tests: tuple[str, ...]
    deselected: tuple[str, ...] = Field((), description="Ids left out because of a mark that the job excludes.")


class TestStarted(Event):
    event: Literal["test_started"] = "test_started"
    unit: str
    suite: str
    attempt: int
    test: str


class TestFinished(Event):
    """One result. Written once a test and attempt."""

    event: Literal["test_finished"] = "test_finished"
    unit: str
    suite: str
    attempt: int
    test: str
    outcome: Outcome
    seconds: float = Field(
        description="Of a test that its process took along, until that ended; 0 if it never started."
    )
    message: str = Field("", description="First lines of the failure, or the reason of the skip.")


class UnitFinished(Event):
    event: Literal["unit_finished"] = "unit_finished"
    unit: str
    suite: str
    attempt: int
    ending: Ending
    exit_code: int | None = Field(None, description="None when a signal ended it.")
    signal: str = Field("", description="Such as SIGSEGV.")
    seconds: float
    detail: str = Field(
        "", description="What a person should know: the running test, the stack's file, who held the GPU."
    )
    failure_class: str = Field("", description="Class of the failure by the classification rules.")


class Note(Event):
    """Something about the host or the shard that a person should know."""

    event: Literal["note"] = "note"
    level: Literal["info", "warning", "infra"]
    message: str


class ShardFinished(Event):
    event: Literal["shard_finished"] = "shard_finished"
    exit_code: int
    interrupted: str = Field("", description="The signal that stopped the shard.")


AnyEvent = Annotated[
    ShardStarted | UnitStarted | Collected | TestStarted | TestFinished | UnitFinished | Note | ShardFinished,
    Field(discriminator="event"),
]
_EVENT: TypeAdapter[AnyEvent] = TypeAdapter(AnyEvent)


@dataclass(frozen=True)
class Journal:
    """The events of one shard's journal that could be read."""

    source: str
    events: tuple[AnyEvent, ...]
    unreadable: int = 0
    """Lines that are no event: a half-written last line counts as one."""

    @property
    def head(self) -> ShardStarted | None:
        """The first line, if the shard came so far as to write it."""
        return next((event for event in self.events if isinstance(event, ShardStarted)), None)


def seconds_until_death(test_started: float, process_started: float, process_seconds: float) -> float:
    """How long a test ran that has no end of its own: from its start to the end of its process.

    The starts are wall-clock times of two processes; a clock that jumps never makes it more than the process took.
    """
    return min(max(0.0, process_started + process_seconds - test_started), process_seconds)


def line(event: AnyEvent) -> str:
    """One event as a line of a journal, newline included."""
    return event.model_dump_json() + "\n"


def parse(lines: Iterable[str], source: str) -> Journal:
    """Read a journal; what cannot be read is counted, never raised."""
    events: list[AnyEvent] = []
    unreadable = 0
    for text in lines:
        if not text.strip():
            continue
        try:
            events.append(_EVENT.validate_json(text))
        except ValidationError:
            unreadable += 1
    return Journal(source, tuple(events), unreadable)


def read(path: Path) -> Journal:
    """The journal in a file. Raises OSError when the file cannot be opened."""
    # Not splitlines(): a message may hold U+2028 and its like, which are no ends of a line here.
    return parse(path.read_text(encoding="utf-8", errors="replace").split("\n"), str(path))
