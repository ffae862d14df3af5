"""What a person sees while a shard runs: a line as a unit ends or begins again, and the end of a bad unit's log."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from ci.journal import Ending
from ci.plan import Unit
from ci.runner.classify import log_end
from ci.runner.results import UnitResult
from ci.spec.models import format_duration

_ENDINGS: Mapping[Ending, str] = {
    "completed": "FAILED",
    "no-tests": "RAN NOTHING",
    "timed-out": "TIMED OUT",
    "silent": "HANGS",
    "crashed": "CRASHED",
    "interrupted": "INTERRUPTED",
    "infra": "HOST",
}
_TAIL_LINES = 40
_TAIL_BYTES = 16 * 1024
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class Console:
    """Prints to standard output, or nothing when quiet. Each line at once: a log that is cut off is true so far."""

    def __init__(self, *, quiet: bool, total: int) -> None:
        self._quiet, self._total, self._done = quiet, total, 0

    def attempt(self, unit: Unit, number: int, reason: str) -> None:
        """A unit begins; only further attempts are worth a line."""
        if number > 1:
            self.say(f"{'':<{self._width}} again    {unit.path}, attempt {number}: {reason}")

    def unit(self, result: UnitResult) -> None:
        """A unit has ended, all its attempts together."""
        self._done += 1
        unit = result.unit
        said = ", ".join(f"{count} {name}" for name, count in result.counts.items() if count) or "no result"
        label = "ok" if result.good else _ENDINGS[result.ending]
        place = f"[{self._done}/{self._total}]".rjust(self._width)
        more = f"; {result.detail}" if result.detail else ""
        self.say(f"{place} {label:<8} {unit.path} ({unit.suite}): {said}, {format_duration(result.seconds)}{more}")
        if not result.good:
            self._tail(result.log)

    def say(self, text: str) -> None:
        """One line."""
        if not self._quiet:
            print(text, flush=True)

    @property
    def _width(self) -> int:
        return len(f"[{self._total}/{self._total}]")

    def _tail(self, log: Path) -> None:
        lines = _ANSI.sub("", log_end(log, _TAIL_BYTES)).splitlines()
        for line in lines[-_TAIL_LINES:]:
            # A test's output must not speak to GitHub: `::` counts at the start of a line, `##[` anywhere.
            self.say(f"    | {line.replace('##[', '# #[')}")
        self.say(f"    | all of it: {log}")
