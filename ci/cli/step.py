"""`nightcap step`: what the generated workflow calls. The one place that reads GitHub's environment for it.

Everything to keep lies in `.nightcap/out`, which the shared action uploads; what earlier jobs left lies in
`.nightcap/artifacts`, one folder an artifact (`plan-a1`, `journal-JOB-2-of-4-a1`).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import click

from ci.cli.main import EXIT_USAGE
from ci.cli.project import Project
from ci.gate import Night, judge, load_needs, load_plan, load_results
from ci.gate import report as gate_report
from ci.gha.commands import (
    Annotation,
    Section,
    append_summary,
    fit,
    inert,
    markdown_text,
    shown,
    summary_room,
    write_outputs,
)
from ci.plan import Plan, PlannedJob
from ci.planning import env_text
from ci.spec.filter import FILTER_INPUT
from ci.spec.models import format_duration
from ci.spec.problems import FilterError, SpecError

OUT = Path(".nightcap/out")
ARTIFACTS = Path(".nightcap/artifacts")
_ATTEMPT = re.compile(r"-a(\d+)$")


@dataclass(frozen=True)
class Step:
    """What GitHub tells a step."""

    event: str
    workflow: str
    inputs: str
    job: str
    shard: str
    needs: str
    output: Path | None
    summary: Path | None
    ready: bool
    """The host is ready: no set-up command runs."""

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Self:
        """The step's environment."""

        def path(name: str) -> Path | None:
            return Path(environment[name]) if environment.get(name) else None

        return cls(
            event=environment.get("GITHUB_EVENT_NAME", ""),
            workflow=environment.get("NIGHTCAP_WORKFLOW", ""),
            inputs=environment.get("NIGHTCAP_INPUTS", ""),
            job=environment.get("NIGHTCAP_JOB", ""),
            shard=environment.get("NIGHTCAP_SHARD", ""),
            needs=environment.get("NIGHTCAP_NEEDS", ""),
            output=path("GITHUB_OUTPUT"),
            summary=path("GITHUB_STEP_SUMMARY"),
            ready=bool(environment.get("NIGHTCAP_BIN")),
        )


@click.command()
@click.argument("name", type=click.Choice(["plan", "run", "gate"]))
@click.pass_obj
def command(project: Project, name: str) -> None:
    """One step inside the generated workflow; people use `plan`, `run` and `gate`.

    \b
    Example (the shared action calls it):
      NIGHTCAP_WORKFLOW=nightly-nvidia GITHUB_EVENT_NAME=schedule nightcap step plan
    """
    step = Step.read(os.environ)
    required = {"plan": step.workflow and step.event, "run": step.job and step.shard}
    if not required.get(name, "set"):
        raise click.UsageError(f"step {name} reads GitHub's environment and finds none; people use `nightcap {name}`")
    # A runner of one's own keeps its workspace: what an earlier job left must not be kept as this one's result.
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    sys.exit({"plan": _plan, "run": _run, "gate": _gate}[name](project, step))


def _plan(project: Project, step: Step) -> int:
    try:
        inputs = _inputs(step.inputs)
        text = str(inputs.pop(FILTER_INPUT, None) or "")
        plan = project.plan(project.workflow(step.workflow), step.event, text, inputs)
    except (SpecError, FilterError) as error:
        problems = [str(problem) for problem in error.problems]
        _tell(step, ["## The plan failed: nothing runs", *(f"- {markdown_text(problem)}" for problem in problems)])
        for one in shown([Annotation("error", "plan", problem) for problem in problems], where="see the log"):
            click.echo(one)
        click.echo(inert("\n".join(problems)), err=True)
        if step.output:
            write_outputs(step.output, {"error": "\n".join(problems)})
        return EXIT_USAGE
    (OUT / "plan.json").write_text(plan.model_dump_json(indent=2), encoding="utf-8")
    if step.output:
        shards = {job.key: [shard.id for shard in job.shards] for job in plan.selected}
        values = {"jobs": [*shards], "shards": shards, "inputs": plan.inputs}
        texts = {name: json.dumps(value, ensure_ascii=False) for name, value in values.items()}
        write_outputs(step.output, texts | {"hash": plan.hash})
    _tell(step, plan_summary(plan))
    click.echo(f"{len(plan.selected)} of {len(plan.jobs)} jobs run, plan {plan.hash}")
    return 0


