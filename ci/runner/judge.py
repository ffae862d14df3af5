"""How one attempt of a unit ended, from how its process left and what it wrote down. Pure functions.

The exit code alone is never believed: a conftest can swallow it, and `os._exit(0)` in the middle of a file
leaves with 0. An attempt is complete when each collected test has its result and the process left as pytest
leaves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ci.journal import Ending, Outcome
from ci.plan import Unit
from ci.runner.record import Seen
from ci.runner.supervise import Ended

_PYTEST_EXITS = {
    2: "pytest was interrupted from inside (exit code 2)",
    3: "pytest internal error (exit code 3)",
    4: "pytest could not start: bad options, or an error in a conftest (exit code 4)",
}
_UNEXPLAINED = "exit code 1 though no test failed: a plug-in, or the end of the session"
_NO_UNITTESTS = re.compile(r"^Ran 0 tests in ", re.MULTILINE)
BAD: frozenset[Outcome] = frozenset({"failed", "timed-out", "crashed"})


@dataclass(frozen=True)
class Result:
    """A result that the runner states for a test that could not do so itself."""

    test: str
    outcome: Outcome
    message: str
    seconds: float


@dataclass(frozen=True)
class Judgement:
    """What an attempt came to. A detail on a completed attempt says what is wrong beside its tests."""

    ending: Ending
    detail: str = ""
    results: tuple[Result, ...] = ()
    resume: tuple[str, ...] = ()
    """Tests that a crash, or a test over its own budget, kept from running: for a fresh process."""


def pytest_unit(unit: Unit, ended: Ended, seen: Seen, *, oom: str = "") -> Judgement:
    """Judge an attempt of a test file. `oom` says who ended a process for want of memory, if anybody did."""
    unstarted = unit.tests if seen.collected is None and not seen.finished else ()
    victims = seen.running or dict.fromkeys(unstarted, 0.0)
    if ended.cause == "interrupted":
        return Judgement("interrupted", _during("stopped", seen))
    if ended.cause != "exited":
        message = _out_of_time(ended, seen)
        detail = _during(message, seen)
        return Judgement(_stopped(ended), detail, _taken(victims, "timed-out", message if seen.running else detail))
    if seen.running and ended.gave_up:
        message = f"over the budget of the test{_stacks(ended)}"
        results = _taken(seen.running, "timed-out", message)
        return Judgement("timed-out", _during(message, seen), results, seen.not_run)
    left = oom or _PYTEST_EXITS.get(ended.exit_code or 0) or _left(ended)
    if seen.collected is None or seen.running or seen.not_run:
        detail = _during(left, seen)
        results = _taken(victims, "crashed", left if seen.running else detail)
        progressed = bool(seen.running or seen.finished)
        return Judgement("crashed", detail, results, seen.not_run if progressed else ())
    if ended.signal or ended.exit_code not in (0, 1, 5):
        return Judgement("crashed", f"{left} after its last test")
    if not seen.collected and all(event.outcome == "skipped" for event in seen.finished):
        return Judgement("no-tests", f"no test ran (exit code {ended.exit_code})")
    if ended.exit_code == 1 and not any(event.outcome in BAD for event in seen.finished):
        return Judgement("completed", _UNEXPLAINED)
    return Judgement("completed")


def script(unit: Unit, ended: Ended, log: str, *, oom: str = "") -> Judgement:
    """Judge a script: its exit code is its one result, unless it says that it ran no test."""
    if ended.cause == "interrupted":
        return Judgement("interrupted", "stopped")
    if ended.cause != "exited":
        detail = _out_of_time(ended, Seen())
        return Judgement(_stopped(ended), detail, _all(unit.tests, "timed-out", detail, ended.seconds))
    if ended.signal or oom:
        detail = oom or _left(ended)
        return Judgement("crashed", detail, _all(unit.tests, "crashed", detail, ended.seconds))
    if ended.exit_code == 0:
        if _NO_UNITTESTS.search(log):
            return Judgement("no-tests", "unittest ran 0 tests, yet the exit code is 0")
        return Judgement("completed", "", _all(unit.tests, "passed", "", ended.seconds))
    if ended.exit_code == 5 and _NO_UNITTESTS.search(log):
        return Judgement("no-tests", "unittest ran 0 tests")
    return Judgement("completed", "", _all(unit.tests, "failed", _left(ended), ended.seconds))


def command(unit: Unit, ended: Ended, reported: tuple[Result, ...] | None, *, oom: str = "") -> Judgement:
    """Judge an external command by what its JUnit file reports (None: it left none that can be read).

    Planned tests that it does not report stay without a result.
    """
    found = reported or ()
    if ended.cause == "interrupted":
        return Judgement("interrupted", "stopped", found)
    if ended.cause != "exited":
        return Judgement(_stopped(ended), _out_of_time(ended, Seen()), found)
    left = oom or _left(ended)
    if ended.signal or oom:
        return Judgement("crashed", left, found)
    if not found:
        missing = f"{unit.junit} is missing or cannot be read" if reported is None else f"{unit.junit} has no test"
        ending: Ending = "no-tests" if ended.exit_code == 0 else "crashed"
        return Judgement(ending, f"{left}; {missing}")
    if ended.exit_code != 0 and not any(result.outcome in BAD for result in found):
        return Judgement("completed", f"{left}, though {unit.junit} reports no failure", found)
    return Judgement("completed", "", found)


def _taken(victims: Mapping[str, float], outcome: Outcome, message: str) -> tuple[Result, ...]:
    """Results of tests that the end of their process took along, each with the seconds that it had run."""
    return tuple(Result(test, outcome, message, seconds) for test, seconds in victims.items())


def _all(tests: Iterable[str], outcome: Outcome, message: str, seconds: float) -> tuple[Result, ...]:
    return tuple(Result(test, outcome, message, seconds) for test in tests)


def _stopped(ended: Ended) -> Ending:
    return "silent" if ended.cause == "silent" else "timed-out"


def _left(ended: Ended) -> str:
    if ended.signal:
        return f"ended by {ended.signal}"
    return f"left with exit code {ended.exit_code}"


def _during(what: str, seen: Seen) -> str:
    if seen.running:
        return f"{what} in {', '.join(seen.running)}"
    if seen.collected is None:
        return f"{what} before its tests were collected"
    return f"{what} between tests" if seen.not_run else f"{what} after its last test"


def _stacks(ended: Ended) -> str:
    return f" (stacks in {ended.stacks.name})" if ended.stacks else ""


def _out_of_time(ended: Ended, seen: Seen) -> str:
    """Says `while passing` when the time went into tests that passed, and not into one that hangs."""
    passed = sum(event.seconds for event in seen.finished if event.outcome == "passed")
    bad = any(event.outcome in BAD for event in seen.finished)
    where = _stacks(ended)
    if ended.cause == "silent":
        return f"silent for too long, ended after {ended.seconds:.0f} s{where}"
    if passed >= ended.seconds / 2 and not bad:
        spent = f"{passed:.0f} s went into passed tests"
        return f"timed out after {ended.seconds:.0f} s while passing: {spent}{where}"
    return f"timed out after {ended.seconds:.0f} s{where}"
