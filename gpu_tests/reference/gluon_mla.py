"""MLA decode on Hopper in Triton Gluon: three roles in one CTA, split KV, then the shared combine.

One CTA takes 64 packed query rows (query tokens x heads) of one request and one split of its keys, in blocks
of 64 keys. The design is FlashMLA's problem (an accumulator of 64 x 512 fp32 fills half of the register file,
so that two output tiles for ping-pong do not fit) solved by roles that hand blocks over in one direction:

    load    (1 warp):   wait free[s]    -> TMA of latent [64, 512] and rope [64, 64] into stage s -> full[s]
    scores  (4 warps):  wait full[s]    -> Q K^T, mask, softmax -> P into the rope tile of stage s -> weights[s]
    values  (8 warps):  wait weights[s] -> rescale, P V for 512 columns -> free[s]

* The rope columns of a block are dead once its scores are known, so P takes their place: the 16 kB that two
  buffers of P would need are not there (Q 72 kB, two stages of 72 kB each, 227 kB in all).
* The maximum is lazy: it is renewed only when a score exceeds it by 2^8, so that most blocks rescale by 1
  (FlashAttention-4's conditional rescaling has the same threshold).
* Keys past the length are zeroed in shared memory, since 0 * NaN is NaN.
* A page id outside of the pool makes TMA read zeros, not memory; the rows are poisoned with NaN.

Frozen in a graph: pointers, shapes, strides, floats, and the two tensor maps of the cache and of the query.
Live: contents of `seq_lens`, `block_tables`, `cum_seq_lens_q`, `sinks` and tensor scales.

Sources: online softmax, Milakov and Gimelshein 2018; split KV, Flash-Decoding 2023; weight absorption,
DeepSeek-V2 2024, section 2.1.
"""

from __future__ import annotations

import math

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from gpu_tests.reference.combine import (
    admit_successor,
    combine,
    launch_options,
    partial_results,
    row_factor,
    rows_of_request,
    wait_for_predecessor,
)
from gpu_tests.reference.select import MLA_COLUMNS
from gpu_tests.reference.triton_decode import needed_bytes, splits_for

__all__ = ["needed_bytes", "paged_decode"]

LOG2E = math.log2(math.e)
ROWS = gl.constexpr(64)
KEYS = gl.constexpr(64)
LATENT, ROPE = gl.constexpr(MLA_COLUMNS[0]), gl.constexpr(MLA_COLUMNS[1])
STAGES = gl.constexpr(2)
LAZY = gl.constexpr(8.0)
"""By how many powers of two a score may exceed the running maximum before that is renewed."""

SCORE_LAYOUT = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
VALUE_LAYOUT = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 2], [16, 128, 16]))
TILE = gl.constexpr(gl.NVMMASharedLayout(128, 16, rank=2))
PAGE_TILE = gl.constexpr(gl.NVMMASharedLayout(128, 16, rank=3))
VECTOR = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))

SCORE_REGISTERS, LOAD_REGISTERS = gl.constexpr(160), gl.constexpr(24)
RUNTIME_INTEGERS = ["num_splits", "max_q_len", "max_seq_len", "num_pages", "table_row"]
"""Integers that must not be compiled in: one binary serves all batch sizes and lengths."""


