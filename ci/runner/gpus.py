"""Whether the GPUs that are assigned to this run are fit for tests.

    assigned(visible, gpus)      which GPUs CUDA_VISIBLE_DEVICES means: indices, UUIDs, MIG devices
    judge(facts, mine, need)     pure: each problem in a line, worst first
    doctor(visible, need)        both, on what the host says now

Only assigned GPUs are judged: the others belong to neighbours. A holder of memory is named, never ended.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from ci.plan import Value
from ci.runner import kernel_log
from ci.runner.gpu_facts import Facts, Gpu, Holder, query

Status = Literal["ok", "degraded", "bad"]

BUSY_BYTES = 1024**3
"""Memory in use above this, on a GPU that should be idle, belongs to somebody."""

# "XID errors" of NVIDIA's deployment guide. Those an application can cause by itself (13, 31, 43, 45...) say
# nothing of the host; 45 is what cleaning up after a killed process looks like.
_XID_BAD = {
    48: "double-bit memory error",
    62: "halt of an internal controller",
    64: "row remapping failed",
    74: "NVLink error",
    79: "fell off the bus",
    95: "uncontained memory error",
    119: "no answer from the GPU's firmware",
    120: "error in the GPU's firmware",
    140: "unrecovered memory error",
}
_XID_DEGRADED = {63: "a row was remapped", 92: "many single-bit memory errors", 94: "contained memory error"}
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)(?:, (.*))?")

_THROTTLE = {  # nvml.h, nvmlClocksEventReasons
    0x8: "hardware slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x20: "software thermal slowdown",
}


class Need(Value):
    """What the job's pool promises."""

    gpus: int = 0
    sm: int | None = None


class Problem(Value):
    """Something about the host that a person should know."""

    status: Status
    text: str
    passing: bool = False
    """True when it may go away by itself, such as memory in use."""


class HostReport(Value):
    """Whether this host's assigned GPUs are fit, and why not."""

    status: Status
    host: str
    facts: Facts
    assigned: tuple[str, ...]
    """UUIDs, of MIG devices where they are assigned."""
    problems: tuple[Problem, ...]
    seconds: float

    @property
    def assigned_gpus(self) -> tuple[Gpu, ...]:
        """The GPUs of `assigned`, each once."""
        mine = set(self.assigned)
        return tuple(gpu for gpu in self.facts.gpus if mine & set(_uuids(gpu)))

    @property
    def texts(self) -> str:
        """The problems, worst first, in one line."""
        return "; ".join(problem.text for problem in self.problems)


class NotAssignable(ValueError):
    """CUDA_VISIBLE_DEVICES names something that this host does not have."""


def doctor(visible: str | None, need: Need, *, since: float = 0.0, ask: Callable[[], Facts] = query) -> HostReport:
    """The state of the GPUs that `visible` (CUDA_VISIBLE_DEVICES; None: all) assigns.

    `since`: by the clock of the kernel's log, from when on an Xid counts; 0 is the boot.
    """
    started = time.monotonic()
    facts = ask()
    try:
        mine = assigned(visible, facts.gpus)
        problems = judge(facts, mine, need, kernel_log.lines(since=since))
    except NotAssignable as error:
        mine, problems = (), (_bad(facts.problem or str(error)),)
    return HostReport(
        status=problems[0].status if problems else "ok",
        host=socket.gethostname(),
        facts=facts,
        assigned=tuple(uuid for _, uuid in mine),
        problems=problems,
        seconds=time.monotonic() - started,
    )


def assigned(visible: str | None, gpus: Sequence[Gpu]) -> tuple[tuple[Gpu, str], ...]:
    """(GPU, UUID of it or of its MIG device) for each entry of CUDA_VISIBLE_DEVICES; None assigns all.

    CUDA itself ignores whatever follows an entry that it does not know; here that is an error, and so is a GPU
    named twice. Raises NotAssignable.
    """
    if visible is None:
        return tuple((gpu, uuid) for gpu in gpus for uuid in _uuids(gpu))
    if visible.strip() in ("", "-1", "NoDevFiles"):
        return ()
    found = tuple(pair for entry in visible.split(",") for pair in _find(entry.strip(), gpus, visible))
    uuids = [uuid for _, uuid in found]
    if len(set(uuids)) < len(uuids):
        raise NotAssignable(f"CUDA_VISIBLE_DEVICES={visible} names a GPU twice")
    return found


def judge(facts: Facts, mine: Sequence[tuple[Gpu, str]], need: Need, kernel: Iterable[str] = ()) -> tuple[Problem, ...]:
    """What is wrong with the assigned GPUs for this need, worst first."""
    found = [_bad(facts.problem)] if facts.problem and need.gpus else []
    if not facts.problem and len(mine) < need.gpus:
        found.append(_bad(f"{len(mine)} of {need.gpus} GPUs"))
    gpus = {gpu.index: gpu for gpu, _ in mine}
    for gpu in gpus.values():
        found += _judge_gpu(gpu, need)
    found += _judge_memory(mine)
    found += _judge_xids(gpus.values(), kernel)
    order: Mapping[Status, int] = {"bad": 0, "degraded": 1, "ok": 2}
    return tuple(sorted(found, key=lambda problem: order[problem.status]))


