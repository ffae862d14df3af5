"""`nightcap gate`: the night's verdict from a plan and the journals."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TextIO

import click

from ci.cli.project import Project
from ci.gate import judge, load_needs, load_plan, load_results, report


@click.command()
@click.argument("plan_file", type=click.Path(path_type=Path, exists=True))
@click.argument("results", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--needs", type=click.File(), help="GitHub's toJSON(needs), to judge the jobs' own results too.")
@click.option("--markdown", is_flag=True, help="Print Markdown.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def command(
    project: Project, plan_file: Path, results: Path, needs: TextIO | None, markdown: bool, as_json: bool
) -> None:
    """The night's verdict from a plan and the journals.

    Fails unless every selected job ran every planned shard and every planned test has exactly one result.

    \b
    Example:
      nightcap plan --json > plan.json
      nightcap run attention --plan plan.json --results results/attention
      nightcap gate plan.json results
    """
    try:
        job_results = load_needs(needs.read()) if needs else None
        night = judge(load_plan(plan_file), job_results, load_results(results))
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(report.json(night))
    elif markdown:
        click.echo(report.markdown(night))
    else:
        click.echo(report.text(night))
    sys.exit(night.exit_code)
