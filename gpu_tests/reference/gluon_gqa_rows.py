"""MHA, GQA and MQA decode of up to 16 query rows over an fp8 cache (e4m3) on Hopper in Triton Gluon: a group of 8 heads
with one or two tokens.

As in `gluon_mla_rows` both products are made the other way round: K Q^T is [keys, rows] and V^T P^T [columns, rows].
The first operand of Hopper's matrix instruction may come from registers, so keys and values go from the tiles in fp8
to registers, become float16 there, and are multiplied. Tiles in float16, which `gluon_gqa` writes and reads again,
would make shared memory the limit.

    load    (1 warp):   wait free   -> TMA of the keys, then of the values of a block [64, D] -> full
    attend  (4 warps):  wait keys   -> to registers, K Q^T, mask, softmax, P into shared memory
                        wait values -> to registers, V^T P^T -> free

* Values of slots that no row may see (past the length, left of the window) are zeroed in registers, since 0 * NaN is
  NaN.
* More rows would be more for each thread to hold and to reduce: with 64 the time doubles.
* Two CTAs on an SM, pages, the query in float16, the lazy maximum and page ids outside of the pool are as in
  `gluon_gqa`.

Frozen in a graph: pointers, shapes, strides, floats, and the two tensor maps of the cache.
Live: contents of `query`, `seq_lens`, `block_tables`, `cum_seq_lens_q`, `mask`, `sinks` and tensor scales.

Sources: online softmax, Milakov and Gimelshein 2018; split KV, Flash-Decoding 2023; grouped queries, Ainslie et al.
2023.
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
    warpgroup_mma,
    warpgroup_mma_wait,
)

from gpu_tests.reference.combine import admit_successor, wait_for_predecessor
from gpu_tests.reference.division import Division
from gpu_tests.reference.gluon_gqa_load import KEYS, load_role, tensor_map
from gpu_tests.reference.gluon_parts import (
    barriers,
    finish_rows,
    hides_a_key,
    in_float16,
    largest_of,
    page_ids,
    power_below,
    run_of_program,
)
from gpu_tests.reference.gluon_rows import LAYOUT, OF_ROWS, OPERAND, ROWS, WEIGHTS, mask_scores, soften
from gpu_tests.reference.pieces import piece_of

LOG2E = math.log2(math.e)
TILES = gl.constexpr(6)
"""Tiles of keys or values that a CTA holds."""

FIRST_OPERAND = gl.constexpr(gl.DotOperandLayout(0, LAYOUT.value, 2))
LOAD_REGISTERS, REGISTERS = gl.constexpr(24), 128
"""A thread of the load role, and on average over the roles: what two CTAs of 8 warps on an SM can have."""

RUNTIME_INTEGERS = ["batch", "num_splits", "max_q_len", "max_seq_len", "num_pages", "window_left", "table_row"]
"""Integers that must not be compiled in: one binary serves all batch sizes and lengths."""


def fits(query: Tensor, k: Tensor, max_q_len: int) -> bool:
    """Whether the kernel can run what `select.check_gluon` admits of MHA, GQA and MQA."""
    return k.dtype == torch.float8_e4m3fn and query.shape[1] // k.shape[2] * max_q_len <= ROWS.value


@gluon.jit
def _attend_role(
    tiles, q_tile, weight_tile, full, free, query, out, lse_out, part_out, part_lse, block_tables, mask, sinks,
    score_scale, score_scale_tensor, out_scale, out_scale_tensor, q_token, q_head, out_token, out_head, lse_token,
    table_row, mask_request, mask_row, num_pages, kv_head,
    count, first, start, run_begin, run_end, split, num_splits,
    seq_lens, cum_seq_lens_q, max_q_len, max_seq_len, window_left,
    GROUP: gl.constexpr, KV_HEADS: gl.constexpr, PAGE: gl.constexpr, D: gl.constexpr,
    RAGGED: gl.constexpr, WINDOW: gl.constexpr, MASK: gl.constexpr, SINKS: gl.constexpr,
    SCALE_TENSOR: gl.constexpr, OUT_SCALE_TENSOR: gl.constexpr, STRICT: gl.constexpr, DIRECT: gl.constexpr,
    BALANCED: gl.constexpr, OVERLAP: gl.constexpr,
):  # fmt: skip
    """Scores, softmax and the weighted sum of values of each block; at the end of a piece its results."""
    load_layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [gl.num_warps(), 1], [1, 0])
    row = gl.arange(0, ROWS, layout=OF_ROWS)
    token = row // GROUP
    head = kv_head * GROUP + row % GROUP
    key_of_block = gl.arange(0, KEYS, layout=gl.SliceLayout(1, LAYOUT))
    key_of_value = gl.arange(0, KEYS, layout=gl.SliceLayout(0, FIRST_OPERAND))
    column = gl.arange(0, D, layout=gl.SliceLayout(1, LAYOUT))
    q_row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, load_layout))
    q_column = gl.arange(0, D, layout=gl.SliceLayout(0, load_layout))
    scale = score_scale
    if SCALE_TENSOR:
        scale *= gl.load(score_scale_tensor)
    before = 0
    for turn in range(count):
        request, first_row, q_len, length, begin, end, start = piece_of(
            turn, first, start, run_begin, run_end, split, num_splits,
            seq_lens, cum_seq_lens_q, max_q_len, max_seq_len, window_left, RAGGED, BALANCED, WINDOW, KEYS,
        )  # fmt: skip
        q_tokens = first_row + q_row // GROUP
        q_rows = query + q_tokens * q_token + (kv_head * GROUP + q_row % GROUP) * q_head
        q = gl.load(q_rows[:, None] + q_column[None, :], mask=(q_row < q_len * GROUP)[:, None], other=0.0)
        power = power_below(largest_of(q))
        row_scale = gl.convert_layout(power, OF_ROWS) * scale
        q_tile.store(in_float16(q, power))
        fence_async_shared()

        poisoned = length > max_seq_len
        if DIRECT and STRICT:
            poisoned |= length <= 0
        live_row = token < q_len
        position = length - q_len + token
        pages = block_tables + request.to(gl.int64) * table_row
        next_ids = page_ids(pages, begin, end, length, PAGE, KEYS)
        top = gl.full([ROWS], float("-inf"), gl.float32, OF_ROWS)
        total = gl.zeros([KEYS, ROWS], gl.float32, LAYOUT)
        acc = gl.zeros([D, ROWS], gl.float32, LAYOUT)
        for block in range(begin, end):
            ids = next_ids
            next_ids = page_ids(pages, block + 1, end, length, PAGE, KEYS)
            for part in gl.static_range(len(ids)):
                poisoned |= (ids[part] < 0) | (ids[part] >= num_pages)
            first_seen = length - q_len - window_left if WINDOW else 0
            ring = 2 * (before + block - begin)
            mbarrier.wait(full.index(ring % TILES), ring // TILES & 1)
            keys = tiles.index(ring % TILES).reshape([KEYS, D]).load(FIRST_OPERAND).to(gl.float16)
            scores = gl.zeros([KEYS, ROWS], gl.float32, LAYOUT)
            scores = warpgroup_mma(keys, q_tile.permute([1, 0]), scores, use_acc=False, is_async=True)
            scores = warpgroup_mma_wait(0, deps=(scores,))
            mbarrier.arrive(free.index(ring % TILES))

            scores *= row_scale[None, :]
            edge = hides_a_key(block, length, q_len, KEYS, MASK)
            if WINDOW:
                edge |= block * KEYS < first_seen + q_len - 1
            if edge:
                scores = mask_scores(
                    scores, block * KEYS + key_of_block, position, token, request, length, q_len, window_left,
                    mask, mask_request, mask_row, WINDOW, MASK,
                )  # fmt: skip
            weights, shrink, top, total = soften(scores, top, total)
            acc *= shrink
            weight_tile.store(weights.to(gl.float16))
            fence_async_shared()

            ring += 1
            mbarrier.wait(full.index(ring % TILES), ring // TILES & 1)
            values = tiles.index(ring % TILES).reshape([KEYS, D]).permute([1, 0]).load(FIRST_OPERAND).to(gl.float16)
            if ((block + 1) * KEYS > length) | (block * KEYS < first_seen):
                key = block * KEYS + key_of_value
                values = gl.where(((key >= first_seen) & (key < length))[None, :], values, 0.0)
            acc = warpgroup_mma(values, weight_tile, acc, is_async=True)
            acc = warpgroup_mma_wait(0, deps=(acc,))
            mbarrier.arrive(free.index(ring % TILES))
        before += gl.maximum(end - begin, 0)

        if turn + 1 == count:
            admit_successor(OVERLAP)
        factor, rows, written = finish_rows(
            top, gl.sum(total, 0), poisoned, token, head, live_row, first_row, request, split, num_splits, max_q_len,
            sinks, out, lse_out, part_out, part_lse, out_scale, out_scale_tensor, out_token, out_head, lse_token,
            GROUP * KV_HEADS, D, SINKS, OUT_SCALE_TENSOR, DIRECT, BALANCED,
        )  # fmt: skip
        acc *= factor[None, :]
        gl.store(rows[None, :] + column[:, None], acc.to(rows.dtype.element_ty), mask=written[None, :])


@gluon.jit(do_not_specialize=RUNTIME_INTEGERS)
def _gqa_decode(
    k_map, v_map, query, out, lse_out, part_out, part_lse, block_tables, seq_lens, cum_seq_lens_q, mask, sinks,
    score_scale, score_scale_tensor, out_scale, out_scale_tensor, q_token, q_head, out_token, out_head, lse_token,
    table_row, mask_request, mask_row, batch, num_splits, max_q_len, max_seq_len, num_pages, window_left,
    GROUP: gl.constexpr, KV_HEADS: gl.constexpr, PAGE: gl.constexpr, D: gl.constexpr,
    RAGGED: gl.constexpr, WINDOW: gl.constexpr, MASK: gl.constexpr, SINKS: gl.constexpr,
    SCALE_TENSOR: gl.constexpr, OUT_SCALE_TENSOR: gl.constexpr, STRICT: gl.constexpr,
    DIRECT: gl.constexpr, BALANCED: gl.constexpr, BATCH: gl.constexpr, OVERLAP: gl.constexpr,
):  # fmt: skip
    """All rows on one KV head (axis 0), one split (axis 1) of the keys of one request (axis 2), or `BALANCED` one of
    `num_splits` equal runs over all requests (axis 1).

    `DIRECT`: there is one split, and rows go to `out` and `lse_out`; else to `part_out` and `part_lse`.
    """
    kv_head = gl.program_id(0)
    split = gl.program_id(1)
    tiles = gl.allocate_shared_memory(k_map.dtype, [TILES, 1, 1, KEYS, D], k_map.layout)
    q_tile = gl.allocate_shared_memory(gl.float16, [ROWS, D], OPERAND)
    weight_tile = gl.allocate_shared_memory(gl.float16, [KEYS, ROWS], WEIGHTS)
    full, free = barriers(TILES), barriers(TILES)
    wait_for_predecessor(OVERLAP)
    first, count, start, run_begin, run_end = run_of_program(
        split, num_splits, seq_lens, batch, max_seq_len, KEYS, BATCH, BALANCED
    )
    gl.warp_specialize(
        [
            (_attend_role, (tiles, q_tile, weight_tile, full, free, query, out, lse_out, part_out, part_lse,
                            block_tables, mask, sinks, score_scale, score_scale_tensor,
                            out_scale, out_scale_tensor, q_token, q_head, out_token, out_head, lse_token,
                            table_row, mask_request, mask_row, num_pages, kv_head,
                            count, first, start, run_begin, run_end, split, num_splits,
                            seq_lens, cum_seq_lens_q, max_q_len, max_seq_len, window_left,
                            GROUP, KV_HEADS, PAGE, D, RAGGED, WINDOW, MASK, SINKS,
                            SCALE_TENSOR, OUT_SCALE_TENSOR, STRICT, DIRECT, BALANCED, OVERLAP)),
            (load_role, (k_map, v_map, tiles, full, free, block_tables, table_row, kv_head,
                         count, first, start, run_begin, run_end, split, num_splits,
                         seq_lens, cum_seq_lens_q, max_q_len, max_seq_len, window_left,
                         PAGE, TILES, RAGGED, BALANCED, WINDOW)),
        ],
        [1],
        [LOAD_REGISTERS],
    )  # fmt: skip


def launch(
    work: Division,
    out: Tensor,
    lse: Tensor,
    parts: tuple[Tensor, Tensor],
    query: Tensor,
    k: Tensor,
    v: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    cum_seq_lens_q: Tensor | None,
    mask: Tensor | None,
    sinks: Tensor | None,
    bmm1_scale: float,
    bmm1_scale_tensor: Tensor | None,
    bmm2_scale: float,
    bmm2_scale_tensor: Tensor | None,
    window_left: int,
    strict: bool,
) -> None:
    """The first half of a launch that `fits`, as `gluon_gqa.paged_decode` divides it."""
    batch, kv_heads = len(seq_lens), k.shape[2]
    group = query.shape[1] // kv_heads
    _gqa_decode[(kv_heads, *work.grid)](
        tensor_map(k), tensor_map(v), query, out, lse, *parts,
        block_tables, seq_lens, cum_seq_lens_q, mask, sinks,
        bmm1_scale * LOG2E, bmm1_scale_tensor, bmm2_scale, bmm2_scale_tensor,
        query.stride(0), query.stride(1), out.stride(0), out.stride(1), lse.stride(0), block_tables.stride(0),
        0 if mask is None else mask.stride(0), 0 if mask is None else mask.stride(1),
        batch, work.num_splits, work.max_q_len, work.max_seq_len, k.shape[0], window_left,
        GROUP=group, KV_HEADS=kv_heads, PAGE=k.shape[1], D=k.shape[3],
        RAGGED=cum_seq_lens_q is not None, WINDOW=window_left >= 0, MASK=mask is not None,
        SINKS=sinks is not None, SCALE_TENSOR=bmm1_scale_tensor is not None,
        OUT_SCALE_TENSOR=bmm2_scale_tensor is not None, STRICT=strict,
        DIRECT=work.direct, BALANCED=work.balanced,
        BATCH=triton.next_power_of_2(batch) if work.balanced else 1,
        num_warps=4, maxnreg=REGISTERS, **work.options(query.device),
    )  # fmt: skip
