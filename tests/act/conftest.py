"""A small repository whose generated nightly act really runs, step by step, on this machine."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import pytest

from ci import local
from ci.cli.project import Project
from ci.gate import Night
from ci.generate.files import apply, changes
from ci.generate.render import render

TODAY = date(2026, 12, 1)
RUNNERS = """\
repository: nektos/act
pools:
  cpu: {labels: [ubuntu-24.04], hosted: true, timeout: 1h}
  8-gpu-b200: {labels: [self-hosted, 8-gpu-b200], gpus: 0, timeout: 1h}
"""
NIGHTLY = """\
title: Small nightly
template: nightly
triggers:
  schedule: {cron: "17 3 * * *"}
  dispatch: {}
defaults: {timeout: 10m, file_timeout: 2m}
jobs:
  alpha:
    pool: cpu
    suites: [alpha]
    tags: [quick]
    shards: 2
  beta-b200:
    pool: 8-gpu-b200
    suites: [beta]
    aliases: [old-beta]
  report:
    pool: cpu
    commands: [COMMAND]
    after: {jobs: all, when: end}
    tags: [quick]
"""
PASSES = """\
import pytest
pytestmark = pytest.mark.suite("{suite}", est="5s")


def test_one():
    assert 1 + 1 == 2


@pytest.mark.parametrize("number", [1, 2])
def test_two(number):
    assert number
"""


@dataclass(frozen=True)
class Outcome:
    """What one run under act left."""

    run: local.LocalRun
    night: Night
    lines: list[local.Line]

    @property
    def started(self) -> set[str]:
        """Keys of the jobs that ran."""
        names = {job.rpartition("/ ")[2] for job in self.run.results}
        return {name.split(" ")[0].rstrip("-0123456789") if name.startswith("alpha") else name for name in names}

    def kinds(self, job: str) -> set[str]:
        """The kinds of problems that the gate names for a job."""
        return {finding.kind for finding in self.night.problems if finding.job == job}

    def verdict(self, job: str) -> str:
        """The gate's verdict of a job."""
        return next(one.verdict for one in self.night.jobs if one.key == job)


Nightly = Callable[..., Outcome]


@pytest.fixture
def nightly(tmp_path: Path) -> Nightly:
    """`nightly(event, filter, tests={path: text}, command=...)` builds the repository, generates and runs it."""

    def run(
        event: str, filter_text: str = "all", *, tests: Mapping[str, str] | None = None, command: str = "echo done"
    ) -> Outcome:
        root = tmp_path / "repository"
        files = {
            "workflows/runners.yml": RUNNERS,
            "workflows/nightly.yml": NIGHTLY.replace("COMMAND", command),
            "tests/test_a.py": PASSES.format(suite="alpha"),
            "tests/test_b.py": PASSES.format(suite="alpha"),
            "tests/test_c.py": PASSES.format(suite="beta"),
            ".gitignore": ".nightcap/\n__pycache__/\n",
            **(tests or {}),
        }
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        lock = Path(__file__).parents[2] / "workflows/actions.lock.yml"
        shutil.copy(lock, root / "workflows/actions.lock.yml")
        subprocess.run(["git", "init", "-q", str(root)], check=True)
        project = Project(root, TODAY)
        apply(root, changes(root, render(project.specs(), root)))
        lines: list[local.Line] = []
        inputs = {"job_filter": filter_text} if event == "workflow_dispatch" else {}
        env = {"NIGHTCAP_LOCKS": str(tmp_path / "locks")}
        found = local.run(
            root, "nightly", project.specs().fleet, event, inputs,
            scratch=tmp_path / "scratch", env=env, on_line=lines.append,
        )  # fmt: skip
        verdict = found.artifacts / "gate-a1/verdict.json"
        assert verdict.is_file(), "\n".join(f"{line.job}: {line.text}" for line in lines)
        return Outcome(found, Night.model_validate_json(verdict.read_text()), lines)

    return run
