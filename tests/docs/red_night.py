"""The red night that the README shows: a real plan and real runs, kept in tests/data/red_night.

`python -m tests.docs.red_night` makes it anew, after the format of journals has changed. Four things go wrong: a test
fails, a test aborts its process, all tests of a job skip, and a shard's machine goes away with its journal. A gate
that looks at the results of jobs alone calls the third green.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests/data/red_night"
LOST = "attention-2-of-2"
FILES = {
    "workflows/runners.yml": """\
repository: my-org/my-engine
pools:
  cpu: {labels: [ubuntu-24.04], hosted: true, timeout: 1h}
""",
    "workflows/nightly.yml": """\
title: Nightly Test
template: nightly
triggers:
  schedule: {cron: "17 0 * * *"}
  dispatch: {}
defaults: {pool: cpu, timeout: 10m, file_timeout: 1m}
jobs:
  attention: {suites: [attention], shards: 2}
  draft-decode: {suites: [draft-decode]}
  kernels: {suites: [kernels]}
""",
    "tests/test_mla_replay.py": """\
import pytest

pytestmark = pytest.mark.suite("attention", est="40s")


@pytest.mark.parametrize("batch", [1, 2])
def test_replay_reads_the_new_lengths(batch):
    captured, replayed = (8, 8), (8, 9)
    row = batch - 1
    assert captured[row] == replayed[row], f"row {row} was read with its length at capture"


def test_padded_rows_are_zero():
    assert not any([0] * 4)
""",
    "tests/test_mha_replay.py": """\
import pytest

pytestmark = pytest.mark.suite("attention", est="30s")


def test_replay_reads_the_new_pages():
    assert [3, 1, 2] == [3, 1, 2]
""",
    "tests/test_draft_decode.py": """\
import pytest

no_gpus = pytest.mark.skipif(True, reason="needs 8 GPUs, this host has 0")
pytestmark = [pytest.mark.suite("draft-decode", est="30s"), no_gpus]


def test_two_draft_steps():
    raise AssertionError("never runs here")
""",
    "tests/test_kernels.py": """\
import os

import pytest

pytestmark = pytest.mark.suite("kernels", est="20s")


def test_topk():
    assert sorted([3, 1, 2])[-1] == 3


def test_unaligned_pages():
    os.abort()


def test_large_head():
    assert 576 == 512 + 64
""",
}


def main() -> None:
    """Make the night in a folder of its own, then keep its plan and its journals."""
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "my-engine"
        for path, text in FILES.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        _nightcap(root, "plan", "--json", save=root / "plan.json")
        for job in ("attention", "draft-decode", "kernels"):
            shards = ("1-of-2", "2-of-2") if job == "attention" else ("1-of-1",)
            for shard in shards:
                kept = f"results/{job}-{shard}"
                _nightcap(root, "run", job, "--shard", shard, "--plan", "plan.json", "--results", kept)
        shutil.rmtree(root / "results" / LOST)
        shutil.rmtree(DATA, ignore_errors=True)
        for path in (root / "plan.json", *root.glob("results/*/journal.jsonl")):
            target = DATA / path.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)


def _nightcap(root: Path, *arguments: str, save: Path | None = None) -> None:
    """Red results are what this is for, so only a wrong call stops it."""
    command = [str(Path(sys.executable).parent / "nightcap"), *arguments]
    done = subprocess.run(command, cwd=root, check=False, text=True, stdout=subprocess.PIPE if save else None)
    if done.returncode == 2:
        raise SystemExit(f"{' '.join(command)}: exit code 2")
    if save:
        save.write_text(done.stdout)


if __name__ == "__main__":
    main()
