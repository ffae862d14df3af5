"""Tests in quarantine: they run every night as before, their failure is shown, and it turns nothing red.

People write `workflows/quarantine.yml`:

    tests:
      - test: tests/test_mla.py::test_replay
        reason: races with the allocator under graph replay
        issue: my-org/my-engine#1234
        owner: "@somebody"
        expires: 2026-12-31

`test` is an id, with parameters or for all of them, or a glob of `*` and `?` (a `[` stands for itself: ids hold it).
Nothing stays for ever: from the day after `expires` an entry is an error. Quarantine takes a failure, a crash and a
test out of time; a test without a result stays lost.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path

from pydantic import Field

from ci.spec.loader import FOLDER, QUARANTINE_FILE, field_name, load_file
from ci.spec.models import Day, Model, Text
from ci.spec.problems import Problem, SpecError, did_you_mean, shown
from ci.suites.catalogue import Catalogue
from ci.suites.testfile import base_id


class Entry(Model):
    """One test, or several by a glob, until a day."""

    test: Text = Field(description="Id with or without parameters, or a glob of `*` and `?`.")
    reason: Text = Field(description="What is known of the failure.")
    issue: Text = Field(description="Where its repair is followed.")
    owner: Text = Field(description="Who repairs it.")
    expires: Day = Field(description="YYYY-MM-DD; from the day after, the entry is an error.")

    @property
    def why(self) -> str:
        """The entry in one line."""
        return f"{self.reason} ({self.issue}, {self.owner}, until {self.expires})"


class QuarantineFile(Model):
    """The file's content."""

    tests: list[Entry] = Field(description="The entries, in any order.")


@dataclass(frozen=True)
class Quarantine:
    """The entries, and the line of each field of each."""

    entries: tuple[Entry, ...] = ()
    lines: tuple[Mapping[str, int], ...] = ()

    def problem(self, index: int, name: str, message: str, fix: str) -> Problem:
        """What is wrong with a field of an entry."""
        where = field_name(("tests", index, name))
        return Problem(f"{FOLDER}/{QUARANTINE_FILE}", self.lines[index][name], where, message, fix)


def load(root: Path, *, today: date) -> Quarantine:
    """The quarantine under `root`, empty without the file. Raises SpecError with every problem: expired ones, too."""
    quarantine = _read(root)
    if problems := [*_twice(quarantine), *_expired(quarantine, today)]:
        raise SpecError(problems)
    return quarantine


def expired(root: Path, *, today: date) -> tuple[Problem, ...]:
    """The entries under `root` that `load` stops at because of their date alone. Raises SpecError for a wrong file."""
    quarantine = _read(root)
    if problems := list(_twice(quarantine)):
        raise SpecError(problems)
    return tuple(_expired(quarantine, today))


def _read(root: Path) -> Quarantine:
    path = root / FOLDER / QUARANTINE_FILE
    if not path.exists():
        return Quarantine()
    document, content = load_file(path, QuarantineFile)
    lines = [
        {name: document.line(("tests", index, name)) for name in Entry.model_fields}
        for index in range(len(content.tests))
    ]
    return Quarantine(tuple(content.tests), tuple(lines))


def _twice(quarantine: Quarantine) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for index, entry in enumerate(quarantine.entries):
        line = quarantine.lines[index]["test"]
        if first.setdefault(entry.test, line) != line:
            yield quarantine.problem(index, "test", f"stands in line {first[entry.test]} already", "keep one")


def _expired(quarantine: Quarantine, today: date) -> Iterator[Problem]:
    fix = "repair the test and remove the entry, or give a new date and the reason for it"
    for index, entry in enumerate(quarantine.entries):
        if entry.expires < today:
            message = f"the quarantine of {shown(entry.test)} expired on {entry.expires} ({shown(entry.reason)})"
            yield quarantine.problem(index, "expires", message, fix)


def holds(pattern: str, path: str, test: str) -> bool:
    """True when an entry's `test` means this test of the file `path`, by full id or by the id of its function."""
    compiled = _compiled(pattern)
    return bool(compiled.fullmatch(test) or compiled.fullmatch(base_id(path, test)))


def concerns(pattern: str, path: str, tests: Collection[str], *, dynamic: bool) -> bool:
    """True when an entry may mean a test of a file, of which ids without parameters are known.

    `dynamic`: the file may hold others.
    """
    plain = _compiled(base_id(path, pattern))
    return any(plain.fullmatch(test) for test in tests) or (dynamic and pattern.startswith(f"{path}::"))


def unmatched(quarantine: Quarantine, catalogues: Iterable[Catalogue]) -> Iterator[Problem]:
    """Entries that mean no test of any suite: the test was renamed, removed or never there."""
    files = [file for one in catalogues for suite in one.suites.values() for file in suite.files]
    known = [(file, [test.id for test in file.tests] or [file.path]) for file in files]
    for index, entry in enumerate(quarantine.entries):
        if not any(concerns(entry.test, file.path, tests, dynamic=file.dynamic) for file, tests in known):
            ids = {test for _, tests in known for test in tests}
            fix = did_you_mean(entry.test, ids) or "correct the id, or remove the entry"
            yield quarantine.problem(index, "test", f"{shown(entry.test)} is no test of any suite", fix)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    parts = {"*": ".*", "?": "."}
    return re.compile("".join(parts.get(one) or re.escape(one) for one in pattern), re.DOTALL)
