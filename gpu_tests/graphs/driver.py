"""One protocol for capture and replay, so that a test is written once and runs on both worlds.

Two drivers implement `GraphDriver`: `emulation.CpuGraphDriver`, which models a CUDA graph on the CPU, and
`cuda.CudaGraphDriver`, which drives `torch.cuda.CUDAGraph`.  What they share is what a captured graph knows:
pointers and host numbers are frozen, the contents of memory are live.

`available_drivers()` lists what this machine can run.  Importing this module needs torch but no GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch


class GraphError(RuntimeError):
    """Base of everything that a driver refuses."""


class CaptureError(GraphError):
    """The captured function did what a CUDA graph cannot record.

    `op` names the call, `reason` says why it is refused, `site` is the user's `file:line`.
    """

    def __init__(self, op: str, reason: str, site: str) -> None:
        super().__init__(f"{site}: {op} cannot be captured: {reason}")
        self.op, self.reason, self.site = op, reason, site


class HostReadError(CaptureError):
    """A device value was read on the host (`.item()`, `.cpu()`, `print`, a shape that depends on data)."""


class HostCopyError(CaptureError):
    """Host memory that is not pinned, or a blocking copy, met a device tensor."""


class DeviceMixError(CaptureError):
    """A host tensor with dimensions was used as an operand of a device op; eager CUDA refuses it too."""


class UncapturableKernelError(CaptureError):
    """CUDA's implementation of the op synchronises or copies from the host by itself."""


class UnsupportedOpError(CaptureError):
    """The op is outside what graphs (a foreign generator) or the emulation (sparse tensors) can do."""


class SyncError(GraphError):
    """Code under `sync_guard(forbid=True)` made the host wait for the device."""


class ReplayError(GraphError):
    """A recorded op failed at replay (on a GPU: a device-side assert or an illegal address)."""


class DanglingPointerError(ReplayError):
    """The graph points at memory that was freed, or re-allocated, after capture."""


@dataclass(frozen=True)
class Capabilities:
    """What a driver can do to a graph's memory and what it can see.

    poison_private: memory private to the graph reads as NaN (integers: out of range) until the graph writes
    it.
    dangling: "named" = a replay over freed memory raises and names the tensor; "poison" = it reads poison.
    diff: "exact" = every op, shape and host number is compared; "names" = kernel names and launch shapes.
    sync_guard: host synchronisation in plain code is seen.
    opaque_kernels: `opaque(fn)` becomes one node.
    fatal_faults: an index out of range at replay kills the process instead of raising.
    """

    poison_private: bool
    dangling: Literal["named", "poison"]
    diff: Literal["exact", "names"]
    sync_guard: bool
    opaque_kernels: bool
    fatal_faults: bool


@dataclass(frozen=True)
class Sync:
    """One place where the host waited for the device: the call and the user's `file:line`."""

    op: str
    site: str


class Captured(Protocol):
    """A captured graph.  `out` is what the function returned; its tensors are rewritten by each
    `replay()`.
    """

    out: Any

    def replay(self) -> None:
        """Run the graph again: same pointers, same host numbers, the memory's contents of now.

        Raises DanglingPointerError or ReplayError (emulation); on CUDA a wild index is a device-side assert.
        """


class GraphDriver(Protocol):
    """What a test needs of a graph implementation."""

    device: torch.device
    capabilities: Capabilities

    def new_pool(self) -> Any:
        """A memory pool that several captures may share (as engines do for their batch sizes)."""

    def capture(self, fn: Callable[[], Any], pool: Any = None, warmup: int = 1) -> Captured:
        """Run `fn` eagerly `warmup` times, then record it once.  Recording has no effect on memory or RNG.

        Raises CaptureError for what a CUDA graph cannot record.
        """

    def to_host(self, t: torch.Tensor, pinned: bool = False) -> torch.Tensor:
        """A copy of `t` in host memory; `pinned` memory may be copied inside a graph with
        non_blocking=True.
        """

    def sync_guard(self, forbid: bool = False) -> AbstractContextManager[list[Sync]]:
        """Watch plain code for host synchronisation: yields the list of them; `forbid` raises SyncError."""

    def diff(self, a: Captured, b: Captured) -> Sequence[str]:
        """How two captured programs differ, in words; empty when they are the same program."""
