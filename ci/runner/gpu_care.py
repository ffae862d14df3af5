"""Care for a job's GPUs before, between and after its units. Refuses a host that is not fit; blames no test for it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ci.plan import PlannedJob
from ci.runner import gpus, kernel_log
from ci.runner.gpus import HostReport, Need
from ci.runner.host import HostNotFit

_POLL_SECONDS = 1.0


@dataclass(frozen=True)
class GpuCare:
    """What a job may expect of its GPUs. `wait`: seconds for memory to become free.

    A driver gives memory back some time after its process has gone (sglang#32829, vllm#49242).
    """

    need: Need
    visible: str | None
    wait: float
    since: float
    """Xids from this moment on count, by the clock of the kernel's log."""

    def look(self) -> HostReport:
        """The state right now."""
        return gpus.doctor(self.visible, self.need, since=self.since)

    def settle(self) -> tuple[HostReport, HostReport]:
        """(state right now, state once memory is free or the wait is over)."""
        deadline = time.monotonic() + self.wait
        first = report = self.look()
        while (
            report.status == "bad"
            and all(problem.passing for problem in report.problems if problem.status == "bad")
            and time.monotonic() < deadline
        ):
            time.sleep(_POLL_SECONDS)
            report = self.look()
        return first, report


def care_for(job: PlannedJob, visible: str | None, wait: float) -> GpuCare | None:
    """Care for the GPUs of a job, Xids counting from now; None for a job without."""
    if job.gpus == 0:
        return None
    return GpuCare(Need(gpus=job.gpus, sm=job.sm), visible, wait, kernel_log.now())


def require_fit(report: HostReport) -> None:
    """Raises HostNotFit, naming the host, when a report is bad."""
    if report.status == "bad":
        raise HostNotFit(f"host {report.host} is not fit: {report.texts}")
