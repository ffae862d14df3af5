"""Time of paged decode attention on one GPU, as a fraction of what the GPU could do, beside FlashInfer and torch.

    python -m benchmarks.attention --json benchmarks/results/NAME.json    measure (about 3 minutes)
    python -m benchmarks.attention --report                               write docs/gpu-results.md and plots

How it is measured:

* Launches run in a CUDA graph, one after the other, as an engine runs them. A call costs the time of the
  graph divided by its launches, so launch latency between kernels is in it and host time is not.
* KV sets are rotated so that at least four times the L2 cache lies between two uses of the same bytes.
* Kernels of one case are measured in turn, in three rounds; reported are the median of the rounds (each the
  median of seven replays) and the spread of the rounds.
* The floor of a case is max(bytes / read bandwidth, FLOP / matmul rate), both measured in the same run: bytes
  are the live KV, the query and the output once each; FLOP are 2 * query rows * keys * (D + Dv) over the
  visible keys.
* Kernels that can overlap with the launch in front of them (programmatic dependent launch) do, ours and
  FlashInfer's.
* torch has no paged KV and is given contiguous copies.
* Every kernel's output is compared with the fp64 oracle before it is timed; the largest error relative to the
  largest output is reported. A kernel above `ERROR_LIMIT` is reported as wrong, without a time.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import importlib.metadata
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import attention_report

if TYPE_CHECKING:
    from torch import Tensor
    from torch.cuda import CUDAGraph

    Launch = Callable[[int], Tensor]
    """Runs the kernel on the KV set of that index; returns the output."""

ROUNDS = 3
REPLAYS = 7
ERROR_LIMIT = 1e-2
LAUNCHES = 16
RESULTS = Path("benchmarks/results")


@dataclass(frozen=True)
class Case:
    """`kv_heads` 0 stands for MLA (latent 512, rope 64); `varied`: lengths from `q_len` to `length`."""

    heads: int
    kv_heads: int
    batch: int
    length: int
    page_size: int
    q_len: int
    varied: bool = False
    layout: str = "HND"

    @property
    def family(self) -> str:
        return "MLA" if self.kv_heads == 0 else "GQA"

    @property
    def head_dim(self) -> int:
        return 576 if self.kv_heads == 0 else 128

    @property
    def head_dim_v(self) -> int:
        return 512 if self.kv_heads == 0 else 128

    @property
    def softmax_scale(self) -> float:
        return 1 / math.sqrt(192 if self.kv_heads == 0 else 128)


CASES = [
    Case(16, 0, 32, 8192, 64, 1),
    Case(16, 0, 32, 8192, 64, 4),
    Case(128, 0, 32, 8192, 64, 1),
    Case(16, 0, 1, 32768, 64, 1),
    Case(16, 0, 64, 8192, 64, 1, varied=True),
    Case(64, 8, 32, 8192, 32, 1),
    Case(64, 8, 32, 8192, 32, 4),
    Case(64, 8, 64, 8192, 32, 1, varied=True),
    Case(128, 0, 1, 32768, 64, 1),
    Case(128, 0, 128, 4096, 64, 1),
    Case(16, 0, 128, 4096, 64, 1),
    Case(16, 0, 16, 2048, 64, 1),
    Case(16, 0, 32, 8192, 32, 1),
    Case(128, 0, 16, 4096, 64, 4, varied=True),
    Case(64, 8, 1, 32768, 32, 1),
    Case(64, 8, 16, 2048, 32, 1),
    Case(64, 8, 128, 4096, 32, 1),
    Case(64, 8, 32, 8192, 16, 1, layout="NHD"),
]
"""The first eight have an aim: they are measured even if time runs out."""


class Workload:
    """The tensors of one case: one page table and query, several KV sets that share them."""

    def __init__(self, case: Case, l2_bytes: int) -> None:
        import torch

        from gpu_tests.reference.decode import workspace_bytes
        from gpu_tests.reference.paged import shuffled_page_table

        self.case = case
        generator = torch.Generator().manual_seed(case.batch * case.length)
        lengths = torch.full((case.batch,), case.length)
        if case.varied:
            lengths = torch.randint(case.q_len, case.length + 1, (case.batch,), generator=generator)
        self.lengths: list[int] = lengths.tolist()
        pages = sum(-(-length // case.page_size) for length in self.lengths)
        width = -(-case.length // case.page_size)
        self.block_tables = shuffled_page_table(self.lengths, case.page_size, pages, width=width).cuda()
        self.seq_lens = lengths.int().cuda()
        self.query = torch.randn(
            case.batch * case.q_len, case.heads, case.head_dim, device="cuda", dtype=torch.bfloat16
        )
        if case.kv_heads == 0:
            shape: tuple[int, ...] = (pages, case.page_size, 576)
        elif case.layout == "HND":
            shape = (pages, 2, case.kv_heads, case.page_size, 128)
        else:
            shape = (pages, 2, case.page_size, case.kv_heads, 128)
        count = max(2, math.ceil(4 * l2_bytes / (2 * math.prod(shape))))
        self.kv_sets = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(count)]
        self.out = self.query.new_empty(*self.query.shape[:2], case.head_dim_v)
        size = max(
            workspace_bytes(
                batch_size=case.batch,
                num_heads=case.heads,
                num_kv_heads=case.kv_heads or 1,
                head_dim_v=case.head_dim_v,
                max_q_len=case.q_len,
                max_seq_len=case.length,
                grid=grid,
            )
            for grid in ("split", "balanced")
        )
        self.workspace = torch.empty(size, dtype=torch.uint8, device="cuda")

    @property
    def launches(self) -> int:
        """Launches in a graph: each KV set equally often, at least `LAUNCHES`."""
        return len(self.kv_sets) * math.ceil(LAUNCHES / len(self.kv_sets))

    def bytes(self) -> int:
        case = self.case
        row = case.head_dim if case.kv_heads == 0 else 2 * case.kv_heads * case.head_dim
        return 2 * (sum(self.lengths) * row + self.query.numel() + self.out.numel())

    def flop(self) -> int:
        case = self.case
        keys = sum(length - case.q_len + token + 1 for length in self.lengths for token in range(case.q_len))
        return 2 * keys * case.heads * (case.head_dim + case.head_dim_v)

    def keys_and_values(self, request: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a request in the first KV set: [S, Hkv, D], [S, Hkv, Dv]."""
        case, length = self.case, self.lengths[request]
        pages = self.kv_sets[0][self.block_tables[request, : -(-length // case.page_size)].long()]
        if case.kv_heads == 0:
            latent = pages.flatten(0, 1)[:length, None]
            return latent, latent[..., :512]
        k, v = (pages if case.layout == "NHD" else pages.transpose(2, 3)).unbind(1)
        return k.flatten(0, 1)[:length], v.flatten(0, 1)[:length]

    def error(self) -> float:
        """The largest error of `out` relative to the largest output, over the first and the last request."""
        from gpu_tests.reference.oracle import attention

        worst = 0.0
        for request in (0, self.case.batch - 1):
            rows = slice(request * self.case.q_len, (request + 1) * self.case.q_len)
            k, v = self.keys_and_values(request)
            ref = attention(self.query[rows], k, v, scale=self.case.softmax_scale).out
            error = (self.out[rows].double() - ref).abs().max() / ref.abs().max()
            worst = max(worst, float(error.nan_to_num(math.inf)))
        return worst


def our_kernels(case: Case) -> dict[str, Callable[[Workload], Launch]]:
    """The kernels of `gpu_tests.reference` that can run the case on this GPU: name -> function that prepares a
    workload and returns its launch.
    """
    names = {"Nightcap Triton": "triton"}
    if case.family == "MLA" and _chosen(case) == "gluon":
        names["Nightcap Gluon"] = "gluon"
    grids = {"": "split", ", balanced": "balanced"} if case.batch >= 32 else {"": "split"}
    return {
        name + suffix: functools.partial(_ours, backend=backend, grid=grid)
        for name, backend in names.items()
        for suffix, grid in grids.items()
    }


def _chosen(case: Case) -> str:
    """The kernel that `auto` takes for an MLA case."""
    import torch

    from gpu_tests.reference import select

    query = torch.empty(1, case.heads, 576, dtype=torch.bfloat16, device="cuda")
    pages = torch.empty(1, case.page_size, 1, 576, dtype=torch.bfloat16, device="cuda")
    capability, triton = select.capability_of(query.device), select.triton_version()
    choice = select.choose(query, pages, head_dim_v=512, latent=True, capability=capability, triton=triton)
    return choice.kernel


def _ours(workload: Workload, backend: str, grid: str) -> Launch:
    """One of our kernels, called as an engine calls FlashInfer."""
    from gpu_tests.reference import decode

    case = workload.case
    common = {
        "workspace_buffer": workload.workspace,
        "block_tables": workload.block_tables,
        "seq_lens": workload.seq_lens,
        "max_seq_len": case.length,
        "bmm1_scale": case.softmax_scale,
        "lse": workload.query.new_empty(workload.query.shape[:2], dtype=workload.seq_lens.float().dtype),
        "backend": backend,
        "grid": grid,
    }
    if case.kv_heads == 0:
        query, out = (side.unflatten(0, (-1, case.q_len)) for side in (workload.query, workload.out))
        dims = {"qk_nope_head_dim": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
        return lambda i: decode.trtllm_batch_decode_with_kv_cache_mla(
            query, workload.kv_sets[i], out=out, **dims, **common
        )
    return lambda i: decode.trtllm_batch_decode_with_kv_cache(
        workload.query,
        workload.kv_sets[i],
        out=workload.out,
        kv_layout=case.layout,
        q_len_per_req=case.q_len,
        **common,
    )


@dataclass(frozen=True)
class Captured:
    """A graph of `launches` launches.

    `launch` is kept although it is not called again: buffers that it alone holds (a workspace, an LSE) are
    written at every replay, a graph does not own what was allocated before its capture, and the next capture
    gives unused memory back to the driver.
    """

    graph: CUDAGraph
    launch: Launch
    launches: int

    def microseconds(self) -> float:
        """Median over `REPLAYS` replays of the time per launch."""
        import torch

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
    import torch

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
    import torch

    from benchmarks.read_bandwidth import read_all

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


def measure(case: Case, limits: dict[str, float], l2_bytes: int) -> Iterator[dict[str, object]]:
    """One record a kernel that can run the case."""
    from benchmarks import attention_flashinfer, attention_torch

    workload = Workload(case, l2_bytes)
    floor = max(workload.bytes() / limits["read_gb_per_s"] / 1e3, workload.flop() / limits["matmul_tflop_per_s"] / 1e6)
    kernels = our_kernels(case) | attention_flashinfer.kernels(case) | attention_torch.kernels(case)
    records: dict[str, dict[str, object]] = {}
    graphs: dict[str, Captured] = {}
    for name, build in kernels.items():
        records[name] = {"case": {"family": case.family, **asdict(case)}, "kernel": name}
        workload.out.fill_(math.nan)
        try:
            launch = build(workload)
            graph = capture(launch, len(workload.kv_sets), workload.launches)
            produced = launch(0)  # the replay ended on another KV set
            workload.out.copy_(produced.reshape(workload.out.shape))
        except Exception as error:  # a vendor's kernel that does not run here is a result too
            records[name]["failed"] = f"{type(error).__name__}: {error}"
            continue
        records[name]["error"] = workload.error()
        if workload.error() <= ERROR_LIMIT:
            graphs[name] = graph
    times_of = rounds(graphs)
    flashinfer = [statistics.median(times) for name, times in times_of.items() if name.startswith("FlashInfer")]
    for name, times in times_of.items():
        median = statistics.median(times)
        records[name] |= {
            "flashinfer_us": min(flashinfer, default=None),
            "us": median,
            "rounds_us": times,
            "floor_us": floor,
            "fraction_of_floor": floor / median,
            "gb_per_s": workload.bytes() / median / 1e3,
            "tflop_per_s": workload.flop() / median / 1e6,
        }
    yield from records.values()


def machine() -> dict[str, object]:
    import torch

    properties = torch.cuda.get_device_properties(0)
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split("\n")[0].strip()
    versions = {}
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


def run(cases: list[Case], path: Path) -> None:
    """Measure the cases in order; `path` holds what is done after each, so that a time limit loses one."""
    from benchmarks import attention_flashinfer

    attention_flashinfer.build(cases)
    about = machine()
    limits = measure_limits()
    print(f"{about['card']}: {json.dumps(limits)}", flush=True)
    records: list[dict[str, object]] = []
    result = {
        "benchmark": "attention-decode",
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "machine": about,
        "limits": limits,
        "not_measured": attention_flashinfer.not_measured(),
        "records": records,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    for case in cases:
        for record in measure(case, limits, int(str(about["l2_bytes"]))):
            records.append(record)
            print(attention_report.line(record), flush=True)
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--json", type=Path, metavar="FILE", help="measure on this GPU and write FILE")
    what.add_argument("--report", action="store_true", help="write docs/gpu-results* from benchmarks/results/")
    parser.add_argument("--only", choices=["MLA", "GQA"], help="measure one family")
    arguments = parser.parse_args()
    if arguments.report:
        for name, text in attention_report.files(RESULTS).items():
            (Path("docs") / name).write_text(text, encoding="utf-8")
        return 0
    import torch

    if not torch.cuda.is_available():
        print("benchmarks.attention: needs an NVIDIA GPU; torch sees none", file=sys.stderr)
        return 2
    run([case for case in CASES if arguments.only in (None, case.family)], arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
