"""`opaque(fn)`: make a Python callable one node of a graph, as a hand-written kernel is.

Outside a capture by the emulation (eager code, a real CUDA graph) the call goes straight through, so a CUDA
kernel's launcher can be wrapped as well.  Inside one, the recorder that is active runs and records it as a
whole; at replay it reads and writes its tensors' live contents and gets the host numbers of capture time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class OpaqueRecorder(Protocol):
    def call_opaque(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...


_recorders: list[OpaqueRecorder | None] = [None]


def active_recorder() -> OpaqueRecorder | None:
    return _recorders[-1]


@contextmanager
def recording_opaque_calls(recorder: OpaqueRecorder | None) -> Iterator[None]:
    """Send calls of opaque functions to `recorder` for the length of the block; None: they are plain
    calls.
    """
    _recorders.append(recorder)
    try:
        yield
    finally:
        _recorders.pop()


def opaque(fn: Callable[P, R]) -> Callable[P, R]:
    """Wrap `fn` so that a capture sees one node.

    Tensors must reach it as arguments (nested in tuples, lists and dicts if need be), for only those are
    known to the graph; what it closes over is read as it is at replay.
    """

    @functools.wraps(fn)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        recorder = active_recorder()
        if recorder is not None:
            result: R = recorder.call_opaque(fn, args, kwargs)
            return result
        return fn(*args, **kwargs)

    return wrapper
