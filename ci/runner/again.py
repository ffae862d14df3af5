"""From a journal of an earlier run: what to run again, and how a person repeats one test by hand."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from ci.journal import AnyEvent, Collected, Journal, TestFinished, TestStarted
from ci.plan import PlannedJob, Shard, Unit
from ci.runner.judge import BAD
from ci.runner.units import reproduce_command
from ci.spec.problems import did_you_mean

UnitKey = tuple[str, str]
"""(suite, path)."""


class UnknownTest(ValueError):
    """The journal does not know the test; one line for a person."""


class NoLongerPlanned(ValueError):
    """The journal knows the test, and the job no longer has its file; one line for a person."""


def failed_before(journal: Journal, shard: Shard) -> dict[UnitKey, tuple[str, ...]]:
    """What of a shard is to run again, as `RunOptions.only` takes it: full ids, or () for a whole unit.

    To run again are tests whose last result is bad, tests without a result, and units that ran nothing. A unit
    whose failure has no full ids (its file could not be collected, it is no test file) runs again as a whole. Of
    another shard than the journal's, only what the journal speaks of: the rest was never its to run.
    """
    own = journal.head is None or journal.head.shard == shard.id
    again: dict[UnitKey, tuple[str, ...]] = {}
    for unit in shard.units:
        events = [
            e for e in journal.events if (getattr(e, "suite", ""), getattr(e, "unit", "")) == (unit.suite, unit.path)
        ]
        tests = _failed(events, unit) if events or own else None
        if tests is not None:
            again[unit.suite, unit.path] = tests
    return again


def reproduce(journal: Journal, test: str, job: PlannedJob) -> str:
    """The environment of a test's run as comments, and the commands to repeat it.

    Raises UnknownTest and NoLongerPlanned.
    """
    seen = {e.test: e for e in journal.events if isinstance(e, TestStarted | TestFinished)}
    if test not in seen:
        hint = did_you_mean(test, seen)
        raise UnknownTest(f"no test {test!r} in {journal.source}" + (f"; {hint}" if hint else ""))
    last = seen[test]
    units = (u for shard in job.shards for u in shard.units if (u.suite, u.path) == (last.suite, last.unit))
    unit = next(units, None)
    if unit is None:
        why = f"{last.unit} of suite {last.suite} is no longer part of job {job.key}"
        raise NoLongerPlanned(f"{why}: check out the commit of {journal.source}")
    return "\n".join([*_told(journal, test), *_commands(journal, test, unit, job)]) + "\n"


def _failed(events: Sequence[AnyEvent], unit: Unit) -> tuple[str, ...] | None:
    """Ids of a unit to run again by its events, () for all of the unit, None for nothing."""
    collected = {test for e in events if isinstance(e, Collected) for test in e.tests}
    last = {e.test: e.outcome for e in events if isinstance(e, TestFinished)}
    bad = {test for test, outcome in last.items() if outcome in BAD} | (collected - last.keys())
    if not last or (bad and unit.kind != "pytest") or not bad <= collected:
        return ()
    return tuple(sorted(bad)) or None


def _told(journal: Journal, test: str) -> Iterator[str]:
    head = journal.head
    if head:
        yield f"# job {head.job}, shard {head.shard}, on {head.host}"
        yield from (f"# {name}: {value}" for name, value in sorted(head.environment.items()))
    for event in journal.events:
        if isinstance(event, TestFinished) and event.test == test:
            first = event.message.partition("\n")[0]
            yield f"# attempt {event.attempt}: {event.outcome}" + (f": {first}" if first else "")


def _commands(journal: Journal, test: str, unit: Unit, job: PlannedJob) -> Iterator[str]:
    commit = journal.head.environment.get("commit") if journal.head else None
    if commit:
        yield f"git checkout {shlex.quote(commit)}"
    for name, value in sorted(job.env.items()):
        yield f"export {name}={shlex.quote(value)}"
    yield reproduce_command(unit, test)
