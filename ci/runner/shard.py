"""Runs one shard: its units one after another, each in fresh processes, everything into the journal.

    run_shard(job, shard, options=...) -> RunResult

Before the first unit the host is made fit: left-overs of dead runs ended, disk, locks and ports taken, GPUs looked
at. A host that is not fit ends the run, and no test is to blame. On a stop signal the loop ends, and what is known
by then is complete on disk.
"""

from __future__ import annotations

import shutil
import socket
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ci.journal import ShardFinished, ShardStarted
from ci.plan import PlannedJob, Shard, Unit
from ci.runner import environment, host, junit, processes
from ci.runner.attempt import Context
from ci.runner.console import Console
from ci.runner.exit_codes import ExitCode
from ci.runner.gpu_care import GpuCare, care_for, require_fit
from ci.runner.gpus import HostReport
from ci.runner.host import HostNotFit
from ci.runner.interrupts import Interrupted, Interrupts
from ci.runner.options import RunOptions
from ci.runner.record import Record
from ci.runner.results import RunResult, UnitResult
from ci.runner.unit_run import run_unit
from ci.runner.units import Attempt, Places

STEP_SHARE = 0.95
"""Part of the job's time that its units may use; the rest is for checkout, upload and leaving in order."""


def run_shard(job: PlannedJob, shard: Shard, *, options: RunOptions) -> RunResult:
    """Run the units of a shard on this host. Call it in the main thread of a process with no other thread.

    Raises OSError when the results cannot be written.
    """
    with (
        Interrupts() as interrupts,
        tempfile.TemporaryDirectory(prefix="nightcap-", ignore_cleanup_errors=True) as scratch,
    ):
        places = Places(options.root, options.results, Path(scratch))
        shutil.rmtree(options.results / "logs", ignore_errors=True)
        record = Record(places.journal, places.reserve)
        processes.become_subreaper()
        try:
            run = _Run(job, shard, options, places, record, interrupts)
            result = run.to_its_end()
            record.write(ShardFinished(at=time.time(), exit_code=result.exit_code, interrupted=result.interrupted))
            junit.write(record.events, places.junit)
            return result
        finally:
            record.close()


