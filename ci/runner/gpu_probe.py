"""Asks NVML for the state of the GPUs and prints it as JSON.

A process of its own, because NVML can hang for ever; it needs `nvidia-ml-py` and nothing of ours, so that it
starts fast. What one GPU cannot answer is null, what it answers with an error is told in its `problem`; NVML
itself being absent is told in the `problem` of the whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


def facts() -> dict[str, Any]:
    """Driver, CUDA and GPUs, as `ci.runner.gpu_facts.Facts` reads them."""
    try:
        import pynvml as nvml
    except ImportError:
        return {"problem": "nvidia-ml-py is not installed (extra `gpu`)", "source": "nvml"}
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return {"problem": f"NVML: {error}", "source": "nvml"}
    cuda = nvml.nvmlSystemGetCudaDriverVersion_v2()
    count = nvml.nvmlDeviceGetCount()
    return {
        "source": "nvml",
        "driver": nvml.nvmlSystemGetDriverVersion(),
        "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}",
        "gpus": [_gpu(nvml, index) for index in range(count)],
    }


def _gpu(nvml: Any, index: int) -> dict[str, Any]:
    try:
        return _healthy_gpu(nvml, index, nvml.nvmlDeviceGetHandleByIndex(index))
    except nvml.NVMLError as error:
        return {"index": index, "uuid": "", "name": "", "problem": str(error)}


def _healthy_gpu(nvml: Any, index: int, handle: Any) -> dict[str, Any]:
    problems: list[str] = []

    def ask(query: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return query(handle, *arguments)
        except nvml.NVMLError_NotSupported:
            return None
        except nvml.NVMLError as error:
            problems.append(f"{query.__name__}: {error}")
            return None

    memory = ask(_memory(nvml))
    major_minor = ask(nvml.nvmlDeviceGetCudaComputeCapability)
    remapped = ask(nvml.nvmlDeviceGetRemappedRows)
    mode = ask(nvml.nvmlDeviceGetMigMode)
    uncorrected, volatile = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    return {
        "index": index,
        "uuid": nvml.nvmlDeviceGetUUID(handle),
        "name": nvml.nvmlDeviceGetName(handle),
        "pci": nvml.nvmlDeviceGetPciInfo(handle).busId,
        "sm": major_minor and major_minor[0] * 10 + major_minor[1],
        "memory_total": memory and memory.total,
        "memory_used": memory and memory.used,
        "holders": [
            {"pid": process.pid, "bytes": process.usedGpuMemory}
            for process in ask(nvml.nvmlDeviceGetComputeRunningProcesses) or []
        ],
        "ecc_uncorrected": ask(nvml.nvmlDeviceGetTotalEccErrors, uncorrected, volatile),
        "remap_pending": bool(remapped and remapped[2]),
        "remap_failed": bool(remapped and remapped[3]),
        "throttle": ask(_throttle(nvml)) or 0,
        "temperature": ask(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
        "sm_clock": ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM),
        "mig": _mig(nvml, handle) if mode and mode[0] else None,
        "problem": "; ".join(problems),
    }


def _memory(nvml: Any) -> Callable[[Any], Any]:
    def memory(handle: Any) -> Any:
        try:  # version 2 does not count what the driver keeps for itself as used
            return nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        except nvml.NVMLError_FunctionNotFound:
            return nvml.nvmlDeviceGetMemoryInfo(handle)

    return memory


def _throttle(nvml: Any) -> Callable[[Any], Any]:
    newer = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    reasons: Callable[[Any], Any] = newer or nvml.nvmlDeviceGetCurrentClocksThrottleReasons
    return reasons


def _mig(nvml: Any, handle: Any) -> list[dict[str, Any]]:
    slices = []
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except nvml.NVMLError_NotFound:
            continue
        memory = nvml.nvmlDeviceGetMemoryInfo(part)
        slices.append({"uuid": nvml.nvmlDeviceGetUUID(part), "memory_total": memory.total, "memory_used": memory.used})
    return slices


if __name__ == "__main__":
    print(json.dumps(facts()))