@gluon.jit
def _load_role(
    q_latent_map, q_rope_map, latent_map, rope_map, q_latent, q_rope, latent, rope, q_full, full, free,
    pages, query_row, begin, end, PAGE: gl.constexpr,
):  # fmt: skip
    """Fills the query tile once, and one stage after the other."""
    mbarrier.expect(q_full, ROWS * (LATENT + ROPE) * 2)
    tma.async_copy_global_to_shared(q_latent_map, [query_row, 0], q_full, q_latent)
    tma.async_copy_global_to_shared(q_rope_map, [query_row, LATENT], q_full, q_rope)
    # One block ahead: a page id that is loaded when it is needed costs its latency in every block.
    next_page = gl.load(pages + begin * KEYS // PAGE, mask=begin < end, other=0)
    for block in range(begin, end):
        page = next_page
        next_page = gl.load(pages + (block + 1) * KEYS // PAGE, mask=block + 1 < end, other=0)
        step = block - begin
        stage = step % STAGES
        mbarrier.wait(free.index(stage), (step // STAGES & 1) ^ 1)
        mbarrier.expect(full.index(stage), KEYS * (LATENT + ROPE) * 2)
        slot = block * KEYS % PAGE
        tma.async_copy_global_to_shared(latent_map, [page, slot, 0], full.index(stage), latent.index(stage))
        tma.async_copy_global_to_shared(rope_map, [page, slot, LATENT], full.index(stage), rope.index(stage))


@gluon.jit
def _clear_dead_keys(latent, live_keys):
    """Zeroes rows `live_keys` and up of a latent tile: their weights are 0, but 0 * NaN is NaN."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [gl.num_warps(), 1], [1, 0])
    key = gl.arange(0, KEYS, layout=gl.SliceLayout(1, layout))
    for column in gl.static_range(0, LATENT, 64):
        part = latent.slice(column, 64, dim=1)
        part.store(gl.where((key < live_keys)[:, None], part.load(layout), 0.0))


@gluon.jit
def _score_role(
    q_latent, q_rope, latent, rope, shrinks, factors, q_full, full, weights_ready, factors_ready,
    pages, mask, sinks, lse_rows, scale, out_scale, out_scale_tensor, row_of_tile, begin, end, length, q_len,
    poisoned, lse_token, lse_head, num_pages, mask_row,
    HEADS: gl.constexpr, PAGE: gl.constexpr, MASK: gl.constexpr, SINKS: gl.constexpr,
    OUT_SCALE_TENSOR: gl.constexpr,
):  # fmt: skip
    """Scores and softmax of each block; at the end the factor of the values and the LSE of each row."""
    rows: gl.constexpr = gl.SliceLayout(1, SCORE_LAYOUT)
    row = row_of_tile + gl.arange(0, ROWS, layout=rows)
    token = row // HEADS
    live_row = token < q_len
    position = length - q_len + token
    key_of_block = gl.arange(0, KEYS, layout=gl.SliceLayout(0, SCORE_LAYOUT))
    top = gl.full([ROWS], float("-inf"), gl.float32, rows)
    total = gl.zeros([ROWS], gl.float32, rows)
    next_page = gl.load(pages + begin * KEYS // PAGE, mask=begin < end, other=0)
    mbarrier.wait(q_full, 0)
    for block in range(begin, end):
        page = next_page
        next_page = gl.load(pages + (block + 1) * KEYS // PAGE, mask=block + 1 < end, other=0)
        step = block - begin
        stage = step % STAGES
        mbarrier.wait(full.index(stage), step // STAGES & 1)
        scores = gl.zeros([ROWS, KEYS], gl.float32, SCORE_LAYOUT)
        keys = latent.index(stage).reshape([KEYS, LATENT])
        rope_keys = rope.index(stage).reshape([KEYS, ROPE])
        scores = warpgroup_mma(q_latent, keys.permute([1, 0]), scores, use_acc=False, is_async=True)
        scores = warpgroup_mma(q_rope, rope_keys.permute([1, 0]), scores, is_async=True)
        poisoned |= (page < 0) | (page >= num_pages)
        scores = warpgroup_mma_wait(0, deps=(scores,))
        scores *= scale
        if (block + 1) * KEYS > length - q_len + 1:
            key = block * KEYS + key_of_block
            visible = key[None, :] <= position[:, None]
            if MASK:
                draft = gl.maximum(key - (length - q_len), 0)
                in_draft = live_row[:, None] & ((key >= length - q_len) & (draft < q_len))[None, :]
                words = mask + token[:, None] * mask_row + (draft // 16)[None, :]
                bits = gl.load(words, mask=in_draft, other=0xFFFF).to(gl.int32)
                visible &= ((bits >> (draft % 16)[None, :]) & 1) == 1
            scores = gl.where(visible, scores, float("-inf"))
        peak = gl.max(scores, 1)
        new_top = gl.where(peak > top + LAZY, peak, top)
        finite_top = gl.where(new_top == float("-inf"), 0.0, new_top)
        shrink = gl.exp2(top - finite_top)
        weights = gl.exp2(scores - finite_top[:, None])
        total = total * shrink + gl.sum(weights, 1)
        top = new_top
        rope_keys.store(weights.to(gl.bfloat16))
        shrinks.index(stage).store(shrink)
        if (block + 1) * KEYS > length:
            _clear_dead_keys(keys, length - block * KEYS)
        fence_async_shared()
        mbarrier.arrive(weights_ready.index(stage))
    factor, lse = row_factor(
        top, total, poisoned, sinks, row % HEADS, out_scale, out_scale_tensor, SINKS, OUT_SCALE_TENSOR
    )
    factors.store(factor)
    mbarrier.arrive(factors_ready)
    gl.store(lse_rows + token * lse_token + row % HEADS * lse_head, lse, mask=live_row)


@gluon.jit
def _value_role(
    latent, rope, shrinks, factors, weights_ready, factors_ready, free,
    out_rows, out_token, out_head, row_of_tile, live_rows, begin, end,
    HEADS: gl.constexpr, DIRECT: gl.constexpr,
):  # fmt: skip
    """The weighted sum of each block; at the end its product with the factor of the row."""
    rows: gl.constexpr = gl.SliceLayout(1, VALUE_LAYOUT)
    acc = gl.zeros([ROWS, LATENT], gl.float32, VALUE_LAYOUT)
    for block in range(begin, end):
        step = block - begin
        stage = step % STAGES
        mbarrier.wait(weights_ready.index(stage), step // STAGES & 1)
        acc *= shrinks.index(stage).load(rows)[:, None]
        weights = rope.index(stage).reshape([ROWS, KEYS])
        values = latent.index(stage).reshape([KEYS, LATENT])
        acc = warpgroup_mma(weights, values, acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=(acc,))
        mbarrier.arrive(free.index(stage))
    mbarrier.wait(factors_ready, 0)
    factor = factors.load(rows)
    row = row_of_tile + gl.arange(0, ROWS, layout=rows)
    written = row < live_rows
    if not DIRECT:  # a row without keys in this split leaves its part as it was
        written &= factor != 0.0
    row_offset = (row // HEADS * out_token + row % HEADS * out_head)[:, None]
    column = gl.arange(0, LATENT, layout=gl.SliceLayout(0, VALUE_LAYOUT))
    result = (acc * factor[:, None]).to(out_rows.dtype.element_ty)
    gl.store(out_rows + row_offset + column[None, :], result, mask=written[:, None])


@gluon.jit(do_not_specialize=RUNTIME_INTEGERS)
def _mla_split(
    q_latent_map, q_rope_map, latent_map, rope_map, out, lse_out, part_out, part_lse,
    block_tables, seq_lens, cum_seq_lens_q, mask, sinks,
    score_scale, score_scale_tensor, out_scale, out_scale_tensor, out_token, out_head, lse_token,
    table_row, mask_request, mask_row, num_splits, max_q_len, max_seq_len, num_pages,
    HEADS: gl.constexpr, PAGE: gl.constexpr, RAGGED: gl.constexpr, MASK: gl.constexpr, SINKS: gl.constexpr,
    SCALE_TENSOR: gl.constexpr, OUT_SCALE_TENSOR: gl.constexpr, STRICT: gl.constexpr,
    DIRECT: gl.constexpr, OVERLAP: gl.constexpr,
):  # fmt: skip
    """One tile of rows (axis 0), one split (axis 1) of the keys of one request (axis 2).

    `DIRECT`: there is one split, and rows go to `out` and `lse_out`; else to `part_out` and `part_lse`.
    """
    row_of_tile = gl.program_id(0) * ROWS
    split = gl.program_id(1)
    request = gl.program_id(2)
    wait_for_predecessor(OVERLAP)
    admit_successor(OVERLAP)
    first_row, q_len = rows_of_request(request, cum_seq_lens_q, max_q_len, RAGGED)
    length = gl.load(seq_lens + request)
    poisoned = length > max_seq_len
    if DIRECT and STRICT:
        poisoned |= length <= 0
    length = gl.where(length > max_seq_len, 0, length)
    blocks = gl.cdiv(length, KEYS)
    per_split = gl.cdiv(blocks, num_splits)
    begin = split * per_split
    end = gl.minimum(begin + per_split, blocks)
    scale = score_scale
    if SCALE_TENSOR:
        scale *= gl.load(score_scale_tensor)
    if DIRECT:
        out_rows = out + first_row * out_token
        lse_rows, lse_head = lse_out + first_row * lse_token, 1
    else:
        # As in `combine`: split `s` of row `r` stands at `r * num_splits + s`.
        first_part = request.to(gl.int64) * max_q_len * HEADS * num_splits + split
        out_rows, out_token, out_head = part_out + first_part * LATENT, HEADS * num_splits * LATENT, num_splits * LATENT
        lse_rows, lse_token, lse_head = part_lse + first_part, HEADS * num_splits, num_splits
    pages = block_tables + request.to(gl.int64) * table_row

    q_latent = gl.allocate_shared_memory(gl.bfloat16, [ROWS, LATENT], TILE)
    q_rope = gl.allocate_shared_memory(gl.bfloat16, [ROWS, ROPE], TILE)
    latent = gl.allocate_shared_memory(gl.bfloat16, [STAGES, 1, KEYS, LATENT], PAGE_TILE)
    rope = gl.allocate_shared_memory(gl.bfloat16, [STAGES, 1, KEYS, ROPE], PAGE_TILE)
    shrinks = gl.allocate_shared_memory(gl.float32, [STAGES, ROWS], VECTOR)
    factors = gl.allocate_shared_memory(gl.float32, [ROWS], VECTOR)
    q_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    factors_ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    weights_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(q_full, count=1)
    mbarrier.init(factors_ready, count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(weights_ready.index(stage), count=1)
        mbarrier.init(free.index(stage), count=1)

    gl.warp_specialize(
        [
            (_value_role, (latent, rope, shrinks, factors, weights_ready, factors_ready, free,
                           out_rows, out_token, out_head, row_of_tile, q_len * HEADS, begin, end,
                           HEADS, DIRECT)),
            (_score_role, (q_latent, q_rope, latent, rope, shrinks, factors,
                           q_full, full, weights_ready, factors_ready,
                           pages, mask + request * mask_request if MASK else mask, sinks, lse_rows,
                           scale, out_scale if DIRECT else 1.0, out_scale_tensor, row_of_tile, begin, end,
                           length, q_len, poisoned, lse_token, lse_head, num_pages, mask_row,
                           HEADS, PAGE, MASK, SINKS and DIRECT, OUT_SCALE_TENSOR and DIRECT)),
            (_load_role, (q_latent_map, q_rope_map, latent_map, rope_map, q_latent, q_rope, latent, rope,
                          q_full, full, free, pages, (first_row * HEADS).to(gl.int32) + row_of_tile, begin, end, PAGE)),
        ],
        [4, 1],
        [SCORE_REGISTERS, LOAD_REGISTERS],
    )  # fmt: skip


def tensor_maps(query: Tensor, k: Tensor) -> tuple[TensorDescriptor, ...]:
    """TMA maps of `query` [num_tokens, H, 576] as rows, and of the cache `k` [P, page, 1, 576]."""
    rows = query.flatten(0, 1)
    pages = k.squeeze(2)
    keys = min(KEYS.value, k.shape[1])
    return (
        TensorDescriptor(rows, rows.shape, rows.stride(), [ROWS.value, LATENT.value], TILE.value),
        TensorDescriptor(rows, rows.shape, rows.stride(), [ROWS.value, ROPE.value], TILE.value),
        TensorDescriptor(pages, pages.shape, pages.stride(), [1, keys, LATENT.value], PAGE_TILE.value),
        TensorDescriptor(pages, pages.shape, pages.stride(), [1, keys, ROPE.value], PAGE_TILE.value),
    )


@torch.library.custom_op("nightcap::paged_decode_gluon", mutates_args=("out", "lse", "workspace"))
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
) -> None:
    """Arguments as in `decode._Launch`, plus the workspace; rows that the offsets do not cover are not
    written. `v` is None and `window_left` -1: this is MLA.
    """
    batch, heads = len(seq_lens), query.shape[1]
    num_splits = splits_for(out, k, batch, max_q_len, max_seq_len)
    part_out, part_lse = partial_results(workspace, batch * max_q_len * heads, num_splits, LATENT.value)
    _mla_split[(triton.cdiv(heads * max_q_len, ROWS.value), num_splits, batch)](
        *tensor_maps(query, k), out, lse, part_out, part_lse,
        block_tables, seq_lens, cum_seq_lens_q, mask, sinks,
        bmm1_scale * LOG2E, bmm1_scale_tensor, bmm2_scale, bmm2_scale_tensor,
        out.stride(0), out.stride(1), lse.stride(0), block_tables.stride(0),
        0 if mask is None else mask.stride(0), 0 if mask is None else mask.stride(1),
        num_splits, max_q_len, max_seq_len, k.shape[0],
        HEADS=heads, PAGE=k.shape[1], RAGGED=cum_seq_lens_q is not None, MASK=mask is not None,
        SINKS=sinks is not None, SCALE_TENSOR=bmm1_scale_tensor is not None,
        OUT_SCALE_TENSOR=bmm2_scale_tensor is not None, STRICT=strict, DIRECT=num_splits == 1,
        num_warps=8, **launch_options(query.device),
    )  # fmt: skip
    if num_splits > 1:
        combine(
            out, lse, part_out, part_lse, seq_lens, cum_seq_lens_q, sinks, bmm2_scale, bmm2_scale_tensor,
            num_splits=num_splits, max_q_len=max_q_len, strict=strict,
        )  # fmt: skip