def plan_summary(plan: Plan) -> list[str]:
    """The plan for the step summary: every job, and why."""
    lines = [f"## Plan {plan.hash}: {len(plan.selected)} of {len(plan.jobs)} jobs run", ""]
    lines += [f"Event {plan.event}, filter {markdown_text(plan.filter)}", ""]
    lines += ["| job | | why | pool | shards | predicted |", "| --- | --- | --- | --- | ---: | ---: |"]
    for job in plan.jobs:
        longest = max((shard.seconds for shard in job.shards), default=0)
        numbers = f"{len(job.shards)} | {format_duration(longest)}" if job.selected else " | "
        lines.append(f"| {job.key} | {job.state} | {markdown_text(job.reason)} | {job.pool} | {numbers} |")
    lines += [f"- {job.key}: {markdown_text(note)}" for job in plan.selected for note in job.notes]
    return lines


def _run(project: Project, step: Step) -> int:
    from ci.cli.run import execute, shard_of

    plan, job = _planned(project, step)
    if not step.ready:
        _set_up(job)
    names = {name: f"NIGHTCAP_INPUT_{name.upper().replace('-', '_')}" for name in plan.inputs}
    env = {**os.environ, **{names[name]: env_text(value) for name, value in plan.inputs.items()}}
    return execute(plan, job, shard_of(job, step.shard), root=project.root, results=OUT, env=env)


def _planned(project: Project, step: Step) -> tuple[Plan, PlannedJob]:
    """The night's plan and this job in it, after this tree has given the same plan."""
    plan = _latest_plan()
    if plan is None or not plan.intact():
        raise click.ClickException(f"no intact plan.json below {ARTIFACTS}: did the plan job keep it?")
    project.agree(plan)
    project.as_planned().job(plan.workflow, step.job)
    return plan, plan.job(step.job)


def _latest_plan() -> Plan | None:
    """A rerun of failed jobs keeps the plan of the first attempt; a rerun of all makes a new one."""

    def attempt(path: Path) -> int:
        found = _ATTEMPT.search(path.parent.name)
        return int(found[1]) if found else 0

    files = sorted(ARTIFACTS.glob("plan-a*/plan.json"), key=attempt)
    try:
        return load_plan(files[-1]) if files else None
    except ValueError as error:
        raise click.ClickException(str(error)) from error


def _set_up(job: PlannedJob) -> None:
    for text in job.setup:
        click.echo(f"$ {inert(text)}")
        sys.stdout.flush()
        if (code := subprocess.run(["bash", "-eo", "pipefail", "-c", text], check=False).returncode) != 0:
            raise click.ClickException(f"a set-up command of pool {job.pool} failed with exit code {code}")


def _gate(project: Project, step: Step) -> int:
    plan = _latest_plan() if ARTIFACTS.is_dir() else None
    journals = load_results(ARTIFACTS) if ARTIFACTS.is_dir() else []
    try:
        results = load_needs(step.needs) if step.needs else None
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    night = judge(plan, results, journals)
    write_verdict(night, OUT)
    if step.summary:
        append_summary(step.summary, gate_report.markdown(night, summary_room(step.summary)))
    for one in gate_report.annotated(night):
        click.echo(one)
    click.echo(inert(gate_report.text(night)))
    return night.exit_code


def write_verdict(night: Night, folder: Path) -> None:
    """The verdict as JSON and as JUnit."""
    from ci.gate import junit

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "verdict.json").write_text(gate_report.json(night), encoding="utf-8")
    (folder / "junit.xml").write_text(junit.xml(night), encoding="utf-8")


def _inputs(text: str) -> dict[str, Any]:
    """GitHub's `toJSON(inputs)`: null or {} on events without inputs."""
    try:
        inputs = json.loads(text or "{}") or {}
    except ValueError:
        inputs = None
    if not isinstance(inputs, dict):
        raise click.ClickException("NIGHTCAP_INPUTS is not the JSON of `inputs`")
    return inputs


def _tell(step: Step, lines: list[str]) -> None:
    if step.summary:
        whole = Section("", [f"{line}\n" for line in lines], noun="more lines")
        append_summary(step.summary, fit([whole], summary_room(step.summary), where="see plan.json, or the log"))
