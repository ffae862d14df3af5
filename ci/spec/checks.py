"""Rules that need more than one field: small pure functions that yield findings, with no file and no line.

`check_fleet` and `check_workflow` run them all. A `Finding` names a place in the spec; `ci.spec.loader` adds
file and line. Whether a suite exists and has tests is judged by the planning step, which has the tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from functools import cache
from typing import NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from ci.gha.limits import DISPATCH_INPUTS, HOSTED_JOB_SECONDS, SELF_HOSTED_JOB_SECONDS
from ci.gha.yaml_reader import Path
from ci.spec.filter import FILTER_INPUT
from ci.spec.models import Allowance, Fleet, Input, Job, Pool, Schedule, Workflow, format_duration
from ci.spec.problems import did_you_mean, shown

RESERVED_KEYS = frozenset({"plan", "gate", "all"})
"""The first and the last job of every nightly, and the filter that selects every job."""


class Finding(NamedTuple):
    """A broken rule: where in the spec, what is wrong, and how to mend it."""

    path: Path
    message: str
    fix: str = ""


@dataclass(frozen=True)
class Checked:
    """One workflow as the rules see it.

    `written` is what stands in the file and `filled` has the defaults in it. `pools` and `keys` hold all
    names in the files, also of pools (then None) and jobs too broken to read: one mistake is reported once.
    """

    written: Workflow
    filled: Workflow
    pools: Mapping[str, Pool | None]
    keys: tuple[str, ...]
    today: date


def check_fleet(fleet: Fleet) -> Iterator[Finding]:
    """Every finding in the fleet."""
    for name, pool in fleet.pools.items():
        limit, where = _platform_limit(pool)
        if pool.timeout is not None and pool.timeout > limit:
            message = f"{format_duration(pool.timeout)} is above the {format_duration(limit)} {where}"
            yield Finding(("pools", name, "timeout"), message, f"at most {format_duration(limit)}")


def check_workflow(spec: Checked) -> Iterator[Finding]:
    """Every finding in one workflow."""
    yield from _triggers(spec)
    yield from _inputs(spec)
    yield from _suites(spec)
    yield from _names(spec)
    for key, job in spec.filled.jobs.items():
        path: Path = ("jobs", key)
        yield from _pool(spec, path, job)
        yield from _work(path, job, spec.written.jobs[key])
        yield from _times(spec, path, job)
        yield from _after(spec, path, key, job)
        yield from _enabled(spec, path, job)
    yield from _cycles(spec)


def _triggers(spec: Checked) -> Iterator[Finding]:
    triggers = spec.written.triggers
    others = (triggers.dispatch, triggers.call, triggers.pull_request, triggers.push)
    if not triggers.schedules and not any(others):
        yield Finding(
            ("triggers",),
            "no trigger: the workflow would never run",
            "add schedule, dispatch, call, pull_request or push; `dispatch: {}` is a manual run",
        )
    for index, schedule in enumerate(triggers.schedules):
        here = (index,) if isinstance(triggers.schedule, list) else ()
        yield from _cron(("triggers", "schedule", *here, "cron"), schedule)
        yield from _timezone(("triggers", "schedule", *here, "timezone"), schedule.timezone)


def _cron(path: Path, schedule: Schedule) -> Iterator[Finding]:
    fix = 'five fields: minute hour day month weekday, such as "17 0 * * *" for 00:17 every day'
    if len(schedule.cron.split()) != 5 or any(char in schedule.cron for char in "@#?L"):
        yield Finding(path, f"{shown(schedule.cron)} is not a cron line that GitHub reads", fix)
        return
    try:
        CronSim(schedule.cron, datetime(2026, 1, 1))
    except CronSimError as error:
        wrong = str(error)[:1].lower() + str(error)[1:]
        yield Finding(path, f"{shown(schedule.cron)} is not a cron line: {wrong}", fix)


def _timezone(path: Path, zone: str) -> Iterator[Finding]:
    if not _is_timezone(zone):
        near = did_you_mean(zone, available_timezones())
        yield Finding(path, f"unknown time zone {shown(zone)}", near or "an IANA name, such as Europe/Berlin")


@cache
def _is_timezone(zone: str) -> bool:
    try:
        return bool(ZoneInfo(zone))
    except (ValueError, OSError, KeyError):
        return False


def _inputs(spec: Checked) -> Iterator[Finding]:
    triggers = spec.written.triggers
    inputs = triggers.dispatch.inputs if triggers.dispatch else {}
    path: Path = ("triggers", "dispatch", "inputs")
    if len(inputs) >= DISPATCH_INPUTS:
        message = f"{len(inputs)} inputs and {FILTER_INPUT} are {len(inputs) + 1}; GitHub takes {DISPATCH_INPUTS}"
        yield Finding(path, message, "drop some, or join some into one text")
    for name, item in inputs.items():
        if name.lower() == FILTER_INPUT:
            yield Finding((*path, name), "this input is always there: it holds the filter", "drop it or rename it")
        yield from _options((*path, name), item)
        yield from _default((*path, name), item, scheduled=bool(triggers.schedules))


def _options(path: Path, item: Input) -> Iterator[Finding]:
    if item.type == "choice" and not item.options:
        yield Finding((*path, "options"), "`type: choice` needs options", "list what a person may choose")
    if item.type != "choice" and item.options:
        yield Finding((*path, "options"), f"options with `type: {item.type}`", "write `type: choice`")
    if len(set(item.options)) < len(item.options):
        yield Finding((*path, "options"), "an option stands here twice", "write each once")


def _default(path: Path, item: Input, *, scheduled: bool) -> Iterator[Finding]:
    where, value = (*path, "default"), item.default
    if value is None:
        if item.required and scheduled:
            message = "required and without default, but a scheduled run has nobody to fill it in"
            yield Finding(path, message, "give it a default")
        return
    is_of_type = {
        "string": isinstance(value, str),
        "choice": isinstance(value, str),
        "boolean": isinstance(value, bool),
        "number": isinstance(value, int | float) and not isinstance(value, bool),
    }
    if not is_of_type[item.type]:
        fix = {"boolean": "write true or false", "number": "write a number, without quotes"}
        message = f"{shown(value)} is not of `type: {item.type}`"
        yield Finding(where, message, fix.get(item.type, "put it in quotes"))
    elif item.type == "choice" and item.options and value not in item.options:
        allowed = ", ".join(map(shown, item.options))
        yield Finding(where, f"{shown(value)} is none of the options", f"one of {allowed}")


def _suites(spec: Checked) -> Iterator[Finding]:
    for name, suite in spec.written.suites.items():
        path: Path = ("suites", name)
        if suite.files and suite.command:
            yield Finding(path, "both files and command: a suite has one of them", "drop one")
        if not suite.model_fields_set:
            message = "says nothing: neither files, nor a command, nor what its marked tests need"
            yield Finding(path, message, "drop the declaration if test files name the suite themselves")
        for field in ("manifest", "junit"):
            if getattr(suite, field) and not suite.command:
                yield Finding((*path, field), f"{field} without command", f"add command, or drop {field}")
        yield from _expiry(spec, (*path, "allow_empty"), suite.allow_empty)


def _expiry(spec: Checked, path: Path, allowance: Allowance | None) -> Iterator[Finding]:
    if allowance and allowance.expires < spec.today:
        message = f"expired on {allowance.expires} (reason: {shown(allowance.reason)})"
        yield Finding((*path, "expires"), message, "mend the cause, or give a new date and the reason for it")


def _names(spec: Checked) -> Iterator[Finding]:
    """Keys and aliases share one space, in which case is ignored, as in filters."""
    owner = {key.lower(): key for key in spec.keys}
    for key in spec.written.jobs:
        if key.lower() in RESERVED_KEYS:
            yield Finding(("jobs", key), f"the key {shown(key)} is reserved", "choose another key")
    for key, job in spec.written.jobs.items():
        for index, alias in enumerate(job.aliases):
            path: Path = ("jobs", key, "aliases", index)
            if alias.lower() in RESERVED_KEYS:
                yield Finding(path, f"the alias {shown(alias)} is reserved", "choose another alias")
            elif alias.lower() in owner:
                taken = owner[alias.lower()]
                whose = "this job" if taken == key else f"the job {shown(taken)}"
                yield Finding(path, f"the alias {shown(alias)} already names {whose} (case is ignored)", "drop it")
            owner.setdefault(alias.lower(), key)


def _pool(spec: Checked, path: Path, job: Job) -> Iterator[Finding]:
    if job.pool is None:
        pools = ", ".join(sorted(spec.pools))
        yield Finding((*path, "pool"), "the job names no pool, and neither do the defaults", f"one of {pools}")
    elif job.pool not in spec.pools:
        near = did_you_mean(job.pool, spec.pools) or f"one of {', '.join(sorted(spec.pools))}"
        yield Finding((*path, "pool"), f"unknown pool {shown(job.pool)}", near)
    elif spec.written.triggers.pull_request and (pool := spec.pools[job.pool]) and not pool.hosted:
        message = f"pull requests would run code from forks on your own machines, pool {shown(job.pool)}"
        yield Finding((*path, "pool"), message, "use a hosted pool, or drop the trigger pull_request")


def _work(path: Path, job: Job, written: Job) -> Iterator[Finding]:
    if job.suites and job.commands:
        yield Finding((*path, "commands"), "a job has suites or commands, not both", "drop one of them")
    if not job.suites and not job.commands:
        message = "missing, and there are no commands: the job would do nothing"
        yield Finding((*path, "suites"), message, "add suites, or commands for a job that runs no tests")
    if job.suites and job.after:
        message = "only a job with commands may run after others"
        yield Finding((*path, "after"), message, "drop it: jobs with suites all start after the plan")
    for field in ("shards", "file_timeout", "exclude_marks"):
        if job.commands and not job.suites and field in written.model_fields_set:
            yield Finding((*path, field), f"{field} means nothing for a job with commands", "drop it")
    for index, suite in enumerate(job.suites):
        if suite in job.suites[:index]:
            yield Finding((*path, "suites", index), f"the suite {shown(suite)} stands here twice", "write it once")


def _times(spec: Checked, path: Path, job: Job) -> Iterator[Finding]:
    pool = spec.pools.get(job.pool or "")
    if job.timeout is None:
        yield Finding((*path, "timeout"), "missing, here and in the defaults", "add one, such as `timeout: 2h`")
    elif pool:
        limit, where = _platform_limit(pool)
        if pool.timeout is not None and pool.timeout < limit:
            limit, where = pool.timeout, f"of the pool {shown(job.pool)}"
        if job.timeout > limit:
            message = f"{format_duration(job.timeout)} is above the {format_duration(limit)} {where}"
            yield Finding((*path, "timeout"), message, f"at most {format_duration(limit)}")
    if job.suites and job.file_timeout is None:
        fix = "add one, such as `file_timeout: 40m`; a file that hangs is stopped then"
        yield Finding((*path, "file_timeout"), "missing, here and in the defaults", fix)
    elif job.suites and job.timeout is not None and (job.file_timeout or 0) >= job.timeout:
        message = f"{format_duration(job.file_timeout or 0)} is not below the job's {format_duration(job.timeout)}"
        fix = "lower file_timeout or raise timeout, so that a hanging file is stopped and reported in time"
        yield Finding((*path, "file_timeout"), message, fix)


def _platform_limit(pool: Pool) -> tuple[int, str]:
    if pool.hosted:
        return HOSTED_JOB_SECONDS, "that GitHub gives a job on its own machines"
    return SELF_HOSTED_JOB_SECONDS, "that GitHub gives a job on a self-hosted machine"


def _after(spec: Checked, path: Path, key: str, job: Job) -> Iterator[Finding]:
    others = [other for other in spec.keys if other != key]
    for index, before in enumerate(_before(job)):
        where = (*path, "after", "jobs", index)
        if before == key:
            yield Finding(where, "the job would run after itself", "drop it")
        elif before not in others:
            near = did_you_mean(before, others) or f"one of {', '.join(others)}, or `jobs: all`"
            yield Finding(where, f"unknown job {shown(before)}", near)


def _before(job: Job) -> list[str]:
    return job.after.jobs if job.after and isinstance(job.after.jobs, list) else []


def _cycles(spec: Checked) -> Iterator[Finding]:
    """Each cycle of two or more jobs once, at its job that stands first in the file."""
    jobs = spec.written.jobs
    done: set[str] = set()

    def visit(key: str, trail: list[str]) -> Iterator[Finding]:
        if key in trail:
            loop = trail[trail.index(key) :]
            if len(loop) > 1:
                message = f"the jobs wait for each other: {' after '.join([*loop, key])}"
                yield Finding(("jobs", key, "after"), message, "drop one of these edges")
        elif key in jobs and key not in done:
            for before in _before(jobs[key]):
                yield from visit(before, [*trail, key])
            done.add(key)

    for key in jobs:
        yield from visit(key, [])


def _enabled(spec: Checked, path: Path, job: Job) -> Iterator[Finding]:
    if not job.enabled and not job.disabled:
        fix = "add `disabled: {reason: ..., expires: YYYY-MM-DD}`"
        yield Finding((*path, "disabled"), "`enabled: false` needs a reason and an expiry", fix)
    if job.enabled and job.disabled:
        yield Finding((*path, "disabled"), "the job is not disabled", "drop it, or add `enabled: false`")
    if not job.enabled:
        yield from _expiry(spec, (*path, "disabled"), job.disabled)
