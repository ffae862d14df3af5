"""Writing generated files: only what is marked as made is touched."""

from __future__ import annotations

import pytest

from ci.generate.files import apply, changes
from ci.generate.render import render
from ci.spec.problems import SpecError
from tests.generate.conftest import Repository


def test_a_second_run_changes_nothing(repository: Repository) -> None:
    specs, root = repository()
    apply(root, changes(root, render(specs, root)))
    assert {change.status for change in changes(root, render(specs, root))} == {"unchanged"}


def test_a_stale_file_is_shown_as_a_unified_diff(repository: Repository) -> None:
    specs, root = repository()
    apply(root, changes(root, render(specs, root)))
    path = root / ".github/workflows/nightly.yml"
    path.write_text(path.read_text().replace("timeout-minutes: 120", "timeout-minutes: 90"))
    stale = [change for change in changes(root, render(specs, root)) if change.status != "unchanged"]
    assert [change.path for change in stale] == [".github/workflows/nightly.yml"]
    assert "-    timeout-minutes: 90\n+    timeout-minutes: 120\n" in stale[0].diff()


def test_a_line_end_of_another_system_is_stale_too(repository: Repository) -> None:
    specs, root = repository()
    apply(root, changes(root, render(specs, root)))
    path = root / ".github/workflows/nightly.yml"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert [change.path for change in changes(root, render(specs, root)) if change.status == "written"]


def test_a_workflow_that_no_spec_makes_any_more_is_removed(repository: Repository) -> None:
    specs, root = repository()
    apply(root, changes(root, render(specs, root)))
    made, written = root / ".github/workflows/old.yml", root / ".github/workflows/by-hand.yml"
    made.write_text((root / ".github/workflows/nightly.yml").read_text())
    written.write_text("name: By hand\n")
    apply(root, changes(root, render(specs, root)))
    assert not made.exists()
    assert written.exists()


def test_a_hand_written_file_is_never_overwritten(repository: Repository) -> None:
    specs, root = repository()
    path = root / ".github/workflows/nightly.yml"
    path.parent.mkdir(parents=True)
    path.write_text("name: By hand\n")
    with pytest.raises(SpecError, match="would be overwritten, but it was not made by nightcap"):
        changes(root, render(specs, root))
