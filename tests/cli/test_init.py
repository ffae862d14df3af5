"""`nightcap init` fits the tests that are there, and what it writes passes every check."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ci.gha.yaml_reader import read
from tests.cli.conftest import Nightcap

PLAIN = "def test_one():\n    assert 1 + 1 == 2\n"
MARKED = "import pytest\n\npytestmark = pytest.mark.suite({})\n\n\n" + PLAIN


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty git repository with a remote, as the working directory."""
    root = tmp_path / "engine"
    root.mkdir()
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    origin = ["git", "-C", str(root), "remote", "add", "origin", "git@github.com:my-org/my.engine.git"]
    subprocess.run(origin, check=True)
    monkeypatch.chdir(root)
    return root


def spec(root: Path) -> dict[str, object]:
    value = read((root / "workflows/nightly.yml").read_text(), "nightly.yml").value
    assert isinstance(value, dict)
    return value


def put(root: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


@pytest.mark.parametrize(
    ("files", "suites", "declared", "planned"),
    [
        pytest.param({}, ["smoke"], None, 1, id="nothing"),
        pytest.param({"tests/test_a.py": PLAIN}, ["smoke"], "tests/test_*.py", 1, id="plain"),
        pytest.param({"tests/a_test.py": PLAIN}, ["smoke"], "tests/*_test.py", 1, id="named-the-other-way"),
        pytest.param({"test_a.py": PLAIN}, ["smoke"], "test_*.py", 1, id="beside-the-code"),
        pytest.param({"tests [x] ü/test_a.py": PLAIN}, ["smoke"], "tests [[]x] ü/test_*.py", 1, id="odd-folder"),
        pytest.param(
            {"a/test_a.py": PLAIN, "b/test_b.py": PLAIN, "b/test_c.py": PLAIN},
            ["smoke"], "b/test_*.py", 2, id="the-fullest-folder",
        ),
        pytest.param(
            {"tests/test_a.py": MARKED.format('"fast"'), "tests/test_b.py": PLAIN}, ["fast"], None, 1, id="marked"
        ),
        pytest.param({"tests/test_a.py": MARKED.format('"big", gpus=8')}, ["smoke"], None, 1, id="only-for-gpus"),
    ],
)  # fmt: skip
def test_it_fits_the_tests_and_passes_every_check(
    empty: Path, nightcap: Nightcap, files: dict[str, str], suites: list[str], declared: str | None, planned: int
) -> None:
    put(empty, files)
    assert nightcap("init").code == 0
    written = spec(empty)
    assert written["jobs"]["smoke"]["suites"] == suites  # type: ignore[index]
    assert written.get("suites") == (declared and {"smoke": {"files": [declared]}})
    assert nightcap("generate").code == 0
    assert nightcap("generate", "--check").code == 0
    plan = nightcap("plan")
    assert plan.code == 0
    assert plan.out.splitlines()[2].split()[-2] == str(planned), plan.out


def test_suites_that_need_gpus_are_named_and_left_out(empty: Path, nightcap: Nightcap) -> None:
    put(empty, {"tests/test_a.py": MARKED.format('"big", gpus=8')})
    assert "left out: big need GPUs" in nightcap("init").out


def test_the_repository_is_that_of_the_remote_or_of_the_option(empty: Path, nightcap: Nightcap) -> None:
    nightcap("init")
    assert "repository: my-org/my.engine\n" in (empty / "workflows/runners.yml").read_text()
    for path in (empty / "workflows").iterdir():
        path.unlink()
    (empty / "tests/test_smoke.py").unlink()
    assert nightcap("init", "--repository", "other/name").code == 0
    assert "repository: other/name\n" in (empty / "workflows/runners.yml").read_text()


@pytest.mark.parametrize("name", ["engine", "a b/c", "a/b\nname: x", "https://github.com/a/b", ""])
def test_a_wrong_repository_writes_nothing(tmp_path: Path, nightcap: Nightcap, name: str) -> None:
    found = nightcap("-C", str(tmp_path), "init", "--repository", name)
    assert found.code == 2
    assert "--repository" in found.err
    assert list(tmp_path.iterdir()) == []


def test_without_a_remote_the_option_is_asked_for(tmp_path: Path, nightcap: Nightcap) -> None:
    found = nightcap("-C", str(tmp_path), "init")
    assert (found.code, list(tmp_path.iterdir())) == (2, [])
    assert "pass --repository OWNER/NAME" in found.err


def test_nothing_that_exists_is_overwritten(empty: Path, nightcap: Nightcap) -> None:
    put(empty, {"workflows/runners.yml": "mine\n"})
    found = nightcap("init")
    assert found.code == 2
    assert "exists already, nothing written: workflows/runners.yml" in found.err
    assert [path.name for path in (empty / "workflows").iterdir()] == ["runners.yml"]
    assert (empty / "workflows/runners.yml").read_text() == "mine\n"


@pytest.mark.parametrize("name", ["workflows", "tests"])
def test_a_file_where_a_folder_must_be_is_named_before_anything_is_written(
    empty: Path, nightcap: Nightcap, name: str
) -> None:
    put(empty, {name: "mine\n"})
    found = nightcap("init")
    assert (found.code, found.err) == (2, f"no folder, nothing written: {name}\n")
    assert sorted(path.name for path in empty.iterdir()) == [".git", name]
