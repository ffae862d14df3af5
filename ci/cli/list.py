"""`nightcap list`: jobs with their pools, suites and tags."""

from __future__ import annotations

import json

import click

from ci.cli.console import print_table
from ci.cli.project import Project, workflow_option
from ci.spec.models import AutoShards, Job, format_duration


@click.command()
@workflow_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def command(project: Project, workflow: str | None, as_json: bool) -> None:
    """Jobs with their pools, suites and tags.

    \b
    Example:
      nightcap list --workflow nightly-nvidia
    """
    specs = project.specs()
    names = [project.workflow(workflow)] if workflow else list(specs.workflows)
    if as_json:
        found = {name: specs.workflows[name].model_dump(mode="json", exclude_unset=True) for name in names}
        click.echo(json.dumps({"fleet": specs.fleet.model_dump(mode="json"), "workflows": found}, indent=2))
        return
    for name in names:
        jobs = specs.workflows[name].jobs
        click.echo(f"{name}: {specs.workflows[name].title}, {len(jobs)} job{'s' * (len(jobs) != 1)}")
        print_table(
            ("job", "pool", "suites", "tags", "shards", "timeout", "also known as"),
            [_row(key, job) for key, job in jobs.items()],
            right=("timeout",),
        )


def _row(key: str, job: Job) -> tuple[str, ...]:
    shards = f"auto, at most {job.shards.max}" if isinstance(job.shards, AutoShards) else str(job.shards)
    suites = ", ".join(job.suites) or f"({len(job.commands)} command{'s' * (len(job.commands) != 1)})"
    timeout = format_duration(job.timeout or 0)
    return (key, job.pool or "", suites, ", ".join(job.tags), shards, timeout, ", ".join(job.aliases))
