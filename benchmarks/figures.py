"""The figures in docs, out of benchmarks/results: `python -m benchmarks.figures`.

Each stands between `<!-- NAME figures -->` and `<!-- end -->`; the words round it are written by hand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results"


def runner(found: dict[str, Any]) -> str:
    """The table of `benchmarks.runner`."""
    machine = found["machine"]
    journal = found["journal_ms_per_test"]
    load = machine["load"][0]
    return "\n".join(
        [
            f"| {found['files']} files of one trivial test, best of {len(found['nightcap_run'])} rounds | loop | "
            "`nightcap run` | ratio |",
            "| --- | ---: | ---: | ---: |",
            _costs("wall", "wall time of the whole process", found["wall_ratio"], found),
            _costs("cpu", "CPU time, with children", found["cpu_ratio"], found),
            "",
            f"Two synced lines of the journal for a test: {journal['median']:.2f} ms in the median, at most "
            f"{journal['p95']:.2f} ms for 19 of 20. On {machine['cpus']} CPUs with Python {machine['python']}, at a "
            f"load of {load:.1f} before it began; a neighbour adds to both sides.",
        ]
    )


def _costs(kind: str, name: str, ratio: float, found: dict[str, Any]) -> str:
    loop, run = (min(one[kind] for one in found[side]) for side in ("shell_loop", "nightcap_run"))
    return f"| {name} | {loop:.1f} s | {run:.1f} s | {ratio:.3f} |"


def sharding(found: dict[str, Any]) -> str:
    """The table of `benchmarks.sharding`."""
    proven = found["proven_by_bound"] + found["proven_by_solver"]
    large, moved = found["large"], found["moved_share"]
    lines = ["| | optimal | worst, over the optimum | mean |", "| --- | ---: | ---: | ---: |"]
    for name, one in found["algorithms"].items():
        ratios = f"{one['worst_ratio']:.3f} | {one['mean_ratio']:.4f}"
        lines.append(f"| {name} | {proven - one['not_optimal']} of {proven} | {ratios} |")
    shares = [
        f"{100 * moved[name]['one_more']:.0f} % (a file added) and {100 * moved[name]['all_times']:.0f} % (all times "
        "changed by up to 3 %)"
        for name in ("nightcap", "longest first")
    ]
    return "\n".join(
        [
            *lines,
            "",
            f"In {found['open']} of the {found['cases']} cases the solver proves nothing within its limit. "
            f"{large['files']:,} files in {large['shards']} shards take {large['seconds']:.2f} s. After a small change "
            f"{shares[0]} of the other files change their shard, with longest first {shares[1]}.",
        ]
    )


def generate(found: dict[str, float]) -> str:
    """The table of `benchmarks.generate`."""
    bare = "jinja_pyyaml"
    rows = [
        ("5 jobs, 1 workflow", found["generate_5_jobs"], ""),
        ("50 jobs, 10 workflows", found["generate_50_jobs"], ""),
        ("500 jobs, 100 workflows", found["generate_500_jobs"], f"{found['generate_ms_a_job']:.2f}"),
        ("ghagen, 500 jobs", found["ghagen_500_jobs"], f"{found['ghagen_ms_a_job']:.2f}"),
        ("Jinja and PyYAML without checks, 500 jobs", found[f"{bare}_500_jobs"], f"{found[f'{bare}_ms_a_job']:.2f}"),
    ]
    lines = [f"| {name} | {seconds:.2f} s | {each} |" for name, seconds, each in rows]
    return "\n".join(
        [
            "| whole process | median | ms a job |",
            "| --- | ---: | ---: |",
            *lines,
            "",
            f'`nightcap --help` takes {found["help_ratio"]:.2f} times as long as `python -c "import click, yaml"`.',
        ]
    )


PAGES: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "runner": ("docs/runner.md", runner),
    "sharding": ("docs/sharding.md", sharding),
    "generate": ("docs/decisions.md", generate),
}


def with_figures(name: str) -> str:
    """The page of that benchmark with its figures as the results give them."""
    path, render = PAGES[name]
    figures = render(json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")))
    between = re.compile(rf"(<!-- {name} figures -->\n).*?(<!-- end -->)", re.DOTALL)
    return between.sub(lambda found: f"{found[1]}{figures}\n{found[2]}", (ROOT / path).read_text(encoding="utf-8"))


if __name__ == "__main__":
    for benchmark, (page, _) in PAGES.items():
        (ROOT / page).write_text(with_figures(benchmark), encoding="utf-8")
