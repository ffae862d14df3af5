"""One test file as the syntax tree shows it: the suites it names, its tests, and what cannot be read.

- Suites: `pytest.mark.suite` on the module, a class or a function (for a test the closest level wins, several
  marks on one level all apply), and registration calls of other engines (`ci.suites.registrations`).
- Tests: those that pytest is certain to collect, as `path::Class::test_name` without parameters, each with
  its suites and the names of its marks. Tests under `if` or `try`, inherited from another file or made by a
  generator have no planned id: they set `TestFile.dynamic`.
- What cannot be read, such as a syntax error or a suite whose name is computed, is a problem, never a guess.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from ci.spec.problems import Problem
from ci.suites.registrations import REGISTRATIONS, Adapter
from ci.suites.uses import SuiteUse, Unreadable, from_marker

# Decorators and calls after which the written name is gone and others stand in its place.
_GENERATORS = frozenset(
    {
        "ddt",
        "expand",
        "instantiate_device_type_tests",
        "instantiate_parametrized_tests",
        "parameterized_class",
    }
)
_NOT_A_TEST = frozenset({"fixture", "property", "cached_property"})
_MAKES_INIT = frozenset({"dataclass", "define", "frozen", "mutable", "attrs"})
_TESTLESS_BASES = frozenset({"object", "ABC", "Generic"})

# What may be a statement about a suite, in text: more of it than was read asks for a search of the tree.
_STATEMENT = re.compile(rb"\b(?:suite|" + "|".join(REGISTRATIONS).encode() + rb")\s*\(")

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def base_id(path: str, test: str) -> str:
    """The id without parameters; the file's path and the parameters themselves may hold brackets, too."""
    prefix = f"{path}::" if test.startswith(f"{path}::") else ""
    return prefix + test[len(prefix) :].partition("[")[0]


def is_test_name(path: str) -> bool:
    """True when pytest takes a file for tests by its name."""
    name = path.rpartition("/")[2]
    return name.endswith(".py") and (name.startswith("test_") or name.endswith("_test.py"))


@dataclass(frozen=True)
class StaticTest:
    """A test that pytest is certain to collect. `id` has no parameters: `path::Class::test_name`."""

    id: str
    line: int
    uses: tuple[SuiteUse, ...]
    marks: tuple[str, ...]

    @property
    def suites(self) -> tuple[str, ...]:
        """The names of the suites that the test belongs to, sorted; those it is disabled in are left out."""
        return tuple(sorted({use.suite for use in self.uses if use.disabled is None}))


@dataclass(frozen=True)
class TestFile:
    """A test file. `path` is posix and relative to the root, `uses` are those of all levels.

    `dynamic` says that the file may hold tests without a planned id.
    """

    __test__: ClassVar[bool] = False

    path: str
    uses: tuple[SuiteUse, ...] = ()
    tests: tuple[StaticTest, ...] = ()
    dynamic: bool = False
    problems: tuple[Problem, ...] = ()
    names_no_suite: bool = False
    """No Python, and without the word: a template or a fixture of broken code, which no job can miss."""


