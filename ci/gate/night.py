"""The verdict of a night as a value: every test, shard and job, and every problem by name.

It is written as JSON, read back by the history, and rendered by `ci.gate.report`. Nothing here decides.
"""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field, JsonValue

from ci.plan import Value

SCHEMA = 1
"""Version of the JSON of a night."""

TestVerdict = Literal["passed", "failed", "flaky", "timed-out", "crashed", "lost", "skipped", "quarantined"]
JobVerdict = Literal["failed", "infra", "incomplete", "no-signal", "passed", "not-selected"]
NightVerdict = Literal["passed", "failed", "incomplete"]

WORST_FIRST: tuple[JobVerdict, ...] = ("failed", "infra", "incomplete", "no-signal", "passed", "not-selected")
"""A real failure wins over infrastructure, and both explain more than a hole."""
TESTS_WORST_FIRST: tuple[TestVerdict, ...] = (
    "failed", "crashed", "timed-out", "lost", "flaky", "quarantined", "skipped", "passed",
)  # fmt: skip
EXIT_CODES: dict[NightVerdict, int] = {"passed": 0, "failed": 1, "incomplete": 4}
"""`incomplete`: nothing failed, but not everything that was planned has a result."""


class JobResult(Value):
    """What GitHub says of a job in `toJSON(needs)`; all legs of a matrix share it."""

    model_config = ConfigDict(extra="ignore", frozen=True)
    result: str = Field(description="success, failure, cancelled or skipped; a timeout is `cancelled` too.")
    outputs: dict[str, JsonValue] | None = Field({}, description="act writes null for none.")


class Finding(Value):
    """One named problem, or a warning: what happened, where, to which tests, and what to do."""

    kind: str = Field(description="A key of `ci.gate.kinds.KINDS`.")
    causes: JobVerdict = Field(description="What it makes of its job; `passed` for a warning.")
    message: str
    fix: str
    job: str = ""
    shard: str = ""
    suite: str = ""
    unit: str = ""
    tests: tuple[str, ...] = Field((), description="Every test that it takes the result from.")
    detail: str = Field("", description="First lines of the failure, as the test wrote them.")

    @property
    def red(self) -> bool:
        """True unless it is a warning."""
        return self.causes != "passed"


class JudgedTest(Value):
    """The one verdict of a test in a job."""

    job: str
    shard: str
    suite: str
    unit: str
    test: str = Field(description="Full id with parameters; the planned id when no process named it.")
    verdict: TestVerdict
    planned: bool = True
    attempts: int = Field(0, description="Results that it had in the shard's latest attempt.")
    seconds: float = Field(0.0, description="Also of one without an end: until its process ended, where that is known.")
    message: str = ""


class JudgedShard(Value):
    """One planned shard."""

    id: str
    verdict: JobVerdict
    host: str = Field("", description="Empty without a journal.")
    run_attempt: int = Field(0, description="Attempt of the run that was judged; 0 without a journal.")
    superseded: tuple[int, ...] = Field((), description="Earlier attempts of the run: history.")
    seconds: float = Field(0.0, description="Time of its units, all attempts.")


class JudgedJob(Value):
    """One job of the plan."""

    key: str
    verdict: JobVerdict
    reason: str = Field(description="Why it ran or not; when it is not green, what is wrong in a few words.")
    pool: str
    result: str = Field("", description="GitHub's result, empty in local use.")
    shards: tuple[JudgedShard, ...] = ()
    counts: dict[TestVerdict, int] = Field({}, description="Tests by verdict, without zeros.")


class Night(Value):
    """The whole night, judged."""

    schema_version: int = SCHEMA
    workflow: str = ""
    event: str = ""
    filter: str = ""
    plan_hash: str = ""
    verdict: NightVerdict
    jobs: tuple[JudgedJob, ...] = ()
    tests: tuple[JudgedTest, ...] = ()
    findings: tuple[Finding, ...] = Field((), description="Worst first; warnings last.")

    @property
    def exit_code(self) -> int:
        """What the command leaves with."""
        return EXIT_CODES[self.verdict]

    @property
    def problems(self) -> tuple[Finding, ...]:
        """The findings that turn the night red."""
        return tuple(finding for finding in self.findings if finding.red)

    @property
    def counts(self) -> dict[TestVerdict, int]:
        """Tests by verdict over all jobs, without zeros."""
        total: dict[TestVerdict, int] = {}
        for job in self.jobs:
            for verdict, count in job.counts.items():
                total[verdict] = total.get(verdict, 0) + count
        return total
