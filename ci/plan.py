"""The plan: what runs tonight and why. A pure function of event, filter, specs, suites and durations.

A plan is a value: it is written as JSON by the first job of the night, handed to every shard and judged by the gate.
Its hash covers everything in it, so a runner whose own reading of the tree differs refuses to start.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from ci.spec.filter import Selection, select
from ci.spec.loader import Specs
from ci.spec.models import Fleet, Input, Job, SuiteDecl, Workflow, format_duration
from ci.spec.problems import Problem, SpecError, did_you_mean
from ci.suites.catalogue import Catalogue, Suite, SuiteFile
from ci.suites.durations import Durations, Estimate
from ci.suites.quarantine import Entry, concerns, holds
from ci.suites.sharding import Item, assign, count_for

SCHEMA = 1
"""Version of the JSON of a plan; raised when an older reader would misunderstand it."""

INPUT_CHARACTERS = 4_000
"""Text in the inputs of a run: the gate receives it in one variable, beside all results and shards."""

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


SHARD_START = 60.0
"""Seconds before a shard's first test: checkout and installation. They count when the number of shards is chosen."""


@dataclass(frozen=True)
class JobFile:
    """A file of a suite with the time that it is predicted to take on the job's pool."""

    suite: Suite
    file: SuiteFile
    estimate: Estimate

    @property
    def item(self) -> Item:
        """What is divided among the shards. A file that two suites of a job name is two items."""
        return Item(id=f"{self.suite.name}:{self.file.path}", seconds=self.estimate.seconds)


def make_plan(
    specs: Specs,
    name: str,
    catalogue: Catalogue,
    durations: Durations,
    *,
    event: str,
    filter_text: str,
    inputs: Mapping[str, object],
    quarantine: Sequence[Entry] = (),
) -> Plan:
    """The plan of workflow `name` for an event.

    Raises SpecError for suites that are unknown or empty and for wrong inputs, FilterError (a SpecError) for a filter
    that means nothing.
    """
    workflow = specs.workflows[name]
    if wrong := list(suite_problems(specs, name, catalogue)):
        raise SpecError(wrong)
    effective = effective_inputs(workflow, inputs)
    selection = select(filter_text, workflow)
    jobs = tuple(
        _job(key, job, workflow, specs.fleet, catalogue, durations, selection, quarantine)
        for key, job in workflow.jobs.items()
    )
    plan = Plan(workflow=name, event=event, filter=filter_text.strip() or "all", inputs=effective, jobs=jobs)
    return plan.sealed()


def suite_problems(specs: Specs, name: str, catalogue: Catalogue) -> Iterator[Problem]:
    """Suites that a job names and that do not exist, or have no test without saying that they may."""
    yield from catalogue.problems
    for key, job in specs.workflows[name].jobs.items():
        for index, suite_name in enumerate(job.suites):
            where = ("jobs", key, "suites", index)
            suite = catalogue.suites.get(suite_name)
            if suite is None:
                fix = did_you_mean(suite_name, catalogue.suites) or "mark a test file with it, or declare it in suites"
                yield specs.problem(name, where, f"unknown suite {suite_name!r}", fix)
            elif not suite.files and not (suite.decl and suite.decl.allow_empty):
                fix = "register a test, remove the suite, or say allow_empty with a reason and an expiry"
                yield specs.problem(
                    name, where, f"suite {suite_name!r} has no test: the job would be green for nothing", fix
                )


