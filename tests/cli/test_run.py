"""`nightcap run`: which tests a person means by a shard, a test, an earlier journal, and what a mistake is told."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from ci.journal import Collected, TestFinished, read
from tests.cli.conftest import NIGHTLY, TEST, Nightcap

FILE = "tests/test_kernels.py"
OTHER = "tests/test_other.py"
JOURNAL = "results/journal.jsonl"


@pytest.fixture
def two_shards(engine: Path) -> Path:
    (engine / "workflows/nightly.yml").write_text(NIGHTLY.replace("[kernels]", "[kernels]\n    shards: 2"))
    more = "\nfrom shared import *\n\n@pytest.mark.parametrize('i', [1, 2])\ndef test_sort(i):\n    assert i != 2\n"
    (engine / FILE).write_text(TEST.format("True") + more)
    (engine / "tests/shared.py").write_text("def test_shared():\n    pass\n")
    (engine / OTHER).write_text(TEST.format("True"))
    return engine


def ran(*journals: str) -> list[str]:
    """Full ids in the order in which they ended."""
    events = [event for path in journals for event in read(Path(path)).events]
    return [event.test for event in events if isinstance(event, TestFinished)]


def collected(journals: Sequence[Path]) -> set[str]:
    events = [event for path in journals for event in read(path).events]
    return {event.unit for event in events if isinstance(event, Collected)}


def test_what_a_run_leaves_is_not_seen_by_git(engine: Path, nightcap: Nightcap) -> None:
    subprocess.run(["git", "init", "-q", str(engine)], check=True)
    assert nightcap("run", "kernels").code == 0
    assert (engine / ".nightcap/results/journal.jsonl").is_file()
    status = subprocess.run(["git", "-C", str(engine), "status", "--short"], check=True, capture_output=True, text=True)
    assert "workflows/" in status.stdout
    assert ".nightcap" not in status.stdout


def test_without_a_shard_all_of_them_run_one_after_the_other(two_shards: Path, nightcap: Nightcap) -> None:
    assert nightcap("run", "kernels", "--results", "results").code == 1
    assert collected([Path(f"results/{shard}-of-2/journal.jsonl") for shard in (1, 2)]) == {FILE, OTHER}


@pytest.mark.parametrize("failing", [FILE, OTHER])
def test_of_several_shards_the_worst_decides_the_exit_code(two_shards: Path, nightcap: Nightcap, failing: str) -> None:
    for path in (FILE, OTHER):
        skips = TEST.format("True").replace("def", "@pytest.mark.skip(reason='no GPU')\ndef")
        (two_shards / path).write_text(TEST.format("False") if path == failing else skips)
    assert nightcap("run", "kernels").code == 1


def test_files_that_the_job_keeps_lie_beside_the_journal(engine: Path, nightcap: Nightcap) -> None:
    spec = NIGHTLY.replace("    tags: [quick]\n", '    tags: [quick]\n    artifacts: ["logs/**/*.log", "nothing*"]\n')
    (engine / "workflows/nightly.yml").write_text(spec)
    (engine / "logs/deep").mkdir(parents=True)
    (engine / "logs/deep/server.log").write_text("started")
    (engine / "logs/other.txt").write_text("x")
    assert nightcap("run", "kernels", "--results", "results").code == 0
    kept = [path for path in (engine / "results/artifacts").rglob("*") if path.is_file()]
    assert [str(path.relative_to(engine)) for path in kept] == ["results/artifacts/logs/deep/server.log"]
    assert kept[0].read_text() == "started"


@pytest.mark.parametrize("text", ["1/2", "1-of-2"])
def test_one_shard_runs_alone(two_shards: Path, nightcap: Nightcap, text: str) -> None:
    nightcap("run", "kernels", "--results", "results", "--shard", text)
    assert len(collected([Path(JOURNAL)])) == 1


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        ([f"{FILE}::test_topk"], [f"{FILE}::test_topk"]),
        ([f"{FILE}::test_sort[1]"], [f"{FILE}::test_sort[1]"]),
        ([f"{FILE}::test_sort"], [f"{FILE}::test_sort[1]", f"{FILE}::test_sort[2]"]),
        ([f"{FILE}::test_sort[1]", f"{FILE}::test_topk"], [f"{FILE}::test_topk", f"{FILE}::test_sort[1]"]),
        ([f"{FILE}::test_shared"], [f"{FILE}::test_shared"]),
        ([OTHER], [f"{OTHER}::test_topk"]),
        ([OTHER, f"{OTHER}::test_topk"], [f"{OTHER}::test_topk"]),
    ],
    ids=["test", "parameters", "all parameters", "two tests", "not in the syntax tree", "file", "file and test"],
)
def test_only_what_is_named_runs(two_shards: Path, nightcap: Nightcap, only: list[str], expected: list[str]) -> None:
    options = [word for one in only for word in ("--only", one)]
    nightcap("run", "kernels", "--results", "results", *options)
    assert ran(JOURNAL) == expected


def test_what_failed_in_a_journal_runs_again_and_no_other_shard(two_shards: Path, nightcap: Nightcap) -> None:
    nightcap("run", "kernels", "--results", "results")
    (failed,) = [path for path in Path("results").rglob("journal.jsonl") if FILE in collected([path])]
    found = nightcap("run", "kernels", "--rerun-failed", str(failed), "--results", "again")
    assert found.code == 1
    assert ran("again/journal.jsonl") == [f"{FILE}::test_sort[2]"]
    (good,) = [path for path in Path("results").rglob("journal.jsonl") if OTHER in collected([path])]
    nothing = nightcap("run", "kernels", "--rerun-failed", str(good), "--results", "again")
    assert (nothing.code, f"nothing failed in {good}" in nothing.err) == (2, True)


def test_a_failed_test_is_reproduced_from_whichever_shard_ran_it(two_shards: Path, nightcap: Nightcap) -> None:
    nightcap("run", "kernels", "--results", "results")
    found = nightcap("run", "kernels", "--results", "results", "--reproduce", f"{FILE}::test_sort[2]")
    assert found.code == 0
    assert "# attempt 1: failed: call: assert 2 != 2\n" in found.out
    assert found.out.endswith(f"python -m pytest '{FILE}::test_sort[2]'\n")


def test_a_test_whose_file_is_gone_is_reproduced_at_the_commit_of_its_journal(
    two_shards: Path, nightcap: Nightcap
) -> None:
    nightcap("run", "kernels", "--results", "results")
    (two_shards / OTHER).unlink()
    found = nightcap("run", "kernels", "--results", "results", "--reproduce", f"{OTHER}::test_topk")
    assert found.code == 2
    assert f"{OTHER} of suite kernels is no longer part of job kernels: check out the commit of" in found.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("kernel",), "no job 'kernel' in nightly. did you mean 'kernels', 'old-kernels'?"),
        (("kernels", "--shard", "2/3"), "job kernels has 2 shards, not 3"),
        (("kernels", "--shard", "two"), "'two' is no shard: write it as 2/4"),
        (("kernels", "--only", "tests/test_othr.py"), f"it has no tests/test_othr.py. did you mean '{OTHER}'"),
        (("kernels", "--only", OTHER, "--only", "x.py"), "it has no x.py"),
        (
            ("kernels", "--only", f"{OTHER}::test_tpok"),
            f"it has no {OTHER}::test_tpok. did you mean '{OTHER}::test_topk'",
        ),
        (("kernels", "--rerun-failed", "workflows/nightly.yml"), "is no journal: it has no first line"),
        (("kernels", "--reproduce", "x"), "no journal of job kernels below .nightcap/results has a result of x"),
        (("kernels", "--plan", "workflows/nightly.yml"), "is no plan of this version"),
    ],
)
def test_a_mistake_runs_nothing_and_is_told(
    two_shards: Path, nightcap: Nightcap, arguments: tuple[str, ...], said: str
) -> None:
    found = nightcap("run", *arguments)
    assert found.code == 2
    assert said.replace("', 'old-kernels'", "'").rstrip("?") in found.err
    assert not Path(".nightcap").exists()


def test_a_stop_signal_stops_all_shards(two_shards: Path, nightcap: Nightcap) -> None:
    for path in (FILE, OTHER):
        (two_shards / path).write_text(TEST.format("__import__('os').kill(__import__('os').getppid(), 2) is None"))
    assert nightcap("run", "kernels", "--results", "results").code == 130
    assert [path.parent.name for path in Path("results").rglob("journal.jsonl")] == ["1-of-2"]


def test_a_run_attempt_that_is_no_number_is_told(
    two_shards: Path, nightcap: Nightcap, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_RUN_ATTEMPT", "one")
    found = nightcap("run", "kernels")
    assert (found.code, "GITHUB_RUN_ATTEMPT is 'one'" in found.err) == (2, True)


def test_a_journal_of_another_job_is_refused(two_shards: Path, nightcap: Nightcap) -> None:
    nightcap("run", "report", "--results", "results")
    found = nightcap("run", "kernels", "--rerun-failed", JOURNAL)
    assert (found.code, "is a journal of job report, not of kernels" in found.err) == (2, True)
