"""Builds a small shard, runs it for real, and tells what its journal says."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci import journal
from ci.journal import AnyEvent, Collected, Note, TestFinished, UnitFinished
from ci.plan import PlannedJob, Shard, Unit
from ci.runner import processes
from ci.runner.options import RunOptions
from ci.runner.shard import RunResult, run_shard

SUITE = "s"
REPOSITORY = Path(__file__).parents[2]
DRIVER = Path(__file__).with_name("driver.py")


@dataclass(frozen=True)
class Night:
    """What a run left."""

    result: RunResult
    events: tuple[AnyEvent, ...]
    unreadable: int

    @property
    def results(self) -> dict[str, list[str]]:
        """Test -> outcomes in the order of the journal."""
        found: dict[str, list[str]] = {}
        for event in self.of(TestFinished):
            found.setdefault(event.test.rpartition("::")[2], []).append(event.outcome)
        return found

    @property
    def endings(self) -> list[str]:
        return [event.ending for event in self.of(UnitFinished)]

    @property
    def details(self) -> str:
        return "\n".join(event.detail for event in self.of(UnitFinished))

    @property
    def notes(self) -> list[str]:
        return [event.message for event in self.of(Note)]

    @property
    def log(self) -> str:
        return self.result.units[0].log.read_text(errors="replace")

    def message(self, test: str) -> str:
        return next(e.message for e in self.of(TestFinished) if e.test.endswith(f"::{test}"))

    def collected(self) -> list[tuple[str, ...]]:
        return [tuple(t.rpartition("::")[2] for t in event.tests) for event in self.of(Collected)]

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


@dataclass(frozen=True)
class Bench:
    """A repository to run tests of. All that runs in it bears `token`, whatever the runner does."""

    root: Path
    env: Mapping[str, str]
    token: str

    def file(self, source: str, name: str = "test_it.py") -> str:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))
        return name

    def run(self, *units: Unit, options: Mapping[str, Any] | None = None, **job: Any) -> Night:
        planned = plan(*units, **job)
        told = RunOptions(
            root=self.root,
            results=self.root / "results",
            plan_hash="hash",
            workflow="nightly",
            env=self.env,
            **{"quiet": True, "grace": 0.3, "locks": self.root / "locks", **(options or {})},
        )
        result = run_shard(planned, planned.shards[0], options=told)
        read = journal.read(result.journal)
        return Night(result, read.events, read.unreadable)

    def run_file(self, source: str, *tests: str, **more: Any) -> Night:
        """Run one test file of which `tests` are planned."""
        name = self.file(source)
        return self.run(unit(name, *(f"{name}::{test}" for test in tests)), **more)

    def start(self, *units: Unit, **job: Any) -> subprocess.Popen[bytes]:
        """The same in a process of its own, which runs on meanwhile."""
        (self.root / "results" / "journal.jsonl").unlink(missing_ok=True)
        given = self.root / "job.json"
        given.write_text(plan(*units, **job).model_dump_json())
        return subprocess.Popen([sys.executable, str(DRIVER), str(given), str(self.root)], env=self.env, cwd=REPOSITORY)

    def journal(self) -> journal.Journal:
        return journal.read(self.root / "results" / "journal.jsonl")

    def wait_for_file(self, name: str, seconds: float = 60.0) -> None:
        """Wait until a test made this file."""
        deadline = time.monotonic() + seconds
        while not (self.root / name).exists():
            if time.monotonic() > deadline:
                raise AssertionError(f"no {name} in {seconds} s")
            time.sleep(0.01)

    def wait_for_lines(self, count: int, seconds: float = 60.0) -> None:
        """Wait until the journal of a run that was just started has so many lines."""
        path = self.root / "results" / "journal.jsonl"
        deadline = time.monotonic() + seconds
        while not path.exists() or path.read_bytes().count(b"\n") < count:
            if time.monotonic() > deadline:
                raise AssertionError(f"fewer than {count} lines in {seconds} s")
            time.sleep(0.002)

    def wait_until_live(self, commands: Collection[str], seconds: float = 20.0) -> None:
        """Wait until exactly these command lines live, which may all be among those that live now or come yet."""
        deadline = time.monotonic() + seconds
        while sorted(self.survivors()) != sorted(commands):
            if time.monotonic() > deadline:
                raise AssertionError(f"alive after {seconds} s: {self.survivors()}")
            time.sleep(0.01)

    def survivors(self) -> list[str]:
        """Command lines of processes of this bench that still live."""
        return [
            processes.command_of(process.pid)
            for process in processes.table().values()
            if process.state not in "ZX" and self.token.encode() in _environment(process.pid)
        ]


def bench(root: Path, environment: Mapping[str, str]) -> Bench:
    """A bench in an empty folder. Tests of ours may themselves run under the runner: its marks are left out."""
    token = uuid.uuid4().hex
    ours = ("NIGHTCAP_", "PYTEST_", "CUDA_VISIBLE")
    env = {name: value for name, value in environment.items() if not name.startswith(ours)}
    env |= {
        "BENCH_TOKEN": token,
        "PYTHONPATH": str(REPOSITORY),  # for the driver of `start`
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # a test asks for the plug-ins that it is about
    }
    return Bench(root, env, token)


def unit(path: str, *tests: str, kind: str = "pytest", suite: str = SUITE, **more: Any) -> Unit:
    return Unit(suite=suite, kind=kind, path=path, tests=tests, seconds=1, **more)


def plan(*units: Unit, **job: Any) -> PlannedJob:
    shard = Shard(index=1, count=1, seconds=1, units=units)
    fields = {"key": "j", "state": "selected", "reason": "r", "pool": "p", "timeout": 600, "file_timeout": 60}
    return PlannedJob(**{**fields, "disk_gib": 0, **job}, shards=(shard,))


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""
