"""The pytest plug-in that writes the start and the end of each test to the journal, as they happen.

It is handed one JSON file by `--nightcap-unit`, written by `ci.runner.units`:

    journal, reserve   files that the lines go to (see `lines`)
    stacks             file that stacks go to on STACK_SIGNAL
    unit, suite, attempt   copied into each event
    planned            ids that the plan expects, without parameters
    exclude_marks      marks whose tests are left out, and named in the journal
    only               full ids to run; null runs all

A test whose closest `suite` mark names another suite than the unit's is left out in silence: it is another
unit's. What cannot be collected still gets a result, under the planned ids that it hides.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .lines import Lines
from .stacks import Stacks

MESSAGE_LIMIT = 2000
"""Characters of a failure that go into the journal; the log has the rest."""

_now = time.time  # taken before any test can replace it


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--nightcap-unit", metavar="FILE", default=None, help="what nightcap runs here, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "suite(name, gpus=0, min_sm=None, est=None): the nightly suite of the tests")
    config.addinivalue_line("markers", "budget(seconds): the longest that nightcap lets a test take")
    path = config.getoption("--nightcap-unit")
    if path:
        unit = json.loads(Path(path).read_text(encoding="utf-8"))
        config.pluginmanager.register(Recorder(unit, worker=hasattr(config, "workerinput")), "nightcap-recorder")


def suites_of(item: pytest.Item) -> set[object]:
    """The suites that the closest level with a `suite` marker names: function, class or module."""
    marked = list(item.iter_markers_with_node("suite"))
    closest = [mark for node, mark in marked if node is marked[0][0]]
    return {mark.args[0] if mark.args else mark.kwargs.get("name") for mark in closest}


class Recorder:
    """Selects the unit's tests and writes their events.

    Under pytest-xdist, workers select and the controller writes.
    """

    def __init__(self, unit: dict[str, Any], *, worker: bool) -> None:
        self._unit = unit
        self._same = {key: unit[key] for key in ("unit", "suite", "attempt")}
        self._only = None if unit["only"] is None else frozenset(unit["only"])
        self._pid = None if worker else os.getpid()
        self._lines = Lines(Path(unit["journal"]), Path(unit["reserve"]))
        self._uncollected: list[pytest.CollectReport] = []
        self._excluded: list[str] = []
        self._reports: dict[str, list[pytest.TestReport]] = {}
        self._stacks = Stacks(Path(unit["stacks"]))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        kept = [item for item in items if self._selects(item)]
        left = set(items) - set(kept)
        if left:
            config.hook.pytest_deselected(items=[item for item in items if item in left])
            items[:] = kept

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.outcome != "passed":
            self._uncollected.append(report)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if not hasattr(session.config.option, "dist") or session.config.option.dist == "no":
            self._collected([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        if node.gateway.id == "gw0":  # every worker collects the same
            self._collected(ids)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._reports[nodeid] = []
        self._write("test_started", test=nodeid)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Hold a test to its own budget, set-up and teardown included."""
        budget = item.get_closest_marker("budget")
        if budget is None:
            return (yield)
        self._stacks.end_after(float(budget.args[0]))
        try:
            return (yield)
        finally:
            self._stacks.go_on()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.setdefault(report.nodeid, []).append(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        reports = self._reports.pop(nodeid, [])
        outcome, message = result(reports)
        self._finished(nodeid, outcome, sum(report.duration for report in reports), message)

    def _selects(self, item: pytest.Item) -> bool:
        # A planned id stands for all its parameters.
        if self._only is not None and not self._only & {item.nodeid, item.nodeid.partition("[")[0]}:
            return False
        suites = suites_of(item)
        if suites and self._unit["suite"] not in suites:
            return False
        if any(item.get_closest_marker(mark) for mark in self._unit["exclude_marks"]):
            self._excluded.append(item.nodeid)
            return False
        return True

    def _collected(self, ids: list[str]) -> None:
        self._write("collected", tests=ids, deselected=self._excluded)
        for report in self._uncollected:
            outcome = "skipped" if report.outcome == "skipped" else "failed"
            message = shorten(skip_reason(report) if outcome == "skipped" else f"not collected: {report.longreprtext}")
            for test in self._hidden_by(report.nodeid):
                self._finished(test, outcome, 0.0, message)

    def _hidden_by(self, collector: str) -> Iterator[str]:
        below = [test for test in self._unit["planned"] if test == collector or test.startswith(f"{collector}::")]
        yield from below or [collector]

    def _finished(self, test: str, outcome: str, seconds: float, message: str) -> None:
        self._write("test_finished", test=test, outcome=outcome, seconds=seconds, message=message)

    def _write(self, event: str, **fields: Any) -> None:
        # Neither an xdist worker nor a fork of a test that went on into pytest: a result is written once.
        if os.getpid() == self._pid:
            content = {"event": event, "at": _now(), **self._same, **fields}
            self._lines.append(json.dumps(content, ensure_ascii=False) + "\n")


def result(reports: list[pytest.TestReport]) -> tuple[str, str]:
    """(outcome, message) of one test from the reports of its phases.

    An expected failure counts as skipped.
    """
    failed = [report for report in reports if report.failed]
    if failed:
        return "failed", shorten("; ".join(f"{report.when}: {failure(report)}" for report in failed))
    # A subtest that skips itself (its report has a context) does not skip the test.
    skipped = [report for report in reports if report.skipped and not hasattr(report, "context")]
    if skipped:
        return "skipped", shorten(skip_reason(skipped[0]))
    reruns = sum(str(report.outcome) == "rerun" for report in reports)
    unexpected = next((report.wasxfail for report in reports if hasattr(report, "wasxfail")), None)
    if reruns:
        return "passed", f"passed after {reruns} reruns inside pytest"
    return "passed", "" if unexpected is None else shorten(f"passed though marked xfail: {unexpected}")


def failure(report: pytest.TestReport) -> str:
    """What went wrong, such as `AssertionError: ...`, or the whole text where there is no such line."""
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message) if crash else report.longreprtext


def skip_reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why a test was skipped, or what its xfail mark said."""
    expected = getattr(report, "wasxfail", None)
    if expected is not None:
        return f"xfail: {expected}"
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    return report.longreprtext


def shorten(text: str) -> str:
    """The text within MESSAGE_LIMIT: its beginning, and its end, where a traceback says what happened."""
    text = text.strip()
    if len(text) <= MESSAGE_LIMIT:
        return text
    half = MESSAGE_LIMIT // 2
    return f"{text[:half]} [...] {text[-half:]}"
