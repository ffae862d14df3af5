"""What the runner costs: `python -m benchmarks.runner [--files 200] [--rounds 3] [--json FILE]`.

1. Whole processes: `nightcap run` of a job with many trivial test files, against a shell loop of `python -m pytest
   FILE` over the same files. The two take turns; the ratio is that of their best rounds, since a neighbour on the
   machine only ever adds. CPU time (user and system, children included) is given beside wall time.
2. The journal: milliseconds for the two lines of a test, each on disk before the next, by the plug-in's own writer.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ci.runner.inside.nightcap_inside.lines import Lines

SPECS = {
    "workflows/runners.yml": "repository: acme/engine\npools:\n  cpu: {labels: [self-hosted, cpu], timeout: 4h}\n",
    "workflows/nightly.yml": (
        "title: Nightly\ntemplate: nightly\ntriggers: {dispatch: {}}\n"
        "jobs:\n  trivial: {pool: cpu, suites: [trivial], timeout: 3h, file_timeout: 5m}\n"
    ),
}
TEST = 'import pytest\npytestmark = pytest.mark.suite("trivial", est="1s")\ndef test_{number}(): assert True\n'
INI = "[pytest]\nmarkers = suite\n"
LOOP = 'for file in tests/test_*.py; do "$0" -m pytest -q "$file" || exit 1; done'


@dataclass(frozen=True)
class Cost:
    """Seconds of one whole process with its children."""

    wall: float
    cpu: float


def main() -> None:
    parser = argparse.ArgumentParser(description="What the runner costs, beside a shell loop.")
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="such as benchmarks/results/runner.json")
    told = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), told.files, told.rounds)
    text = json.dumps(found, indent=2)
    print(text)
    if told.json:
        told.json.write_text(text + "\n", encoding="utf-8")


def measure(root: Path, files: int, rounds: int) -> dict[str, object]:
    """Both measurements, in a repository made for them."""
    for name, content in {**SPECS, "pytest.ini": INI}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content, encoding="utf-8")
    (root / "tests").mkdir()
    for number in range(files):
        (root / "tests" / f"test_{number:04}.py").write_text(TEST.format(number=number), encoding="utf-8")
    nightcap = (str(Path(sys.executable).parent / "nightcap"), "-C", str(root), "run", "trivial")
    machine: dict[str, object] = {
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "kernel": platform.release(),
    }
    machine["load"] = os.getloadavg()
    loops, runs = [], []
    for _ in range(rounds):
        loops.append(cost(("bash", "-c", LOOP, sys.executable), root))
        runs.append(cost(nightcap, root))
    loop, run = min(loops, key=lambda one: one.wall), min(runs, key=lambda one: one.wall)
    return {
        "machine": machine,
        "files": files,
        "shell_loop": [asdict(one) for one in loops],
        "nightcap_run": [asdict(one) for one in runs],
        "wall_ratio": run.wall / loop.wall,
        "cpu_ratio": min(one.cpu for one in runs) / min(one.cpu for one in loops),
        "journal_ms_per_test": journal_cost(root),
    }


def cost(command: Sequence[str], root: Path) -> Cost:
    """Run a command to its end. Raises CalledProcessError when it fails: then there is nothing to measure."""
    before, started = os.times(), time.perf_counter()
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    subprocess.run(command, cwd=root, env=env, stdout=subprocess.DEVNULL, check=True)
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return Cost(time.perf_counter() - started, cpu)


def journal_cost(root: Path, tests: int = 500) -> dict[str, float]:
    """Milliseconds for `test_started` and `test_finished` with sync: median and 95th percentile."""
    lines = Lines(root / "journal.jsonl", root / "reserve")
    text = json.dumps({"event": "test_finished", "test": "tests/test_a.py::test_b[case]", "message": "x" * 150}) + "\n"
    taken = []
    for _ in range(tests):
        started = time.perf_counter()
        lines.append(text)
        lines.append(text)
        taken.append((time.perf_counter() - started) * 1e3)
    lines.close()
    return {"median": statistics.median(taken), "p95": statistics.quantiles(taken, n=20)[-1]}


if __name__ == "__main__":
    main()
