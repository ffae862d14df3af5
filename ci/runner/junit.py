"""JUnit: reading what an external command reports, writing what a journal holds.

The dialect is the one that common reporters agree on: `testsuites/testsuite/testcase` with `failure`, `error`
or `skipped` below. What XML cannot hold (control characters, lone surrogates) is replaced.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from pathlib import Path

from ci.journal import AnyEvent, Outcome, TestFinished
from ci.runner.judge import Result

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ELEMENT = {"failed": "failure", "timed-out": "error", "crashed": "error", "skipped": "skipped"}


def read(path: Path) -> tuple[Result, ...] | None:
    """The results in a JUnit file, a test named twice by its worst; None when it is missing or no JUnit."""
    try:
        root = ET.parse(path).getroot()
    except (OSError, ET.ParseError):
        return None
    if root.tag not in ("testsuites", "testsuite"):
        return None
    results: dict[str, Result] = {}
    for case in root.iter("testcase"):
        result = _result(case)
        known = results.get(result.test)
        if known is None or known.outcome != "failed":
            results[result.test] = result
    return tuple(results.values())


def write(events: Iterable[AnyEvent], path: Path) -> None:
    """Write the last result of each test as JUnit, one testsuite for each suite of the journal."""
    last: dict[tuple[str, str], TestFinished] = {}
    for event in events:
        if isinstance(event, TestFinished):
            last[event.suite, event.test] = event
    root = ET.Element("testsuites", _counts(list(last.values())))
    for suite in sorted({event.suite for event in last.values()}):
        members = [event for event in last.values() if event.suite == suite]
        element = ET.SubElement(root, "testsuite", {"name": suite, **_counts(members)})
        for event in members:
            element.append(_case(event))
    ET.indent(root)
    ET.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def _result(case: ET.Element) -> Result:
    name, group = case.get("name", ""), case.get("file") or case.get("classname", "")
    outcome: Outcome = "passed"
    message = ""
    for tag, meaning in (("skipped", "skipped"), ("error", "failed"), ("failure", "failed")):
        found = case.find(tag)
        if found is not None:
            outcome = "skipped" if meaning == "skipped" else "failed"
            message = found.get("message") or (found.text or "").strip()
    return Result(f"{group}::{name}" if group else name, outcome, message[:2000], _seconds(case.get("time", "")))


def _seconds(text: str) -> float:
    try:
        return max(0.0, float(text.replace(",", "")))  # some writers put thousands separators
    except ValueError:
        return 0.0


def _case(event: TestFinished) -> ET.Element:
    group, _, name = event.test.rpartition("::")
    case = ET.Element("testcase", {"classname": _clean(group), "name": _clean(name), "time": f"{event.seconds:.3f}"})
    if event.outcome in _ELEMENT:
        kind = {"message": _clean(event.message)}
        if event.outcome != "skipped":
            kind["type"] = event.outcome
        ET.SubElement(case, _ELEMENT[event.outcome], kind)
    return case


def _counts(events: list[TestFinished]) -> dict[str, str]:
    def of(*outcomes: Outcome) -> str:
        return str(sum(event.outcome in outcomes for event in events))

    return {
        "tests": str(len(events)),
        "failures": of("failed"),
        "errors": of("timed-out", "crashed"),
        "skipped": of("skipped"),
        "time": f"{sum(event.seconds for event in events):.3f}",
    }


def _clean(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
