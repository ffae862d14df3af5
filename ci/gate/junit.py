"""The whole night as one JUnit file, in the dialect that common reporters agree on.

One `testsuite` a shard and suite, in the plan's order. `failed` is a `failure`; `crashed`, `timed-out` and
`lost` are `error`s; `skipped` and `quarantined` are `skipped`; `flaky` passes, with the failure in
`system-out`. Problems that are no test's (a missing shard, a failed plan) are testcases of a suite of their
own, so that no reader shows green.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from itertools import groupby

from ci.gate.night import Finding, JudgedTest, Night, TestVerdict

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ELEMENTS: dict[TestVerdict, str] = {
    "failed": "failure", "crashed": "error", "timed-out": "error", "lost": "error",
    "skipped": "skipped", "quarantined": "skipped",
}  # fmt: skip


def xml(night: Night) -> str:
    """The night as JUnit. What XML cannot hold (control characters, lone surrogates) is replaced."""
    suites = [
        _suite(f"{job} {shard} {suite}".strip(), [_case(test) for test in tests])
        for (job, shard, suite), tests in groupby(night.tests, key=lambda test: (test.job, test.shard, test.suite))
    ]
    of_tests = {(test.job, test.shard, test.test) for test in night.tests if test.verdict in _ELEMENTS}
    others = [one for one in night.problems if not _is_told(one, of_tests)]
    if others:
        suites.append(_suite("night", [_problem(one) for one in others]))
    root = ET.Element("testsuites", {"name": _clean(night.workflow), **_totals(suites)})
    root.extend(suites)
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _is_told(finding: Finding, tests: set[tuple[str, str, str]]) -> bool:
    """True when the testcases of the finding's own tests say it already."""
    return finding.kind in _ELEMENTS and all((finding.job, finding.shard, test) in tests for test in finding.tests)


def _case(test: JudgedTest) -> ET.Element:
    group, _, name = test.test.partition("[")[0].rpartition("::")
    name = test.test[len(group) + 2 :] if group else test.test
    case = _testcase(group or test.suite, name, seconds=test.seconds)
    if element := _ELEMENTS.get(test.verdict):
        _add(case, element, test.verdict, test.message or test.verdict)
    elif test.verdict == "flaky":
        ET.SubElement(case, "system-out").text = _clean(f"flaky: {test.message}")
    return case


def _problem(finding: Finding) -> ET.Element:
    place = " ".join(filter(None, (finding.job, finding.shard, finding.unit)))
    case = _testcase("night", f"{finding.kind} {place}".strip(), seconds=0.0)
    _add(case, "error", finding.kind, "\n".join([finding.message, *finding.tests]))
    return case


def _testcase(group: str, name: str, *, seconds: float) -> ET.Element:
    fields = {"classname": _clean(group), "name": _clean(name), "time": f"{seconds:.3f}"}
    return ET.Element("testcase", fields)


def _add(case: ET.Element, element: str, kind: str, message: str) -> None:
    first = message.split("\n", 1)[0]
    fields = {"message": _clean(first)} | ({} if element == "skipped" else {"type": kind})
    ET.SubElement(case, element, fields).text = _clean(message)


def _suite(name: str, cases: Sequence[ET.Element]) -> ET.Element:
    suite = ET.Element("testsuite", {"name": _clean(name)})
    suite.extend(cases)
    suite.attrib.update(_totals([suite]))
    return suite


def _totals(suites: Sequence[ET.Element]) -> dict[str, str]:
    cases = [case for suite in suites for case in suite]

    def having(element: str) -> str:
        return str(sum(case.find(element) is not None for case in cases))

    return {
        "tests": str(len(cases)),
        "failures": having("failure"),
        "errors": having("error"),
        "skipped": having("skipped"),
        "time": f"{sum(float(case.get('time', '0')) for case in cases):.3f}",
    }


def _clean(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
