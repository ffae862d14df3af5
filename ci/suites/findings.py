"""What is wrong with the suites as a whole: tests that no job would run, and tests that a job would run twice.

Input: the specs, the suites that each workflow sees, and the test files of the tree. Output: findings, each with a
place and a fix. What is wrong within one suite or one job is found before: `Catalogue.problems` (unreadable markers,
globs without a match), and unknown and empty suites when the plan is made.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from ci.spec.loader import Specs
from ci.spec.models import Job, Pool, SuiteDecl
from ci.spec.problems import Problem
from ci.suites.catalogue import Catalogue, Suite, SuiteFile, highest
from ci.suites.discover import Discovery

_MOST_NAMED = 3

Rule = Literal["no-suite", "no-job", "needs-unmet", "runs-twice", "declared-twice"]


@dataclass(frozen=True, order=True)
class SuiteFinding:
    """One finding; `rule` says of which kind."""

    problem: Problem
    rule: Rule


def findings(specs: Specs, catalogues: Mapping[str, Catalogue], discovery: Discovery) -> tuple[SuiteFinding, ...]:
    """Everything that is wrong, in file and line order. `catalogues` has one for each workflow of `specs`."""
    return tuple(
        sorted(
            {
                *(SuiteFinding(problem, "no-suite") for problem in _without_suite(catalogues, discovery)),
                *(SuiteFinding(problem, "no-job") for problem in _without_job(specs, catalogues, discovery)),
                *(SuiteFinding(problem, "needs-unmet") for problem in _unmet_needs(specs, catalogues)),
                *(SuiteFinding(problem, "runs-twice") for problem in _twice_in_a_job(specs, catalogues)),
                *(SuiteFinding(problem, "declared-twice") for problem in _declared_twice(specs)),
            }
        )
    )


def _without_suite(catalogues: Mapping[str, Catalogue], discovery: Discovery) -> Iterator[Problem]:
    """Files that look like tests, and tests, that belong to no suite."""
    files = [file for catalogue in catalogues.values() for suite in catalogue.suites.values() for file in suite.files]
    paths = {file.path for file in files}
    planned = {test.id for file in files for test in file.tests}
    for file in discovery.files:
        if file.names_no_suite:
            yield from file.problems
        if file.problems:
            continue
        left = [test for test in file.tests if test.id not in planned and not test.uses]
        if file.path not in paths and not file.uses and (file.tests or file.dynamic):
            fix = 'add pytestmark = pytest.mark.suite("NAME"), or list it in the files of a suite'
            yield Problem(file.path, 0, "suite", "looks like a test file and belongs to no suite", fix)
        elif left and (file.path in paths or file.uses):
            names = _some(test.id.partition("::")[2] for test in left)
            fix = "mark them, or mark the whole module"
            yield Problem(file.path, left[0].line, "suite", f"belong to no suite: {names}", fix)


def _without_job(specs: Specs, catalogues: Mapping[str, Catalogue], discovery: Discovery) -> Iterator[Problem]:
    """Suites that no job runs, in any workflow that sees them."""
    lines = {use.suite: (file.path, use.line) for file in reversed(discovery.files) for use in reversed(file.uses)}
    run = {(name, suite) for name, job in _jobs(specs) for suite in job.suites}
    run_somewhere = {suite for _, suite in run}
    fix = "add it to the suites of a job, or remove it"
    for name, catalogue in catalogues.items():
        for suite in catalogue.suites.values():
            if suite.kind == "marker" and suite.files and suite.name not in run_somewhere:
                path, line = lines[suite.name]
                yield Problem(path, line, "suite", f"no job runs suite {suite.name!r}", fix)
            elif suite.kind != "marker" and (name, suite.name) not in run:
                yield specs.problem(name, ("suites", suite.name), f"no job runs suite {suite.name!r}", fix)


def _unmet_needs(specs: Specs, catalogues: Mapping[str, Catalogue]) -> Iterator[Problem]:
    """Tests that need more GPUs or a newer SM than every pool of the jobs that run them."""
    pools: dict[tuple[str, str], set[str]] = defaultdict(set)
    for name, job in _jobs(specs):
        for suite_name in job.suites:
            suite = catalogues[name].suites.get(suite_name)
            if suite is not None and job.pool:
                # Every workflow sees the same suite of markers; a declared one is the workflow's own.
                pools["" if suite.kind == "marker" else name, suite_name].add(job.pool)
    for (name, suite_name), used in pools.items():
        catalogue = catalogues[name] if name else next(iter(catalogues.values()))
        suite = catalogue.suites[suite_name]
        for file in suite.files:
            for (gpus, min_sm), tests in _needs(suite, file).items():
                if not any(_meets(specs.fleet.pools[pool], gpus, min_sm) for pool in used):
                    sm = f"SM {min_sm} or newer" if min_sm else ""
                    count = f"{gpus} GPU{'s' * (gpus != 1)}" if gpus else ""
                    who = f" by {_some(tests)}" if tests else ""
                    what = " of ".join(filter(None, (count, sm)))
                    message = f"{what} needed{who}, which no pool that runs suite {suite_name!r} has"
                    fix = f"run it on another pool than {', '.join(sorted(used))}"
                    yield Problem(file.path, 0, "suite", message, fix)


def _needs(suite: Suite, file: SuiteFile) -> dict[tuple[int, int | None], list[str]]:
    """Each need (GPUs, SM) within a file with the tests that have it; a declaration adds to what tests say."""
    needs: dict[tuple[int, int | None], list[str]] = defaultdict(list)
    declared = suite.decl or SuiteDecl()
    for test in file.tests:
        for use in test.uses:
            if use.suite == suite.name:
                need = (max(use.gpus, declared.gpus), highest(use.min_sm, declared.min_sm))
                needs[need].append(test.id.partition("::")[2])
    return needs or {(file.gpus, file.min_sm): []}


def _meets(pool: Pool, gpus: int, min_sm: int | None) -> bool:
    return pool.gpus >= gpus and (min_sm is None or (pool.sm is not None and pool.sm >= min_sm))


def _twice_in_a_job(specs: Specs, catalogues: Mapping[str, Catalogue]) -> Iterator[Problem]:
    """Tests that two suites of one job share."""
    for name, workflow in specs.workflows.items():
        for key, job in workflow.jobs.items():
            seen: dict[str, str] = {}
            for index, suite_name in enumerate(job.suites):
                suite = catalogues[name].suites.get(suite_name)
                ids = {one for file in suite.files for one in _ids(file)} if suite else set()
                for other in sorted({seen[one] for one in ids if one in seen}):
                    shared = sorted(one for one in ids if seen.get(one) == other)
                    yield specs.problem(
                        name,
                        ("jobs", key, "suites", index),
                        f"would run twice, in {other!r} and in {suite_name!r}: {_some(shared)}",
                        "keep them in one of the two suites, or the suites in two jobs",
                    )
                seen |= dict.fromkeys(ids - seen.keys(), suite_name)


def _declared_twice(specs: Specs) -> Iterator[Problem]:
    """Suites of one name that two workflows declare in differing ways: their times would be mixed up."""
    first: dict[str, str] = {}
    for name, workflow in specs.workflows.items():
        for suite_name, decl in workflow.suites.items():
            other = first.setdefault(suite_name, name)
            if decl != specs.workflows[other].suites[suite_name]:
                message = f"suite {suite_name!r} is declared in another way in workflow {other!r}"
                yield specs.problem(name, ("suites", suite_name), message, "rename one, or make both the same")


def _ids(file: SuiteFile) -> list[str]:
    """What a file counts as in a job: its tests, or itself when none is known."""
    return [test.id for test in file.tests] or [file.path]


def _jobs(specs: Specs) -> Iterator[tuple[str, Job]]:
    for name, workflow in specs.workflows.items():
        for job in workflow.jobs.values():
            yield name, job


def _some(names: Iterable[str]) -> str:
    """The first few of `names`, and how many more there are."""
    named = list(names)
    more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    return ", ".join(named[:_MOST_NAMED]) + more
