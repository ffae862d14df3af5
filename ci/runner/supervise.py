"""One process of a unit from its start until nothing of it is left: output, budget, silence, stop signals.

Half-way through the budget the stacks of its Python processes are written down, since a hang that is only
ended leaves no clue; at the end they get TERM, time to leave, and KILL. All times are by the monotonic clock.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ci.runner import processes, stacks
from ci.runner.inside.nightcap_inside.stacks import OUT_OF_TIME
from ci.runner.interrupts import Interrupts
from ci.runner.output import LIMIT, BoundedLog

STOPPED_GRACE = 2.0
"""Seconds to leave after TERM when the runner itself was told to stop: GitHub gives it 10 in all."""

Cause = Literal["exited", "timed-out", "silent", "interrupted"]


@dataclass(frozen=True)
class Limits:
    """Seconds that a process may take, may be silent, and gets to leave after TERM."""

    budget: float
    silence: float
    grace: float = 3.0
    log_bytes: int = LIMIT


@dataclass(frozen=True)
class Task:
    """What to run and where its traces go."""

    command: Sequence[str]
    cwd: Path
    env: Mapping[str, str]
    log: Path
    stacks: Path
    signs_of_life: Path
    """A file that grows as tests start and end, whatever they print."""


@dataclass(frozen=True)
class Ended:
    """How a process ended, and what it left behind."""

    cause: Cause
    seconds: float
    exit_code: int | None = None
    signal: str = ""
    left: tuple[processes.Process, ...] = ()
    """Processes that outlived the unit's main process, since ended."""
    survivors: tuple[processes.Process, ...] = ()
    """Processes that even KILL did not end."""
    stacks: Path | None = None
    gave_up: bool = False
    """True when the process ended itself because of a test's `budget` mark."""
    log_lost: str = ""


@dataclass
class _Watch:
    """Moments, by the monotonic clock, at which something is due."""

    limits: Limits
    started: float = field(default_factory=time.monotonic)
    heard: float = field(default_factory=time.monotonic)
    life_size: int = -1
    dumped: bool = False

    def due(self, now: float) -> Literal["", "dump", "timed-out", "silent"]:
        if now - self.started >= self.limits.budget:
            return "timed-out"
        if now - self.heard >= self.limits.silence:
            return "silent"
        if not self.dumped and now - self.started >= self.limits.budget / 2:
            return "dump"
        return ""

    def wait(self, now: float) -> float:
        half = self.limits.budget / (1 if self.dumped else 2)
        return max(0.0, min(self.started + half, self.heard + self.limits.silence) - now)

    def look_for_life(self, path: Path, now: float) -> None:
        size = path.stat().st_size if path.exists() else 0
        if size != self.life_size:
            self.life_size, self.heard = size, now


def run(task: Task, limits: Limits, *, mark: str, interrupts: Interrupts) -> Ended:
    """Run the task to its end and end all it left. Raises OSError when the command cannot be started."""
    before = processes.children(os.getpid())
    log = BoundedLog(task.log, limits.log_bytes)
    reader, writer = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(reader, False)
    watch = _Watch(limits)
    try:
        try:
            process = processes.start(task.command, cwd=task.cwd, env=task.env, output=writer)
        finally:
            os.close(writer)

        def find() -> tuple[processes.Process, ...]:
            process.poll()
            return processes.of_run(mark, spare=before, keep=process.pid)

        def drain() -> bool:
            heard, is_open = _read(reader, log)
            if heard:
                watch.heard = time.monotonic()
            return is_open

        cause = _wait(process, reader, drain, find, task, watch, interrupts)
        seconds = time.monotonic() - watch.started
        left = find() if cause == "exited" else ()
        grace = min(limits.grace, STOPPED_GRACE) if cause == "interrupted" else limits.grace
        survivors = processes.end(find, grace=grace) if left or cause != "exited" else ()
        _read(reader, log)
        code = process.poll()
    finally:
        os.close(reader)
        log.close()
    dumped = task.stacks.read_text(errors="replace") if task.stacks.exists() else ""
    if not dumped:
        task.stacks.unlink(missing_ok=True)
    return Ended(
        cause=cause,
        seconds=seconds,
        exit_code=code if code is not None and code >= 0 else None,
        signal=_signal_name(-code) if code is not None and code < 0 else "",
        left=left,
        survivors=survivors,
        stacks=task.stacks if dumped else None,
        gave_up=code == 1 and bool(OUT_OF_TIME.search(dumped)),
        log_lost=log.lost,
    )


def _wait(
    process: subprocess.Popen[bytes],
    reader: int,
    drain: Callable[[], bool],
    find: Callable[[], tuple[processes.Process, ...]],
    task: Task,
    watch: _Watch,
    interrupts: Interrupts,
) -> Cause:
    """Wait until the process ends, its time is up, or the runner is told to stop."""
    pidfd = os.pidfd_open(process.pid)
    try:
        with selectors.DefaultSelector() as selector:
            for descriptor in (pidfd, reader, interrupts.descriptor):
                selector.register(descriptor, selectors.EVENT_READ)
            while True:
                ready = {key.fd for key, _ in selector.select(watch.wait(time.monotonic()))}
                if reader in ready and not drain():
                    selector.unregister(reader)  # it closed its output and lives on
                if interrupts.descriptor in ready:
                    return "interrupted"
                if pidfd in ready:
                    return "exited"
                now = time.monotonic()
                watch.look_for_life(task.signs_of_life, now)
                due = watch.due(now)
                if due:
                    watch.dumped = True
                    stacks.dump(find(), task.stacks, stop=lambda: bool(interrupts.received))
                if due == "timed-out" or due == "silent":
                    return due
    finally:
        os.close(pidfd)


def _read(reader: int, log: BoundedLog, most: int = 64) -> tuple[bool, bool]:
    """Move what can be read now, at most `most` MiB, into the log: (there was any, more may come)."""
    heard = False
    for _ in range(most):
        try:
            data = os.read(reader, 1024 * 1024)
        except BlockingIOError:
            break
        if not data:
            return heard, False
        heard = True
        log.write(data)
    return heard, True


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no name
        return f"signal {number}"
