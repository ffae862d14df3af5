"""The same protocol on real `torch.cuda.CUDAGraph` (torch 2.11 and newer).

What the allocator hides is made visible: before a replay every block that nobody holds, in the graph's pool
and in the default pool, is filled with poison, so a freed buffer or an uninitialised temporary shows as NaN
rather than as the right value by luck.  A replay over wild indices is a device-side assert and costs the
process its CUDA context.

With `poison=False` a replay is the bare launch and does not synchronise: for timing.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from gpu_tests.graphs.cuda_program import describe_differences, program_of
from gpu_tests.graphs.driver import Capabilities, Captured, CaptureError, ReplayError, Sync, SyncError
from gpu_tests.graphs.sites import site_of_error

# As 16-bit units: NaN in fp16, bf16, fp32, fp64 and both fp8 formats, and a large number in every wider
# integer.
_POISON = 0x7FFF
_DEFAULT_POOL = (0, 0)

PoolId = tuple[int, int]
Span = tuple[int, int]


class CudaGraph:
    """A captured CUDA graph; see `driver.Captured`."""

    def __init__(self, graph: torch.cuda.CUDAGraph, out: Any, pool: PoolId, poison: bool) -> None:
        self.graph, self.out = graph, out
        self._pool, self._poison = pool, poison

    def replay(self) -> None:
        if not self._poison:
            self.graph.replay()
            return
        try:
            torch.cuda.synchronize()
            poison_spans(idle_spans(self._pool, _DEFAULT_POOL))
            self.graph.replay()
            torch.cuda.synchronize()
        except torch.AcceleratorError as error:
            raise ReplayError(f"the graph failed at replay: {error}") from error


class CudaGraphDriver:
    """Real CUDA graphs; see `driver.GraphDriver`."""

    device = torch.device("cuda")
    capabilities = Capabilities(
        poison_private=True,
        dangling="poison",
        diff="names",
        sync_guard=True,
        opaque_kernels=True,
        fatal_faults=True,
    )

    def __init__(self, poison: bool = True) -> None:
        self._poison = poison

    def __repr__(self) -> str:
        return "CudaGraphDriver"

    def new_pool(self) -> PoolId:
        return _pool_id(torch.cuda.graph_pool_handle())

    def capture(self, fn: Callable[[], Any], pool: PoolId | None = None, warmup: int = 1) -> CudaGraph:
        pool = pool or self.new_pool()
        _warm_up(fn, warmup)
        held_before, stream = set(held_spans(pool)), torch.cuda.current_stream()
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        try:
            with torch.cuda.graph(graph, pool=pool):  # type: ignore[arg-type]  # a NewType of the same tuple
                out = fn()
        except RuntimeError as error:
            # Ending a spoilt capture raises before torch goes back to the stream that was current.
            torch.cuda.set_stream(stream)
            refusal = _refusal(error)
            if refusal is None:
                raise
            raise refusal from error
        graph.instantiate()
        if self._poison:
            # Nothing ran yet, so what the capture allocated holds garbage: make it recognisable.
            new = [span for span in held_spans(pool) if span not in held_before]
            poison_spans([*new, *idle_spans(pool)])
        return CudaGraph(graph, out, pool, self._poison)

    def to_host(self, t: torch.Tensor, pinned: bool = False) -> torch.Tensor:
        host = t.detach().to("cpu", copy=True)
        return host.pin_memory() if pinned else host

    @contextmanager
    def sync_guard(self, forbid: bool = False) -> Iterator[list[Sync]]:
        syncs: list[Sync] = []
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("error" if forbid else "warn")
            try:
                yield syncs
            except RuntimeError as error:
                if "synchronizing CUDA operation" not in str(error):
                    raise
                site = site_of_error(error)
                raise SyncError(f"{site}: the host waits for the device here: {error}") from error
            finally:
                torch.cuda.set_sync_debug_mode(before)
                syncs += [
                    Sync(str(w.message), f"{w.filename}:{w.lineno}")
                    for w in caught
                    if "synchronizing CUDA operation" in str(w.message)
                ]

    def diff(self, a: Captured, b: Captured) -> Sequence[str]:
        assert isinstance(a, CudaGraph)
        assert isinstance(b, CudaGraph)
        return describe_differences(program_of(a.graph), program_of(b.graph))


def _warm_up(fn: Callable[[], Any], times: int) -> None:
    """Eager runs on a side stream, as torch asks for before a capture."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(times):
            fn()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()


def _refusal(error: RuntimeError) -> CaptureError | None:
    """The first failure behind `error` if CUDA refused to capture; None if it is any other error of the
    function.

    A refused call raises inside the block, and ending the spoilt capture raises once more on top of it.
    """
    root: BaseException = error
    while root.__context__ is not None:
        root = root.__context__
    refused = any(isinstance(e, torch.AcceleratorError) or "captur" in str(e) for e in (error, root))
    if not refused:
        return None
    reason = str(root).strip().splitlines()[0] if str(root).strip() else type(root).__name__
    return CaptureError("a call", reason, site_of_error(root))


def _pool_id(handle: Any) -> PoolId:
    first, second = handle
    return int(first), int(second)


def _spans(pools: Sequence[PoolId], state: str) -> list[Span]:
    return [
        (block["address"], block["size"])
        for segment in torch.cuda.memory_snapshot()
        if tuple(segment["segment_pool_id"]) in pools
        for block in segment["blocks"]
        if block["state"] == state
    ]


def idle_spans(*pools: PoolId) -> list[Span]:
    """(address, bytes) of the blocks of the pools that nobody holds."""
    return _spans(pools, "inactive")


def held_spans(*pools: PoolId) -> list[Span]:
    """(address, bytes) of the blocks of the pools that a tensor holds."""
    return _spans(pools, "active_allocated")


def poison_spans(spans: Sequence[Span]) -> None:
    """Fill raw device memory with poison and wait until it is done."""
    memset = ctypes.CDLL("libcuda.so.1").cuMemsetD16_v2
    memset.argtypes = [ctypes.c_uint64, ctypes.c_ushort, ctypes.c_size_t]
    for address, size in spans:
        status = memset(address, _POISON, size // 2)
        if status != 0:
            raise ReplayError(f"cuMemsetD16 over {size} bytes at {address:#x} gave CUresult {status}")
    torch.cuda.synchronize()
