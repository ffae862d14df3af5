"""`python -m gpu_tests.parallel --world-size 4`: the cases of `attention-tp` on any number of ranks."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence

from gpu_tests.conftest import TORCH_MISSING

if importlib.util.find_spec("torch") is None:
    print(f"python -m {__package__}: {TORCH_MISSING}", file=sys.stderr)
    sys.exit(2)

import torch

from gpu_tests.contract.verify import load_factory
from gpu_tests.parallel.cases import CASES, Case
from gpu_tests.parallel.launch import DEFAULT_BACKEND, Team, run
from gpu_tests.parallel.report import CaseResult
from gpu_tests.parallel.suite import launches, problem


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gpu_tests.parallel", description=__doc__)
    parser.add_argument("--world-size", type=int, default=2, metavar="N", help="ranks (default: 2)")
    parser.add_argument("--collectives", choices=["gloo", "nccl"], default="gloo", help="nccl: one GPU a rank")
    parser.add_argument("--backend", default=DEFAULT_BACKEND, metavar="MODULE:FACTORY", help="attention backend")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"default: all; they are {', '.join(CASES)}")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.cases if name not in CASES]:
        parser.error(f"no case {', '.join(unknown)}; they are {', '.join(CASES)}")
    try:
        load_factory(options.backend)
    except ValueError as error:
        parser.error(f"--backend {error}")
    team = Team(options.collectives, options.world_size)
    if team.size < 2:
        parser.error(f"--world-size {team.size}: there is nothing to share out; 2 or more")
    if team.backend == "nccl" and team.size > torch.cuda.device_count():
        parser.error(f"--world-size {team.size}: nccl wants one GPU a rank, torch sees {torch.cuda.device_count()}")
    wanted = options.cases or [name for name, case in CASES.items() if team.device in case.devices]
    bad = 0
    for cases in launches(team, wanted):
        for result in run(team, cases, options.backend).values():
            bad += _print(CASES[result.case], result, team.size)
    return 1 if bad else 0


def _print(case: Case, result: CaseResult, world_size: int) -> bool:
    """Whether the case is not as it should be."""
    wrong = problem(case, result, world_size)
    verdict = f"NOT AS IT SHOULD BE: {wrong}" if wrong else "ok"
    if result.unsupported:
        verdict = f"not served: {result.unsupported}"
    print(f"{case.name} ({result.seconds:.1f} s): {verdict}", flush=True)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
