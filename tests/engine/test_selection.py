"""The jobs that GitHub's engine runs are those that the plan selects, for every event, filter and upstream result."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from ci.cli.project import Project
from ci.plan import Plan
from ci.spec.filter import FILTER_INPUT
from ci.spec.problems import FilterError

ROOT = Path(__file__).parents[2]
TODAY = date(2026, 12, 1)
Evaluate = Callable[[str, list[dict[str, Any]]], list[dict[str, Any]]]

FILTERS = [
    "", "all", "ALL", "  all  ", "specialized-8-gpu-b200", "SPECIALIZED-8-GPU-B200", "perf-8-gpu-b200",
    "perf-8-gpu-b200, specialized-8-gpu-b200", "*", "*-b200", "8-gpu*", "*8-gpu*", "*-1-gpu-*", "?eneral*", "general-*",
    "text-*", "vlm-perf-2-gpu-h100", "tag:perf", "tag:perf, !vlm*", "tag:accuracy", "TAG:Perf", "tag:p*",
    "pool:8-gpu-b200", "pool:8-gpu-*", "pool:cpu", "suite:nightly-8-gpu-common", "suite:*perf*",
    "suite:nightly-1-gpu,*-b200",
    "!*-b200", "!perf*", "!tag:perf", "!pool:8-gpu-*", "!metrics", "all, !metrics", "all,!tag:perf,!*h20",
    "8-gpu-*, !perf*", "metrics", "general-8-gpu-h200,metrics", "*-h200, !general*", "kernel-*,!pool:8-gpu-h200",
    "typo", "general-8-gpu", "tag:nothing", "colour:red", "a,,b", "*,!*", "!nothing-like-it", "all,",
]  # fmt: skip
REPOSITORIES = {".": "nightcap-ci/nightcap", "examples/inference-engine": "example/inference-engine"}


def project(folder: str) -> Project:
    return Project(ROOT / folder, TODAY)


def workflow_text(folder: str) -> str:
    return (ROOT / folder / ".github/workflows/nightly-nvidia.yml").read_text(encoding="utf-8")


def scenario(plan: Plan | None, event: str, repository: str, results: dict[str, str] | None = None) -> dict[str, Any]:
    """What the plan job would hand to the other jobs; without a plan it fails and hands over nothing."""
    outputs: dict[str, Any] = {}
    if plan is not None:
        shards = {job.key: [shard.id for shard in job.shards] for job in plan.selected}
        outputs = {"plan": {"jobs": json.dumps([*shards]), "shards": json.dumps(shards)}}
    failed = {"plan": "failure"} if plan is None else {}
    github = {"event_name": event, "repository": repository}
    return {"github": github, "outputs": outputs, "results": {**failed, **(results or {})}}


def plan_or_none(one: Project, event: str, text: str) -> Plan | None:
    try:
        return one.plan("nightly-nvidia", event, text)
    except FilterError:
        return None


@pytest.mark.parametrize("folder", REPOSITORIES)
@pytest.mark.parametrize("event", ["schedule", "workflow_dispatch"])
def test_github_runs_exactly_the_jobs_that_the_plan_selects(evaluate: Evaluate, folder: str, event: str) -> None:
    plans = [plan_or_none(project(folder), event, text) for text in FILTERS]
    found = evaluate(workflow_text(folder), [scenario(plan, event, REPOSITORIES[folder]) for plan in plans])
    for text, plan, answer in zip(FILTERS, plans, found, strict=True):
        wanted = {job.key for job in plan.selected} if plan else set()
        assert set(answer["runs"]) == {"plan", "gate", *wanted}, text
        for key, matrix in answer["matrix"].items():
            assert plan is not None
            assert matrix == [shard.id for shard in plan.job(key).shards], (text, key)


def test_the_table_of_filters_holds_selections_and_refusals() -> None:
    plans = [plan_or_none(project("examples/inference-engine"), "workflow_dispatch", text) for text in FILTERS]
    assert len(set(FILTERS)) >= 40
    assert 8 <= plans.count(None) <= 20
    assert len({tuple(job.key for job in plan.selected) for plan in plans if plan}) >= 15


@pytest.mark.parametrize("folder", REPOSITORIES)
def test_a_fork_runs_nothing_on_a_schedule_and_all_on_demand(evaluate: Evaluate, folder: str) -> None:
    plan = project(folder).plan("nightly-nvidia", "schedule", "all")
    scenarios = [scenario(plan, event, "fork/engine") for event in ("schedule", "workflow_dispatch")]
    scheduled, manual = evaluate(workflow_text(folder), scenarios)
    assert scheduled["runs"] == []
    assert set(manual["runs"]) == {"plan", "gate", *(job.key for job in plan.selected)}


def test_whatever_happened_before_the_gate_runs_and_so_do_metrics(evaluate: Evaluate) -> None:
    folder = "examples/inference-engine"
    plan = project(folder).plan("nightly-nvidia", "workflow_dispatch", "all")
    ends = ("failure", "cancelled", "skipped", "success")
    cases = [{"general-1-gpu-h100": end, "perf-4-gpu-b200": other} for end in ends for other in ends]
    scenarios = [scenario(plan, "workflow_dispatch", "x/y", results) for results in cases]
    for results, answer in zip(cases, evaluate(workflow_text(folder), scenarios), strict=True):
        assert {"metrics", "gate"} <= set(answer["runs"]), results


def test_a_manual_run_never_shares_the_group_of_the_nightly(evaluate: Evaluate) -> None:
    github = [
        {"event_name": event, "repository": "nightcap-ci/nightcap", "run_id": run}
        for event, run in (("schedule", "1"), ("schedule", "2"), ("workflow_dispatch", "3"), ("workflow_dispatch", "4"))
    ]
    scenarios = [{"github": one, "results": {"plan": "failure"}} for one in github]
    groups = [one["group"] for one in evaluate(workflow_text("."), scenarios)]
    assert groups[0] == groups[1]
    assert len(set(groups)) == 3
    assert "cancel-in-progress: false" in workflow_text(".")


def test_the_filter_is_an_input_of_the_workflow() -> None:
    assert f"{FILTER_INPUT}: {{description:" in workflow_text(".")
