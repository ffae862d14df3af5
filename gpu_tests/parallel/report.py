"""What a rank reports about a case, and what all reports of a case say together.

A rank that cannot go on tells where it stopped and which all-reduces it entered and left; who is missing can only be
said once every rank has told its side, so `diagnose` is a function of all reports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, and the rank that it is wrong on.

    check: capture_order, metadata, attention, partial, output, single_rank, reduced, kv (see `session`), control (the
    single rank is wrong itself), hang, stopped or lost.  where: the phase.  step: of a draft chain.  field, row,
    request, column: of the metadata.
    """

    check: str
    rank: int
    where: str
    message: str
    step: int | None = None
    field: str | None = None
    row: int | None = None
    request: str | None = None
    column: int | None = None

    def __str__(self) -> str:
        places = {"step": self.step, "row": self.row, "column": self.column}
        named = "".join(f", {name} {value}" for name, value in places.items() if value is not None)
        request = f", {self.request}" if self.request else ""
        return f"[{self.check}] rank {self.rank}{named}{request}, {self.where}: {self.message}"


@dataclass(frozen=True)
class Stop:
    """Why a rank gave up: `phase` (counted by `index`), what it waited for, and its progress in that phase.

    entered, left: the steps whose all-reduce this rank began and completed in the phase.
    """

    index: int
    phase: str
    waited_for: str
    limit_s: float
    entered: tuple[int, ...]
    left: tuple[int, ...]
    error: str = ""


@dataclass(frozen=True)
class RankReport:
    """All that one rank says about one case."""

    case: str
    rank: int
    seconds: float
    findings: tuple[Finding, ...] = ()
    stop: Stop | None = None
    unsupported: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RankReport:
        stop = data["stop"]
        return cls(
            data["case"],
            data["rank"],
            data["seconds"],
            tuple(Finding(**f) for f in data["findings"]),
            None if stop is None else Stop(**{**stop, "entered": tuple(stop["entered"]), "left": tuple(stop["left"])}),
            data["unsupported"],
        )


@dataclass(frozen=True)
class Exit:
    """How a rank's process ended.

    code: negative for a signal; None if the parent had to end it, after `limit_s`.  phase: the last that it began.
    log: the end of what it printed.
    """

    code: int | None
    phase: str = "before its first phase"
    limit_s: float = 0.0
    log: str = ""

    def __str__(self) -> str:
        how = f"did not end within {self.limit_s:g} s" if self.code is None else f"ended with exit code {self.code}"
        return how + (f"; its last lines:\n{self.log}" if self.log else "")


@dataclass(frozen=True)
class CaseResult:
    """What was wrong in a case, over all ranks; `seconds` of the slowest.

    unsupported: why the backend does not serve the world of the case; empty if it does.
    """

    case: str
    findings: tuple[Finding, ...] = ()
    seconds: float = 0.0
    unsupported: str = ""

    def __str__(self) -> str:
        return "\n".join([f"{self.case}: {len(self.findings)} findings", *(f"  {f}" for f in self.findings)])


def diagnose(case: str, reports: Mapping[int, RankReport], exits: Mapping[int, Exit]) -> CaseResult:
    """The findings of all ranks, with one for every rank that is the cause of a hang or left no report."""
    findings = [f for rank in sorted(reports) for f in reports[rank].findings]
    findings += [
        Finding("lost", rank, exits[rank].phase, f"left no report of this case: the process {exits[rank]}")
        for rank in sorted(exits)
        if rank not in reports
    ]
    stops = {rank: report.stop for rank, report in sorted(reports.items()) if report.stop is not None}
    if stops:
        findings += _hang(stops)
    unsupported = next((r.unsupported for r in reports.values() if r.unsupported), "")
    return CaseResult(
        case, _shortened(_causes(findings)), max((r.seconds for r in reports.values()), default=0.0), unsupported
    )


def _hang(stops: Mapping[int, Stop]) -> list[Finding]:
    """Blame, in the earliest phase in which a rank stopped."""
    first = min(stop.index for stop in stops.values())
    here = {rank: stop for rank, stop in stops.items() if stop.index == first}
    blamed = _crashed(here) or _never_entered(here)
    return blamed or [Finding("stopped", rank, stop.phase, _waiting(stop)) for rank, stop in here.items()]


def _crashed(stops: Mapping[int, Stop]) -> list[Finding]:
    return [
        Finding("stopped", rank, stop.phase, stop.error) for rank, stop in stops.items() if stop.waited_for == "nothing"
    ]


def _never_entered(stops: Mapping[int, Stop]) -> list[Finding]:
    """The first step whose all-reduce some ranks entered and others did not.

    NCCL and gloo pair collectives by their order, so a rank that skips one step may still be let through the next
    ones with another step's data; the first difference is the cause.
    """
    for step in sorted({step for stop in stops.values() for step in stop.entered}):
        waiting = [rank for rank, stop in stops.items() if step in stop.entered]
        absent = [rank for rank in stops if rank not in waiting]
        if absent:
            limit = max(stops[rank].limit_s for rank in waiting)
            who = ", ".join(map(str, waiting))
            message = f"never entered the all-reduce of step {step}, which rank {who} entered (limit {limit:g} s)"
            return [Finding("hang", rank, stops[rank].phase, message, step=step) for rank in absent]
    return []


def _waiting(stop: Stop) -> str:
    progress = f"all-reduces entered {list(stop.entered)}, completed {list(stop.left)}"
    return f"waited {stop.limit_s:g} s for {stop.waited_for}; {progress}{'; ' + stop.error if stop.error else ''}"


def _causes(findings: Sequence[Finding]) -> list[Finding]:
    """Without the sums that are wrong because another rank's part of them is."""
    wrong_parts = {(f.where, f.step, f.row) for f in findings if f.check in ("attention", "partial")}
    return [f for f in findings if f.check != "output" or (f.where, f.step, f.row) not in wrong_parts]


def _shortened(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The first few of each check and rank: one cause can show in hundreds of rows."""
    kept: dict[tuple[str, int], list[Finding]] = {}
    for finding in findings:
        kept.setdefault((finding.check, finding.rank), []).append(finding)
    return tuple(f for group in kept.values() for f in group[:3])
