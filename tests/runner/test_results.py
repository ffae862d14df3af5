"""What tests of a unit come to in the journal when their process ends as it should, and exit codes."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from ci.journal import TestFinished
from ci.runner.exit_codes import ExitCode
from tests.runner.harness import Bench, unit

KINDS = """
    import pytest

    pytestmark = pytest.mark.suite("s")

    def test_passes(): print("said by the test")
    def test_fails(): assert 1 == 2
    @pytest.mark.skip(reason="no such GPU")
    def test_skips(): pass
    @pytest.mark.xfail(reason="known bug", strict=False)
    def test_fails_as_expected(): assert False
    @pytest.mark.xfail(reason="known bug", strict=True)
    def test_passes_against_a_strict_mark(): pass
    @pytest.mark.xfail(reason="known bug", strict=False)
    def test_passes_against_a_mark(): pass
    @pytest.mark.parametrize("i", [1, 2])
    def test_many(i): pass
    @pytest.mark.suite("another")
    def test_of_another_suite(): assert False
    @pytest.mark.heavy
    def test_left_out(): assert False
    @pytest.fixture
    def broken():
        yield
        raise OSError("cannot tidy up")
    def test_fails_in_teardown(broken): pass
"""


def test_each_kind_of_result_is_in_the_journal_once(bench: Bench) -> None:
    night = bench.run_file(KINDS, "test_passes", exclude_marks=("heavy",))
    assert night.results == {
        "test_passes": ["passed"],
        "test_fails": ["failed"],
        "test_skips": ["skipped"],
        "test_fails_as_expected": ["skipped"],
        "test_passes_against_a_strict_mark": ["failed"],
        "test_passes_against_a_mark": ["passed"],
        "test_many[1]": ["passed"],
        "test_many[2]": ["passed"],
        "test_fails_in_teardown": ["failed"],
    }
    assert night.message("test_skips") == "no such GPU"
    assert night.message("test_fails_as_expected") == "xfail: known bug"
    assert night.message("test_fails") == "call: assert 1 == 2"
    assert night.message("test_fails_in_teardown") == "teardown: OSError: cannot tidy up"
    assert [e.deselected for e in night.of(type(night.events[2]))] == [("test_it.py::test_left_out",)]
    assert night.endings == ["completed"]
    assert night.result.exit_code is ExitCode.FAILED
    assert "said by the test" in night.log
    suite = ET.parse(night.result.junit).getroot().find("testsuite")
    assert suite is not None
    assert {key: suite.get(key) for key in ("tests", "failures", "errors", "skipped")} == {
        "tests": "9", "failures": "3", "errors": "0", "skipped": "2",
    }  # fmt: skip


def test_our_marks_are_known_where_unknown_ones_are_errors(bench: Bench) -> None:
    bench.file("[pytest]\naddopts = --strict-markers\nfilterwarnings = error", "pytest.ini")
    night = bench.run_file("""
        import pytest
        pytestmark = pytest.mark.suite("s", gpus=0, est="5s")
        @pytest.mark.budget(30)
        def test_a(): pass
    """)
    assert night.results == {"test_a": ["passed"]}


SUITES = """
    import pytest
    pytestmark = [pytest.mark.suite("one"), pytest.mark.suite(name="two", gpus=1)]
    def test_of_the_module(): pass
    @pytest.mark.suite("two")
    class TestClass:
        def test_of_the_class(self): pass
        @pytest.mark.suite(name="three")
        @pytest.mark.suite("one")
        def test_of_its_own(self): pass
