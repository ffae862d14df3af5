"""Errors that a person can act on: file, line, field, value, what is allowed, the fix; all at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Problem:
    """One error of a user's text. `line` counts from 1; 0 means the file as a whole."""

    file: str
    line: int
    field: str
    message: str
    fix: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        field = f"{self.field}: " if self.field else ""
        fix = f"\n    fix: {self.fix}" if self.fix else ""
        return f"{place}: {field}{self.message}{fix}"


class SpecError(Exception):
    """The specs are wrong; `problems` holds every error found, in file and line order."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(sorted(set(problems)))
        super().__init__("\n".join(map(str, self.problems)))


class FilterError(Exception):
    """The filter selects nothing that anybody meant; `problems` holds one line for each bad term."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(problems))


def did_you_mean(word: str, known: Iterable[str], *, most: int = 3) -> str:
    """`did you mean 'a', 'b'?` for the names nearest to `word`, or an empty text when none is near."""
    near = nearest(word, known, most=most)
    return f"did you mean {', '.join(map(repr, near))}?" if near else ""


def shown(value: object) -> str:
    """A user's value as an error shows it: one short line, without a control character, whatever it holds."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return repr(value if len(value) <= 80 else f"{value[:77]}...")
    kinds = {list: "a list", dict: "a mapping", type(None): "empty"}
    return kinds.get(type(value)) or f"{value!r:.80}"


def nearest(word: str, known: Iterable[str], *, most: int = 3) -> Sequence[str]:
    """The names nearest to `word`, best first, by edit similarity; case is ignored."""
    by_lower = {name.lower(): name for name in sorted(known)}
    return [by_lower[near] for near in difflib.get_close_matches(word.lower()[:200], by_lower, n=most, cutoff=0.6)]
