"""`nightcap plan`: what would run on an event with a filter, and why."""

from __future__ import annotations

import click
from click.core import ParameterSource

from ci.cli.console import print_table
from ci.cli.project import EVENTS, Project, workflow_option
from ci.plan import Plan, PlannedJob
from ci.spec.models import format_duration

STATES = {"selected": "runs", "not-selected": "not selected", "disabled": "disabled", "empty": "empty"}


@click.command()
@workflow_option
@click.option("--event", type=click.Choice(EVENTS), default="schedule", show_default=True)
@click.option("--filter", "filter_text", default="all", show_default=True, help="Jobs to run; see docs/filters.md.")
@click.option("--input", "inputs", multiple=True, metavar="NAME=VALUE", help="An input of a manual run.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
@click.pass_obj
def command(
    project: Project, workflow: str | None, event: str, filter_text: str, inputs: tuple[str, ...], as_json: bool
) -> None:
    """What would run on an event with a filter, and why.

    \b
    Examples:
      nightcap plan --event schedule
      nightcap plan --event workflow_dispatch --filter "8-gpu-*, !perf*"
    """
    given = {}
    for text in inputs:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--input")
        given[name] = value
    name = project.workflow(workflow)
    plan = project.plan(name, event, filter_text, given)
    named = click.get_current_context().get_parameter_source("event") is ParameterSource.COMMANDLINE
    if named and event not in (events := project.specs().workflows[name].triggers.events):
        click.echo(f"note: GitHub does not start {name} on {event}, only on {', '.join(events)}", err=True)
    if as_json:
        click.echo(plan.model_dump_json(indent=2))
    else:
        show(plan)


def show(plan: Plan) -> None:
    """Print every job, whether it runs and why."""
    print_table(
        ("job", "", "why", "pool", "shards", "tests", "predicted"),
        [_row(job) for job in plan.jobs],
        right=("shards", "tests", "predicted"),
    )
    for job in plan.selected:
        for note in job.notes:
            click.echo(f"note: {job.key}: {note}")
    count = sum(len(job.shards) for job in plan.selected)
    shards = f"{count} shard{'s' * (count != 1)}"
    click.echo(f"\n{len(plan.selected)} of {len(plan.jobs)} jobs run, in {shards}. Plan {plan.hash}.")


def _row(job: PlannedJob) -> tuple[str, ...]:
    tests = sum(len(unit.tests) for shard in job.shards for unit in shard.units)
    longest = max((shard.seconds for shard in job.shards), default=0)
    numbers = (str(len(job.shards)), str(tests), format_duration(longest)) if job.selected else ("", "", "")
    return (job.key, STATES[job.state], job.reason, job.pool, *numbers)
