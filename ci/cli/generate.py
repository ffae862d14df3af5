"""`nightcap generate`: write the workflows from the specs, or check that they are up to date."""

from __future__ import annotations

import json
import sys

import click

from ci.cli.console import print_table
from ci.cli.main import EXIT_FAILED
from ci.cli.project import Project
from ci.generate.files import Change, apply, changes
from ci.generate.limits import problems
from ci.generate.render import render
from ci.planning import suite_problems
from ci.spec.problems import SpecError


@click.command()
@click.option("--check", is_flag=True, help="Write nothing; fail with a diff when a file is out of date.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def command(project: Project, check: bool, as_json: bool) -> None:
    """Write .github/workflows from workflows/ and templates/.

    With --check nothing is written: exit code 1 and a unified diff when a file is out of date. A quarantine that has
    expired is a warning here, since no file depends on it; plans fail until it is repaired.

    \b
    Example:
      nightcap generate --check
    """
    expired = project.expired_quarantine()
    wanted = _changes(project)
    stale = [change for change in wanted if change.status != "unchanged"]
    if not check:
        apply(project.root, wanted)
    if as_json:
        fields = ("path", "status", "jobs", "lines")
        click.echo(json.dumps([{name: getattr(change, name) for name in fields} for change in wanted], indent=2))
    elif check:
        for change in stale:
            click.echo(change.diff())
    else:
        print_table(("status", "file", "jobs", "lines"), map(_row, wanted), right=("jobs", "lines"))
    for problem in expired:
        click.echo(f"warning: {problem}\n    until then `nightcap plan` fails, and every night with it", err=True)
    if check and stale:
        files = ", ".join(change.path for change in stale)
        click.echo(f"out of date: {files}\nrun: nightcap generate", err=True)
        sys.exit(EXIT_FAILED)


def _changes(project: Project) -> list[Change]:
    specs = project.specs()
    if found := [one for name in specs.workflows for one in suite_problems(specs, name, project.catalogue(name))]:
        raise SpecError(found)
    files = render(specs, project.root)
    if beyond := list(problems(specs, files)):
        raise SpecError(beyond)
    return changes(project.root, files)


def _row(change: Change) -> tuple[str, ...]:
    return (change.status, change.path, str(change.jobs or ""), str(change.lines or ""))
