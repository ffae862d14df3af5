"""Writes YAML that every reader takes for the same value: GitHub's (1.2 core), PyYAML's (1.1) and a person's.

`scalar` writes any value on one line; text stays plain only when no reader could take it for a number, a
date, a boolean or syntax, and stands in double quotes otherwise. `block` writes a `run:` text as a literal
block. PyYAML's own dumper leaves `1e3` and `0o14` plain, which GitHub reads as numbers, and folds long lines.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

Value = str | int | float | bool | None | Sequence["Value"] | Mapping[str, "Value"]

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./@-]*( [A-Za-z0-9_./@()-]+)*|\.{0,2}/[A-Za-z0-9_./@-]+")
"""Words and paths: no character that is YAML syntax in any context, and no start of a number."""
_NUMBERED = re.compile(r"[0-9][0-9A-Za-z_.-]*")
_NO_NUMBER = re.compile(r"[g-nq-su-wyG-NQ-SU-WY]")
"""Letters that no number or date of YAML 1.1 or 1.2 holds, so that `8-gpu-b200` may stay plain."""
_EXPRESSION = re.compile(r"\$\{\{ [ -~]* \}\}")
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_LONGEST_KEY = 1000
"""Readers look for the colon after a key within 1,024 characters."""


def scalar(value: Value) -> str:
    """`value` as YAML on one line, to stand after `key: ` or `- `; lists and mappings in flow style.

    Raises ValueError for what YAML cannot hold: lone surrogates, and keys that are no text or too long.
    """
    if isinstance(value, str) and _EXPRESSION.fullmatch(value) and ": " not in value and " #" not in value:
        return value
    return _flow(value)


def block(text: str, indent: int) -> str:
    """`text` as a literal block whose lines stand `indent` spaces in, without the last line break.

    Text of one line, and text that a literal block cannot carry exactly or an editor might change (leading or
    trailing spaces, tabs, CR, control characters, blank lines at either end), is written by `scalar`.
    """
    body = text.removesuffix("\n")
    lines = body.split("\n")
    fits = all(line.isprintable() and not line.endswith(" ") for line in lines)
    if "\n" not in text or not fits or not lines[0] or not lines[-1] or lines[0].startswith(" "):
        return scalar(text)
    header = "|" if text.endswith("\n") else "|-"
    return "\n".join([header, *(" " * indent + line if line else "" for line in lines)])


def _flow(value: Value) -> str:
    if isinstance(value, str):
        return value if _is_plain(value) else _quoted(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)}: {_flow(item)}" for key, item in value.items()) + "}"
    return "[" + ", ".join(map(_flow, value)) + "]"


def _is_plain(text: str) -> bool:
    if _NUMBERED.fullmatch(text):
        return bool(_NO_NUMBER.search(text))
    return bool(_PLAIN.fullmatch(text)) and text.lower() not in _WORDS


def _key(key: object) -> str:
    if not isinstance(key, str) or len(key) > _LONGEST_KEY:
        raise ValueError(f"a YAML key must be text of at most {_LONGEST_KEY} characters, not {key!r:.40}")
    return _flow(key)


def _quoted(text: str) -> str:
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(char: str) -> str:
    if char in _ESCAPES or char.isprintable():
        return _ESCAPES.get(char, char)
    code = ord(char)
    if 0xD800 <= code <= 0xDFFF:
        raise ValueError(f"U+{code:04X} is half of a surrogate pair and no text")
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _float(value: float) -> str:
    """With a dot even before an exponent: YAML 1.1 reads `1e+16` as text."""
    if math.isnan(value):
        return ".nan"
    if math.isinf(value):
        return ".inf" if value > 0 else "-.inf"
    digits, _, exponent = repr(value).partition("e")
    digits += "" if "." in digits else ".0"
    return f"{digits}e{exponent}" if exponent else digits
