"""What became of a unit and of a shard, for the console and the exit code. The journal is the record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ci.journal import Ending, Outcome
from ci.plan import Unit
from ci.runner.classify import FailureClass
from ci.runner.exit_codes import ExitCode
from ci.runner.gpus import HostReport
from ci.runner.judge import BAD


@dataclass(frozen=True)
class UnitResult:
    """What became of one unit, all its attempts together."""

    unit: Unit
    ending: Ending
    """Of the last attempt."""
    outcomes: Mapping[str, tuple[Outcome, ...]]
    """By full test id, the outcome of each attempt that reached it."""
    lost: tuple[str, ...]
    """Planned ids without any result."""
    seconds: float
    attempts: int
    detail: str
    failure: FailureClass | None
    """Of the last attempt; None when nothing was wrong with it."""
    log: Path
    host: HostReport | None
    """State of the GPUs after the last attempt."""

    @property
    def counts(self) -> Counter[str]:
        """Tests by how they stand after the last attempt; passed after something else is `flaky`."""
        counts = Counter(_standing(history) for history in self.outcomes.values())
        return counts + Counter(lost=len(self.lost))

    @property
    def bad(self) -> bool:
        """True when something is wrong with it beside lost tests."""
        return self.failure is not None or any(self.counts[outcome] for outcome in BAD)

    @property
    def good(self) -> bool:
        """True when nothing at all is wrong with it."""
        return not self.bad and not self.lost and (self.ending == "completed" or self.counts["skipped"] > 0)


@dataclass(frozen=True)
class RunResult:
    """What became of the shard."""

    exit_code: ExitCode
    units: tuple[UnitResult, ...]
    not_run: tuple[Unit, ...]
    """Units that were wanted and never started."""
    journal: Path
    junit: Path
    interrupted: str = ""


def _standing(history: Sequence[Outcome]) -> str:
    if history[-1] == "passed" and any(outcome in BAD for outcome in history):
        return "flaky"
    return history[-1]