"""


@pytest.mark.parametrize(
    ("suite", "tests"),
    [
        ("one", {"test_of_the_module", "test_of_its_own"}),
        ("two", {"test_of_the_module", "test_of_the_class"}),
        ("three", {"test_of_its_own"}),
    ],
)
def test_a_unit_runs_the_tests_whose_closest_marks_name_its_suite(bench: Bench, suite: str, tests: set[str]) -> None:
    night = bench.run(unit(bench.file(SUITES), suite=suite))
    assert night.results.keys() == tests


@pytest.mark.parametrize(
    ("source", "ending", "code"),
    [
        ("def test_a(): pass", "completed", ExitCode.PASSED),
        ("x = 1", "no-tests", ExitCode.NO_SIGNAL),
        (
            "import pytest; pytest.skip('needs SM 100', allow_module_level=True)",
            "no-tests",
            ExitCode.NO_SIGNAL,
        ),
        ("import pytest\n@pytest.mark.skip\ndef test_a(): pass", "completed", ExitCode.NO_SIGNAL),
        ("def test_b(): pass", "completed", ExitCode.FAILED),  # test_a was planned and is gone
    ],
)
def test_the_exit_code_tells_passed_nothing_ran_and_lost_apart(
    bench: Bench, source: str, ending: str, code: ExitCode
) -> None:
    night = bench.run_file(source, "test_a")
    assert (night.endings, night.result.exit_code) == ([ending], code)


def test_what_a_failed_import_hides_fails_with_its_reason(bench: Bench) -> None:
    night = bench.run_file("import nothing_there\ndef test_a(): pass\ndef test_b(): pass", "test_a", "test_b")
    assert night.results == {"test_a": ["failed"], "test_b": ["failed"]}
    assert "No module named 'nothing_there'" in night.message("test_b")


def test_a_skipped_module_skips_its_planned_tests_with_the_reason(bench: Bench) -> None:
    night = bench.run_file("import pytest\npytest.skip('needs SM 100', allow_module_level=True)", "test_a")
    assert night.results == {"test_a": ["skipped"]}
    assert night.message("test_a") == "needs SM 100"


def test_an_exit_code_that_a_plugin_swallows_changes_nothing(bench: Bench) -> None:
    bench.file("def pytest_sessionfinish(session): session.exitstatus = 0", "conftest.py")
    night = bench.run_file("def test_a(): assert False", "test_a")
    assert night.results == {"test_a": ["failed"]}
    assert night.result.exit_code is ExitCode.FAILED


def test_an_exit_code_that_no_test_explains_is_no_success(bench: Bench) -> None:
    bench.file("def pytest_sessionfinish(session): session.exitstatus = 1", "conftest.py")
    night = bench.run_file("def test_a(): pass", "test_a")
    assert "exit code 1 though no test failed" in night.details
    assert night.result.exit_code is ExitCode.FAILED


def test_a_file_that_stops_at_its_first_failure_still_runs_to_its_end(bench: Bench) -> None:
    bench.file("[pytest]\naddopts = -x", "pytest.ini")
    night = bench.run_file("def test_a(): assert False\ndef test_b(): pass")
    assert night.results == {"test_a": ["failed"], "test_b": ["passed"]}


def test_a_fork_of_a_test_that_goes_on_into_pytest_writes_nothing(bench: Bench) -> None:
    night = bench.run_file("import os\ndef test_a(): os.fork()\ndef test_b(): pass")
    assert night.results == {"test_a": ["passed"], "test_b": ["passed"]}


@pytest.mark.parametrize("text", ["\\udc80 \\ud800", "\\u2028 \\x85", "\\x00\\x1b[31m", "\\U0001f600", "]]> <x>&"])
def test_a_result_with_any_message_can_be_read(bench: Bench, text: str) -> None:
    night = bench.run_file(f"def test_a(): raise ValueError('{text}')")
    assert (night.results, night.unreadable) == ({"test_a": ["failed"]}, 0)
    ET.parse(night.result.junit)


def test_the_console_shows_a_bad_units_log_and_lets_no_test_speak_to_github(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    good = bench.file("def test_a(): pass", "test_good.py")
    bad = bench.file("def test_b():\n    print('\\n::error::x ##[error]y')\n    assert 0", "test_bad.py")
    bench.run(unit(good), unit(bad), options={"quiet": False})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "[1/2] begins   test_good.py (s), predicted 1s"
    assert lines[1].startswith("[1/2] ok       test_good.py (s): 1 passed, ")
    assert lines[3].startswith("[2/2] FAILED   test_bad.py (s): 1 failed, ")
    assert "    | ::error::x # #[error]y" in lines
    assert "    | E       assert 0" in lines or "    | E   assert 0" in lines
    assert lines[-1] == f"FAILED: 1 passed, 1 failed; all of it in {bench.root}/results/journal.jsonl"


def test_a_run_ends_with_a_table_and_what_failed_in_any_attempt_with_its_command(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    good = bench.file("def test_a(): pass", "test_good.py")
    bad = bench.file(
        """
        import os
        def test_fails(): raise ValueError("##[error]no\\nmore")
        def test_dies(): os.abort()
        def test_passes(): pass
        """,
        "test_bad.py",
    )
    bench.run(unit(good), unit(bad, f"{bad}::test_gone"), unit("never.py"), options={"quiet": False})
    out = capsys.readouterr().out
    table = [line.split() for line in out.partition("RESULT")[2].splitlines()[1:4]]
    assert [(row[0], row[2]) for row in table[:2]] == [("ok", good), ("FAILED", bad)]
    end = out.partition("to look at: ")[2]
    assert end.startswith(
        f"4\n  failed  {bad}::test_fails\n      | call: ValueError: # #[error]no\n"
        f"      $ python -m pytest {bad}::test_fails\n"
        f"  crashed  {bad}::test_dies\n      | ended by SIGABRT\n      $ python -m pytest {bad}::test_dies\n"
        f"  lost  {bad}::test_gone\n      | no result: its file completed without it\n"
        "  crashed  never.py\n      | pytest could not start: bad options, or an error in a conftest (exit code 4)"
    )


QUARANTINED = """
    import os, pytest
    def test_good(): pass
    @pytest.mark.parametrize("i", [1, 2])
    def test_races(i): assert i == 1
    def test_aborts(): os.abort()
