"""`nightcap shards`: who runs what in a job, and whether another shard would help."""

from __future__ import annotations

import json

import click

from ci.cli.console import print_table
from ci.cli.project import Project, workflow_option
from ci.planning import SHARD_START, job_files
from ci.spec.models import AutoShards, format_duration, parse_duration
from ci.suites.sharding import Analysis, analyse, count_for

MOST = 256


@click.command()
@click.argument("job")
@workflow_option
@click.option("--count", type=click.IntRange(1, MOST), help="Divide into so many shards.")
@click.option("--target", metavar="30m", help="Divide into as few shards as end within this time.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def command(
    project: Project, job: str, workflow: str | None, count: int | None, target: str | None, as_json: bool
) -> None:
    """Who runs what in a job, and whether another shard would help.

    Without --count and --target, the shards of the spec.

    \b
    Example:
      nightcap shards attention --target 10m
    """
    if count and target is not None:
        raise click.UsageError("--count and --target exclude each other")
    name = project.workflow(workflow)
    spec = project.job(name, job)
    catalogue = project.checked_catalogue(name)
    files = job_files(spec, [catalogue.suites[one] for one in spec.suites], project.durations())
    items = [file.item for file in files]
    if not items:
        raise click.UsageError(f"job {job} has nothing that could be divided")
    if count is None:
        auto = spec.shards if isinstance(spec.shards, AutoShards) else None
        goal, most = (_seconds(target), MOST) if target is not None else (auto.target, auto.max) if auto else (0, 0)
        count = count_for(items, goal, most, per_shard=SHARD_START) if goal else int(str(spec.shards))
    analysis = analyse(items, count, per_shard=SHARD_START)
    if as_json:
        click.echo(json.dumps(_json(analysis), indent=2))
        return
    print_table(
        ("shard", "predicted", "file", "takes"),
        [
            (shard.id, format_duration(shard.seconds), "", "")
            if first
            else ("", "", item.id, format_duration(item.seconds))
            for shard in analysis.shards
            for first, item in [(True, shard.items[0]), *((False, item) for item in shard.items)]
        ],
        right=("predicted", "takes"),
    )
    count = len(analysis.shards)
    shards = "1 shard ends" if count == 1 else f"{count} shards end"
    click.echo(
        f"\n{shards} after {format_duration(analysis.seconds)}, start-up of "
        f"{format_duration(SHARD_START)} included; the slowest takes {analysis.imbalance:.2f} times the mean. "
        f"No division ends before {format_duration(analysis.lower_bound)}.\n{_sentence(analysis.advice)}"
    )
    if spec.file_timeout and analysis.longest.seconds > spec.file_timeout:
        limit = format_duration(spec.file_timeout)
        click.echo(f"{analysis.longest.id} is predicted to take longer than the file timeout of {limit}.")
    if spec.timeout and analysis.seconds > spec.timeout:
        click.echo(
            f"The slowest shard is predicted to take longer than the timeout of {format_duration(spec.timeout)}."
        )


def _seconds(text: str) -> int:
    try:
        return int(str(parse_duration(text)))
    except ValueError as error:
        raise click.BadParameter(f"{text!r}: {error}", param_hint="--target") from None


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _json(analysis: Analysis) -> dict[str, object]:
    shards = [
        {"id": one.id, "seconds": one.seconds, "files": {item.id: item.seconds for item in one.items}}
        for one in analysis.shards
    ]
    return {
        "shards": shards,
        "seconds": analysis.seconds,
        "imbalance": round(analysis.imbalance, 3),
        "lower_bound": analysis.lower_bound,
        "longest": analysis.longest.id,
        "as_fast": analysis.as_fast,
        "advice": analysis.advice,
    }
