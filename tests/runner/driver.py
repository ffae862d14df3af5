"""A runner in a process of its own: `python driver.py JOB.json ROOT`, to be stopped or killed from outside."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ci.plan import PlannedJob
from ci.runner.options import RunOptions
from ci.runner.shard import run_shard


def main() -> int:
    job = PlannedJob.model_validate_json(Path(sys.argv[1]).read_text())
    root = Path(sys.argv[2])
    options = RunOptions(
        root=root,
        results=root / "results",
        plan_hash="hash",
        workflow="nightly",
        env=os.environ,
        grace=30.0,
        locks=root / "locks",
        lock_wait=0.0,
    )
    return int(run_shard(job, job.shards[0], options=options).exit_code)


sys.exit(main())
