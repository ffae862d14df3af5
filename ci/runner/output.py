"""A log with a bound: its first and its last half, with a note of what was left out between them."""

from __future__ import annotations

from collections import deque
from pathlib import Path

LIMIT = 16 * 1024 * 1024
"""Bytes of one log; 200 MB of output must neither fill the disk nor the artifact."""


class BoundedLog:
    """Takes bytes as they come. The first half is in the file at once; the end is written by `close`."""

    def __init__(self, path: Path, limit: int = LIMIT) -> None:
        self._path = path
        self._half = limit // 2
        self._head = 0
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._dropped = 0
        self.lost = ""
        """Why a part of the log could not be written, such as a full disk."""
        self._file = path.open("wb", buffering=0)

    def write(self, data: bytes) -> None:
        """Take what the unit printed."""
        room = self._half - self._head
        if room > 0:
            self._append(data[:room])
            self._head += len(data[:room])
            data = data[room:]
        if data:
            self._keep(data)

    def close(self) -> None:
        """Write the note and the end."""
        if self._dropped:
            self._append(f"\n[nightcap: {self._dropped} bytes of output left out here]\n".encode())
        for chunk in self._tail:
            self._append(chunk)
        self._file.close()

    def _keep(self, data: bytes) -> None:
        self._tail.append(data)
        self._tail_bytes += len(data)
        while self._tail_bytes > self._half:
            surplus = self._tail_bytes - self._half
            first = self._tail.popleft()
            if len(first) > surplus:
                self._tail.appendleft(first[surplus:])
            gone = min(surplus, len(first))
            self._tail_bytes -= gone
            self._dropped += gone

    def _append(self, data: bytes) -> None:
        try:
            while data:
                data = data[self._file.write(data) or 0 :]
        except OSError as error:  # a full disk must not end the run: the journal matters more than the log
            self.lost = f"{self._path.name}: {error.strerror}"
