"""What every command works on: a repository, its specs and its suites, read once when first asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import click

from ci.plan import Plan, Unit
from ci.planning import make_plan, suite_problems
from ci.spec.loader import Specs, load
from ci.spec.models import Job
from ci.spec.problems import Problem, SpecError, did_you_mean
from ci.suites.catalogue import Catalogue, catalogue
from ci.suites.discover import Discovery, discover
from ci.suites.durations import Durations
from ci.suites.quarantine import Quarantine, expired
from ci.suites.quarantine import load as load_quarantine
from ci.suites.testfile import base_id

DURATIONS = "workflows/durations.json"
SCRATCH = ".nightcap"
EVENTS = ("schedule", "workflow_dispatch", "workflow_call", "push", "pull_request")

workflow_option: Callable[[Any], Any] = click.option(
    "--workflow", metavar="NAME", help="Spec to use.  [default: the only one with a plan]"
)


def scratch(folder: Path) -> Path:
    """The folder in `folder` for what a command leaves, made so that git does not see it in any repository."""
    found = folder / SCRATCH
    found.mkdir(exist_ok=True)
    (found / ".gitignore").write_text("*\n", encoding="utf-8")
    return found


@dataclass(frozen=True)
class Project:
    """A repository with specs."""

    root: Path
    today: date

    def specs(self) -> Specs:
        """Its specs. Raises SpecError."""
        return _specs(self.root, self.today)

    def discovery(self) -> Discovery:
        """The test files of the tree."""
        return _discovery(self.root)

    def catalogue(self, workflow: str) -> Catalogue:
        """The suites that one workflow sees: those of the tree and those it declares."""
        return _catalogue(self.root, self.today, workflow)

    def checked_catalogue(self, workflow: str) -> Catalogue:
        """The suites of a workflow. Raises SpecError when one that a job names is unknown or empty."""
        catalogue = self.catalogue(workflow)
        if wrong := list(suite_problems(self.specs(), workflow, catalogue)):
            raise SpecError(wrong)
        return catalogue

    def job(self, workflow: str, key: str) -> Job:
        """The job of that key. Raises UsageError."""
        jobs = self.specs().workflows[workflow].jobs
        if key not in jobs:
            hint = did_you_mean(key, jobs) or f"there are {', '.join(jobs)}"
            raise click.UsageError(f"no job {key!r} in {workflow}. {hint}")
        return jobs[key]

    def durations(self) -> Durations:
        """The measured times that are kept in the repository."""
        return Durations.load(self.root / DURATIONS)

    def quarantine(self) -> Quarantine:
        """The tests in quarantine. Raises SpecError."""
        return load_quarantine(self.root, today=self.today)

    def expired_quarantine(self) -> tuple[Problem, ...]:
        """Entries of the quarantine whose day is over. Raises SpecError when the file is wrong in another way."""
        return expired(self.root, today=self.today)

    def workflow(self, name: str | None) -> str:
        """The workflow of that name, or the only one that makes a plan. Raises UsageError."""
        workflows = self.specs().workflows
        planned = [one for one, spec in workflows.items() if any(job.suites for job in spec.jobs.values())]
        if name is None and len(planned) == 1:
            return planned[0]
        if name is None:
            raise click.UsageError(f"--workflow is needed: one of {', '.join(planned or workflows)}")
        if name not in workflows:
            hint = did_you_mean(name, workflows) or f"there are {', '.join(workflows)}"
            raise click.UsageError(f"no workflow {name!r} in workflows/: {hint}")
        return name

    def plan(self, workflow: str, event: str, filter_text: str, inputs: dict[str, Any] | None = None) -> Plan:
        """The plan for an event. Raises SpecError for wrong specs, suites, filters or inputs."""
        return make_plan(
            self.specs(),
            workflow,
            self.catalogue(workflow),
            self.durations(),
            event=event,
            filter_text=filter_text,
            inputs=inputs or {},
            quarantine=self.quarantine().entries,
        )

    def units_of(self, workflow: str, units: Iterable[Unit], name: str) -> list[Unit]:
        """The units that a person names by file or test; a test that the syntax tree does not show, by its file."""
        units = list(units)
        planned = [
            one for one in units if name == one.path or base_id(one.path, name) in one.tests or name in one.items
        ]
        suites = self.catalogue(workflow).suites
        dynamic = {(suite.name, file.path) for suite in suites.values() for file in suite.files if file.dynamic}
        return planned or [
            one for one in units if (one.suite, one.path) in dynamic and name.startswith(f"{one.path}::")
        ]

    def as_planned(self) -> Project:
        """This repository to a shard of a plan, which may start after midnight, or in another time zone.

        Expiry dates were judged when the plan was made.
        """
        return replace(self, today=date.min)

    def agree(self, plan: Plan) -> None:
        """Raises ClickException unless this tree gives the same plan: a shard may only run what was planned."""
        tree = self.as_planned()
        own = tree.plan(tree.workflow(plan.workflow), plan.event, plan.filter, dict(plan.inputs))
        if own.hash != plan.hash:
            raise click.ClickException(
                f"this tree gives plan {own.hash}, the night runs plan {plan.hash}: the specs, tests or durations on "
                "this machine are not those that were planned; check out the same commit"
            )


@cache
def _specs(root: Path, today: date) -> Specs:
    return load(root, today=today)


@cache
def _discovery(root: Path) -> Discovery:
    return discover(root)


@cache
def _catalogue(root: Path, today: date, workflow: str) -> Catalogue:
    specs = _specs(root, today)
    return catalogue(specs.workflows[workflow].suites, _discovery(root), root, source=f"workflows/{workflow}.yml")
