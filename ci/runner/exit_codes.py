"""What the exit code of `nightcap run` says.

The gate reads journals, never these; they are for people and steps.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Worst first: where several hold, the first of this list is the exit code."""

    INTERRUPTED = 130
    """SIGINT, SIGTERM or SIGHUP stopped the shard; the results so far are written."""
    FAILED = 1
    """A test out of quarantine failed, crashed or timed out, or a test was planned and has no result."""
    INFRA = 3
    """The host was not fit: a bad or busy GPU, a lock, ports, disk. No test is to blame."""
    NO_SIGNAL = 5
    """A unit ran no test, or all tests of the shard were skipped. pytest's code, too."""
    PASSED = 0
    """Every planned test has a result and none is bad, but for tests in quarantine."""
