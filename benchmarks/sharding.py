"""How even are our shards? Makespan over the proven optimum, beside the algorithms that others use.

    python benchmarks/sharding.py [--solver-seconds 10]

For every suite of two months of a public engine (`benchmarks/data`) and 2, 3, 4, 6 and 8 shards, where there
are more files than shards. The optimum is proven by the lower bound where somebody reaches it, else by
OR-tools CP-SAT; what it cannot prove in time is counted as open and judged against the solver's bound. Beside
ours: plain longest-processing-time first, pytest-split's two algorithms, and a hash of the path. Also
measured: 10,000 files in 8 shards, and how many of the other files change their shard when one file is added,
or all times by up to 3 %.

Needs `ortools` and `pytest-split`. Results go to `benchmarks/results/sharding.json`.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from ortools.sat.python import cp_model
from pytest_split.algorithms import Algorithms

from ci.suites.partition import lower_bound
from ci.suites.sharding import Item, assign

HERE = Path(__file__).parent
COUNTS = (2, 3, 4, 6, 8)
Division = list[list[Item]]
Algorithm = Callable[[Sequence[Item], int], Division]


def ours(items: Sequence[Item], count: int) -> Division:
    return [list(shard.items) for shard in assign(items, count)]


def longest_first(items: Sequence[Item], count: int) -> Division:
    parts: Division = [[] for _ in range(count)]
    for item in sorted(items, key=lambda item: (-item.seconds, item.id)):
        min(parts, key=seconds).append(item)
    return parts


def by_hash(items: Sequence[Item], count: int) -> Division:
    parts: Division = [[] for _ in range(count)]
    for item in items:
        parts[zlib.crc32(item.id.encode()) % count].append(item)
    return parts


@dataclass(frozen=True)
class PytestItem:
    """What pytest-split needs of a test."""

    nodeid: str


def pytest_split(name: str) -> Algorithm:
    def divide(items: Sequence[Item], count: int) -> Division:
        by_id = {item.id: item for item in items}
        tests = [PytestItem(item.id) for item in sorted(items, key=lambda item: item.id)]
        times = {item.id: item.seconds for item in items}
        groups = Algorithms[name].value(count, tests, times)  # type: ignore[arg-type]
        return [[by_id[test.nodeid] for test in group.selected] for group in groups]

    return divide


ALGORITHMS: dict[str, Algorithm] = {
    "nightcap": ours,
    "longest first": longest_first,
    "pytest-split least_duration": pytest_split("least_duration"),
    "pytest-split duration_based_chunks": pytest_split("duration_based_chunks"),
    "hash of the path": by_hash,
}


@dataclass(frozen=True)
class Case:
    """One suite in one count of shards; all times are whole seconds in the data."""

    name: str
    count: int
    items: tuple[Item, ...]
    makespans: dict[str, float]
    bound: int
    """No division is faster; equal to `best` when that is proven."""
    best: int
    proof: str


def seconds(part: Sequence[Item]) -> float:
    return sum(item.seconds for item in part)


def prove(sizes: Sequence[int], count: int, known: int, limit: float) -> tuple[int, int]:
    """(lower bound, best makespan) by the exact solver, which starts from a known makespan.

    One variable a size and shard, since files of the same size are alike; shards are ordered by their load.
    """
    model = cp_model.CpModel()
    slowest = model.new_int_var(lower_bound(sorted(sizes, reverse=True), count), known, "slowest")
    loads = []
    used = {size: [model.new_int_var(0, many, "") for _ in range(count)] for size, many in Counter(sizes).items()}
    for size, shards in used.items():
        model.add(sum(shards) == sizes.count(size))
    for shard in range(count):
        loads.append(sum(size * shards[shard] for size, shards in used.items()))
        model.add(loads[-1] <= slowest)
    for one, other in pairwise(loads):
        model.add(one >= other)
    model.minimize(slowest)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = limit
    solver.parameters.num_workers = 2
    status = solver.solve(model)
    bound = -int(-solver.best_objective_bound // 1)
    return bound, int(solver.objective_value) if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else known


def cases(limit: float) -> list[Case]:
    found = []
    for path in sorted((HERE / "data").glob("est-times-*.json")):
        for suite, files in json.loads(path.read_text()).items():
            items = tuple(Item(test, float(one)) for test, one in files.items())
            for count in COUNTS:
                if len(items) > count:
                    found.append(judge(f"{path.stem} {suite}", items, count, limit))
    return found


def judge(name: str, items: tuple[Item, ...], count: int, limit: float) -> Case:
    makespans = {algorithm: max(map(seconds, divide(items, count))) for algorithm, divide in ALGORITHMS.items()}
    sizes = sorted((int(item.seconds) for item in items), reverse=True)
    bound, best, proof = lower_bound(sizes, count), int(min(makespans.values())), "bound"
    if best > bound:
        bound, best = prove(sizes, count, best, limit)
        proof = "solver" if bound == best else "open"
    return Case(name, count, items, makespans, bound, best, proof)


def summary(found: list[Case], algorithm: str) -> dict[str, float]:
    """How an algorithm does over all proven cases, and its worst case over all, against the bound."""
    proven = [case.makespans[algorithm] / case.best for case in found if case.proof != "open"]
    return {
        "optimal_share": sum(ratio == 1 for ratio in proven) / len(proven),
        "not_optimal": sum(ratio > 1 for ratio in proven),
        "mean_ratio": statistics.mean(proven),
        "worst_ratio": max(proven),
        "worst_ratio_to_bound_where_open": max(
            (case.makespans[algorithm] / case.bound for case in found if case.proof == "open"), default=1.0
        ),
    }


def large(files: int = 10_000, count: int = 8) -> dict[str, float]:
    """Time to divide many files, and what comes of it; the median of five draws."""
    times, ratios = [], []
    for seed in range(5):
        draw = random.Random(seed)
        items = [Item(f"tests/test_{index}.py", draw.lognormvariate(4, 1.2)) for index in range(files)]
        started = time.perf_counter()
        shards = assign(items, count)
        times.append(time.perf_counter() - started)
        ratios.append(max(shard.seconds for shard in shards) / (seconds(items) / count))
    return {
        "files": files,
        "shards": count,
        "seconds": statistics.median(times),
        "ratio_to_mean": max(ratios),
    }


def moved_shares(found: list[Case]) -> dict[str, dict[str, float]]:
    """Share of the files, in suites of 20 and more, that change their shard after a small change."""
    suites = [case for case in found if len(case.items) >= 20]

    def one_more(items: tuple[Item, ...], draw: random.Random) -> list[Item]:
        return [*items, Item("tests/test_new.py", draw.choice(items).seconds)]

    def all_times(items: tuple[Item, ...], draw: random.Random) -> list[Item]:
        return [Item(item.id, item.seconds * draw.uniform(0.97, 1.03)) for item in items]

    shares: dict[str, dict[str, float]] = {}
    for algorithm in ("nightcap", "longest first"):
        for change in (one_more, all_times):
            draw = random.Random(0)
            moved = [_moved(ALGORITHMS[algorithm], case, change(case.items, draw)) for case in suites]
            share = sum(moved) / sum(len(case.items) for case in suites)
            shares.setdefault(algorithm, {})[change.__name__] = share
    return shares


def _moved(divide: Algorithm, case: Case, changed: list[Item]) -> int:
    before = {item.id: index for index, part in enumerate(divide(case.items, case.count)) for item in part}
    after = {item.id: index for index, part in enumerate(divide(changed, case.count)) for item in part}
    return sum(after[test] != index for test, index in before.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--solver-seconds", type=float, default=10.0, help="limit of the exact solver a case")
    found = cases(parser.parse_args().solver_seconds)
    proofs = Counter(case.proof for case in found)
    results = {
        "cases": len(found),
        "proven_by_bound": proofs["bound"],
        "proven_by_solver": proofs["solver"],
        "open": proofs["open"],
        "algorithms": {name: summary(found, name) for name in ALGORITHMS},
        "large": large(),
        "moved_share": moved_shares(found),
    }
    text = json.dumps(results, indent=2) + "\n"
    (HERE / "results").mkdir(exist_ok=True)
    (HERE / "results" / "sharding.json").write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
