"""`nightcap suites`: suites with their files and needs, and what is wrong with them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import click

from ci.cli.console import print_table
from ci.cli.main import EXIT_FAILED
from ci.cli.project import Project
from ci.planning import suite_problems
from ci.spec.models import format_duration
from ci.suites.catalogue import Suite
from ci.suites.durations import Durations
from ci.suites.findings import findings
from ci.suites.quarantine import unmatched


@click.command(epilog="Exit codes: 0 nothing is wrong, 1 something is, 2 the specs or the call are wrong.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def command(project: Project, as_json: bool) -> None:
    """Suites with their files, times and needs, and what is wrong with them.

    \b
    Example:
      nightcap suites --json
    """
    specs = project.specs()
    catalogues = {name: project.catalogue(name) for name in specs.workflows}
    suites = {suite.name: suite for catalogue in catalogues.values() for suite in catalogue.suites.values()}
    problems = {problem for name, catalogue in catalogues.items() for problem in suite_problems(specs, name, catalogue)}
    problems |= {*unmatched(project.quarantine(), catalogues.values())}
    problems |= {found.problem for found in findings(specs, catalogues, project.discovery())}
    durations = project.durations()
    rows = [_row(suite, durations, list(_jobs(project, suite.name))) for _, suite in sorted(suites.items())]
    if as_json:
        found = [vars(problem) for problem in sorted(problems)]
        click.echo(json.dumps({"suites": rows, "problems": found}, indent=2))
    else:
        table = [tuple(str(value) for value in row.values()) for row in rows]
        columns = ("suite", "files", "tests", "declared", "measured", "GPUs", "SM", "jobs")
        print_table(columns, table, right=("files", "tests", "declared", "measured", "GPUs", "SM"))
        for problem in sorted(problems):
            click.echo(f"\n{problem}")
    sys.exit(EXIT_FAILED if problems else 0)


def _row(suite: Suite, durations: Durations, jobs: list[str]) -> dict[str, object]:
    declared = sum(file.est or 0 for file in suite.files)
    measured: dict[str, float] = {}
    for key, entry in durations.entries.items():
        if key.suite == suite.name:
            measured[key.pool] = measured.get(key.pool, 0) + entry.seconds
    return {
        "name": suite.name,
        "files": len(suite.files),
        "tests": sum(len(file.tests) for file in suite.files),
        "declared": format_duration(declared) if declared else "",
        "measured": ", ".join(f"{format_duration(seconds)} on {pool}" for pool, seconds in sorted(measured.items())),
        "gpus": suite.gpus,
        "min_sm": suite.min_sm or "",
        "jobs": ", ".join(jobs),
    }


def _jobs(project: Project, suite: str) -> Iterator[str]:
    for workflow in project.specs().workflows.values():
        yield from (key for key, job in workflow.jobs.items() if suite in job.suites)
