"""Every suite that a workflow can run: its files, their tests, their expected times and what they need.

Input: the suites that the workflow declares, and the test files of the tree. Output: `Catalogue`, suites by
name, and every problem found on the way. A suite comes from one of three places:

- `marker`: test files name it themselves, by pytest marker or registration call. A declaration without
  `files` and `command` adds to it what the files do not say (GPUs, SM version, expected time, `allow_empty`).
- `files`: globs of the declaration, also of files that pytest would not find by name, such as plain scripts.
- `command`: an external runner. Its items are the tests of its manifest, or, without one, the command itself
  under the suite's name.
"""

from __future__ import annotations

import glob
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from ci.spec.models import SuiteDecl
from ci.spec.problems import Problem, did_you_mean
from ci.suites.discover import Discovery, read_file
from ci.suites.testfile import StaticTest, TestFile
from ci.suites.uses import SuiteUse


@dataclass(frozen=True)
class SuiteFile:
    """What one process runs for a suite: a test file, a script, or an item of an external command.

    `tests` are those of this suite: none for a `script`, a file in which pytest would find nothing, and for a
    `command`. `est` is the declared time in seconds. `dynamic`: results may come that have no planned id.
    """

    path: str
    kind: Literal["pytest", "script", "command"]
    tests: tuple[StaticTest, ...] = ()
    est: float | None = None
    gpus: int = 0
    min_sm: int | None = None
    dynamic: bool = False


@dataclass(frozen=True)
class Suite:
    """A named set of files with the same needs; the needs are the highest of its files."""

    name: str
    kind: Literal["marker", "files", "command"]
    files: tuple[SuiteFile, ...]
    gpus: int = 0
    min_sm: int | None = None
    decl: SuiteDecl | None = None


@dataclass(frozen=True)
class Catalogue:
    """Suites by name, in name order, and all that is wrong with what tree and declarations say of them."""

    suites: Mapping[str, Suite]
    problems: tuple[Problem, ...] = ()


def catalogue(
    declared: Mapping[str, SuiteDecl], discovery: Discovery, root: Path, *, source: str = "workflows"
) -> Catalogue:
    """The suites that a workflow sees. `source` is the file of the declarations, for messages."""
    builder = _Builder(root, source, {file.path: file for file in discovery.files})
    additions = {name for name, decl in declared.items() if not decl.files and not decl.command}
    named = {use.suite for file in discovery.files for use in file.uses}
    suites = {name: builder.marked(name, declared.get(name)) for name in named | additions}
    for name in sorted(declared.keys() - additions):
        if name in named:
            builder.named_twice(name)
        suites[name] = builder.declared(name, declared[name])
    of_tree = (problem for file in discovery.files if not file.names_no_suite for problem in file.problems)
    problems = tuple(sorted({*of_tree, *builder.problems}))
    return Catalogue(dict(sorted(suites.items())), problems)


