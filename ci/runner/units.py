"""The command line, the environment and the files of one attempt of a unit.

Beside the environment of the run and the job's own `env`, a unit finds:

    NIGHTCAP_SUITE            its suite
    NIGHTCAP_SHARD_INDEX      from 0, and NIGHTCAP_SHARD_COUNT
    NIGHTCAP_TESTS_FILE       for a command: what to run, a line each
    NIGHTCAP_PORT_BASE        first of NIGHTCAP_PORT_COUNT ports that no other run of the host uses
    MASTER_PORT               the same port, unless the job sets it
    NIGHTCAP_MARK             the run's id, by which whatever it starts is found again
    TMPDIR                    a folder that is gone after the run
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ci.plan import PlannedJob, Shard, Unit
from ci.runner.processes import MARK
from ci.runner.supervise import Task

INSIDE = Path(__file__).parent / "inside"
"""Folder on the PYTHONPATH of the tests; see `ci.runner.inside`."""

_UNFIT_FOR_A_NAME = re.compile(r"[^A-Za-z0-9_.-]")


@dataclass(frozen=True)
class Places:
    """Where a shard keeps its files. `scratch` is gone after the run; the rest is what the run leaves."""

    root: Path
    results: Path
    scratch: Path

    @property
    def journal(self) -> Path:
        """The record, one event a line."""
        return self.results / "journal.jsonl"

    @property
    def junit(self) -> Path:
        """The same results for reporters that read JUnit."""
        return self.results / "junit.xml"

    @property
    def reserve(self) -> Path:
        """Disk space put aside, so that a full disk can still be written down."""
        return self.results / ".reserve"

    def log(self, unit: Unit, attempt: int) -> Path:
        """What an attempt printed."""
        return self.results / "logs" / _name(unit.suite) / f"{_name(unit.path)}.attempt{attempt}.log"

    def stacks(self, unit: Unit, attempt: int) -> Path:
        """What the processes of an attempt were doing when time ran out."""
        return self.log(unit, attempt).with_suffix(".stacks.txt")


@dataclass(frozen=True)
class Attempt:
    """One process for one unit. `only` holds the full ids to run; None runs all."""

    job: PlannedJob
    shard: Shard
    unit: Unit
    number: int
    only: tuple[str, ...] | None = None
    reason: str = ""


def task(attempt: Attempt, places: Places, base: Mapping[str, str], mark: str) -> Task:
    """Everything that the supervisor needs, with the attempt's files written and its folders made."""
    log = places.log(attempt.unit, attempt.number)
    log.parent.mkdir(parents=True, exist_ok=True)
    temporary = places.scratch / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    return Task(
        command=_command(attempt, places),
        cwd=places.root,
        env=_environment(attempt, places, base, temporary) | {MARK: mark},
        log=log,
        stacks=places.stacks(attempt.unit, attempt.number),
        signs_of_life=places.journal,
    )


def _command(attempt: Attempt, places: Places) -> list[str]:
    unit = attempt.unit
    if unit.kind == "command":
        return ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", unit.command]
    if unit.kind == "script":
        return [sys.executable, "-X", "faulthandler", unit.path]
    return [
        *(sys.executable, "-m", "pytest"),
        *("-p", "nightcap_inside.pytest_plugin", "--nightcap-unit", str(_unit_file(attempt, places))),
        *("--rootdir", str(places.root), "-o", f"cache_dir={places.scratch / 'pytest-cache'}"),
        # Not captured: what a test printed before it crashed or hung would be lost with the process.
        *("-v", "--capture=no"),
        # One broken class must not hide the other tests; nor may a project's own -x.
        *("--continue-on-collection-errors", "--maxfail=0"),
        unit.path,
    ]


def _environment(attempt: Attempt, places: Places, base: Mapping[str, str], temporary: Path) -> dict[str, str]:
    env = {
        **base,
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        "TMPDIR": str(temporary),
        "NIGHTCAP_SUITE": attempt.unit.suite,
        "NIGHTCAP_SHARD_INDEX": str(attempt.shard.index - 1),
        "NIGHTCAP_SHARD_COUNT": str(attempt.shard.count),
    }
    if attempt.unit.kind == "pytest":
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(INSIDE), env.get("PYTHONPATH", ""))))
    if attempt.unit.kind == "command":
        items = places.scratch / "tests.txt"
        items.write_text("".join(f"{item}\n" for item in attempt.unit.items), encoding="utf-8")
        env["NIGHTCAP_TESTS_FILE"] = str(items)
    return env


def _unit_file(attempt: Attempt, places: Places) -> Path:
    unit = attempt.unit
    path = places.scratch / "unit.json"
    content = {
        "journal": str(places.journal),
        "reserve": str(places.reserve),
        "stacks": str(places.stacks(unit, attempt.number)),
        "unit": unit.path,
        "suite": unit.suite,
        "attempt": attempt.number,
        "planned": unit.tests,
        "exclude_marks": attempt.job.exclude_marks,
        "only": attempt.only,
    }
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def reproduce_command(unit: Unit, test: str) -> str:
    """The command that runs one test without the runner, for a person to paste."""
    if unit.kind == "command":
        return unit.command
    if unit.kind == "script":
        return f"python {shlex.quote(unit.path)}"
    return f"python -m pytest {shlex.quote(test)}"


def _name(text: str) -> str:
    """The text as a file name that an artifact may hold: `gpu_tests/test_a.py` -> `gpu_tests.test_a.py`."""
    return _UNFIT_FOR_A_NAME.sub("_", text.replace("/", "."))
