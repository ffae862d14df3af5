"""The kernel's log since a moment, read without waiting; empty where this user may not read it."""

from __future__ import annotations

import os
import time
from pathlib import Path

_KMSG = Path("/dev/kmsg")
_RECORD_BYTES = 8192


def now() -> float:
    """The clock of the kernel's log: seconds since boot, without suspends."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def lines(*, since: float, path: Path = _KMSG) -> list[str]:
    """Messages logged at or after `since` (see `now`)."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        return [text for at, text in _records(descriptor) if at >= since]
    finally:
        os.close(descriptor)


def _records(descriptor: int) -> list[tuple[float, str]]:
    """(seconds since boot, text) of each record `priority,sequence,microseconds,flags;text`."""
    records: list[tuple[float, str]] = []
    while True:
        try:
            data = os.read(descriptor, _RECORD_BYTES)
        except BrokenPipeError:  # records were overwritten before they could be read
            continue
        except OSError:
            return records
        if not data:
            return records
        head, _, text = data.decode(errors="replace").partition(";")
        fields = head.split(",")
        if len(fields) >= 3 and fields[2].isdigit():
            records.append((int(fields[2]) / 1e6, text.split("\n")[0]))