def read_source(path: str, source: bytes) -> TestFile:
    """The value of one file's text."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            tree = ast.parse(source, filename=path)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = error.lineno or 0 if isinstance(error, SyntaxError) else 0
        reason = error.msg if isinstance(error, SyntaxError) else str(error) or type(error).__name__
        problem = Problem(path, line, "", f"is not valid Python: {reason}")
        return TestFile(path, problems=(problem,), names_no_suite=b"suite" not in source)
    return _Reader(path).read(tree, source)


@dataclass(frozen=True)
class _Level:
    """What one level (module, class, function) says: its suites and the names of its marks."""

    uses: tuple[SuiteUse, ...] = ()
    marks: frozenset[str] = frozenset()

    def over(self, outer: _Level) -> _Level:
        """This level inside `outer`: the closest suites win, marks add up."""
        return _Level(self.uses or outer.uses, self.marks | outer.marks)


@dataclass(frozen=True)
class _Class:
    """What a class hands down to its subclasses in the same file."""

    level: _Level
    methods: dict[str, tuple[int, _Level]]
    unittest: bool
    has_init: bool
    collected: bool


class _Reader:
    """Reads one module; holds what is found on the way."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.problems: list[Problem] = []
        self.uses: list[SuiteUse] = []
        self.tests: dict[str, list[StaticTest]] = {}
        self.classes: dict[str, _Class] = {}
        self.aliases: dict[str, ast.expr] = {}
        self.seen: set[ast.expr] = set()
        self.dynamic = False

    def read(self, tree: ast.Module, source: bytes) -> TestFile:
        self.aliases = dict(_named_marks(tree.body))
        registered = list(self._registrations(tree.body))
        module = self._level(_assigned(tree.body, "pytestmark"), registered)
        if not _is_false(tree.body, "__test__"):
            for statement in tree.body:
                self._statement(statement, module)
        if len(_STATEMENT.findall(source)) > len(self.seen):
            self._reject_unread(tree)
        tests = [test for tests in self.tests.values() for test in tests]
        marked = [use for use in self.uses if use not in registered]
        if marked and not tests and not self.dynamic:
            message = f"names suite {marked[0].suite!r}, but pytest would find no test here"
            self.problems.append(Problem(self.path, marked[0].line, "suite", message, "add a test or remove it"))
        return TestFile(
            path=self.path,
            uses=tuple(sorted(set(self.uses), key=lambda use: (use.line, use.suite))),
            tests=tuple(sorted(tests, key=lambda test: (test.line, test.id))),
            dynamic=self.dynamic,
            problems=tuple(sorted(set(self.problems))),
        )

    def _statement(self, node: ast.stmt, module: _Level) -> None:
        """One statement of the module: what it binds may be a test, what it deletes is none."""
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                if self._is_test(node):
                    level = self._level(node.decorator_list).over(module)
                    self.tests[node.name] = [self._test((node.name,), node.lineno, level)]
            case ast.ClassDef():
                self.tests[node.name] = self._class(node, (), module)
            case ast.Delete():
                for target in node.targets:
                    self.tests.pop(getattr(target, "id", ""), None)
            case ast.Expr(value=ast.Call(func=function, args=[ast.Name(id=name), *_])):
                if _last_name(function) in _GENERATORS and self.tests.pop(name, None) is not None:
                    self.dynamic = True
            case ast.Import() | ast.ImportFrom():
                names = [alias.asname or alias.name for alias in node.names]
                self.dynamic |= any(_looks_like_test(name) and not name.endswith("TestCase") for name in names)
                self.dynamic |= "*" in names and is_test_name(self.path)  # of a plain script it brings no tests
            case ast.Assign() | ast.AnnAssign():
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    name = getattr(target, "id", "")
                    self.tests.pop(name, None)
                    self.dynamic |= _looks_like_test(name) and name != "__test__" and not name.isupper()
            case ast.If() | ast.Try() | ast.With() | ast.For() | ast.While() | ast.Match():
                self.dynamic |= any(
                    isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
                    and _looks_like_test(inner.name)
                    for inner in ast.walk(node)
                )

    def _class(self, node: ast.ClassDef, outer_names: tuple[str, ...], outer: _Level) -> list[StaticTest]:
        """The tests of a class, after pytest's rules; what it hands down is kept for its subclasses."""
        names = (*outer_names, node.name)
        bases = [_last_name(base) for base in node.bases]
        parents = [self.classes[base] for base in bases if base in self.classes]
        decorators = {_last_name(decorator) for decorator in node.decorator_list}
        own = self._level([*node.decorator_list, *_assigned(node.body, "pytestmark")])
        for parent in parents:
            own = own.over(parent.level)
        unittest = any(base.endswith("TestCase") for base in bases)
        unittest |= any(parent.unittest for parent in parents)
        methods = {name: method for parent in reversed(parents) for name, method in parent.methods.items()}
        nested: list[StaticTest] = []
        level = own.over(outer)
        has_init = bool(decorators & _MAKES_INIT) or any(parent.has_init for parent in parents)
        flag = next((parent.collected for parent in parents if not parent.collected), True)
        for statement in node.body:
            match statement:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    methods.pop(statement.name, None)
                    has_init |= statement.name in ("__init__", "__new__")
                    if self._is_test(statement):
                        methods[statement.name] = (statement.lineno, self._level(statement.decorator_list))
                case ast.ClassDef() if not unittest:
                    nested += self._class(statement, names, level)
                case ast.Assign(targets=[ast.Name(id="__test__")], value=ast.Constant(value=value)):
                    flag = bool(value)
                case ast.Assign(targets=[ast.Name(id=name)]):
                    methods.pop(name, None)
        if not outer_names:
            self.classes[node.name] = _Class(own, methods, unittest, has_init, flag)
        if not flag or not (unittest or (node.name.startswith("Test") and not has_init)):
            return []
        unknown = [base for base in bases if base not in self.classes and base not in _TESTLESS_BASES]
        generated = bool(decorators & _GENERATORS)
        self.dynamic |= generated or any(not base.endswith("TestCase") for base in unknown)
        if generated:
            return []
        return nested + [
            self._test((*names, name), line, method.over(level)) for name, (line, method) in methods.items()
        ]

    def _is_test(self, node: _Function) -> bool:
        if not node.name.startswith("test"):
            return False
        decorators = {_last_name(decorator) for decorator in node.decorator_list}
        generated = bool(decorators & _GENERATORS)
        self.dynamic |= generated
        return not generated and not decorators & _NOT_A_TEST

    def _test(self, names: tuple[str, ...], line: int, level: _Level) -> StaticTest:
        return StaticTest("::".join((self.path, *names)), line, level.uses, tuple(sorted(level.marks)))

    def _level(self, expressions: Iterable[ast.expr], registered: Iterable[SuiteUse] = ()) -> _Level:
        uses, names = list(registered), set()
        for name, node in self._marks(expressions):
            names.add(name)
            if name == "suite":
                self.seen.add(node)
                try:
                    uses.append(from_marker(node))
                except Unreadable as error:
                    self._unreadable(error)
        for index, use in enumerate(uses):
            if use.suite in {earlier.suite for earlier in uses[:index]}:
                message = f"suite {use.suite!r} is named twice for the same tests"
                self.problems.append(Problem(self.path, use.line, "suite", message, "keep one"))
        self.uses += uses
        return _Level(tuple(uses), frozenset(names))

    def _marks(self, expressions: Iterable[ast.expr]) -> Iterator[tuple[str, ast.expr]]:
        """Name and node of each pytest mark among `expressions`; lists and named marks are followed."""
        for node in expressions:
            if isinstance(node, (ast.List, ast.Tuple)):
                yield from self._marks(node.elts)
            elif isinstance(node, ast.Name) and node.id in self.aliases:
                yield from self._marks([self.aliases[node.id]])
            elif name := _mark_name(node):
                yield name, node

    def _registrations(self, body: Iterable[ast.stmt]) -> Iterator[SuiteUse]:
        for statement in body:
            if isinstance(statement, ast.Expr) and (adapter := _registration(statement.value)):
                assert isinstance(statement.value, ast.Call)
                self.seen.add(statement.value)
                try:
                    yield adapter(statement.value, _last_name(statement.value.func))
                except Unreadable as error:
                    self._unreadable(error)

    def _reject_unread(self, tree: ast.Module) -> None:
        """Refuse a statement about a suite in any other place (under `if`, in `pytest.param`)."""
        for node in _run_at_import(tree):
            if not isinstance(node, ast.expr) or node in self.seen:
                continue
            if isinstance(node, ast.Call) and _mark_name(node) == "suite":
                fix = "put it at the top level of the module, or on a class or function that stands there"
                message = "this suite marker cannot be read without running the file"
                self._unreadable(Unreadable(node, message, fix))
            elif _registration(node):
                fix = "call it at the top level of the module"
                self._unreadable(Unreadable(node, "this registration depends on how the file runs", fix))

    def _unreadable(self, error: Unreadable) -> None:
        self.problems.append(Problem(self.path, error.line, "suite", error.message, error.fix))


