"""A journal is read as far as it was written: whatever prefix a dying machine left."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ci.journal import (
    Journal,
    Note,
    ShardFinished,
    ShardStarted,
    TestFinished,
    UnitStarted,
    line,
    parse,
    read,
    seconds_until_death,
)

HEAD = ShardStarted(at=1.0, workflow="n", job="a", shard="1-of-1", run_attempt=1, plan_hash="h", host="x")
EVENTS = (
    HEAD,
    UnitStarted(at=2.0, unit="test_a.py", suite="s", attempt=1),
    TestFinished(
        at=3.0, unit="test_a.py", suite="s", attempt=1, test="test_a.py::t", outcome="failed", seconds=0.1,
        message="line one\nline two \u2028 ü🎉 \x00",
    ),
    ShardFinished(at=4.0, exit_code=1),
)  # fmt: skip
TEXT = "".join(map(line, EVENTS))


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text(TEXT, encoding="utf-8")
    assert read(path).events == EVENTS
    assert read(path).head == HEAD


@given(st.integers(0, len(TEXT.encode())))
def test_any_prefix_holds_every_event_that_was_whole(size: int) -> None:
    text = TEXT.encode()[:size].decode(errors="replace")
    journal = parse(text.split("\n"), "x")
    whole = text.count("\n")
    assert journal.events[:whole] == EVENTS[:whole]
    assert journal.unreadable == (
        len(journal.events) == whole and not text.endswith("\n") and bool(text.split("\n")[-1])
    )


@settings(max_examples=200)
@given(st.lists(st.text(max_size=60).filter(lambda text: "\n" not in text), max_size=6))
def test_foreign_lines_are_counted_and_nothing_raises(lines: list[str]) -> None:
    journal = parse([*lines, line(HEAD)], "x")
    assert journal.events == (HEAD,)
    assert journal.unreadable == sum(bool(text.strip()) for text in lines)


def test_fields_of_a_newer_writer_are_ignored() -> None:
    newer = line(Note(at=1.0, level="info", message="hello")).replace('"level"', '"colour": 3, "level"')
    assert parse([newer], "x") == Journal("x", (Note(at=1.0, level="info", message="hello"),), 0)


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_is_one_line(event: TestFinished) -> None:
    assert line(event).count("\n") == 1


@given(st.floats(0, 2e9), st.floats(0, 2e9), st.floats(0, 1e5))
def test_a_test_never_took_longer_than_its_process_whatever_the_clock_did(
    test: float, process: float, took: float
) -> None:
    assert 0 <= seconds_until_death(test, process, took) <= took


def test_the_time_until_death_is_that_from_the_start_of_the_test() -> None:
    assert seconds_until_death(test_started=1_010.0, process_started=1_000.0, process_seconds=40.0) == 30.0
