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
VARIABLE_BYTES = 128 * 1024
"""One environment variable of a step (MAX_ARG_STRLEN of Linux). Outputs of a job may be longer, 1 MB, but then no
step could read them."""
SUMMARY_BYTES = 1024 * 1024
"""Step summary; one byte more and the whole summary is dropped."""
ANNOTATIONS_PER_STEP = 10
"""Annotations of one kind a step; the rest is cut silently."""
ARTIFACTS_LISTED = 1_000
"""Artifacts of a run that actions/download-artifact lists; it warns and leaves out the rest. 500 a job."""
JOB_KEY_PATTERN = r"^[A-Za-z_][A-Za-z0-9_-]*$"
"""Job ids that GitHub accepts."""
