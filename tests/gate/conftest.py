"""Plans and journals for the tests of the gate, written the way the planner and the runner write them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from ci.journal import (
    AnyEvent,
    Collected,
    Journal,
    Note,
    ShardFinished,
    ShardStarted,
    TestFinished,
    TestStarted,
    UnitFinished,
    UnitStarted,
)
from ci.plan import Plan, PlannedJob, Shard, Unit

SUITE = "attention"
Attempt = Mapping[str, Any]
"""`results`: {test: outcome}, where None is a test that started and never ended, `never` one that was
collected and never started, `twice` one that passed two times; and, where it matters, `ending`, `exit_code`,
`signal`, `detail`, `deselected`, `collected` (False: the process did not come so far)."""


def _make_plan(jobs: Mapping[str, Sequence[Mapping[str, Sequence[str]]] | str], **fields: Any) -> Plan:
    """`{job: [{path: [test, ...]}, ...]}`: a job of shards of files; `{job: state}`: one without any."""
    planned = []
    for key, shards in jobs.items():
        made = [
            Shard(
                index=index,
                count=len(shards),
                seconds=1,
                units=tuple(
                    Unit(suite=SUITE, kind="pytest", path=path, tests=tuple(tests), seconds=1)
                    for path, tests in files.items()
                ),
            )
            for index, files in enumerate(shards, 1)
            if not isinstance(files, str)
        ]
        state = shards if isinstance(shards, str) else "selected"
        planned.append(
            PlannedJob(
                key=key,
                state=state,
                reason="all",
                pool="8-gpu-b200",
                timeout=60,
                shards=tuple(made),
                **fields,
            )
        )
    plan = Plan(workflow="nightly", event="schedule", filter="all", jobs=tuple(planned))
    return plan.sealed()


def _record(
    plan: Plan,
    job: str,
    shard: str,
    files: Mapping[str, Sequence[Attempt]],
    *,
    run_attempt: int = 1,
    plan_hash: str | None = None,
    exit_code: int = 0,
    interrupted: str = "",
    notes: Sequence[tuple[str, str]] = (),
    finished: bool = True,
) -> Journal:
    """The journal of a shard whose files ran these attempts."""
    hashed = plan.hash if plan_hash is None else plan_hash
    events: list[AnyEvent] = [
        ShardStarted(
            at=1, workflow=plan.workflow, job=job, shard=shard, run_attempt=run_attempt, plan_hash=hashed,
            host="gpu-07",
        )
    ]  # fmt: skip
    events += [Note(at=1, level=level, message=message) for level, message in notes]  # type: ignore[arg-type]
    for path, attempts in files.items():
        for number, attempt in enumerate(attempts, 1):
            events += _events(path, number, **attempt)
    if finished:
        events.append(ShardFinished(at=9, exit_code=exit_code, interrupted=interrupted))
    return Journal(f"results-{job}-{shard}-a{run_attempt}/journal.jsonl", tuple(events))


def _events(
    path: str,
    number: int,
    *,
    results: Mapping[str, str | None],
    ending: str = "completed",
    exit_code: int | None = None,
    signal: str = "",
    detail: str = "",
    deselected: Sequence[str] = (),
    collected: Sequence[str] | bool = True,
) -> list[AnyEvent]:
    common: dict[str, Any] = {"at": 2, "unit": path, "suite": SUITE, "attempt": number}
    events: list[AnyEvent] = [UnitStarted(**common)]
    found = (tuple(results) if collected else ()) if isinstance(collected, bool) else tuple(collected)
    if collected is not False:
        events.append(Collected(**common, tests=found, deselected=tuple(deselected)))
    for test, outcome in results.items():
        if outcome == "never":
            continue
        times = 2 if outcome == "twice" else 1
        for _ in range(times):
            if test in found:
                events.append(TestStarted(**common, test=test))
            if outcome is not None:
                told = "passed" if outcome == "twice" else outcome
                message = "" if told == "passed" else f"{told}: expected 1, got 2"
                events.append(TestFinished(**common, test=test, outcome=told, seconds=0.5, message=message))
    if exit_code is None and ending == "completed":
        exit_code = int("failed" in results.values())
    events.append(
        UnitFinished(**common, ending=ending, exit_code=exit_code, signal=signal, detail=detail, seconds=len(results))
    )
    return events


@pytest.fixture(scope="session")
def make_plan() -> Callable[..., Plan]:
    return _make_plan


@pytest.fixture(scope="session")
def record() -> Callable[..., Journal]:
    return _record
