"""Locks, ports, disk: what runs on one host owe each other."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import socket
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from ci.journal import Note
from ci.runner import host
from ci.runner.exit_codes import ExitCode
from ci.runner.host import HostNotFit
from tests.runner.harness import Bench

SPAWN = multiprocessing.get_context("spawn")


def _hold_ports(locks: str, start: int, barrier: Barrier, found: multiprocessing.Queue[int]) -> None:
    with host.ports(Path(locks), first=start, last=start + 2000) as block:
        found.put(block[0])
        barrier.wait(20)


def test_runs_at_once_lease_disjoint_blocks_of_ports(tmp_path: Path) -> None:
    barrier, found = SPAWN.Barrier(4), SPAWN.Queue()
    runs = [SPAWN.Process(target=_hold_ports, args=(str(tmp_path), 21_000, barrier, found)) for _ in range(4)]
    for run in runs:
        run.start()
    blocks = sorted(found.get(timeout=20) for _ in runs)
    for run in runs:
        run.join(20)
    assert all(later - earlier >= host.PORTS_PER_RUN for earlier, later in itertools.pairwise(blocks))


def test_a_block_with_a_taken_port_is_passed_over(tmp_path: Path) -> None:
    with host.ports(tmp_path, first=23_000) as block:
        expected, taken = block[0], block[7]
    with socket.socket() as server:
        server.bind(("127.0.0.1", taken))
        with host.ports(tmp_path, first=expected) as other:
            assert taken not in other


def test_no_free_block_is_said(tmp_path: Path) -> None:
    with host.ports(tmp_path, first=24_000) as leased:
        only = {"first": leased[0], "last": leased[-1] + 1}
        with pytest.raises(HostNotFit, match="no block of 64 free ports between"), host.ports(tmp_path, **only):
            pass


def _hold_gpu(locks: str, uuid: str, barrier: Barrier) -> None:
    with host.gpu_locks([uuid], Path(locks), wait=0, owner="nightly/one 1-of-2"):
        barrier.wait(20)
        time.sleep(60)


def test_a_gpu_belongs_to_one_run_until_that_run_dies(tmp_path: Path) -> None:
    barrier = SPAWN.Barrier(2)
    holder = SPAWN.Process(target=_hold_gpu, args=(str(tmp_path), "GPU-b", barrier))
    holder.start()
    barrier.wait(20)
    with (
        pytest.raises(HostNotFit, match=rf"GPU GPU-b is taken by nightly/one 1-of-2 \(pid {holder.pid}\)"),
        host.gpu_locks(["GPU-a", "GPU-b"], tmp_path, wait=0, owner="two"),
    ):
        pass
    with host.gpu_locks(["GPU-a"], tmp_path, wait=0, owner="two"):  # let go of when the other was taken
        pass
    os.kill(holder.pid or 0, signal.SIGKILL)
    holder.join()
    with host.gpu_locks(["GPU-b"], tmp_path, wait=1, owner="two"):
        pass


def test_locks_are_taken_in_one_order_so_that_two_runs_never_wait_for_each_other(tmp_path: Path) -> None:
    with (
        host.gpu_locks(["GPU-a", "GPU-b"], tmp_path, wait=0, owner="one"),
        pytest.raises(HostNotFit, match="GPU-a is taken by one"),
        host.gpu_locks(["GPU-b", "GPU-a"], tmp_path, wait=0, owner="two"),
    ):
        pass


def test_a_full_disk_is_said_with_both_figures(tmp_path: Path) -> None:
    with pytest.raises(HostNotFit, match=rf"{tmp_path} has \d+ MiB free and needs 1073741824"):
        host.require_space([tmp_path], 2**50)


def test_a_job_whose_need_of_disk_is_not_met_starts_no_test_and_blames_none(bench: Bench) -> None:
    night = bench.run_file("def test_a(): pass", "test_a", disk_gib=2**30)
    assert (night.results, night.result.exit_code) == ({}, ExitCode.INFRA)
    assert [note.level for note in night.of(Note)] == ["infra"]
    assert f"MiB free and needs {2**40}: free some space" in night.notes[0]


def test_locks_that_cannot_be_kept_are_said_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "locks").write_text("a file")
    with (
        pytest.raises(HostNotFit, match="set NIGHTCAP_LOCKS"),
        host.alive("0" * 32, tmp_path / "locks", tmp_path),
    ):
        pass
