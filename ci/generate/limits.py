"""GitHub's limits, checked on the generated files: each violation with its number and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ci.generate.render import Generated
from ci.generate.values import job_values, workflow_values
from ci.gha import limits
from ci.spec.loader import Specs
from ci.spec.problems import Problem

_ENVIRONMENT_BYTES = 128 * 1024
"""One environment variable of Linux (MAX_ARG_STRLEN); the gate receives all job results in one."""
_RESULT_BYTES = 60
"""`"KEY": {"result": "cancelled", "outputs": {}},` without the key, as toJSON indents it."""


def problems(specs: Specs, files: Iterable[Generated]) -> Iterator[Problem]:
    """Everything in the generated files that GitHub would refuse, cut or drop."""
    for file in files:
        if (size := len(file.text.encode())) > limits.WORKFLOW_BYTES and file.path.startswith(".github/workflows/"):
            message = f"the workflow would have {size:,} bytes, GitHub reads at most {limits.WORKFLOW_BYTES:,}"
            yield Problem(file.path, 0, "", message, "split the spec into two workflows")
    for name, workflow in specs.workflows.items():
        for values in job_values(workflow, specs.fleet):
            texts = [values.condition, *values.commands]
            if (length := max(map(len, texts))) > limits.TEXT_CHARACTERS:
                message = f"a text of {length:,} characters; GitHub takes at most {limits.TEXT_CHARACTERS:,}"
                fix = "move commands into a script, or let `after` name fewer jobs"
                yield specs.problem(name, ("jobs", values.key), message, fix)
        gate = workflow_values(name, workflow, specs.fleet)
        if (size := sum(len(key) + _RESULT_BYTES for key in gate.all_jobs)) > _ENVIRONMENT_BYTES:
            message = f"the results of {len(gate.all_jobs):,} jobs take about {size:,} bytes, a step's variable at most {_ENVIRONMENT_BYTES:,}"
            yield specs.problem(name, ("jobs",), message, "split the spec into two workflows")
