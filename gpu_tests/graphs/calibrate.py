"""Compare the emulation with real CUDA graphs, snippet by snippet.

    python -m gpu_tests.graphs.calibrate --driver cuda --json gpu_tests/graphs/data/calibration_cuda.json
    python -m gpu_tests.graphs.calibrate --driver cpu --json /tmp/cpu.json
    python -m gpu_tests.graphs.calibrate --compare

The first needs a GPU (about a minute) and writes the stored verdicts; re-run it when torch changes.  The
last runs the emulation here and compares it with what is stored; it fails when the agreement is too low,
when the emulation accepts too much, or when a disagreement has no explanation.
"""

from __future__ import annotations

import argparse
import datetime
import faulthandler
import json
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from gpu_tests.graphs.driver import GraphDriver
from gpu_tests.graphs.emulation import CpuGraphDriver
from gpu_tests.graphs.snippets import TABLE, Observation

STORED = Path(__file__).parent / "data" / "calibration_cuda.json"
MIN_AGREE, MAX_UNSAFE = 183, 5
_LANES = 8
_SECONDS_PER_SNIPPET = 60


@dataclass(frozen=True)
class Disagreement:
    name: str
    kind: str
    emulation: Observation
    cuda: Observation
    explanation: str

    @property
    def unsafe(self) -> bool:
        """The emulation accepts what CUDA refuses: a test would pass here and crash there."""
        return self.emulation.verdict == "captured" and self.cuda.verdict == "refused"


@dataclass(frozen=True)
class Comparison:
    total: int
    disagreements: tuple[Disagreement, ...]

    @property
    def agree(self) -> int:
        return self.total - len(self.disagreements)

    @property
    def unsafe(self) -> list[Disagreement]:
        return [d for d in self.disagreements if d.unsafe]

    @property
    def unexplained(self) -> list[Disagreement]:
        return [d for d in self.disagreements if not d.explanation]

    def problems(self) -> list[str]:
        """Why the emulation may not be trusted; empty when it may."""
        found = [f"no explanation for {d.name!r} (see `differs` in snippets.py)" for d in self.unexplained]
        if self.agree < MIN_AGREE:
            found.append(f"only {self.agree} snippets agree, at least {MIN_AGREE} must")
        if len(self.unsafe) > MAX_UNSAFE:
            found.append(f"{len(self.unsafe)} snippets are unsafe, at most {MAX_UNSAFE} may be")
        return found


