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
    messages: Mapping[str, str]
    """By full test id, what its last failure said."""
    quarantined: frozenset[str]
    """Full ids of tests whose failure turns nothing red."""
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
        return Counter(self.standings.values()) + Counter(lost=len(self.lost))

    @property
    def standings(self) -> dict[str, str]:
        """How each test stands after the last attempt, by full id."""
        return {test: self._standing(test, history) for test, history in self.outcomes.items()}

    @property
    def bad(self) -> bool:
        """True when something is wrong with it beside lost tests."""
        failed = any(self.counts[outcome] for outcome in BAD)
        return failed or (self.failure is not None and not self._quarantine_explains)

    @property
    def good(self) -> bool:
        """True when nothing at all is wrong with it."""
        ended = self.ending == "completed" or self.counts["skipped"] > 0 or self._quarantine_explains
        return not self.bad and not self.lost and ended

    @property
    def _quarantine_explains(self) -> bool:
        """True when a test in quarantine is what went wrong with the last attempt."""
        last = {self.outcomes[test][-1] for test in self.quarantined}
        return bool(last & (BAD if self.ending == "completed" else {"crashed", "timed-out"}))

    def _standing(self, test: str, history: Sequence[Outcome]) -> str:
        failed = any(outcome in BAD for outcome in history)
        if failed and test in self.quarantined:
            return "quarantined"
        return "flaky" if failed and history[-1] == "passed" else history[-1]


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
