"""Paged decode attention in PyTorch as ONE opaque node, for machines without a GPU.

A graph recorder sees `nightcap::paged_decode_torch`, which reads its metadata when it runs, as a real kernel
does. Every request is computed alone, so its bits do not depend on its neighbours. Softmax and sums are fp32
(fp64 for fp64 queries).
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor

from gpu_tests.reference.preconditions import KernelPreconditionError, Problems

LOG2E = math.log2(math.e)


@torch.library.custom_op("nightcap::paged_decode_torch", mutates_args=("out", "lse"))
def paged_decode_torch(
    out: Tensor,
    lse: Tensor,
    query: Tensor,
    k: Tensor,
    v: Tensor | None,
    block_tables: Tensor,
    seq_lens: Tensor,
    cum_seq_lens_q: Tensor | None,
    mask: Tensor | None,
    sinks: Tensor | None,
    bmm1_scale: float,
    bmm1_scale_tensor: Tensor | None,
    bmm2_scale: float,
    bmm2_scale_tensor: Tensor | None,
    max_q_len: int,
    max_seq_len: int,
    window_left: int,
    strict: bool,
) -> None:
    """Arguments as in `launch.Launch`; only rows of `out` and `lse` that the offsets cover are written."""
    if v is None:
        v = k[..., : out.shape[-1]]
    score_scale = bmm1_scale if bmm1_scale_tensor is None else bmm1_scale * float(bmm1_scale_tensor)
    out_scale = bmm2_scale if bmm2_scale_tensor is None else bmm2_scale * float(bmm2_scale_tensor)
    lengths = seq_lens.tolist()
    if cum_seq_lens_q is None:
        offsets = [max_q_len * row for row in range(len(lengths) + 1)]
    else:
        offsets = cum_seq_lens_q.tolist()
    _check_metadata(lengths, offsets, query.shape[0], max_q_len, max_seq_len)

    for request, length in enumerate(lengths):
        rows = slice(offsets[request], offsets[request + 1])
        if rows.start == rows.stop:
            continue
        if length <= 0:
            out[rows], lse[rows] = (math.nan, math.nan) if strict else (0.0, -math.inf)
            continue
        num_queries = rows.stop - rows.start
        first = max(0, length - num_queries - window_left) if window_left >= 0 else 0
        slots = _live_slots(block_tables[request], first, length, k.shape[0], k.shape[1], request)
        visible = _visible(num_queries, first, length, window_left, None if mask is None else mask[request])
        row_out, row_lse = _attend(query[rows], k[slots], v[slots], visible, score_scale, sinks)
        out[rows] = (row_out * out_scale).to(out.dtype)
        lse[rows] = row_lse.float()


def _check_metadata(lengths: list[int], offsets: list[int], num_tokens: int, max_q_len: int, max_seq_len: int) -> None:
    problems = Problems("paged decode")
    for request, length in enumerate(lengths):
        problems.unless(length <= max_seq_len, f"seq_lens[{request}]", length, f"at most max_seq_len {max_seq_len}")
    problems.unless(
        offsets[0] >= 0 and offsets[-1] <= num_tokens,
        "cum_seq_lens_q",
        f"{offsets[0]} to {offsets[-1]}",
        f"inside the {num_tokens} rows of the query",
    )
    for request, (start, stop) in enumerate(pairwise(offsets)):
        problems.unless(
            0 <= stop - start <= max_q_len,
            f"cum_seq_lens_q[{request + 1}] - cum_seq_lens_q[{request}]",
            stop - start,
            f"0 to max_q_len {max_q_len}",
        )
    problems.raise_if_any()


def _live_slots(
    pages: Tensor, first: int, length: int, num_pages: int, page_size: int, request: int
) -> tuple[Tensor, Tensor]:
    """(page, offset) of tokens `first` to `length - 1`."""
    token = torch.arange(first, length, device=pages.device)
    page = pages[token // page_size].long()
    outside = (page < 0) | (page >= num_pages)
    if outside.any():
        at = int(outside.nonzero()[0])
        raise KernelPreconditionError(
            f"paged decode: block_tables[{request}, {int(token[at]) // page_size}] is {int(page[at])}, "
            f"the pool has pages 0 to {num_pages - 1} (seq_lens[{request}] is {length})"
        )
    return page, token % page_size


def _visible(num_queries: int, first: int, length: int, window_left: int, mask: Tensor | None) -> Tensor:
    """Bool [T, length - first]: which of the keys from `first` on each query sees."""
    device = None if mask is None else mask.device
    position = torch.arange(length - num_queries, length, device=device)[:, None]
    key = torch.arange(first, length, device=device)[None, :]
    visible = key <= position
    if window_left >= 0:
        visible &= key >= position - window_left
    if mask is not None:
        draft = key - (length - num_queries)  # which draft token a key is; negative in the prefix
        words = mask[:num_queries].int().gather(1, (draft.clamp(min=0) // 16).expand(num_queries, -1))
        visible &= (draft < 0) | ((words >> draft.clamp(min=0) % 16) & 1).bool()
    return visible


def _attend(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor, scale: float, sinks: Tensor | None
) -> tuple[Tensor, Tensor]:
    """`q` [T, Hq, D], `k` [S, Hkv, D], `v` [S, Hkv, Dv] -> out [T, Hq, Dv] and LSE in base 2 [T, Hq]."""
    compute = torch.promote_types(q.dtype, torch.float32)
    num_queries, num_heads, _ = q.shape
    num_kv_heads = k.shape[1]
    grouped = q.to(compute).unflatten(1, (num_kv_heads, -1)).permute(1, 0, 2, 3).flatten(1, 2)  # [Hkv, T * g, D]
    scores = grouped @ k.to(compute).permute(1, 2, 0) * (scale * LOG2E)
    group = num_heads // num_kv_heads
    hidden = ~visible.repeat_interleave(group, dim=0).to(scores.device)
    scores.masked_fill_(hidden, -math.inf)

    top = scores.amax(dim=-1, keepdim=True)
    top = torch.where(torch.isneginf(top), 0.0, top)  # a row without keys: weights 0, sum 0
    weights = torch.exp2(scores - top)
    total = weights.sum(dim=-1, keepdim=True)
    lse = top + torch.log2(total)
    denominator = total
    if sinks is not None:
        logits = sinks.to(compute).view(num_kv_heads, 1, group).expand(-1, num_queries, -1).flatten(1)[..., None]
        denominator = total + torch.exp2(logits * LOG2E - top)
    out = weights @ v.to(compute).permute(1, 0, 2) / torch.where(total == 0, 1.0, denominator)

    def by_token(rows: Tensor) -> Tensor:
        return rows.unflatten(1, (num_queries, group)).transpose(0, 1).flatten(1, 2)

    return by_token(out), by_token(lse)[..., 0]
