"""What a spec becomes: text that GitHub reads as meant, the same on every machine."""

from __future__ import annotations

import random
from datetime import date
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ci.generate.render import render
from ci.gha.yaml_reader import read
from ci.gha.yaml_writer import scalar
from ci.spec.loader import load
from ci.spec.problems import SpecError
from tests.generate.conftest import NIGHTLY, ROOT, RUNNERS, TODAY, Repository


def workflow(repository: Repository, nightly: str = NIGHTLY, name: str = "nightly", **files: str) -> dict:
    """The generated workflow as GitHub reads it."""
    specs, root = repository(nightly, **files)
    text = next(file.text for file in render(specs, root) if file.path == f".github/workflows/{name}.yml")
    return read(text, name).value


def test_a_job_of_six_lines_becomes_a_job_that_asks_the_plan(repository: Repository) -> None:
    job = workflow(repository)["jobs"]["attention"]
    assert job["needs"] == "plan"
    assert job["if"] == "${{ contains(fromJSON(needs.plan.outputs.jobs), 'attention') }}"
    assert job["runs-on"] == ["self-hosted", "8-gpu-b200"]
    assert job["timeout-minutes"] == 120
    assert job["steps"][1]["with"] == {"command": "run", "job": "attention", "shard": "1-of-1"}


def test_shards_are_a_matrix_that_the_plan_fills(repository: Repository) -> None:
    sharded = NIGHTLY.replace("suites: [mla]", "suites: [mla], shards: 4")
    strategy = workflow(repository, sharded)["jobs"]["attention"]["strategy"]
    assert strategy["fail-fast"] is False
    assert strategy["matrix"]["shard"].startswith("${{ fromJSON(needs.plan.outputs.shards || '{}')['attention']")


def test_the_gate_needs_every_job(repository: Repository) -> None:
    jobs = workflow(repository)["jobs"]
    assert jobs["gate"]["needs"] == ["plan", "attention"]
    assert [*jobs] == ["plan", "attention", "gate"]


def test_an_edge_after_success_runs_only_behind_selected_jobs_that_passed(repository: Repository) -> None:
    report = "  report: {pool: cpu, commands: [echo], timeout: 5m, after: {jobs: [attention], when: WHEN}}\n"
    success = workflow(repository, NIGHTLY + report.replace("WHEN", "success"))["jobs"]["report"]
    end = workflow(repository, NIGHTLY + report.replace("WHEN", "end"))["jobs"]["report"]
    assert "needs.attention.result == 'success' || !contains(" in success["if"]
    assert "needs.attention.result" not in end["if"]
    assert success["needs"] == end["needs"] == ["plan", "attention"]


def test_what_a_spec_says_of_time_zones_containers_and_edges_reaches_github(repository: Repository) -> None:
    specs = ROOT / "tests/data/edges/workflows"
    runners, edges = ((specs / f"{name}.yml").read_text(encoding="utf-8") for name in ("runners", "edges"))
    text = workflow(
        repository, edges.replace("timeout: 1h, file_timeout: 10m", "timeout: 90s, file_timeout: 60s"), runners=runners
    )
    assert text["on"]["schedule"] == [
        {"cron": "17 0 * * *"},
        {"cron": "30 5 * * 1-5", "timezone": "America/New_York"},
    ]
    assert text["jobs"]["left"]["container"]["options"] == "--gpus all --ipc=host"
    assert "container" not in text["jobs"]["right"]
    assert text["jobs"]["left"]["timeout-minutes"] == 2, "GitHub counts minutes: never less than the spec gives"
    assert text["jobs"]["report"]["needs"] == ["plan", "left", "right", "off"]
    assert text["jobs"]["report"]["steps"][1]["with"]["fetch"] == "*-a*", "a report reads what others left"
    assert "fetch" not in text["jobs"]["left"]["steps"][1]["with"]
    assert "required" not in text["on"]["workflow_call"]["inputs"]["count"], "a caller may rely on the default"


def test_inputs_of_a_manual_run_reach_the_plan_alone(repository: Repository) -> None:
    inputs = "dispatch: {inputs: {model: {description: Which one, type: choice, options: [a, b], default: a}}}"
    text = workflow(repository, NIGHTLY.replace("dispatch: {}", inputs + "\n  call: {}"))
    assert text["on"]["workflow_dispatch"]["inputs"]["model"]["options"] == ["a", "b"]
    assert text["on"]["workflow_call"]["inputs"]["model"] == {
        "description": "Which one", "type": "string", "default": "a",
    }  # fmt: skip
    assert "inputs." not in str([job["steps"] for job in text["jobs"].values()])


def test_secrets_reach_only_the_steps_that_run_tests(repository: Repository) -> None:
    jobs = workflow(repository, NIGHTLY + "secrets: [HF_TOKEN]\n")["jobs"]
    assert jobs["attention"]["steps"][1]["env"] == {"HF_TOKEN": "${{ secrets.HF_TOKEN }}"}
    assert "secrets." not in str([jobs["plan"], jobs["gate"]])


