"""CUDA graphs emulated on the CPU; `docs/graph-emulation.md` has the semantics and the limits.

cpu_driver  the driver: graphs, pools, sync guard        host_rules  which calls make the host touch device memory
recorder    a capture: nodes, what is saved and undone   rules       the same as data: ops with reasons
memory      storages, operands, poison, host marks       program_diff  two captures compared, in words
"""

from __future__ import annotations

from gpu_tests.graphs.emulation.cpu_driver import CpuGraph, CpuGraphDriver

__all__ = ["CpuGraph", "CpuGraphDriver"]
