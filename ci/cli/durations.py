"""`nightcap durations`: refresh the measured times from journals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from ci.cli.project import DURATIONS, Project, workflow_option
from ci.gate import load_results
from ci.journal import Journal, TestFinished, UnitFinished
from ci.suites.durations import Run, updated


@click.group()
def command() -> None:
    """Refresh the measured times from journals.

    \b
    Example:
      nightcap durations update .nightcap/results
    """


@command.command()
@click.argument("results", type=click.Path(path_type=Path, exists=True, file_okay=False))
@workflow_option
@click.pass_obj
def update(project: Project, results: Path, workflow: str | None) -> None:
    """Take the times of passed runs from the journals below RESULTS into workflows/durations.json.

    \b
    Example:
      nightcap durations update .nightcap/results
    """
    name = project.workflow(workflow)
    pools = {key: job.pool or "" for key, job in project.specs().workflows[name].jobs.items()}
    runs = [run for journal in load_results(results) for run in _runs(journal, pools)]
    known = {one: {file.path for file in suite.files} for one, suite in project.catalogue(name).suites.items()}
    new = updated(project.durations(), runs, known=known)
    path = project.root / DURATIONS
    path.write_text(new.dump(), encoding="utf-8")
    click.echo(f"{len(runs)} runs read; {DURATIONS} written")


def _runs(journal: Journal, pools: dict[str, str]) -> Iterator[Run]:
    """One run for each unit that ended by itself, on a job that the spec knows."""
    head = journal.head
    if head is None or head.job not in pools:
        return
    finished = [event for event in journal.events if isinstance(event, TestFinished)]
    for event in journal.events:
        if not isinstance(event, UnitFinished) or event.ending != "completed":
            continue
        outcomes = [
            one.outcome
            for one in finished
            if (one.suite, one.unit, one.attempt) == (event.suite, event.unit, event.attempt)
        ]
        yield Run(
            suite=event.suite,
            pool=pools[head.job],
            path=event.unit,
            seconds=event.seconds,
            passed=event.attempt == 1 and bool(outcomes) and not set(outcomes) - {"passed", "skipped"},
            skipped_share=outcomes.count("skipped") / len(outcomes) if outcomes else 1.0,
            when=int(event.at),
        )
