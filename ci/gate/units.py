"""What one shard's journal says of one unit: a verdict per test, and what is wrong with its file.

A unit is run again in a new attempt after a crash (the tests not yet run) or for a retry. Rules:

- A test that was running when its process ended badly has that ending, whether or not the runner wrote it.
- The last result counts, but a skip never covers another result: failed then skipped stays failed.
- Failed, crashed or timed out, then passed: `flaky`.
- Every collected id and every planned id has a result or is lost; `path::test[...]` meets `path::test`.
- What a completed attempt collected it has also finished; an attempt starts, collects and ends. A journal
  that says otherwise has a hole, and a hole may hide a failure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, field
from typing import Any

from ci.gate.kinds import finding
from ci.gate.night import Finding, JobVerdict, JudgedTest, TestVerdict
from ci.journal import (
    AnyEvent,
    Collected,
    Ending,
    Outcome,
    TestFinished,
    TestStarted,
    UnitFinished,
    UnitStarted,
    seconds_until_death,
)
from ci.plan import PlannedJob, Unit
from ci.suites.testfile import base_id

UnitKey = tuple[str, str]
"""(suite, path): a file may hold tests of two suites."""

BAD: frozenset[Outcome] = frozenset({"failed", "crashed", "timed-out"})
_BLAME: dict[Ending, Outcome] = {"crashed": "crashed", "timed-out": "timed-out", "silent": "timed-out"}
"""What an ending makes of the test that was running."""


@dataclass(frozen=True)
class Place:
    """Whose journal is judged."""

    job: PlannedJob
    shard: str


@dataclass(frozen=True)
class Trial:
    """One result of a test in one attempt of its unit."""

    test: str
    attempt: int
    outcome: Outcome
    seconds: float
    message: str
    infra: bool
    """True when the runner blames the host for the attempt."""


@dataclass
class Attempt:
    """The events of one attempt of a unit."""

    number: int
    started: UnitStarted | None = None
    collected: Collected | None = None
    running: list[TestStarted] = field(default_factory=list)
    results: list[TestFinished] = field(default_factory=list)
    end: UnitFinished | None = None

    def add(self, event: UnitStarted | Collected | TestStarted | TestFinished | UnitFinished) -> None:
        """Take the next event."""
        match event:
            case UnitStarted():
                self.started = event
            case Collected():
                self.collected = event
            case TestStarted():
                self.running.append(event)
            case TestFinished():
                self.results.append(event)
            case UnitFinished():
                self.end = event

    @property
    def unfinished(self) -> dict[str, float]:
        """Tests that started and have no result, in the order of their start, and the seconds that they ran.

        0 where the journal does not tell when their process began and ended.
        """
        finished = {result.test for result in self.results}
        return {event.test: self._until_death(event.at) for event in self.running if event.test not in finished}

    def _until_death(self, test_started: float) -> float:
        if self.started is None or self.end is None:
            return 0.0
        return seconds_until_death(test_started, self.started.at, self.end.seconds)

    @property
    def trials(self) -> list[Trial]:
        """Every result, with those that only the ending tells."""
        infra = self.end is not None and self.end.ending == "infra"
        told = [Trial(one.test, self.number, one.outcome, one.seconds, one.message, infra) for one in self.results]
        if self.end is None or self.end.ending not in _BLAME:
            return told
        blame, why = _BLAME[self.end.ending], ending_text(self.end)
        ran = self.unfinished.items()
        return told + [Trial(test, self.number, blame, seconds, why, infra) for test, seconds in ran]

    @property
    def doubled(self) -> list[str]:
        """Tests that ran or ended more than once in this attempt."""
        starts = Counter(event.test for event in self.running)
        ends = Counter(result.test for result in self.results)
        return sorted(test for test in starts | ends if starts[test] > 1 or ends[test] > 1)


@dataclass(frozen=True)
class UnitVerdict:
    """What the journal says of one unit."""

    tests: tuple[JudgedTest, ...]
    findings: tuple[Finding, ...]
    lost: tuple[str, ...]
    seconds: float


def attempts_by_unit(events: Iterable[AnyEvent]) -> dict[UnitKey, list[Attempt]]:
    """The attempts of every unit that the journal names, in the order of their numbers."""
    found: dict[UnitKey, dict[int, Attempt]] = {}
    for event in events:
        if isinstance(event, UnitStarted | Collected | TestStarted | TestFinished | UnitFinished):
            attempts = found.setdefault((event.suite, event.unit), {})
            attempts.setdefault(event.attempt, Attempt(event.attempt)).add(event)
    return {key: [attempts[number] for number in sorted(attempts)] for key, attempts in found.items()}


def ending_text(end: UnitFinished) -> str:
    """`crashed by SIGSEGV: ...`: how a process ended, for a person."""
    how = {"silent": "printed nothing for too long", "no-tests": "ran no test"}.get(end.ending, end.ending)
    by = f" by {end.signal}" if end.signal else f" with exit code {end.exit_code}" if end.exit_code else ""
    named = f" ({end.failure_class})" if end.failure_class else ""
    return f"{how}{by}{named}{': ' if end.detail else ''}{end.detail}"


def judge_unit(place: Place, unit: Unit, attempts: list[Attempt], *, whole: bool) -> UnitVerdict:
    """Judge one planned unit. `whole`: the journal goes on behind it, so the unit must have ended."""
    trials = _trials(unit, attempts)
    lost, left_out = _without_result(place.job, unit, attempts, trials)
    findings = [*_holes(attempts, trials, whole=whole), *_endings(attempts), *_duplicates(attempts)]
    tests: list[JudgedTest] = []

    def judged(test: str, verdict: TestVerdict, **fields: Any) -> JudgedTest:
        planned = _is_planned(unit, test)
        tests.append(
            JudgedTest(
                job=place.job.key, shard=place.shard, suite=unit.suite, unit=unit.path,
                test=test, verdict=verdict, planned=planned, **fields,
            )
        )  # fmt: skip
        return tests[-1]

    for test, results in trials.items():
        quarantine = place.job.quarantined(unit.path, test)
        verdict, decisive = _verdict(results, quarantined=bool(quarantine))
        one = judged(test, verdict, attempts=len(results), seconds=decisive.seconds, message=decisive.message)
        findings += _of_test(one, quarantine, infra=decisive.infra)
    ran = {test: seconds for attempt in attempts for test, seconds in attempt.unfinished.items()}
    for test in lost:
        judged(test, "lost", seconds=ran.get(test, 0.0))
    for test in left_out:
        judged(test, "skipped", message="left out by a mark that the job excludes")
    unplanned = tuple(sorted(one.test for one in tests if not one.planned))
    if unplanned:
        findings.append(finding("unplanned", f"{tests_text(unplanned)} that nobody planned", tests=unplanned))
    where = {"job": place.job.key, "shard": place.shard, "suite": unit.suite, "unit": unit.path}
    return UnitVerdict(
        tests=tuple(sorted(tests, key=lambda one: one.test)),
        findings=tuple(one.model_copy(update=where) for one in findings),
        lost=tuple(sorted(lost)),
        seconds=sum(attempt.end.seconds for attempt in attempts if attempt.end),
    )


def _trials(unit: Unit, attempts: list[Attempt]) -> dict[str, list[Trial]]:
    """Every test's results in the order of attempts.

    What cannot be collected has its results under the planned ids. When another attempt tells the parameters,
    each of them has had that result.
    """
    trials: dict[str, list[Trial]] = defaultdict(list)
    uncollected: dict[str, list[Trial]] = defaultdict(list)
    for attempt in attempts:
        collected = frozenset(attempt.collected.tests if attempt.collected else ())
        for trial in attempt.trials:
            (trials if trial.test in collected else uncollected)[trial.test].append(trial)
    for test in trials:
        early = uncollected.get(test, uncollected.get(base_id(unit.path, test), []))
        trials[test] = sorted(early + trials[test], key=lambda trial: trial.attempt)
    told = {*trials, *(base_id(unit.path, test) for test in trials)}
    return {**trials, **{test: several for test, several in uncollected.items() if test not in told}}


def tests_text(tests: Sized) -> str:
    """`1 test`, `1,200 tests`."""
    return f"{len(tests):,} test{'s' * (len(tests) != 1)}"


def _is_planned(unit: Unit, test: str) -> bool:
    return not unit.tests or test in unit.tests or base_id(unit.path, test) in unit.tests


def _without_result(
    job: PlannedJob, unit: Unit, attempts: list[Attempt], trials: Mapping[str, object]
) -> tuple[set[str], set[str]]:
    """(lost, left out by a mark that the job excludes): the ids that have no result."""
    collections = [attempt.collected for attempt in attempts if attempt.collected]
    collected = {test for one in collections for test in one.tests}
    deselected = {test for one in collections for test in one.deselected} - collected - trials.keys()
    lost = collected - trials.keys()
    left_out: set[str] = set()
    if job.exclude_marks:  # What a mark excludes statically was not planned, and needs no verdict.
        left_out = {test for test in deselected if _is_planned(unit, test)}
    else:
        lost |= deselected
    named = trials.keys() | lost | left_out
    lost |= set(unit.tests) - named - {base_id(unit.path, test) for test in named}
    return lost if unit.tests or named else {unit.path}, left_out


def _verdict(results: list[Trial], *, quarantined: bool) -> tuple[TestVerdict, Trial]:
    """The verdict of a test from its results in the order of attempts, and the one that says why."""
    last = next((one for one in reversed(results) if one.outcome != "skipped"), results[-1])
    bad = next((one for one in results if one.outcome in BAD), None)
    if bad and quarantined:
        return "quarantined", bad
    if bad and last.outcome == "passed":
        return "flaky", bad
    return last.outcome, last


def _of_test(test: JudgedTest, quarantine: str, *, infra: bool) -> list[Finding]:
    """What a person should hear of a test with that verdict; nothing of one that passed or was skipped."""
    if test.verdict in ("passed", "skipped", "lost"):
        return []
    messages = {"flaky": "failed before it passed", "quarantined": f"failed; it is in quarantine: {quarantine}"}
    times = f" in the last of {test.attempts} attempts" if test.attempts > 1 else ""
    message = messages.get(test.verdict, f"{test.verdict.replace('-', ' ')}{times}")
    causes: JobVerdict | None = "infra" if infra and test.verdict in BAD else None
    return [finding(test.verdict, message, tests=(test.test,), detail=test.message, causes=causes)]


def _holes(attempts: list[Attempt], trials: Mapping[str, object], *, whole: bool) -> Iterator[Finding]:
    """Attempts of which a line is missing that the runner always writes."""
    numbers = [attempt.number for attempt in attempts]
    missing = sorted(set(range(1, max(numbers, default=0) + 1)) - set(numbers))
    if missing:
        yield finding("holed-journal", f"nothing of attempt {missing[0]}, though a later one was made")
    for attempt in attempts:
        lines = []
        if attempt.started is None:
            lines.append("unit_started")
        if attempt.collected is None and attempt.running:
            lines.append("collected")
        if attempt.end is None and (whole or attempt is not attempts[-1]):
            lines.append("unit_finished")
        if lines:
            yield finding("holed-journal", f"attempt {attempt.number} has no line {' and no '.join(lines)}")
        if attempt.collected and attempt.end and attempt.end.ending == "completed":
            ended = {result.test for result in attempt.results}
            # Those without a result anywhere are lost by name.
            gone = tuple(sorted((set(attempt.collected.tests) - ended) & trials.keys()))
            if gone:
                message = f"attempt {attempt.number} completed without a result of {tests_text(gone)}"
                yield finding("holed-journal", message, tests=gone)


def _endings(attempts: list[Attempt]) -> Iterator[Finding]:
    """Files that ended badly with no test to blame. The last attempt decides; an earlier one is a warning."""
    for attempt in attempts:
        if attempt.end is None:
            continue
        kind = _ending_kind(attempt.end, {trial.outcome for trial in attempt.trials})
        if kind and attempt is attempts[-1]:
            yield finding(kind, ending_text(attempt.end))
        elif kind:
            yield finding("unsteady-file", f"attempt {attempt.number}: {ending_text(attempt.end)}")


def _ending_kind(end: UnitFinished, outcomes: set[Outcome]) -> str:
    match end.ending:
        case "infra":
            return "infra"
        case "crashed" if not outcomes & {"crashed", "timed-out"}:
            return "file-crashed"
        case "timed-out" | "silent" if not outcomes & {"crashed", "timed-out"}:
            return "file-timed-out"
        case "completed" if end.exit_code and not outcomes & BAD:
            return "file-failed"
    return ""  # Without results the tests are lost, by name; what was interrupted the shard tells.


def _duplicates(attempts: list[Attempt]) -> Iterator[Finding]:
    for attempt in attempts:
        if attempt.doubled:
            message = f"{tests_text(attempt.doubled)} ran more than once in attempt {attempt.number}"
            yield finding("duplicate", message, tests=tuple(attempt.doubled))
