"""Linters that nobody here wrote find nothing in any generated file; waivers stand, with reasons, in their configs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ci.generate.files import apply, changes
from ci.generate.render import packaged, render
from ci.spec.loader import load
from tests.generate.conftest import ROOT, TODAY

BIN = Path(sys.executable).parent
EXAMPLES = [".", "examples/inference-engine", "tests/data/edges"]


@pytest.fixture
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A repository that holds the generated files and the linters' configs alone."""
    if (ROOT / request.param / ".github").exists():
        shutil.copytree(ROOT / request.param / ".github", tmp_path / ".github")
    else:
        shutil.copytree(ROOT / request.param, tmp_path, dirs_exist_ok=True)
        shutil.copy(packaged("actions.lock.yml"), tmp_path / "workflows")
        apply(tmp_path, changes(tmp_path, render(load(tmp_path, today=TODAY), tmp_path)))
        shutil.copy(ROOT / ".github/zizmor.yml", tmp_path / ".github")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    return tmp_path


def lint(tree: Path, *command: str) -> None:
    done = subprocess.run([str(BIN / command[0]), *command[1:]], cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def workflows(tree: Path) -> list[str]:
    return [str(path.relative_to(tree)) for path in sorted(tree.glob(".github/workflows/*.yml"))]


@pytest.mark.parametrize("tree", EXAMPLES, indirect=True)
def test_jactionlint_pedantic_finds_nothing(tree: Path) -> None:
    action = ".github/actions/nightcap/action.yml"
    lint(
        tree, "jactionlint", "--profile", "pedantic", "--shellcheck", str(BIN / "shellcheck"), *workflows(tree), action
    )


@pytest.mark.parametrize("tree", EXAMPLES, indirect=True)
def test_actionlint_finds_nothing(tree: Path) -> None:
    lint(tree, "actionlint", "-shellcheck", str(BIN / "shellcheck"), *workflows(tree))


@pytest.mark.parametrize("tree", EXAMPLES, indirect=True)
def test_zizmor_as_auditor_finds_nothing(tree: Path) -> None:
    lint(tree, "zizmor", "--offline", "--no-progress", "--persona", "auditor", "--strict-collection", ".")


def test_the_linters_do_find_faults(tmp_path: Path) -> None:
    folder = tmp_path / ".github/workflows"
    folder.mkdir(parents=True)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    fault = "on: push\njobs:\n  a:\n    runs-on: nowhere\n    steps:\n      - run: echo ${{ github.head_ref }} $x\n"
    (folder / "bad.yml").write_text(fault)
    for command in (
        ("jactionlint", "--profile", "pedantic", "--shellcheck", str(BIN / "shellcheck"), ".github/workflows/bad.yml"),
        ("actionlint", "-shellcheck", str(BIN / "shellcheck"), ".github/workflows/bad.yml"),
        ("zizmor", "--offline", "--no-progress", "--persona", "auditor", "."),
    ):
        with pytest.raises(AssertionError):
            lint(tmp_path, *command)
