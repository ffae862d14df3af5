"""Without torch, the commands of the attention suites say what to install: one line, exit code 2, no traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RUN = "import runpy, sys; sys.modules[{!r}] = None; runpy.run_module(sys.argv[1], run_name='__main__')"


@pytest.mark.parametrize("package", ["gpu_tests.contract", "gpu_tests.faults", "gpu_tests.parallel"])
def test_a_command_names_the_extra_to_install(package: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUN.format("torch"), package], cwd=ROOT, capture_output=True, text=True, check=False
    )
    needed = "the attention suites need torch: pip install 'nightcap[torch]'"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"python -m {package}: {needed}\n")


def test_the_compiler_without_a_gpu_names_the_extra_to_install() -> None:
    command = [sys.executable, "-c", RUN.format("triton"), "gpu_tests.reference.offline"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    needed = "python -m gpu_tests.reference.offline: needs triton: pip install 'nightcap[gpu]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", needed)
