"""docs/specs.md names every field of every model, as the models say it."""

from __future__ import annotations

from ci.spec import models
from tests.docs.field_tables import PAGE, shown_models, with_tables


def test_the_tables_are_those_of_the_models() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == with_tables(text), "run: python -m tests.docs.field_tables"


def test_every_model_with_fields_has_a_table() -> None:
    with_fields = {
        name
        for name, model in vars(models).items()
        if isinstance(model, type) and issubclass(model, models.Model) and model.model_fields
    }
    assert shown_models(PAGE.read_text(encoding="utf-8")) == with_fields


def test_a_changed_table_is_noticed() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert with_tables(text.replace("| `timeout` |", "| `timeouts` |")) == text
