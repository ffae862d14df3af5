"""`nightcap init`: a first spec and a fleet file that pass all checks, fitted to the tests that are there."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path, PurePosixPath

import click

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
install: python3 -m pip install --quiet nightcap

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
    files = _files(root, repository)
    if existing := [path for path in files if (root / path).exists()]:
        click.echo(f"exists already, nothing written: {', '.join(existing)}", err=True)
        sys.exit(EXIT_USAGE)
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
        click.echo(f"written {path}")
    click.echo("next: nightcap generate, then nightcap plan")


def _files(root: Path, repository: str) -> dict[str, str]:
    found = discover(root)
    named = sorted({use.suite for file in found.files for use in file.uses})
    folders = Counter(str(PurePosixPath(file.path).parent) for file in found.files if file.tests)
    tests: dict[str, str] = {}
    declared = ""
    if not named and folders:
        folder = min(folders, key=lambda one: (-folders[one], one))
        pattern = "test_*.py" if folder == "." else f"{folder}/test_*.py"
        declared = f"\nsuites:\n  smoke: {{files: {scalar([pattern])}}}\n"
    elif not named:
        tests["tests/test_smoke.py"] = FIRST_TEST
    return {
        "workflows/runners.yml": RUNNERS.format(repository=repository),
        "workflows/nightly.yml": NIGHTLY.format(suites=declared, names=scalar(named or ["smoke"])),
        LOCK: packaged("actions.lock.yml").read_text(encoding="utf-8"),
        **tests,
    }


def _origin(root: Path) -> str | None:
    git = ["git", "-C", str(root), "remote", "get-url", "origin"]
    try:
        url = subprocess.run(git, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    match = _REMOTE.search(url)
    return match[1] if match else None