def effective_inputs(workflow: Workflow, given: Mapping[str, object]) -> dict[str, JsonValue]:
    """Every input of a manual run with its value or its default, typed, whatever the event.

    Raises SpecError for an unknown input, a missing required one, a value of another type and too long texts.
    """
    declared = workflow.triggers.dispatch.inputs if workflow.triggers.dispatch else {}
    problems = [
        Problem(
            "inputs",
            0,
            one,
            "unknown input",
            did_you_mean(one, declared) or f"there are {', '.join(declared) or 'none'}",
        )
        for one in given.keys() - declared.keys()
    ]
    values: dict[str, JsonValue] = {}
    for one, spec in declared.items():
        value = given.get(one)
        if value in (None, ""):
            value = spec.default
        if value is None and spec.required and given:
            problems.append(Problem("inputs", 0, one, "is required"))
        try:
            values[one] = _typed(spec, value)
        except ValueError as error:
            problems.append(Problem("inputs", 0, one, f"{value!r} {error}"))
    if (length := sum(len(value) for value in values.values() if isinstance(value, str))) > INPUT_CHARACTERS:
        message = f"{length:,} characters in all, at most {INPUT_CHARACTERS:,}"
        problems.append(Problem("inputs", 0, "", message, "put long text into a file of the repository"))
    if problems:
        raise SpecError(problems)
    return values


def _typed(spec: Input, value: object) -> JsonValue:
    """A value as its input's type says; GitHub hands over text. Raises ValueError with what is allowed."""
    text = "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    if spec.type == "boolean":
        if text.lower() not in ("", "true", "false"):
            raise ValueError("is no boolean: write true or false")
        return text.lower() == "true"
    if spec.type == "number":
        try:
            number = float(text or 0)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise ValueError("is no finite number")
        return int(number) if number.is_integer() else number
    if spec.type == "choice" and text and text not in spec.options:
        raise ValueError(f"is none of {', '.join(spec.options)}")
    return text


def _job(
    key: str,
    job: Job,
    workflow: Workflow,
    fleet: Fleet,
    catalogue: Catalogue,
    durations: Durations,
    selection: Selection,
    quarantine: Sequence[Entry],
) -> PlannedJob:
    pool = fleet.pools[job.pool or ""]
    suites = [catalogue.suites[name] for name in job.suites]
    shards, notes = _shards(key, job, suites, durations)
    state: State = "selected" if key in selection.selected else "not-selected"
    reason = selection.reasons[key]
    if not job.enabled:
        state = "disabled"
    elif state == "selected" and not shards:
        state, reason = "empty", "; ".join(_why_empty(suite) for suite in suites)
    if (longest := max((shard.seconds for shard in shards), default=0)) > (job.timeout or 0):
        limit = format_duration(job.timeout or 0)
        notes.append(f"predicted {format_duration(longest)} for a shard is more than the timeout {limit}")
    units = [unit for shard in shards for unit in shard.units]
    # A unit does not say whether its file may hold unplanned tests; an id that none has does no harm here.
    mine = [one for one in quarantine if any(concerns(one.test, u.path, u.tests, dynamic=True) for u in units)]
    notes += [f"in quarantine: {one.test}: {one.why}" for one in mine]
    env = {name: env_text(value) for name, value in {**workflow.env, **job.env}.items()}
    return PlannedJob(
        key=key,
        state=state,
        reason=reason,
        pool=job.pool or "",
        gpus=pool.gpus,
        sm=pool.sm,
        setup=tuple(pool.setup),
        suites=tuple(job.suites),
        timeout=job.timeout or 0,
        file_timeout=job.file_timeout or job.timeout or 0,
        disk_gib=job.disk_gib,
        exclude_marks=tuple(job.exclude_marks),
        env=env,
        artifacts=tuple(job.artifacts),
        shards=tuple(shards) if state == "selected" else (),
        quarantine={one.test: one.why for one in mine} if state == "selected" else {},
        notes=tuple(notes),
    )


