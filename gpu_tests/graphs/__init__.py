"""Capture and replay of GPU work: a protocol, a CPU emulation of CUDA graphs, and real CUDA graphs."""

from __future__ import annotations

import torch

from gpu_tests.graphs.cuda import CudaGraphDriver
from gpu_tests.graphs.driver import (
    Capabilities,
    Captured,
    CaptureError,
    DanglingPointerError,
    DeviceMixError,
    GraphDriver,
    GraphError,
    HostCopyError,
    HostReadError,
    ReplayError,
    Sync,
    SyncError,
    UncapturableKernelError,
    UnsupportedOpError,
)
from gpu_tests.graphs.emulation import CpuGraphDriver
from gpu_tests.graphs.opaque import opaque

__all__ = [
    "Capabilities",
    "CaptureError",
    "Captured",
    "CpuGraphDriver",
    "CudaGraphDriver",
    "DanglingPointerError",
    "DeviceMixError",
    "GraphDriver",
    "GraphError",
    "HostCopyError",
    "HostReadError",
    "ReplayError",
    "Sync",
    "SyncError",
    "UncapturableKernelError",
    "UnsupportedOpError",
    "available_drivers",
    "opaque",
]


def available_drivers() -> list[GraphDriver]:
    """The emulation always; real CUDA graphs as well where torch sees a GPU."""
    return [CpuGraphDriver(), *([CudaGraphDriver()] if torch.cuda.is_available() else [])]
