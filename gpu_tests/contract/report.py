"""A failure as a person reads it: what failed, the shortest scenario that shows it, and the metadata side by side."""

from __future__ import annotations

from collections.abc import Sequence, Set

from gpu_tests.contract.checks import CHECKS, Finding
from gpu_tests.contract.drive import ReplayRecord
from gpu_tests.contract.metadata import equal, words
from gpu_tests.contract.scenario import PERTURBATIONS, Scenario

MAX_EACH = 3


def report(findings: Sequence[Finding], scenario: Scenario, command: str) -> str:
    """The findings by check, then the scenario, then capture against replay of the first replay that failed."""
    lines: list[str] = []
    for check, demand in CHECKS.items():
        of_check = [f for f in findings if f.check == check]
        if of_check:
            lines.append(f"{check}: {demand}")
            lines += [f"  {f.label}\n    {f'{f.row}: ' if f.row else ''}{f.message}" for f in of_check[:MAX_EACH]]
            if len(of_check) > MAX_EACH:
                lines.append(f"  ... and {len(of_check) - MAX_EACH} more")
    lines += ["", f"scenario: {scenario}"]
    lines += [f"  {name}: {PERTURBATIONS[name]}" for name in PERTURBATIONS if scenario.has(name)]
    lines += ["reproduce:", f"  {command}"]
    record = next((f.record for f in findings if f.record is not None), None)
    if record is not None:
        suspects = {f.field for f in findings if f.record is record} | record.unwritten
        lines += ["", f"metadata, {record.replay.label}:", *side_by_side(record, suspects)]
    return "\n".join(lines)


def side_by_side(record: ReplayRecord, suspects: Set[str] = frozenset()) -> list[str]:
    """Each field at capture and at replay, in words; of the suspects alone, if any is among the fields."""
    lines = []
    for name, before in record.captured.items():
        if suspects & record.captured.keys() and name not in suspects:
            continue
        after = record.replay.metadata.get(name)
        at_capture = words(before.value, record.captured_facts, name in record.unwritten)
        at_replay = "gone" if after is None else words(after.value, record.replay.facts)
        same = after is not None and equal(before, after) and name not in record.unwritten
        lines.append(f"  {name}: {at_capture} at capture, {'the same' if same else at_replay} at replay")
    return lines
