"""SIGINT, SIGTERM and SIGHUP as something to wait for, together with other descriptors."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self

_STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """A stop signal came while something could be dropped at once."""


class Interrupts:
    """While entered, a stop signal is remembered in `received` and makes `descriptor` readable.

    GitHub cancels with SIGINT and, 7.5 s later, SIGTERM: the first counts, later ones change nothing. Only
    the main thread may enter it.
    """

    def __init__(self) -> None:
        self.received = ""
        self._raises = False
        self.descriptor, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        self._handlers = {number: signal.signal(number, self._on_signal) for number in _STOP}
        return self

    @contextmanager
    def raising(self) -> Iterator[None]:
        """Within, a stop signal raises Interrupted: for waits that have no descriptor."""
        self._raises = True
        try:
            if self.received:
                raise Interrupted(self.received)
            yield
        finally:
            self._raises = False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self.descriptor)
        os.close(self._write)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self.received:
            self.received = signal.Signals(number).name
            os.write(self._write, b"!")  # stays readable: whoever waits next sees it as well
        if self._raises:
            self._raises = False
            raise Interrupted(self.received)
