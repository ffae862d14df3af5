"""Capture and replay of GPU work: a protocol, a CPU emulation of CUDA graphs, and real CUDA graphs."""

from __future__ import annotations

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
    available_drivers,
)
from gpu_tests.graphs.emulation import CpuGraphDriver
from gpu_tests.graphs.opaque import opaque

__all__ = [
    "Capabilities",
    "CaptureError",
    "Captured",
    "CpuGraphDriver",
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
