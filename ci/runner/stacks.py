"""What the processes of a unit are doing: stacks of the Python ones, the kernel's view of the others."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path

from ci.runner import processes
from ci.runner.inside.nightcap_inside.stacks import STACK_SIGNAL

_PY_SPY_SECONDS = 2.0
_WRITING_SECONDS = 0.05
_ALL_SECONDS = 3.0
"""For all processes together: the runner has other things to watch."""


def dump(running: Iterable[processes.Process], path: Path, *, stop: Callable[[], bool]) -> None:
    """Append to the file what each process is doing, until `stop` says that the runner has to leave.

    Never raises for a process that left meanwhile.
    """
    py_spy = shutil.which("py-spy")
    deadline = time.monotonic() + _ALL_SECONDS
    for process in running:
        if time.monotonic() > deadline or stop():
            _append(path, "\n== no time for the other processes\n")
            return
        _append(path, f"\n== {datetime.now(UTC):%H:%M:%S} pid {process.pid}: {process.command[:500]}\n")
        _append(path, f"state {process.state}, waits in {_kernel(process.pid, 'wchan') or 'user code'}\n")
        if processes.catches(process.pid, STACK_SIGNAL) and processes.send(process, STACK_SIGNAL):
            time.sleep(_WRITING_SECONDS)  # the process appends to the same file by itself
        elif py_spy:
            _append(path, _spy(py_spy, process.pid))


def _spy(py_spy: str, pid: int) -> str:
    command = [py_spy, "dump", "--pid", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PY_SPY_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"py-spy gave no answer in {_PY_SPY_SECONDS:.0f} s\n"
    return done.stdout or done.stderr


def _kernel(pid: int, name: str) -> str:
    try:
        text = Path(f"/proc/{pid}/{name}").read_text().strip()
    except OSError:
        return ""
    return "" if text == "0" else text


def _append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)
