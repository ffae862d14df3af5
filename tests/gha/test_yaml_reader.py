"""YAML is read as GitHub reads it, with the line of every value."""

from __future__ import annotations

import math

import pytest

from ci.gha.yaml_reader import MAX_VALUES, YamlError, read


def value(text: str) -> object:
    return read(text, "spec.yml").value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("true", True), ("True", True), ("FALSE", False), ("tRue", "tRue"),
        ("yes", "yes"), ("on", "on"), ("NO", "NO"), ("y", "y"),
        ("012", 12), ("08", 8), ("0o14", 12), ("0x1f", 31), ("-7", -7), ("+7", 7), ("0b1", "0b1"),
        ("1e3", 1000.0), ("1234e56", 1234e56), ("0e12345", 0.0), ("3.10", 3.1), (".5", 0.5), ("5.", 5.0),
        ("12_000", "12_000"), ("1:30", "1:30"), ("22:00", "22:00"), ("2026-09-22", "2026-09-22"),
        (".inf", math.inf), ("-.INF", -math.inf), ("~", None), ("null", None), ("Null", None),
        ("nUll", "nUll"),
        ("''", ""), ('"1"', "1"), ("'true'", "true"), ("=", "="), ("!!str 1", "1"), ("!!int 012", 12),
        ("", None), ("# only a comment", None),
    ],
)  # fmt: skip
def test_plain_scalars_mean_what_the_core_schema_says(text: str, expected: object) -> None:
    assert value(text) == expected
    assert type(value(text)) is type(expected)


def test_an_integer_of_any_length_is_a_number() -> None:
    assert [value(text) for text in ("9" * 5000, "-" + "9" * 5000, "0x" + "f" * 5000)] == [
        math.inf,
        -math.inf,
        math.inf,
    ]


def test_keys_are_the_text_that_was_written() -> None:
    assert value("on: {push: }\ntrue: 1\n1e3: 2\n") == {"on": {"push": None}, "true": 1, "1e3": 2}


def test_anchors_are_read_and_each_use_keeps_a_line() -> None:
    document = read("a: &steps\n  - x: 1\nb: *steps\n&k c: 1\nd: *k\n", "spec.yml")
    assert document.value == {"a": [{"x": 1}], "b": [{"x": 1}], "c": 1, "d": "c"}
    assert document.line(("b", 0, "x")) == 2
    assert document.line(("b",)) == 3


def test_a_line_is_that_of_the_key_or_of_the_nearest_written_ancestor() -> None:
    text = "\ufeffjobs:\n  one:\n    tags:\n      - x\n      - y\n\n  two: {pool:\n    z}\n"
    document = read(text, "spec.yml")
    lines = {path: document.line(path) for path in [(), ("jobs", "one", "tags", 1), ("jobs", "two", "pool")]}
    assert lines == {(): 1, ("jobs", "one", "tags", 1): 5, ("jobs", "two", "pool"): 7}
    assert document.line(("jobs", "one", "timeout")) == 2
    assert document.line(("nowhere",)) == 1


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, "the key 'a' is already on line 1"),
        ("env: {A: 1, a: 2}", 1, "the key 'a' is already on line 1 (case is ignored)"),
        ("x: &x {a: 1}\ny:\n  <<: *x\n", 3, "does not support the merge key <<"),
        ("a:\n\t- b\n", 2, "a tab in the indentation"),
        ("a: b: c", 1, "not valid YAML: mapping values are not allowed in this context"),
        ("a: 1\n---\nb: 2\n", 2, "a second document begins here"),
        ("a: &x [*x]", 1, "the alias *x names no anchor"),
        ("a: *b", 1, "the alias *b names no anchor"),
        ("a: !secret x", 1, "GitHub does not read the tag '!secret'"),
        ("a: !!int x", 1, "GitHub does not read the tag"),
        ("a: !!binary x", 1, "GitHub does not read the tag"),
        ("? [a]\n: 1", 1, "a key must be one text"),
        ("{? : 1}", 1, "a key is empty"),
        ("a: 1\nb: '\x07'", 2, 'the character U+0007 may not stand in YAML; write it as \\x07 inside "..."'),
        ("a: b\u2028c", 1, "the character U+2028"),
        ("a: \ud800", 1, "the character U+D800"),
        ("[" * 100_000, 1, "nest"),
        ("{a: " * 200 + "}" * 200, 1, "nested deeper than 100 levels"),
        ("- 'x", 1, "not valid YAML: found unexpected end of stream"),
    ],
)
def test_what_github_would_refuse_is_refused_with_its_line(text: str, line: int, message: str) -> None:
    with pytest.raises(YamlError) as caught:
        read(text, "spec.yml")
    assert [problem[0] for problem in caught.value.problems] == [line]
    assert message in str(caught.value)


def test_all_problems_are_raised_at_once() -> None:
    with pytest.raises(YamlError) as caught:
        read("a: 1\na: 2\nb: !x y\nc: {<<: 1}\nd: [\n", "spec.yml")
    assert [line for line, _ in caught.value.problems] == [2, 3, 4, 6]


def test_a_billion_laughs_are_refused_before_they_are_written_out() -> None:
    laughs = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60))
    with pytest.raises(YamlError, match=f"more than {MAX_VALUES:,} values"):
        read(laughs, "spec.yml")
