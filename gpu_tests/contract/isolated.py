"""Calls in a child process, because a device-side assert costs a process its CUDA context.

`Isolated` keeps one child that imports torch once and runs calls one after the other.  A child that lost its context,
died or hung is replaced before the next call, so that one bad scenario takes no other along.  Arguments and results
are JSON; the child's own output goes to a file, whose last lines explain its death.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import traceback
from pathlib import Path
from typing import IO, Any

import torch

LIMIT_S = 120.0
"""A call takes about a second, and ten more in a new child."""

ROOT = Path(__file__).resolve().parents[2]
CUDA_REASON = re.compile(r".*(?:Assertion .* failed|device-side assert|illegal (?:memory )?a\w+|CUDA error).*")


class ContextLost(Exception):
    """The call cost its process the CUDA context; the message is CUDA's reason."""


class NoAnswer(Exception):
    """The call has no result and no CUDA error explains why: it raised, died or ran past the limit."""


class Isolated:
    """One child process for calls of module-level functions, named `module:function`."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._child: subprocess.Popen[str] | None = None
        self._log: IO[str] | None = None

    def __enter__(self) -> Isolated:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, function: str, *args: Any) -> Any:
        """The function's result.  Raises ContextLost or NoAnswer."""
        child = self._child or self._start()
        assert child.stdin is not None
        assert child.stdout is not None
        late = threading.Event()

        def stop() -> None:
            late.set()
            child.kill()

        timer = threading.Timer(self._limit_s, stop)
        timer.start()
        try:
            child.stdin.write(json.dumps([function, args]) + "\n")
            child.stdin.flush()
            line = child.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if not line:
            raise self._death(late.is_set())
        answer = json.loads(line)
        if "lost" in answer:
            log = self.close()
            raise ContextLost(_cuda_reason(log) or answer["lost"])
        if answer.get("leave"):
            self.close()
        if "raised" in answer:
            raise NoAnswer(answer["raised"])
        return answer["value"]

    def close(self) -> str:
        """End the child; what it printed."""
        if self._child is None or self._log is None:
            return ""
        self._child.kill()
        self._child.communicate()
        self._log.seek(0)
        text = self._log.read()
        self._log.close()
        self._child = self._log = None
        return text

    def _start(self) -> subprocess.Popen[str]:
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (closed in `close`)
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        self._child = subprocess.Popen(
            [sys.executable, "-m", "gpu_tests.contract.isolated"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
            # Several children share the machine: one thread each is faster than all threads for everyone.
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        return self._child

    def _death(self, late: bool) -> Exception:
        assert self._child is not None
        status = self._child.wait()
        log = self.close()
        if late:
            return NoAnswer(f"no answer within {self._limit_s:g} s")
        if reason := _cuda_reason(log):
            return ContextLost(reason)
        last = (log.strip().splitlines() or [""])[-1]
        return NoAnswer(f"the process ended with status {status}: {last}".rstrip(": "))


def _cuda_reason(log: str) -> str | None:
    """The line in which CUDA says what went wrong: the assert itself rather than what followed from it."""
    lines = [line.strip() for line in log.splitlines() if CUDA_REASON.fullmatch(line.strip())]
    asserts = [line for line in lines if "Assertion" in line]
    return next(iter(asserts or lines), None)


def _answer(function: str, args: list[Any]) -> dict[str, Any]:
    module, _, name = function.partition(":")
    try:
        answer: dict[str, Any] = {"value": getattr(importlib.import_module(module), name)(*args)}
    except Exception:
        answer = {"raised": traceback.format_exc()}
    lost = _lost_context()
    if lost is None:
        return answer
    # A result that was reached all the same is kept: it says in which round the context was lost.
    return {**answer, "leave": True} if "value" in answer else {"lost": lost}


def _lost_context() -> str | None:
    """CUDA's reason, if this process cannot use its GPU any more."""
    if not torch.cuda.is_initialized():
        return None
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        return str(error).strip().splitlines()[0]
    return None


def _serve() -> None:
    """Answer calls from stdin, a line each, until it ends."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # asserts and printf of a GPU go to stdout
        for line in sys.stdin:
            function, args = json.loads(line)
            answers.write(json.dumps(_answer(function, args)) + "\n")
            answers.flush()


if __name__ == "__main__":
    _serve()
