"""Reads YAML as GitHub reads it: the core schema of YAML 1.2, with the line of every value.

`read` is a pure function from text to a `Document`. What differs from PyYAML's own loader (YAML 1.1):

- only `true`, `True`, `TRUE` and their opposites are booleans; `yes`, `on`, `1:30` and `2026-09-22` are text;
- `0o14`, `0x1f`, `1e3` and `1234e56` (a short commit SHA!) are numbers, and `012` is 12;
- a key is the text that was written, so `on:` stays `on`;
- two keys that differ in case alone are duplicates, and duplicates, `<<` and a second document are errors.

Everything wrong with the text is raised in one `YamlError`; a syntax error hides what comes after it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

Path = tuple[str | int, ...]
"""Where a value stands in a document: mapping keys and list indices from the root."""

MAX_DEPTH = 100
MAX_VALUES = 1_000_000
"""Values of a document with every alias written out; more is an attack (a billion laughs), not a workflow."""

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_BOOL = {word: word.lower() == "true" for word in ("true", "True", "TRUE", "false", "False", "FALSE")}
_NULL = {"", "~", "null", "Null", "NULL"}
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_UNREADABLE = re.compile("[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
"""Control characters, lone surrogates, and U+0085, U+2028, U+2029: line breaks in YAML 1.1, text in 1.2."""


class YamlError(Exception):
    """The text is not YAML that GitHub would read; `problems` holds (line, message), lines counted from 1."""

    def __init__(self, source: str, problems: list[tuple[int, str]]) -> None:
        self.source = source
        self.problems = tuple(sorted(problems))
        super().__init__("\n".join(f"{source}:{line}: {message}" for line, message in self.problems))


@dataclass(frozen=True)
class _Place:
    """The line of a value, or of its key, and the places of what it holds."""

    line: int
    inside: Mapping[str | int, _Place]
    values: int = 1


@dataclass(frozen=True)
class Document:
    """One YAML document: plain Python values, and the line of each."""

    source: str
    value: Any
    _root: _Place

    def line(self, path: Path) -> int:
        """The line, from 1, of the key or list item at `path`, or of its nearest ancestor that is written."""
        place = self._root
        for step in path:
            if step not in place.inside:
                break
            place = place.inside[step]
        return place.line


def read(text: str, source: str) -> Document:
    """The one document in `text` (None if it is empty); `source` names it in errors. Raises YamlError."""
    text = text.removeprefix("\ufeff")
    if bad := _UNREADABLE.search(text):
        raise YamlError(source, [(text.count("\n", 0, bad.start()) + 1, _unreadable(bad.group()))])
    reader = _Reader(iter(yaml.parse(text, Loader=_Loader)))
    try:
        value, root = reader.document()
    except yaml.MarkedYAMLError as error:
        raise YamlError(source, [*reader.problems, _syntax(text, error)]) from None
    except _Stop as stop:
        raise YamlError(source, [*reader.problems, (stop.line, str(stop))]) from None
    if reader.problems:
        raise YamlError(source, reader.problems)
    return Document(source, value, root)


def resolve(text: str) -> Any:
    """What a plain scalar means in the core schema: None, a boolean, a number or the text itself."""
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _INT.fullmatch(text):
        return _int(text)
    if _FLOAT.fullmatch(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text


def _int(text: str) -> int | float:
    if len(text) > 400:
        return -math.inf if text.startswith("-") else math.inf
    if text.startswith(("0o", "0x")):
        return int(text[2:], 8 if text[1] == "o" else 16)
    return int(text)


def _unreadable(char: str) -> str:
    escape = f"\\x{ord(char):02x}" if ord(char) < 256 else f"\\u{ord(char):04x}"
    return f'the character U+{ord(char):04X} may not stand in YAML; write it as {escape} inside "..."'


def _syntax(text: str, error: yaml.MarkedYAMLError) -> tuple[int, str]:
    mark = error.problem_mark or error.context_mark
    line = mark.line if mark else 0
    lines = text.splitlines()
    if line < len(lines) and re.match(r"[ -]*\t", lines[line]):
        return line + 1, "a tab in the indentation; YAML is indented with spaces"
    context = f" {error.context}" if error.context else ""
    hint = "; check the indentation" if "block" in context else ""
    return line + 1, f"not valid YAML: {error.problem}{context}{hint}"


class _Stop(Exception):
    """An error after which the rest of the text cannot be read."""

    def __init__(self, line: int, message: str) -> None:
        self.line = line
        super().__init__(message)


class _Reader:
    """Builds values and places from parser events in one pass; remembers anchors and collects problems."""

    def __init__(self, events: Iterator[yaml.Event]) -> None:
        self.events = events
        self.anchors: dict[str, tuple[Any, _Place]] = {}
        self.problems: list[tuple[int, str]] = []

    def document(self) -> tuple[Any, _Place]:
        next(self.events)
        event = next(self.events)
        if isinstance(event, yaml.StreamEndEvent):
            return None, _Place(1, {})
        result = self.node(next(self.events), 0)
        next(self.events)
        event = next(self.events)
        if not isinstance(event, yaml.StreamEndEvent):
            raise _Stop(_line(event), "a second document begins here; GitHub reads one document a file")
        return result

    def node(self, event: yaml.Event, depth: int) -> tuple[Any, _Place]:
        if depth > MAX_DEPTH:
            raise _Stop(_line(event), f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(event, yaml.AliasEvent):
            return self.alias(event)
        if isinstance(event, yaml.ScalarEvent):
            result = self.scalar(event), _Place(_line(event), {})
        elif isinstance(event, yaml.MappingStartEvent):
            result = self.mapping(event, depth)
        else:
            result = self.sequence(event, depth)
        if result[1].values > MAX_VALUES:
            raise _Stop(_line(event), f"anchors and aliases write out to more than {MAX_VALUES:,} values")
        if isinstance(event, yaml.NodeEvent) and event.anchor:
            self.anchors[event.anchor] = result
        return result

    def alias(self, event: yaml.AliasEvent) -> tuple[Any, _Place]:
        if event.anchor not in self.anchors:
            raise _Stop(_line(event), f"the alias *{event.anchor} names no anchor that ends before it")
        return self.anchors[event.anchor]

    def scalar(self, event: yaml.ScalarEvent) -> Any:
        if event.implicit[0]:
            return resolve(event.value)
        if event.implicit[1] or event.tag == f"{_TAG}str":
            return event.value
        kinds: dict[str, tuple[type, ...]] = {
            "int": (int, float),
            "float": (int, float),
            "bool": (bool,),
            "null": (type(None),),
        }
        value, allowed = resolve(event.value), kinds.get((event.tag or "").removeprefix(_TAG), ())
        if not isinstance(value, allowed):
            self.problems.append((_line(event), f"GitHub does not read the tag {event.tag!r} here"))
        return value

    def mapping(self, event: yaml.MappingStartEvent, depth: int) -> tuple[Any, _Place]:
        value: dict[str, Any] = {}
        inside: dict[str | int, _Place] = {}
        seen: dict[str, int] = {}
        values = 1
        while not isinstance(key_event := next(self.events), yaml.MappingEndEvent):
            key, line = self.key(key_event), _line(key_event)
            item, place = self.node(next(self.events), depth + 1)
            if key.lower() in seen:
                again = f"the key {key!r} is already on line {seen[key.lower()]} (case is ignored)"
                self.problems.append((line, again))
            seen.setdefault(key.lower(), line)
            value[key], inside[key] = item, _Place(line, place.inside, place.values)
            values += place.values
        return value, _Place(_line(event), inside, values)

    def key(self, event: yaml.Event) -> str:
        if isinstance(event, yaml.AliasEvent):
            key = self.alias(event)[0]
        elif isinstance(event, yaml.ScalarEvent):
            key = event.value
            if event.anchor:
                self.anchors[event.anchor] = key, _Place(_line(event), {})
            if event.implicit[0] and key == "<<":
                self.problems.append((_line(event), "GitHub does not support the merge key <<; write the keys"))
            if event.implicit[0] and key == "":
                self.problems.append((_line(event), "a key is empty"))
        else:
            key = None
        if not isinstance(key, str):
            raise _Stop(_line(event), "a key must be one text, not a list or a mapping")
        return key

    def sequence(self, event: yaml.Event, depth: int) -> tuple[Any, _Place]:
        value: list[Any] = []
        inside: dict[str | int, _Place] = {}
        values = 1
        while not isinstance(item_event := next(self.events), yaml.SequenceEndEvent):
            item, place = self.node(item_event, depth + 1)
            inside[len(value)] = place
            value.append(item)
            values += place.values
        return value, _Place(_line(event), inside, values)


def _line(event: yaml.Event) -> int:
    return int(event.start_mark.line) + 1 if event.start_mark else 1
