"""All attempts of one unit, and what it comes to.

An attempt that crashes is resumed with the tests that it did not reach; one that failed because of the host may be
tried again, by class and with a cap; nothing else is ever repeated.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ci.journal import Outcome
from ci.runner import attempt as attempts
from ci.runner.attempt import AttemptResult, Context
from ci.runner.console import Console
from ci.runner.judge import BAD
from ci.runner.results import UnitResult
from ci.runner.units import Attempt


def run_unit(attempt: Attempt, context: Context, console: Console) -> UnitResult:
    """All attempts of one unit."""
    started = time.monotonic()
    planned = attempt.unit.tests if attempt.only is None else attempt.only
    outcomes: dict[str, tuple[Outcome, ...]] = {}
    messages: dict[str, str] = {}
    made: list[AttemptResult] = []
    following: Attempt | None = attempt
    while following is not None:
        attempt = following
        console.attempt(attempt.unit, attempt.number, attempt.reason)
        made.append(attempts.run(attempt, context))
        for event in made[-1].finished:
            outcomes[event.test] = (*outcomes.get(event.test, ()), event.outcome)
            if event.outcome in BAD:
                messages[event.test] = event.message
        following = _next(attempt, made, context)
    last = made[-1]
    return UnitResult(
        unit=attempt.unit,
        ending=last.judgement.ending,
        outcomes=outcomes,
        messages=messages,
        quarantined=frozenset(test for test in outcomes if attempt.job.quarantined(attempt.unit.path, test)),
        lost=tuple(test for test in planned if not _has_result(test, outcomes)),
        seconds=time.monotonic() - started,
        attempts=attempt.number,
        detail=last.judgement.detail,
        failure=last.failure,
        log=context.places.log(attempt.unit, attempt.number),
        host=last.host,
    )


def _next(attempt: Attempt, made: Sequence[AttemptResult], context: Context) -> Attempt | None:
    """The attempt that follows: the rest after a crash, what has not passed on a bad host, or none."""
    last = made[-1]
    if context.interrupts.received or time.monotonic() >= context.deadline or last.failure is None:
        return None
    if last.host and last.host.status == "bad":
        return None
    resumes = sum(bool(m.judgement.resume) for m in made)
    if last.judgement.resume and resumes <= context.options.resumes:
        reason = f"resumed after: {last.judgement.detail}"
        return replace(attempt, number=attempt.number + 1, only=last.judgement.resume, reason=reason)
    retries = sum(m.failure == last.failure for m in made)
    if last.failure.infra and retries <= last.failure.retries:
        reason = f"retry {retries} of {last.failure.retries}: {last.failure.name}"
        return replace(attempt, number=attempt.number + 1, only=_not_passed(last, attempt.only), reason=reason)
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
