"""The portable kernels, their combine and both grids run without a GPU too: in Triton's interpreter, in fp32.

The cases are those of `test_decode_kernels.py`, in a process of its own: Triton reads `TRITON_INTERPRET` when a kernel
is defined.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

pytestmark = [
    pytest.mark.suite("attention-reference", gpus=0, est="10s"),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton, which has the interpreter"),
]

ROOT = Path(__file__).parents[1]
# MLA and GQA; with and without a combine, which few requests with many keys need; on both grids.
CASES = [
    "test_every_row_agrees_with_the_oracle[triton-cpu-mla16-page16-q1-0_1_5_2]",
    "test_options_agree_with_the_oracle[triton-cpu-sinks]",
    "test_options_agree_with_the_oracle[triton-cpu-sinks, few requests]",
    "test_options_agree_with_the_oracle[triton-cpu-MLA draft tree]",
    "test_options_agree_with_the_oracle[triton-cpu-MLA draft tree, balanced]",
    "test_options_agree_with_the_oracle[triton-cpu-sinks, balanced]",
    "test_the_balanced_grid_agrees_with_the_oracle_and_with_itself[triton-cpu-balanced-one-request-mla]",
    "test_the_balanced_grid_agrees_with_the_oracle_and_with_itself[triton-cpu-balanced-one-request-gqa]",
    "test_ragged_queries_write_only_the_rows_that_the_offsets_cover[triton-cpu-split]",
]


CONTRACT = "gpu_tests/test_contract_kernels.py::test_the_contract_holds_with_the_triton_kernel_on_the_emulation"
"""Two scenarios on both grids."""


def test_the_portable_kernels_agree_with_the_oracle_in_the_interpreter() -> None:
    passes([f"gpu_tests/test_decode_kernels.py::{case}" for case in CASES], len(CASES))


@pytest.mark.slow
def test_the_contract_holds_with_the_portable_kernels_in_the_interpreter() -> None:
    passes([CONTRACT], 4)


def passes(nodes: list[str], count: int) -> None:
    """All of `count` tests pass, and none is skipped."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *nodes]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=300)
    # NumPy 2.4 converts no array of one element to a number, which Triton 3.6's interpreter asks of it.
    assert done.returncode == 0, f"NumPy {numpy.__version__} (must be below 2.4)\n{done.stdout}{done.stderr}"
    assert done.stdout.splitlines()[-1].startswith(f"{count} passed"), done.stdout
