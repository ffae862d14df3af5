"""What a step says to GitHub, read back the way GitHub reads it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.gha.commands import (
    Annotation,
    Section,
    append_summary,
    fit,
    inert,
    output,
    shown,
    summary_room,
    write_outputs,
)
from ci.gha.limits import SUMMARY_BYTES

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("\n\r:,%<>=|`#["))


def read_outputs(text: str) -> dict[str, str]:
    """GITHUB_OUTPUT as the runner reads it: `name<<DELIMITER`, lines, `DELIMITER`."""
    found, lines = {}, text.split("\n")
    while lines and lines != [""]:
        name, delimiter = lines.pop(0).split("<<", 1)
        end = lines.index(delimiter)
        found[name] = "\n".join(lines[:end])
        lines = lines[end + 1 :]
    return found


def read_command(line: str) -> tuple[str, dict[str, str], str]:
    """(level, properties, message) of a workflow command, unescaped as the runner does."""

    def unescaped(text: str) -> str:
        for code, character in (("%3A", ":"), ("%2C", ","), ("%0D", "\r"), ("%0A", "\n"), ("%25", "%")):
            text = text.replace(code, character)
        return text

    found = re.fullmatch(r"::(\w+) (.*?)::(.*)", line)
    assert found, line
    properties = dict(field.split("=", 1) for field in found[2].split(","))
    return found[1], {name: unescaped(value) for name, value in properties.items()}, unescaped(found[3])


@given(st.dictionaries(st.from_regex(r"[A-Za-z_][A-Za-z0-9_-]*", fullmatch=True), ANY_TEXT, max_size=4))
def test_any_outputs_are_read_back_and_make_no_others(values: dict[str, str]) -> None:
    assert read_outputs("".join(output(name, value) for name, value in values.items())) == values


def test_a_value_that_holds_another_values_delimiter_cannot_end_itself() -> None:
    inner = output("hash", "x")
    assert read_outputs(output("jobs", inner) + inner) == {"jobs": inner, "hash": "x"}


@pytest.mark.parametrize("name", ["", "a b", "a=b", "a\nb", "1a", "a<<b"])
def test_a_name_that_is_none_is_refused_before_anything_is_written(name: str, tmp_path: Path) -> None:
    file = tmp_path / "output"
    with pytest.raises(ValueError, match="no name of an output"):
        write_outputs(file, {"good": "1", name: "2"})
    assert not file.exists()


def test_outputs_and_summaries_are_appended_to_what_others_wrote(tmp_path: Path) -> None:
    file = tmp_path / "output"
    file.write_text("first=1\n")
    write_outputs(file, {"second": "2"})
    assert file.read_text().startswith("first=1\nsecond<<")
    append_summary(file, "\N{SNOWMAN}")
    assert file.read_text(encoding="utf-8").endswith("\N{SNOWMAN}")


def test_a_summary_counts_the_bytes_of_others_and_refuses_one_too_many(tmp_path: Path) -> None:
    file = tmp_path / "summary"
    assert summary_room(file) == SUMMARY_BYTES
    file.write_bytes(b"x" * 900 * 1024)
    assert summary_room(file) == 124 * 1024
    with pytest.raises(ValueError, match="do not fit"):
        append_summary(file, "é" * 62 * 1024 + "x")
    append_summary(file, "é" * 62 * 1024)
    assert file.stat().st_size == SUMMARY_BYTES
    assert summary_room(file) == 0


@given(
    sections=st.lists(
        st.builds(
            Section,
            head=st.just("<ul>"),
            items=st.lists(ANY_TEXT.map(lambda text: f"<li>{re.sub('[<>]', '', text)}</li>"), max_size=8),
            tail=st.just("</ul>"),
        ),
        max_size=4,
    ),
    budget=st.integers(0, 400),
)
def test_fitted_sections_are_within_the_budget_closed_and_count_what_they_leave_out(
    sections: list[Section], budget: int
) -> None:
    text = fit(sections, budget, where="elsewhere")
    assert len(text.encode()) <= budget
    assert text.count("<ul>") == text.count("</ul>")
    opened = [section for section in sections if section.items][: text.count("<ul>")]
    left_out = sum(int(count) for count in re.findall(r"\*(\d+) more: elsewhere", text))
    if len(opened) == len(sections) == text.count("<ul>"):
        assert text.count("<li>") + left_out == sum(len(section.items) for section in sections)


def test_a_budget_that_is_enough_cuts_nothing() -> None:
    section = Section("<ul>", ["<li>a</li>", "<li>b</li>"], "</ul>")
    assert fit([section], 1000, where="elsewhere") == "<ul><li>a</li><li>b</li></ul>"


@given(title=ANY_TEXT.filter(bool), message=ANY_TEXT, file=ANY_TEXT, line=st.integers(0, 9999))
def test_an_annotation_is_one_line_and_reads_back(title: str, message: str, file: str, line: int) -> None:
    text = str(Annotation("error", title, message, file, line))
    assert "\n" not in text
    assert "\r" not in text
    level, properties, said = read_command(text)
    assert (level, said) == ("error", message)
    expected = {"title": title, "file": file, "line": str(line) if line else ""}
    assert properties == {name: value for name, value in expected.items() if value}


def test_no_more_annotations_than_github_shows_and_the_last_counts_the_rest() -> None:
    many = [Annotation("error", f"e{n}", "") for n in range(5_000)]
    few = [Annotation("warning", f"w{n}", "") for n in range(10)]
    kept = shown([*many, *few], where="see the summary")
    assert Counter(one.level for one in kept) == {"error": 10, "warning": 10}
    assert kept[:9] == many[:9]
    assert (kept[9].title, kept[9].message) == ("4,991 more of this kind", "see the summary")
    assert kept[10:] == few


@given(ANY_TEXT)
def test_no_line_of_inert_text_is_a_command(text: str) -> None:
    safe = inert(text)
    assert "##[" not in safe
    assert not any(line.strip().startswith("::") for line in re.split(r"[\r\n]", safe))
