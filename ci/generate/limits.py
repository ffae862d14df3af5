"""GitHub's limits, checked on the generated files: each violation with its number and what to do.

Inputs of a manual run, shards of a job and timeouts stand in single fields; `ci.spec` judges them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from ci.generate.render import Generated
from ci.generate.values import job_values, workflow_values
from ci.gha import limits
from ci.planning import INPUT_CHARACTERS
from ci.spec.loader import Specs
from ci.spec.models import Job, Workflow
from ci.spec.problems import Problem

_RESULT_BYTES = 60
"""`"KEY": {"result": "cancelled", "outputs": {}},` without the key, as toJSON indents it."""
_INPUT_BYTES = 7 * INPUT_CHARACTERS
"""The longest that the inputs of a run get as JSON inside JSON: a control character is `\\\\u0001` there."""
_SPLIT = "split the spec into two workflows"


def problems(specs: Specs, files: Iterable[Generated]) -> Iterator[Problem]:
    """Everything in the generated files that GitHub would refuse, cut or drop."""
    for file in files:
        if (size := len(file.text.encode())) > limits.WORKFLOW_BYTES and file.path.startswith(".github/workflows/"):
            message = f"the workflow would have {size:,} bytes, GitHub reads at most {limits.WORKFLOW_BYTES:,}"
            yield Problem(file.path, 0, "", message, _SPLIT)
    for name, workflow in specs.workflows.items():
        yield from _texts(specs, name)
        yield from _needs(specs, name, workflow)
        yield from _artifacts(specs, name, workflow)


def _texts(specs: Specs, name: str) -> Iterator[Problem]:
    for values in job_values(specs.workflows[name], specs.fleet):
        if (length := max(map(len, [values.condition, *values.commands]))) > limits.TEXT_CHARACTERS:
            message = f"a text of {length:,} characters; GitHub takes at most {limits.TEXT_CHARACTERS:,}"
            fix = "move commands into a script, or let `after` name fewer jobs"
            yield specs.problem(name, ("jobs", values.key), message, fix)


def _needs(specs: Specs, name: str, workflow: Workflow) -> Iterator[Problem]:
    """The gate gets the results of all jobs and the outputs of the plan in one variable of its step."""
    keys = workflow_values(name, workflow, specs.fleet).all_jobs
    shards = {key: [f"{index}-of-{most}" for index in range(most)] for key, most in _most_shards(workflow).items()}
    outputs = json.dumps([json.dumps([*shards]), json.dumps(shards)])
    size = sum(len(key) + _RESULT_BYTES for key in keys) + len(outputs) + _INPUT_BYTES
    if size > limits.VARIABLE_BYTES:
        most = limits.VARIABLE_BYTES
        message = f"the results of {len(keys):,} jobs and their shards may take {size:,} bytes, a variable {most:,}"
        yield specs.problem(name, ("jobs",), message, _SPLIT)


def _artifacts(specs: Specs, name: str, workflow: Workflow) -> Iterator[Problem]:
    """Each shard leaves one artifact, and so does the plan."""
    if (count := sum(_most_shards(workflow).values()) + 1) > limits.ARTIFACTS_LISTED:
        message = f"{count:,} artifacts; the gate can fetch {limits.ARTIFACTS_LISTED:,} of a run"
        yield specs.problem(name, ("jobs",), message, f"lower the shards, or {_SPLIT}")


def _most_shards(workflow: Workflow) -> dict[str, int]:
    def most(job: Job) -> int:
        return job.shards if isinstance(job.shards, int) else job.shards.max

    return {key: most(job) for key, job in workflow.jobs.items()}
