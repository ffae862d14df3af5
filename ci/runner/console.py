"""What a person sees of a shard: a line as a unit begins and ends, with the end of a bad unit's log; at last a table,
what went wrong with the command to see it again, and one line of verdict.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ci.gha.commands import inert
from ci.journal import Ending
from ci.plan import Unit
from ci.runner.classify import log_end
from ci.runner.judge import BAD
from ci.runner.results import UnitResult
from ci.runner.units import reproduce_command
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
_MOST_NAMED = 20
"""Tests that the end of a run names, each with its message and its command."""
_MESSAGE_CHARACTERS = 300
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class Console:
    """Prints to standard output, or nothing when quiet. Each line at once: a log that is cut off is true so far."""

    def __init__(self, *, quiet: bool, total: int) -> None:
        self._quiet, self._total, self._done = quiet, total, 0

    def attempt(self, unit: Unit, number: int, reason: str) -> None:
        """A unit begins, for the first time or again: where a run that hangs stands is its last line."""
        if number > 1:
            self.say(f"{'':<{self._width}} again    {unit.path}, attempt {number}: {reason}")
        else:
            predicted = f", predicted {format_duration(unit.seconds)}" if unit.seconds else ""
            self.say(f"{self._place(self._done + 1)} begins   {unit.path} ({unit.suite}){predicted}")

    def unit(self, result: UnitResult) -> None:
        """A unit has ended, all its attempts together."""
        self._done += 1
        unit = result.unit
        more = f"; {result.detail}" if result.detail else ""
        time = format_duration(result.seconds)
        label = f"{self._place(self._done)} {_label(result):<8}"
        self.say(f"{label} {unit.path} ({unit.suite}): {_counts(result)}, {time}{more}")
        if not result.good:
            self._tail(result.log)

    def summary(self, results: Sequence[UnitResult], not_run: Sequence[Unit], verdict: str) -> None:
        """The end of a run: failures last, and below them nothing but the verdict."""
        if self._total > 1:
            self.say("")
            for line in _table(results, not_run):
                self.say(line)
        wrong = [line for result in results for line in _wrong(result)]
        if wrong:
            self.say(f"\nto look at: {len(wrong)}")
        for line in wrong[:_MOST_NAMED]:
            self.say(inert(line))
        if len(wrong) > _MOST_NAMED:
            self.say(f"  ... and {len(wrong) - _MOST_NAMED} more, which junit.xml names")
        self.say(f"\n{verdict}")

    def say(self, text: str) -> None:
        """One line."""
        if not self._quiet:
            print(text, flush=True)

    def _place(self, number: int) -> str:
        return f"[{number}/{self._total}]".rjust(self._width)

    @property
    def _width(self) -> int:
        return len(f"[{self._total}/{self._total}]")

    def _tail(self, log: Path) -> None:
        lines = _ANSI.sub("", log_end(log, _TAIL_BYTES)).splitlines()
        for line in lines[-_TAIL_LINES:]:
            # A test's output must not speak to GitHub: `::` counts at the start of a line, `##[` anywhere.
            self.say(f"    | {line.replace('##[', '# #[')}")
        self.say(f"    | all of it: {log}")


def _label(result: UnitResult) -> str:
    return "ok" if result.good else _ENDINGS[result.ending]


def _counts(result: UnitResult) -> str:
    return ", ".join(f"{count} {name}" for name, count in result.counts.items() if count) or "no result"


def _table(results: Sequence[UnitResult], not_run: Sequence[Unit]) -> Iterator[str]:
    rows = [("RESULT", "TIME", "FILE", "SUITE", "TESTS")]
    rows += [
        (_label(one), format_duration(one.seconds), one.unit.path, one.unit.suite, _counts(one)) for one in results
    ]
    rows += [("NOT RUN", "", unit.path, unit.suite, "") for unit in not_run]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        yield "  ".join([*cells, row[4]]).rstrip()


def _wrong(result: UnitResult) -> Iterator[str]:
    """A text for each test of a unit that a person should look at, or for its file where no test is to blame."""
    blamed = False
    for test, standing in result.standings.items():
        if standing not in ("passed", "skipped"):
            blamed = blamed or standing in BAD
            yield _to_look_at(standing, test, result.messages.get(test, ""), reproduce_command(result.unit, test))
    for test in result.lost:
        yield _to_look_at("lost", test, f"no result: {result.detail or 'its file completed without it'}")
    if not (result.good or blamed or result.lost):
        path = result.unit.path
        yield _to_look_at(_label(result).lower(), path, result.detail, reproduce_command(result.unit, path))


def _to_look_at(what: str, name: str, message: str, command: str = "") -> str:
    said = message.strip().partition("\n")[0][:_MESSAGE_CHARACTERS]
    return f"  {what}  {name}" + (f"\n      | {said}" if said else "") + (f"\n      $ {command}" if command else "")
