"""Who ended a process for want of memory: our cgroup's counter (v1 and v2), then the kernel's log."""

from __future__ import annotations

import re
from pathlib import Path

from ci.runner import kernel_log

_CGROUPS = Path("/sys/fs/cgroup")
_COUNTER = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
_KILLED = re.compile(r"(?:Out of memory|Memory cgroup out of memory): Killed process (\d+) \(([^)]*)\)")


class Watch:
    """Knows the state of things before a unit; `evidence` tells what came on top."""

    def __init__(self) -> None:
        self._kills = kills()
        self._since = kernel_log.now()

    def evidence(self, signal: str) -> str:
        """`out of memory: ...` when the kernel ended one of our processes meanwhile.

        The log of the kernel names neighbours' processes as well: it counts when SIGKILL ended the unit.
        """
        if self._kills is not None and (kills() or 0) > self._kills:
            return "out of memory: the kernel ended a process of this cgroup (oom_kill)"
        for line in kernel_log.lines(since=self._since) if signal == "SIGKILL" else ():
            match = _KILLED.search(line)
            if match:
                return f"out of memory: the kernel ended process {match[1]} ({match[2]})"
        return ""


def kills(membership: Path = Path("/proc/self/cgroup"), mount: Path = _CGROUPS) -> int | None:
    """Processes of our cgroup that the kernel has ended for memory; None when no counter can be read."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            candidates = [mount / group.lstrip("/") / "memory.events", mount / "memory.events"]
        elif "memory" in controllers.split(","):
            candidates = [
                mount / "memory" / group.lstrip("/") / "memory.oom_control",
                mount / "memory" / "memory.oom_control",  # in a container its own group is the root
            ]
        else:
            continue
        for path in candidates:
            match = _COUNTER.search(path.read_text()) if path.is_file() else None
            if match:
                return int(match[1])
    return None
