"""The runner told to stop, or killed: how fast it leaves, what is on disk, and who is left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections import Counter

import pytest

from ci.journal import ShardFinished, TestFinished, TestStarted, UnitFinished
from ci.runner.exit_codes import ExitCode
from ci.runner.host import end_left_overs
from ci.runner.interrupts import Interrupted, Interrupts
from tests.runner.harness import Bench, unit

STUBBORN = """
    import signal, subprocess, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    def test_done(): pass
    def test_long():
        subprocess.Popen(["sleep", "62.5"], start_new_session=True)
        open("in-the-middle", "w").close()
        time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_signal_leaves_the_results_so_far_and_nobody_alive(bench: Bench, number: int) -> None:
    other = bench.file("", "other.py")
    process = bench.start(unit(bench.file(STUBBORN)), unit(other, other, kind="script"))
    bench.wait_for_file("in-the-middle")
    process.send_signal(number)
    assert process.wait(timeout=10) == ExitCode.INTERRUPTED  # GitHub's limit; 2 s of it are for a process to leave
    events = bench.journal().events
    assert [(e.test, e.outcome) for e in events if isinstance(e, TestFinished)] == [("test_it.py::test_done", "passed")]
    assert [(e.ending, e.detail) for e in events if isinstance(e, UnitFinished)] == [
        ("interrupted", "stopped in test_it.py::test_long")
    ]
    assert isinstance(events[-1], ShardFinished)
    assert events[-1].interrupted == signal.Signals(number).name
    assert (bench.root / "results" / "junit.xml").exists()
    assert bench.survivors() == []


def test_a_stop_signal_cuts_a_wait_for_the_host_short() -> None:
    started = time.monotonic()
    with Interrupts() as interrupts:
        subprocess.Popen(["sh", "-c", f"sleep 0.2; kill -TERM {os.getpid()}"])
        with pytest.raises(Interrupted), interrupts.raising():
            time.sleep(20)
    assert time.monotonic() - started < 10
    assert interrupts.received == "SIGTERM"


def test_what_a_killed_runner_leaves_is_found_and_ended_by_the_next_run(bench: Bench) -> None:
    """A child in a session of its own outlives a runner that gets SIGKILL; its mark tells whose it was."""
    process = bench.start(unit(bench.file(STUBBORN)))
    bench.wait_for_file("in-the-middle")
    neighbour = subprocess.Popen(["sleep", "62.5"])  # the same command line, another job's
    try:
        process.kill()
        process.wait()
        bench.wait_until_live(["sleep 62.5"])  # pytest itself dies with the runner
        lines = end_left_overs(bench.root / "locks")
        assert [line.rpartition(": ")[2].partition(" ")[2] for line in lines] == ["sleep 62.5"]
        assert bench.survivors() == []
        assert end_left_overs(bench.root / "locks") == ()
        assert neighbour.poll() is None
    finally:
        neighbour.kill()
        neighbour.wait()


def test_a_run_that_lives_keeps_its_processes(bench: Bench) -> None:
    process = bench.start(unit(bench.file(STUBBORN)))
    bench.wait_for_file("in-the-middle")
    assert end_left_overs(bench.root / "locks") == ()
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.wait()


MANY = """
    import pytest
    @pytest.mark.parametrize("i", range(60))
    def test_a(i):
        with open("ended-{name}.txt", "a") as file:
            file.write(f"{{i}}\\n")
"""
NAMES = ("a", "b", "c")


@pytest.mark.slow
def test_killed_at_random_moments_nothing_that_ended_is_lost_or_told_twice(bench: Bench) -> None:
    """50 kills, spread over the life of a run of 3 files with 60 tests each (about 370 lines of journal)."""
    dice = random.Random(2026)
    units = [unit(bench.file(MANY.format(name=name), f"test_{name}.py")) for name in NAMES]
    lines = []
    for _ in range(50):
        for name in NAMES:
            (bench.root / f"ended-{name}.txt").unlink(missing_ok=True)
        process = bench.start(*units)
        bench.wait_for_lines(dice.randrange(360))
        time.sleep(dice.uniform(0, 0.01))
        process.kill()
        process.wait()
        bench.wait_until_live([])
        lines.append(_check_against_truth(bench))
    assert len(set(lines)) > 25, "the kills did not come at different moments"


def _check_against_truth(bench: Bench) -> int:
    """Compare the journal with what the tests themselves wrote down; returns its number of events."""
    journal = bench.journal()
    assert journal.unreadable <= 1
    finished = Counter(event.test for event in journal.events if isinstance(event, TestFinished))
    started = Counter(event.test for event in journal.events if isinstance(event, TestStarted))
    assert max(finished.values(), default=1) == 1
    assert max(started.values(), default=1) == 1
    for name in NAMES:
        ended = bench.root / f"ended-{name}.txt"
        truth = ended.read_text().split() if ended.exists() else []
        told = [test for test in finished if test.startswith(f"test_{name}.py")]
        # The body of the last test may have ended just before pytest knew.
        assert len(truth) - 1 <= len(told) <= len(truth)
    return len(journal.events)