def _uuids(gpu: Gpu) -> tuple[str, ...]:
    return tuple(part.uuid for part in gpu.mig) if gpu.mig else (gpu.uuid,)


def _find(entry: str, gpus: Sequence[Gpu], visible: str) -> tuple[tuple[Gpu, str], ...]:
    if entry.isascii() and entry.isdigit():
        found = [(gpu, uuid) for gpu in gpus if gpu.index == int(entry) for uuid in _uuids(gpu)]
    elif entry.startswith("MIG-"):
        found = [(gpu, part.uuid) for gpu in gpus for part in gpu.mig or () if part.uuid.startswith(entry)]
    elif entry.startswith("GPU-"):
        found = [(gpu, gpu.uuid) for gpu in gpus if gpu.uuid.startswith(entry)]
    else:
        found = []
    if not found or (not entry.isdigit() and len(found) > 1):
        has = ", ".join(f"{gpu.index} ({uuid})" for gpu in gpus for uuid in _uuids(gpu)) or "no GPU"
        what = "several GPUs" if found else "nothing"
        raise NotAssignable(f"CUDA_VISIBLE_DEVICES={visible}: {entry!r} names {what} here; this host has {has}")
    return tuple(found)


def _judge_gpu(gpu: Gpu, need: Need) -> list[Problem]:
    name = f"GPU {gpu.index}"
    found = []
    if gpu.problem:
        found.append(_bad(f"{name} answers with an error: {gpu.problem}"))
    if need.sm is not None and gpu.sm is not None and gpu.sm != need.sm:
        found.append(_bad(f"{name} ({gpu.name}) is SM {gpu.sm}, the pool says {need.sm}"))
    if gpu.remap_failed:
        found.append(_bad(f"{name}: remapping a broken memory row failed"))
    if gpu.remap_pending:
        found.append(_degraded(f"{name}: a memory row waits for a reset to be remapped"))
    if gpu.ecc_uncorrected:
        # Recovered by remapping more often than not (gpud#108), so no reason to refuse by itself.
        found.append(_degraded(f"{name}: {gpu.ecc_uncorrected} uncorrected memory errors since the last reset"))
    slow = [text for bit, text in _THROTTLE.items() if gpu.throttle & bit]
    if slow:
        found.append(_degraded(f"{name} runs slower: {', '.join(slow)} ({gpu.temperature} C)"))
    return found


def _judge_memory(mine: Sequence[tuple[Gpu, str]]) -> list[Problem]:
    found = []
    for gpu, uuid in mine:
        part = next((part for part in gpu.mig or () if part.uuid == uuid), None)
        used = part.memory_used if part else gpu.memory_used
        if used is not None and used > BUSY_BYTES:
            total = part.memory_total if part else gpu.memory_total
            of = f" of {total / 1024**3:.0f}" if total else ""
            holders = "" if part else _holders(gpu.holders)
            text = f"GPU {gpu.index} ({uuid}): {used / 1024**3:.1f}{of} GiB in use{holders}"
            found.append(Problem(status="bad", text=text, passing=True))
    return found


def _holders(holders: Sequence[Holder]) -> str:
    if not holders:
        return ", held by a foreign process that cannot be seen from here (another namespace)"
    names = (f"pid {h.pid} ({h.command[:200] or 'another namespace'})" for h in holders)
    return f", held by a foreign process: {', '.join(names)}"


def _judge_xids(gpus: Iterable[Gpu], kernel: Iterable[str]) -> list[Problem]:
    places = {_bus(gpu.pci): gpu.index for gpu in gpus if gpu.pci}
    found = []
    for line in kernel:
        match = _XID.search(line)
        if match is None or _bus(match[1]) not in places:
            continue
        code, name = int(match[2]), f"GPU {places[_bus(match[1])]}"
        if code in _XID_BAD:
            found.append(_bad(f"{name}: {_XID_BAD[code]} ({match[0]})"))
        elif code in _XID_DEGRADED:
            found.append(_degraded(f"{name}: {_XID_DEGRADED[code]} ({match[0]})"))
    return found


def _bus(pci: str) -> str:
    """`00000000:3B:00.0` and `0000:3b:00` are the same place."""
    domain, _, rest = pci.lower().partition(":")
    return f"{int(domain or '0', 16):x}:{rest.partition('.')[0]}"


def _bad(text: str) -> Problem:
    return Problem(status="bad", text=text)


def _degraded(text: str) -> Problem:
    return Problem(status="degraded", text=text)
