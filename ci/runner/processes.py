"""Starting the processes of a unit and ending every one of them, and no other.

A process belongs to a run when it descends from the runner, or when its environment holds the run's mark. The
first finds children that re-parent (the runner is their subreaper), the second those that outlive a killed
runner. Names are never looked at: a neighbour's job may run the very same command line. Signals go through
pidfds, so that a process id that was given to someone else meanwhile is never hit.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

MARK = "NIGHTCAP_MARK"
"""Environment variable that each process of a run inherits; its value is the run's id."""

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_POLL_SECONDS = 0.02
_KILL_SECONDS = 2.0
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Process:
    """One process at one moment.

    `started`, in clock ticks since boot, tells it from a later one of the same id.
    """

    pid: int
    parent: int
    started: int
    state: str
    command: str
    """Its command line where that was looked up, else its name in brackets."""


def become_subreaper() -> None:
    """Let orphaned descendants re-parent to this process in place of PID 1."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def start(command: Sequence[str], *, cwd: Path, env: Mapping[str, str], output: int) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own, both outputs to one descriptor.

    It dies with the runner, however that dies (PR_SET_PDEATHSIG), and is the first to go when memory runs
    out. Raises OSError when it cannot be started.
    """
    runner = os.getpid()

    def before_exec() -> None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != runner:  # it died before the line above
            os._exit(1)
        with contextlib.suppress(OSError):  # no /proc in some sandboxes; then memory is simply not steered
            Path("/proc/self/oom_score_adj").write_text("500")

    # preexec_fn is safe here: the runner has one thread.
    return subprocess.Popen(
        list(command),
        cwd=cwd,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
        preexec_fn=before_exec,
    )


def table() -> dict[int, Process]:
    """All processes that can be seen, by id, without their commands."""
    found = (_read(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {process.pid: process for process in found if process}


def children(pid: int) -> frozenset[int]:
    """Ids of a process's children."""
    return frozenset(process.pid for process in table().values() if process.parent == pid)


def of_run(mark: str, *, spare: frozenset[int] = frozenset(), keep: int | None = None) -> tuple[Process, ...]:
    """The live processes of this run: descendants of this process, and bearers of its mark.

    `spare` are children that this process had before; they and what descends from them are left alone unless
    they bear the mark. Dead children that re-parented to this process are collected on the way; `keep` is its
    Popen's to collect.
    """
    processes, me = table(), os.getpid()
    _reap(processes, me, keep)
    mine = _descendants(processes, me, spare)
    # Nothing of this run is older than this process; on a big host that spares thousands of files.
    young = [p for p in processes.values() if p.pid != me and p.started >= processes[me].started]
    return _live(p for p in young if p.pid in mine or mark_of(p.pid) == mark)


def bearing(mark: str) -> tuple[Process, ...]:
    """The live processes with a mark, wherever they descend from."""
    return _live(process for process in table().values() if mark_of(process.pid) == mark)


def mark_of(pid: int) -> str:
    """The run's id in the environment of a process; empty where there is none or it cannot be read."""
    prefix = f"{MARK}=".encode()
    environment = _contents(f"/proc/{pid}/environ")
    if prefix not in environment:
        return ""
    return next((v[len(prefix) :].decode() for v in environment.split(b"\0") if v.startswith(prefix)), "")


def command_of(pid: int) -> str:
    """The command line of a process; empty when it is gone or has none."""
    return " ".join(_contents(f"/proc/{pid}/cmdline").decode(errors="replace").split("\0")).strip()


def send(process: Process, number: int) -> bool:
    """Send a signal to exactly this process. False when it is gone or not ours to signal."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        now = _read(process.pid)
        if now is None or now.started != process.started:
            return False
        signal.pidfd_send_signal(pidfd, number)
        return True
    except OSError:
        return False
    finally:
        os.close(pidfd)


def end(find: Callable[[], tuple[Process, ...]], *, grace: float) -> tuple[Process, ...]:
    """End all processes that `find` finds: TERM, `grace` seconds to leave, KILL. Returns those that live on.

    Such a survivor hangs in the kernel (state D), as a process does whose GPU is lost.
    """
    _signal_until_gone(find, signal.SIGTERM, grace)
    return _signal_until_gone(find, signal.SIGKILL, _KILL_SECONDS)


def catches(pid: int, number: int) -> bool:
    """True when the process has a handler for that signal."""
    status = _contents(f"/proc/{pid}/status").decode(errors="replace")
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (number - 1) & 1)


def _signal_until_gone(find: Callable[[], tuple[Process, ...]], number: int, seconds: float) -> tuple[Process, ...]:
    deadline = time.monotonic() + seconds
    told: set[tuple[int, int]] = set()
    while alive := find():
        for process in alive:
            if (process.pid, process.started) not in told:
                told.add((process.pid, process.started))
                send(process, number)
        if time.monotonic() >= deadline:
            return alive
        time.sleep(_POLL_SECONDS)
    return ()


def _descendants(processes: Mapping[int, Process], root: int, spare: frozenset[int]) -> frozenset[int]:
    by_parent: dict[int, list[int]] = {}
    for process in processes.values():
        by_parent.setdefault(process.parent, []).append(process.pid)
    found: set[int] = set()
    left = [pid for pid in by_parent.get(root, []) if pid not in spare]
    while left:
        pid = left.pop()
        found.add(pid)
        left += by_parent.get(pid, [])
    return frozenset(found)


def _live(processes: Iterable[Process]) -> tuple[Process, ...]:
    alive = sorted((p for p in processes if p.state not in "ZX"), key=lambda p: p.pid)
    return tuple(replace(p, command=command_of(p.pid) or p.command) for p in alive)


def _reap(processes: Mapping[int, Process], me: int, keep: int | None) -> None:
    for process in processes.values():
        if process.parent == me and process.state == "Z" and process.pid != keep:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)


def _read(pid: int) -> Process | None:
    stat = _contents(f"/proc/{pid}/stat").decode(errors="replace")
    if not stat:
        return None
    name, _, rest = stat.partition("(")[2].rpartition(")")  # the name may hold spaces and brackets
    fields = rest.split()
    return Process(pid, int(fields[1]), int(fields[19]), fields[0], f"[{name}]")


def _contents(path: str) -> bytes:
    """What a file of /proc holds; empty when the process is gone or another user's."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl({option}, {value}): {os.strerror(error)}")
