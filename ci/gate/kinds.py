"""Every kind of finding: what it makes of its job, and what a person should do."""

from __future__ import annotations

from typing import NamedTuple

from ci.gate.night import Finding, JobVerdict


class Kind(NamedTuple):
    """What a finding makes of its job, and the advice."""

    causes: JobVerdict
    fix: str


_LOG = "read the log of the job"
KINDS: dict[str, Kind] = {
    # The plan
    "plan-failed": Kind("incomplete", "read the plan job's summary; nothing was selected, so nothing ran"),
    "plan-missing": Kind("incomplete", "see whether the plan job kept plan.json; nothing can be judged without it"),
    "plan-damaged": Kind("incomplete", "take plan.json as the plan job wrote it; it was changed since"),
    "nothing-selected": Kind("no-signal", "select at least one job: `nightcap plan --filter` shows what runs"),
    # GitHub's results against the plan
    "unknown-job": Kind("incomplete", "regenerate the workflows: the plan and the gate must know the same jobs"),
    "not-in-needs": Kind("incomplete", "regenerate the workflows: the plan and the gate must know the same jobs"),
    "unexpected-skip": Kind("incomplete", "look at the jobs that it waits for, and regenerate the workflows"),
    "unexpected-run": Kind("incomplete", "regenerate the workflows: the job's `if` does not follow the plan"),
    "job-cancelled": Kind("incomplete", "see how long it ran: close to `timeout` means that it was too slow"),
    "job-failed": Kind("failed", f"{_LOG}: a step outside the tests failed, such as set-up or upload"),
    # Journals against the plan
    "missing-shard": Kind("incomplete", f"{_LOG}, then rerun failed jobs: no journal came from this shard"),
    "wrong-plan": Kind("incomplete", "run the shard at the commit that was planned; by hand with `--plan plan.json`"),
    "unplanned-shard": Kind("incomplete", "judge only the journals of this run; regenerate the workflows if they are"),
    "unplanned-unit": Kind("incomplete", "rerun the shard: its runner ran what the plan did not give it"),
    "two-journals": Kind("failed", "keep one journal of each attempt; two runs claim to be the same one"),
    "headless-journal": Kind("incomplete", f"{_LOG}: the journal does not say whose it is"),
    "cut-journal": Kind("incomplete", f"{_LOG} to see what ended the machine or process, then rerun failed jobs"),
    "holed-journal": Kind("incomplete", "rerun the shard: lines are missing, so a result may be"),
    "interrupted": Kind("incomplete", "rerun failed jobs; reaching the job's `timeout` interrupts it, too"),
    "infra": Kind("infra", "check the host with `nightcap doctor`, then rerun failed jobs"),
    "shard-failed": Kind("failed", f"{_LOG}: the runner failed for a reason that is no test's"),
    # Files and tests
    "failed": Kind("failed", "run it alone, then with its file"),
    "crashed": Kind("failed", "run its file under a debugger; the journal names the signal"),
    "timed-out": Kind("failed", "read the stacks that lie beside the journal"),
    "file-crashed": Kind("failed", "no test was running: look at import, fixtures and exit"),
    "file-timed-out": Kind("failed", "no test was running: look at import, fixtures and exit"),
    "file-failed": Kind("failed", "no test failed: look at the end of the file's output"),
    "lost": Kind("incomplete", "see how the file ended; a planned test has no result"),
    "duplicate": Kind("failed", "make one process write one result a test; two results prove neither"),
    "no-signal": Kind("no-signal", "see why every test skips: a job without a result tests nothing"),
    # Warnings: shown, never red
    "flaky": Kind("passed", "find out why it failed before it passed; a retry hides a race"),
    "unreadable-lines": Kind("passed", "look for a full disk or a killed process; every result is there"),
    "unsteady-file": Kind("passed", "find out why the file had to be started again"),
    "unplanned": Kind("passed", "plan again at this commit, or accept that the syntax tree does not show them"),
    "quarantined": Kind("passed", "repair the test before its quarantine expires"),
    "note": Kind("passed", "see the journal"),
}

REPRODUCIBLE = frozenset(
    {"failed", "crashed", "timed-out", "file-crashed", "file-timed-out", "file-failed", "lost", "flaky"}
)
"""Kinds that a person may see again by running the same tests."""


def finding(
    kind: str,
    message: str,
    *,
    job: str = "",
    shard: str = "",
    suite: str = "",
    unit: str = "",
    tests: tuple[str, ...] = (),
    detail: str = "",
    causes: JobVerdict | None = None,
) -> Finding:
    """A finding of a known kind, with that kind's advice. Raises KeyError on an unknown kind."""
    known = KINDS[kind]
    return Finding(
        kind=kind, causes=causes or known.causes, message=message, fix=known.fix,
        job=job, shard=shard, suite=suite, unit=unit, tests=tests, detail=detail,
    )  # fmt: skip
