"""The memory of a paged cache, bit for bit: copies that keep gaps and layout, and what differs between two."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gpu_tests.reference.paged import PagedKV


def copy_of(kv: PagedKV) -> PagedKV:
    """The same cache in memory of its own, gaps and layout included."""
    copies: dict[int, torch.UntypedStorage] = {}

    def copy(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        own = copies.setdefault(storage.data_ptr(), storage.clone())
        return torch.empty(0, dtype=t.dtype, device=t.device).set_(own, t.storage_offset(), t.size(), t.stride())

    return replace(kv, k=copy(kv.k), v=copy(kv.v))


def differences(actual: PagedKV, expected: PagedKV) -> list[str]:
    """Where the pool's memory, gaps and guard zones included, is not what it must be, bit for bit.

    Slot 0 is free for padded tokens.
    """
    for a, e in ((actual.k, expected.k), (actual.v, expected.v)):
        e[0, 0] = a[0, 0]
    problems = []
    for name, a, e in (("k", actual.k, expected.k), ("v", actual.v, expected.v)):
        if actual.mla and name == "v":
            continue
        wrong = (_bits(a) != _bits(e)).flatten(2).any(dim=2)
        problems += [f"{name} cache, page {page} offset {offset}" for page, offset in wrong.nonzero().tolist()]
        if not problems and not torch.equal(_memory(a), _memory(e)):
            problems.append(f"{name} cache: memory between or round the pages was written")
    return problems


def _bits(t: Tensor) -> Tensor:
    return t.view({2: torch.int16, 4: torch.int32, 1: torch.int8}[t.dtype.itemsize])


def _memory(t: Tensor) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=t.device).set_(t.untyped_storage())
