"""Editors judge a spec by the same fields as the loader does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ci.gha.yaml_reader import read
from ci.spec.schema import render

ROOT = Path(__file__).parents[2]
SPECS = sorted(path for path in ROOT.glob("workflows/*.yml") if path.name != "actions.lock.yml")
FLEET, WORKFLOW = (json.loads(text) for text in render("a comment").values())
JOB: dict[str, Any] = {
    "pool": "cpu",
    "suites": ["a"],
    "timeout": "1h30m",
    "shards": {"max": 3, "target": "30m"},
}


def workflow(**fields: Any) -> dict[str, Any]:
    return {"title": "T", "template": "nightly", "triggers": {"dispatch": {}}, "jobs": {"a": JOB}, **fields}


def test_schemas_are_schemas_and_always_the_same_text() -> None:
    for schema in (FLEET, WORKFLOW):
        jsonschema.Draft202012Validator.check_schema(schema)
    assert render("a comment") == render("a comment")


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_the_specs_of_this_repository_fit(path: Path) -> None:
    schema = FLEET if path.name == "runners.yml" else WORKFLOW
    jsonschema.validate(read(path.read_text(encoding="utf-8"), path.name).value, schema)


@pytest.mark.parametrize(
    "spec",
    [
        workflow(titel="x"),
        workflow(title=None),
        workflow(jobs={"8-gpu": JOB}),
        workflow(jobs={"a": JOB | {"timeout": 90}}),
        workflow(jobs={"a": JOB | {"timeout": ""}}),
        workflow(jobs={"a": JOB | {"shards": 257}}),
        workflow(jobs={"a": JOB | {"shards": {"max": 3}}}),
        workflow(jobs={"a": JOB | {"after": {"jobs": [], "when": "end"}}}),
        workflow(jobs={"a": JOB | {"enabled": "no"}}),
        workflow(triggers={"dispatch": None}),
        workflow(env={"A B": "x"}),
    ],
)
def test_a_wrong_field_is_marked(spec: dict[str, Any]) -> None:
    jsonschema.validate(workflow(), WORKFLOW)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(spec, WORKFLOW)
