"""Disk, memory and output without end: what is scarce on the host must cost no result that was there before."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ci import journal
from ci.journal import TestFinished, UnitFinished
from tests.runner.harness import DRIVER, REPOSITORY, Bench, plan, unit

FILLS_THE_DISK = """
    def test_before(): pass
    def test_fills():
        with open("big", "wb", buffering=0) as file:
            while True:
                file.write(b"x" * 65536)
    def test_after(): pass
"""


IN_A_NAMESPACE = ("unshare", "--map-root-user", "--mount")


def test_a_full_disk_costs_no_result(bench: Bench) -> None:
    """The repository and its results lie on 4 MiB of memory, mounted in a namespace of its own."""
    if subprocess.run([*IN_A_NAMESPACE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody make a namespace, so no small disk either")
    bench.file(FILLS_THE_DISK)
    (bench.root / "job.json").write_text(plan(unit("test_it.py")).model_dump_json())
    inside = """
        mkdir disk kept && mount -t tmpfs -o size=4m tmpfs disk && cp test_it.py job.json disk && cd disk
        "$@" job.json "$PWD"; code=$?
        rm -f big; cp -r results ../kept; exit $code
    """
    command = [*IN_A_NAMESPACE, "sh", "-c", inside, "sh", sys.executable, str(DRIVER)]
    done = subprocess.run(command, cwd=bench.root, env=bench.env, capture_output=True, text=True, check=False)
    read = journal.read(bench.root / "kept" / "results" / "journal.jsonl")
    outcomes = [(e.test.rpartition("::")[2], e.outcome) for e in read.events if isinstance(e, TestFinished)]
    assert outcomes == [
        ("test_before", "passed"),
        ("test_fills", "failed"),
        ("test_after", "passed"),
        ("test_fills", "failed"),  # tried again once, alone
    ]
    ends = [event for event in read.events if isinstance(event, UnitFinished)]
    assert [(end.ending, end.failure_class) for end in ends] == [("infra", "disk-full")] * 2
    assert read.unreadable <= 2
    assert done.returncode == 3, done.stderr


def test_memory_that_a_process_may_not_have_fails_its_test(bench: Bench) -> None:
    night = bench.run_file(
        """
        import resource
        def test_wants_much():
            resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
            bytearray(2**32)
        """
    )
    assert night.results == {"test_wants_much": ["failed"]}
    assert [event.failure_class for event in night.of(UnitFinished)] == ["out-of-memory"]


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """A cgroup of 200 MiB of memory; needs root, and is refused where a container may not make one."""
    v1, v2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    parent, limit = (v1, "memory.limit_in_bytes") if v1.is_dir() else (v2, "memory.max")
    group = parent / f"nightcap-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / limit).write_text(str(200 * 2**20))
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    yield group
    group.rmdir()


@pytest.mark.slow
def test_the_kernels_out_of_memory_kill_is_named_and_the_rest_runs(bench: Bench, small_cgroup: Path) -> None:
    bench.file("""
        def test_before(): pass
        def test_eats(): kept = [bytearray(b"x" * 2**20) for _ in range(2**12)]
        def test_after(): pass
    """)
    (bench.root / "job.json").write_text(plan(unit("test_it.py")).model_dump_json())
    into_group = f'echo $$ > {small_cgroup}/cgroup.procs && exec "$@"'
    runner = [sys.executable, str(DRIVER), str(bench.root / "job.json"), str(bench.root)]
    subprocess.run(["sh", "-c", into_group, "sh", *runner], env=bench.env, cwd=REPOSITORY, check=False)
    results = [(e.test, e.outcome, e.message) for e in bench.journal().events if isinstance(e, TestFinished)]
    killed = "out of memory: the kernel ended a process of this cgroup (oom_kill)"
    assert results == [
        ("test_it.py::test_before", "passed", ""),
        ("test_it.py::test_eats", "crashed", killed),
        ("test_it.py::test_after", "passed", ""),
    ]


@pytest.mark.slow
def test_200_mb_of_output_are_bounded(bench: Bench) -> None:
    night = bench.run_file("""
        import sys
        def test_talks():
            for _ in range(200): sys.stdout.write("x" * 999_999 + "\\n")
        def test_after(): pass
    """)
    log = night.result.units[0].log
    assert log.stat().st_size < 17 * 2**20
    assert b"183" in log.read_bytes().partition(b"[nightcap: ")[2][:20]
    assert night.results == {"test_talks": ["passed"], "test_after": ["passed"]}
