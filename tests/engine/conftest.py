"""GitHub's own workflow parser and expression engine, as a function."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def evaluate() -> Callable[[str, list[dict[str, Any]]], list[dict[str, Any]]]:
    """`evaluate(workflow_text, scenarios)`: for each scenario the jobs that run, their results, matrices and group."""
    if not (HERE / "node_modules").is_dir():
        pytest.fail("GitHub's engine is not installed: run `make test`, or `npm ci` in tests/engine")

    def run(workflow: str, scenarios: list[dict[str, Any]]) -> list[dict[str, Any]]:
        request = json.dumps({"workflow": workflow, "scenarios": scenarios})
        command = ["node", str(HERE / "evaluate.mjs")]
        done = subprocess.run(command, input=request, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert not answer["errors"], answer["errors"]
        found: list[dict[str, Any]] = answer["scenarios"]
        return found

    return run
