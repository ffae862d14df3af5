"""GitHub's limits are found before GitHub finds them, each with its number and a fix."""

from __future__ import annotations

import json

import pytest

from ci.generate.limits import problems
from ci.generate.render import Generated, render
from ci.gha.limits import VARIABLE_BYTES
from ci.planning import INPUT_CHARACTERS
from tests.generate.conftest import NIGHTLY, Repository


def found(repository: Repository, nightly: str) -> str:
    specs, root = repository(nightly)
    return "\n".join(map(str, problems(specs, render(specs, root))))


def test_the_specs_of_a_small_nightly_break_no_limit(repository: Repository) -> None:
    assert found(repository, NIGHTLY) == ""


def test_a_condition_over_many_jobs_is_too_long(repository: Repository) -> None:
    jobs = "".join(
        f"  job-{index:03}-{'x' * 60}: {{pool: 8-gpu-b200, suites: [mla], timeout: 2h, file_timeout: 40m}}\n"
        for index in range(120)
    )
    report = "  report: {pool: cpu, commands: [echo], timeout: 5m, after: {jobs: all, when: success}}\n"
    text = found(repository, NIGHTLY + jobs + report)
    assert "jobs.report: a text of" in text
    assert "at most 21,000" in text


def test_a_long_command_is_too_long(repository: Repository) -> None:
    report = f'  report: {{pool: cpu, commands: ["echo {"x" * 21_000}"], timeout: 5m}}\n'
    assert "GitHub takes at most 21,000" in found(repository, NIGHTLY + report)


def test_a_workflow_above_500_kb_is_too_large(repository: Repository) -> None:
    specs, _ = repository()
    large = Generated(".github/workflows/nightly.yml", "x" * 600_000)
    assert "GitHub reads at most 512,000" in str(next(problems(specs, [large])))


JOB = "  job-{index:03}: {{pool: 8-gpu-b200, suites: [mla], timeout: 2h, file_timeout: 40m, shards: {shards}}}\n"


@pytest.mark.parametrize(("jobs", "name"), [(11, "short"), (60, "x" * 90)])
def test_results_that_do_not_fit_into_the_gates_variable_are_refused(
    repository: Repository, jobs: int, name: str
) -> None:
    shards = "{max: 80, target: 30m}" if name == "short" else "1"
    few = "".join(JOB.format(index=index, shards=shards) for index in range(jobs)).replace("job-", f"{name}-")
    many = "".join(JOB.format(index=index, shards=shards) for index in range(10 * jobs)).replace("job-", f"{name}-")
    assert found(repository, NIGHTLY + few) == ""
    text = found(repository, NIGHTLY + many)
    assert "a variable 131,072" in text
    assert "split the spec into two workflows" in text


def test_the_largest_results_that_are_let_through_fit_into_the_variable(repository: Repository) -> None:
    """What the gate would really get: GitHub's JSON of all results, with the outputs of the plan."""
    spec = NIGHTLY + "".join(JOB.format(index=index, shards=9) for index in range(109))
    assert found(repository, spec) == ""
    specs, _ = repository(spec)
    shards = {key: [f"{index}-of-9" for index in range(9)] for key in specs.workflows["nightly"].jobs}
    inputs = {"text": "\x01" * INPUT_CHARACTERS}
    outputs = {"jobs": json.dumps([*shards]), "shards": json.dumps(shards), "inputs": json.dumps(inputs)}
    results = {key: {"result": "cancelled", "outputs": {}} for key in shards}
    needs = json.dumps({"plan": {"result": "success", "outputs": outputs}, **results}, indent=2)
    assert len(needs) < VARIABLE_BYTES


def test_more_artifacts_than_the_gate_can_fetch_are_refused(repository: Repository) -> None:
    jobs = "".join(JOB.format(index=index, shards=250) for index in range(4))
    text = found(repository, NIGHTLY + jobs)
    assert "1,002 artifacts; the gate can fetch 1,000 of a run" in text
    assert found(repository, NIGHTLY + jobs.replace("250}", "249}", 2)) == ""
