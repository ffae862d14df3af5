"""Jobs behind others run as their edge says, whatever the filter left out and however the jobs before them ended."""

from __future__ import annotations

import itertools
import shutil
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from ci.cli.project import Project
from ci.generate.render import packaged, render
from tests.engine.test_selection import Evaluate, scenario

EDGES = Path(__file__).parents[1] / "data/edges"
SUCCESS = {"both": ("left", "right", "off"), "chained": ("both",)}
ENDS = ("success", "failure", "cancelled")
FILTERS = ("all", "left, both, chained", "right, chained", "!left", "!right, !both", "both", "last", "chained, left")
EVENTS = ("schedule", "workflow_dispatch", "workflow_call")


@pytest.fixture(scope="module")
def edges(tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, str]:
    """The project, and the text of its workflow."""
    root = tmp_path_factory.mktemp("edges")
    shutil.copytree(EDGES, root, dirs_exist_ok=True)
    shutil.copy(packaged("actions.lock.yml"), root / "workflows")
    project = Project(root, date(2026, 12, 1))
    text = next(file.text for file in render(project.specs(), root) if file.path.endswith("/edges.yml"))
    return project, text


def expected(selected: set[str], results: dict[str, str]) -> set[str]:
    """The jobs that run, by the words of the spec: after success of each selected job before, or after the end."""
    runs: set[str] = set()
    for key in ("left", "right", "both", "chained", "report", "last"):
        ended_well = {one for one in runs if results.get(one, "success") == "success"}
        if key in selected and all(one in ended_well or one not in selected for one in SUCCESS.get(key, ())):
            runs.add(key)
    return runs


@pytest.mark.parametrize("event", EVENTS)
def test_jobs_behind_others_run_as_their_edge_says(evaluate: Evaluate, edges: tuple[Project, str], event: str) -> None:
    project, workflow = edges
    cases = []
    for text, left, right, both in itertools.product(FILTERS, ENDS, ENDS, ENDS):
        results = {"left": left, "right": right, "both": both}
        plan = project.plan("edges", event, text)
        wanted = expected({job.key for job in plan.selected}, results)
        cases.append((text, results, wanted, scenario(plan, event, "acme/engine", results)))
    found = evaluate(workflow, [case[3] for case in cases])
    for (text, results, wanted, _), answer in zip(cases, found, strict=True):
        assert set(answer["runs"]) == {"plan", "gate", *wanted}, (text, results)
    assert len({tuple(sorted(wanted)) for _, _, wanted, _ in cases}) >= 10


@pytest.mark.parametrize("after", ["plan", "left", "both"])
def test_a_run_that_a_person_cancels_starts_nothing_more_but_the_gate(
    evaluate: Evaluate, edges: tuple[Project, str], after: str
) -> None:
    project, workflow = edges
    case: dict[str, Any] = scenario(project.plan("edges", "workflow_dispatch", "all"), "workflow_dispatch", "x/y")
    answer = evaluate(workflow, [{**case, "cancelled_after": after}])[0]
    assert answer["runs"][-1] == "gate"
    assert {"chained", "report", "last"}.isdisjoint(answer["runs"])


def test_a_failed_plan_starts_nothing_but_the_gate(evaluate: Evaluate, edges: tuple[Project, str]) -> None:
    assert [one["runs"] for one in evaluate(edges[1], [scenario(None, event, "x/y") for event in EVENTS[1:]])] == [
        ["plan", "gate"],
        ["plan", "gate"],
    ]
