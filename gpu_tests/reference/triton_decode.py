"""Paged decode attention in Triton: split KV, then combine; graph-capturable and portable (fp16, bf16, fp32,
fp8 KV).

One kernel serves GQA and MLA. The query rows of a request that share a KV head (query tokens x heads of the
group) are packed into the rows of a tile, so that keys and values are read once for all of them. In MLA the
values are the first columns of the keys: one load feeds both products, and the rope columns are a second,
narrow tile.

* The grid comes from shapes alone; lengths, pages, offsets and tensor scales are read on the device.
* A split whose range is empty writes LSE = -inf and nothing else; `combine` uses only parts that were
  written, so the workspace may be dirty. Nothing in it has to survive a launch. With one split the output is
  written at once.
* Loads are masked by key, so that what lies in dead slots (NaN too) never meets the weights.
* A GPU kernel cannot raise: a length above `max_seq_len` or a page id outside of the pool poisons the
  request's rows with NaN, and memory outside of the pool is not read.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from gpu_tests.reference.combine import (
    admit_successor,
    row_factor,
    wait_for_predecessor,
)
from gpu_tests.reference.division import divide
from gpu_tests.reference.pieces import first_part_of, piece_of, run_of

LOG2E = math.log2(math.e)
RUNTIME_INTEGERS = ["batch", "num_splits", "max_q_len", "max_seq_len", "num_pages", "window_left"]
"""Integers that must not be compiled in: one binary serves all batch sizes and lengths."""


class _Tile(NamedTuple):
    rows: int
    keys: int
    warps: int
    stages: int


def _tile(rows: int, head_dim: int, page_size: int, element_size: int) -> _Tile:
    """The tile for `rows` query rows on one KV head. Figures measured on an H200, see docs/gpu-results.md."""
    if element_size == 4:
        return _Tile(16, 16 if head_dim > 256 else 32, 4, 1)
    tile_rows = 16 if rows <= 16 else 32 if rows <= 32 else 64
    if head_dim <= 256:
        return _Tile(tile_rows, 64, 4, 3)
    if tile_rows == 16:
        return _Tile(16, 32 if page_size <= 32 else 64, 4, 3)
    return _Tile(64, 64, 8, 2)


@triton.jit(do_not_specialize=RUNTIME_INTEGERS)
def _decode(
    out, lse_out, part_out, part_lse, query, k, v, block_tables, seq_lens, cum_seq_lens_q, mask, sinks,
    score_scale, score_scale_tensor, out_scale, out_scale_tensor, out_token, out_head, lse_token,
    q_token, q_head, k_page, k_slot, k_head, v_page, v_slot, v_head, table_row, mask_request, mask_row,
    batch, num_splits, max_q_len, max_seq_len, num_pages, window_left,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, PAGE: tl.constexpr,
    D: tl.constexpr, ROPE: tl.constexpr, DV: tl.constexpr, LATENT: tl.constexpr,
    RAGGED: tl.constexpr, WINDOW: tl.constexpr, MASK: tl.constexpr, SINKS: tl.constexpr,
    SCALE_TENSOR: tl.constexpr, OUT_SCALE_TENSOR: tl.constexpr, STRICT: tl.constexpr,
    DIRECT: tl.constexpr, BALANCED: tl.constexpr, BATCH: tl.constexpr, OVERLAP: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """`ROWS` packed query rows on one KV head (axis 0) and one split (axis 1) of the keys of one request (axis
    2), or `BALANCED` one of `num_splits` equal runs over all requests (axis 1).

    `DIRECT`: there is one split, and rows go to `out` and `lse_out`; else to `part_out` and `part_lse`.
    """
    tile, kv_head = tl.program_id(0) // KV_HEADS, tl.program_id(0) % KV_HEADS
    split = tl.program_id(1)
    wait_for_predecessor(OVERLAP)
    row = tile * ROWS + tl.arange(0, ROWS)
    token = row // GROUP
    head = kv_head * GROUP + row % GROUP
    columns = tl.arange(0, D)
    value_columns = tl.arange(0, DV)[None, :]
    scale = score_scale
    if SCALE_TENSOR:
        scale *= tl.load(score_scale_tensor)
    if BALANCED:
        first, count, start, run_begin, run_end = run_of(
            split, num_splits, tl.arange(0, BATCH), seq_lens, batch, max_seq_len, KEYS
        )
    else:  # a loop of one turn, which the compiler removes
        first, count, start, run_begin, run_end = tl.program_id(2), 1, 0, 0, 0
    for turn in range(count):
        request, first_row, q_len, given_length, begin, end, start = piece_of(
            turn, first, start, run_begin, run_end, split, num_splits, seq_lens, cum_seq_lens_q, max_q_len, max_seq_len,
            window_left, RAGGED, BALANCED, WINDOW, KEYS,
        )  # fmt: skip
        too_long = given_length > max_seq_len
        length = tl.where(too_long, 0, given_length)
        live_row = token < q_len
        position = length - q_len + token
        q_rows = query + (first_row + token) * q_token + head * q_head
        q = tl.load(q_rows[:, None] + columns[None, :], mask=live_row[:, None], other=0.0)
        if ROPE > 0:
            rope_columns = D + tl.arange(0, ROPE)
            q_rope = tl.load(q_rows[:, None] + rope_columns[None, :], mask=live_row[:, None], other=0.0)

        top = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        acc = tl.zeros([ROWS, DV], tl.float32)
        outside = tl.zeros([KEYS], tl.int32)
        key = begin * KEYS + tl.arange(0, KEYS)
        pages = block_tables + request.to(tl.int64) * table_row
        # Page ids are loaded one block ahead: otherwise the pipeline's stages are spent on waiting for them.
        next_page = tl.load(pages + key // PAGE, mask=key < length, other=0)
        for _ in range(begin, end):
            page = next_page
            next_page = tl.load(pages + (key + KEYS) // PAGE, mask=key + KEYS < length, other=0)
            in_pool = (page >= 0) & (page < num_pages)
            outside |= tl.where((key < length) & ~in_pool, 1, 0)
            live = (key < length) & in_pool
            slot = key % PAGE
            k_rows = k + page.to(tl.int64) * k_page + slot * k_slot + kv_head * k_head
            keys = tl.load(k_rows[:, None] + columns[None, :], mask=live[:, None], other=0.0).to(q.dtype)
            scores = tl.dot(q, tl.trans(keys), input_precision="ieee")
            if ROPE > 0:
                rope = tl.load(k_rows[:, None] + rope_columns[None, :], mask=live[:, None], other=0.0)
                scores = tl.dot(q_rope, tl.trans(rope.to(q.dtype)), scores, input_precision="ieee")
            if LATENT:
                values = keys
            else:
                v_rows = v + page.to(tl.int64) * v_page + slot * v_slot + kv_head * v_head
                v_columns = tl.arange(0, DV)
                values = tl.load(v_rows[:, None] + v_columns[None, :], mask=live[:, None], other=0.0).to(q.dtype)

            visible = live[None, :] & (key[None, :] <= position[:, None])
            if WINDOW:
                visible &= key[None, :] >= position[:, None] - window_left
            if MASK:
                draft = tl.maximum(key - (length - q_len), 0)
                in_draft = live_row[:, None] & (key >= length - q_len)[None, :] & (draft < q_len)[None, :]
                words = mask + request * mask_request + token[:, None] * mask_row + (draft // 16)[None, :]
                bits = tl.load(words, mask=in_draft, other=0xFFFF).to(tl.int32)
                visible &= ((bits >> (draft % 16)[None, :]) & 1) == 1
            scores = tl.where(visible, scores * scale, float("-inf"))

            new_top = tl.maximum(top, tl.max(scores, 1))
            finite_top = tl.where(new_top == float("-inf"), 0.0, new_top)
            shrink = tl.exp2(top - finite_top)
            weights = tl.exp2(scores - finite_top[:, None])
            total = total * shrink + tl.sum(weights, 1)
            acc = acc * shrink[:, None]
            acc = tl.dot(weights.to(q.dtype), values, acc, input_precision="ieee")
            top = new_top
            key += KEYS

        if turn + 1 == count:
            admit_successor(OVERLAP)
        poisoned = too_long | (tl.max(outside, 0) > 0)
        if DIRECT:
            if STRICT:
                poisoned |= given_length <= 0
            factor, lse = row_factor(
                top, total, poisoned, sinks, head, out_scale, out_scale_tensor, SINKS, OUT_SCALE_TENSOR
            )
            tl.store(lse_out + (first_row + token) * lse_token + head, lse, mask=live_row)
            out_rows = out + ((first_row + token) * out_token + head * out_head)[:, None] + value_columns
            tl.store(out_rows, (acc * factor[:, None]).to(out.dtype.element_ty), mask=live_row[:, None])
        else:
            factor, lse = row_factor(top, total, poisoned, sinks, head, 1.0, out_scale_tensor, False, False)
            heads: tl.constexpr = GROUP * KV_HEADS
            first_part, apart = first_part_of(request, split, num_splits, max_q_len * heads, BALANCED)
            part = first_part + (token * heads + head) * apart
            tl.store(part_lse + part, lse, mask=live_row)
            written = live_row & (factor != 0.0)
            tl.store(part_out + part[:, None] * DV + value_columns, acc * factor[:, None], mask=written[:, None])


@torch.library.custom_op("nightcap::paged_decode_triton", mutates_args=("out", "lse", "workspace"))
def paged_decode(
    out: Tensor,
    lse: Tensor,
    workspace: Tensor,
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
    balanced: bool,
) -> None:
    """Arguments as in `launch.Launch`, plus the workspace; rows that the offsets do not cover are not
    written.
    """
    batch, num_heads = len(seq_lens), query.shape[1]
    kv_heads, page_size, head_dim_v = k.shape[2], k.shape[1], out.shape[2]
    group = num_heads // kv_heads
    head_dim = k.shape[3] if v is not None else head_dim_v
    values = k if v is None else v
    rows = group * max_q_len
    tile = _tile(rows, k.shape[3], page_size, query.element_size())
    work = divide(out, k, batch, max_q_len, max_seq_len, balanced)
    parts = work.partial_results(workspace)
    _decode[(triton.cdiv(rows, tile.rows) * kv_heads, *work.grid)](
        out, lse, *parts, query, k, values, block_tables, seq_lens, cum_seq_lens_q, mask, sinks,
        bmm1_scale * LOG2E, bmm1_scale_tensor, bmm2_scale, bmm2_scale_tensor,
        out.stride(0), out.stride(1), lse.stride(0),
        query.stride(0), query.stride(1), k.stride(0), k.stride(1), k.stride(2),
        values.stride(0), values.stride(1), values.stride(2), block_tables.stride(0),
        0 if mask is None else mask.stride(0), 0 if mask is None else mask.stride(1),
        batch, work.num_splits, max_q_len, max_seq_len, k.shape[0], window_left,
        GROUP=group, KV_HEADS=kv_heads, PAGE=page_size,
        D=head_dim, ROPE=k.shape[3] - head_dim, DV=head_dim_v, LATENT=v is None,
        RAGGED=cum_seq_lens_q is not None, WINDOW=window_left >= 0, MASK=mask is not None,
        SINKS=sinks is not None, SCALE_TENSOR=bmm1_scale_tensor is not None,
        OUT_SCALE_TENSOR=bmm2_scale_tensor is not None, STRICT=strict,
        DIRECT=work.direct, BALANCED=balanced,
        BATCH=triton.next_power_of_2(batch) if balanced else 1,
        ROWS=tile.rows, KEYS=tile.keys, num_warps=tile.warps, num_stages=tile.stages, **work.options(query.device),
    )  # fmt: skip
    work.combine(
        out, lse, parts, seq_lens, cum_seq_lens_q, sinks, bmm2_scale, bmm2_scale_tensor, keys=tile.keys, strict=strict
    )
