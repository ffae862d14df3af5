"""`python -m gpu_tests.contract SCENARIO...`: run scenarios against a backend and print what is wrong."""

from __future__ import annotations

import argparse
import functools
import importlib.util
import sys
from collections.abc import Callable

from gpu_tests.conftest import TORCH_MISSING

if importlib.util.find_spec("torch") is None:
    print(f"python -m {__package__}: {TORCH_MISSING}", file=sys.stderr)
    sys.exit(2)

from gpu_tests.contract.isolated import Isolated
from gpu_tests.contract.kernels import KernelChoice
from gpu_tests.contract.scenario import PERTURBATIONS, WORLDS, Scenario
from gpu_tests.contract.verify import DEFAULT_BACKEND, Verdict, judge_on, load_factory
from gpu_tests.graphs import GraphDriver, available_drivers


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gpu_tests.contract", description=__doc__)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="WORLD[+perturbation...][#SEED]")
    parser.add_argument("--backend", default=DEFAULT_BACKEND, metavar="MODULE:FACTORY")
    parser.add_argument("--driver", default="cpu", help="graphs to run on: cpu, the emulation (default), or cuda")
    parser.add_argument("--kernel", default="auto", help="force a reference kernel: gluon, triton or torch")
    parser.add_argument("--grid", default="split", help="how the kernel divides its work: split or balanced")
    parser.add_argument("--list", action="store_true", help="print the worlds and the perturbations")
    args = parser.parse_args(argv)
    if problems := _problems(args):
        parser.error("\n  ".join(problems))
    if args.list:
        print("worlds:", *(f"  {name}" for name in WORLDS), sep="\n")
        print("perturbations:", *(f"  {name}: {what}" for name, what in PERTURBATIONS.items()), sep="\n")
        return 0
    kernel, verdicts = KernelChoice(args.kernel, args.grid), []
    with Isolated() as process:
        judged = judge_on(_driver(args.driver), args.backend, process, kernel)
        for scenario in map(Scenario.parse, args.scenarios):
            verdicts.append(judged(scenario))
            print(_line(scenario, verdicts[-1]), flush=True)
    if all(found.not_applicable for found in verdicts):
        print(f"{kernel}: not applicable to any of these scenarios, so nothing was tested", file=sys.stderr)
        return 1
    return 1 if any(found.headline for found in verdicts) else 0


def _problems(args: argparse.Namespace) -> list[str]:
    """All that is wrong with the words of a call."""
    reads: list[tuple[str, Callable[[], object]]] = [
        *(("", functools.partial(Scenario.parse, text)) for text in args.scenarios),
        ("", functools.partial(KernelChoice, args.kernel, args.grid)),
        ("--backend ", functools.partial(load_factory, args.backend)),
        ("--driver ", functools.partial(_driver, args.driver)),
    ]
    problems = [] if args.scenarios or args.list else ["no SCENARIO is given, so nothing would be tested; see --list"]
    for option, read in reads:
        try:
            read()
        except ValueError as error:
            problems += [option + line for line in str(error).splitlines()]
    return problems


def _driver(name: str) -> GraphDriver:
    drivers = {driver.device.type: driver for driver in available_drivers()}
    if name in drivers:
        return drivers[name]
    if name == "cuda":
        raise ValueError("'cuda': it needs a GPU, and torch sees none")
    raise ValueError(f"{name!r}: it is one of cpu, cuda")


def _line(scenario: Scenario, found: Verdict) -> str:
    if found.not_applicable:
        return f"{scenario}: not applicable: {found.not_applicable}"
    return f"{scenario}: not supported: {found.not_supported}" if found.not_supported else found.report


if __name__ == "__main__":
    sys.exit(main())
