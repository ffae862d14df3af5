"""What this host's GPUs say of themselves: through NVML, or nvidia-smi where NVML cannot tell.

Each question is asked in a process of its own with a time limit, since the tools hang together with a GPU.
"""

from __future__ import annotations

import contextlib
import csv
import io
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from ci.plan import Value
from ci.runner import processes

QUERY_SECONDS = 15.0
_KILLED_SECONDS = 1.0
PROBE = (sys.executable, str(Path(__file__).parent / "gpu_probe.py"))
_SMI_FIELDS = (
    "index", "uuid", "name", "pci.bus_id", "compute_cap", "memory.total", "memory.used",
    "ecc.errors.uncorrected.volatile.total", "temperature.gpu", "clocks.sm", "mig.mode.current",
)  # fmt: skip
SMI = ("nvidia-smi", f"--query-gpu={','.join(_SMI_FIELDS)}", "--format=csv,noheader,nounits")
_SMI_BROKEN = re.compile(r"ERR!|Unknown Error|GPU is lost|requires reset", re.IGNORECASE)
_MIB = 1024**2


class Holder(Value):
    """A process that holds memory of a GPU. An empty command: it lives in another namespace of processes."""

    pid: int
    bytes: int | None = None
    command: str = ""


class MigSlice(Value):
    """One MIG device."""

    uuid: str
    memory_total: int
    memory_used: int


class Gpu(Value):
    """One GPU; None is what it did not tell. Memory in bytes, temperature in Celsius, clock in MHz."""

    index: int
    uuid: str
    name: str
    pci: str = ""
    sm: int | None = None
    memory_total: int | None = None
    memory_used: int | None = None
    holders: tuple[Holder, ...] = ()
    ecc_uncorrected: int | None = None
    remap_pending: bool = False
    remap_failed: bool = False
    throttle: int = 0
    temperature: int | None = None
    sm_clock: int | None = None
    mig: tuple[MigSlice, ...] | None = None
    problem: str = ""


class Facts(Value):
    """What could be learnt of the host's GPUs. `problem` says why it is not more."""

    source: Literal["nvml", "nvidia-smi"] = "nvml"
    driver: str = ""
    cuda: str = ""
    gpus: tuple[Gpu, ...] = ()
    problem: str = ""


def query(*, probe: Sequence[str] = PROBE, smi: Sequence[str] = SMI, seconds: float = QUERY_SECONDS) -> Facts:
    """Ask NVML; where that gives no GPU list, nvidia-smi. Never raises, never waits longer than both limits."""
    text, failure = _ask(probe, seconds)
    facts = Facts(problem=f"NVML: {failure}") if failure else _read_probe(text)
    if not facts.problem:
        return facts.model_copy(update={"gpus": tuple(map(_with_commands, facts.gpus))})
    text, failure = _ask(smi, seconds)
    if failure:
        return facts.model_copy(update={"problem": f"{facts.problem}; nvidia-smi: {failure}"})
    return parse_smi(text)


def parse_smi(text: str) -> Facts:
    """Facts from the text of SMI. The table may hold `ERR!` though nvidia-smi leaves with 0."""
    gpus: list[Gpu] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in next(csv.reader(io.StringIO(line)), [])]
        if len(cells) == len(_SMI_FIELDS):
            gpus.append(_smi_gpu(dict(zip(_SMI_FIELDS, cells, strict=True))))
        elif _SMI_BROKEN.search(line):
            gpus.append(Gpu(index=len(gpus), uuid="", name="", problem=line.strip()))
    problem = "" if gpus else f"nvidia-smi lists no GPU: {text.strip()[:300]}"
    return Facts(source="nvidia-smi", gpus=tuple(gpus), problem=problem)


def _ask(command: Sequence[str], seconds: float) -> tuple[str, str]:
    """(output, why there is none). A process that even SIGKILL does not end is left behind, not waited for."""
    try:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    except OSError as error:
        return "", f"{command[0]}: {error.strerror}"
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_KILLED_SECONDS)
        return "", f"no answer in {seconds:g} s"
    except BaseException:  # a stop signal: the question must not live on
        process.kill()
        raise
    # 14: "infoROM is corrupted", with all that is asked for still answered.
    if process.returncode not in (0, 14):
        return "", f"exit code {process.returncode}: {output.strip()[-300:]}"
    return output, ""


def _read_probe(text: str) -> Facts:
    try:
        return Facts.model_validate_json(text)
    except ValidationError:
        return Facts(problem=f"NVML: {text.strip()[-300:]}")


def _with_commands(gpu: Gpu) -> Gpu:
    holders = tuple(holder.model_copy(update={"command": processes.command_of(holder.pid)}) for holder in gpu.holders)
    return gpu.model_copy(update={"holders": holders})


def _smi_gpu(cells: Mapping[str, str]) -> Gpu:
    broken = [f"{name} is {cell}" for name, cell in cells.items() if _SMI_BROKEN.search(cell)]
    memory_total, memory_used = _number(cells["memory.total"]), _number(cells["memory.used"])
    fields: dict[str, Any] = {
        "index": _number(cells["index"]) or 0,
        "uuid": cells["uuid"] if cells["uuid"].startswith("GPU-") else "",
        "name": cells["name"],
        "pci": cells["pci.bus_id"] if ":" in cells["pci.bus_id"] else "",
        "sm": _number(cells["compute_cap"].replace(".", "")),
        "memory_total": None if memory_total is None else memory_total * _MIB,
        "memory_used": None if memory_used is None else memory_used * _MIB,
        "ecc_uncorrected": _number(cells["ecc.errors.uncorrected.volatile.total"]),
        "temperature": _number(cells["temperature.gpu"]),
        "sm_clock": _number(cells["clocks.sm"]),
        "problem": ", ".join(broken),
    }
    return Gpu(**fields)


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None
