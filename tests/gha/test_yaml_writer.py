"""Every value survives being written and read again, whoever reads."""

from __future__ import annotations

import math

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ci.gha.expressions import literal
from ci.gha.yaml_reader import read
from ci.gha.yaml_writer import Value, block, scalar

AMBIGUOUS = st.from_regex(r"\A[-+.0-9a-fxoetzTZ_:~yno <]{0,12}\Z")
TEXT = st.text(st.characters(exclude_categories=["Cs"])) | AMBIGUOUS
SCALARS = TEXT | st.booleans() | st.none() | st.floats(allow_nan=False) | st.integers(-(10**30), 10**30)
KEYS = st.text(st.characters(codec="ascii", exclude_characters="A-Z"), min_size=1, max_size=20).map(str.lower)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner), max_leaves=10)
LINE = st.sampled_from(["echo a", "  b", "", "# c", "d ", "\te", "f\r", "- g: h", "${{ i }}", "j\x85k", "é"])
LINES = st.lists(LINE)
HARD = [
    "on", "yes", "NO", "y", "~", "null", "012", "08", "0o14", "0x1f", "0b1", "1:30", "22:00", "3.10", "1e3",
    "1234e56", "0e12345", "12_000", "2026-09-22", "2026-09-22T10:00:00Z", ".inf", "-.inf", ".nan", ".5",
    "=", "<<", "- x", "-", "*/5 * * * *", "%foo", "@x", "&a", "*a", "!t", "a: b", "a:", "a #b", "#", ": ",
    "trailing ", " leading", "tab\t", "a\r\nb", "\n", "", "\u2028", "\x85", "\ufeff", "\x00", "\U0001f600",
    "\u202eabc", 'q"\\', "[a, b]", "{a: b}", "${{ a && b }}", "${{ 'a: b' }}", "${{ ' # ' }}", "${#ARR[@]}",
    "---", "...", "a, b", "| x", "> y", "`z`", "'q'",
]  # fmt: skip


def read_back(text: str) -> object:
    return read(text, "written.yml").value


@pytest.mark.parametrize("text", HARD)
def test_hard_texts_stay_texts_for_every_reader(text: str) -> None:
    for written in (f"a: {scalar(text)}\nb: 1\n", f"a: {block(text, 4)}\nb: 1\n"):
        assert read_back(written) == {"a": text, "b": 1}
        assert yaml.safe_load(written) == {"a": text, "b": 1}
    assert yaml.safe_load(scalar([text, {text: text}])) == [text, {text: text}]


@pytest.mark.parametrize(
    "text",
    [
        "ubuntu-24.04",
        "8-gpu-b200",
        "4h30m",
        "./.github/actions/shard",
        "actions/checkout@v5",
        "Nightly Test (NVIDIA)",
        "${{ inputs.job_filter || 'all' }}",
    ],
)
def test_harmless_texts_stay_plain(text: str) -> None:
    assert scalar(text) == text


@given(TEXT)
def test_any_text_survives_github_and_pyyaml(text: str) -> None:
    written = f"a: {scalar(text)}\nb:\n- {scalar(text)}\nc: [{scalar([text])}]\n"
    expected = {"a": text, "b": [text], "c": [[text]]}
    assert "\n" not in scalar(text)
    assert read_back(written) == expected
    assert yaml.safe_load(written) == expected


@given(VALUES)
def test_any_value_survives(value: Value) -> None:
    assert read_back(f"a: {scalar(value)}") == {"a": value}
    assert yaml.safe_load(f"a: {scalar(value)}") == {"a": value}


@given(LINES | LINES.map(lambda lines: [*lines, ""]), st.integers(1, 12))
def test_any_run_text_survives_as_a_block(lines: list[str], indent: int) -> None:
    text, margin = "\n".join(lines), " " * indent
    written = f"a:\n{margin}b: {block(text, indent + 2)}\n{margin}c: 1\n"
    assert read_back(written) == {"a": {"b": text, "c": 1}}
    assert yaml.safe_load(written) == {"a": {"b": text, "c": 1}}


def test_a_run_text_reads_like_a_script() -> None:
    assert block("set -u\nif x; then\n  y\n\nfi\n", 4) == "|\n    set -u\n    if x; then\n      y\n\n    fi"
    assert block("a\nb", 2) == "|-\n  a\n  b"
    assert block("a\n\n", 2) == r'"a\n\n"'


def test_numbers_are_written_so_that_both_versions_read_numbers() -> None:
    assert [scalar(x) for x in (1e16, 1e-7, 0.5, 3.0, math.inf, -math.inf, math.nan)] == [
        "1.0e+16", "1.0e-07", "0.5", "3.0", ".inf", "-.inf", ".nan",
    ]  # fmt: skip


@pytest.mark.parametrize("value", ["\ud800", {"k" * 1001: 1}, {1: 2}])
def test_what_yaml_cannot_hold_is_refused(value: Value) -> None:
    with pytest.raises(ValueError, match=r"surrogate|a YAML key"):
        scalar(value)


def test_quotes_in_an_expression_literal_are_doubled() -> None:
    assert literal("it's") == "'it''s'"
