"""Plan x results x journals -> the night. Pure, and the same for any order and any copies of the journals.

The night is green when every selected job ran every planned shard and every planned test has exactly one
result that is no failure. Journals decide what happened; GitHub's results can only add problems:
`needs.*.result` cannot tell a skipped job from one that was never meant to run, is one value for all legs of
a matrix, and calls a timeout `cancelled`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ci.gate.kinds import finding
from ci.gate.night import (
    WORST_FIRST,
    Finding,
    JobResult,
    JudgedJob,
    JudgedShard,
    JudgedTest,
    Night,
    NightVerdict,
)
from ci.gate.shards import Headed, ShardVerdict, judge_shard, worst
from ci.gate.units import tests_text
from ci.journal import Journal
from ci.plan import Plan, PlannedJob

PLAN_JOB = "plan"
"""Key of the job that writes the plan; the gate needs it, and the plan does not hold it."""

Results = Mapping[str, JobResult]
Tests = tuple[str, ...]


@dataclass
class _Job:
    """A job while it is judged."""

    planned: PlannedJob
    result: str
    shards: list[JudgedShard] = field(default_factory=list)
    tests: list[JudgedTest] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def take(self, verdict: ShardVerdict) -> None:
        self.shards.append(verdict.shard)
        self.tests += verdict.tests
        self.findings += verdict.findings

    def find(self, kind: str, message: str, *, suite: str = "", shard: str = "", tests: Tests = ()) -> None:
        where = {"job": self.planned.key, "suite": suite, "shard": shard}
        self.findings.append(finding(kind, message, tests=tests).model_copy(update=where))


def judge(
    plan: Plan | None,
    job_results: Results | None,
    journals: Iterable[Journal],
) -> Night:
    """Judge a night.

    `job_results` is `toJSON(needs)` of the gate, None in local use: then the journals alone are judged.
    """
    findings = list(_plan_job(job_results))
    headed, headless = _sort_out(journals)
    findings += headless
    if plan is None:
        if not any(one.kind == "plan-failed" for one in findings):
            findings.append(finding("plan-missing", f"no plan to judge {len(headed)} journals by"))
        return _night(Plan(workflow="", event="", filter="", jobs=()), [], findings)
    if not plan.intact():
        findings.append(finding("plan-damaged", f"its content is not that of hash {plan.hash or '(none)'}"))
    if not plan.selected:
        findings.append(finding("nothing-selected", f"filter {plan.filter!r} selected no job"))
    findings += _strangers(plan, job_results)
    by_job = defaultdict(list)
    for one in headed:
        by_job[one.head.job].append(one)
    jobs = [_judge_job(plan, job, job_results, by_job.pop(job.key, [])) for job in plan.jobs]
    for key, strangers in sorted(by_job.items()):
        shards = ", ".join(sorted({one.head.shard for one in strangers}))
        message = f"a journal of a job that the plan does not know (shard {shards})"
        findings.append(finding("unplanned-shard", message, job=key))
    return _night(plan, jobs, findings)


def _plan_job(results: Results | None) -> Iterator[Finding]:
    """What GitHub says of the plan job; its output `error` is the reason, when it gave one."""
    planned = results.get(PLAN_JOB) if results is not None else None
    if results is not None and planned is None:
        yield finding("not-in-needs", "the gate does not wait for the job that plans", job=PLAN_JOB)
    if planned and planned.result != "success":
        error = (planned.outputs or {}).get("error")
        reason = f": {error}" if isinstance(error, str) and error else ""
        yield finding("plan-failed", f"the plan job's result is {planned.result}{reason}", job=PLAN_JOB)


def _sort_out(journals: Iterable[Journal]) -> tuple[list[Headed], list[Finding]]:
    """Each journal once, apart from those that do not say whose they are."""
    headed: dict[tuple[str, str, int], list[Headed]] = defaultdict(list)
    headless: set[str] = set()
    for journal in journals:
        if journal.head is None:
            headless.add(journal.source)
            continue
        known = headed[journal.head.job, journal.head.shard, journal.head.run_attempt]
        if not any(_same(one.journal, journal) for one in known):
            known.append(Headed(journal.head, journal))
    found = [
        finding("headless-journal", f"{source} has no first line, so nobody knows what it is of")
        for source in sorted(headless)
    ]
    return [one for several in headed.values() for one in several], found


def _same(one: Journal, other: Journal) -> bool:
    """True of two copies of a journal. A prefix is no copy: the line that it lacks may be the failure."""
    return one.events == other.events and one.unreadable == other.unreadable


def _strangers(plan: Plan, results: Results | None) -> Iterator[Finding]:
    """Jobs that the gate waits for and the plan does not know."""
    known = {PLAN_JOB, *(job.key for job in plan.jobs)}
    for key in sorted((results or {}).keys() - known):
        yield finding("unknown-job", "the gate waits for it, and the plan does not know it", job=key)


def _judge_job(
    plan: Plan,
    planned: PlannedJob,
    results: Results | None,
    journals: list[Headed],
) -> _Job:
    result = results.get(planned.key) if results is not None else None
    job = _Job(planned, result.result if result else "")
    if results is not None and result is None:
        job.find("not-in-needs", "the plan knows it, and the gate does not wait for it")
    if not planned.selected:
        _not_selected(job, journals)
        return job
    by_shard: dict[str, list[Headed]] = defaultdict(list)
    for one in journals:
        by_shard[one.head.shard].append(one)
    if not planned.shards:
        job.find("no-signal", "selected without a shard to run")
    for shard in planned.shards:
        job.take(judge_shard(planned, shard, by_shard.pop(shard.id, []), plan.hash))
    for shard_id in sorted(by_shard):
        job.find("unplanned-shard", f"a journal of shard {shard_id}, which nobody planned", shard=shard_id)
    _duplicates(job)
    _github(job)
    return job


def _not_selected(job: _Job, journals: list[Headed]) -> None:
    """A job that is not selected is no failure, unless it ran."""
    if job.result in ("success", "failure"):
        job.find("unexpected-run", f"ran ({job.result}) although it is {job.planned.state}")
    elif journals:
        job.find("unexpected-run", f"left a journal although it is {job.planned.state}")


def _duplicates(job: _Job) -> None:
    """Tests with a result in more than one shard."""
    shards: dict[tuple[str, str], list[str]] = defaultdict(list)
    for test in job.tests:
        if test.attempts:
            shards[test.suite, test.test].append(test.shard)
    twice: dict[tuple[str, Tests], list[str]] = defaultdict(list)
    for (suite, name), where in shards.items():
        if len(where) > 1:
            twice[suite, tuple(where)].append(name)
    for (suite, several), names in sorted(twice.items()):
        message = f"{tests_text(names)} reported by the shards {' and '.join(several)}"
        job.find("duplicate", message, suite=suite, tests=tuple(sorted(names)))


def _github(job: _Job) -> None:
    """Problems that only GitHub's result tells."""
    if job.result == "skipped":
        # One reason for all: a shard of a job that was skipped has no journal to miss.
        job.findings = [one for one in job.findings if one.kind != "missing-shard"]
        lost = tuple(test.test for test in job.tests if test.verdict == "lost")
        message = f"skipped although it is selected; {tests_text(lost)} without a result"
        job.find("unexpected-skip", message, tests=lost)
    elif job.result == "cancelled":
        job.find("job-cancelled", "cancelled by a person, a newer run or its time limit: all look the same")
    elif job.result not in ("success", ""):
        explained = any(one.red or one.kind == "quarantined" for one in job.findings)
        if not explained:
            job.find("job-failed", f"GitHub's result is {job.result}, and no test failed")


