"""What a scenario leaves behind: executions, replays with what they are compared with, and failures.  Plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from torch import Tensor

from gpu_tests.backends.protocol import Mode
from gpu_tests.contract.metadata import BatchFacts, Snapshot
from gpu_tests.contract.scenario import Scenario
from gpu_tests.contract.truth import Expected, RowTruth
from gpu_tests.graphs import Sync


@dataclass
class Execution:
    """One run of the model: what it was given, what came out, and what was true.

    calls: the metadata tensors that each kernel call saw, by name.  nan_steps: steps whose NaN flag was raised, in a
    capture by any of its warm-up runs.
    """

    kind: Literal["capture", "replay", "eager"]
    label: str
    mode: Mode
    bs: int
    rows: list[RowTruth]
    facts: BatchFacts
    outs: list[Tensor]
    expected: list[list[Expected]]
    metadata: Snapshot
    calls: list[dict[str, Tensor]]
    num_tokens: int
    nan_steps: list[int]


@dataclass
class SideBySide:
    """The metadata of a graph at its capture and at one replay. unwritten: fields that nothing wrote before capture."""

    label: str
    captured: Snapshot
    captured_facts: BatchFacts
    unwritten: frozenset[str]
    replayed: Snapshot
    replayed_facts: BatchFacts


@dataclass
class ReplayRecord:
    """A replay with what is compared with it."""

    replay: Execution
    eager: Execution | None
    captured: Snapshot
    captured_facts: BatchFacts
    unwritten: frozenset[str]
    witness: Snapshot | None
    kv_problems: list[str]
    syncs: list[Sync]
    program_differences: list[str]

    @cached_property
    def metadata(self) -> SideBySide:
        """What the report shows of it."""
        run = self.replay
        return SideBySide(run.label, self.captured, self.captured_facts, self.unwritten, run.metadata, run.facts)


@dataclass
class Failure:
    """An exception: where in the schedule, which check it belongs to, and the metadata of the replay that raised it."""

    check: str
    label: str
    error: Exception
    metadata: SideBySide | None = None


@dataclass
class Evidence:
    """All that a scenario left behind."""

    scenario: Scenario
    captures: list[Execution] = field(default_factory=list)
    replays: list[ReplayRecord] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    dirty_launches: int = 0
    damaged: list[str] = field(default_factory=list)
