"""A local run works on a copy of what git would see; running it under act is tested in `tests/act`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ci.local import copy_tree


def git(root: Path, *arguments: str) -> bytes:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    return subprocess.run(["git", "-C", str(root), *identity, *arguments], check=True, capture_output=True).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    (root / "folder").mkdir(parents=True)
    git(root, "init", "-q")
    for name in ("kept", "changed", "deleted", "folder/inner"):
        (root / name).write_text("committed")
    (root / ".gitignore").write_text("ignored\n")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "first")
    return root


def test_the_copy_is_the_tree_with_uncommitted_changes(repository: Path, tmp_path: Path) -> None:
    (repository / "changed").write_text("not committed")
    (repository / "deleted").unlink()
    for name in ("new", "ignored"):
        (repository / name).write_text(name)
    (repository / "link").symlink_to("folder")
    copy = tmp_path / "copy"
    copy_tree(repository, copy)
    assert sorted(git(copy, "ls-files").decode().split()) == [
        ".gitignore", "changed", "folder/inner", "kept", "link", "new",
    ]  # fmt: skip
    assert (copy / "changed").read_text() == "not committed"
    assert (copy / "link/inner").read_text() == "committed"
    assert (copy / "link").is_symlink()
    assert git(copy, "status", "--short") == b""


def test_a_name_that_is_no_utf8_is_copied(repository: Path, tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff name")
    (repository / name).write_text("x")
    copy_tree(repository, tmp_path / "copy")
    assert (tmp_path / "copy" / name).read_text() == "x"


def test_a_tree_outside_of_git_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="is not in a git repository"):
        copy_tree(tmp_path, tmp_path / "copy")
