"""The results file of a run of `benchmarks.attention`."""

from __future__ import annotations

import contextlib
import datetime
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.attention_cases import Case

BENCHMARK = "attention-decode"
"""What `benchmark` is in a results file of `benchmarks.attention`."""


class CallError(ValueError):
    """What is wrong with a call, or with the files that it names."""


def read(path: Path) -> dict[str, Any]:
    """A file of any benchmark. Raises CallError if it is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CallError(f"{path}: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise CallError(f"{path}, line {error.lineno}: no JSON: {error.msg}") from error
    except UnicodeDecodeError as error:
        raise CallError(f"{path}: no text in UTF-8: {error}") from error
    if not isinstance(found, dict):
        raise CallError(f"{path}: got a {type(found).__name__}, must be an object")
    return found


@contextlib.contextmanager
def blaming(path: Path) -> Iterator[None]:
    """CallError for what goes wrong with the contents of a file."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        message = f"{path}: not as this benchmark writes it: {type(error).__name__}: {error}"
        raise CallError(message) from error


class Results:
    """A file, new or to be continued, that is written after every step: whatever ends the process loses one.

    Raises CallError for a file that cannot be continued; it is left as it is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run: dict[str, Any] = read(path) if path.exists() else {"benchmark": BENCHMARK}
        if self.run.get("benchmark") != BENCHMARK:
            raise CallError(f"{path}: not a results file of this benchmark; choose another file")
        self.records: list[dict[str, Any]] = self.run.setdefault("records", [])
        with blaming(path):
            for record in self.records:
                self.kernels(Case.of(record))

    def begin(self, about: dict[str, object], limits: dict[str, float], not_measured: list[str]) -> None:
        """Write the head, or keep that of the run which is continued: on the same machine alone."""
        if self.run.get("machine", about) != about:
            raise CallError(f"{self.path}: of another machine; choose another file")
        today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
        head = {"benchmark": BENCHMARK, "date": today, "machine": about, "limits": limits}
        self.run = head | {"not_measured": not_measured} | self.run
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.write()
        except OSError as error:
            raise CallError(f"{self.path}: cannot be written: {error.strerror}") from error

    def kernels(self, case: Case) -> set[str]:
        """Kernels that have a record of the case."""
        return {record["kernel"] for record in self.records if Case.of(record) == case}

    def write(self, *beside: dict[str, object]) -> None:
        """Write the file, with records `beside` those that are kept."""
        text = json.dumps(self.run | {"records": [*self.records, *beside]}, indent=1)
        self.path.write_text(text + "\n", encoding="utf-8")
