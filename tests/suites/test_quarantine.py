"""Tests in quarantine: what the file may hold, which tests an entry means, and that no entry stays for ever."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.spec.problems import SpecError
from ci.suites.catalogue import catalogue
from ci.suites.discover import discover
from ci.suites.quarantine import Quarantine, concerns, holds, load, unmatched

TODAY = date(2026, 12, 1)
ENTRY = """\
  - test: tests/test_a.py::test_b
    reason: races
    issue: my-org/my-engine#1
    owner: "@somebody"
    expires: 2026-12-01
"""


def loaded(root: Path, text: str) -> Quarantine:
    (root / "workflows").mkdir(exist_ok=True)
    (root / "workflows/quarantine.yml").write_text(text)
    return load(root, today=TODAY)


def problems(root: Path, text: str) -> str:
    with pytest.raises(SpecError) as error:
        loaded(root, text)
    return "\n".join(map(str, error.value.problems))


def test_no_file_is_no_quarantine(tmp_path: Path) -> None:
    assert load(tmp_path, today=TODAY).entries == ()


def test_an_entry_holds_until_the_end_of_its_last_day(tmp_path: Path) -> None:
    (entry,) = loaded(tmp_path, f"tests:\n{ENTRY}").entries
    assert entry.test == "tests/test_a.py::test_b"
    assert entry.why == "races (my-org/my-engine#1, @somebody, until 2026-12-01)"
    said = problems(tmp_path, f"tests:\n{ENTRY.replace('12-01', '11-30')}")
    assert said.startswith(
        "workflows/quarantine.yml:6: tests[0].expires: the quarantine of 'tests/test_a.py::test_b' exp"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"tests:\n{ENTRY}{ENTRY}", "workflows/quarantine.yml:7: tests[1].test: stands in line 2 already"),
        (f"tests:\n{ENTRY}".replace("owner", "owners"), "did you mean 'owner'"),
        ("tests:\n  - test: a\n", "workflows/quarantine.yml:2: tests[0]"),
        (f"tests:\n{ENTRY.replace('races', '')}", "workflows/quarantine.yml:3: tests[0].reason: has no value"),
        (f"tests:\n{ENTRY.replace('2026-12-01', 'never')}", "workflows/quarantine.yml:6: tests[0].expires"),
        ("tests: all\n", "workflows/quarantine.yml:1: tests"),
        ("- test: a\n", "workflows/quarantine.yml:1"),
        ("tests: [\n", "workflows/quarantine.yml:"),
        ("", "the file is empty"),
    ],
)
def test_a_wrong_file_is_told_by_line(tmp_path: Path, text: str, said: str) -> None:
    assert said in problems(tmp_path, text)


@pytest.mark.parametrize(
    ("pattern", "test", "means"),
    [
        ("t.py::a", "t.py::a", True),
        ("t.py::a", "t.py::a[1]", True),
        ("t.py::a", "t.py::ab", False),
        ("t.py::a[1]", "t.py::a[1]", True),
        ("t.py::a[1]", "t.py::a[2]", False),
        ("t.py::a[1]", "t.py::a", False),
        ("t.py::a[b=c-d, e]", "t.py::a[b=c-d, e]", True),
        ("t.py::a[fp8*]", "t.py::a[fp8-1]", True),
        ("t.py::a[fp8*]", "t.py::a[bf16]", False),
        ("t.py::*", "t.py::TestX::b[1]", True),
        ("t.py::te?t", "t.py::test[1]", True),
        ("t.py", "t.py::a", False),
        ("t.py", "t.py", True),
    ],
)
def test_an_entry_means_a_test_with_these_or_all_parameters(pattern: str, test: str, means: bool) -> None:
    assert holds(pattern, "t.py", test) == means


@given(st.text(min_size=1), st.text())
def test_any_id_in_quarantine_means_itself(name: str, parameters: str) -> None:
    for test in (f"t.py::{name}", f"t.py::{name}[{parameters}]"):
        assert holds(test, "t.py", test)
        assert concerns(test, "t.py", [], dynamic=True)


def test_an_entry_that_means_no_test_is_found_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    mark = 'import pytest\npytestmark = pytest.mark.suite("s")\n'
    (tmp_path / "tests/test_a.py").write_text(f"{mark}def test_b(): pass\n")
    (tmp_path / "tests/test_dynamic.py").write_text(f"{mark}from elsewhere import TestShared\n")
    found = catalogue({}, discover(tmp_path), tmp_path)

    def strangers(test: str) -> list[str]:
        quarantine = loaded(tmp_path, f"tests:\n{ENTRY.replace('tests/test_a.py::test_b', test)}")
        return [str(problem) for problem in unmatched(quarantine, [found])]

    for known in ("test_a.py::test_b", "test_a.py::test_b[1]", "test_a.py::test_b[fp8*]", "*::test_?"):
        assert strangers(f"tests/{known}") == []
    assert strangers("tests/test_dynamic.py::TestShared::test_x") == []
    assert strangers("tests/test_a.py::test_bb") == [
        "workflows/quarantine.yml:2: tests[0].test: 'tests/test_a.py::test_bb' is no test of any suite\n"
        "    fix: did you mean 'tests/test_a.py::test_b', 'tests/test_dynamic.py'?"
    ]
