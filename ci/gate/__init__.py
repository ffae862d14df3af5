"""The gate: plan x journals -> the verdict of the night.

`load` reads, `judge` decides (pure), `report` and `junit` render the `Night`. A night is green when every
selected job ran every planned shard and every planned test has exactly one result that is no failure.
"""

from __future__ import annotations

from ci.gate.judge import judge
from ci.gate.load import load_needs, load_plan, load_results
from ci.gate.night import Finding, JobResult, JudgedJob, JudgedShard, JudgedTest, Night

__all__ = [
    "Finding", "JobResult", "JudgedJob", "JudgedShard", "JudgedTest", "Night",
    "judge", "load_needs", "load_plan", "load_results",
]  # fmt: skip
