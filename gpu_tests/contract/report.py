"""A failure as a person reads it: what failed, the metadata side by side, which rows, how to reproduce it."""

from __future__ import annotations

from collections.abc import Sequence, Set

from gpu_tests.contract.checks import CHECKS, Finding
from gpu_tests.contract.evidence import SideBySide
from gpu_tests.contract.metadata import equal, words
from gpu_tests.contract.scenario import PERTURBATIONS, Scenario

MAX_EACH = 2


def report(findings: Sequence[Finding], scenario: Scenario, command: str) -> str:
    """The headline, capture against replay of the first replay that failed, all checks' findings, how to reproduce."""
    failed = [check for check in CHECKS if any(f.check == check for f in findings)]
    others = f" (so do {', '.join(failed[1:])})" if failed[1:] else ""
    lines = [f"{failed[0]} fails in {scenario}{others}", ""]
    metadata = next((f.metadata for f in findings if f.metadata is not None), None)
    if metadata is not None:
        suspects = {f.field for f in findings if f.metadata is metadata} | metadata.unwritten
        lines += [f"metadata, {metadata.label}:", *side_by_side(metadata, suspects), ""]
    for check in failed:
        of_check = [f for f in findings if f.check == check]
        lines.append(f"{check}: {CHECKS[check]}")
        for f in of_check[:MAX_EACH]:
            lines += [f"  {f.label}", f"    {f'{f.row}: ' if f.row else ''}{f.message}"]
        if len(of_check) > MAX_EACH:
            lines.append(f"  ... and {len(of_check) - MAX_EACH} more")
        lines.append("")
    lines += [f"{name}: {PERTURBATIONS[name]}" for name in PERTURBATIONS if scenario.has(name)]
    return "\n".join([*lines, f"reproduce: {command}"])


def side_by_side(metadata: SideBySide, suspects: Set[str] = frozenset()) -> list[str]:
    """Each field at capture and at replay, in words; of the suspects alone, if any is among the fields."""
    lines = []
    for name, before in metadata.captured.items():
        if suspects & metadata.captured.keys() and name not in suspects:
            continue
        after = metadata.replayed.get(name)
        unwritten = name in metadata.unwritten
        at_capture = words(before.value, metadata.captured_facts, unwritten) + ("" if unwritten else " at capture")
        at_replay = "gone" if after is None else words(after.value, metadata.replayed_facts)
        same = after is not None and equal(before, after) and not unwritten
        lines.append(f"  {name}: {at_capture}, {'the same' if same else at_replay} at replay")
    return lines
