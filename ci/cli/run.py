"""`nightcap run`: run a job, or one shard of it, on this machine."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from ci.cli.project import Project, workflow_option
from ci.plan import Plan, PlannedJob, Shard, shard_index
from ci.runner.options import RunOptions
from ci.runner.shard import run_shard


@click.command(
    epilog="Exit codes: 0 passed, 1 a test failed, 3 the host is at fault, 5 nothing ran, 130 interrupted."
)
@click.argument("job")
@workflow_option
@click.option("--shard", "shard_text", metavar="2/4", help="Run one shard.  [default: all, one after the other]")
@click.option(
    "--results", type=click.Path(path_type=Path), default=Path(".nightcap/results"), show_default=True,
    help="Folder for the journal, JUnit and logs.",
)
@click.pass_obj
def command(project: Project, job: str, workflow: str | None, shard_text: str | None, results: Path) -> None:
    """Run a job, or one shard of it, on this machine.

    \b
    Example:
      nightcap run attention --shard 1/2
    """
    name = project.workflow(workflow)
    project.job(name, job)
    plan = project.plan(name, "workflow_dispatch", job)
    planned = plan.job(job)
    shards = [shard_text] if shard_text else [shard.id for shard in planned.shards]
    folders = [results / shard.replace("/", "-of-") if len(shards) > 1 else results for shard in shards]
    codes = [
        execute(plan, planned, shard, root=project.root, results=folder, env=os.environ)
        for shard, folder in zip(shards, folders, strict=True)
    ]
    sys.exit(max(codes, default=0))


def execute(plan: Plan, job: PlannedJob, shard_text: str, *, root: Path, results: Path, env: Mapping[str, str]) -> int:
    """Run one shard and keep the artifacts that the job asks for; the exit code says how it went."""
    shard = _shard(job, shard_text)
    options = RunOptions.from_environment(
        env, root=root, results=results, plan_hash=plan.hash, workflow=plan.workflow
    )
    result = run_shard(job, shard, options=options)
    for pattern in job.artifacts:
        for path in sorted(root.glob(pattern)):
            if path.is_file():
                target = results / "artifacts" / path.relative_to(root)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, target)
    return int(result.exit_code)


def _shard(job: PlannedJob, text: str) -> Shard:
    try:
        index, count = shard_index(text)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if count != len(job.shards):
        raise click.UsageError(f"job {job.key} has {len(job.shards)} shard{'s' * (len(job.shards) != 1)}, not {count}")
    return job.shards[index - 1]
