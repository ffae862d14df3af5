"""Runs one shard: its units one after another, each attempt in a fresh process, everything into the journal.

    run_shard(job, shard, options=...) -> RunResult

An attempt that crashes is resumed with the tests that it did not reach; one that failed because of the host
may be tried again, by class and with a cap; nothing else is ever repeated. On a stop signal the loop ends,
and what is known by then is complete on disk.
"""

from __future__ import annotations

import shutil
import socket
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ci.journal import Ending, Outcome, ShardFinished, ShardStarted
from ci.plan import PlannedJob, Shard, Unit
from ci.runner import attempt as attempts
from ci.runner import environment, junit, processes
from ci.runner.attempt import AttemptResult, Context
from ci.runner.classify import FailureClass
from ci.runner.console import Console
from ci.runner.exit_codes import ExitCode
from ci.runner.interrupts import Interrupts
from ci.runner.judge import BAD
from ci.runner.options import RunOptions
from ci.runner.record import Record
from ci.runner.units import Attempt, Places

STEP_SHARE = 0.95
"""Part of the job's time that its units may use; the rest is for checkout, upload and leaving in order."""


@dataclass(frozen=True)
class UnitResult:
    """What became of one unit, all its attempts together."""

    unit: Unit
    ending: Ending
    """Of the last attempt."""
    outcomes: Mapping[str, tuple[Outcome, ...]]
    """By full test id, the outcome of each attempt that reached it."""
    lost: tuple[str, ...]
    """Planned ids without any result."""
    seconds: float
    attempts: int
    detail: str
    failure: FailureClass | None
    """Of the last attempt; None when nothing was wrong with it."""
    log: Path

    @property
    def counts(self) -> Counter[str]:
        """Tests by how they stand after the last attempt; passed after something else is `flaky`."""
        counts = Counter(_standing(history) for history in self.outcomes.values())
        return counts + Counter(lost=len(self.lost))

    @property
    def bad(self) -> bool:
        """True when something is wrong with it beside lost tests."""
        return self.failure is not None or any(self.counts[outcome] for outcome in BAD)


@dataclass(frozen=True)
class RunResult:
    """What became of the shard. The journal is the record; this is for the console."""

    exit_code: ExitCode
    units: tuple[UnitResult, ...]
    not_run: tuple[Unit, ...]
    """Units that were wanted and never started."""
    journal: Path
    junit: Path
    interrupted: str = ""


def run_shard(job: PlannedJob, shard: Shard, *, options: RunOptions) -> RunResult:
    """Run the units of a shard on this host. Call it in the main thread of a process with no other thread.

    Raises OSError when the results cannot be written.
    """
    with (
        Interrupts() as interrupts,
        tempfile.TemporaryDirectory(prefix="nightcap-", ignore_cleanup_errors=True) as scratch,
    ):
        places = Places(options.root, options.results, Path(scratch))
        shutil.rmtree(options.results / "logs", ignore_errors=True)
        record = Record(places.journal, places.reserve)
        processes.become_subreaper()
        try:
            deadline = time.monotonic() + job.timeout * STEP_SHARE
            record.write(_head(job, shard, options))
            result = _run_units(job, shard, Context(options, places, record, interrupts, deadline))
            record.write(
                ShardFinished(at=time.time(), exit_code=result.exit_code, interrupted=result.interrupted)
            )
            junit.write(record.events, places.junit)
            return result
        finally:
            record.close()


def _head(job: PlannedJob, shard: Shard, options: RunOptions) -> ShardStarted:
    return ShardStarted(
        at=time.time(),
        workflow=options.workflow,
        job=job.key,
        shard=shard.id,
        run_attempt=options.run_attempt,
        plan_hash=options.plan_hash,
        host=socket.gethostname(),
        environment=environment.manifest(options.root, options.env),
    )


