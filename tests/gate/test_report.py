"""How a night is shown: to a person on a console, on GitHub's page, to JUnit readers and to machines."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import junitparser
import pytest

from ci.gate import JobResult, Night, judge, junit, load_needs, load_plan, load_results, report
from ci.gate.kinds import KINDS, REPRODUCIBLE
from ci.gha.commands import append_summary, summary_room
from ci.gha.limits import SUMMARY_BYTES
from ci.journal import Journal, line
from ci.plan import Plan

MakePlan = Callable[..., Plan]
Record = Callable[..., Journal]
F, G = "tests/test_decode.py", "tests/test_prefill.py"
A, B, C = f"{F}::test_a", f"{F}::test_b[fp8, (1, 2)]", f"{G}::test_c"


@pytest.fixture
def night(make_plan: MakePlan, record: Record) -> Night:
    """A failed test, a flaky one, a crashed file, a missing shard, and a job that nobody selected."""
    plan = make_plan({"mla": [{F: [A, f"{F}::test_b"]}, {G: [C]}], "perf": "not-selected"})
    attempts = [{"results": {A: "failed", B: "failed"}}, {"results": {A: "passed"}}]
    journal = record(plan, "mla", "1-of-2", {F: attempts}, exit_code=1)
    return judge(plan, {"plan": ok(), "mla": ok("failure"), "perf": ok("skipped")}, [journal])


def ok(result: str = "success") -> JobResult:
    return JobResult(result=result)


RED_GATE = """\
nightly: event schedule, filter all, plan {hash}

JOB   VERDICT       SHARDS OK  TESTS                     WHY
mla   failed        0/2        1 failed, 1 lost, 1 flaky  1 failed, 1 missing-shard
perf  not-selected  -          -                         not-selected: all

1 warning

  flaky  mla 1-of-2 tests/test_decode.py::test_a
      failed before it passed
      | failed: expected 1, got 2
      do: find out why it failed before it passed; a retry hides a race
      $ nightcap run mla --shard 1-of-2 --only tests/test_decode.py::test_a

2 problems, the worst last

  missing-shard  mla 2-of-2 tests/test_prefill.py::test_c
      no journal; 1 test without a result
      do: read the log of the job, then rerun failed jobs: no journal came from this shard

  failed  mla 1-of-2 tests/test_decode.py::test_b[fp8, (1, 2)]
      failed
      | failed: expected 1, got 2
      do: run it alone, then with its file
      $ nightcap run mla --shard 1-of-2 --only 'tests/test_decode.py::test_b[fp8, (1, 2)]'

FAILED: 1 failed, 1 lost, 1 flaky of 3 tests; 1 of 1 jobs not green; 2 problems
exit code 1
"""


def test_the_console_shows_jobs_then_problems_with_the_worst_last(night: Night) -> None:
    expected = RED_GATE.format(hash=night.plan_hash)
    assert re.sub(" +", " ", report.text(night)) == re.sub(" +", " ", expected)


def test_a_green_night_says_so_in_its_last_lines(make_plan: MakePlan, record: Record) -> None:
    plan = make_plan({"mla": [{F: [A]}]})
    night = judge(plan, None, [record(plan, "mla", "1-of-1", {F: [{"results": {A: "passed"}}]})])
    assert report.text(night).endswith("\nPASSED: 1 passed of 1 test; 0 of 1 jobs not green; 0 problems\nexit code 0\n")
    assert report.annotated(night) == []


def test_json_reads_back(night: Night) -> None:
    assert Night.model_validate_json(report.json(night)) == night


def test_every_kind_that_can_be_reproduced_is_a_kind() -> None:
    assert KINDS.keys() >= REPRODUCIBLE


# --- A night of many failures ----------------------------------------------------------------------------


class Tags(HTMLParser):
    """Counts what is open at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def stormy(make_plan: MakePlan, record: Record) -> Night:
    """5,000 failures, each with a name and a message of emoji and markup."""
    tests = [f"{F}::test_{n}[\U0001f525|<b>&`*{n}]" for n in range(5_000)]
    plan = make_plan({"mla": [{F: tests}]})
    journal = record(plan, "mla", "1-of-1", {F: [{"results": dict.fromkeys(tests, "failed")}]}, exit_code=1)
    message = "\U0001f4a5 </details>\n\n# no heading\n| no | table |\n" * 20
    events = [
        event.model_copy(update={"message": message}) if event.event == "test_finished" else event
        for event in journal.events
    ]
    return judge(plan, None, [Journal(journal.source, tuple(events))])


@pytest.mark.parametrize("written", [0, 900 * 1024, SUMMARY_BYTES - 100, SUMMARY_BYTES])
def test_5000_failures_fit_into_what_the_summary_has_left(stormy: Night, tmp_path: Path, written: int) -> None:
    file = tmp_path / "summary"
    file.write_bytes(b"x" * written)
    text = report.markdown(stormy, summary_room(file))
    append_summary(file, text)
    assert written <= file.stat().st_size <= SUMMARY_BYTES
    file.read_bytes().decode("utf-8", errors="strict")
    tags = Tags()
    tags.feed(text)
    tags.close()
    assert tags.open == []
    blocks = re.findall("<details>.*?</details>", text, re.S)
    assert not any("\n\n" in block for block in blocks), "a blank line ends raw HTML"
    if written <= 900 * 1024:
        assert file.stat().st_size > SUMMARY_BYTES - 8_192, "what is left is used"
        shown = text.count("<details>")
        assert f"*{5_000 - shown:,} more problems: all of it is in verdict.json.*" in text