def test_every_job_has_a_time_limit_a_unique_name_and_no_credentials(repository: Repository) -> None:
    jobs = workflow(repository)["jobs"]
    assert all(isinstance(job["timeout-minutes"], int) for job in jobs.values())
    assert len({job["name"] for job in jobs.values()}) == len(jobs)
    checkouts = [step for job in jobs.values() for step in job["steps"] if "checkout" in step["uses"]]
    assert checkouts
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(title=st.text(st.characters(codec="utf-8"), min_size=1, max_size=80).filter(str.strip))
def test_any_title_survives_spec_yaml_and_githubs_reading(repository: Repository, title: str) -> None:
    spec = NIGHTLY.replace("title: Nightly", f"title: {scalar(title)}")
    assert workflow(repository, spec)["name"] == title


@pytest.mark.parametrize(
    "command",
    [
        "echo ${{ secrets.X }}", "[[ -f a ]] && echo ${#ARR[@]}", "{% raw %}", "a: b # c", "- x", "  leading",
        "tab\there",
        "trailing \nnext", "cat <<EOF\nhello\nEOF", "echo 'ü🎉'", "1e3", "on", "012",
    ],
)  # fmt: skip
def test_any_command_reaches_the_step_as_it_was_written(repository: Repository, command: str) -> None:
    checks = (
        "title: Checks\ntemplate: checks\ntriggers: {pull_request: {}}\n"
        f"jobs:\n  check: {{pool: cpu, timeout: 5m, commands: [{scalar(command)}]}}\n"
    )
    text = workflow(repository, name="checks", checks=checks)
    assert text["jobs"]["check"]["steps"][1]["run"] == command


def test_the_same_specs_give_the_same_bytes_in_whatever_order_files_are_found(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = {f"other{index}": NIGHTLY.replace("title: Nightly", f"title: Other {index}") for index in range(6)}
    specs, root = repository(**others)
    first = render(specs, root)
    glob = Path.glob

    def shuffled(self: Path, pattern: str) -> list[Path]:
        found = sorted(glob(self, pattern))
        random.Random(len(pattern)).shuffle(found)
        return found

    monkeypatch.setattr(Path, "glob", shuffled)
    assert render(load(root, today=date(2030, 1, 1)), root) == first


def test_an_unknown_template_is_named_with_the_nearest(repository: Repository) -> None:
    specs, root = repository(NIGHTLY.replace("template: nightly", "template: nigthly"))
    with pytest.raises(SpecError, match=r"workflows/nightly.yml:2: template: unknown template 'nigthly'\n.*'nightly'"):
        render(specs, root)


def test_a_template_of_the_repository_comes_before_the_packaged_one(repository: Repository) -> None:
    specs, root = repository(NIGHTLY.replace("template: nightly", "template: checks"))
    (root / "templates").mkdir()
    (root / "templates/checks.yml.j2").write_text("# <%= header %>\nname: <%= workflow.title | yaml %>\n")
    text = next(file.text for file in render(specs, root) if file.path.endswith("nightly.yml"))
    assert text.endswith("name: Nightly\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# <%= header %>\n<%= job.nothing %>\n", "templates/mine.yml.j2:2: 'job' is undefined"),
        ("# <%= header %>\n<% if %>\n", "templates/mine.yml.j2:2: "),
        ("# <%= header %>\n<%= action('actions/chekout') %>\n", "did you mean 'actions/checkout'?"),
    ],
)
def test_a_wrong_template_is_an_error_with_its_place(repository: Repository, text: str, message: str) -> None:
    specs, root = repository(NIGHTLY.replace("template: nightly", "template: mine"))
    (root / "templates").mkdir()
    (root / "templates/mine.yml.j2").write_text(text)
    with pytest.raises(SpecError) as raised:
        render(specs, root)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("lock", "message"),
    [
        (
            "actions/checkout: {sha: v6, version: v6.0.2}\n",
            "workflows/actions.lock.yml:1: actions/checkout: needs `sha`",
        ),
        ("a: [\n", "workflows/actions.lock.yml:2"),
        ("", "holds no action"),
    ],
)
def test_a_wrong_lock_of_actions_is_an_error_with_its_place(repository: Repository, lock: str, message: str) -> None:
    specs, root = repository()
    (root / "workflows/actions.lock.yml").write_text(lock)
    with pytest.raises(SpecError) as raised:
        render(specs, root)
    assert message in str(raised.value)


def test_the_linters_know_the_labels_of_the_pools(repository: Repository) -> None:
    specs, root = repository()
    text = next(file.text for file in render(specs, root) if file.path == ".github/actionlint.yaml")
    assert yaml.safe_load(text)["self-hosted-runner"]["labels"] == ["8-gpu-b200"]
    assert RUNNERS.count("8-gpu-b200")


def test_the_real_size_example_is_less_than_half_of_the_hand_written_nightly() -> None:
    root = ROOT / "examples/inference-engine"
    files = {file.path: file for file in render(load(root, today=TODAY), root)}
    shared = files[".github/actions/nightcap/action.yml"].lines
    assert files[".github/workflows/nightly-nvidia.yml"].lines + shared <= 350
    assert files[".github/workflows/nightly-nvidia.yml"].jobs == 17
