"""GitHub's expression language, as far as generated text needs it."""

from __future__ import annotations


def literal(text: str) -> str:
    """`text` as a string literal of an expression: in single quotes, with quotes inside doubled."""
    return "'" + text.replace("'", "''") + "'"
