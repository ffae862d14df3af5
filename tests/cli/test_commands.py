"""What list, plan, generate, run and gate print, and with which exit code they end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ci.cli.main import COMMANDS
from ci.plan import Plan
from tests.cli.conftest import NIGHTLY, TEST, Nightcap

ROOT = Path(__file__).parents[2]
RED_NIGHT = ROOT / "tests/data/red_night"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_with_an_example(nightcap: Nightcap, name: str) -> None:
    found = nightcap(name, "--help")
    assert found.code == 0
    assert "Example" in found.out
    assert f"nightcap {name}" in found.out


def test_list_shows_each_job_with_what_it_needs(engine: Path, nightcap: Nightcap) -> None:
    lines = nightcap("list").out.splitlines()
    assert lines[0] == "nightly: Nightly Test, 2 jobs"
    assert lines[3].split() == ["kernels", "cpu", "kernels", "quick", "1", "10m", "old-kernels"]
    assert lines[4].split() == ["report", "cpu", "(1", "command)", "1", "10m"]


def test_list_as_json_is_the_specs(engine: Path, nightcap: Nightcap) -> None:
    found = json.loads(nightcap("list", "--json").out)
    assert list(found["workflows"]["nightly"]["jobs"]) == ["kernels", "report"]
    assert list(found["fleet"]["pools"]) == ["cpu", "8-gpu-b200"]


def test_plan_says_of_every_job_why(engine: Path, nightcap: Nightcap) -> None:
    lines = nightcap("plan", "--event", "workflow_dispatch", "--filter", "Old-Kernels").out.splitlines()
    rows = {line.split()[0]: line for line in lines if line}
    assert "runs" in rows["kernels"]
    assert "old-kernels" in rows["kernels"]
    assert "not selected" in rows["report"]
    assert lines[-1].startswith("1 of 2 jobs run, in 1 shard. Plan ")


def test_plan_as_json_is_an_intact_plan_with_its_inputs(engine: Path, nightcap: Nightcap) -> None:
    plan = Plan.model_validate_json(nightcap("plan", "--json", "--input", "steps=3").out)
    assert plan.intact()
    assert plan.inputs == {"steps": 3}
    assert [job.key for job in plan.selected] == ["kernels", "report"]


def test_generate_writes_once_and_then_nothing(engine: Path, nightcap: Nightcap) -> None:
    first = nightcap("generate").out.splitlines()[2:]
    again = nightcap("generate").out.splitlines()[2:]
    assert {line.split()[0] for line in first} == {"written"}
    assert {line.split()[0] for line in again} == {"unchanged"}
    assert [line.split()[1] for line in first] == [line.split()[1] for line in again]


def test_a_stale_file_is_shown_as_a_diff_with_the_command_to_run(engine: Path, nightcap: Nightcap) -> None:
    nightcap("generate")
    path = engine / ".github/workflows/nightly.yml"
    fresh = path.read_text()
    path.write_text(fresh.replace("timeout-minutes: 10\n", "timeout-minutes: 99\n", 1))
    found = nightcap("generate", "--check")
    assert found.code == 1
    assert "-    timeout-minutes: 99\n+    timeout-minutes: 10\n" in found.out
    assert found.out.startswith("--- a/.github/workflows/nightly.yml\n+++ b/.github/workflows/nightly.yml\n@@")
    assert found.err == ("out of date: .github/workflows/nightly.yml\nrun: nightcap generate\n")
    assert "99" in path.read_text(), "--check writes nothing"
    assert nightcap("generate").code == 0
    assert path.read_text() == fresh


def test_a_file_that_no_spec_makes_any_more_is_removed_and_a_hand_written_one_kept(
    engine: Path, nightcap: Nightcap
) -> None:
    nightcap("generate")
    workflows = engine / ".github/workflows"
    (workflows / "hand.yml").write_text("name: by hand\n")
    (engine / "workflows/nightly.yml").rename(engine / "workflows/weekly.yml")
    assert nightcap("generate", "--check").code == 1
    assert nightcap("generate").code == 0
    assert sorted(path.name for path in workflows.iterdir()) == ["hand.yml", "weekly.yml"]


def test_a_hand_written_file_in_the_way_is_never_overwritten(engine: Path, nightcap: Nightcap) -> None:
    path = engine / ".github/workflows/nightly.yml"
    path.parent.mkdir(parents=True)
    path.write_text("name: by hand\n")
    found = nightcap("generate")
    assert found.code == 2
    assert ".github/workflows/nightly.yml:1: would be overwritten" in found.err
    assert path.read_text() == "name: by hand\n"


QUARANTINE = """\
tests:
  - {test: "tests/test_kernels.py::test_topk", reason: races, issue: my-org/my-engine#1, owner: "@somebody",
     expires: 2026-11-30}
