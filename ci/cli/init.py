"""`nightcap init`: a first spec and a fleet file that pass all checks, fitted to the tests that are there."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from glob import escape
from pathlib import Path, PurePosixPath

import click

from ci import __version__
from ci.cli.main import EXIT_USAGE
from ci.cli.project import Project
from ci.generate.render import LOCK, packaged
from ci.gha.yaml_writer import scalar
from ci.spec.models import REPOSITORY_PATTERN
from ci.suites.discover import discover

RUNNERS = """\
# yaml-language-server: $schema=schema/runners.schema.json
# The fleet: where the schedule counts, and the pools of runners that jobs can ask for.
repository: {repository}
install: python3 -m pip install --quiet git+https://github.com/nightcap-ci/nightcap@v{version}

pools:
  cpu:
    labels: [ubuntu-24.04]
    hosted: true
    timeout: 1h
  # A pool of your own runners; jobs ask for it by name.
  # 8-gpu-b200:
  #   labels: [self-hosted, 8-gpu-b200]
  #   gpus: 8
  #   sm: 100
  #   memory_gib: 180
  #   machines: 2
  #   timeout: 6h
"""
NIGHTLY = """\
# yaml-language-server: $schema=schema/workflow.schema.json
title: Nightly Test
template: nightly
triggers:
  schedule: {{cron: "17 0 * * *"}}
  dispatch: {{}}
{suites}
jobs:
  smoke:
    pool: cpu
    suites: {names}
    tags: [cpu]
    timeout: 1h
    file_timeout: 20m
"""
FIRST_TEST = """\
import pytest

pytestmark = pytest.mark.suite("smoke", est="5s")


def test_the_runner_can_import_the_standard_library():
    import sqlite3

    assert sqlite3.sqlite_version
"""
_REMOTE = re.compile(r"[:/]([A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+?)(?:\.git)?/?$")


@click.command()
@click.option("--repository", metavar="OWNER/NAME", help="Whose schedule counts.  [default: from the remote origin]")
@click.pass_obj
def command(project: Project, repository: str | None) -> None:
    """Write a first spec and a fleet file that pass all checks.

    Nothing that exists is overwritten.

    \b
    Example:
      nightcap init --repository my-org/my-engine && nightcap generate
    """
    root = project.root
    repository = repository or _origin(root)
    if repository is None:
        raise click.UsageError("no remote origin to take the name from: pass --repository OWNER/NAME")
    if not re.fullmatch(REPOSITORY_PATTERN, repository):
        raise click.BadParameter(f"{repository!r} is not OWNER/NAME", param_hint="--repository")
    tests = _tests(root)
    files = {
        "workflows/runners.yml": RUNNERS.format(repository=repository, version=__version__),
        "workflows/nightly.yml": NIGHTLY.format(suites=tests.declared, names=scalar(tests.suites)),
        LOCK: packaged("actions.lock.yml").read_text(encoding="utf-8"),
        **tests.written,
    }
    if existing := [path for path in files if (root / path).exists()]:
        click.echo(f"exists already, nothing written: {', '.join(existing)}", err=True)
        sys.exit(EXIT_USAGE)
    parents = {one for path in files for one in (root / path).parents if one.is_relative_to(root)}
    if blocked := sorted(str(one.relative_to(root)) for one in parents if one.exists() and not one.is_dir()):
        click.echo(f"no folder, nothing written: {', '.join(blocked)}", err=True)
        sys.exit(EXIT_USAGE)
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
        click.echo(f"written {path}")
    if tests.left_out:
        click.echo(f"left out: {', '.join(tests.left_out)} need GPUs, so a pool of your own and a job")
    click.echo("next: nightcap generate, then nightcap plan")


@dataclass(frozen=True)
class FirstTests:
    """What the first job runs."""

    suites: list[str]
    declared: str = ""
    """Text of the spec that declares the suite, where no test file names one."""
    written: Mapping[str, str] = field(default_factory=dict)
    """A first test by path, where the tree has none."""
    left_out: list[str] = field(default_factory=list)


def _tests(root: Path) -> FirstTests:
    """The suites that test files name and that need no GPU, else the tests of the fullest folder, else a first test."""
    files = discover(root).files
    gpus: dict[str, int] = {}
    for use in (use for file in files for use in file.uses if use.disabled is None):
        gpus[use.suite] = max(use.gpus, gpus.get(use.suite, 0))
    left_out = sorted(suite for suite, count in gpus.items() if count)
    if named := sorted(suite for suite, count in gpus.items() if not count):
        return FirstTests(named, left_out=left_out)
    taken = {_pattern(file.path) for file in files if file.uses}
    patterns = Counter(pattern for file in files if file.tests and (pattern := _pattern(file.path)) not in taken)
    if patterns:
        pattern = min(patterns, key=lambda one: (-patterns[one], one))
        return FirstTests(["smoke"], f"\nsuites:\n  smoke: {{files: {scalar([pattern])}}}\n", left_out=left_out)
    return FirstTests(["smoke"], written={"tests/test_smoke.py": FIRST_TEST}, left_out=left_out)


def _pattern(path: str) -> str:
    """The glob of the test files beside this one that are named alike."""
    folder, name = PurePosixPath(path).parent, PurePosixPath(path).name
    glob = "test_*.py" if name.startswith("test_") else "*_test.py"
    return str(PurePosixPath(escape(str(folder))) / glob)


def _origin(root: Path) -> str | None:
    git = ["git", "-C", str(root), "remote", "get-url", "origin"]
    try:
        url = subprocess.run(git, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    match = _REMOTE.search(url)
    return match[1] if match else None
