"""What a night left: the plan, the journals below a folder, and GitHub's results."""

from __future__ import annotations

from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from ci.gate.night import JobResult
from ci.journal import Journal, read
from ci.plan import Plan

JOURNAL_FILE = "journal.jsonl"
PLAN_FILE = "plan.json"
_RESULTS: TypeAdapter[dict[str, JobResult]] = TypeAdapter(dict[str, JobResult])


def load_results(folder: Path) -> list[Journal]:
    """Every `journal.jsonl` below the folder, by path. Raises OSError when one cannot be read."""
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is no folder")
    return [read(path) for path in sorted(folder.rglob(JOURNAL_FILE)) if path.is_file()]


def load_plan(path: Path) -> Plan | None:
    """The plan in a file, or in the `plan.json` somewhere below a folder; None when there is none.

    Raises ValueError, one line for a person, when the file is no plan or a folder holds different ones.
    """
    # Named itself, it may be a pipe: `nightcap gate <(nightcap plan --json) results`.
    files = sorted(file for file in path.rglob(PLAN_FILE) if file.is_file()) if path.is_dir() else [path]
    texts = {file.read_text(encoding="utf-8", errors="replace"): file for file in files if file.exists()}
    if len(texts) > 1:
        raise ValueError(f"different plans below {path}: {', '.join(map(str, texts.values()))}")
    return next((_plan(text, file) for text, file in texts.items()), None)


def load_needs(text: str) -> dict[str, JobResult]:
    """GitHub's `toJSON(needs)`. Raises ValueError, one line for a person, when it is something else."""
    try:
        return _RESULTS.validate_json(text)
    except ValidationError as error:
        raise ValueError(f"not the JSON of `needs`: {_first(error)}") from None


def _plan(text: str, file: Path) -> Plan:
    try:
        return Plan.model_validate_json(text)
    except ValidationError as error:
        raise ValueError(f"{file} is no plan of this version: {_first(error)}") from None


def _first(error: ValidationError) -> str:
    one = error.errors()[0]
    field = ".".join(map(str, one["loc"]))
    return f"{field}: {one['msg']}" if field else str(one["msg"])
