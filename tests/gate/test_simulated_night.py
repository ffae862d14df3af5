"""A night of 5,000 tests in 8 shards with 200 faults from a fixed seed: the gate says what really happened.

The simulation picks what becomes of each file and shard, and writes the journals that a runner would leave.
What is true follows from the pick alone; the gate sees nothing but plan and journals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ci.gate import judge
from ci.gate.night import Night
from ci.journal import Journal, TestFinished
from ci.plan import Plan

MakePlan = Callable[..., Plan]
Record = Callable[..., Journal]
JOB = "mla-8-gpu-b200"

SINGLE = {
    "skips": ("skipped", "skipped", ""),
    "fails": ("failed", "failed", "failed"),
    "hangs": ("timed-out", "timed-out", "timed-out"),
    "never starts": ("never", "lost", "lost"),
    "never ends": (None, "lost", "lost"),
    "runs twice": ("twice", "passed", "duplicate"),
}
"""Faults of one test that leave its neighbours alone: what the journal says, the verdict, the problem."""
ONCE_A_FILE = ("lost", "duplicate")
"""Problems that are named once a file, with all tests."""


@dataclass
class File:
    """What became of one file: the attempts that its journal shows, the truth, and the problems to name."""

    attempts: list[dict[str, Any]]
    verdicts: dict[str, str]
    problems: Counter[str] = field(default_factory=Counter)
    faults: int = 1


@dataclass
class Truth:
    """What really happened: a verdict per (shard, test), and how often to name each (shard, problem)."""

    tests: dict[tuple[str, str], str] = field(default_factory=dict)
    problems: Counter[tuple[str, str]] = field(default_factory=Counter)
    faults: int = 0


@dataclass
class Simulated:
    plan: Plan
    journals: list[Journal]
    truth: Truth


# --- Files -----------------------------------------------------------------------------------------------


def calm(random: Random, planned: list[str], ids: list[str]) -> File:
    return File([{"results": dict.fromkeys(ids, "passed")}], dict.fromkeys(ids, "passed"), faults=0)


def some_tests_misbehave(random: Random, planned: list[str], ids: list[str]) -> File:
    file = calm(random, planned, ids)
    for test in random.sample(ids, k=min(2, len(ids) - 1)):
        told, verdict, problem = SINGLE[random.choice(sorted(SINGLE))]
        file.attempts[0]["results"][test] = told
        file.verdicts[test] = verdict
        file.problems[problem] = 1 if problem in ONCE_A_FILE else file.problems[problem] + bool(problem)
        file.faults += 1
    return file


def a_test_ends_its_process(random: Random, planned: list[str], ids: list[str]) -> File:
    """It crashes or hangs, written down by itself or by nobody; the runner resumes behind it, or does not."""
    at = random.randrange(len(ids))
    ending = random.choice(["crashed", "timed-out"])
    behind = ids[at + 1 :]
    first = (
        dict.fromkeys(ids[:at], "passed") | {ids[at]: random.choice([ending, None])} | dict.fromkeys(behind, "never")
    )
    attempts: list[dict[str, Any]] = [{"results": first, "ending": ending}]
    resumed = bool(behind) and random.random() < 0.5
    if resumed:
        attempts.append({"results": dict.fromkeys(behind, "passed")})
    verdicts = dict.fromkeys(ids[:at], "passed") | {ids[at]: ending}
    verdicts |= dict.fromkeys(behind, "passed" if resumed else "lost")
    return File(attempts, verdicts, Counter({ending: 1, "lost": int(bool(behind) and not resumed)}))


def failures_are_retried(random: Random, planned: list[str], ids: list[str]) -> File:
    again = {test: random.choice(["passed", "failed"]) for test in random.sample(ids, k=min(2, len(ids)))}
    first = {test: "failed" if test in again else "passed" for test in ids}
    verdicts = first | {test: "flaky" if told == "passed" else "failed" for test, told in again.items()}
    failed = sum(told == "failed" for told in again.values())
    return File([{"results": first}, {"results": again}], verdicts, Counter(failed=failed), faults=len(again))


def import_crashes_once(random: Random, planned: list[str], ids: list[str]) -> File:
    early = {"results": dict.fromkeys(planned, "crashed"), "ending": "crashed", "collected": False}
    return File([early, {"results": dict.fromkeys(ids, "passed")}], dict.fromkeys(ids, "flaky"))


def crashes_at_exit(random: Random, planned: list[str], ids: list[str]) -> File:
    attempt = {"results": dict.fromkeys(ids, "passed"), "ending": "crashed", "signal": "SIGABRT"}
    return File([attempt], dict.fromkeys(ids, "passed"), Counter({"file-crashed": 1}))


def never_starts(random: Random, planned: list[str], ids: list[str]) -> File:
    return File([], dict.fromkeys(planned, "lost"), Counter(lost=1))


def runs_no_test(random: Random, planned: list[str], ids: list[str]) -> File:
    return File([{"results": {}, "ending": "no-tests"}], dict.fromkeys(planned, "lost"), Counter(lost=1))


FAULTY = (
    some_tests_misbehave, a_test_ends_its_process, failures_are_retried, import_crashes_once, crashes_at_exit,
    never_starts, runs_no_test,
)  # fmt: skip

# --- Shards, all of whose files are calm -----------------------------------------------------------------


def lose(truth: Truth, shard: str, planned: list[str]) -> None:
    for key in [key for key in truth.tests if key[0] == shard]:
        del truth.tests[key]
    truth.tests |= {(shard, test): "lost" for test in planned}


def missing_shard(random: Random, journal: Journal, truth: Truth, shard: str, planned: list[str]) -> list[Journal]:
    lose(truth, shard, planned)
    return []


def wrong_plan(random: Random, journal: Journal, truth: Truth, shard: str, planned: list[str]) -> list[Journal]:
    lose(truth, shard, planned)
    head = journal.events[0].model_copy(update={"plan_hash": "0" * 16})
    return [replace(journal, events=(head, *journal.events[1:]))]


def cut_journal(random: Random, journal: Journal, truth: Truth, shard: str, planned: list[str]) -> list[Journal]:
    events = journal.events[: random.randrange(1, len(journal.events))]
    ended = {event.test for event in events if event.event == "test_finished"}
    collected = {test for event in events if event.event == "collected" for test in event.tests}
    functions = {test.partition("[")[0] for test in collected}
    lose(truth, shard, [test for test in planned if test not in functions])  # known by the planned name alone
    truth.tests |= {(shard, test): "passed" if test in ended else "lost" for test in collected}
    return [replace(journal, events=events, unreadable=random.randrange(2))]


def two_journals(random: Random, journal: Journal, truth: Truth, shard: str, planned: list[str]) -> list[Journal]:
    other = journal.events[0].model_copy(update={"host": "gpu-08"})
    return [journal, replace(journal, events=(other, *journal.events[1:]))]


def holed_journal(random: Random, journal: Journal, truth: Truth, shard: str, planned: list[str]) -> list[Journal]:
    hole = random.choice([n for n, event in enumerate(journal.events) if event.event == "unit_finished"])
    return [replace(journal, events=journal.events[:hole] + journal.events[hole + 1 :], unreadable=1)]


SHARD_FAULTS = (missing_shard, wrong_plan, cut_journal, two_journals, holed_journal)


# --- The night -------------------------------------------------------------------------------------------


def simulate(
    make_plan: MakePlan, record: Record, seed: int, *, shards: int, files: int, tests: int, faults: int
) -> Simulated:
    """A night with `faults` faults or up to one more, as far as there is a file for each."""
    random = Random(seed)
    layout = {
        f"{shard}-of-{shards}": {
            f"tests/s{shard}/test_{file}.py": [f"tests/s{shard}/test_{file}.py::test_{n}" for n in range(tests)]
            for file in range(files)
        }
        for shard in range(1, shards + 1)
    }
    plan, truth = make_plan({JOB: list(layout.values())}), Truth()
    names = random.sample(sorted(layout), k=random.randint(0, shards // 2))
    of_shards = dict(zip(names, random.sample(SHARD_FAULTS, k=len(names)), strict=True))
    truth.faults += len(of_shards)
    journals: list[Journal] = []
    for shard, paths in layout.items():
        ran: dict[str, list[dict[str, Any]]] = {}
        for path, planned in paths.items():
            ids = [f"{test}[{n}]" for test in planned for n in range(2)] if random.random() < 0.1 else planned
            pick = calm if shard in of_shards or truth.faults >= faults else random.choice(FAULTY)
            file = pick(random, planned, ids)
            truth.faults += file.faults
            truth.tests |= {(shard, test): verdict for test, verdict in file.verdicts.items()}
            truth.problems.update({(shard, kind): count for kind, count in file.problems.items()})
            if file.attempts:
                ran[path] = file.attempts
        journal = record(plan, JOB, shard, ran)
        if shard in of_shards:
            fault = of_shards[shard]
            truth.problems[shard, fault.__name__.replace("_", "-")] += 1
            every = [test for planned in paths.values() for test in planned]
            journals += fault(random, journal, truth, shard, every)
        elif random.random() < 0.5:
            journals += rerun(random, journal, truth, shard)
        else:
            journals.append(journal)
    journals += [replace(one, source=f"copy/{one.source}") for one in journals if random.random() < 0.5]
    random.shuffle(journals)
    truth.problems = Counter({key: count for key, count in truth.problems.items() if count and key[1]})
    return Simulated(plan, journals, truth)


def rerun(random: Random, journal: Journal, truth: Truth, shard: str) -> list[Journal]:
    """A person ran the shard again: the journal becomes attempt 2, behind one in which more tests failed."""
    head = journal.events[0].model_copy(update={"run_attempt": 2})
    older = []
    for event in journal.events:
        if event.event == "test_finished" and event.outcome == "passed" and random.random() < 0.01:
            event = event.model_copy(update={"outcome": "failed"})
            if truth.tests[shard, event.test] == "passed":
                truth.tests[shard, event.test] = "flaky"
        older.append(event)
    return [replace(journal, events=tuple(older)), replace(journal, events=(head, *journal.events[1:]))]


def named(night: Night) -> Counter[tuple[str, str]]:
    return Counter((one.shard, one.kind) for one in night.problems)


def told(night: Night) -> dict[tuple[str, str], str]:
    assert len({(one.shard, one.test) for one in night.tests}) == len(night.tests)
    return {(one.shard, one.test): one.verdict for one in night.tests}


@pytest.mark.parametrize("seed", [20260922, 1, 2, 3])
def test_5000_tests_with_200_faults_get_exactly_the_verdicts_that_are_true(
    make_plan: MakePlan, record: Record, seed: int
) -> None:
    night = simulate(make_plan, record, seed, shards=8, files=50, tests=13, faults=200)
    planned = sum(len(unit.tests) for shard in night.plan.jobs[0].shards for unit in shard.units)
    assert planned >= 5_000
    assert 200 <= night.truth.faults <= 202
    judged = judge(night.plan, None, night.journals)
    assert told(judged) == night.truth.tests
    assert named(judged) == night.truth.problems
    faulty = {shard for shard, _ in night.truth.problems}
    assert {shard.id for shard in judged.jobs[0].shards if shard.verdict != "passed"} == faulty


SMALL = {"shards": 3, "files": 2, "tests": 3}


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), faults=st.integers(0, 6))
def test_small_nights_are_judged_as_they_were(make_plan: MakePlan, record: Record, seed: int, faults: int) -> None:
    night = simulate(make_plan, record, seed, **SMALL, faults=faults)
    judged = judge(night.plan, None, night.journals)
    assert told(judged) == night.truth.tests
    assert named(judged) == night.truth.problems
    assert (judged.exit_code == 0) == (not night.truth.problems)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), data=st.data())
def test_order_and_copies_of_journals_change_nothing(
    make_plan: MakePlan, record: Record, seed: int, data: st.DataObject
) -> None:
    night = simulate(make_plan, record, seed, **SMALL, faults=4)
    copies = data.draw(st.lists(st.sampled_from(night.journals), max_size=5)) if night.journals else []
    shuffled = data.draw(st.permutations([*night.journals, *copies]))
    assert judge(night.plan, None, shuffled) == judge(night.plan, None, night.journals)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), faults=st.integers(0, 3))
def test_no_line_can_be_dropped_to_make_a_night_green(
    make_plan: MakePlan, record: Record, seed: int, faults: int
) -> None:
    """Of a red night no line at all; of a green one, dropping the result that decides a test makes it red."""
    night = simulate(make_plan, record, seed, shards=2, files=2, tests=2, faults=faults)
    once = [one for one in night.journals if not one.source.startswith("copy/")]
    whole = judge(night.plan, None, once)
    judged = {(shard.id, shard.run_attempt) for shard in whole.jobs[0].shards}
    for number, journal in enumerate(once):
        decides = deciding(journal, whole) if (journal.head.shard, journal.head.run_attempt) in judged else {}
        for line, event in enumerate(journal.events):
            events = journal.events[:line] + journal.events[line + 1 :]
            others = [*once[:number], replace(journal, events=events), *once[number + 1 :]]
            if whole.verdict != "passed" or event in decides.values():
                assert judge(night.plan, None, others).verdict != "passed", event


def deciding(journal: Journal, night: Night) -> dict[str, TestFinished]:
    """The last result that a journal has of each test of the night."""
    tests = {test.test for test in night.tests}
    return {event.test: event for event in journal.events if event.event == "test_finished" and event.test in tests}
