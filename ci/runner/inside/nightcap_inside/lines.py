"""Appending lines to a journal that several processes write at once.

A line is one `write` with O_APPEND, so lines of two writers never mix, and it is on disk before `append`
returns. Where the disk is full, the reserve (a file that the runner put aside beside the journal) is given up
and the line written again: the broken half before it stays behind as one unreadable line, which every reader
counts.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path


class Lines:
    """The journal as its writers see it. Raises OSError when a line cannot be written."""

    def __init__(self, path: Path, reserve: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._path = path
        self._reserve = reserve

    def append(self, text: str) -> None:
        """Put one line (its newline included) on disk."""
        data = text.encode(errors="replace")  # a lone surrogate, as undecodable bytes leave it, is no JSON
        try:
            self._write(data)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self._reserve.unlink(missing_ok=True)
            self._write(b"\n" + data)
        os.fdatasync(self._fd)

    def end_broken_line(self) -> None:
        """Put a newline after a line that a killed writer left half-written."""
        size = os.fstat(self._fd).st_size
        if size == 0:
            return
        with self._path.open("rb") as journal:
            journal.seek(size - 1)
            broken = journal.read(1) != b"\n"
        if broken:
            self.append("\n")

    def close(self) -> None:
        """Close the file; no line may follow."""
        os.close(self._fd)

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._fd, data) :]
