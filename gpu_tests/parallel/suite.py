"""Which teams and launches make up the suite `attention-tp` on this machine, and when a case is as it should be."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gpu_tests.parallel.cases import CASES, Blame, Case
from gpu_tests.parallel.launch import Team
from gpu_tests.parallel.report import CaseResult, Finding

LIMIT_S = {"gloo": 20.0, "nccl": 60.0}
"""Limit of one collective.  In the first on a GPU, ranks wait for each other's kernels to be compiled."""

HANG_LIMIT_S = {"gloo": 4.0, "nccl": 15.0}
"""The same where a hang is wanted: long enough for a rank that is merely late."""


def teams(wanted: str, gpus: int | None = None) -> list[Team]:
    """NCCL on 2, 4 and 8 ranks where there are as many GPUs; gloo on 2 ranks.

    wanted: "cuda" leaves gloo out, if there is NCCL; "cpu" leaves NCCL out.
    """
    gpus = torch.cuda.device_count() if gpus is None else gpus
    nccl = [Team("nccl", size) for size in (2, 4, 8) if size <= gpus and wanted != "cpu"]
    return nccl if nccl and wanted == "cuda" else [*nccl, Team("gloo", 2)]


def launches(team: Team, names: Sequence[str]) -> list[dict[str, float]]:
    """Cases, with their limits, that may share processes.  A GPU cannot be used again after a hang, gloo can."""
    limits = {name: (HANG_LIMIT_S if CASES[name].hangs else LIMIT_S)[team.backend] for name in names}
    alone = [{name: s} for name, s in limits.items() if CASES[name].hangs and team.backend == "nccl"]
    together = {name: s for name, s in limits.items() if {name: s} not in alone}
    return ([together] if together else []) + alone


def problem(case: Case, result: CaseResult, world_size: int) -> str:
    """Why a result is not as it should be; empty if it is.

    A right program has no finding.  A faulty one has the finding that it is to blame for, and none on another rank.
    """
    if result.unsupported:
        return ""
    if case.blame is None:
        return str(result) if result.findings else ""
    if not any(_matches(f, case.blame, world_size) for f in result.findings):
        return f"{case.blame} is not among\n{result}"
    if case.blame.alone and any(f.rank != case.blame.rank % world_size for f in result.findings):
        return f"an innocent rank is accused\n{result}"
    return ""


def _matches(finding: Finding, blame: Blame, world_size: int) -> bool:
    asked = {name: getattr(blame, name) for name in ("step", "field", "row", "column")}
    return (finding.check, finding.rank) == (blame.check, blame.rank % world_size) and all(
        value is None or getattr(finding, name) == value for name, value in asked.items()
    )
