"""Turns pydantic's errors into sentences: the field as it is written, the value, what is allowed, the fix."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from ci.gha.yaml_reader import Path
from ci.spec.checks import Finding
from ci.spec.models import PATTERN_WORDS, UNION_TAGS
from ci.spec.problems import did_you_mean, shown

_KEY = "[key]"
"""Pydantic's last step for an error in a mapping's key."""
_GITHUB_WORDS = {
    "if": "select",
    "name": "title",
    "needs": "after",
    "on": "triggers",
    "run": "commands",
    "runs-on": "pool",
    "steps": "commands",
    "strategy": "shards",
    "timeout-minutes": "timeout",
    "workflow_call": "call",
    "workflow_dispatch": "dispatch",
}
"""Fields of a workflow that people know from GitHub, and what they are called in a spec."""


class Violation(NamedTuple):
    """A finding, and the part of the value that must go for the rest to be judged; () if nothing helps."""

    finding: Finding
    broken: Path


def missing_values(value: Any, model: type[BaseModel], path: Path = ()) -> Iterator[Violation]:
    """Every field that is written without a value: `dispatch:` would else read as if it were not there."""
    if value is None:
        fix = f"write `{path[-1]}: {{}}`" if _is_mapping(_fields(model, path)) else "write one, or drop it"
        yield Violation(Finding(path, "has no value", fix), path)
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, item in inside:
        yield from missing_values(item, model, (*path, step))


def violations(error: ValidationError, model: type[BaseModel]) -> list[Violation]:
    """Each error of validating a value against `model`, translated."""
    return [_violation(details, model) for details in error.errors(include_url=False)]


def _violation(details: ErrorDetails, model: type[BaseModel]) -> Violation:
    steps = tuple(step for step in details["loc"] if step not in UNION_TAGS)
    path = tuple(step for step in steps if step != _KEY)
    fields = list(_fields(model, path))
    message, fix = _sentence(details, fields)
    if details["type"] == "extra_forbidden":
        fix = _known_field(str(path[-1]), model, path)
    if steps[-1] == _KEY:
        message = f"the name {message}"
    broken = path[:-1] if details["type"] == "missing" else path
    return Violation(Finding(path, message, fix), broken)


def _known_field(word: str, model: type[BaseModel], path: Path) -> str:
    known = {name for holder in _models(model, path[:-1]) for name in holder.model_fields}
    if _GITHUB_WORDS.get(word) in known:
        return f"a spec says `{_GITHUB_WORDS[word]}`"
    return did_you_mean(word, known) or f"one of {', '.join(sorted(known))}"


def _sentence(details: ErrorDetails, fields: list[FieldInfo]) -> tuple[str, str]:
    """Message and fix for one error of pydantic."""
    value, context = details["input"], details.get("ctx", {})
    about = next((_phrase(field.description) for field in fields if field.description), "")
    match details["type"]:
        case "missing":
            return "missing", f"add it: {about}" if about else "add it"
        case "extra_forbidden":
            return "unknown field", ""
        case "string_type":
            quote = "put it in quotes" if isinstance(value, bool | int | float) else about
            return f"{shown(value)} is not text", quote
        case "int_type" | "bool_type" | "list_type" | "dict_type" | "model_type" | "model_attributes_type" as kind:
            return f"{shown(value)} is not {_KINDS[kind]}", _example(kind, value) or about
        case "literal_error":
            allowed = [name.strip("'") for name in context["expected"].replace(" or ", ", ").split(", ")]
            fix = did_you_mean(str(value), allowed) if isinstance(value, str) else ""
            return f"{shown(value)} is not {context['expected']}", fix or about
        case "string_pattern_mismatch":
            return f"{shown(value)} is not allowed", PATTERN_WORDS[context["pattern"]]
        case "string_too_short":
            return "is empty", f"write some text: {about}" if about else "write some text"
        case "too_short":
            return "is empty", f"write at least one: {about}" if about else "write at least one"
        case "string_too_long":
            return f"{shown(value)} has more than {context['max_length']} characters", "shorten it"
        case "greater_than_equal":
            return f"{shown(value)} is below {context['ge']}", f"at least {context['ge']}"
        case "less_than_equal":
            return f"{shown(value)} is above {context['le']}", f"at most {context['le']}"
        case "value_error":
            what, _, fix = str(context["error"]).partition(": ")
            return f"{shown(value)} is {what}", fix
        case _:
            return f"{shown(value)}: {details['msg']}", about


_KINDS = {
    "int_type": "a whole number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}


def _phrase(description: str) -> str:
    """A field's description as the end of a sentence: `GPUs that a job owns.` keeps its capitals."""
    small = description[:1].lower() + description[1:] if re.match("[A-Z][a-z ]", description) else description
    return small.removesuffix(".")


def _example(kind: str, value: Any) -> str:
    if kind == "list_type" and isinstance(value, str):
        return f"write it as a list: [{shown(value)}]"
    if kind == "int_type" and isinstance(value, str) and value.isdigit():
        return f"without quotes it is a number: {value[:20]}"
    if kind == "bool_type":
        return "only `true` and `false` are booleans; yes, no, on and off are text"
    return "" if kind in ("int_type", "list_type") else "write fields and their values under it"


def _is_mapping(fields: Iterable[FieldInfo]) -> bool:
    kinds = {kind for field in fields for kind in _alternatives(field.annotation)}
    return any(isinstance(kind, type) and issubclass(kind, BaseModel) for kind in kinds)


def _fields(model: type[BaseModel], path: Path) -> Iterator[FieldInfo]:
    """The declared fields that a place in a spec may stand for; none for an entry of a list or a mapping."""
    for holder in _models(model, path[:-1]):
        if path[-1] in holder.model_fields:
            yield holder.model_fields[str(path[-1])]


def _models(kind: Any, path: Path) -> Iterator[type[BaseModel]]:
    """The models that may stand at a place below `kind`."""
    for one in _alternatives(kind):
        if isinstance(one, type) and issubclass(one, BaseModel):
            if not path:
                yield one
            elif path[0] in one.model_fields:
                yield from _models(one.model_fields[str(path[0])].annotation, path[1:])
        elif path and get_origin(one) in (list, dict):
            yield from _models(get_args(one)[-1], path[1:])


def _alternatives(kind: Any) -> Iterator[Any]:
    """The members of a union, through Annotated; any other kind alone."""
    if get_origin(kind) is Annotated:
        yield from _alternatives(get_args(kind)[0])
    elif get_origin(kind) in (Union, UnionType):
        for one in get_args(kind):
            yield from _alternatives(one)
    else:
        yield kind
