"""act really runs the generated nightly, and the gate's verdict is right in each case."""

from __future__ import annotations

import pytest

from tests.act.conftest import Nightly

HEAD = 'import os, signal, pytest\npytestmark = pytest.mark.suite("alpha", est="5s")\n'


def test_a_scheduled_run_runs_every_job_and_is_green(nightly: Nightly) -> None:
    found = nightly("schedule")
    assert found.started == {"plan", "alpha", "beta-b200", "report", "gate"}
    assert found.night.exit_code == 0
    assert found.night.counts == {"passed": 10}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("alpha", {"alpha"}),
        ("OLD-BETA", {"beta-b200"}),
        ("*-b200", {"beta-b200"}),
        ("tag:quick", {"alpha", "report"}),
        ("!tag:quick", {"beta-b200"}),
        ("  alpha ,  Beta-B200 ", {"alpha", "beta-b200"}),
    ],
)
def test_a_manual_run_runs_what_the_filter_names(nightly: Nightly, text: str, wanted: set[str]) -> None:
    found = nightly("workflow_dispatch", text)
    assert found.started == {"plan", "gate", *wanted}
    assert found.night.exit_code == 0
    assert {job.key for job in found.night.jobs if job.verdict == "passed"} == wanted


def test_a_typo_fails_the_plan_starts_nothing_and_reddens_the_gate(nightly: Nightly) -> None:
    found = nightly("workflow_dispatch", "alhpa")
    assert found.started == {"plan", "gate"}
    assert found.night.exit_code != 0
    assert "did you mean 'alpha'" in str(found.night.problems)


def test_a_failing_test_is_named(nightly: Nightly) -> None:
    tests = {"tests/test_a.py": HEAD + "def test_wrong():\n    assert 1 == 2\n"}
    found = nightly("workflow_dispatch", "alpha", tests=tests)
    assert found.night.exit_code != 0
    assert found.verdict("alpha") == "failed"
    failed = [test.test for test in found.night.tests if test.verdict == "failed"]
    assert failed == ["tests/test_a.py::test_wrong"]


def test_a_shard_killed_by_sigkill_is_incomplete_with_its_tests_named(nightly: Nightly) -> None:
    kill = "    for pid in (os.getppid(), os.getpid()):\n        os.kill(pid, signal.SIGKILL)\n"
    kills = f"def test_first():\n    pass\n\n\ndef test_kills():\n{kill}"
    found = nightly("workflow_dispatch", "alpha", tests={"tests/test_a.py": HEAD + kills})
    assert found.night.exit_code != 0
    assert found.verdict("alpha") == "incomplete"
    assert "tests/test_a.py::test_kills" in str(found.night.problems)


def test_a_suite_that_skips_everything_is_no_signal(nightly: Nightly) -> None:
    skips = 'import pytest\npytestmark = [pytest.mark.suite("beta"), pytest.mark.skip(reason="no GPU")]\n'
    tests = {"tests/test_c.py": skips + "\n\ndef test_skipped():\n    pass\n"}
    found = nightly("workflow_dispatch", "beta-b200", tests=tests)
    assert found.night.exit_code != 0
    assert found.verdict("beta-b200") == "no-signal"


def test_a_journal_removed_before_the_gate_is_missed(nightly: Nightly) -> None:
    remove = 'rm -r "$NIGHTCAP_LOCAL_ARTIFACTS/journal-beta-b200-1-of-1-a1"'
    found = nightly("workflow_dispatch", "beta-b200, report", command=remove)
    assert found.verdict("report") == "passed"
    assert found.verdict("beta-b200") == "incomplete"
    assert found.night.exit_code != 0
