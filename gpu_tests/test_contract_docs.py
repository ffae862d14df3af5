"""Every snippet of docs/backends.md runs and prints what is shown; docs/contract.md names what there is."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_tests.backends import example_backend
from gpu_tests.contract.checks import CHECKS
from gpu_tests.contract.scenario import PERTURBATIONS, WORLDS

pytestmark = pytest.mark.suite("attention-contract", gpus=0, est="10s")

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "backends.md").read_text()
CONTRACT = (ROOT / "docs" / "contract.md").read_text()


def fenced(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.M | re.S)


def test_every_python_snippet_runs() -> None:
    namespace: dict[str, object] = {"__name__": "docs"}
    for snippet in fenced("python"):
        exec(
            compile(snippet.replace("from __future__ import annotations\n", ""), "docs/backends.md", "exec"), namespace
        )


def test_every_command_prints_what_is_shown() -> None:
    (block,) = fenced("console")
    command, _, shown = block.removeprefix("$ ").partition("\n")
    words = shlex.split(command)
    assert words[0] == "python"
    done = subprocess.run(
        [sys.executable, *words[1:]], capture_output=True, text=True, cwd=ROOT, check=True, timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout == shown


def test_the_worked_example_is_the_file_and_is_short() -> None:
    text = Path(example_backend.__file__).read_text()
    assert text in PAGE
    assert len(text.splitlines()) <= 60


@pytest.mark.parametrize(("title", "things"), [("Checks", CHECKS), ("Perturbations", PERTURBATIONS)])
def test_the_page_of_the_contract_names_what_there_is(title: str, things: dict[str, str]) -> None:
    section = CONTRACT.partition(f"## {title}\n")[2].partition("\n## ")[0]
    assert dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", section, re.M)) == things


def test_the_page_of_the_contract_names_all_worlds() -> None:
    section = CONTRACT.partition("## Worlds\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `([\w-]+)` \|", section, re.M) == list(WORLDS)
