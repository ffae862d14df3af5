"""Time of paged decode attention on one GPU, as a fraction of what the GPU could do, beside FlashInfer and torch.

    python -m benchmarks.attention --json benchmarks/results/NAME.json    measure (2 minutes, or 4 with FlashInfer)
    python -m benchmarks.attention --json FILE --cases 'MLA 16 .*q1'      the cases whose name matches
    python -m benchmarks.attention --report                               write docs/gpu-results.md and plots

A FILE that is there already is continued: what it holds is not measured again, so that a run which was cut short,
or measured some cases, is completed by another on the same machine.

How it is measured:

* Launches run in a CUDA graph, one after the other, as an engine runs them. A call costs the time of the
  graph divided by its launches, so launch latency between kernels is in it and host time is not.
* KV sets are rotated so that at least four times the L2 cache lies between two uses of the same bytes.
* Kernels of one case are measured in turn, in three rounds; reported are the median of the rounds (each the
  median of seven replays) and the spread of the rounds.
* The floor of a case is max(bytes / read bandwidth, FLOP / matmul rate), both measured in the same run: bytes
  are the visible KV, the query and the output once each; FLOP are 2 * query rows * keys * (D + Dv) over the
  visible keys, and the matmul rate is that of bf16.
* Kernels that can overlap with the launch in front of them (programmatic dependent launch) do, ours and
  FlashInfer's. Everything is compiled before anything is timed.
* torch has no paged KV and is given contiguous copies.
* Every kernel's output is compared with the fp64 oracle, which reads fp8 KV as it is stored, before it is timed;
  the largest error relative to the largest output is reported. A kernel above `ERROR_LIMITS` is reported as
  wrong, without a time.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import math
import re
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import attention_report
from benchmarks.attention_cases import CASES, Case
from benchmarks.attention_compile import compile_kernels
from benchmarks.attention_results import CallError, Results

if TYPE_CHECKING:
    from benchmarks.attention_timing import Captured
    from benchmarks.attention_workload import Launch, Workload

ERROR_LIMITS = {"bf16": 1e-2, "fp8": 1e-1}
"""By the dtype of the KV cache: a kernel may read fp8 KV with an fp8 query."""

SECONDS = 60
"""After which a kernel that does not return is given up, and the process with it."""

ROOT = Path(__file__).parents[1]


def measure(case: Case, results: Results) -> None:
    """Measure every kernel of the case that has no record; add the records."""
    import torch

    from benchmarks.attention_kernels import kernels
    from benchmarks.attention_timing import rounds
    from benchmarks.attention_workload import Workload

    todo = {name: prepare for name, prepare in kernels(case).items() if name not in results.kernels(case)}
    if not todo:
        return
    workload = Workload(case, torch.cuda.get_device_properties(0).L2_cache_size)
    records: dict[str, dict[str, Any]] = {}
    graphs = {}
    for name, prepare in todo.items():
        record = records[name] = {"case": {"family": case.family, **asdict(case)}, "kernel": name}
        # What stands in the file if the process does not come back from this kernel.
        results.write(record | {"failed": "the process ended while the kernel ran"})
        graph = try_out(workload, prepare, record)
        if "failed" in record:
            results.write(record)
            torch.cuda.synchronize()  # raises if the failure has broken the CUDA context: another process goes on
        elif graph is not None and record["error"] <= ERROR_LIMITS[case.kv_dtype]:
            graphs[name] = graph
    for name, times in rounds(graphs).items():
        records[name] |= figures(times, workload.bytes(), workload.flop(), results.run["limits"])
    for record in records.values():
        results.records.append(record)
        print(attention_report.line(record), flush=True)
    results.write()


def try_out(workload: Workload, prepare: Callable[[Workload], Launch], record: dict[str, Any]) -> Captured | None:
    """The captured kernel, with its `error` in the record; or None with the reason in `refused` or `failed`."""
    from benchmarks.attention_timing import capture
    from gpu_tests.reference.decode import KernelPreconditionError

    workload.out.fill_(math.nan)
    try:
        with given_up_after(SECONDS):
            launch = prepare(workload)
            graph = capture(launch, len(workload.kv_sets), workload.launches)
            produced = launch(0)  # the replay ended on another KV set
            workload.out.copy_(produced.reshape(workload.out.shape))
            record["error"] = workload.error()
    except KernelPreconditionError as refusal:  # ours say what they are not for
        record["refused"] = str(refusal)
    except Exception as error:  # a vendor's kernel that does not run here is a result too
        record["failed"] = f"{type(error).__name__}: {error}"
    else:
        return graph
    return None


@contextlib.contextmanager
def given_up_after(seconds: int) -> Iterator[None]:
    """End the process after so many seconds: a wait for a GPU that hangs cannot be interrupted."""
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def figures(times: list[float], num_bytes: int, flop: int, limits: dict[str, float]) -> dict[str, object]:
    """What a record says of the `times` of its rounds, in microseconds."""
    median = statistics.median(times)
    floor = max(num_bytes / limits["read_gb_per_s"] / 1e3, flop / limits["matmul_tflop_per_s"] / 1e6)
    return {
        "us": median,
        "rounds_us": times,
        "floor_us": floor,
        "fraction_of_floor": floor / median,
        "gb_per_s": num_bytes / median / 1e3,
        "tflop_per_s": flop / median / 1e6,
    }


def machine() -> dict[str, object]:
    import torch

    properties = torch.cuda.get_device_properties(0)
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split("\n")[0].strip()
    versions: dict[str, str | None] = {}
    for package in ("torch", "triton", "flashinfer-python"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "card": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "sms": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "driver": driver,
        "cuda": torch.version.cuda,
        "versions": versions,
    }


def run(cases: list[Case], results: Results) -> None:
    """Measure the cases in order into the file of the results."""
    from benchmarks.attention_flashinfer import not_measured
    from benchmarks.attention_kernels import kernels
    from benchmarks.attention_timing import measure_limits

    left = [case for case in cases if kernels(case).keys() - results.kernels(case)]
    compile_kernels(left)
    about = machine()
    results.begin(about, measure_limits(), not_measured())
    print(f"{about['card']}: {json.dumps(results.run['limits'])}", flush=True)
    for case in left:
        measure(case, results)


def chosen(pattern: str) -> list[Case]:
    """The cases whose name matches. Raises CallError if none does, or the pattern is none."""
    try:
        found = [case for case in CASES if re.search(pattern, str(case))]
    except re.error as error:
        raise CallError(f"--cases {pattern!r} is no regular expression: {error}") from error
    if not found:
        known = "\n".join(f"  {case}" for case in CASES)
        raise CallError(f"--cases: no case matches {pattern!r}. Cases:\n{known}")
    return found


def called(pattern: str, path: Path) -> tuple[list[Case], Results]:
    """The cases that match, and the file for them. Raises CallError with all that speaks against measuring them."""
    found, problems = [], []
    for read in (lambda: chosen(pattern), lambda: Results(path), demand_gpu):
        try:
            found.append(read())
        except CallError as error:
            problems.append(str(error))
    if problems:
        raise CallError("\n".join(problems))
    cases, results, _ = found
    return cases, results


def demand_gpu() -> None:
    import torch

    if not torch.cuda.is_available():
        raise CallError("needs an NVIDIA GPU; torch sees none")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--json", type=Path, metavar="FILE", help="measure on this GPU, into FILE")
    what.add_argument("--report", action="store_true", help="write docs/gpu-results* from benchmarks/results/")
    parser.add_argument("--cases", default="", metavar="REGEX", help="measure the cases whose name matches")
    given = parser.parse_args(arguments)
    if given.report and given.cases:
        parser.error("--report writes all results: --cases is for --json")
    try:
        if given.report:
            for name, text in attention_report.files(ROOT / "benchmarks/results").items():
                (ROOT / "docs" / name).write_text(text, encoding="utf-8")
        else:
            run(*called(given.cases, given.json))
    except CallError as error:
        print(f"benchmarks.attention: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
