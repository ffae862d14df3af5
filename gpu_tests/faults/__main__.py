"""`python -m gpu_tests.faults`: the kill matrix, faults x checks.

On a GPU the faults run in several processes, each with a time limit; `--json FILE` is rewritten after every result.
"""

from __future__ import annotations

import argparse
import difflib
import importlib.util
import string
import sys
from collections.abc import Sequence
from pathlib import Path

from gpu_tests.conftest import TORCH_MISSING

if importlib.util.find_spec("torch") is None:
    print(f"python -m {__package__}: {TORCH_MISSING}", file=sys.stderr)
    sys.exit(2)

from gpu_tests.contract.checks import CHECKS
from gpu_tests.faults import docs
from gpu_tests.faults.matrix import Kill, environment_of, kill_all, store
from gpu_tests.faults.registry import EQUIVALENTS, FAULTS, Fault
from gpu_tests.graphs import GraphDriver, available_drivers


def main(argv: list[str] | None = None) -> int:
    drivers = {driver.device.type: driver for driver in available_drivers()}
    everything = {**FAULTS, **EQUIVALENTS}
    parser = argparse.ArgumentParser(prog="python -m gpu_tests.faults", description=__doc__)
    parser.add_argument("ids", nargs="*", metavar="ID", help="faults to run (default: all)")
    parser.add_argument("--driver", default="cpu", choices=sorted(drivers))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the matrix there as well, result by result")
    parser.add_argument("--workers", type=int, help="processes on a GPU (default: 8, at most one a core)")
    parser.add_argument("--show", action="store_true", help="print the diffs of the faults instead of running them")
    parser.add_argument("--docs", action="store_true", help=f"write docs/{docs.PAGE.name}")
    args = parser.parse_args(argv)
    for name in args.ids:
        if name not in everything:
            near = difflib.get_close_matches(name, everything, n=1)
            parser.error(f"no fault {name!r}" + (f": did you mean {near[0]!r}?" if near else ""))
    chosen = [everything[name] for name in args.ids] or list(FAULTS.values())
    if args.show:
        print("\n\n".join(f"# {f.id} ({f.operator}, {f.source}): {f.what}\n{f.patch}" for f in chosen))
        return 0
    kills = run(chosen, drivers[args.driver], args.json, args.workers)
    if args.docs:
        docs.PAGE.write_text(docs.page(kills, docs.stored_on_gpu()))
    show(kills)
    return 0 if all(k.caught for k in kills) else 1


def run(chosen: Sequence[Fault], driver: GraphDriver, file: Path | None, workers: int | None) -> list[Kill]:
    """The kills in the order of the faults; each is written to `file`, and to stderr, as it comes."""
    environment, done = environment_of(driver), dict[str, Kill]()
    for count, result in enumerate(kill_all(chosen, driver, workers), start=1):
        done[result.fault] = result
        print(f"{count}/{len(chosen)} {result.fault}: {result.verdict}", file=sys.stderr, flush=True)
        if file is not None:
            store(file, environment, done.values())
    return [done[fault.id] for fault in chosen]


def show(kills: Sequence[Kill]) -> None:
    """A table on a terminal, tab-separated lines elsewhere."""
    if sys.stdout.isatty():
        _show_table(kills)
    else:
        for k in kills:
            print(k.operator, k.fault, k.verdict, ",".join(k.checks), sep="\t")
    caught = sum(k.caught for k in kills)
    print(f"{caught} of {len(kills)} faults caught")


def _show_table(kills: Sequence[Kill]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    letters = dict(zip(CHECKS, string.ascii_lowercase, strict=False))
    table = Table(box=None, padding=(0, 1, 0, 0))
    table.add_column("fault", no_wrap=True)
    for letter in letters.values():
        table.add_column(letter)
    for k in kills:
        marks = ["●" if c == k.headline else "·" if c in k.checks else "" for c in CHECKS]
        style = "" if k.caught else "red"
        table.add_row(f"{k.operator:4}{k.fault}{'' if k.headline else f' ({k.verdict})'}", *marks, style=style)
    console.print(table)
    console.print(*(f"{letter} {check}" for check, letter in letters.items()), sep="   ", highlight=False)
    console.print("● the check nearest to the cause   · fires as well")


if __name__ == "__main__":
    sys.exit(main())
