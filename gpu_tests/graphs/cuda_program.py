"""Read a captured CUDA graph through the driver API, to compare two captures.

Kernel names, launch shapes and the kinds of the other nodes are compared.  Argument bytes are not: ATen
passes structs with uninitialised words, and private memory has other addresses in each capture, so they
always differ.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch

_NODE_TYPES = (
    "kernel",
    "memcpy",
    "memset",
    "host",
    "graph",
    "empty",
    "wait event",
    "event record",
    "semaphore signal",
    "semaphore wait",
    "alloc",
    "free",
    "batch mem op",
    "conditional",
)


@dataclass(frozen=True)
class GraphNode:
    """One node: its kind, and for kernels the name and launch shape."""

    kind: str
    name: str = ""
    grid: tuple[int, int, int] = (0, 0, 0)
    block: tuple[int, int, int] = (0, 0, 0)
    shared_bytes: int = 0

    def __str__(self) -> str:
        if self.kind != "kernel":
            return self.kind
        return f"kernel {self.name} grid {self.grid} block {self.block} shared {self.shared_bytes} B"


class _KernelNodeParams(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2 of cuda.h."""

    _fields_ = (
        ("func", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("kernel_params", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kern", ctypes.c_void_p),
        ("ctx", ctypes.c_void_p),
    )


class _Driver:
    """The handful of driver calls; raises RuntimeError with the CUresult when one fails."""

    def __init__(self) -> None:
        self._lib = ctypes.CDLL("libcuda.so.1")

    def call(self, name: str, *args: object) -> None:
        status = getattr(self._lib, name)(*args)
        if status != 0:
            raise RuntimeError(f"{name} gave CUresult {status}")


def program_of(graph: torch.cuda.CUDAGraph) -> list[GraphNode]:
    """The nodes of a graph captured with `keep_graph=True`, in the order of their creation."""
    driver = _Driver()
    raw = ctypes.c_void_p(graph.raw_cuda_graph())
    count = ctypes.c_size_t()
    driver.call("cuGraphGetNodes", raw, None, ctypes.byref(count))
    handles = (ctypes.c_void_p * count.value)()
    driver.call("cuGraphGetNodes", raw, handles, ctypes.byref(count))
    return [_node(driver, ctypes.c_void_p(handle)) for handle in handles]


def _node(driver: _Driver, handle: ctypes.c_void_p) -> GraphNode:
    kind = ctypes.c_int()
    driver.call("cuGraphNodeGetType", handle, ctypes.byref(kind))
    if kind.value != 0:
        known = 0 <= kind.value < len(_NODE_TYPES)
        return GraphNode(_NODE_TYPES[kind.value] if known else f"node type {kind.value}")
    params = _KernelNodeParams()
    driver.call("cuGraphKernelNodeGetParams_v2", handle, ctypes.byref(params))
    name = ctypes.c_char_p()
    if params.func:
        driver.call("cuFuncGetName", ctypes.byref(name), ctypes.c_void_p(params.func))
    else:
        driver.call("cuKernelGetName", ctypes.byref(name), ctypes.c_void_p(params.kern))
    grid, block = tuple(params.grid), tuple(params.block)
    return GraphNode("kernel", (name.value or b"").decode(), grid, block, params.shared_bytes)


def describe_differences(a: list[GraphNode], b: list[GraphNode]) -> list[str]:
    """One sentence for each node that differs; empty for equal programs."""
    differences = [
        f"node {i}: {x} in the first, {y} in the second" for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y
    ]
    if len(a) != len(b):
        differences.append(f"{len(a)} nodes in the first, {len(b)} in the second")
    return differences
