"""What kind of failure an attempt had, and whether trying again is allowed.

The rules are data: `failure_rules.toml`, in order, the first that matches decides. They read the detail that
the runner wrote, the messages of the failed tests and the end of the log. Retries are counted by class; a
test that says no by itself is never asked twice.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

RULES = Path(__file__).parent / "failure_rules.toml"
LOG_BYTES = 256 * 1024
"""Bytes from the end of a log that the rules read."""
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True)
class FailureClass:
    """A class of failures. `infra` means that no test is to blame."""

    name: str
    infra: bool = False
    retries: int = 0


@dataclass(frozen=True)
class Rule:
    """A class and the texts that show it."""

    failure: FailureClass
    patterns: tuple[re.Pattern[str], ...]


UNKNOWN = FailureClass("unknown")


@cache
def rules() -> tuple[Rule, ...]:
    """The rules in order. Raises KeyError, re.error or tomllib.TOMLDecodeError for a broken file."""
    return tuple(
        Rule(
            FailureClass(entry["class"], entry.get("infra", False), entry.get("retries", 0)),
            tuple(re.compile(pattern, re.MULTILINE) for pattern in entry["patterns"]),
        )
        for entry in tomllib.loads(RULES.read_text(encoding="utf-8"))["rule"]
    )


def classify(*texts: str) -> FailureClass:
    """The class of a failure by its texts; UNKNOWN where no rule matches."""
    evidence = _ANSI.sub("", "\n".join(texts))
    for rule in rules():
        if any(pattern.search(evidence) for pattern in rule.patterns):
            return rule.failure
    return UNKNOWN


def log_end(path: Path, size: int = LOG_BYTES) -> str:
    """The end of a log as text; empty when there is no log."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - size))
        return file.read().decode(errors="replace")