"""


@pytest.mark.parametrize(
    ("quarantine", "code"),
    [
        ({"test_it.py::test_races": "r", "test_it.py::test_aborts": "r"}, ExitCode.PASSED),
        ({"test_it.py::test_races[2]": "r", "test_it.py::test_a*": "r"}, ExitCode.PASSED),
        ({"test_it.py::test_races[1]": "r", "test_it.py::test_aborts": "r"}, ExitCode.FAILED),
        ({"test_it.py::test_races": "r"}, ExitCode.FAILED),
    ],
)
def test_tests_in_quarantine_run_and_their_failure_alone_turns_nothing_red(
    bench: Bench, quarantine: dict[str, str], code: ExitCode
) -> None:
    night = bench.run_file(QUARANTINED, "test_good", "test_races", "test_aborts", quarantine=quarantine)
    assert night.results == {
        "test_good": ["passed"], "test_races[1]": ["passed"], "test_races[2]": ["failed"], "test_aborts": ["crashed"],
    }  # fmt: skip
    assert night.result.exit_code is code


def test_quarantine_excuses_no_process_that_dies_after_its_tests(bench: Bench) -> None:
    bench.file("import os\ndef pytest_unconfigure(): os.abort()", "conftest.py")
    night = bench.run_file("def test_a(): assert 0", "test_a", quarantine={"test_it.py::test_a": "r"})
    assert night.results == {"test_a": ["failed"]}
    assert night.result.exit_code is ExitCode.FAILED


def test_results_of_pytest_xdist_come_once(bench: Bench) -> None:
    bench.file("[pytest]\naddopts = -p xdist -n 2", "pytest.ini")
    night = bench.run_file(
        "import pytest\n@pytest.mark.parametrize('i', range(4))\ndef test_a(i): assert i != 2", "test_a"
    )
    assert dict(sorted(night.results.items())) == {
        "test_a[0]": ["passed"], "test_a[1]": ["passed"], "test_a[2]": ["failed"], "test_a[3]": ["passed"],
    }  # fmt: skip
    assert len(night.collected()) == 1


@pytest.mark.parametrize(
    ("source", "ending", "outcomes"),
    [
        ("print('fine')", "completed", ["passed"]),
        ("raise SystemExit(3)", "completed", ["failed"]),
        ("import unittest; unittest.main(exit=False)", "no-tests", None),
        ("import os; os.abort()", "crashed", ["crashed"]),
    ],
)
def test_a_script_has_one_result(bench: Bench, source: str, ending: str, outcomes: list[str] | None) -> None:
    name = bench.file(source, "script.py")
    night = bench.run(unit(name, name, kind="script"))
    assert (night.endings, night.results.get(name)) == ([ending], outcomes)
    assert "pytest" not in "".join(event.message for event in night.of(TestFinished))


JUNIT = """<testsuite><testcase classname="k" name="a" time="1"/><testcase classname="k" name="b">
<failure message="no"/></testcase></testsuite>"""


@pytest.mark.parametrize(
    ("command", "ending", "code", "results"),
    [
        ("cp given.xml out.xml", "completed", ExitCode.FAILED, {"a": ["passed"], "b": ["failed"]}),
        ("true", "no-tests", ExitCode.NO_SIGNAL, {}),
        ("false", "crashed", ExitCode.FAILED, {}),
        ("false | cp given.xml out.xml", "completed", ExitCode.FAILED, {"a": ["passed"], "b": ["failed"]}),
        ("echo '<testsuite/>' > out.xml", "no-tests", ExitCode.NO_SIGNAL, {}),
    ],
)
def test_a_command_is_judged_by_the_junit_file_of_this_run(
    bench: Bench, command: str, ending: str, code: ExitCode, results: dict[str, list[str]]
) -> None:
    bench.file(JUNIT, "given.xml")
    bench.file(JUNIT, "out.xml")  # left by an earlier run
    night = bench.run(unit("ext", "k::a", "k::b", kind="command", command=command, junit="out.xml"))
    assert (night.results, night.endings, night.result.exit_code) == (results, [ending], code)


def test_a_command_runs_under_pipefail_and_knows_its_shard_and_tests(bench: Bench) -> None:
    told = 'echo "$NIGHTCAP_SUITE $NIGHTCAP_SHARD_INDEX $NIGHTCAP_SHARD_COUNT"; cat "$NIGHTCAP_TESTS_FILE"; '
    night = bench.run(
        unit("ext", "ext", kind="command", suite="ext", items=("a b", "c"), command=told + "false | true")
    )
    assert night.results == {"ext": ["failed"]}
    assert night.log == "ext 0 1\na b\nc\n"


def test_a_run_leaves_no_log_of_an_earlier_one_in_its_place(bench: Bench) -> None:
    for name in ("test_first.py", "test_second.py"):
        night = bench.run(unit(bench.file("def test_a(): pass", name)))
    logs = [path.name for path in (bench.root / "results" / "logs").rglob("*.log")]
    assert logs == ["test_second.py.attempt1.log"]
    assert [event.test for event in night.of(TestFinished)] == ["test_second.py::test_a"]
