"""The tables of docs/specs.md, from the models of the specs: `python -m tests.docs.field_tables` writes them anew.

A table stands between `<!-- fields of: MODEL -->` and `<!-- end -->`; the words round it are written by hand.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ci.gha.yaml_writer import scalar
from ci.spec import models

PAGE = Path(__file__).parents[2] / "docs/specs.md"
_TABLE = re.compile(r"(<!-- fields of: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_KINDS = {"string": "text", "integer": "number", "number": "number", "boolean": "true or false"}


def shown_models(text: str) -> set[str]:
    """Names of the models that a page has tables of."""
    return {name for _, name, _ in _TABLE.findall(text)}


def with_tables(text: str) -> str:
    """The page with every table as the models say it."""
    return _TABLE.sub(lambda found: f"{found[1]}{table(getattr(models, found[2]))}{found[3]}", text)


def table(model: type[BaseModel]) -> str:
    """One row a field: its name, what it takes, its default, and what it is for."""
    schema = model.model_json_schema()
    rows = ["| field | takes | default | |", "| --- | --- | --- | --- |"]
    for name, field in schema["properties"].items():
        default = "**required**" if name in schema.get("required", []) else _default(field)
        about = field.get("description", "").replace("|", "\\|")
        rows.append(f"| `{name}` | {_takes(field)} | {default} | {about} |")
    return "\n".join(rows) + "\n"


def _default(field: dict[str, Any]) -> str:
    """The default as YAML spells it; a mapping or nothing needs no words."""
    value = field.get("default")
    if value is None or value in ("", []) or isinstance(value, dict):
        return ""
    return f"`{scalar(value)}`"


def _takes(field: dict[str, Any]) -> str:
    """What a field takes, in words."""
    for kinds in (field.get("anyOf"), field.get("oneOf")):
        if kinds:
            return " or ".join(dict.fromkeys(_takes(kind) for kind in kinds if kind != {"type": "null"}))
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "const" in field:
        return f"`{field['const']}`"
    if "enum" in field:
        return ", ".join(f"`{one}`" for one in field["enum"])
    if "examples" in field:
        return f"a duration, such as `{field['examples'][1]}`"
    if field.get("format") == "date":
        return "a day, YYYY-MM-DD"
    if field.get("type") == "array":
        return f"a list of {_takes(field['items'])}"
    if field.get("type") == "object":
        patterns = field.get("patternProperties", {})
        values = next(iter(patterns.values()), field.get("additionalProperties", {}))
        return f"names, each with {_takes(values)}"
    return _KINDS[field["type"]] + _range(field)


def _range(field: dict[str, Any]) -> str:
    low, high = field.get("minimum"), field.get("maximum")
    if low is not None and high is not None:
        return f", {low} to {high}"
    return f", at least {low}" if low is not None else ""


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
