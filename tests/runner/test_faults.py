"""Faults of real processes. For each: who is blamed, how the unit ended, and that nothing of it lives on."""

from __future__ import annotations

import itertools
import subprocess
import sys

import pytest

from ci.journal import TestFinished, UnitFinished
from ci.runner.exit_codes import ExitCode
from tests.runner.harness import Bench, unit


@pytest.mark.parametrize(
    ("fault", "blame"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "ended by SIGSEGV"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "ended by SIGKILL"),
        ("os._exit(0)", "left with exit code 0"),
        ("pytest.exit('enough', returncode=0)", "left with exit code 0"),
    ],
)
def test_a_crash_is_the_running_tests_and_the_others_still_run(bench: Bench, fault: str, blame: str) -> None:
    night = bench.run_file(f"""
        import os, signal, pytest
        def test_before(): pass
        def test_culprit(): {fault}
        @pytest.mark.parametrize("i", [1, 2])
        def test_after(i): pass
    """)
    assert night.results == {
        "test_before": ["passed"],
        "test_culprit": ["crashed"],
        "test_after[1]": ["passed"],
        "test_after[2]": ["passed"],
    }
    assert night.message("test_culprit") == blame
    assert night.collected()[1] == ("test_after[1]", "test_after[2]")
    assert night.endings == ["crashed", "completed"]
    assert night.result.exit_code is ExitCode.FAILED


def test_a_crashed_test_took_the_time_until_its_process_died(bench: Bench) -> None:
    night = bench.run_file("""
        import os, time
        def test_before(): time.sleep(0.3)
        def test_culprit():
            time.sleep(0.3)
            os.abort()
    """)
    before, culprit = night.of(TestFinished)
    assert culprit.outcome == "crashed"
    assert 0.2 < culprit.seconds < night.of(UnitFinished)[0].seconds - before.seconds


def test_a_file_that_hangs_while_it_is_imported_blames_tests_that_never_started(bench: Bench) -> None:
    night = bench.run_file("import time; time.sleep(60)\ndef test_a(): pass", "test_a", file_timeout=2)
    assert (night.results, night.endings) == ({"test_a": ["timed-out"]}, ["timed-out"])
    assert "before its tests were collected" in night.message("test_a")
    assert [event.seconds for event in night.of(TestFinished)] == [0]


@pytest.mark.parametrize(
    ("source", "detail"),
    [
        (
            "import os; os._exit(0)\ndef test_a(): pass",
            "left with exit code 0 before its tests were collected",
        ),
        ("import os; os.abort()\ndef test_a(): pass", "ended by SIGABRT before its tests were collected"),
    ],
)
def test_a_crash_during_import_is_every_planned_tests(bench: Bench, source: str, detail: str) -> None:
    night = bench.run_file(source, "test_a")
    assert (night.results, night.details) == ({"test_a": ["crashed"]}, detail)
    assert night.result.exit_code is ExitCode.FAILED


def test_an_error_in_a_conftest_is_named(bench: Bench) -> None:
    bench.file("import nothing_there", "conftest.py")
    night = bench.run_file("def test_a(): pass", "test_a")
    assert night.results == {"test_a": ["crashed"]}
    assert "error in a conftest" in night.message("test_a")


def test_an_internal_error_of_pytest_is_the_running_tests(bench: Bench) -> None:
    bench.file(
        """
        def pytest_runtest_logreport(report):
            if report.nodeid.endswith("test_b"):
                raise RuntimeError("a broken plug-in")
        """,
        "conftest.py",
    )
    night = bench.run_file("def test_a(): pass\ndef test_b(): pass\ndef test_c(): pass")
    assert night.results == {"test_a": ["passed"], "test_b": ["crashed"], "test_c": ["passed"]}
    assert night.message("test_b") == "pytest internal error (exit code 3)"
    assert night.result.exit_code is ExitCode.FAILED


def test_a_crash_after_the_last_test_is_no_success(bench: Bench) -> None:
    night = bench.run_file("import atexit, os\natexit.register(os.abort)\ndef test_a(): pass")
    assert (night.results, night.endings) == ({"test_a": ["passed"]}, ["crashed"])
    assert night.details == "ended by SIGABRT after its last test"
    assert night.result.exit_code is ExitCode.FAILED


def test_crashes_without_progress_end(bench: Bench) -> None:
    bench.file("import os\ndef pytest_runtestloop(): os._exit(7)", "conftest.py")
    night = bench.run_file("def test_a(): pass", "test_a")
    assert night.details == "left with exit code 7 between tests"
    assert [result.lost for result in night.result.units] == [("test_it.py::test_a",)]


def test_resumes_have_a_cap(bench: Bench) -> None:
    source = "import os, pytest\n@pytest.mark.parametrize('i', range(4))\ndef test_a(i): os.abort()"
    night = bench.run_file(source, options={"resumes": 1})
    assert night.results == {"test_a[0]": ["crashed"], "test_a[1]": ["crashed"]}
    assert night.result.exit_code is ExitCode.FAILED


@pytest.mark.parametrize(
    ("fault", "stack"),
    [
        ("time.sleep(60)", "in test_hangs"),
        # A loop in C that never lets go of the GIL: no Python code of the process can run again.
        ("pow(3, 10**10)", "in test_hangs"),
        ("t = threading.Thread(target=time.sleep, args=(60,)); t.start(); t.join()", "Thread 0x"),
    ],
)
def test_a_hang_is_ended_at_its_budget_with_the_stacks(bench: Bench, fault: str, stack: str) -> None:
    source = f"import time, threading\ndef test_before(): pass\ndef test_hangs():\n    {fault}\ndef test_after(): 0"
    night = bench.run_file(source, file_timeout=4)
    assert night.results == {"test_before": ["passed"], "test_hangs": ["timed-out"]}
    assert night.endings == ["timed-out"]
    stacks = night.result.units[0].log.with_suffix(".stacks.txt")
    assert stacks.name in night.message("test_hangs")
    assert stack in stacks.read_text()
    assert stacks.read_text().count("\n== ") == 2, "at half the budget, and at its end"
    assert 0 < night.of(TestFinished)[1].seconds < night.of(UnitFinished)[0].seconds


