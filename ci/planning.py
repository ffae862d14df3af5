"""Event + filter + specs + suites + durations -> the plan. Pure: the same input gives the same plan everywhere."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import JsonValue

from ci.plan import Plan, PlannedJob, Shard, State, Unit
from ci.spec.filter import Selection, select
from ci.spec.loader import Specs
from ci.spec.models import Fleet, Input, Job, SuiteDecl, Workflow, format_duration
from ci.spec.problems import Problem, SpecError, did_you_mean
from ci.suites.catalogue import Catalogue, Suite, SuiteFile
from ci.suites.durations import Durations, Estimate
from ci.suites.quarantine import Entry, concerns
from ci.suites.sharding import Item, assign, count_for

INPUT_CHARACTERS = 4_000
"""Text in the inputs of a run: the gate receives it in one variable, beside all results and shards."""

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

    Raises SpecError for suites that are unknown or empty and for wrong inputs, FilterError for a filter
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
    for note, many in sorted(guessed.items()):
        notes.append(f"predicted time of {many} file{'s' * (many != 1)} of {note}")
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
