"""The command line as a person meets it: what it prints, and its exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ci.cli import project
from ci.cli.main import main

RUNNERS = """\
repository: my-org/my-engine
pools:
  cpu: {labels: [ubuntu-24.04], hosted: true, timeout: 1h}
  8-gpu-b200: {labels: [self-hosted, 8-gpu-b200], gpus: 8, sm: 100, timeout: 6h}
"""
NIGHTLY = """\
title: Nightly Test
template: nightly
triggers:
  schedule: {cron: "17 0 * * *"}
  dispatch:
    inputs:
      steps: {description: Draft steps, type: number, default: 2}
defaults: {pool: cpu, timeout: 10m, file_timeout: 1m}
jobs:
  kernels:
    suites: [kernels]
    tags: [quick]
    aliases: [old-kernels]
  report:
    commands: [echo done]
    after: {jobs: all, when: end}
"""
TEST = 'import pytest\n\npytestmark = pytest.mark.suite("kernels", est="5s")\n\n\ndef test_topk():\n    assert {}\n'


@dataclass(frozen=True)
class Output:
    """What one call left."""

    code: int
    out: str
    err: str


Nightcap = Callable[..., Output]


@pytest.fixture
def nightcap(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Nightcap:
    """`nightcap(*arguments)`: the command line in this process; an exception that it lets through fails the test."""

    def call(*arguments: str) -> Output:
        for cached in (project._specs, project._discovery, project._catalogue):
            cached.cache_clear()
        monkeypatch.setattr(sys, "argv", ["nightcap", *arguments])
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = capsys.readouterr()
        return Output(code, out, err)

    return call


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small repository with specs and one test, as the working directory."""
    root = tmp_path / "my-engine"
    lock = Path(__file__).parents[2] / "workflows/actions.lock.yml"
    files = {
        "workflows/runners.yml": RUNNERS,
        "workflows/nightly.yml": NIGHTLY,
        "workflows/actions.lock.yml": lock.read_text(),
        "tests/test_kernels.py": TEST.format("True"),
    }
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    monkeypatch.chdir(root)
    monkeypatch.setenv("NIGHTCAP_LOCKS", str(tmp_path / "locks"))
    return root
