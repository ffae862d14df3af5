"""A signal on which a Python process writes the stacks of all its threads, even from a C loop that holds the
GIL.

A real-time signal, because tests use SIGUSR1 and SIGUSR2 themselves; the runner sends it only to processes
whose `SigCgt` says that they catch it, since it would end the others.
"""

from __future__ import annotations

import faulthandler
import signal
from pathlib import Path

STACK_SIGNAL = int(signal.SIGRTMIN) + 7


def dump_on_signal(path: Path) -> None:
    """From now on, STACK_SIGNAL makes this process append its stacks to the file, which stays open."""
    faulthandler.register(STACK_SIGNAL, file=path.open("a"), all_threads=True, chain=False)
