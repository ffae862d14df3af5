"""`nightcap run`: run a job, or one shard of it, on this machine."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from ci.cli.project import SCRATCH, Project, scratch, workflow_option
from ci.gate import load_plan, load_results
from ci.journal import Journal, read
from ci.plan import Plan, PlannedJob, Shard, Unit, shard_index
from ci.runner.again import NoLongerPlanned, UnknownTest, failed_before
from ci.runner.again import reproduce as reproduce_test
from ci.runner.exit_codes import ExitCode
from ci.runner.options import RunOptions
from ci.runner.shard import run_shard
from ci.spec.problems import did_you_mean

RESULTS = Path(SCRATCH) / "results"
Only = Mapping[tuple[str, str], tuple[str, ...]]


@click.command(epilog="Exit codes: 0 passed, 1 a test failed, 3 the host is at fault, 5 nothing ran, 130 interrupted.")
@click.argument("job")
@workflow_option
@click.option("--shard", "shard_text", metavar="2/4", help="Run one shard.  [default: all, one after the other]")
@click.option("--only", multiple=True, metavar="TEST", help="Run this test or file alone; may be repeated.")
@click.option(
    "--rerun-failed",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="JOURNAL",
    help="Run what failed, crashed or was lost in an earlier journal of this job.",
)
@click.option(
    "--reproduce", metavar="TEST", help="Print the environment and the command of a test in --results, run nothing."
)
@click.option(
    "--plan",
    "plan_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Plan that the job is part of, for `nightcap gate`.  [default: a plan of this job alone]",
)
@click.option(
    "--results",
    type=click.Path(path_type=Path),
    default=RESULTS,
    show_default=True,
    help="Folder for the journal, JUnit and logs.",
)
@click.pass_obj
def command(
    project: Project,
    job: str,
    workflow: str | None,
    shard_text: str | None,
    only: tuple[str, ...],
    rerun_failed: Path | None,
    reproduce: str | None,
    plan_file: Path | None,
    results: Path,
) -> None:
    """Run a job, or one shard of it, on this machine.

    \b
    Examples:
      nightcap run attention --shard 1/2
      nightcap run attention --rerun-failed .nightcap/results/journal.jsonl
    """
    plan = _night(project, plan_file) if plan_file else None
    project = project.as_planned() if plan else project
    name = plan.workflow if plan else project.workflow(workflow)
    project.job(name, job)
    plan = plan or project.plan(name, "workflow_dispatch", job)
    planned = plan.job(job)
    if reproduce:
        click.echo(_reproduce(planned, results, reproduce), nl=False)
        return
    earlier = _earlier(rerun_failed, job) if rerun_failed else None
    shards = [shard_of(planned, shard_text)] if shard_text else list(planned.shards)
    named = {one: project.units_of(name, (unit for shard in shards for unit in shard.units), one) for one in only}
    wanted = [(shard, _wanted(shard, named, earlier)) for shard in shards]
    wanted = [(shard, units) for shard, units in wanted if units is None or units]
    if unknown := [one for one, units in named.items() if not units]:
        raise click.UsageError(f"nothing of job {job} to run: {_unknown(shards, unknown)}")
    if not wanted:
        why = f"nothing failed in {rerun_failed}" if earlier else "the plan does not select it"
        raise click.UsageError(f"nothing of job {job} to run: {why}")
    if results == RESULTS:
        scratch(Path())
    codes: list[int] = []
    for shard, units in wanted:
        place = results / shard.id if len(wanted) > 1 else results
        codes.append(execute(plan, planned, shard, root=project.root, results=place, env=os.environ, only=units))
        if codes[-1] == ExitCode.INTERRUPTED:
            break
    sys.exit(next((code for code in ExitCode if code in codes), 0))


def _night(project: Project, file: Path) -> Plan:
    """The plan in a file, which must be the one that this tree gives."""
    try:
        plan = load_plan(file)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    if plan is None or not plan.intact():
        raise click.ClickException(f"{file} was changed since `nightcap plan --json` made it")
    project.agree(plan)
    return plan


def _earlier(file: Path, job: str) -> Journal:
    """The journal of an earlier run of this job. Raises UsageError."""
    journal = read(file)
    if journal.head is None:
        raise click.UsageError(f"{file} is no journal: it has no first line that says whose it is")
    if journal.head.job != job:
        raise click.UsageError(f"{file} is a journal of job {journal.head.job}, not of {job}")
    return journal


def _unknown(shards: Sequence[Shard], names: Sequence[str]) -> str:
    known = {name for shard in shards for unit in shard.units for name in (unit.path, *unit.tests)}
    return "; ".join(f"it has no {name}. {did_you_mean(name, known)}".rstrip() for name in names)


def _wanted(shard: Shard, named: Mapping[str, Sequence[Unit]], earlier: Journal | None) -> Only | None:
    """What of a shard is to run; None is all of it."""
    if earlier is not None:
        return failed_before(earlier, shard)
    if not named:
        return None
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for one, units in named.items():
        for unit in (unit for unit in units if unit in shard.units):
            known = found.get((unit.suite, unit.path))
            whole = one == unit.path or unit.kind != "pytest" or known == ()
            found[unit.suite, unit.path] = () if whole else (*(known or ()), one)
    return found


def _reproduce(job: PlannedJob, results: Path, test: str) -> str:
    for journal in load_results(results) if results.is_dir() else []:
        if journal.head is None or journal.head.job != job.key:
            continue
        try:
            return reproduce_test(journal, test, job)
        except UnknownTest:
            continue
        except NoLongerPlanned as error:
            raise click.UsageError(str(error)) from None
    raise click.UsageError(f"no journal of job {job.key} below {results} has a result of {test}")


def execute(
    plan: Plan,
    job: PlannedJob,
    shard: Shard,
    *,
    root: Path,
    results: Path,
    env: Mapping[str, str],
    only: Only | None = None,
) -> int:
    """Run one shard and keep the artifacts that the job asks for; the exit code says how it went."""
    try:
        options = RunOptions.from_environment(
            env, root=root, results=results, plan_hash=plan.hash, workflow=plan.workflow, only=only
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    result = run_shard(job, shard, options=options)
    for pattern in job.artifacts:
        for path in sorted(root.glob(pattern)):
            if path.is_file():
                target = results / "artifacts" / path.relative_to(root)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, target)
    return int(result.exit_code)


def shard_of(job: PlannedJob, text: str) -> Shard:
    """The shard that a text such as 2/4 names. Raises UsageError."""
    try:
        index, count = shard_index(text)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if count != len(job.shards):
        raise click.UsageError(f"job {job.key} has {len(job.shards)} shard{'s' * (len(job.shards) != 1)}, not {count}")
    return job.shards[index - 1]
