"""Find the test files below a folder by reading their syntax trees; nothing is imported or run.

Input: a folder. Output: every `test_*.py` and `*_test.py` below it, each as `ci.suites.testfile` reads it.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ci.spec.problems import Problem
from ci.suites.testfile import TestFile, is_test_name, read_source

# The folders that pytest does not enter either, see `norecursedirs`; hidden ones are skipped too.
_SKIPPED_FOLDERS = frozenset({"build", "dist", "node_modules", "venv", "__pycache__"})


@dataclass(frozen=True)
class Discovery:
    """All test files below a root, sorted by path (posix, relative to the root)."""

    files: tuple[TestFile, ...]

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Everything that could not be read, in file and line order."""
        return tuple(problem for file in self.files for problem in file.problems)


def discover(root: Path) -> Discovery:
    """Read every test file below `root`, without hidden folders, virtual environments and build output."""
    with _collector_paused():
        return Discovery(tuple(read_file(root, path) for path in sorted(_test_paths(root, ""))))


def read_file(root: Path, path: str) -> TestFile:
    """Read one file, whatever its name is; a file that cannot be read is a problem of that file."""
    try:
        source = (root / path).read_bytes()
    except OSError as error:
        return TestFile(path, problems=(Problem(path, 0, "", f"cannot be read: {error.strerror}"),))
    return read_source(path, source)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Syntax trees have no cycles: looking for some is a third of the time of parsing, for nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _test_paths(root: Path, folder: str) -> Iterator[str]:
    with os.scandir(root / folder) as entries:
        found = list(entries)
    if folder and any(entry.name == "pyvenv.cfg" for entry in found):
        return
    for entry in found:
        name = entry.name
        path = f"{folder}/{name}" if folder else name
        if entry.is_dir(follow_symlinks=False):
            if not name.startswith(".") and name not in _SKIPPED_FOLDERS:
                yield from _test_paths(root, path)
        elif is_test_name(name) and entry.is_file():
            yield path