def observe_all(driver: GraphDriver) -> dict[str, Observation]:
    """Every snippet in this process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {entry.name: entry.observe(driver) for entry in TABLE}


def compare(emulation: dict[str, Observation], cuda: dict[str, Observation]) -> Comparison:
    """Join the two by name.  A snippet that one side lacks is an error, never a silent omission."""
    missing = {entry.name for entry in TABLE} ^ (emulation.keys() & cuda.keys())
    if missing:
        raise SystemExit(f"stored verdicts and snippets do not match; measure again: {sorted(missing)}")
    disagreements = (
        Disagreement(entry.name, entry.kind, emulation[entry.name], cuda[entry.name], entry.differs)
        for entry in TABLE
        if _essence(emulation[entry.name]) != _essence(cuda[entry.name])
    )
    return Comparison(len(TABLE), tuple(disagreements))


def _essence(o: Observation) -> tuple[str, str]:
    return o.verdict, o.value


def load(path: Path) -> tuple[dict[str, Any], dict[str, Observation]]:
    """(environment of the measurement, observations by name) of a stored file."""
    if not path.exists():
        command = f"python -m gpu_tests.graphs.calibrate --driver cuda --json {path}"
        raise FileNotFoundError(f"no verdicts of a real GPU are stored; on a machine with one, run: {command}")
    stored = json.loads(path.read_text())
    return stored["environment"], {name: Observation(**o) for name, o in stored["snippets"].items()}


def store(path: Path, environment: dict[str, str], observations: dict[str, Observation]) -> None:
    document = {
        "environment": environment,
        "snippets": {name: asdict(observations[name]) for name in sorted(observations)},
    }
    path.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


def environment_of(driver: str) -> dict[str, str]:
    environment = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "driver": driver,
        "python": sys.version.split()[0],
        "torch": torch.__version__,
    }
    if driver == "cuda":
        query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        card, _, version = subprocess.check_output(query, text=True).splitlines()[0].partition(", ")
        environment |= {"card": card, "nvidia_driver": version, "cuda": str(torch.version.cuda)}
    return environment


# Real graphs: worker processes, because a device-side assert ends a process's use of the GPU.


def observe_in_workers(path: Path) -> None:
    """Every snippet on the GPU, in lanes of worker processes; `path` is rewritten after each result."""
    seen: dict[str, Observation] = {}
    lock, environment = threading.Lock(), environment_of("cuda")

    def keep(name: str, observation: Observation) -> None:
        with lock:
            seen[name] = observation
            store(path, environment, seen)
            print(f"{observation.verdict:9} {observation.value:12} {name}  {observation.error}", flush=True)

    names = [entry.name for entry in TABLE]
    with ThreadPoolExecutor(_LANES) as pool:
        list(pool.map(lambda lane: _run_lane(names[lane::_LANES], keep), range(_LANES)))


def _run_lane(names: list[str], keep: Callable[[str, Observation], None]) -> None:
    """One worker after the other until every snippet has its observation."""
    todo = list(names)
    while todo:
        started = None
        for event in _worker_events(todo):
            started = event["name"]
            if "observation" in event:
                keep(started, Observation(**event["observation"]))
                todo.remove(started)
        if started is None:
            raise SystemExit("a worker process ended before its first snippet; its error is above")
        if started in todo:
            keep(started, Observation("captured", "error", "the worker process died or hung"))
            todo.remove(started)


def _worker_events(names: list[str]) -> Iterator[dict[str, Any]]:
    command = [sys.executable, "-m", "gpu_tests.graphs.calibrate", "--worker"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(json.dumps(names))
        worker.stdin.close()
        for line in worker.stdout:
            if line.startswith("{"):
                yield json.loads(line)


def _work() -> None:
    """The worker: names on stdin; a line when a snippet starts and a line with what was observed."""
    from gpu_tests.graphs.cuda import CudaGraphDriver

    warnings.simplefilter("ignore")
    driver = CudaGraphDriver()
    todo = set(json.load(sys.stdin))
    for entry in TABLE:
        if entry.name not in todo:
            continue
        faulthandler.dump_traceback_later(_SECONDS_PER_SNIPPET, exit=True)
        print(json.dumps({"name": entry.name}), flush=True)
        observation = entry.observe(driver)
        print(json.dumps({"name": entry.name, "observation": asdict(observation)}), flush=True)
        if observation.value == "error":
            os._exit(0)  # the CUDA context is gone, also for the destructors of a normal exit


def report(comparison: Comparison, environment: dict[str, Any]) -> str:
    """The comparison as text."""
    lines = [
        f"{comparison.agree} of {comparison.total} snippets agree with CUDA "
        f"(torch {environment['torch']}, {environment['card']}, {environment['date']}); "
        f"{len(comparison.unsafe)} unsafe, {len(comparison.unexplained)} unexplained"
    ]
    for d in comparison.disagreements:
        lines.append(f"  {d.name}{' (unsafe)' if d.unsafe else ''}: {d.explanation or 'UNEXPLAINED'}")
        lines += [
            f"    {side}: {o.words}  {o.error}".rstrip() for side, o in (("emulation", d.emulation), ("cuda", d.cuda))
        ]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--driver", choices=("cpu", "cuda"), help="observe every snippet with this driver")
    parser.add_argument("--json", type=Path, help="where to write what was observed")
    parser.add_argument("--compare", action="store_true", help="compare the emulation with the stored verdicts")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.worker:
        _work()
        return 0
    if options.compare:
        environment, cuda = load(STORED)
        comparison = compare(observe_all(CpuGraphDriver()), cuda)
        print(report(comparison, environment))
        print("\n".join(comparison.problems()))
        return 1 if comparison.problems() else 0
    if options.driver is None or options.json is None:
        parser.error("give --driver and --json, or --compare")
    if options.driver == "cuda":
        observe_in_workers(options.json)
    else:
        store(options.json, environment_of("cpu"), observe_all(CpuGraphDriver()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
