"""The process of one rank: `python -m gpu_tests.parallel.rank RANK WORLD_SIZE DEVICE FOLDER BACKEND CASE=LIMIT...`.

It is started by `launch`.  The folder holds the store through which the ranks meet, and `rank<N>.jsonl`, to which a
line is added for each phase that begins and each case that ends; so a rank that is killed leaves what it knew.
It ends when its standard input closes: no rank outlives its parent.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # the first custom op imports it: 2 s that no rank shall spend while the others wait
import torch.distributed as dist

from gpu_tests.backends.protocol import BackendFactory, NotSupported
from gpu_tests.contract.verify import load_factory
from gpu_tests.graphs import CpuGraphDriver, GraphDriver
from gpu_tests.parallel.cases import CASES
from gpu_tests.parallel.comms import Comms, Stopped
from gpu_tests.parallel.launch import end_with_parent
from gpu_tests.parallel.report import Finding, RankReport
from gpu_tests.parallel.session import run_case
from gpu_tests.parallel.split import CannotSplit

MEETING_S = 120.0
"""Time for all ranks to start."""


def main(arguments: list[str]) -> None:
    rank, world_size, device, folder, backend, *cases = arguments
    end_with_parent()
    factory = load_factory(backend)
    driver = _driver(device, int(rank))
    store = dist.FileStore(str(Path(folder, "store")), int(world_size))
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        store=store,
        rank=int(rank),
        world_size=int(world_size),
        timeout=timedelta(seconds=MEETING_S),
    )
    with Path(folder, f"rank{rank}.jsonl").open("a", buffering=1) as lines:

        def write(event: str, value: Any) -> None:
            lines.write(json.dumps({event: value}) + "\n")

        for case in cases:
            name, _, limit_s = case.partition("=")
            report, device_hangs = _case(name, int(rank), driver, store, float(limit_s), factory, write)
            write("report", report.to_json())
            if device_hangs:
                break  # nothing more can run on this device
    # A communicator whose collective hangs cannot be destroyed, and one that a graph holds waits for the graph.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _case(
    name: str,
    rank: int,
    driver: GraphDriver,
    store: dist.Store,
    limit_s: float,
    factory: BackendFactory,
    write: Callable[[str, Any], None],
) -> tuple[RankReport, bool]:
    """Run one case; what it reports, and whether the device hangs now."""
    start = time.monotonic()
    findings: list[Finding] = []

    def report(**ending: Any) -> RankReport:
        return RankReport(name, rank, round(time.monotonic() - start, 3), tuple(findings), **ending)

    write("phase", f"{name}: meeting")
    comms = Comms(name, driver, store, limit_s, lambda phase: write("phase", f"{name}: {phase}"))
    try:
        run_case(CASES[name], driver, comms, factory, findings)
        return report(), False
    except NotSupported as reason:
        return report(unsupported=str(reason)), False
    except Stopped as stopped:
        return report(stop=stopped.stop), comms.device_hangs
    except CannotSplit as reason:
        return report(stop=comms.crashed(str(reason))), False
    except Exception:  # the other ranks must be told, whatever it was
        return report(stop=comms.crashed(traceback.format_exc())), False


def _driver(device: str, rank: int) -> GraphDriver:
    if device == "cpu":
        return CpuGraphDriver()
    from gpu_tests.graphs.cuda import CudaGraphDriver

    torch.cuda.set_device(rank)
    # Acceptance counts on sums in fp32.
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    return CudaGraphDriver(poison=False)  # poisoning waits for the device, without a limit


if __name__ == "__main__":
    main(sys.argv[1:])