def _shards(key: str, job: Job, suites: list[Suite], durations: Durations) -> tuple[list[Shard], list[str]]:
    """The shards of a job, and what a person should know of them."""
    if job.commands:
        unit = Unit(suite="", kind="command", path=key, tests=(key,), seconds=0, command="\n".join(job.commands))
        return [Shard(index=1, count=1, seconds=0, units=(unit,))], []
    files = job_files(job, suites, durations)
    items = [file.item for file in files]
    if isinstance(job.shards, int):
        count = job.shards
    else:
        count = count_for(items, job.shards.target, job.shards.max, per_shard=SHARD_START)
    by_id = {file.item.id: file for file in files}
    parts = [[by_id[item.id] for item in part.items] for part in assign(items, count)] if items else []
    everywhere = [suite for suite in suites if _shards_itself(suite)]
    if everywhere:
        parts += [[] for _ in range(max(count, 1) - len(parts))]
    notes = [f"suite {suite.name} is empty: {_why_empty(suite)}" for suite in suites if not suite.files]
    guessed = Counter(
        f"{file.suite.name}: {file.estimate.note}"
        for file in files
        if file.estimate.source not in ("measured", "declared")
    )
    notes += [f"predicted time of {count} files of {note}" for note, count in sorted(guessed.items())]
    return [_shard(index, len(parts), part, everywhere) for index, part in enumerate(parts, 1)], notes


def job_files(job: Job, suites: Iterable[Suite], durations: Durations) -> list[JobFile]:
    """What a job divides among its shards, in the order of its suites, without tests that it excludes."""
    found = []
    for suite in suites:
        others = [other.est for other in suite.files if other.est is not None]
        for file in () if _shards_itself(suite) else suite.files:
            kept = tuple(test for test in file.tests if not set(test.marks) & set(job.exclude_marks))
            if kept or file.dynamic or file.kind != "pytest":
                estimate = durations.seconds(suite.name, job.pool or "", file.path, file.est, others=others)
                found.append(JobFile(suite, replace(file, tests=kept), estimate))
    return found


def _shards_itself(suite: Suite) -> bool:
    """An external command without a manifest runs in every shard and divides its tests by the shard's number."""
    return bool(suite.kind == "command" and suite.decl and not suite.decl.manifest)


def _shard(index: int, count: int, part: list[JobFile], everywhere: list[Suite]) -> Shard:
    units = [
        Unit(
            suite=one.suite.name,
            kind=one.file.kind,
            path=one.file.path,
            tests=tuple(test.id for test in one.file.tests) if one.file.kind == "pytest" else (one.file.path,),
            seconds=round(one.estimate.seconds, 3),
        )
        for one in part
        if one.file.kind != "command"
    ]
    commands: dict[str, list[JobFile]] = {suite.name: [] for suite in everywhere}
    for one in part:
        if one.file.kind == "command":
            commands.setdefault(one.suite.name, []).append(one)
    label = f" {index}-of-{count}" if count > 1 else ""
    suites = {suite.name: suite for suite in [*everywhere, *(one.suite for one in part)]}
    units += [_command(suites[name], label, own) for name, own in commands.items()]
    return Shard(index=index, count=count, seconds=round(sum(unit.seconds for unit in units), 3), units=tuple(units))


def _command(suite: Suite, label: str, files: list[JobFile]) -> Unit:
    """One call of an external command; its exit code is the only result unless manifest and JUnit name them all."""
    decl = suite.decl or SuiteDecl()
    items = tuple(sorted(one.file.path for one in files))
    seconds = sum(one.estimate.seconds for one in files) if items else float(decl.est or 0)
    return Unit(
        suite=suite.name,
        kind="command",
        path=suite.name,
        tests=items if items and decl.junit else (f"{suite.name}{label}",),
        items=items,
        seconds=round(seconds, 3),
        command=decl.command or "",
        junit=decl.junit or "",
    )


def _why_empty(suite: Suite) -> str:
    allowed = suite.decl.allow_empty if suite.decl else None
    return f"{suite.name} has no test, allowed until {allowed.expires}: {allowed.reason}" if allowed else "all excluded"


def env_text(value: object) -> str:
    """A value as GitHub would put it into the environment: true, not True."""
    return str(value).lower() if isinstance(value, bool) else str(value)
