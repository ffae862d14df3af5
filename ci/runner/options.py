"""What a run is told, and the one place where the runner reads the environment."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

LOCKS = Path("/run/lock/nightcap")
"""Where runs of this host meet, if this user may write there; else a folder among the temporary files.

Containers that share GPUs must share it (`docker --volume`).
"""


@dataclass(frozen=True)
class RunOptions:
    """How to run a shard. Times are seconds."""

    root: Path
    """The repository; units are paths below it, and its processes start there."""
    results: Path
    """Gets `journal.jsonl`, `junit.xml` and `logs/`. A journal that is already there is replaced."""
    plan_hash: str
    workflow: str
    run_attempt: int = 1
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment of the tests; the job's own and the runner's come on top."""
    only: Mapping[tuple[str, str], tuple[str, ...]] | None = None
    """Full test ids by (suite, unit), when only some are to run; an empty tuple means the whole unit."""
    quiet: bool = False
    silence: float = 1200.0
    """A unit that prints nothing and ends no test for so long hangs."""
    grace: float = 3.0
    """Time to leave after TERM, before KILL."""
    resumes: int = 25
    """Fresh processes that one unit may get after crashes; each has lost one test."""
    log_bytes: int = 16 * 1024 * 1024
    locks: Path = LOCKS
    lock_wait: float = 60.0
    gpu_wait: float = 60.0
    """For memory of a GPU to become free."""

    @classmethod
    def from_environment(
        cls,
        environment: Mapping[str, str] = os.environ,
        *,
        root: Path,
        results: Path,
        plan_hash: str,
        workflow: str,
        only: Mapping[tuple[str, str], tuple[str, ...]] | None = None,
        quiet: bool = False,
    ) -> RunOptions:
        """Options of a run started by GitHub Actions, or by hand.

        Reads GITHUB_RUN_ATTEMPT, NIGHTCAP_LOCKS (folder of the host's locks) and, through the tests, all the
        rest. Raises ValueError when the attempt is no number from 1.
        """
        attempt = environment.get("GITHUB_RUN_ATTEMPT", "1")
        if not attempt.isascii() or not attempt.isdigit() or int(attempt) < 1:
            raise ValueError(f"GITHUB_RUN_ATTEMPT is {attempt!r}: it must be a whole number from 1")
        return cls(
            root=root.resolve(),
            results=results.resolve(),
            plan_hash=plan_hash,
            workflow=workflow,
            run_attempt=int(attempt),
            env=dict(environment),
            only=only,
            quiet=quiet,
            locks=_locks(environment),
        )


def _locks(environment: Mapping[str, str]) -> Path:
    if named := environment.get("NIGHTCAP_LOCKS"):
        return Path(named)
    usable = os.access(LOCKS if LOCKS.exists() else LOCKS.parent, os.W_OK)
    return LOCKS if usable else Path(tempfile.gettempdir()) / "nightcap-locks"
