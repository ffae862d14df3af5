"""Without torch, the commands of the attention suites say what to install: one line, exit code 2, no traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RUN = "import runpy, sys; sys.modules['torch'] = None; runpy.run_module(sys.argv[1], run_name='__main__')"


@pytest.mark.parametrize("package", ["gpu_tests.contract", "gpu_tests.faults", "gpu_tests.parallel"])
def test_a_command_names_the_extra_to_install(package: str) -> None:
    done = subprocess.run([sys.executable, "-c", RUN, package], cwd=ROOT, capture_output=True, text=True, check=False)
    needed = "the attention suites need torch: pip install 'nightcap[torch]'"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"python -m {package}: {needed}\n")
