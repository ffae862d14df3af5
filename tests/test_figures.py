"""What the documents say in numbers is what was measured, and the table of failure classes is that of the rules."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.figures import PAGES, with_figures
from ci.runner.classify import rules

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", PAGES)
def test_figures_are_those_of_the_recorded_results(name: str) -> None:
    path, _ = PAGES[name]
    assert (ROOT / path).read_text(encoding="utf-8") == with_figures(name), "run: python -m benchmarks.figures"


def test_the_table_of_failure_classes_is_that_of_the_rules_in_their_order() -> None:
    page = (ROOT / "docs/runner.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\w-]+) \| (yes|no) \| (\d+) \|$", page, re.MULTILINE)
    assert rows == [
        (rule.failure.name, "yes" if rule.failure.infra else "no", str(rule.failure.retries)) for rule in rules()
    ]
