"""The parent of the ranks: starts one process each, waits with a limit, ends all of them, reads what they left.

Each rank leads a process group of its own, which is killed when the launch is over, whatever happened.  A rank that
dies or hangs is a finding about that rank, never a stuck job.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gpu_tests.parallel.report import CaseResult, Exit, RankReport, diagnose

START_S = 120.0
CASE_S = {"gloo": 20.0, "nccl": 120.0}
"""Seconds of a launch: to import torch and meet, and for each case.  Far more than they take: a collective that hangs
ends by its own limit."""

GRACE_S = 5.0
"""Once a rank has died, the others have this long beyond the limit of a collective to report what they saw."""

DEFAULT_BACKEND = "gpu_tests.parallel.session:MetadataInGraph"
REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Team:
    """Which ranks run: `backend` is the library of the collectives, one GPU a rank for nccl."""

    backend: Literal["gloo", "nccl"]
    size: int

    @property
    def device(self) -> str:
        return "cuda" if self.backend == "nccl" else "cpu"

    def __str__(self) -> str:
        return f"{self.backend}-{self.size}"


@dataclass
class RankProcess:
    """A running rank; its output goes to a file."""

    rank: int
    process: subprocess.Popen[bytes]
    log: Path


def run(team: Team, cases: Mapping[str, float], backend: str = DEFAULT_BACKEND) -> dict[str, CaseResult]:
    """Run cases one after the other on the same ranks; a result for each.

    cases: names of `cases.CASES`, each with the limit of one collective in seconds.
    """
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        arguments = [str(team.size), team.device, folder, backend, *(f"{name}={s}" for name, s in cases.items())]
        commands = [
            [sys.executable, "-m", "gpu_tests.parallel.rank", str(rank), *arguments] for rank in range(team.size)
        ]
        limit = START_S + sum(CASE_S[team.backend] + s for s in cases.values())
        exits = supervise(commands, Path(folder), limit, GRACE_S + max(cases.values(), default=0.0))
        return _results(list(cases), Path(folder), exits)


def supervise(commands: Sequence[Sequence[str]], folder: Path, limit_s: float, grace_s: float) -> dict[int, Exit]:
    """Run a command a rank, all at once, until they end; `limit_s` for all, `grace_s` once one of them failed."""
    deadline = time.monotonic() + limit_s
    with ExitStack() as stack:
        ranks = [_start(rank, command, folder, len(commands), stack) for rank, command in enumerate(commands)]
        failed = False
        while any(r.process.poll() is None for r in ranks) and time.monotonic() < deadline:
            if not failed and any(r.process.poll() not in (None, 0) for r in ranks):
                failed, deadline = True, min(deadline, time.monotonic() + grace_s)
            time.sleep(0.01)
        codes = {r.rank: r.process.poll() for r in ranks}
    return {r.rank: Exit(codes[r.rank], _last_phase(folder, r.rank), limit_s, _tail(r.log)) for r in ranks}


def _start(rank: int, command: Sequence[str], folder: Path, size: int, stack: ExitStack) -> RankProcess:
    log = folder / f"rank{rank}.log"
    with log.open("wb") as output:
        # Standard input stays open as long as the parent lives: a rank ends when it closes.
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=_environment(size),
            start_new_session=True,
        )
    stack.callback(_end, process)
    return RankProcess(rank, process, log)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the process group of a rank that is still there."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def end_with_parent() -> None:
    """In a rank: end when standard input closes, which is when the parent is gone, however it went."""

    def watch() -> None:
        while os.read(0, 1):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _environment(size: int) -> dict[str, str]:
    environment = dict(os.environ)
    paths = [str(REPOSITORY), *filter(None, [environment.get("PYTHONPATH")])]
    return environment | {
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // size)),
        # Ranks of one host: the loopback device is always there, and a host name may not resolve.
        "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
        # Multicast memory needs a fabric manager that knows the partition; without one NCCL fails at the first
        # all-reduce of a container.
        "NCCL_NVLS_ENABLE": "0",
        "PYTHONFAULTHANDLER": "1",
    }


def _results(cases: Sequence[str], folder: Path, exits: Mapping[int, Exit]) -> dict[str, CaseResult]:
    reports: dict[str, dict[int, RankReport]] = {case: {} for case in cases}
    for rank in exits:
        for event in _events(folder, rank):
            if "report" in event:
                report = RankReport.from_json(event["report"])
                reports[report.case][rank] = report
    return {case: diagnose(case, reports[case], exits) for case in cases}


def _events(folder: Path, rank: int) -> list[dict[str, Any]]:
    """The lines that a rank wrote; the last may be torn if it was killed."""
    path = folder / f"rank{rank}.jsonl"
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _last_phase(folder: Path, rank: int) -> str:
    phases = [event["phase"] for event in _events(folder, rank) if "phase" in event]
    return phases[-1] if phases else Exit.phase


def _tail(log: Path, lines: int = 8) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
