"""Time of GPU work in CUDA graphs, and what the GPU could do at best."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import torch

from benchmarks.attention_workload import Launch

ROUNDS = 3
REPLAYS = 7


@dataclass(frozen=True)
class Captured:
    """A graph of `launches` launches.

    `launch` is kept although it is not called again: buffers that it alone holds (a workspace, an LSE) are
    written at every replay, a graph does not own what was allocated before its capture, and the next capture
    gives unused memory back to the driver.
    """

    graph: torch.cuda.CUDAGraph
    launch: Launch
    launches: int

    def microseconds(self) -> float:
        """Median over `REPLAYS` replays of the time per launch."""
        times = []
        for _ in range(REPLAYS):
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            self.graph.replay()
            stop.record()
            stop.synchronize()
            times.append(start.elapsed_time(stop) * 1000 / self.launches)
        return statistics.median(times)


def capture(launch: Launch, num_sets: int, launches: int) -> Captured:
    """A graph of `launches` launches over the KV sets in turn; it was run once, so everything is compiled."""
    launch(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for index in range(launches):
            launch(index % num_sets)
    graph.replay()
    torch.cuda.synchronize()
    return Captured(graph, launch, launches)


def rounds(captured: dict[str, Captured]) -> dict[str, list[float]]:
    """`ROUNDS` figures a kernel, the kernels in turn, so that a drift of the clock meets all of them."""
    figures: dict[str, list[float]] = {name: [] for name in captured}
    for _ in range(ROUNDS):
        for name, graph in captured.items():
            figures[name].append(graph.microseconds())
    return figures


def measure_limits() -> dict[str, float]:
    """Read bandwidth (GB/s) of a Triton reduction over 4 GiB, and bf16 rate (TFLOP/s) of an 8192^3 matmul."""
    from benchmarks.read_bandwidth import read_all  # Triton: only machines with a GPU need it

    data = torch.randn(2**30, device="cuda")
    graphs = {f"read {warps}": capture(read_all(data, warps), 1, 2) for warps in (4, 8, 16)}
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product = torch.empty_like(a)
    graphs["matmul"] = capture(lambda _: torch.mm(a, b, out=product), 1, 8)
    figures = {name: statistics.median(times) for name, times in rounds(graphs).items()}
    fastest_read = min(time for name, time in figures.items() if name.startswith("read"))
    return {
        "read_gb_per_s": data.numel() * 4 / fastest_read / 1e3,
        "matmul_tflop_per_s": 2 * 8192**3 / figures["matmul"] / 1e6,
    }
