"""A signal on which a Python process writes the stacks of all its threads, even from a C loop that holds the
GIL.

A real-time signal, because tests use SIGUSR1 and SIGUSR2 themselves; the runner sends it only to processes
whose `SigCgt` says that they catch it, since it would end the others.
"""

from __future__ import annotations

import faulthandler
import re
import signal
from pathlib import Path

STACK_SIGNAL = int(signal.SIGRTMIN) + 7


OUT_OF_TIME = re.compile(r"^Timeout \(\d+:\d+:\d+", re.MULTILINE)
"""What faulthandler writes before the stacks when `Stacks.end_after` ends a process."""


class Stacks:
    """Writes the stacks of this process into a file: on STACK_SIGNAL, and when time is up."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a")
        faulthandler.register(STACK_SIGNAL, file=self._file, all_threads=True, chain=False)

    def end_after(self, seconds: float) -> None:
        """Write the stacks and leave the process at once (`_exit(1)`) in so many seconds.

        A thread in C does it, so no loop and no lock of Python can keep the process alive.
        """
        faulthandler.dump_traceback_later(seconds, exit=True, file=self._file)

    def go_on(self) -> None:
        """Take back `end_after`."""
        faulthandler.cancel_dump_traceback_later()
