"""`nightcap durations`: refresh the measured times from journals."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import click

from ci.cli.project import DURATIONS, Project
from ci.gate import load_results
from ci.journal import Collected, Journal, TestFinished, UnitFinished
from ci.suites.catalogue import SuiteFile
from ci.suites.durations import MOSTLY_SKIPPED, Run, updated
from ci.suites.testfile import base_id

Files = dict[tuple[str, str], SuiteFile]
"""By (suite, path)."""


@click.group()
def command() -> None:
    """Refresh the measured times from journals.

    \b
    Example:
      nightcap durations update .nightcap/results
    """


@command.command()
@click.argument("results", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.pass_obj
def update(project: Project, results: Path) -> None:
    """Take the times of passed runs from the journals below RESULTS into workflows/durations.json.

    A run counts when the whole file ran at its first attempt, passed, and was not mostly skipped. Times of files
    that no suite has any more are dropped.

    \b
    Example:
      nightcap durations update .nightcap/results
    """
    specs = project.specs()
    files = {
        (name, suite.name, file.path): file
        for name in specs.workflows
        for suite in project.catalogue(name).suites.values()
        for file in suite.files
    }
    known: dict[str, set[str]] = defaultdict(set)
    for _, suite, path in files:
        known[suite].add(path)
    runs: list[Run] = []
    strangers = set()
    for journal in load_results(results):
        head = journal.head
        workflow = specs.workflows.get(head.workflow) if head else None
        if head is None or workflow is None or head.job not in workflow.jobs:
            strangers.add(
                f"{journal.source} is of {f'job {head.job} of {head.workflow}' if head else 'nobody knows what'}"
            )
            continue
        seen = {(suite, path): file for (name, suite, path), file in files.items() if name == head.workflow}
        runs += _runs(journal, workflow.jobs[head.job].pool or "", seen)
    for stranger in sorted(strangers):
        click.echo(f"left out: {stranger}, which the specs do not have")
    new = updated(project.durations(), runs, known=known)
    (project.root / DURATIONS).write_text(new.dump(), encoding="utf-8")
    count = sum(run.passed and run.skipped_share <= MOSTLY_SKIPPED for run in runs)
    click.echo(f"{count} of {len(runs)} runs of files count; {DURATIONS} written with {len(new.entries)} times")


def _runs(journal: Journal, pool: str, files: Files) -> Iterator[Run]:
    """One run for each end of a file that there is today."""
    for end in journal.events:
        if not isinstance(end, UnitFinished) or (end.suite, end.unit) not in files:
            continue
        same = [
            one
            for one in journal.events
            if isinstance(one, TestFinished | Collected)
            and (one.suite, one.unit, one.attempt) == (end.suite, end.unit, end.attempt)
        ]
        outcomes = {one.test: one.outcome for one in same if isinstance(one, TestFinished)}
        named = {*outcomes, *(test for one in same if isinstance(one, Collected) for test in one.deselected)}
        # `--only` and `--rerun-failed` run a part: its time is no time of the file.
        whole = {test.id for test in files[end.suite, end.unit].tests} <= {base_id(end.unit, test) for test in named}
        good = end.ending == "completed" and end.attempt == 1 and not set(outcomes.values()) - {"passed", "skipped"}
        yield Run(
            suite=end.suite,
            pool=pool,
            path=end.unit,
            seconds=end.seconds,
            passed=good and whole and bool(outcomes),
            skipped_share=list(outcomes.values()).count("skipped") / len(outcomes) if outcomes else 1.0,
            when=int(end.at),
        )