def _looks_like_test(name: str) -> bool:
    return name.startswith(("test", "Test"))


def _last_name(node: ast.expr) -> str:
    """The last name of what is called or named: `a.b.c(...)`, `a.c` and `c[T]` are all `c`."""
    match node:
        case ast.Call(func=inner) | ast.Subscript(value=inner):
            return _last_name(inner)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def _mark_name(node: ast.expr) -> str:
    """`X` of `pytest.mark.X` or `pytest.mark.X(...)`, else an empty text."""
    function = node.func if isinstance(node, ast.Call) else node
    if isinstance(function, ast.Attribute) and _last_name(function.value) == "mark":
        return function.attr
    return ""


def _registration(node: ast.expr) -> Adapter | None:
    return REGISTRATIONS.get(_last_name(node.func)) if isinstance(node, ast.Call) else None


def _named_marks(body: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    """`needs_gpu = pytest.mark.skipif(...)` at the top level: a mark that the file uses by that name."""
    for statement in body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if _mark_name(value):
                yield name, value


def _assigned(body: Iterable[ast.stmt], name: str) -> Iterator[ast.expr]:
    """The values assigned or added to `name` in `body`."""
    for statement in body:
        match statement:
            case (
                ast.Assign(targets=[ast.Name(id=target)], value=value)
                | ast.AnnAssign(target=ast.Name(id=target), value=ast.expr() as value)
                | ast.AugAssign(target=ast.Name(id=target), value=value)
            ) if target == name:
                yield value


def _is_false(body: Iterable[ast.stmt], name: str) -> bool:
    return any(isinstance(value, ast.Constant) and not value.value for value in _assigned(body, name))


def _run_at_import(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node that is evaluated when the module is imported: all but the bodies of functions."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        yield node
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            pending += node.decorator_list + node.args.defaults
        elif not isinstance(node, ast.Lambda):
            pending += ast.iter_child_nodes(node)
