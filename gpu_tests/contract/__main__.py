"""`python -m gpu_tests.contract SCENARIO...`: run scenarios against a backend and print what is wrong."""

from __future__ import annotations

import argparse
import sys

from gpu_tests.contract.isolated import Isolated
from gpu_tests.contract.scenario import PERTURBATIONS, WORLDS, Scenario
from gpu_tests.contract.verify import DEFAULT_BACKEND, judge_on
from gpu_tests.graphs import available_drivers


def main(argv: list[str] | None = None) -> int:
    drivers = {driver.device.type: driver for driver in available_drivers()}
    parser = argparse.ArgumentParser(prog="python -m gpu_tests.contract", description=__doc__)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="WORLD[+perturbation...][#SEED]")
    parser.add_argument("--backend", default=DEFAULT_BACKEND, metavar="MODULE:FACTORY")
    parser.add_argument("--driver", default="cpu", choices=sorted(drivers))
    parser.add_argument("--list", action="store_true", help="print the worlds and the perturbations")
    args = parser.parse_args(argv)
    if args.list or not args.scenarios:
        print("worlds:", *(f"  {name}" for name in WORLDS), sep="\n")
        print("perturbations:", *(f"  {name}: {what}" for name, what in PERTURBATIONS.items()), sep="\n")
        return 0
    with Isolated() as process:
        try:
            judged = judge_on(drivers[args.driver], args.backend, process)
            scenarios = [Scenario.parse(text) for text in args.scenarios]
        except ValueError as error:
            parser.error(str(error))
        failed = False
        for scenario in scenarios:
            found = judged(scenario)
            failed |= found.headline is not None
            print(f"{scenario}: not supported: {found.not_supported}" if found.not_supported else found.report)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
