"""The steps of the generated workflow: what they read from GitHub, what they leave for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ci.plan import Plan

NIGHTCAP = str(Path(sys.executable).parent / "nightcap")
RUNNERS = "repository: a/b\npools:\n  cpu: {labels: [ubuntu-24.04], hosted: true, timeout: 1h}\n"
NIGHTLY = """\
title: Nightly
template: nightly
triggers:
  schedule: {cron: "17 0 * * *"}
  dispatch:
    inputs:
      model: {description: Which, type: choice, options: [small, large], default: small}
      fast: {description: Quick, type: boolean, default: true}
jobs:
  alpha: {pool: cpu, suites: [alpha], timeout: 10m, file_timeout: 5m, shards: 2}
  report: {pool: cpu, commands: ['test "$NIGHTCAP_INPUT_MODEL" = large'], timeout: 5m}
"""
TEST = 'import pytest\npytestmark = pytest.mark.suite("alpha")\n\n\ndef test_it():\n    pass\n'


@pytest.fixture
def step(tmp_path: Path) -> Any:
    """`step(name, **environment)` runs `nightcap step` as the shared action does."""
    files = {"workflows/runners.yml": RUNNERS, "workflows/nightly.yml": NIGHTLY}
    for path, text in {**files, "tests/test_a.py": TEST, "tests/test_b.py": TEST}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    def run(name: str, **environment: str) -> subprocess.CompletedProcess[str]:
        given = {
            "NIGHTCAP_WORKFLOW": "nightly", "GITHUB_EVENT_NAME": "workflow_dispatch", "NIGHTCAP_BIN": "ready",
            "GITHUB_OUTPUT": str(tmp_path / "output"), "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
            "NIGHTCAP_LOCKS": str(tmp_path / "locks"), "PATH": os.environ["PATH"], **environment,
        }  # fmt: skip
        return subprocess.run(
            [NIGHTCAP, "step", name], cwd=tmp_path, env=given, capture_output=True, text=True, check=False, timeout=120
        )

    return run


def outputs(folder: Path) -> dict[str, str]:
    """The outputs as GitHub reads them."""
    found, lines = {}, iter((folder / "output").read_text().splitlines())
    for line in lines:
        name, _, delimiter = line.partition("<<")
        value = []
        for text in lines:
            if text == delimiter:
                break
            value.append(text)
        found[name] = "\n".join(value)
    return found


def keep(folder: Path, name: str) -> None:
    """What the upload and the later download do to `.nightcap/out`."""
    target = folder / ".nightcap/artifacts" / name
    target.parent.mkdir(parents=True, exist_ok=True)
    (folder / ".nightcap/out").rename(target)


def test_the_plan_hands_over_jobs_shards_inputs_and_its_hash(step: Any, tmp_path: Path) -> None:
    inputs = json.dumps({"job_filter": "ALPHA", "model": "large", "fast": False})
    assert step("plan", NIGHTCAP_INPUTS=inputs).returncode == 0
    found = outputs(tmp_path)
    plan = Plan.model_validate_json((tmp_path / ".nightcap/out/plan.json").read_text())
    assert json.loads(found["jobs"]) == ["alpha"]
    assert json.loads(found["shards"]) == {"alpha": ["1-of-2", "2-of-2"]}
    assert json.loads(found["inputs"]) == {"model": "large", "fast": False} == plan.inputs
    assert found["hash"] == plan.hash
    assert "| report | not-selected | not named by the filter |" in (tmp_path / "summary").read_text()


def test_the_summary_shows_a_reason_as_text_and_is_cut_where_github_would_drop_it(step: Any, tmp_path: Path) -> None:
    reason = "{reason: 'a | <b> `c`', expires: 2100-01-01}"
    off = f"  off: {{pool: cpu, suites: [alpha], timeout: 10m, file_timeout: 5m, enabled: false, disabled: {reason}}}\n"
    (tmp_path / "workflows/nightly.yml").write_text(NIGHTLY + off)
    summary = tmp_path / "summary"
    assert step("plan").returncode == 0
    row = next(line for line in summary.read_text().splitlines() if line.startswith("| off |"))
    assert row.count("|") == 7
    assert not {"<", "`"} & set(row)
    summary.write_bytes(b"x" * (1024 * 1024 - 300))
    assert step("plan").returncode == 0
    assert summary.stat().st_size <= 1024 * 1024
    assert "more lines" in summary.read_text()


@pytest.mark.parametrize("given", ["", "null", "{}"])
def test_a_schedule_has_no_inputs_and_gets_the_defaults(step: Any, tmp_path: Path, given: str) -> None:
    assert step("plan", GITHUB_EVENT_NAME="schedule", NIGHTCAP_INPUTS=given).returncode == 0
    assert json.loads(outputs(tmp_path)["inputs"]) == {"model": "small", "fast": True}
    assert json.loads(outputs(tmp_path)["jobs"]) == ["alpha", "report"]


@pytest.mark.parametrize(
    "text", ["alhpa", 'a"; curl x | sh; "', "${{ secrets.X }}", "a\njobs=[]", "::set-output name=jobs::[]", "x" * 5000]
)
def test_a_filter_that_means_nothing_selects_nothing_and_says_why(step: Any, tmp_path: Path, text: str) -> None:
    done = step("plan", NIGHTCAP_INPUTS=json.dumps({"job_filter": text}))
    assert done.returncode == 2
    assert [*outputs(tmp_path)] == ["error"]
    assert "The plan failed: nothing runs" in (tmp_path / "summary").read_text()
    assert not [line for line in done.stdout.splitlines() if line.startswith("::") and not line.startswith("::error ")]
    assert "Traceback" not in done.stderr


def test_a_shard_runs_from_the_plan_and_gets_its_inputs(step: Any, tmp_path: Path) -> None:
    assert step("plan", NIGHTCAP_INPUTS='{"model": "large"}').returncode == 0
    keep(tmp_path, "plan-a1")
    report = step("run", NIGHTCAP_JOB="report", NIGHTCAP_SHARD="1-of-1")
    assert report.returncode == 0, report.stdout + report.stderr


def test_a_shard_of_another_tree_refuses_to_start(step: Any, tmp_path: Path) -> None:
    assert step("plan").returncode == 0
    keep(tmp_path, "plan-a1")
    (tmp_path / "tests/test_c.py").write_text(TEST)
    done = step("run", NIGHTCAP_JOB="alpha", NIGHTCAP_SHARD="1-of-2")
    assert done.returncode == 2
    assert "check out" in done.stderr


def test_what_an_earlier_job_left_is_not_kept_as_this_ones_result(step: Any, tmp_path: Path) -> None:
    (tmp_path / ".nightcap/out").mkdir(parents=True)
    (tmp_path / ".nightcap/out/journal.jsonl").write_text("old")
    step("plan", NIGHTCAP_INPUTS='{"job_filter": "alhpa"}')
    assert not [*(tmp_path / ".nightcap/out").iterdir()]


def test_a_rerun_of_failed_jobs_keeps_the_plan_of_the_first_attempt(step: Any, tmp_path: Path) -> None:
    assert step("plan", NIGHTCAP_INPUTS='{"job_filter": "alpha"}').returncode == 0
    keep(tmp_path, "plan-a1")
    for attempt in ("1", "2"):
        for shard in ("1-of-2", "2-of-2") if attempt == "1" else ("2-of-2",):
            done = step("run", NIGHTCAP_JOB="alpha", NIGHTCAP_SHARD=shard, GITHUB_RUN_ATTEMPT=attempt)
            assert done.returncode == 0, done.stdout + done.stderr
            keep(tmp_path, f"journal-alpha-{shard}-a{attempt}")
    needs = {"plan": {"result": "success", "outputs": {}}, "alpha": {"result": "success", "outputs": {}},
             "report": {"result": "skipped", "outputs": {}}}  # fmt: skip
    done = step("gate", NIGHTCAP_NEEDS=json.dumps(needs), GITHUB_RUN_ATTEMPT="2")
    assert done.returncode == 0, done.stdout
    verdict = json.loads((tmp_path / ".nightcap/out/verdict.json").read_text())
    shards = {shard["id"]: shard["run_attempt"] for job in verdict["jobs"] for shard in job["shards"]}
    assert shards == {"1-of-2": 1, "2-of-2": 2}


def test_of_two_plans_the_last_attempts_counts_and_a_kept_file_of_that_name_is_none(step: Any, tmp_path: Path) -> None:
    for attempt, text in (("9", "report"), ("10", "alpha")):
        assert step("plan", NIGHTCAP_INPUTS=json.dumps({"job_filter": text})).returncode == 0
        keep(tmp_path, f"plan-a{attempt}")
    kept = tmp_path / ".nightcap/artifacts/journal-alpha-1-of-2-a10/artifacts/plan-a11/plan.json"
    kept.parent.mkdir(parents=True)
    kept.write_text("{}")
    done = step("run", NIGHTCAP_JOB="alpha", NIGHTCAP_SHARD="1-of-2")
    assert done.returncode == 0, done.stderr


def test_a_plan_that_was_changed_on_its_way_starts_nothing(step: Any, tmp_path: Path) -> None:
    assert step("plan", NIGHTCAP_INPUTS='{"job_filter": "alpha"}').returncode == 0
    keep(tmp_path, "plan-a1")
    file = tmp_path / ".nightcap/artifacts/plan-a1/plan.json"
    file.write_text(file.read_text().replace('"file_timeout": 300', '"file_timeout": 299'))
    done = step("run", NIGHTCAP_JOB="alpha", NIGHTCAP_SHARD="1-of-2")
    assert done.returncode == 2
    assert "no intact plan.json" in done.stderr
    file.write_text("{")
    for name in ("run", "gate"):
        done = step(name, NIGHTCAP_JOB="alpha", NIGHTCAP_SHARD="1-of-2")
        assert done.returncode == 2
        assert done.stderr.startswith("Error: .nightcap/artifacts/plan-a1/plan.json is no plan of this version")


def test_a_pools_commands_run_before_the_tests_unless_the_host_is_ready(step: Any, tmp_path: Path) -> None:
    setup = '[echo one > made, "false | cat", echo two > made]'
    (tmp_path / "workflows/runners.yml").write_text(RUNNERS.replace("hosted: true", f"hosted: true, setup: {setup}"))
    assert step("plan").returncode == 0
    keep(tmp_path, "plan-a1")
    ready = step("run", NIGHTCAP_JOB="alpha", NIGHTCAP_SHARD="1-of-2")
    assert ready.returncode == 0, ready.stderr
    assert not (tmp_path / "made").exists()
    done = step("run", NIGHTCAP_JOB="alpha", NIGHTCAP_SHARD="1-of-2", NIGHTCAP_BIN="")
    assert done.returncode == 2
    assert "a set-up command of pool cpu failed with exit code 1" in done.stderr
    assert (tmp_path / "made").read_text() == "one\n"


def test_what_a_test_prints_or_is_called_is_no_command_to_github(step: Any, tmp_path: Path) -> None:
    names = ["::error::x", "a|b", "<script>", "`x`", "new\nline", "%0A::set-output name=x::y", "x" * 3000, "##[error]y"]
    test = f"""\
