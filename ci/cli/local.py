"""`nightcap local`: run the generated workflow on this machine."""

from __future__ import annotations

import shutil
import sys

import click

from ci import local
from ci.cli.project import EVENTS, Project, scratch, workflow_option
from ci.gate.night import Night
from ci.gate.report import text
from ci.spec.filter import FILTER_INPUT


@click.command()
@workflow_option
@click.option("--event", type=click.Choice(EVENTS), default="workflow_dispatch", show_default=True)
@click.option("--filter", "filter_text", default="all", show_default=True, help="Jobs to run; see docs/filters.md.")
@click.option("--verbose", is_flag=True, help="Show every line of every step.")
@click.pass_obj
def command(project: Project, workflow: str | None, event: str, filter_text: str, verbose: bool) -> None:
    """Run the generated workflow on this machine, under act, on a copy of the tree.

    Choose jobs whose suites need no GPU. The verdict at the end is the gate's own.

    \b
    Example:
      nightcap local --filter attention
    """
    name = project.workflow(workflow)
    if event not in (events := project.specs().workflows[name].triggers.events):
        raise click.UsageError(f"{name} has no trigger for {event}: --event may be {', '.join(events)}")
    folder = scratch(project.root) / "local"
    shutil.rmtree(folder, ignore_errors=True)

    def show(line: local.Line) -> None:
        if verbose or line.result or not line.job:
            click.echo(f"{line.job or 'act'}: {line.text}")

    inputs = {FILTER_INPUT: filter_text} if event == "workflow_dispatch" else {}
    try:
        found = local.run(project.root, name, project.specs().fleet, event, inputs, scratch=folder, on_line=show)
    except (local.ActMissing, OSError) as error:
        raise click.ClickException(str(error)) from error
    verdict = next(found.artifacts.glob("gate-a*/verdict.json"), None)
    if verdict is None:
        click.echo("the gate left no verdict: see the lines above, or add --verbose", err=True)
        sys.exit(1)
    night = Night.model_validate_json(verdict.read_text(encoding="utf-8"))
    click.echo(text(night))
    sys.exit(night.exit_code)
