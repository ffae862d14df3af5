"""The runner's side of the journal: writes events, and reads back those of the tests' processes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ci import journal
from ci.journal import AnyEvent, Collected, Note, TestFinished, TestStarted
from ci.runner.inside.nightcap_inside.lines import Lines

RESERVE_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Seen:
    """What one attempt of a unit wrote down before its process ended."""

    collected: tuple[str, ...] | None = None
    """Full ids in order; None when collection did not end."""
    finished: tuple[TestFinished, ...] = ()
    running: Mapping[str, float] = field(default_factory=dict)
    """Tests that had started and not finished, and the seconds that they ran: one, or one a worker of pytest-xdist."""

    @property
    def not_run(self) -> tuple[str, ...]:
        """Collected tests that never started."""
        done = {event.test for event in self.finished} | self.running.keys()
        return tuple(test for test in self.collected or () if test not in done)


class Record:
    """The journal of this run. A journal of an earlier run in the same place is replaced."""

    def __init__(self, path: Path, reserve: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # not truncated: a process of a killed run may still append to the old one
        descriptor = os.open(reserve, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC)
        try:
            os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
        finally:
            os.close(descriptor)
        self._path, self._reserve = path, reserve
        self._lines = Lines(path, reserve)
        self._read = 0
        self._events: list[AnyEvent] = []

    @property
    def events(self) -> tuple[AnyEvent, ...]:
        """All that is written so far."""
        self.news()
        return tuple(self._events)

    def write(self, *events: AnyEvent) -> None:
        """Put events on disk, in order."""
        for event in events:
            self._lines.append(journal.line(event))

    def note(self, level: Literal["info", "warning", "infra"], message: str) -> None:
        """Write down something about the host or the shard."""
        self.write(Note(at=time.time(), level=level, message=message))

    def news(self) -> tuple[AnyEvent, ...]:
        """Events, of whichever writer, since the last call. To be called while no test process lives."""
        self._lines.end_broken_line()
        with self._path.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        self._read += len(data)
        # Split at newlines alone: a message may hold other characters that end lines elsewhere.
        events = journal.parse(data.decode(errors="replace").split("\n"), str(self._path)).events
        self._events += events
        return events

    def close(self) -> None:
        """End the record; the space put aside is free again."""
        self._lines.close()
        self._reserve.unlink(missing_ok=True)


def seen(events: Iterable[AnyEvent], *, started: float, seconds: float) -> Seen:
    """What the events of one attempt say, whose process started then, by the wall clock, and took so many seconds."""
    collected: tuple[str, ...] | None = None
    finished: dict[str, TestFinished] = {}
    running: dict[str, float] = {}
    for event in events:
        if isinstance(event, Collected):
            collected = event.tests
        elif isinstance(event, TestStarted):
            running[event.test] = journal.seconds_until_death(event.at, started, seconds)
        elif isinstance(event, TestFinished):
            finished.setdefault(event.test, event)
            running.pop(event.test, None)
    return Seen(collected, tuple(finished.values()), running)
