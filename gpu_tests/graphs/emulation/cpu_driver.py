"""A CUDA graph on the CPU: pointers and host numbers are frozen at capture, the contents of memory are live.

driver = CpuGraphDriver()
graph = driver.capture(lambda: step(q, lengths, out))
lengths.copy_(new_lengths)
graph.replay()
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from gpu_tests.graphs.driver import Capabilities, Captured, Sync, SyncError
from gpu_tests.graphs.emulation.host_rules import Finding, HostAwareMode, PythonCalls
from gpu_tests.graphs.emulation.memory import HOST, OnDangling
from gpu_tests.graphs.emulation.program_diff import describe_differences
from gpu_tests.graphs.emulation.recorder import Program, Recorder
from gpu_tests.graphs.sites import user_site

# Replays collect garbage.  What the modules loaded by now hold never becomes garbage; out of view, a
# collection takes milliseconds instead of 65.
gc.freeze()


class CpuGraph:
    """A captured program; see `driver.Captured`."""

    def __init__(self, program: Program, out: Any, pool: CpuPool, on_dangling: OnDangling) -> None:
        self.program, self.out = program, out
        self._pool, self._on_dangling = pool, on_dangling
        self._replayed = False
        if on_dangling == "keep":
            for block in program.external:
                block.keep_alive()

    def replay(self) -> None:
        # A buffer that only a reference cycle holds is as good as freed.  After the first replay, only
        # young objects are looked at: a full collection takes longer than most graphs.
        gc.collect(1 if self._replayed else 2)
        self._replayed = True
        for block in self.program.external:
            if block.storage() is None:
                site = next((n.site for n in self.program.nodes if _uses(n, block)), "<unknown>")
                block.resolve_dangling(self._on_dangling, site)
        self._pool.clobber_later_graphs(self)
        for block in self.program.uninitialised:
            block.poison()
        with torch.no_grad():
            for node in self.program.nodes:
                node.run()


def _uses(node: Any, block: Any) -> bool:
    return any(getattr(leaf, "block", None) is block for leaf in node.leaves)


class CpuPool:
    """Memory shared by several captures, in the worst case that CUDA's allocator allows.

    A block of an earlier graph that nobody held any more when a later graph was captured may have been
    given to that later graph.  A replay of the earlier one then overwrites the later one's memory, also its
    live outputs. A replay of the later one only writes where the earlier graph's dead blocks were, which
    nobody can see.
    """

    def __init__(self) -> None:
        self._overlapping: list[tuple[weakref.ref[CpuGraph], weakref.ref[CpuGraph]]] = []
        self._graphs: list[weakref.ref[CpuGraph]] = []

    def add(self, graph: CpuGraph) -> None:
        for ref in self._graphs:
            earlier = ref()
            if earlier is not None and any(not b.in_use_elsewhere() for b in earlier.program.private):
                self._overlapping.append((ref, weakref.ref(graph)))
        self._graphs.append(weakref.ref(graph))

    def clobber_later_graphs(self, graph: CpuGraph) -> None:
        for earlier, later in self._overlapping:
            victim = later()
            if earlier() is graph and victim is not None:
                for block in victim.program.private:
                    block.poison()


class _SyncGuard(HostAwareMode):
    """Runs everything as usual and notes where the host would wait for a device."""

    def __init__(self, forbid: bool) -> None:
        super().__init__()
        self.syncs: list[Sync] = []
        self._forbid = forbid

    def found(self, finding: Finding) -> None:
        if not finding.waits:
            return
        sync = Sync(finding.op, user_site())
        if self._forbid:
            raise SyncError(f"{sync.site}: {sync.op} makes the host wait for the device: {finding.reason}")
        self.syncs.append(sync)

    def run(self, func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return func(*args, **kwargs)


class CpuGraphDriver:
    """Emulation of CUDA graphs; see `driver.GraphDriver`.

    on_dangling: what a replay does with an outside tensor that was freed after capture: "raise", read
    "poison", or "keep" it alive from capture on.
    cuda_kernel_limits: refuse ops whose CUDA kernels cannot be captured (`rules.UNCAPTURABLE_OPS`); without
    it the emulation itself can be measured on those ops too.
    """

    device = torch.device("cpu")
    capabilities = Capabilities(
        poison_private=True,
        dangling="named",
        diff="exact",
        sync_guard=True,
        opaque_kernels=True,
        fatal_faults=False,
    )

    def __init__(self, on_dangling: OnDangling = "raise", cuda_kernel_limits: bool = True) -> None:
        self._on_dangling, self._cuda_kernel_limits = on_dangling, cuda_kernel_limits

    def __repr__(self) -> str:
        return "CpuGraphDriver"

    def new_pool(self) -> CpuPool:
        return CpuPool()

    def capture(self, fn: Callable[[], Any], pool: CpuPool | None = None, warmup: int = 1) -> CpuGraph:
        for _ in range(warmup):
            fn()
        with Recorder(self._cuda_kernel_limits).recording() as program:
            out = fn()
        pool = pool or CpuPool()
        graph = CpuGraph(program, out, pool, self._on_dangling)
        pool.add(graph)
        return graph

    def to_host(self, t: torch.Tensor, pinned: bool = False) -> torch.Tensor:
        return HOST.mark(t.detach().cpu().clone(), pinned)  # .cpu() is what a capture and the guard see

    @contextmanager
    def sync_guard(self, forbid: bool = False) -> Iterator[list[Sync]]:
        guard = _SyncGuard(forbid)
        with PythonCalls(guard), guard:
            yield guard.syncs

    def diff(self, a: Captured, b: Captured) -> Sequence[str]:
        assert isinstance(a, CpuGraph)
        assert isinstance(b, CpuGraph)
        return describe_differences(a.program, b.program)
