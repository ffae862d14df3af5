"""The filter: text from a person that selects jobs of one workflow, on a laptop and in a run alike.

`all`, or nothing, selects every job. Otherwise terms stand between commas; case and outer spaces are ignored:

    attention-8-gpu      a job, by its key or an alias; never by a part of it
    *-b200, perf-?-gpu   a glob over keys and aliases: * is any text, ? is one character
    tag:attention        jobs with that tag; likewise pool:8-gpu-b200 and suite:NAME; globs are allowed
    !perf-*              removes what the term names, wherever it stands; alone, it removes from all

A term that names no job, an unknown prefix, an empty term and a filter that selects nothing are errors.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ci.spec.models import Job, Workflow
from ci.spec.problems import FilterError, nearest, shown

FILTER_INPUT = "job_filter"
"""The input of every manual run that holds the filter."""
MAX_CHARACTERS = 2_000

_FACETS: Mapping[str, Callable[[Job], list[str]]] = {
    "tag": lambda job: list(job.tags),
    "pool": lambda job: [job.pool] if job.pool else [],
    "suite": lambda job: list(job.suites),
}


@dataclass(frozen=True)
class Selection:
    """Which jobs run: `reasons` says why, or why not, for every job in the spec's order."""

    selected: tuple[str, ...]
    reasons: Mapping[str, str]


@dataclass(frozen=True)
class _Term:
    """One term: what it matches names with, and whether it removes."""

    text: str
    prefix: str
    pattern: str
    removes: bool

    def match(self, key: str, job: Job) -> str | None:
        """The name by which this term finds the job, or None."""
        names = _FACETS[self.prefix](job) if self.prefix else [key, *job.aliases]
        pattern = self.pattern.replace("[", "[[]")
        return next((name for name in names if fnmatch.fnmatchcase(name.lower(), pattern)), None)

    def reason(self, key: str, job: Job) -> str | None:
        """`matches \\`term\\`` when it finds the job, else None."""
        name = self.match(key, job)
        if name is None:
            return None
        alias = f" (alias {name})" if not self.prefix and name != key else ""
        return f"{'removed by' if self.removes else 'matches'} `{self.text}`{alias}"


def select(text: str, workflow: Workflow) -> Selection:
    """The jobs of `workflow` that the filter `text` selects. Raises FilterError with every bad term."""
    terms = _parse(text)
    _refuse_idle(terms, workflow)
    reasons: dict[str, str] = {}
    selected: list[str] = []
    asked_for = False
    for key, job in workflow.jobs.items():
        runs, reasons[key] = _decide(terms, key, job)
        selected += [key] if runs else []
        asked_for |= runs and job.select == "filter"
    if not asked_for:
        why = _why_nothing(terms, workflow, selected, reasons)
        raise FilterError([f"the filter {shown(text)} selects nothing: {why}"])
    return Selection(tuple(selected), reasons)


def _decide(terms: list[_Term], key: str, job: Job) -> tuple[bool, str]:
    """Whether a job runs, and the reason."""
    if not job.enabled:
        return (
            False,
            f"disabled until {job.disabled.expires}: {job.disabled.reason}" if job.disabled else "disabled",
        )
    found = [(term, reason) for term in terms if (reason := term.reason(key, job))]
    for term, reason in found:
        if term.removes:
            return False, reason
    if found:
        return True, found[0][1]
    if job.select == "always":
        return True, "always runs (select: always)"
    if not terms:
        return True, "selected: all"
    if all(term.removes for term in terms):
        return True, "selected: all that no term removes"
    return False, "not named by the filter"


def _parse(text: str) -> list[_Term]:
    """The terms of a filter; none for all jobs."""
    if len(text) > MAX_CHARACTERS:
        start = shown(text[:40])
        raise FilterError([f"the filter has {len(text):,} characters, at most {MAX_CHARACTERS:,}: {start}..."])
    if bad := next((char for char in text if char != " " and not char.isprintable()), None):
        allowed = "it may hold spaces and printable characters"
        raise FilterError([f"the filter {shown(text)} has the character U+{ord(bad):04X}; {allowed}"])
    if text.strip(" ").lower() in ("", "all"):
        return []
    terms: list[_Term] = []
    problems: list[str] = []
    for part in text.split(","):
        term = _term(part.strip(" "), text)
        if isinstance(term, _Term):
            terms.append(term)
        else:
            problems.append(term)
    if problems:
        raise FilterError(problems)
    return terms


def _term(text: str, whole: str) -> _Term | str:
    """One term, or what is wrong with it."""
    removes = text.startswith("!")
    prefix, colon, pattern = text.removeprefix("!").strip(" ").rpartition(":")
    prefix, pattern = _lower(prefix.strip(" ")), _lower(pattern.strip(" "))
    if colon and prefix not in _FACETS:
        near = nearest(prefix, _FACETS)
        hint = f"did you mean {near[0]}:?" if near else "there are tag:, pool: and suite:"
        return f"unknown prefix in {shown(text)}: {hint}"
    if not pattern:
        what = shown(text) if text else "an empty term"
        return f"{what} names nothing in {shown(whole)}: write one name or glob between two commas"
    return _Term(text, prefix, "*" if pattern == "all" and not colon else pattern, removes)


def _lower(text: str) -> str:
    """Lower case of ASCII alone, as names are: the Kelvin sign is no k."""
    return text.lower() if text.isascii() else text


def _refuse_idle(terms: list[_Term], workflow: Workflow) -> None:
    """Raises FilterError for every term that finds no job."""
    idle = [term for term in terms if not any(term.match(*item) for item in workflow.jobs.items())]
    if idle:
        raise FilterError([f"{shown(term.text)} matches no job: {_hint(term, workflow)}" for term in idle])


def _hint(term: _Term, workflow: Workflow) -> str:
    """The names nearest to a term that finds no job."""
    jobs = workflow.jobs
    names = {facet: sorted({name for job in jobs.values() for name in of(job)}) for facet, of in _FACETS.items()}
    names[""] = [*jobs, *(alias for job in jobs.values() for alias in job.aliases)]
    known = names[term.prefix]
    elsewhere = [f"{facet}:{term.pattern}" for facet in _FACETS if not term.prefix and term.pattern in names[facet]]
    parts = [name for name in known if len(term.pattern) > 2 and term.pattern.strip("*?") in name.lower()]
    near = [*elsewhere, *nearest(term.pattern, known), *parts]
    if near:
        mark = "!" if term.removes else ""
        facet = f"{term.prefix}:" if term.prefix else ""
        full = [mark + (name if name in elsewhere else facet + name) for name in dict.fromkeys(near)]
        return f"did you mean {', '.join(map(repr, full[:4]))}?"
    if " " in term.pattern:
        return "terms stand between commas"
    return f"there are {', '.join(known[:20])}{' ...' if len(known) > 20 else ''}" if known else "no job has one"


def _why_nothing(terms: list[_Term], workflow: Workflow, selected: list[str], reasons: Mapping[str, str]) -> str:
    """What became of the jobs that the terms name."""
    naming = [term for term in terms if not term.removes]
    told = []
    for key, job in workflow.jobs.items():
        named = not terms or any(term.match(key, job) for term in naming)
        if named and not job.enabled:
            told.append(f"{key} is {reasons[key]}")
        elif named and key in selected:
            told.append(f"{key} runs only beside other jobs")
    return "; ".join(told[:5]) or "no job is left"
