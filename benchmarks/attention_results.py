"""The results file of a run of `benchmarks.attention`."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

from benchmarks.attention_cases import Case


class Results:
    """A file, new or to be continued, that is written after every step: whatever ends the process loses one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        self.records: list[dict[str, Any]] = self.run.setdefault("records", [])

    def begin(self, about: dict[str, object], limits: dict[str, float], not_measured: list[str]) -> None:
        """Write the head, or keep that of the run which is continued: on the same machine alone."""
        if self.run.get("machine", about) != about:
            raise SystemExit(f"benchmarks.attention: {self.path} is of another machine; choose another file")
        today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
        head = {"benchmark": "attention-decode", "date": today, "machine": about, "limits": limits}
        self.run = head | {"not_measured": not_measured} | self.run
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.write()

    def kernels(self, case: Case) -> set[str]:
        """Kernels that have a record of the case."""
        return {record["kernel"] for record in self.records if Case.of(record) == case}

    def write(self, *beside: dict[str, object]) -> None:
        """Write the file, with records `beside` those that are kept."""
        text = json.dumps(self.run | {"records": [*self.records, *beside]}, indent=1)
        self.path.write_text(text + "\n", encoding="utf-8")