import pytest
pytestmark = pytest.mark.suite("alpha")


@pytest.mark.parametrize("name", {names!r}, ids=lambda name: name)
def test_it(name):
    print(name)
    raise AssertionError(f"\\n::warning::{{name}}\\n##[group]x\\n")
"""
    (tmp_path / "tests/test_a.py").write_text(test)
    assert step("plan", NIGHTCAP_INPUTS='{"job_filter": "alpha"}').returncode == 0
    keep(tmp_path, "plan-a1")
    printed = ""
    for shard in ("1-of-2", "2-of-2"):
        printed += step("run", NIGHTCAP_JOB="alpha", NIGHTCAP_SHARD=shard).stdout
        keep(tmp_path, f"journal-alpha-{shard}-a1")
    needs = {"plan": {"result": "success"}, "alpha": {"result": "failure"}, "report": {"result": "skipped"}}
    done = step("gate", NIGHTCAP_NEEDS=json.dumps(needs))
    assert done.returncode == 1
    lines = (printed + done.stdout).splitlines()
    commands = [line for line in lines if line.lstrip().startswith("::")]
    assert commands
    assert all(line.startswith(("::error title=", "::group::", "::endgroup::")) for line in commands)
    assert not [line for line in lines if "##[" in line and line not in commands]
    assert "<script>" not in (tmp_path / "summary").read_text()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"NIGHTCAP_WORKFLOW": "nigthly"}, "did you mean 'nightly'?"),
        ({"NIGHTCAP_INPUTS": "{"}, "NIGHTCAP_INPUTS is not the JSON of `inputs`"),
        ({"NIGHTCAP_INPUTS": "[1]"}, "NIGHTCAP_INPUTS is not the JSON of `inputs`"),
        ({"GITHUB_EVENT_NAME": ""}, "people use `nightcap plan`"),
    ],
)
def test_what_github_never_says_makes_no_plan_and_no_traceback(step: Any, given: dict[str, str], said: str) -> None:
    done = step("plan", **given)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_an_input_without_a_value_is_no_filter(step: Any, tmp_path: Path) -> None:
    assert step("plan", NIGHTCAP_INPUTS='{"job_filter": null}').returncode == 0
    assert json.loads(outputs(tmp_path)["jobs"]) == ["alpha", "report"]


def test_a_job_that_the_plan_does_not_know_is_named(step: Any, tmp_path: Path) -> None:
    assert step("plan").returncode == 0
    keep(tmp_path, "plan-a1")
    done = step("run", NIGHTCAP_JOB="alhpa", NIGHTCAP_SHARD="1-of-2")
    assert done.returncode == 2
    assert "no job 'alhpa' in nightly. did you mean 'alpha'?" in done.stderr


def test_without_a_plan_the_gate_is_red(step: Any, tmp_path: Path) -> None:
    needs = {"plan": {"result": "failure", "outputs": {"error": "nothing matches"}}}
    done = step("gate", NIGHTCAP_NEEDS=json.dumps(needs))
    assert done.returncode != 0
    assert "nothing matches" in done.stdout
