"""JSON Schemas of the specs, so that an editor completes fields and marks mistakes while a person types.

A spec names its schema in its first line: `# yaml-language-server: $schema=schema/workflow.schema.json`. A
schema knows single fields; `ci.spec.checks` knows what they mean together.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel

from ci.spec.models import Fleet, Workflow

FOLDER = "workflows/schema"
_MODELS: dict[str, type[BaseModel]] = {"runners.schema.json": Fleet, "workflow.schema.json": Workflow}


def render(comment: str) -> dict[str, str]:
    """The text of each schema by file name; the same on every machine. `comment` stands in its second line."""
    return {name: _text(model, comment) for name, model in _MODELS.items()}


def _text(model: type[BaseModel], comment: str) -> str:
    about = {"$comment": comment, "$schema": "https://json-schema.org/draft/2020-12/schema"}
    schema = {**about, **_strict(model.model_json_schema())}
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _strict(node: Any) -> Any:
    """A schema as strict as the loader: no null, no key that breaks its pattern; pydantic's titles go."""
    if isinstance(node, list):
        return [_strict(item) for item in node]
    if not isinstance(node, dict):
        return node
    node = {
        name: _strict(item)
        for name, item in node.items()
        if not (name == "title" and isinstance(item, str)) and not (name == "default" and item is None)
    }
    if "patternProperties" in node:
        node["additionalProperties"] = False
    kinds = [kind for kind in node.pop("anyOf", []) if kind != {"type": "null"}]
    return {**node, **kinds[0]} if len(kinds) == 1 else {**node, "anyOf": kinds} if kinds else node