@dataclass
class _Builder:
    root: Path
    source: str
    read: dict[str, TestFile]
    problems: list[Problem] = field(default_factory=list)

    def marked(self, name: str, decl: SuiteDecl | None) -> Suite:
        """The suite that test files name; files that only name it to disable themselves are left out."""
        files = []
        for file in self.read.values():
            uses = [use for use in file.uses if use.suite == name and use.disabled is None]
            if uses:
                tests = tuple(test for test in file.tests if name in test.suites)
                files.append(_suite_file(file, tests, _that_apply(uses, tests)))
        return _suite(name, "marker", files, decl)

    def declared(self, name: str, decl: SuiteDecl) -> Suite:
        """The suite of a declaration with globs or a command."""
        if decl.command is None:
            return _suite(name, "files", self._globbed(name, decl), decl)
        if decl.manifest is None:
            return _suite(name, "command", [SuiteFile(name, "command")], decl)
        return _suite(name, "command", self._manifest(name, decl, decl.manifest), decl)

    def named_twice(self, name: str) -> None:
        """A declaration with files of its own, of a suite that test files name too."""
        file = next(file for file in self.read.values() if any(use.suite == name for use in file.uses))
        line = next(use.line for use in file.uses if use.suite == name)
        self._problem(
            f"suites.{name}",
            f"is declared here with files or a command, and {file.path}:{line} names the same suite",
            "rename one, or leave only gpus, min_sm, est and allow_empty here",
        )

    def _globbed(self, name: str, decl: SuiteDecl) -> list[SuiteFile]:
        found: dict[str, str] = {}
        for pattern in decl.files:
            where = f"suites.{name}.files"
            matched = sorted(
                PurePosixPath(path).as_posix()
                for path in glob.glob(pattern, root_dir=self.root, recursive=True)
                if (self.root / path).is_file()
            )
            if not matched and decl.allow_empty is None:
                self._problem(where, f"{pattern!r} matches no file", "correct or remove it, or say allow_empty")
            for path in matched:
                if path in found:
                    message = f"{path} is listed twice, by {found[path]!r} and {pattern!r}"
                    self._problem(where, message, "make the globs disjoint")
                found[path] = pattern
        return [self._file(path) for path in sorted(found)]

    def _file(self, path: str) -> SuiteFile:
        if not path.endswith(".py"):
            return SuiteFile(path, "script")
        if path not in self.read:
            self.read[path] = read_file(self.root, path)
        self.problems += self.read[path].problems
        file = self.read[path]
        return _suite_file(file, file.tests, ())

    def _manifest(self, name: str, decl: SuiteDecl, path: str) -> list[SuiteFile]:
        """The tests that an external command says it has."""
        where = f"suites.{name}.manifest"
        try:
            text = (self.root / path).read_text(encoding="utf-8")
            content = json.loads(text, object_pairs_hook=self._pairs(path), parse_constant=_no_number)
        except (OSError, ValueError) as error:
            line = error.lineno if isinstance(error, json.JSONDecodeError) else 0
            reason = error.strerror if isinstance(error, OSError) else str(error)
            fix = 'write JSON such as {"suite": {"test": 12.5}}'
            self.problems.append(Problem(path, line, where, f"cannot be read: {reason}", fix))
            return []
        tests = content.get(name) if isinstance(content, dict) else None
        if not tests and decl.allow_empty is not None:
            return []
        if not isinstance(tests, dict) or not tests:
            known = [one for one in content if content[one]] if isinstance(content, dict) else []
            fix = did_you_mean(name, known) or "add its tests, correct the name, or say allow_empty"
            self.problems.append(Problem(path, 0, where, f"lists no test for suite {name!r}", fix))
            return []
        bad = {test: seconds for test, seconds in tests.items() if not _is_item(test, seconds)}
        for test, seconds in bad.items():
            message = f"{test!r}: {seconds!r} is no test with a number of seconds"
            fix = "a test is one line of text, its time a number from 0"
            self.problems.append(Problem(path, 0, f"{where}.{name}", message, fix))
        return [SuiteFile(test, "command", est=float(tests[test])) for test in sorted(set(tests) - set(bad))]

    def _pairs(self, path: str) -> Any:
        def checked(pairs: list[tuple[str, object]]) -> dict[str, object]:
            counts = Counter(name for name, _ in pairs)
            for name in sorted(name for name, count in counts.items() if count > 1):
                self.problems.append(Problem(path, 0, "", f"{name!r} is listed twice", "keep one"))
            return dict(pairs)

        return checked

    def _problem(self, where: str, message: str, fix: str) -> None:
        self.problems.append(Problem(self.source, 0, where, message, fix))


def _suite(
    name: str, kind: Literal["marker", "files", "command"], files: list[SuiteFile], decl: SuiteDecl | None
) -> Suite:
    """The suite, with what the declaration says added to each file."""
    if decl is not None:
        files = [
            SuiteFile(
                path=file.path,
                kind=file.kind,
                tests=file.tests,
                est=decl.est if file.est is None else file.est,
                gpus=max(file.gpus, decl.gpus),
                min_sm=highest(file.min_sm, decl.min_sm),
                dynamic=file.dynamic,
            )
            for file in files
        ]
    return Suite(
        name=name,
        kind=kind,
        files=tuple(files),
        gpus=max([file.gpus for file in files] + [decl.gpus if decl else 0]),
        min_sm=highest(*(file.min_sm for file in files), decl.min_sm if decl else None),
        decl=decl,
    )


def _suite_file(file: TestFile, tests: tuple[StaticTest, ...], uses: tuple[SuiteUse, ...]) -> SuiteFile:
    times = [use.est for use in uses if use.est is not None]
    return SuiteFile(
        path=file.path,
        kind="pytest" if file.tests or file.dynamic else "script",
        tests=tests,
        est=sum(times) if uses and len(times) == len(uses) else None,
        gpus=max((use.gpus for use in uses), default=0),
        min_sm=highest(*(use.min_sm for use in uses)),
        dynamic=file.dynamic,
    )


def _that_apply(uses: list[SuiteUse], tests: tuple[StaticTest, ...]) -> tuple[SuiteUse, ...]:
    """The uses that some test goes by: a module's marker counts for nothing once every test has its own."""
    applied = {use for test in tests for use in test.uses}
    return tuple(use for use in uses if use in applied) or tuple(uses)


def highest(*versions: int | None) -> int | None:
    """The highest SM version that is asked for, None when none is."""
    return max((version for version in versions if version is not None), default=None)


def _is_item(test: str, seconds: object) -> bool:
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and seconds >= 0
    return number and test.isprintable() and bool(test.strip())


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number of seconds")
