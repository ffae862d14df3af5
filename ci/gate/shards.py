"""What the journals of one planned shard say: which attempt counts, and the verdict of each of its units."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ci.gate.kinds import finding
from ci.gate.night import WORST_FIRST, Finding, JobVerdict, JudgedShard, JudgedTest
from ci.gate.units import (
    BAD,
    Attempt,
    Place,
    UnitKey,
    attempts_by_unit,
    ending_text,
    judge_unit,
    tests_text,
)
from ci.journal import Journal, Note, ShardFinished, ShardStarted, line
from ci.plan import PlannedJob, Shard
from ci.suites.testfile import base_id


@dataclass(frozen=True)
class ShardVerdict:
    """A shard, its tests and what was found."""

    shard: JudgedShard
    tests: tuple[JudgedTest, ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Headed:
    """A journal that says whose it is."""

    head: ShardStarted
    journal: Journal


def judge_shard(job: PlannedJob, shard: Shard, journals: Sequence[Headed], plan_hash: str) -> ShardVerdict:
    """Judge one planned shard from all its journals: the latest attempt of the run wins."""
    place = Place(job, shard.id)
    latest = _latest(journals, plan_hash)
    if not latest:
        return _without_journal(place, shard, finding("missing-shard", "no journal"))
    chosen, findings = latest[0], []
    if len(latest) > 1:
        message = f"{len(latest)} different journals of attempt {chosen.head.run_attempt}"
        findings.append(finding("two-journals", message))
    if chosen.head.plan_hash != plan_hash:
        message = f"its journal is of plan {chosen.head.plan_hash or '(none)'}, not {plan_hash}"
        return _without_journal(place, shard, finding("wrong-plan", message), *findings, chosen=chosen)
    verdict = _judge_journal(place, shard, chosen, findings)
    return _with_history(verdict, place, journals, plan_hash)


def worst(verdicts: Sequence[JobVerdict]) -> JobVerdict:
    """The verdict that explains most; `passed` of none."""
    return min(verdicts, key=WORST_FIRST.index, default="passed")


def _latest(journals: Sequence[Headed], plan_hash: str) -> list[Headed]:
    """The journals of the latest attempt of the run, the one to judge first; in any order given, the same."""
    attempt = max((one.head.run_attempt for one in journals), default=0)
    latest = [one for one in journals if one.head.run_attempt == attempt]
    if len(latest) < 2:
        return latest

    def order(one: Headed) -> tuple[bool, int, int, str]:
        text = "".join(map(line, one.journal.events))
        return one.head.plan_hash != plan_hash, -len(one.journal.events), one.journal.unreadable, text

    return sorted(latest, key=order)


def _judge_journal(place: Place, shard: Shard, chosen: Headed, findings: list[Finding]) -> ShardVerdict:
    events = chosen.journal.events
    end = next((event for event in reversed(events) if isinstance(event, ShardFinished)), None)
    attempts = attempts_by_unit(events)
    open_unit = _last_unit(chosen.journal) if end is None else None
    tests: list[JudgedTest] = []
    lost: dict[UnitKey, tuple[str, ...]] = {}
    seconds = 0.0
    for unit in shard.units:
        key = (unit.suite, unit.path)
        verdict = judge_unit(place, unit, attempts.get(key, []), whole=key != open_unit)
        tests += verdict.tests
        findings += verdict.findings
        seconds += verdict.seconds
        if verdict.lost:
            lost[key] = verdict.lost
    findings += _unplanned_units(shard, attempts)
    findings += _notes(chosen.journal)
    if end and chosen.journal.unreadable:
        # No red: what such a line said is missed as a hole, or as a lost test, by whatever stands round it.
        findings.append(finding("unreadable-lines", f"lines that cannot be read: {chosen.journal.unreadable}"))
    cause = _cause(shard, chosen, end, attempts)
    if cause:
        all_lost = tuple(test for names in lost.values() for test in names)
        findings.append(cause.model_copy(update={"tests": all_lost}))
    else:
        findings += [_lost(key, names, attempts.get(key, [])) for key, names in lost.items()]
    if tests and all(test.verdict == "skipped" for test in tests):
        skipped = "its only test was" if len(tests) == 1 else f"all {tests_text(tests)} were"
        findings.append(finding("no-signal", f"{skipped} skipped"))
    if end and end.exit_code and not any(one.red or one.kind == "quarantined" for one in findings):
        findings.append(finding("shard-failed", f"the runner left with {end.exit_code}; no test says why"))
    return ShardVerdict(_judged(place, findings, chosen, seconds=seconds), tuple(tests), _placed(place, findings))


def _cause(
    shard: Shard, chosen: Headed, end: ShardFinished | None, attempts: Mapping[UnitKey, list[Attempt]]
) -> Finding | None:
    """The one reason why a shard did not come to its end, which then explains all its lost tests."""
    journal = chosen.journal
    if end is None:
        where = _last_unit(journal)
        running = [test for one in attempts.get(where, ()) if not one.end for test in one.unfinished]
        during = f" in {where[1]}" if where in attempts else " before the first file"
        test = f", while {running[0]} ran" if running else ""
        half = ", in the middle of a line" if journal.unreadable else ""
        return finding("cut-journal", f"the journal ends{during}{test}{half}")
    endings = [one.end.ending for several in attempts.values() for one in several[-1:] if one.end]
    if end.interrupted or "interrupted" in endings:
        return finding("interrupted", f"stopped by {end.interrupted or 'a signal'}")
    infra = [event.message for event in journal.events if isinstance(event, Note) and event.level == "infra"]
    if infra and any((unit.suite, unit.path) not in attempts for unit in shard.units):
        return finding("infra", f"host {chosen.head.host}: {infra[-1]}")
    return None


def _lost(key: UnitKey, names: tuple[str, ...], attempts: list[Attempt]) -> Finding:
    """The lost tests of one file, and what became of it."""
    last = attempts[-1].end if attempts else None
    if not attempts:
        why = "the file was never started"
    elif last is None or last.ending == "completed":
        why = "the file completed without them"
    else:
        why = f"the file {ending_text(last)}"
    return finding("lost", f"no result of {tests_text(names)}: {why}", suite=key[0], unit=key[1], tests=names)


def _unplanned_units(shard: Shard, attempts: Mapping[UnitKey, list[Attempt]]) -> Iterator[Finding]:
    planned = {(unit.suite, unit.path) for unit in shard.units}
    for suite, path in sorted(attempts.keys() - planned):
        names = {trial.test for attempt in attempts[suite, path] for trial in attempt.trials}
        message = f"ran {path} of suite {suite}, which the plan gives to another shard or to none"
        yield finding("unplanned-unit", message, suite=suite, unit=path, tests=tuple(sorted(names)))


def _notes(journal: Journal) -> Iterator[Finding]:
    for event in journal.events:
        if isinstance(event, Note) and event.level != "info":
            yield finding("note", event.message)


def _with_history(verdict: ShardVerdict, place: Place, journals: Sequence[Headed], plan_hash: str) -> ShardVerdict:
    """Tests that passed now and failed in an earlier attempt of the run are flaky, too."""
    latest = verdict.shard.run_attempt
    earlier = [one for one in journals if one.head.run_attempt < latest]
    failed = {
        (suite, unit, trial.test): one.head.run_attempt
        for one in sorted(earlier, key=lambda one: one.head.run_attempt)
        if one.head.plan_hash == plan_hash
        for (suite, unit), attempts in attempts_by_unit(one.journal.events).items()
        for attempt in attempts
        for trial in attempt.trials
        if trial.outcome in BAD
    }
    tests, findings = [], list(verdict.findings)
    for test in verdict.tests:
        # A process that died before it collected has failed by its planned, unparametrised names.
        names = (test.test, base_id(test.unit, test.test))
        attempt = max(failed.get((test.suite, test.unit, name), 0) for name in names)
        if attempt and test.verdict == "passed":
            message = f"failed in attempt {attempt} of the run, passed in attempt {latest}"
            test = test.model_copy(update={"verdict": "flaky", "message": message})
            found = finding("flaky", message, suite=test.suite, unit=test.unit, tests=(test.test,))
            findings += _placed(place, [found])
        tests.append(test)
    history = tuple(sorted({one.head.run_attempt for one in earlier}))
    judged = verdict.shard.model_copy(update={"superseded": history})
    return ShardVerdict(judged, tuple(tests), tuple(findings))


def _without_journal(
    place: Place, shard: Shard, cause: Finding, *others: Finding, chosen: Headed | None = None
) -> ShardVerdict:
    """Every test of the shard is lost, for one reason."""
    tests = [test for unit in shard.units for test in judge_unit(place, unit, [], whole=False).tests]
    message = f"{cause.message}; {tests_text(tests)} without a result"
    names = tuple(test.test for test in tests)
    findings = [cause.model_copy(update={"tests": names, "message": message}), *others]
    return ShardVerdict(_judged(place, findings, chosen), tuple(tests), _placed(place, findings))


def _judged(place: Place, findings: Sequence[Finding], chosen: Headed | None, seconds: float = 0.0) -> JudgedShard:
    return JudgedShard(
        id=place.shard,
        verdict=worst([one.causes for one in findings]),
        host=chosen.head.host if chosen else "",
        run_attempt=chosen.head.run_attempt if chosen else 0,
        seconds=seconds,
    )


def _placed(place: Place, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    return tuple(one.model_copy(update={"job": place.job.key, "shard": place.shard}) for one in findings)


def _last_unit(journal: Journal) -> UnitKey:
    """The unit that the journal speaks of last; empty names when it speaks of none."""
    for event in reversed(journal.events):
        suite, unit = getattr(event, "suite", None), getattr(event, "unit", None)
        if suite is not None and unit is not None:
            return suite, unit
    return "", ""
