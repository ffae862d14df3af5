"""A paged KV cache as a value: any page size, layout, strides and dtype, with the truth about it close by.

Slot `page * page_size + offset` holds one token. Kernels are given `kv_cache()` in the layout of the engine;
the oracle is given `gather(pages, length)`, dequantised. Every element that is not written stays poison
(NaN), the gaps between pages and the guard pages too, so that a read or a write outside of the live slots
shows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Layout = Literal["NHD", "HND"]
Storage = Literal["separate", "page", "token"]


@dataclass(frozen=True)
class PagedKV:
    """Keys [P, page, Hkv, D] and values [P, page, Hkv, Dv], views of any strides, in units of `k_scale`,
    `v_scale`.

    In an MLA cache (`mla=True`) the values are a view of the first `Dv` columns of the keys.
    `layout` and `storage` say how `kv_cache()` shows the same memory to a kernel.
    """

    k: Tensor
    v: Tensor
    layout: Layout
    storage: Storage
    k_scale: float = 1.0
    v_scale: float = 1.0
    mla: bool = False

    @property
    def num_pages(self) -> int:
        return self.k.shape[0]

    @property
    def page_size(self) -> int:
        return self.k.shape[1]

    def kv_cache(self) -> Tensor | tuple[Tensor, Tensor]:
        """What a kernel is given: MLA [P, page, D]; `separate` (K, V); else one tensor with K and V side by
        side.

        `page` is FlashInfer's [P, 2, page, Hkv, D] (NHD) or [P, 2, Hkv, page, D] (HND). `token` puts K and V
        of a token side by side in memory: the same shapes with other strides.
        """
        if self.mla:
            return self.k[:, :, 0]
        k, v = (self.k, self.v) if self.layout == "NHD" else (self.k.transpose(1, 2), self.v.transpose(1, 2))
        if self.storage == "separate":
            return k, v
        step = v.storage_offset() - k.storage_offset()
        shape, stride = (k.shape[0], 2, *k.shape[1:]), (k.stride(0), step, *k.stride()[1:])
        return k.as_strided(shape, stride, k.storage_offset())

    def stored(self, pages: Tensor | Sequence[int], length: int) -> tuple[Tensor, Tensor]:
        """The first `length` tokens of the request with these pages, as stored: [S, Hkv, D], [S, Hkv, Dv]."""
        slots = self.slots(pages, length)
        page, offset = slots // self.page_size, slots % self.page_size
        k, v = (_bits(side)[page, offset].view(side.dtype) for side in (self.k, self.v))
        return k, v

    def gather(self, pages: Tensor | Sequence[int], length: int) -> tuple[Tensor, Tensor]:
        """As `stored`, dequantised: what the oracle is given, fp64."""
        k, v = self.stored(pages, length)
        return k.double() * self.k_scale, v.double() * self.v_scale

    def poison(self) -> None:
        """Fill every token of every page with NaN again, in place."""
        self.k.copy_(torch.full_like(self.k, math.nan, dtype=torch.float32))
        self.v.copy_(torch.full_like(self.v, math.nan, dtype=torch.float32))

    def write(self, slots: Tensor, k: Tensor, v: Tensor | None = None) -> None:
        """Store tokens `k` [n, Hkv, D] and `v` [n, Hkv, Dv] (none for MLA) in `slots` [n], in units of the
        scales.
        """
        page, offset = slots // self.page_size, slots % self.page_size
        _bits(self.k)[page, offset] = _bits((k / self.k_scale).to(self.k.dtype))
        if v is not None:
            _bits(self.v)[page, offset] = _bits((v / self.v_scale).to(self.v.dtype))

    def slots(self, pages: Tensor | Sequence[int], length: int) -> Tensor:
        """The slots of the first `length` tokens of the request with these pages: int64 [length]."""
        pages = torch.as_tensor(pages, dtype=torch.int64, device=self.k.device)
        token = torch.arange(length, device=self.k.device)
        return pages[token // self.page_size] * self.page_size + token % self.page_size


def empty_kv(
    num_pages: int,
    page_size: int,
    num_kv_heads: int,
    head_dim: int,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    layout: Layout = "NHD",
    storage: Storage = "separate",
    page_gap: int = 0,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> PagedKV:
    """An MHA/GQA cache full of NaN. `page_gap` elements lie unused behind every page (or pair of pages)."""
    inner = (page_size, num_kv_heads) if layout == "NHD" else (num_kv_heads, page_size)
    size = page_size * num_kv_heads * head_dim
    if storage == "separate":
        k, v = (_poison(num_pages, size + page_gap, dtype, device)[:, :size] for _ in range(2))
        k, v = (side.unflatten(1, (*inner, head_dim)) for side in (k, v))
    else:
        both = _poison(num_pages, 2 * size + page_gap, dtype, device)[:, : 2 * size]
        if storage == "page":
            k, v = both.unflatten(1, (2, *inner, head_dim)).unbind(1)
        else:
            k, v = both.unflatten(1, (*inner, 2, head_dim)).unbind(3)
    if layout == "HND":
        k, v = k.transpose(1, 2), v.transpose(1, 2)
    return PagedKV(k, v, layout, storage, k_scale, v_scale)


def empty_mla(
    num_pages: int,
    page_size: int,
    *,
    kv_lora_rank: int = 512,
    qk_rope_head_dim: int = 64,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    page_gap: int = 0,
    scale: float = 1.0,
) -> PagedKV:
    """An MLA cache full of NaN: latent and rope side by side, one head, values = latent."""
    width = kv_lora_rank + qk_rope_head_dim
    k = _poison(num_pages, page_size * width + page_gap, dtype, device)[:, : page_size * width]
    k = k.unflatten(1, (page_size, 1, width))
    return PagedKV(k, k[..., :kv_lora_rank], "NHD", "separate", scale, scale, mla=True)


def shuffled_page_table(
    lengths: Sequence[int],
    page_size: int,
    num_pages: int,
    *,
    width: int | None = None,
    seed: int = 0,
    tail: int = 0,
) -> Tensor:
    """A page table int32 [B, width] with the pages of all requests drawn without order from `num_pages`.

    Identity page ids hide every addressing bug, so they are never used. Entries past a request's last page
    hold `tail`. Raises ValueError if the pages do not suffice.
    """
    counts = [math.ceil(length / page_size) for length in lengths]
    if sum(counts) > num_pages:
        raise ValueError(f"{sum(counts)} pages are needed, {num_pages} are there")
    order = torch.randperm(num_pages, generator=torch.Generator().manual_seed(seed)).int()
    table = torch.full((len(counts), width or max(1, *counts, 1)), tail, dtype=torch.int32)
    start = 0
    for row, count in enumerate(counts):
        table[row, :count] = order[start : start + count]
        start += count
    return table


def _bits(tensor: Tensor) -> Tensor:
    """fp8 as bytes: not every operation on fp8 tensors exists on every device."""
    return tensor.view(torch.uint8) if tensor.dtype.itemsize == 1 else tensor


def _poison(pages: int, elements: int, dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """Pages full of NaN, between two guard pages of NaN that no page id reaches."""
    guarded = torch.full((pages + 2, elements), math.nan, dtype=torch.float32, device=device).to(dtype)
    return guarded[1:-1]