@dataclass(frozen=True)
class _Run:
    """One run of a shard: what is fixed about it, and its course."""

    job: PlannedJob
    shard: Shard
    options: RunOptions
    places: Places
    record: Record
    interrupts: Interrupts

    def to_its_end(self) -> RunResult:
        """Run all there is to run, until the end, a stop signal, or the host is not fit."""
        only = self.options.only
        wanted = [u for u in self.shard.units if only is None or (u.suite, u.path) in only]
        console = Console(quiet=self.options.quiet, total=len(wanted))
        results: list[UnitResult] = []
        fit = True
        env = {**self.options.env, **self.job.env}
        care = care_for(self.job, env.get("CUDA_VISIBLE_DEVICES"), self.options.gpu_wait)
        try:
            report = self._begin(care)
            with ExitStack() as lent:
                context = self._prepare(care, report, env, lent)
                self._run_units(wanted, context, console, results)
        except Interrupted:
            console.say(f"stopped by {self.interrupts.received}")
        except HostNotFit as problem:
            fit = False
            self.record.note("infra", str(problem))
            console.say(str(problem))
        not_run = tuple(wanted[len(results) :])
        code = _exit_code(results, not_run, fit=fit, interrupted=self.interrupts.received)
        verdict = code.name.replace("_", " ")
        console.summary(
            results, not_run, f"{verdict}: {_summary(results, not_run)}; all of it in {self.places.journal}"
        )
        return RunResult(
            exit_code=code,
            units=tuple(results),
            not_run=not_run,
            journal=self.places.journal,
            junit=self.places.junit,
            interrupted=self.interrupts.received,
        )

    def _begin(self, care: GpuCare | None) -> HostReport | None:
        """Write the head of the journal, with the GPUs as they are now."""
        report = None
        try:
            with self.interrupts.raising():
                report = care.look() if care else None
        finally:  # a journal without its first line would be nobody's
            self.record.write(self._head(report))
        return report

    def _head(self, report: HostReport | None) -> ShardStarted:
        return ShardStarted(
            at=time.time(),
            workflow=self.options.workflow,
            job=self.job.key,
            shard=self.shard.id,
            run_attempt=self.options.run_attempt,
            plan_hash=self.options.plan_hash,
            host=socket.gethostname(),
            environment=environment.manifest(self.options.root, self.options.env, report),
        )

    def _prepare(
        self, care: GpuCare | None, report: HostReport | None, env: Mapping[str, str], lent: ExitStack
    ) -> Context:
        """Make the host ready; what it lends is given back with `lent`. Raises HostNotFit or Interrupted."""
        options, mark = self.options, uuid.uuid4().hex
        deadline = time.monotonic() + self.job.timeout * STEP_SHARE
        with self.interrupts.raising():
            for line in host.end_left_overs(options.locks):
                self.record.note("warning", line)
            lent.enter_context(host.alive(mark, options.locks, self.places.scratch))
            if care and report:
                owner = f"{options.workflow}/{self.job.key} {self.shard.id}"
                lent.enter_context(host.gpu_locks(report.assigned, options.locks, wait=options.lock_wait, owner=owner))
                require_fit(care.settle()[1])
            ports = lent.enter_context(host.ports(options.locks))
        return Context(
            options=options,
            places=self.places,
            record=self.record,
            interrupts=self.interrupts,
            deadline=deadline,
            mark=mark,
            gpus=care,
            env={
                "MASTER_PORT": str(ports[0]),
                **env,
                "NIGHTCAP_PORT_BASE": str(ports[0]),
                "NIGHTCAP_PORT_COUNT": str(len(ports)),
            },
        )

    def _run_units(self, wanted: Sequence[Unit], context: Context, console: Console, results: list[UnitResult]) -> None:
        """Run one unit after another. Raises HostNotFit when the disk or a GPU no longer allows the next."""
        for unit in wanted:
            if self.interrupts.received:
                return
            if time.monotonic() >= context.deadline:
                self.record.note("warning", f"{unit.path} and what follows: not run, the job's time is used up")
                return
            host.require_space((self.places.results, self.places.scratch), self.job.disk_gib * 1024**3)
            only = (self.options.only or {}).get((unit.suite, unit.path)) or None
            result = run_unit(Attempt(self.job, self.shard, unit, 1, only), context, console)
            results.append(result)
            console.unit(result)
            if result.host:
                self._note_degraded(result.host)
                require_fit(result.host)

    def _note_degraded(self, report: HostReport) -> None:
        for problem in report.problems:
            if problem.status == "degraded":
                self.record.note("warning", f"host {report.host}: {problem.text}")


def _summary(results: Sequence[UnitResult], not_run: Sequence[Unit]) -> str:
    counts = sum((result.counts for result in results), Counter[str]())
    parts = [f"{count} {name}" for name, count in counts.items()]
    parts += [f"{len(not_run)} file{'s' * (len(not_run) != 1)} not run"] if not_run else []
    return ", ".join(parts) or "no result"


def _exit_code(results: Sequence[UnitResult], not_run: Sequence[Unit], *, fit: bool, interrupted: str) -> ExitCode:
    """The worst that holds, in the order of ExitCode."""
    counts = sum((result.counts for result in results), Counter[str]())
    if interrupted:
        return ExitCode.INTERRUPTED
    if any(result.bad and result.ending != "infra" for result in results):
        return ExitCode.FAILED
    if not fit or any(result.ending == "infra" for result in results):
        return ExitCode.INFRA
    if any(result.ending == "no-tests" and not result.counts["skipped"] for result in results):
        return ExitCode.NO_SIGNAL
    if counts["lost"] or not_run:
        return ExitCode.FAILED
    ran = counts["passed"] + counts["flaky"] + counts["quarantined"]
    return ExitCode.PASSED if ran else ExitCode.NO_SIGNAL
