"""Limits of GitHub Actions as numbers, each with what happens beyond it.

Sources: docs.github.com "Actions limits", "Workflow syntax", "Events that trigger workflows"; changelogs are
named beside.
"""

from __future__ import annotations

DISPATCH_INPUTS = 25
"""Inputs of workflow_dispatch (10 until 2025-12); one more is a startup failure."""
MATRIX_JOBS = 256
"""Jobs of one matrix; no linter sees a longer list."""
TEXT_CHARACTERS = 21_000
"""Characters of one `run` text or one expression."""
WORKFLOW_BYTES = 500 * 1024
"""Bytes of one workflow file."""
HOSTED_JOB_SECONDS = 6 * 3600
SELF_HOSTED_JOB_SECONDS = 5 * 86_400
JOB_OUTPUT_BYTES = 1_000_000
"""Outputs of one job; 50 MB a run."""
SUMMARY_BYTES = 1024 * 1024
"""Step summary; one byte more and the whole summary is dropped."""
ANNOTATIONS_PER_STEP = 10
"""Annotations of one kind a step; the rest is cut silently."""
ANNOTATIONS_PER_JOB = 50
ARTIFACTS_PER_JOB = 500
ARTIFACT_FORBIDDEN = frozenset('":<>|*?\r\n\\/')
"""Characters that an artifact's name may not hold."""
JOB_KEY_PATTERN = r"^[A-Za-z_][A-Za-z0-9_-]*$"
"""Job ids that GitHub accepts."""