def _night(plan: Plan, jobs: Iterable[_Job], others: Iterable[Finding]) -> Night:
    """Put together what was judged job by job: worst first, then in the plan's order."""
    judged = list(jobs)
    place = {job.planned.key: number for number, job in enumerate(judged)}
    findings = [*others, *(one for job in judged for one in job.findings)]
    findings.sort(key=lambda one: (WORST_FIRST.index(one.causes), place.get(one.job, -1)))
    return Night(
        workflow=plan.workflow,
        event=plan.event,
        filter=plan.filter,
        plan_hash=plan.hash,
        verdict=_overall(findings),
        jobs=tuple(_judged(job) for job in judged),
        tests=tuple(test for job in judged for test in job.tests),
        findings=tuple(findings),
    )


def _overall(findings: Iterable[Finding]) -> NightVerdict:
    red = {one.causes for one in findings if one.red}
    if not red:
        return "passed"
    return "failed" if "failed" in red else "incomplete"


def _judged(job: _Job) -> JudgedJob:
    red = [one for one in job.findings if one.red]
    planned = job.planned
    if red:
        kinds = Counter(one.kind for one in red)
        verdict = worst([one.causes for one in red])
        reason = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    elif not planned.selected:
        verdict, reason = "not-selected", f"{planned.state}: {planned.reason}"
    else:
        verdict, reason = "passed", planned.reason
    return JudgedJob(
        key=planned.key,
        verdict=verdict,
        reason=reason,
        pool=planned.pool,
        result=job.result,
        shards=tuple(job.shards),
        counts=dict(sorted(Counter(test.verdict for test in job.tests).items())),
    )
