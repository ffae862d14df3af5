"""Small tools for writing faults as diffs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


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


def pad_queries(query: Tensor, offsets: Tensor, stride: int, align: str) -> tuple[Tensor, Tensor]:
    """Packed queries [T, ...] at a uniform stride: [R * stride, ...], and where each token went [T].

    align: "start" puts a row's queries at the start of its stride, "end" at the end.  Tokens that no row covers go to
    a spare place behind the rows.
    """
    rows = len(offsets) - 1
    token = torch.arange(len(query), device=query.device)
    row = torch.searchsorted(offsets[1:].contiguous(), token, right=True).clamp(max=rows - 1)
    at = row * stride + token - offsets[row] if align == "start" else (row + 1) * stride + token - offsets[row + 1]
    at = torch.where(token < offsets[-1], at, rows * stride)
    padded = query.new_zeros(rows * stride + 1, *query.shape[1:])
    padded[at] = query
    return padded[:-1], at.clamp(max=rows * stride - 1)
