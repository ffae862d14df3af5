"""GitHub's limits are found before GitHub finds them, each with its number and a fix."""

from __future__ import annotations

import pytest

from ci.generate.limits import problems
from ci.generate.render import Generated, render
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


@pytest.mark.slow
def test_too_many_jobs_for_one_gate_are_refused(repository: Repository) -> None:
    jobs = "".join(
        f"  job-{index:04}-{'x' * 80}: {{pool: 8-gpu-b200, suites: [mla], timeout: 2h, file_timeout: 40m}}\n"
        for index in range(1000)
    )
    assert "split the spec into two workflows" in found(repository, NIGHTLY + jobs)
