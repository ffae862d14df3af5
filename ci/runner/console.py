"""What a person sees while a shard runs: a line as a unit begins again or ends."""

from __future__ import annotations

from collections.abc import Mapping

from ci.journal import Ending
from ci.plan import Unit
from ci.spec.models import format_duration

_ENDINGS: Mapping[Ending, str] = {
    "completed": "ok",
    "no-tests": "RAN NOTHING",
    "timed-out": "TIMED OUT",
    "silent": "HANGS (silent)",
    "crashed": "CRASHED",
    "interrupted": "interrupted",
    "infra": "HOST NOT FIT",
}


class Console:
    """Prints to standard output, or nothing when quiet."""

    def __init__(self, *, quiet: bool, total: int) -> None:
        self._quiet, self._total, self._done = quiet, total, 0

    def attempt(self, unit: Unit, number: int, reason: str) -> None:
        """A unit begins; only further attempts are worth a line."""
        if number > 1:
            self.say(f"         {unit.path}  attempt {number}: {reason}")

    def unit(self, unit: Unit, ending: Ending, counts: Mapping[str, int], seconds: float, detail: str) -> None:
        """A unit has ended, all its attempts together."""
        self._done += 1
        said = ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "no result"
        good = ending == "completed" and not set(counts) - {"passed", "skipped", "flaky"}
        label = "ok" if good else "FAILED" if ending == "completed" else _ENDINGS[ending]
        width = len(str(self._total))
        self.say(
            f"[{self._done:>{width}}/{self._total}] {label:<8} {unit.path} ({unit.suite}): {said}, "
            f"{format_duration(seconds)}" + (f"; {detail}" if detail else "")
        )

    def say(self, text: str) -> None:
        """One line, at once: a log that is cut off ends with what was known."""
        if not self._quiet:
            print(text, flush=True)