def test_nothing_that_a_test_says_is_markup(stormy: Night) -> None:
    text = report.markdown(stormy)
    assert not re.search(r"^(# no heading|\| no)", text, re.M)
    assert "<b>&" not in text
    tables = [row for row in text.splitlines() if row.startswith("| ")]
    assert {row.count(" | ") for row in tables} == {4}


def test_the_console_shows_the_worst_hundred_and_counts_the_rest(stormy: Night) -> None:
    text = report.text(stormy)
    assert text.count("\n      $ nightcap run") == 100
    assert "4,900 lesser ones are not shown" in text


def test_annotations_stay_within_what_github_shows(stormy: Night) -> None:
    assert Counter(one.level for one in report.annotated(stormy)) == {"error": 10}


# --- JUnit -----------------------------------------------------------------------------------------------

SCHEMA = {
    "testsuites": ({"name", "tests", "failures", "errors", "skipped", "time"}, {"testsuite"}),
    "testsuite": ({"name", "tests", "failures", "errors", "skipped", "time"}, {"testcase"}),
    "testcase": ({"classname", "name", "time"}, {"failure", "error", "skipped", "system-out"}),
    "failure": ({"message", "type"}, set()),
    "error": ({"message", "type"}, set()),
    "skipped": ({"message"}, set()),
    "system-out": (set(), set()),
}
"""Elements, with attributes and children, that Jenkins's schema, Ant's reports and GitLab's reader share."""


@pytest.mark.parametrize("which", ["night", "stormy"])
def test_junit_has_only_what_common_readers_know(which: str, request: pytest.FixtureRequest) -> None:
    root = ET.fromstring(junit.xml(request.getfixturevalue(which)))
    for element in root.iter():
        attributes, children = SCHEMA[element.tag]
        assert set(element.attrib) == attributes
        assert {child.tag for child in element} <= children
        assert element.tag != "testcase" or len(element) <= 1


def test_junit_tells_every_test_once_and_every_problem_that_is_no_tests(night: Night, tmp_path: Path) -> None:
    file = tmp_path / "junit.xml"
    file.write_text(junit.xml(night), encoding="utf-8")
    read = junitparser.JUnitXml.fromfile(str(file))
    cases = {
        f"{case.classname}::{case.name}": [type(one).__name__ for one in case.result]
        for suite in read
        for case in suite
    }
    assert cases == {
        A: [],
        B: ["Failure"],
        C: ["Error"],
        "night::missing-shard mla 2-of-2": ["Error"],
    }
    assert (read.tests, read.failures, read.errors, read.skipped) == (4, 1, 2, 0)


def test_a_failed_plan_is_no_green_junit() -> None:
    root = ET.fromstring(junit.xml(judge(None, {"plan": ok("failure")}, [])))
    assert [case.get("name") for case in root.iter("testcase")] == ["plan-failed plan"]


def test_what_xml_cannot_hold_is_replaced(make_plan: MakePlan, record: Record) -> None:
    odd = f"{F}::test_x[\x00\x1b[31m\ud800]"
    plan = make_plan({"mla": [{F: [f"{F}::test_x"]}]})
    night = judge(plan, None, [record(plan, "mla", "1-of-1", {F: [{"results": {odd: "passed"}}]})])
    assert ET.fromstring(junit.xml(night)).find(".//testcase").get("name") == "test_x[\ufffd\ufffd[31m\ufffd]"


# --- Reading what a night left ---------------------------------------------------------------------------


def test_results_are_found_wherever_they_lie_below_the_folder(
    make_plan: MakePlan, record: Record, tmp_path: Path
) -> None:
    plan = make_plan({"mla": [{F: [A]}, {G: [C]}]})
    journals = [
        record(plan, "mla", "1-of-2", {F: [{"results": {A: "passed"}}]}),
        record(plan, "mla", "2-of-2", {G: [{"results": {C: "passed"}}]}),
    ]
    for journal in journals:
        file = tmp_path / "deep" / journal.source
        file.parent.mkdir(parents=True)
        file.write_text("".join(map(line, journal.events)), encoding="utf-8")
    (tmp_path / "plan.json").write_text(plan.model_dump_json(), encoding="utf-8")
    assert load_plan(tmp_path) == load_plan(tmp_path / "plan.json") == plan
    read = load_results(tmp_path)
    assert [journal.events for journal in read] == [journal.events for journal in journals]
    assert judge(load_plan(tmp_path), None, read).verdict == "passed"


def test_what_is_no_plan_is_an_error_of_one_line(make_plan: MakePlan, tmp_path: Path) -> None:
    assert load_plan(tmp_path) is None
    assert load_plan(tmp_path / "plan.json") is None
    (tmp_path / "plan.json").write_text('{"jobs": []}')
    with pytest.raises(ValueError, match=r"plan\.json is no plan of this version: workflow: ") as told:
        load_plan(tmp_path)
    assert "\n" not in str(told.value)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "plan.json").write_text("{}")
    with pytest.raises(ValueError, match="different plans below"):
        load_plan(tmp_path)
    with pytest.raises(NotADirectoryError):
        load_results(tmp_path / "nowhere")


def test_needs_are_read_as_github_and_act_write_them() -> None:
    needs = load_needs(
        '{"plan": {"result": "success", "outputs": {"jobs": "[]"}}, "a": {"result": "skipped", "outputs": null}}'
    )
    assert {key: job.result for key, job in needs.items()} == {"plan": "success", "a": "skipped"}
    with pytest.raises(ValueError, match="not the JSON of `needs`"):
        load_needs("[]")