"""


def test_an_expired_quarantine_is_a_warning_to_generate_and_an_error_to_plan(engine: Path, nightcap: Nightcap) -> None:
    nightcap("generate")
    (engine / "workflows/quarantine.yml").write_text(QUARANTINE)
    for command in (["generate"], ["generate", "--check"], ["generate", "--json"]):
        last_day, after = nightcap("--today", "2026-11-30", *command), nightcap("--today", "2026-12-01", *command)
        assert (after.code, after.out) == (last_day.code, last_day.out) == (0, last_day.out)
        assert last_day.err == ""
        assert after.err.startswith("warning: workflows/quarantine.yml:3: tests[0].expires: the quarantine of ")
        assert "expired on 2026-11-30" in after.err
        assert "fix: repair the test" in after.err
    assert nightcap("--today", "2026-12-01", "plan").code == 2


def test_a_quarantine_that_is_wrong_whatever_the_day_is_an_error_to_generate(engine: Path, nightcap: Nightcap) -> None:
    (engine / "workflows/quarantine.yml").write_text(QUARANTINE.replace("owner", "owners"))
    found = nightcap("generate")
    assert (found.code, found.out) == (2, "")
    assert "did you mean 'owner'" in found.err


def test_a_night_of_one_machine_is_planned_run_and_judged(engine: Path, nightcap: Nightcap) -> None:
    Path("plan.json").write_text(nightcap("plan", "--json", "--filter", "kernels").out)
    assert nightcap("run", "kernels", "--plan", "plan.json", "--results", "results").code == 0
    found = nightcap("gate", "plan.json", "results")
    assert found.code == 0
    assert "PASSED: 1 passed of 1 test; 0 of 1 jobs not green; 0 problems" in found.out


def test_a_failing_test_is_1_for_run_and_gate(engine: Path, nightcap: Nightcap) -> None:
    (engine / "tests/test_kernels.py").write_text(TEST.format("False"))
    Path("plan.json").write_text(nightcap("plan", "--json", "--filter", "kernels").out)
    assert nightcap("run", "kernels", "--plan", "plan.json", "--results", "results").code == 1
    assert nightcap("gate", "plan.json", "results").code == 1


def test_a_plan_of_another_tree_does_not_run(engine: Path, nightcap: Nightcap) -> None:
    Path("plan.json").write_text(nightcap("plan", "--json").out)
    (engine / "tests/test_more.py").write_text(TEST.format("True"))
    found = nightcap("run", "kernels", "--plan", "plan.json", "--results", "results")
    assert found.code == 2
    assert "check out the same commit" in found.err
    assert not Path("results").exists()


def test_a_plan_runs_on_after_the_day_on_which_something_in_its_tree_expires(engine: Path, nightcap: Nightcap) -> None:
    off = "  off: {suites: [kernels], enabled: false, disabled: {reason: broken, expires: 2026-11-30}}\n"
    (engine / "workflows/nightly.yml").write_text(NIGHTLY + off)
    Path("plan.json").write_text(nightcap("--today", "2026-11-30", "plan", "--json", "--filter", "kernels").out)
    run = ("run", "kernels", "--results", "results")
    assert nightcap("--today", "2026-12-01", *run, "--plan", "plan.json").code == 0
    assert nightcap("--today", "2026-12-01", *run).code == 2


def test_gate_names_every_hole_of_a_red_night(nightcap: Nightcap) -> None:
    found = nightcap("gate", str(RED_NIGHT / "plan.json"), str(RED_NIGHT / "results"))
    assert found.code == 1
    for kind in ("failed", "crashed", "missing-shard", "no-signal"):
        assert f"\n  {kind}  " in found.out
    as_json = json.loads(nightcap("gate", str(RED_NIGHT / "plan.json"), str(RED_NIGHT / "results"), "--json").out)
    assert as_json["verdict"] == "failed"
    markdown = nightcap("gate", str(RED_NIGHT / "plan.json"), str(RED_NIGHT / "results"), "--markdown")
    assert markdown.out.startswith("## FAILED")
