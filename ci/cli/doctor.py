"""`nightcap doctor`: the state of this host's GPUs."""

from __future__ import annotations

import os
import sys

import click

from ci.cli.console import print_table
from ci.cli.main import EXIT_FAILED
from ci.runner.gpus import HostReport, Need, NotAssignable, doctor


@click.command(epilog="Exit codes: 0 fit or degraded, 1 not fit for tests, 2 the call is wrong.")
@click.option("--gpus", type=click.IntRange(min=0), default=0, help="GPUs that there should be.")
@click.option("--sm", type=click.IntRange(min=10), help="SM version that they should have.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(gpus: int, sm: int | None, as_json: bool) -> None:
    """The state of this host's GPUs, in a second or so.

    Only those that CUDA_VISIBLE_DEVICES assigns are judged.

    \b
    Example:
      nightcap doctor --gpus 8 --sm 100
    """
    try:
        report = doctor(os.environ.get("CUDA_VISIBLE_DEVICES"), Need(gpus=gpus, sm=sm))
    except NotAssignable as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(report.model_dump_json(indent=2))
    else:
        _show(report)
    sys.exit(EXIT_FAILED if report.status == "bad" else 0)


def _show(report: HostReport) -> None:
    rows = [
        (str(gpu.index), gpu.name, gpu.uuid, str(gpu.sm or ""), _gib(gpu.memory_used), _gib(gpu.memory_total))
        for gpu in report.assigned_gpus
    ]
    if rows:
        print_table(("GPU", "name", "UUID", "SM", "used", "memory"), rows, right=("GPU", "SM", "used", "memory"))
    for problem in report.problems:
        click.echo(f"{problem.status}: {problem.text}")
    if not report.facts.gpus and not report.problems:
        click.echo(f"no GPU, and none asked for: {report.facts.problem or 'the driver lists none'}")
    gpus = f"{len(rows)} GPU{'s' * (len(rows) != 1)}"
    click.echo(f"\n{report.host}: {report.status}, {gpus} assigned, asked in {report.seconds:.1f} s.")


def _gib(size: int | None) -> str:
    return "" if size is None else f"{size / 1024**3:.1f} GiB"
