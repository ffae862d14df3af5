"""A failure as a person reads it: what failed, the shortest scenario that shows it, and the metadata side by side."""

from __future__ import annotations

from collections.abc import Sequence

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
        lines += ["", f"metadata, {record.replay.label}:", *side_by_side(record)]
    return "\n".join(lines)


def side_by_side(record: ReplayRecord) -> list[str]:
    """Each field at capture and at replay, in words; fields that a graph or a batch cannot tell apart are left out."""
    facts = record.replay.facts
    # At capture the batch was the fill rule (or another batch): only its own numbers can be put in words there.
    captured_facts = record.captured_facts
    lines = []
    for name, before in record.captured.items():
        after = record.replay.metadata.get(name)
        at_capture = words(before.value, captured_facts, name in record.unwritten)
        at_replay = "gone" if after is None else words(after.value, facts)
        same = after is not None and equal(before, after) and name not in record.unwritten
        lines.append(f"  {name}: {at_capture} at capture, {'the same' if same else at_replay} at replay")
    return lines
