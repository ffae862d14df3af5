"""Whose line it was: the user's frame behind a torch call, and the name that he gave to a tensor."""

from __future__ import annotations

import functools
import os
import sys
from types import FrameType

import torch

_HERE = os.path.dirname(os.path.abspath(__file__))
# Code that runs user functions or stands between them and torch; its frames are never "the user's line".
_HIDDEN = (
    os.path.dirname(os.path.abspath(torch.__file__)) + os.sep,
    os.path.join(_HERE, "emulation") + os.sep,
    *(os.path.join(_HERE, f"{name}.py") for name in ("sites", "opaque", "cuda")),
)


def user_frame() -> FrameType | None:
    """The innermost frame outside torch and this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (
        frame.f_code.co_filename.startswith(_HIDDEN) or frame.f_code.co_filename.startswith("<frozen")
    ):
        frame = frame.f_back
    return frame


def user_site() -> str:
    """`file:line` of the user's frame; the file relative to the working directory where that is shorter."""
    frame = user_frame()
    if frame is None:
        return "<unknown>"
    return _shown(frame.f_code.co_filename, frame.f_lineno)


@functools.cache
def _shown(path: str, line: int) -> str:
    return f"{min(path, os.path.relpath(path), key=len)}:{line}"


def site_of_error(error: BaseException) -> str:
    """`file:line` of the user's innermost frame in the traceback of `error`."""
    site, trace = "<unknown>", error.__traceback__
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_HIDDEN):
            site = _shown(trace.tb_frame.f_code.co_filename, trace.tb_lineno)
        trace = trace.tb_next
    return site


def name_of(t: torch.Tensor) -> str | None:
    """The expression by which the user's code reaches `t`'s memory: a local, or an attribute of one."""
    frame, key = user_frame(), t.untyped_storage()._cdata
    for _ in range(8):
        if frame is None:
            return None
        for name, value in list(frame.f_locals.items()):
            if _shares(value, key):
                return name
            for attribute, inner in list(getattr(value, "__dict__", {}).items()):
                if _shares(inner, key):
                    return f"{name}.{attribute}"
        frame = frame.f_back
    return None


def _shares(value: object, key: int) -> bool:
    return type(value) is torch.Tensor and value.layout == torch.strided and value.untyped_storage()._cdata == key
