"""Generated text against the files on disk: what differs, as a diff, and writing it.

Only files that bear the mark of generation are overwritten or removed; a hand-written file in the way is an error.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ci.generate.render import MARK, Generated
from ci.spec.problems import Problem, SpecError

_FOLDERS = (".github/workflows", ".github/actions/nightcap")
"""Where a file that no spec makes any more may lie."""


@dataclass(frozen=True)
class Change:
    """What generation does to one file."""

    path: str
    status: Literal["written", "unchanged", "removed"]
    jobs: int = 0
    lines: int = 0
    before: str = ""
    after: str = ""

    def diff(self) -> str:
        """Unified diff from the file on disk to the generated text; empty when they agree."""
        names = (f"a/{self.path}", f"b/{self.path}")
        before, after = self.before.splitlines(keepends=True), self.after.splitlines(keepends=True)
        return "".join(difflib.unified_diff(before, after, *names))


def changes(root: Path, files: Iterable[Generated]) -> list[Change]:
    """What writing would do, sorted by path. Raises SpecError when a hand-written file is in the way."""
    found, problems = [], []
    made = {file.path: file for file in files}
    for path, file in made.items():
        before = _text(root / path)
        if before == file.text:
            found.append(Change(path, "unchanged", file.jobs, file.lines, before, file.text))
        elif before is None or _marked(before):
            found.append(Change(path, "written", file.jobs, file.lines, before or "", file.text))
        else:
            fix = "rename the spec, or move the hand-written file away"
            problems.append(Problem(path, 1, "", "would be overwritten, but it was not made by nightcap", fix))
    if problems:
        raise SpecError(problems)
    found.extend(Change(path, "removed", before=text) for path, text in _orphans(root) if path not in made)
    return sorted(found, key=lambda change: change.path)


def apply(root: Path, wanted: Iterable[Change]) -> None:
    """Write and remove what `changes` found."""
    for change in wanted:
        path = root / change.path
        if change.status == "removed":
            path.unlink()
        elif change.status == "written":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(change.after.encode())


def _orphans(root: Path) -> Iterator[tuple[str, str]]:
    for folder in _FOLDERS:
        for path in sorted((root / folder).glob("*.yml")):
            text = _text(path)
            if text is not None and _marked(text):
                yield path.relative_to(root).as_posix(), text


def _text(path: Path) -> str | None:
    try:
        return path.read_bytes().decode(errors="replace")
    except FileNotFoundError:
        return None


def _marked(text: str) -> bool:
    """JSON has its mark in the second line, after the brace."""
    return any(MARK in line for line in text.split("\n", 2)[:2])
