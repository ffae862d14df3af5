"""Paged attention in stages, one method each, so that a faulty kernel is one method written otherwise.

It takes both calls of `KernelPlug` and is made of plain device ops: it can be captured op by op on any device.  As it
stands it is correct (`equivalents` plants it unchanged): split-KV with partial results merged by their natural LSE.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Launch:
    """One launch.  query [T, Hq, D], k [P, page, Hkv, D], v [P, page, Hkv, Dv]; row, index: of each token [T].

    key: every key position [S].  length, queries: keys and query tokens of each token's row [T, 1].
    """

    query: Tensor
    k: Tensor
    v: Tensor
    block_tables: Tensor
    row: Tensor
    index: Tensor
    key: Tensor
    length: Tensor
    queries: Tensor
    window_left: int
    mask: Tensor | None
    sinks: Tensor | None


class StagedKernel:
    splits = 3

    def mha(
        self, query: Tensor, kv_cache: Any, workspace: Tensor, block_tables: Tensor, seq_lens: Tensor,
        max_seq_len: int, bmm1: Any, bmm2: Any, window_left: int, out: Tensor, *, sinks: Tensor | None = None,
        kv_layout: str = "HND", q_len_per_req: int | None = 1, mask: Tensor | None = None,
        cum_seq_lens_q: Tensor | None = None, empty_rows: str = "strict", **_: Any,
    ) -> None:  # fmt: skip
        k, v = kv_cache if isinstance(kv_cache, tuple) else kv_cache.unbind(1)
        if kv_layout == "HND":
            k, v = k.transpose(1, 2), v.transpose(1, 2)
        self.launch(
            query, k, v, block_tables, seq_lens, max_seq_len, bmm1, bmm2, window_left, out, sinks, mask,
            q_len_per_req, cum_seq_lens_q, empty_rows,
        )  # fmt: skip

    def mla(
        self, query: Tensor, kv_cache: Tensor, workspace: Tensor, nope: int, latent: int, rope: int,
        block_tables: Tensor, seq_lens: Tensor, max_seq_len: int, *, out: Tensor, bmm1_scale: Any,
        bmm2_scale: Any = 1.0, cum_seq_lens_q: Tensor | None = None, empty_rows: str = "strict", **_: Any,
    ) -> None:  # fmt: skip
        k = kv_cache.unsqueeze(2)
        uniform = query.dim() == 4
        self.launch(
            query.flatten(0, 1) if uniform else query, k, self.latent_values(k, latent), block_tables, seq_lens,
            max_seq_len, bmm1_scale, bmm2_scale, -1, out.flatten(0, 1) if uniform else out, None, None,
            query.shape[1] if uniform else None, cum_seq_lens_q, empty_rows,
        )  # fmt: skip

    def launch(
        self, query: Tensor, k: Tensor, v: Tensor, block_tables: Tensor, seq_lens: Tensor, max_seq_len: int,
        bmm1: Any, bmm2: Any, window_left: int, out: Tensor, sinks: Tensor | None, mask: Tensor | None,
        q_len: int | None, offsets: Tensor | None, empty_rows: str,
    ) -> None:  # fmt: skip
        device, rows = query.device, len(seq_lens)
        if offsets is None:
            assert q_len is not None
            offsets = torch.arange(rows + 1, device=device, dtype=torch.int32) * q_len
        token = torch.arange(len(query), device=device)
        row = torch.searchsorted(offsets[1:].contiguous(), token, right=True).clamp(max=rows - 1)
        at = Launch(
            query, k, v, block_tables, row, token - offsets[row], torch.arange(max_seq_len, device=device),
            seq_lens[row][:, None], (offsets[row + 1] - offsets[row])[:, None], window_left, mask, sinks,
        )  # fmt: skip
        keys, values = self.gather(at)
        heads = self.kv_heads(query.shape[1], k.shape[2], device)
        scores = (query.float()[:, None] * keys.float()[:, :, heads]).sum(-1) * bmm1
        visible = self.visible(at)[..., None]
        result = self.attend(scores, visible, values.float()[:, :, heads], at) * bmm2
        empty = math.nan if empty_rows == "strict" else 0.0
        result = torch.where((at.length < 1)[..., None], empty, result)
        covered = (token < offsets[-1])[:, None, None]
        out.copy_(torch.where(covered, result.to(out.dtype), out))

    def latent_values(self, k: Tensor, latent: int) -> Tensor:
        """The values of MLA: the latent part of the keys."""
        return k[..., :latent]

    def gather(self, at: Launch) -> tuple[Tensor, Tensor]:
        """Keys and values of every key position of each token's row: [T, S, Hkv, D], [T, S, Hkv, Dv]."""
        page_size = at.k.shape[1]
        page, offset = self.pages(at)[:, at.key // page_size], at.key % page_size
        page = page.clamp(0, at.k.shape[0] - 1).long()  # past a row's end the table holds anything
        return at.k[page, offset], at.v[page, offset]

    def pages(self, at: Launch) -> Tensor:
        """The page table of each token's row: [T, W]."""
        return at.block_tables[at.row]

    def kv_heads(self, q_heads: int, kv_heads: int, device: torch.device) -> Tensor:
        """Which KV head each query head reads: [Hq]."""
        return torch.arange(q_heads, device=device) // (q_heads // kv_heads)

    def visible(self, at: Launch) -> Tensor:
        """Which key positions each token sees: [T, S]."""
        position = at.length - at.queries + at.index[:, None]
        seen = (at.key <= position) & (at.key < at.length)
        if at.window_left >= 0:
            seen = seen & (at.key >= position - at.window_left)
        return seen if at.mask is None else seen & self.unmasked(at)

    def unmasked(self, at: Launch) -> Tensor:
        """What the draft mask leaves visible: [T, S]."""
        assert at.mask is not None
        draft = at.key - (at.length - at.queries)
        bit = draft.clamp(0, at.mask.shape[-1] * 16 - 1)
        words = at.mask[at.row, at.index.clamp(max=at.mask.shape[1] - 1)].int().gather(1, bit // 16)
        return (draft < 0) | ((words >> bit % 16) & 1).bool()

    def attend(self, scores: Tensor, visible: Tensor, values: Tensor, at: Launch) -> Tensor:
        """scores [T, S, Hq], visible [T, S, 1], values [T, S, Hq, Dv] -> [T, Hq, Dv]."""
        parts = [
            self.partial(scores[:, part], visible[:, part], values[:, part], at) for part in self.parts(scores, at)
        ]
        outs, lses = torch.stack([o for o, _ in parts]), torch.stack([lse for _, lse in parts])
        return self.merge(outs, lses, at)

    def parts(self, scores: Tensor, at: Launch) -> list[Tensor]:
        """Key positions of each split."""
        return list(torch.tensor_split(at.key, self.splits))

    def partial(self, scores: Tensor, visible: Tensor, values: Tensor, at: Launch) -> tuple[Tensor, Tensor]:
        """Attention over some keys: out [T, Hq, Dv] and natural LSE [T, Hq], 0 and -inf without a key."""
        scores = self.hide(scores, visible)
        top = scores.amax(1, keepdim=True)
        top = torch.where(torch.isneginf(top), 0.0, top)
        weights = torch.exp(scores - top)
        total = weights.sum(1)
        out = self.weighted(weights, visible, values) / torch.where(total == 0, 1.0, total)[..., None]
        return out, top[:, 0] + torch.log(total)

    def hide(self, scores: Tensor, visible: Tensor) -> Tensor:
        return torch.where(visible, scores, -math.inf)

    def weighted(self, weights: Tensor, visible: Tensor, values: Tensor) -> Tensor:
        """Sum of weighted values.  Hidden ones may be NaN, and 0 * NaN is NaN: they are left out."""
        return (weights[..., None] * torch.where(visible[..., None], values, 0.0)).sum(1)

    def merge(self, outs: Tensor, lses: Tensor, at: Launch) -> Tensor:
        """Partial results [n, T, Hq, Dv] and natural LSE [n, T, Hq] -> [T, Hq, Dv]; the sink counts once."""
        top = lses.amax(0)
        top = torch.where(torch.isneginf(top), 0.0, top)
        weights = torch.exp(lses - top)
        total = weights.sum(0)
        if at.sinks is not None:
            total = total + torch.where(total > 0, torch.exp(at.sinks - top), 0.0)
        return (weights[..., None] * outs).sum(0) / torch.where(total == 0, 1.0, total)[..., None]
