"""Compile every kernel that the attention benchmark will measure, several at a time, before anything is timed.

Each case is launched once, with one KV set, in a process of its own: Triton and FlashInfer keep what they compile
on disk, and what ends or hangs a process ends or hangs no other. A kernel that fails here is left to the
measurement, which reports it.

    python -m benchmarks.attention_compile CASE    the kernels of one case; CASE is JSON of its fields
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

from benchmarks.attention_cases import Case

SECONDS = 150
"""After which a case is given up; FlashInfer's largest kernels take 35 s alone on 16 cores."""


def compile_kernels(cases: list[Case]) -> None:
    """Compile the kernels of the cases, a line of output for each problem."""
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as lanes:
        for problem in lanes.map(_in_a_process, cases):
            print(problem, end="", flush=True)


def _in_a_process(case: Case) -> str:
    """Launch the kernels of a case; returns lines about what went wrong."""
    command = [sys.executable, "-m", "benchmarks.attention_compile", json.dumps(asdict(case))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return f"compile: {case}: given up after {SECONDS} s\n"
    ended = f"compile: {case}: exit {done.returncode}: {done.stderr[-500:]}\n" if done.returncode else ""
    return done.stdout + ended


def _launch_once(case: Case) -> None:
    import torch

    from benchmarks.attention_kernels import kernels
    from benchmarks.attention_workload import Workload
    from gpu_tests.reference.decode import KernelPreconditionError

    workload = Workload(case, l2_bytes=0, sets=1)
    for name, prepare in kernels(case).items():
        try:
            prepare(workload)(0)
            torch.cuda.synchronize()
        except KernelPreconditionError:
            continue
        except Exception as error:
            print(f"compile: {case}: {name}: {type(error).__name__}: {error}", flush=True)


if __name__ == "__main__":
    _launch_once(Case(**json.loads(sys.argv[1])))
