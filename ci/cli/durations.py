"""`nightcap durations`: refresh the measured times from journals."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from ci.cli.project import DURATIONS, Project
from ci.gate import load_results
from ci.gate.load import JOURNAL_FILE
from ci.journal import Collected, Journal, TestFinished, UnitFinished
from ci.spec.models import Job
from ci.suites.catalogue import Catalogue, SuiteFile
from ci.suites.durations import MOSTLY_SKIPPED, Run, updated
from ci.suites.testfile import base_id

Files = Mapping[tuple[str, str], SuiteFile]
"""Of a workflow, by (suite, path)."""


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
    journals = load_results(results)
    if not journals:
        raise click.UsageError(f"no {JOURNAL_FILE} below {results}: nothing to take times from")
    workflows = project.specs().workflows
    files = {name: _files(project.catalogue(name)) for name in workflows}
    runs: list[Run] = []
    for journal in journals:
        head = journal.head
        job = workflows[head.workflow].jobs.get(head.job) if head and head.workflow in workflows else None
        if head is None or job is None:
            click.echo(f"left out, of a job that the specs do not have: {journal.source}")
        else:
            runs += _runs(journal, job, files[head.workflow])
    known: dict[str, set[str]] = defaultdict(set)
    for suite, path in (key for each in files.values() for key in each):
        known[suite].add(path)
    new = updated(project.durations(), runs, known=known)
    (project.root / DURATIONS).write_text(new.dump(), encoding="utf-8")
    count = sum(run.passed and run.skipped_share <= MOSTLY_SKIPPED for run in runs)
    times = f"{len(new.entries)} time{'s' * (len(new.entries) != 1)}"
    click.echo(f"{count} of {len(runs)} runs count; {DURATIONS} has {times}")


def _files(catalogue: Catalogue) -> Files:
    return {(suite.name, file.path): file for suite in catalogue.suites.values() for file in suite.files}


def _runs(journal: Journal, job: Job, files: Files) -> Iterator[Run]:
    """A run for each file, and for each item of an external command's manifest, that there is today."""
    results: dict[tuple[str, str, int], list[TestFinished]] = defaultdict(list)
    deselected: dict[tuple[str, str, int], tuple[str, ...]] = {}
    pool = job.pool or ""
    for event in journal.events:
        if isinstance(event, TestFinished):
            results[event.suite, event.unit, event.attempt].append(event)
            item = files.get((event.suite, event.test))
            if item and item.kind == "command":
                passed = event.outcome == "passed"
                yield Run(event.suite, pool, event.test, event.seconds, passed, skipped_share=0, when=int(event.at))
        elif isinstance(event, Collected):
            deselected[event.suite, event.unit, event.attempt] = event.deselected
        elif isinstance(event, UnitFinished) and (file := files.get((event.suite, event.unit))):
            attempt = (event.suite, event.unit, event.attempt)
            outcomes = [one.outcome for one in results[attempt]]
            # `--only` and `--rerun-failed` run a part: its time is no time of the file.
            named = [*(one.test for one in results[attempt]), *deselected.get(attempt, ())]
            wanted = {test.id for test in file.tests if not set(test.marks) & set(job.exclude_marks)}
            whole = wanted <= {base_id(file.path, test) for test in named}
            good = event.ending == "completed" and event.attempt == 1 and not set(outcomes) - {"passed", "skipped"}
            yield Run(
                suite=event.suite,
                pool=pool,
                path=event.unit,
                seconds=event.seconds,
                passed=good and whole and bool(outcomes),
                skipped_share=outcomes.count("skipped") / len(outcomes) if outcomes else 1.0,
                when=int(event.at),
            )
