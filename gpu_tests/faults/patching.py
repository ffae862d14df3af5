"""Small tools for writing faults as diffs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


def _nothing(*args: object) -> None:
    """In place of a fill that a fault leaves out."""


@contextmanager
def without(backend: object, *methods: str) -> Iterator[None]:
    """Leave out the backend's `methods` (fills without a result) inside the block."""
    for name in methods:
        setattr(backend, name, _nothing)
    try:
        yield
    finally:
        for name in methods:
            delattr(backend, name)
