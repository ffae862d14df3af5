"""Collectives with a time limit, and agreement without collectives.

A `Comms` serves one case on one rank.  `all_reduce` goes into the captured graph: as an NCCL kernel, or in the
emulation as one opaque node that runs gloo.  `exchange` goes through a key-value store, so that ranks can still
compare notes when a collective is what went wrong.

Work is done in phases.  A rank that waits longer than the limit raises `Stopped`, with the phase and the steps whose
all-reduce it entered and left: the graph itself marks them, and copies the marks into pinned host memory, where they
can be read while the device hangs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gpu_tests.graphs import GraphDriver, opaque
from gpu_tests.parallel.report import Stop

POLL_S = 0.002
MAX_STEPS = 8


class Stopped(Exception):
    """This rank cannot go on."""

    def __init__(self, stop: Stop) -> None:
        super().__init__(f"{stop.phase}: waited for {stop.waited_for}")
        self.stop = stop


class Comms:
    """Ranks `0 .. world_size - 1` for the length of one case; making it is collective.

    limit_s: of one all-reduce, and of waiting for another rank.  journal(phase) is told of every phase as it begins.
    """

    def __init__(
        self, case: str, driver: GraphDriver, store: dist.Store, limit_s: float, journal: Callable[[str], None]
    ) -> None:
        self.case, self.limit_s, self._journal, self._device = case, limit_s, journal, driver.device
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self._store = store
        # gloo ends an operation at the group's timeout.  NCCL's watchdog would end the process before it can report,
        # so that it gets a timeout that `_wait_for_device` never reaches.
        timeout = limit_s if driver.device.type == "cpu" else max(600.0, 10 * limit_s)
        self._group = dist.new_group(timeout=timedelta(seconds=timeout))
        self._entered, self._left = (torch.zeros(MAX_STEPS, dtype=torch.int64, device=driver.device) for _ in range(2))
        self._host_entered, self._host_left = (driver.to_host(t, pinned=True) for t in (self._entered, self._left))
        self._index, self.phase_name = 0, "start"
        self.device_hangs = False

    # -- inside the graph ----------------------------------------------------------------------------------------

    def all_reduce(self, t: Tensor, step: int) -> None:
        """Sum `t` over the ranks, in place; capturable."""
        self._entered[step].fill_(1)
        self._host_entered.copy_(self._entered, non_blocking=True)
        self._reduce(t)
        self._left[step].fill_(1)
        self._host_left.copy_(self._left, non_blocking=True)

    def _reduce(self, t: Tensor) -> None:
        group = self._group

        def all_reduce(t: Tensor) -> None:
            dist.all_reduce(t, group=group)

        opaque(all_reduce)(t)

    # -- outside of it -------------------------------------------------------------------------------------------

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A stretch of work that ends when the device is done.  Raises Stopped."""
        self._index, self.phase_name = self._index + 1, name
        self._journal(name)
        for marks in (self._entered, self._left, self._host_entered, self._host_left):
            marks.zero_()
        try:
            yield
            self._wait_for_device()
        except RuntimeError as error:  # gloo: a timeout, or a peer that is gone
            entered, left = self._progress()
            if entered == left:
                raise
            raise self._stopped(f"the all-reduce of step {min(set(entered) - set(left))}", str(error)) from error

    def exchange(self, name: str, value: Any) -> list[Any]:
        """Every rank's JSON `value`, by rank.  Raises Stopped if a rank stopped or does not come."""
        keys = [f"{self.case}/{self._index}/{name}/{rank}" for rank in range(self.world_size)]
        self._store.set(keys[self.rank], json.dumps(value))
        deadline = time.monotonic() + self.limit_s
        while not self._store.check(keys):
            gone = [r for r in range(self.world_size) if self._store.check([self._stop_key(r)])]
            if gone and not self._store.check(keys):
                raise self._stopped(f"rank {gone[0]}, which stopped")
            if time.monotonic() > deadline:
                late = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
                raise self._stopped(f"rank {', '.join(map(str, late))} to tell its {name}")
            time.sleep(POLL_S)
        return [json.loads(self._store.get(key)) for key in keys]

    def crashed(self, error: str) -> Stop:
        """Tell the others that this rank failed by itself."""
        return self._stopped("nothing", error).stop

    def _stop_key(self, rank: int) -> str:
        return f"{self.case}/stopped/{rank}"

    def _stopped(self, waited_for: str, error: str = "") -> Stopped:
        entered, left = self._progress()
        self._store.set(self._stop_key(self.rank), self.phase_name)
        first_line = error.splitlines()[0] if waited_for != "nothing" and error else error
        return Stopped(Stop(self._index, self.phase_name, waited_for, self.limit_s, entered, left, first_line))

    def _progress(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Steps whose all-reduce was entered, and left.  Reads host memory only: the device may hang."""
        entered, left = (marks.tolist() for marks in (self._host_entered, self._host_left))
        return tuple(i for i, mark in enumerate(entered) if mark), tuple(i for i, mark in enumerate(left) if mark)

    def _wait_for_device(self) -> None:
        """Wait with a limit: `synchronize` has none."""
        if self._device.type != "cuda":
            return
        done = torch.cuda.Event()
        done.record()
        deadline = time.monotonic() + self.limit_s
        while not done.query():
            if time.monotonic() > deadline:
                self.device_hangs = True
                entered, left = self._progress()
                step = min(set(entered) - set(left), default=None)
                raise self._stopped("the device" if step is None else f"the all-reduce of step {step}")
            time.sleep(POLL_S)
