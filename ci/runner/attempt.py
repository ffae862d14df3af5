"""One attempt of a unit: a fresh process, watched to its end, judged, classified, and written down."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ci.journal import AnyEvent, Collected, TestFinished, TestStarted, UnitFinished, UnitStarted
from ci.plan import Unit
from ci.runner import classify, judge, junit, oom, supervise, units
from ci.runner.classify import FailureClass
from ci.runner.gpu_care import GpuCare
from ci.runner.gpus import HostReport
from ci.runner.interrupts import Interrupted, Interrupts
from ci.runner.judge import BAD, Judgement
from ci.runner.options import RunOptions
from ci.runner.record import Record, Seen, seen
from ci.runner.supervise import Ended, Limits
from ci.runner.units import Attempt, Places


@dataclass(frozen=True)
class Context:
    """What all attempts of a run share."""

    options: RunOptions
    places: Places
    record: Record
    interrupts: Interrupts
    deadline: float
    """By the monotonic clock."""
    mark: str
    """The run's id in the environment of all its processes."""
    gpus: GpuCare | None
    env: Mapping[str, str]
    """Of all units: that of the options, and what the host lent to this run."""


@dataclass(frozen=True)
class AttemptResult:
    """What an attempt came to. `failure` is None when nothing went wrong."""

    judgement: Judgement
    finished: tuple[TestFinished, ...]
    seen: Seen
    failure: FailureClass | None
    host: HostReport | None
    """State of the GPUs afterwards, for a job with GPUs."""


def run(attempt: Attempt, context: Context) -> AttemptResult:
    """Make the attempt; its events are on disk when this returns."""
    unit, record = attempt.unit, context.record
    record.write(
        UnitStarted(at=time.time(), unit=unit.path, suite=unit.suite, attempt=attempt.number, reason=attempt.reason)
    )
    task = units.task(attempt, context.places, context.env, context.mark)
    if unit.junit:  # an older one would be taken for this run's
        (context.places.root / unit.junit).unlink(missing_ok=True)
    if not _reports(unit):
        record.write(_collected(attempt), *(_started(attempt, test) for test in unit.tests))
    record.news()
    kills = oom.Watch()
    started = time.time()
    ended = supervise.run(task, _limits(attempt, context), mark=context.mark, interrupts=context.interrupts)
    written = seen(record.news(), started=started, seconds=ended.seconds)
    log = classify.log_end(task.log)
    killed = kills.evidence(ended.signal)
    if killed and ended.signal != "SIGKILL":  # a child of the unit, or another process of this cgroup
        record.note("warning", f"during {unit.path}: {killed}")
        killed = ""
    judgement = _judge(unit, ended, written, log, context.places, killed)
    record.write(*(_finished(attempt, result) for result in judgement.results))
    _note_left_overs(unit, ended, record)
    finished = written.finished + tuple(e for e in record.news() if isinstance(e, TestFinished))
    at_once, host = _look_at_host(context)
    failure = _failure(judgement, finished, at_once, log)
    if failure and failure.infra and judgement.ending in ("completed", "crashed"):
        judgement = replace(judgement, ending="infra")
    record.write(_unit_finished(attempt, ended, judgement, failure))
    return AttemptResult(judgement, finished, written, failure, host)


def _look_at_host(context: Context) -> tuple[str, HostReport | None]:
    """(what was wrong with the GPUs right after the process, their state once they came to rest)."""
    if context.gpus is None or context.interrupts.received:
        return "", None
    try:
        with context.interrupts.raising():
            at_once, settled = context.gpus.settle()
    except Interrupted:
        return "", None
    # Memory without a holder is most likely what this unit held and the driver has not given back yet.
    somebody = at_once.status == "bad" and any(gpu.holders for gpu in at_once.assigned_gpus)
    wrong = at_once if somebody else settled
    return f"host not fit: {wrong.texts}" if wrong.status == "bad" else "", settled


def _limits(attempt: Attempt, context: Context) -> Limits:
    options, job = context.options, attempt.job
    left = max(0.0, context.deadline - time.monotonic())
    return Limits(
        budget=min(job.file_timeout or job.timeout, left),
        silence=options.silence,
        grace=options.grace,
        log_bytes=options.log_bytes,
    )


def _judge(unit: Unit, ended: Ended, written: Seen, log: str, places: Places, killed: str) -> Judgement:
    if unit.kind == "pytest":
        return judge.pytest_unit(unit, ended, written, oom=killed)
    if _reports(unit):
        return judge.command(unit, ended, junit.read(places.root / unit.junit), oom=killed)
    return judge.script(unit, ended, log, oom=killed)


def _reports(unit: Unit) -> bool:
    """False when the unit's exit code is its only result."""
    return unit.kind == "pytest" or bool(unit.junit)


def _failure(judgement: Judgement, finished: Iterable[TestFinished], host: str, log: str) -> FailureClass | None:
    messages = [event.message for event in finished if event.outcome in BAD]
    if judgement.ending in ("interrupted", "no-tests"):
        return None
    if judgement.ending == "completed" and not messages and not judgement.detail:
        return None
    return classify.classify(judgement.detail, *messages, host, log)


def _note_left_overs(unit: Unit, ended: Ended, record: Record) -> None:
    for process in ended.left:
        record.note("warning", f"{unit.path} left a process behind, ended: {process.pid} {process.command[:300]}")
    for process in ended.survivors:
        record.note("infra", f"process {process.pid} of {unit.path} cannot be ended (state {process.state})")
    if ended.log_lost:
        record.note("warning", f"a part of a log is not written: {ended.log_lost}")


def _collected(attempt: Attempt) -> Collected:
    unit = attempt.unit
    return Collected(at=time.time(), unit=unit.path, suite=unit.suite, attempt=attempt.number, tests=unit.tests)


def _started(attempt: Attempt, test: str) -> TestStarted:
    unit = attempt.unit
    return TestStarted(at=time.time(), unit=unit.path, suite=unit.suite, attempt=attempt.number, test=test)


def _finished(attempt: Attempt, result: judge.Result) -> TestFinished:
    return TestFinished(
        at=time.time(),
        unit=attempt.unit.path,
        suite=attempt.unit.suite,
        attempt=attempt.number,
        test=result.test,
        outcome=result.outcome,
        seconds=result.seconds,
        message=result.message,
    )


def _unit_finished(attempt: Attempt, ended: Ended, judgement: Judgement, failure: FailureClass | None) -> AnyEvent:
    return UnitFinished(
        at=time.time(),
        unit=attempt.unit.path,
        suite=attempt.unit.suite,
        attempt=attempt.number,
        ending=judgement.ending,
        exit_code=ended.exit_code,
        signal=ended.signal,
        seconds=ended.seconds,
        detail=judgement.detail,
        failure_class=failure.name if failure else "",
    )
