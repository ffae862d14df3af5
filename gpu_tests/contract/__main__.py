"""`python -m gpu_tests.contract SCENARIO...`: run scenarios against a backend and print what is wrong."""

from __future__ import annotations

import argparse
import importlib.util
import sys

from gpu_tests.conftest import TORCH_MISSING

if importlib.util.find_spec("torch") is None:
    print(f"python -m {__package__}: {TORCH_MISSING}", file=sys.stderr)
    sys.exit(2)

from gpu_tests.contract.isolated import Isolated
from gpu_tests.contract.kernels import KernelChoice
from gpu_tests.contract.scenario import PERTURBATIONS, WORLDS, Scenario
from gpu_tests.contract.verify import DEFAULT_BACKEND, Verdict, judge_on
from gpu_tests.graphs import available_drivers


def main(argv: list[str] | None = None) -> int:
    drivers = {driver.device.type: driver for driver in available_drivers()}
    parser = argparse.ArgumentParser(prog="python -m gpu_tests.contract", description=__doc__)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="WORLD[+perturbation...][#SEED]")
    parser.add_argument("--backend", default=DEFAULT_BACKEND, metavar="MODULE:FACTORY")
    parser.add_argument("--driver", default="cpu", choices=sorted(drivers))
    parser.add_argument("--kernel", default="auto", help="force a reference kernel: gluon, triton or torch")
    parser.add_argument("--grid", default="split", help="how the kernel divides its work: split or balanced")
    parser.add_argument("--list", action="store_true", help="print the worlds and the perturbations")
    args = parser.parse_args(argv)
    if args.list or not args.scenarios:
        print("worlds:", *(f"  {name}" for name in WORLDS), sep="\n")
        print("perturbations:", *(f"  {name}: {what}" for name, what in PERTURBATIONS.items()), sep="\n")
        return 0
    with Isolated() as process:
        try:
            kernel = KernelChoice(args.kernel, args.grid)
            judged = judge_on(drivers[args.driver], args.backend, process, kernel)
            scenarios = [Scenario.parse(text) for text in args.scenarios]
        except ValueError as error:
            parser.error(str(error))
        verdicts = []
        for scenario in scenarios:
            verdicts.append(judged(scenario))
            print(_line(scenario, verdicts[-1]), flush=True)
    if all(found.not_applicable for found in verdicts):
        print(f"{kernel}: not applicable to any of these scenarios, so nothing was tested", file=sys.stderr)
        return 1
    return 1 if any(found.headline for found in verdicts) else 0


def _line(scenario: Scenario, found: Verdict) -> str:
    if found.not_applicable:
        return f"{scenario}: not applicable: {found.not_applicable}"
    return f"{scenario}: not supported: {found.not_supported}" if found.not_supported else found.report


if __name__ == "__main__":
    sys.exit(main())
