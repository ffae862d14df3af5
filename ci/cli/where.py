"""`nightcap where`: where a test runs, and the command to run just that."""

from __future__ import annotations

import json
import sys

import click

from ci.cli.console import print_table
from ci.cli.main import EXIT_FAILED
from ci.cli.project import Project, workflow_option
from ci.plan import PlannedJob, Shard, Unit
from ci.runner.units import reproduce_command
from ci.spec.problems import did_you_mean


@click.command()
@click.argument("test")
@workflow_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def command(project: Project, test: str, workflow: str | None, as_json: bool) -> None:
    """Where a test or a test file runs: suite, jobs, pools, shard tonight, and the command to run just that.

    \b
    Example:
      nightcap where gpu_tests/test_attention_reference.py
    """
    name = project.workflow(workflow)
    jobs = project.plan(name, "schedule", "all").selected
    units = {job.key: [unit for shard in job.shards for unit in shard.units] for job in jobs}
    named = {key: project.units_of(name, several, test) for key, several in units.items()}
    found = [
        _place(job, shard, unit, test)
        for job in jobs
        for shard in job.shards
        for unit in shard.units
        if unit in named[job.key]
    ]
    if not found:
        known = {one for several in units.values() for unit in several for one in (unit.path, *unit.tests)}
        click.echo(f"no job runs {test}. {did_you_mean(test, known)}".rstrip(), err=True)
        sys.exit(EXIT_FAILED)
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    columns = ("suite", "job", "pool", "shard", "predicted")
    print_table(columns, [tuple(one[column] for column in columns) for one in found])
    click.echo(f"\nrun just that: {found[0]['command']}")


def _place(job: PlannedJob, shard: Shard, unit: Unit, test: str) -> dict[str, str]:
    return {
        "suite": unit.suite,
        "job": job.key,
        "pool": job.pool,
        "shard": shard.id,
        "predicted": f"{unit.seconds:.0f}s",
        "command": reproduce_command(unit, test),
    }
