"""What a template sees of a workflow: plain values, every decision already taken.

Pure functions from the spec; the expressions of the generated workflow are all written here. Two traps of GitHub's `if`
shape them. A condition without a status function means `success() && (...)`, and success() looks at all ancestors, so a
job behind one that the filter skipped needs `!cancelled()` (actions/runner#491). Text outside `${{ }}` makes the whole
a non-empty string, which is true (actions/runner#1173), so a condition is always one expression.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ci.gha.expressions import literal
from ci.gha.yaml_writer import Value, scalar
from ci.spec.filter import FILTER_INPUT
from ci.spec.models import After, Fleet, Input, Job, Workflow

FILTER_HELP = (
    "Jobs to run: all, or comma-separated keys, globs (8-gpu-*), tag:NAME, pool:NAME, suite:NAME; !term removes."
)
JOBS = "fromJSON(needs.plan.outputs.jobs)"
SHARDS = "fromJSON(needs.plan.outputs.shards || '{}')"
EVERYTHING = "*-a*"
"""Pattern of all artifacts of the run: each ends in the attempt that made it."""


@dataclass(frozen=True)
class JobValues:
    """One job of the generated workflow."""

    key: str
    needs: str | list[str]
    before: list[str]
    condition: str
    labels: str | list[str]
    container: dict[str, str] | None
    timeout_minutes: int
    matrix: dict[str, str]
    step: dict[str, str]
    secrets: dict[str, str]
    commands: list[str]


@dataclass(frozen=True)
class WorkflowValues:
    """The workflow round its jobs."""

    name: str
    title: str
    on: list[str]
    concurrency: str
    guard: str
    control: str | list[str]
    plan_step: dict[str, str]
    all_jobs: list[str]
    gate_condition: str
    gate_step: dict[str, str]


def workflow_values(name: str, workflow: Workflow, fleet: Fleet) -> WorkflowValues:
    """Everything of a workflow but its jobs."""
    guard = f"github.event_name != 'schedule' || github.repository == {literal(fleet.repository)}"
    scheduled = bool(workflow.triggers.schedules)
    return WorkflowValues(
        name=name,
        title=workflow.title,
        on=list(_on(workflow)),
        # A group runs one and keeps one pending: each manual run has its own, the schedule's is never shared.
        concurrency=f"{name}-" + _wrap("github.event_name == 'schedule' && 'schedule' || github.run_id"),
        guard=_wrap(guard) if scheduled else "",
        control=_short(fleet.control),
        plan_step={"command": "plan", "workflow": name, "inputs": "${{ toJSON(inputs) }}"},
        all_jobs=["plan", *workflow.jobs],
        gate_condition=_wrap(f"always() && ({guard})" if scheduled else "always()"),
        gate_step={"command": "gate", "fetch": EVERYTHING, "needs": "${{ toJSON(needs) }}"},
    )


def job_values(workflow: Workflow, fleet: Fleet) -> list[JobValues]:
    """The jobs in the order of the spec."""
    return [_job(key, job, workflow, fleet) for key, job in workflow.jobs.items()]


def jobs_before(after: After | None, workflow: Workflow) -> list[str]:
    """Keys of the jobs that an edge names, in the order of the spec."""
    if after is None:
        return []
    return [key for key, job in workflow.jobs.items() if (job.suites if after.jobs == "all" else key in after.jobs)]


def _job(key: str, job: Job, workflow: Workflow, fleet: Fleet) -> JobValues:
    pool = fleet.pools[job.pool or ""]
    before = jobs_before(job.after, workflow)
    sharded = job.shards != 1
    container = pool.container.model_dump(exclude_defaults=True) if pool.container else None
    return JobValues(
        key=key,
        needs=["plan", *before] if before else "plan",
        before=before,
        condition=_wrap(_condition(key, job.after, before)),
        labels=_short(pool.labels),
        container=container,
        timeout_minutes=-(-(job.timeout or 0) // 60),
        # GitHub expands a matrix after `if`, act before it: the fallback keeps an unselected job's matrix legal.
        matrix={"shard": _wrap(f"{SHARDS}[{literal(key)}] || fromJSON('[\"none\"]')")} if sharded else {},
        step={
            "command": "run",
            "job": key,
            "shard": "${{ matrix.shard }}" if sharded else "1-of-1",
            **({"fetch": EVERYTHING} if before else {}),
        },
        secrets={name: f"${{{{ secrets.{name} }}}}" for name in workflow.secrets},
        commands=job.commands,
    )


def _condition(key: str, after: After | None, before: list[str]) -> str:
    wanted = f"contains({JOBS}, {literal(key)})"
    if after is None or not before:
        return wanted
    planned = f"!cancelled() && needs.plan.result == 'success' && {wanted}"
    if after.when == "end":
        return planned
    passed = (f"(needs.{one}.result == 'success' || !contains({JOBS}, {literal(one)}))" for one in before)
    return " && ".join((planned, *passed))


def _on(workflow: Workflow) -> Iterator[str]:
    triggers = workflow.triggers
    if triggers.schedules:
        yield "schedule:"
        for line in triggers.schedules:
            yield f"  - cron: {scalar(line.cron)}"
            if line.timezone != "UTC":
                yield f"    timezone: {scalar(line.timezone)}"
    for event, branches in (("pull_request", triggers.pull_request), ("push", triggers.push)):
        if branches is not None:
            yield f"{event}:" + (f" {{branches: {scalar(branches.branches)}}}" if branches.branches else "")
    inputs = triggers.dispatch.inputs if triggers.dispatch else {}
    if triggers.dispatch:
        yield "workflow_dispatch:"
        yield from _inputs(inputs, called=False)
    if triggers.call:
        yield "workflow_call:"
        yield from _inputs(inputs, called=True)
        if workflow.secrets:
            yield "  secrets:"
            yield from (f"    {name}: {{required: false}}" for name in workflow.secrets)


def _inputs(inputs: dict[str, Input], *, called: bool) -> Iterator[str]:
    yield "  inputs:"
    yield f"    {FILTER_INPUT}: {scalar({'description': FILTER_HELP, 'type': 'string', 'default': 'all'})}"
    for name, value in inputs.items():
        # workflow_call knows no choice.
        kind = "string" if called and value.type == "choice" else value.type
        fields: dict[str, Value] = {"description": value.description, "type": kind}
        # A caller may leave out what has a default; for a person `required` means that the field may not be cleared.
        if value.required and not (called and value.default is not None):
            fields["required"] = True
        if value.default is not None:
            fields["default"] = value.default
        if kind == "choice":
            fields["options"] = value.options
        yield f"    {name}: {scalar(fields)}"


def _wrap(expression: str) -> str:
    return f"${{{{ {expression} }}}}"


def _short(labels: list[str]) -> str | list[str]:
    return labels[0] if len(labels) == 1 else labels