def test_a_test_over_its_own_budget_is_ended_and_the_others_run(bench: Bench) -> None:
    night = bench.run_file("""
        import pytest
        def test_before(): pass
        @pytest.mark.budget(1)
        def test_loops_in_c(): pow(3, 10**10)
        @pytest.mark.budget(30)
        def test_in_time(): pass
        def test_after(): pass
    """)
    assert night.results == {
        "test_before": ["passed"],
        "test_loops_in_c": ["timed-out"],
        "test_in_time": ["passed"],
        "test_after": ["passed"],
    }
    assert night.endings == ["timed-out", "completed"]
    assert "in test_loops_in_c" in night.result.units[0].log.with_name("test_it.py.attempt1.stacks.txt").read_text()


def test_a_thread_that_never_ends_does_not_keep_the_unit(bench: Bench) -> None:
    source = "import threading, time\ndef test_a(): threading.Thread(target=time.sleep, args=(60,)).start()"
    night = bench.run_file(source, file_timeout=4)
    assert (night.results, night.endings) == ({"test_a": ["passed"]}, ["timed-out"])
    assert "after its last test" in night.details


def test_silence_is_a_hang_of_its_own_kind_and_events_are_no_silence(bench: Bench) -> None:
    night = bench.run_file(
        """
        import pytest, time
        @pytest.mark.parametrize("i", range(4))
        def test_short(i): time.sleep(0.8)
        def test_long(): time.sleep(60)
        """,
        options={"silence": 3.0},
    )
    assert night.endings == ["silent"]
    assert list(night.results.values()) == [["passed"]] * 4 + [["timed-out"]]


DOUBLE_FORK = """
    import os, signal, subprocess, sys, time
    def daemon():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execv(sys.executable, [sys.executable, "-c",
                    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"])
            os._exit(0)
"""


def test_a_daemon_that_ignores_term_is_found_ended_and_named(bench: Bench) -> None:
    night = bench.run_file(DOUBLE_FORK + "    def test_a(): daemon(); time.sleep(0.3)")
    assert night.results == {"test_a": ["passed"]}
    assert "left a process behind, ended: " in "\n".join(night.notes)


def test_a_process_with_a_cleared_environment_is_found_by_descent(bench: Bench) -> None:
    night = bench.run_file(
        """
        import subprocess
        def test_a():
            subprocess.Popen("sleep 61.5 & sleep 61.5 &", shell=True, env={}, start_new_session=True).wait()
        """
    )
    assert len([note for note in night.notes if "sleep 61.5" in note]) == 2


SERVER = """
import json, os, subprocess, time
while not os.path.exists("order"):
    time.sleep(0.01)
started = subprocess.Popen(["sleep", "63.5"], env=json.load(open("order")), start_new_session=True)
open("started", "w").close()
started.wait()
"""


def test_a_process_that_another_started_for_a_test_is_found_by_its_mark(bench: Bench) -> None:
    """As a daemon of the host does, which is no descendant of the runner and lives on."""
    server = subprocess.Popen([sys.executable, "-c", SERVER], cwd=bench.root)
    night = bench.run_file(
        """
        import json, os, time
        def test_a():
            with open("order.new", "w") as file: json.dump(dict(os.environ), file)
            os.rename("order.new", "order")
            while not os.path.exists("started"): time.sleep(0.01)
        """
    )
    assert night.results == {"test_a": ["passed"]}
    assert len([note for note in night.notes if "sleep 63.5" in note]) == 1
    assert server.wait(20) == 0


def test_much_output_is_bounded_with_a_note(bench: Bench) -> None:
    night = bench.run_file(
        """
        import sys
        def test_a():
            for i in range(200): sys.stdout.write("x" * 10_000 + "\\n")
            print("the end")
        """,
        options={"log_bytes": 100_000},
    )
    assert len(night.log) < 101_000
    assert "bytes of output left out here" in night.log
    assert night.log.startswith("=====")
    assert "the end" in night.log
    assert night.results == {"test_a": ["passed"]}


def test_a_clock_that_jumps_neither_ends_a_unit_nor_shows_in_durations(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    jumps = itertools.cycle((2e9, 1e9))
    monkeypatch.setattr("time.time", lambda: next(jumps))
    night = bench.run_file(
        """
        import time
        def test_a():
            time.time = lambda: 0.0
            time.sleep(0.2)
        def test_b(): pass
        """,
        file_timeout=30,
    )
    assert night.results == {"test_a": ["passed"], "test_b": ["passed"]}
    assert all(0 < event.seconds < 30 for event in [*night.of(TestFinished), *night.of(UnitFinished)])


def test_the_time_of_the_job_ends_its_units(bench: Bench) -> None:
    first, second = bench.file("import time; time.sleep(60)", "a.py"), bench.file("", "b.py")
    night = bench.run(unit(first, first, kind="script"), unit(second, second, kind="script"), timeout=1)
    assert night.endings == ["timed-out"]
    assert night.of(UnitFinished)[0].seconds < 30, "ended by the job's time, long before its own"
    assert [one.path for one in night.result.not_run] == ["b.py"]
    assert "the job's time is used up" in night.notes[0]


def test_a_script_that_is_gone_fails(bench: Bench) -> None:
    night = bench.run(unit("gone.py", "gone.py", kind="script"))
    assert night.results == {"gone.py": ["failed"]}
