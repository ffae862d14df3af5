"""How a test says which suite it belongs to: `pytest.mark.suite("name", gpus=0, min_sm=None, est="90s")`.

A statement is read from the syntax tree, so its arguments must be literals. What cannot be read raises
`Unreadable` with the line; it never becomes "unset", since no job runs a test whose suite is unknown.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ci.spec.models import parse_duration
from ci.spec.problems import did_you_mean

_SUITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True)
class SuiteUse:
    """One statement "this belongs to that suite", with what it needs.

    `est` is the expected time of all that it marks, in seconds; `disabled` says why it does not count.
    """

    suite: str
    line: int
    gpus: int = 0
    min_sm: int | None = None
    est: float | None = None
    disabled: str | None = None


class Unreadable(Exception):
    """A statement about a suite that the syntax tree cannot settle."""

    def __init__(self, node: ast.expr, message: str, fix: str) -> None:
        self.line = node.lineno
        self.message = message
        self.fix = fix
        super().__init__(message)


def literal_arguments(
    call: ast.Call, callee: str, positional: Sequence[str], keywords: Sequence[str]
) -> dict[str, object]:
    """The arguments of `call` by name; `Unreadable` for anything but known names with literal values."""
    allowed = [*positional, *keywords]
    values: dict[str, object] = {}
    if len(call.args) > len(positional):
        message = f"{callee} takes {len(positional)} positional argument(s)"
        raise Unreadable(call, message, f"name the others: {', '.join(keywords)}")
    pairs = [*zip(positional, call.args, strict=False), *((word.arg, word.value) for word in call.keywords)]
    for name, node in pairs:
        if name is None or isinstance(node, ast.Starred):
            raise Unreadable(node, f"{callee} has unpacked arguments", "write each argument as a literal")
        if name not in allowed:
            fix = did_you_mean(name, allowed) or f"use one of {', '.join(allowed)}"
            raise Unreadable(node, f"{callee} has no argument {name!r}", fix)
        if name in values:
            raise Unreadable(node, f"{callee} has {name!r} twice", "keep one")
        try:
            values[name] = ast.literal_eval(node)
        except (ValueError, TypeError) as error:
            text = ast.unparse(node)
            raise Unreadable(
                node,
                f"{callee}: {name}={text} cannot be read without running the file",
                "write a literal, such as a string in quotes or a number",
            ) from error
    return values


def suite_name(call: ast.Call, callee: str, value: object) -> str:
    """`value` as a suite's name, or `Unreadable`."""
    if isinstance(value, str) and _SUITE_NAME.fullmatch(value):
        return value
    raise Unreadable(call, f"{callee}: {value!r} is no suite name", "use letters, digits, '-', '_' and '.'")


def from_marker(node: ast.expr) -> SuiteUse:
    """The use that `pytest.mark.suite(...)` states; a marker without arguments is `Unreadable` too."""
    callee = "pytest.mark.suite"
    if not isinstance(node, ast.Call) or not (node.args or node.keywords):
        raise Unreadable(node, f"{callee} names no suite", 'write pytest.mark.suite("NAME")')
    values = literal_arguments(node, callee, ("name",), ("gpus", "min_sm", "est"))
    gpus, min_sm = values.get("gpus", 0), values.get("min_sm")
    if type(gpus) is not int or gpus < 0:
        raise Unreadable(node, f"{callee}: gpus={gpus!r} is no number of GPUs", "write a whole number from 0")
    if min_sm is not None and (type(min_sm) is not int or not 10 <= min_sm <= 999):
        raise Unreadable(node, f"{callee}: min_sm={min_sm!r} is no SM version", "write it as 80, 90 or 100")
    return SuiteUse(
        suite=suite_name(node, callee, values.get("name")),
        line=node.lineno,
        gpus=gpus,
        min_sm=min_sm,
        est=None if values.get("est") is None else _seconds(node, callee, values["est"]),
    )


def _seconds(node: ast.Call, callee: str, value: object) -> float:
    try:
        seconds = parse_duration(value)
    except ValueError as error:
        raise Unreadable(node, f"{callee}: est={value!r}: {error}", 'write est="90s"') from error
    assert isinstance(seconds, int)
    return float(seconds)
