"""The tensors of one case of `benchmarks.attention`, and the check of a kernel's output against the oracle."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.attention_cases import Case
from gpu_tests.reference.decode import workspace_bytes
from gpu_tests.reference.oracle import attention
from gpu_tests.reference.paged import shuffled_page_table

Launch = Callable[[int], Tensor]
"""Runs a kernel on the KV set of that index; returns the output."""

LAUNCHES = 16
FP8_SCALE = 1 / 64
"""Scale of keys and values in fp8: randn reaches 5 or 6 of the 7 that e4m3's 448 then stand for."""


def lengths_of(case: Case) -> list[int]:
    """Keys of each request: the same in every run."""
    if not case.varied:
        return [case.length] * case.batch
    generator = torch.Generator().manual_seed(case.batch * case.length)
    lengths: list[int] = torch.randint(case.q_len, case.length + 1, (case.batch,), generator=generator).tolist()
    return lengths


class Workload:
    """One page table and query, and several KV sets that share them: as many that at least four times the L2 cache is
    read between two uses of the same bytes, or `sets`.
    """

    def __init__(self, case: Case, l2_bytes: int, *, sets: int | None = None, device: str = "cuda") -> None:
        self.case = case
        self.lengths = lengths_of(case)
        pages = sum(-(-length // case.page_size) for length in self.lengths)
        width = -(-case.length // case.page_size)
        table = shuffled_page_table(self.lengths, case.page_size, pages, width=width)
        self.block_tables = table.to(device)
        self.seq_lens = torch.tensor(self.lengths, dtype=torch.int32, device=device)
        rows = case.batch * case.q_len
        self.query = torch.randn(rows, case.heads, case.head_dim, device=device, dtype=torch.bfloat16)
        self.sinks = torch.randn(case.heads, device=device) if case.sinks else None
        shape = self._cache_shape(pages)
        read = sum(case.kv_bytes(length) for length in self.lengths)
        count = sets or max(2, math.ceil(4 * l2_bytes / read))
        self.kv_sets = [self._cache(shape, device) for _ in range(count)]
        self.out = self.query.new_empty(rows, case.heads, case.head_dim_v)
        self.workspace = torch.empty(self._workspace_bytes(), dtype=torch.uint8, device=device)

    @property
    def kv_scale(self) -> float:
        """What a stored key or value is multiplied by."""
        return FP8_SCALE if self.case.kv_dtype == "fp8" else 1.0

    @property
    def launches(self) -> int:
        """Launches in a graph: each KV set equally often, at least `LAUNCHES`."""
        return len(self.kv_sets) * math.ceil(LAUNCHES / len(self.kv_sets))

    def bytes(self) -> int:
        """What has to be read and written at least: the visible keys and values, the query and the output."""
        return sum(map(self.case.kv_bytes, self.lengths)) + 2 * (self.query.numel() + self.out.numel())

    def flop(self) -> int:
        return sum(map(self.case.flop, self.lengths))

    def error(self) -> float:
        """The largest error of `out` relative to the largest output, over the first and the last request."""
        case, worst = self.case, 0.0
        options = {"scale": case.softmax_scale, "window_left": case.window, "sinks": self.sinks}
        for request in (0, case.batch - 1):
            rows = slice(request * case.q_len, (request + 1) * case.q_len)
            ref = attention(self.query[rows], *self._keys_and_values(request), **options).out
            error = (self.out[rows].double() - ref).abs().max() / ref.abs().max()
            worst = max(worst, float(error.nan_to_num(math.inf)))
        return worst

    def _keys_and_values(self, request: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a request in the first KV set, as a kernel reads them: fp64 [S, Hkv, D], [S, Hkv,
        Dv].
        """
        case, length = self.case, self.lengths[request]
        cache = self.kv_sets[0]
        ids = self.block_tables[request, : -(-length // case.page_size)].long()
        # As bytes: fp8 tensors cannot be indexed on every device.
        pages = cache.view(torch.uint8)[ids].view(cache.dtype).double() * self.kv_scale
        if case.kv_heads == 0:
            latent = pages.flatten(0, 1)[:length, None]
            return latent, latent[..., : case.head_dim_v]
        k, v = (pages if case.layout == "NHD" else pages.transpose(2, 3)).unbind(1)
        return k.flatten(0, 1)[:length], v.flatten(0, 1)[:length]

    def _cache_shape(self, pages: int) -> tuple[int, ...]:
        case = self.case
        if case.kv_heads == 0:
            return pages, case.page_size, case.head_dim
        inner = (case.kv_heads, case.page_size) if case.layout == "HND" else (case.page_size, case.kv_heads)
        return pages, 2, *inner, case.head_dim

    def _cache(self, shape: tuple[int, ...], device: str) -> Tensor:
        cache = torch.randn(shape, device=device, dtype=torch.bfloat16)
        return cache if self.case.kv_dtype == "bf16" else (cache / self.kv_scale).to(torch.float8_e4m3fn)

    def _workspace_bytes(self) -> int:
        case = self.case
        return max(
            workspace_bytes(
                batch_size=case.batch,
                num_heads=case.heads,
                num_kv_heads=case.kv_heads or 1,
                head_dim_v=case.head_dim_v,
                max_q_len=case.q_len,
                max_seq_len=case.length,
                grid=grid,
            )
            for grid in ("split", "balanced")
        )