def _run_units(job: PlannedJob, shard: Shard, context: Context) -> RunResult:
    options = context.options
    wanted = [u for u in shard.units if options.only is None or (u.suite, u.path) in options.only]
    console = Console(quiet=options.quiet, total=len(wanted))
    mark = uuid.uuid4().hex
    results: list[UnitResult] = []
    for unit in wanted:
        if context.interrupts.received:
            break
        if time.monotonic() >= context.deadline:
            context.record.note(
                "warning", f"{unit.path} and what follows: not run, the job's time is used up"
            )
            break
        only = (options.only or {}).get((unit.suite, unit.path)) or None
        result = _run_unit(Attempt(job, shard, unit, 1, mark, only), context, console)
        results.append(result)
        console.unit(unit, result.ending, result.counts, result.seconds, result.detail)
    not_run = tuple(wanted[len(results) :])
    return RunResult(
        exit_code=_exit_code(results, not_run, context.interrupts.received),
        units=tuple(results),
        not_run=not_run,
        journal=context.places.journal,
        junit=context.places.junit,
        interrupted=context.interrupts.received,
    )


def _run_unit(attempt: Attempt, context: Context, console: Console) -> UnitResult:
    """All attempts of one unit."""
    started = time.monotonic()
    planned = attempt.unit.tests if attempt.only is None else attempt.only
    outcomes: dict[str, tuple[Outcome, ...]] = {}
    made: list[AttemptResult] = []
    following: Attempt | None = attempt
    while following is not None:
        attempt = following
        console.attempt(attempt.unit, attempt.number, attempt.reason)
        made.append(attempts.run(attempt, context))
        for event in made[-1].finished:
            outcomes[event.test] = (*outcomes.get(event.test, ()), event.outcome)
        following = _next(attempt, made, context)
    last = made[-1]
    return UnitResult(
        unit=attempt.unit,
        ending=last.judgement.ending,
        outcomes=outcomes,
        lost=tuple(test for test in planned if not _has_result(test, outcomes)),
        seconds=time.monotonic() - started,
        attempts=attempt.number,
        detail=last.judgement.detail,
        failure=last.failure,
        log=context.places.log(attempt.unit, attempt.number),
    )


def _next(attempt: Attempt, made: Sequence[AttemptResult], context: Context) -> Attempt | None:
    """The attempt that follows: the rest after a crash, what has not passed on a bad host, or none."""
    last = made[-1]
    if context.interrupts.received or time.monotonic() >= context.deadline or last.failure is None:
        return None
    resumes = sum(bool(m.judgement.resume) for m in made)
    if last.judgement.resume and resumes <= context.options.resumes:
        reason = f"resumed after: {last.judgement.detail}"
        return replace(attempt, number=attempt.number + 1, only=last.judgement.resume, reason=reason)
    retries = sum(m.failure == last.failure for m in made)
    if last.failure.infra and retries <= last.failure.retries:
        reason = f"retry {retries} of {last.failure.retries}: {last.failure.name}"
        return replace(
            attempt, number=attempt.number + 1, only=_not_passed(last, attempt.only), reason=reason
        )
    return None


def _not_passed(result: AttemptResult, only: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Ids for a retry; all of the attempt's when collection did not end."""
    if result.seen.collected is None:
        return only
    good = {event.test for event in result.finished if event.outcome not in BAD}
    return tuple(test for test in result.seen.collected if test not in good)


def _has_result(planned: str, outcomes: Mapping[str, object]) -> bool:
    """A planned id holds its parameters' results: `a.py::t` those of `a.py::t[1]`."""
    return planned in outcomes or any(test.startswith(f"{planned}[") for test in outcomes)


def _standing(history: Sequence[Outcome]) -> str:
    if history[-1] == "passed" and any(outcome in BAD for outcome in history):
        return "flaky"
    return history[-1]


def _exit_code(results: Sequence[UnitResult], not_run: Sequence[Unit], interrupted: str) -> ExitCode:
    """The worst that holds, in the order of ExitCode."""
    counts = sum((Counter(result.counts) for result in results), Counter[str]())
    if interrupted:
        return ExitCode.INTERRUPTED
    if any(result.bad and result.ending != "infra" for result in results):
        return ExitCode.FAILED
    if any(result.ending == "infra" for result in results):
        return ExitCode.INFRA
    if any(result.ending == "no-tests" and not result.counts["skipped"] for result in results):
        return ExitCode.NO_SIGNAL
    if counts["lost"] or not_run:
        return ExitCode.FAILED
    return ExitCode.PASSED if counts["passed"] + counts["flaky"] else ExitCode.NO_SIGNAL
