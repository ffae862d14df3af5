"""MLA decode on Hopper in Triton Gluon: three roles in one CTA, split KV, then the shared combine.

One CTA takes 64 packed query rows (query tokens x heads) of one request and one split of its keys, in blocks
of 64 keys; launches with up to 16 rows go to `gluon_mla_rows`, unless it lacks their page size. The design is
FlashMLA's problem (an accumulator of 64 x 512 fp32 fills half of the register file, so that two output tiles for
ping-pong do not fit) solved by roles that hand blocks over in one direction:

    load    (1 warp):   wait free       -> TMA of the two latent halves [64, 256] and of rope [64, 64] -> full
    scores  (4 warps):  wait full       -> Q K^T, mask, softmax -> P into the rope tile -> weights_ready
    values  (8 warps):  wait weights    -> rescale, P V for 512 columns -> free

* The left half of Q lives in the registers of the score role; it takes the first turn of the ring of latent
  halves. That leaves room for five halves, two and a half blocks, in place of two blocks (231,040 bytes in all).
* On the balanced grid a CTA takes several pieces, one request after the other: the ring turns on, and the
  output of a piece is written while the scores of the next one are made.
* The rope columns of a block are dead once its scores are known, so P takes their place.
* The maximum is lazy: it is renewed only when a score exceeds it by 2^8, so that most blocks rescale by 1
  (FlashAttention-4's conditional rescaling has the same threshold).
* Where several tiles share the keys of a request the tensor cores are the limit. P V of a block is then held
  back (`GATE`) until Q K^T of the next block is done: its instructions, which are wider, would take the
  tensor cores away from it, and the softmax of the next block would wait.
* Keys past the length are zeroed in shared memory, since 0 * NaN is NaN.
* A page id outside of the pool makes TMA read zeros, not memory; the rows are poisoned with NaN.

A cache in fp8 is converted by the load role, which then has four warps (see `gluon_fp8`):

    load    (4 warps):  global memory -> registers -> wait free -> bf16 in the tiles of halves and rope -> full

The other roles see the same tiles. The registers come from the score role, so that all of Q lives in shared memory,
and two blocks beside it.

Frozen in a graph: pointers, shapes, strides, floats, and the tensor maps of the cache in bf16 and of the query.
Live: contents of `query`, `seq_lens`, `block_tables`, `cum_seq_lens_q`, `mask`, `sinks` and tensor scales.

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

from gpu_tests.reference import gluon_mla_rows
from gpu_tests.reference.combine import (
    admit_successor,
    row_factor,
    wait_for_predecessor,
)
from gpu_tests.reference.division import divide
from gpu_tests.reference.gluon_fp8 import (
    ROPE_PANEL,
    WORDS,
    load_block,
    rows_of_keys,
    store_panels,
    words_of,
)
from gpu_tests.reference.gluon_parts import (
    barriers,
    cache_map,
    clear_keys_outside,
    hides_a_key,
    page_ids,
    run_of_program,
    visible_in_draft,
)
from gpu_tests.reference.pieces import first_part_of, piece_of
from gpu_tests.reference.select import MLA_COLUMNS

LOG2E = math.log2(math.e)
ROWS = gl.constexpr(64)
KEYS = gl.constexpr(64)
LATENT, ROPE = gl.constexpr(MLA_COLUMNS[0]), gl.constexpr(MLA_COLUMNS[1])
HALF = gl.constexpr(MLA_COLUMNS[0] // 2)
BF16_TILES, BF16_STAGES = gl.constexpr(5), gl.constexpr(3)
FP8_TILES, FP8_STAGES = gl.constexpr(4), gl.constexpr(2)
"""Latent halves and rope tiles that a CTA holds over a cache in bf16 and in fp8."""

LAZY = gl.constexpr(8.0)
"""By how many powers of two a score may exceed the running maximum before that is renewed."""

SCORE_LAYOUT = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
QUERY_LAYOUT = gl.constexpr(gl.DotOperandLayout(0, SCORE_LAYOUT.value, 2))
VALUE_LAYOUT = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 2], [16, 128, 16]))
TILE = gl.constexpr(gl.NVMMASharedLayout(128, 16, rank=2))
PAGE_TILE = gl.constexpr(gl.NVMMASharedLayout(128, 16, rank=3))
VECTOR = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))

BF16_SCORE_REGISTERS, BF16_LOAD_REGISTERS = gl.constexpr(168), gl.constexpr(24)
FP8_SCORE_REGISTERS, FP8_LOAD_REGISTERS = gl.constexpr(80), gl.constexpr(112)
"""Registers a thread; four warps of each role and the eight of the values, with 160 a thread, have all of them."""

RUNTIME_INTEGERS = ["k_page", "k_slot", "batch", "num_splits", "max_q_len", "max_seq_len", "num_pages", "table_row"]
"""Integers that must not be compiled in: one binary serves all batch sizes and lengths."""


@gluon.jit
def _load_role(
    q_half_map, q_rope_map, half_map, rope_map, q_halves, q_rope, tiles, rope,
    q_full, q_free, full, free, rope_full, rope_free,
    block_tables, table_row, row_of_tile, count, first, start, run_begin, run_end, split, num_splits,
    seq_lens, cum_seq_lens_q, max_q_len, max_seq_len,
    HEADS: gl.constexpr, PAGE: gl.constexpr, RAGGED: gl.constexpr, BALANCED: gl.constexpr,
):  # fmt: skip
    """Fills the query tiles of each piece, and one half of a block after the other.

    The ring of halves turns once for the left half of Q and twice for every block.
    """
    STAGES: gl.constexpr = rope.shape[0]
    before = 0
    for turn in range(count):
        request, first_row, _, length, begin, end, start = piece_of(
            turn, first, start, run_begin, run_end, split, num_splits,
            seq_lens, cum_seq_lens_q, max_q_len, max_seq_len, -1, RAGGED, BALANCED, False, KEYS,
        )  # fmt: skip
        query_row = (first_row * HEADS).to(gl.int32) + row_of_tile
        pages = block_tables + request.to(gl.int64) * table_row
        # One block ahead: a page id that is loaded when it is needed costs its latency in every block.
        next_ids = page_ids(pages, begin, end, length, PAGE, KEYS)
        _load_half(q_half_map, tiles, full, free, 2 * before + turn, (0,), query_row, 0, ROWS)
        # The rest of the query comes behind the first block: its tiles are in use for longer than those.
        for block in range(begin, gl.maximum(end, begin + 1)):
            ids = next_ids
            next_ids = page_ids(pages, block + 1, end, length, PAGE, KEYS)
            step = before + block - begin
            if block < end:
                slot = block * KEYS % PAGE
                ring = _ring_of(step, turn, False)
                _load_half(half_map, tiles, full, free, ring, ids, slot, 0, PAGE)
                stage = step % STAGES
                mbarrier.wait(rope_free.index(stage), (step // STAGES & 1) ^ 1)
                mbarrier.expect(rope_full.index(stage), KEYS * ROPE * 2)
                _load_pages(rope_map, rope.index(stage), rope_full.index(stage), ids, slot, LATENT, PAGE)
                _load_half(half_map, tiles, full, free, ring + 1, ids, slot, HALF, PAGE)
            if block == begin:
                mbarrier.wait(q_free, (turn & 1) ^ 1)
                mbarrier.expect(q_full, ROWS * (HALF + ROPE) * 2)
                tma.async_copy_global_to_shared(q_half_map, [0, query_row, HALF], q_full, q_halves.index(0))
                tma.async_copy_global_to_shared(q_rope_map, [query_row, LATENT], q_full, q_rope)
        before += gl.maximum(end - begin, 0)


@gluon.jit
def _load_half(half_map, tiles, full, free, ring, ids, row, column, PAGE: gl.constexpr):
    """Fills the tile of the ring whose turn it is with half the latent columns of a block or of the query."""
    TILES: gl.constexpr = tiles.shape[0]
    tile = ring % TILES
    mbarrier.wait(free.index(tile), (ring // TILES & 1) ^ 1)
    mbarrier.expect(full.index(tile), KEYS * HALF * 2)
    _load_pages(half_map, tiles.index(tile), full.index(tile), ids, row, column, PAGE)


@gluon.jit
def _load_pages(page_map, tile, full, ids, row, column, PAGE: gl.constexpr):
    """Columns from `column` of a block of keys, which lies in the pages `ids`, from `row` of the first one."""
    if PAGE < KEYS:
        for part in gl.static_range(len(ids)):
            rows = tile.slice(part * PAGE, PAGE, dim=1)
            tma.async_copy_global_to_shared(page_map, [ids[part], 0, column], full, rows)
    else:
        tma.async_copy_global_to_shared(page_map, [ids[0], row, column], full, tile)


@gluon.jit
def _ring_of(step, turn, QUANTIZED: gl.constexpr):
    """The turn of the ring of halves at which the left half of a block comes; the right one follows."""
    return 2 * step if QUANTIZED else 2 * step + turn + 1


@gluon.jit
def _load_and_convert_role(
    q_half_map, q_rope_map, k, k_page, k_slot, q_halves, q_rope, tiles, rope,
    q_full, q_free, full, free, rope_full, rope_free, block_tables, table_row, num_pages,
    row_of_tile, count, first, start, run_begin, run_end, split, num_splits,
    seq_lens, cum_seq_lens_q, max_q_len, max_seq_len,
    HEADS: gl.constexpr, PAGE: gl.constexpr, RAGGED: gl.constexpr, BALANCED: gl.constexpr,
):  # fmt: skip
    """As `_load_role`, over a cache in fp8 (see `gluon_fp8`). All of Q has tiles of its own."""
    STAGES: gl.constexpr = rope.shape[0]
    key_of_block = gl.arange(0, KEYS, layout=gl.SliceLayout(1, WORDS))
    before = 0
    for turn in range(count):
        request, first_row, _, length, begin, end, start = piece_of(
            turn, first, start, run_begin, run_end, split, num_splits,
            seq_lens, cum_seq_lens_q, max_q_len, max_seq_len, -1, RAGGED, BALANCED, False, KEYS,
        )  # fmt: skip
        pages = block_tables + request.to(gl.int64) * table_row
        limit = gl.minimum(length, end * KEYS)
        key = begin * KEYS + key_of_block
        page = gl.load(pages + key // PAGE, mask=key < limit, other=0)
        query_row = (first_row * HEADS).to(gl.int32) + row_of_tile
        mbarrier.wait(q_free, (turn & 1) ^ 1)
        mbarrier.expect(q_full, ROWS * (LATENT + ROPE) * 2)
        tma.async_copy_global_to_shared(q_half_map, [0, query_row, 0], q_full, q_halves.index(0))
        tma.async_copy_global_to_shared(q_half_map, [0, query_row, HALF], q_full, q_halves.index(1))
        tma.async_copy_global_to_shared(q_rope_map, [query_row, LATENT], q_full, q_rope)
        if begin < end:
            panels = load_block(rows_of_keys(k, k_page, k_slot, page, key, num_pages, PAGE))
            next_key = key + KEYS
            page = gl.load(pages + next_key // PAGE, mask=next_key < limit, other=0)
            for block in range(begin, end):
                step = before + block - begin
                stage, phase = step % STAGES, step // STAGES & 1
                left, right = 2 * stage, 2 * stage + 1  # as `_ring_of` says
                live = next_key < limit + KEYS
                mbarrier.wait(free.index(left), phase ^ 1)
                store_panels(panels, 0, live, tiles.index(left))
                _hand_over(full.index(left))
                mbarrier.wait(rope_free.index(stage), phase ^ 1)
                store_panels(panels, ROPE_PANEL, live, rope.index(stage))
                _hand_over(rope_full.index(stage))
                mbarrier.wait(free.index(right), phase ^ 1)
                store_panels(panels, ROPE_PANEL + 1, live, tiles.index(right))
                _hand_over(full.index(right))
                # No load may be in flight when the role ends: it gives its registers back.
                if block + 1 < end:
                    panels = load_block(rows_of_keys(k, k_page, k_slot, page, next_key, num_pages, PAGE))
                next_key += KEYS
                page = gl.load(pages + next_key // PAGE, mask=next_key < limit, other=0)
        before += gl.maximum(end - begin, 0)


@gluon.jit
def _hand_over(full):
    """A tile that ordinary stores have filled goes to the matrix instructions."""
    fence_async_shared()
    mbarrier.arrive(full)


@gluon.jit
def _score_role(
    q_halves, q_rope, tiles, rope, shrinks, factors, q_full, q_free, full, free, rope_full, scores_ready,
    weights_ready, factors_ready, factors_free, block_tables, table_row, mask, mask_request, mask_row, sinks,
    lse_out, lse_token, part_lse, score_scale, score_scale_tensor, out_scale, out_scale_tensor, num_pages,
    row_of_tile, count, first, start, run_begin, run_end, split, num_splits,
    seq_lens, cum_seq_lens_q, max_q_len, max_seq_len,
    HEADS: gl.constexpr, PAGE: gl.constexpr, RAGGED: gl.constexpr, MASK: gl.constexpr, SINKS: gl.constexpr,
    SCALE_TENSOR: gl.constexpr, OUT_SCALE_TENSOR: gl.constexpr, STRICT: gl.constexpr, DIRECT: gl.constexpr,
    BALANCED: gl.constexpr, QUANTIZED: gl.constexpr,
):  # fmt: skip
    """Scores and softmax of each block; at the end of a piece the factor of the values and the LSE of a row."""
    TILES: gl.constexpr = tiles.shape[0]
    STAGES: gl.constexpr = rope.shape[0]
    PAGES: gl.constexpr = max(KEYS.value // PAGE, 1)  # of a block
    rows: gl.constexpr = gl.SliceLayout(1, SCORE_LAYOUT)
    row = row_of_tile + gl.arange(0, ROWS, layout=rows)
    token = row // HEADS
    key_of_block = gl.arange(0, KEYS, layout=gl.SliceLayout(0, SCORE_LAYOUT))
    page_of_block = gl.arange(0, PAGES, layout=gl.BlockedLayout([max(PAGES // 32, 1)], [32], [4], [0]))
    q_right = q_halves.index(q_halves.shape[0] - 1).reshape([ROWS, HALF])
    scale = score_scale
    if SCALE_TENSOR:
        scale *= gl.load(score_scale_tensor)
    before = 0
    for turn in range(count):
        request, first_row, q_len, length, begin, end, start = piece_of(
            turn, first, start, run_begin, run_end, split, num_splits,
            seq_lens, cum_seq_lens_q, max_q_len, max_seq_len, -1, RAGGED, BALANCED, False, KEYS,
        )  # fmt: skip
        poisoned = length > max_seq_len
        if DIRECT and STRICT:
            poisoned |= length <= 0
        live_row = token < q_len
        position = length - q_len + token
        pages = block_tables + request.to(gl.int64) * table_row
        top = gl.full([ROWS], float("-inf"), gl.float32, rows)
        total = gl.zeros([ROWS], gl.float32, rows)
        outside = gl.zeros_like(page_of_block)
        if QUANTIZED:
            q_left = q_halves.index(0).reshape([ROWS, HALF])
        else:
            ring = 2 * before + turn
            mbarrier.wait(full.index(ring % TILES), ring // TILES & 1)
            q_left = tiles.index(ring % TILES).reshape([ROWS, HALF]).load(QUERY_LAYOUT)
            fence_async_shared()  # the loads have to be done when TMA overwrites the tile
            mbarrier.arrive(free.index(ring % TILES))
        mbarrier.wait(q_full, turn & 1)
        for block in range(begin, end):
            has_keys = block * KEYS + page_of_block * PAGE < length
            ids = gl.load(pages + block * KEYS // PAGE + page_of_block, mask=has_keys, other=0)
            step = before + block - begin
            stage = step % STAGES
            ring = _ring_of(step, turn, QUANTIZED)
            left = tiles.index(ring % TILES).reshape([KEYS, HALF])
            right = tiles.index((ring + 1) % TILES).reshape([KEYS, HALF])
            rope_keys = rope.index(stage).reshape([KEYS, ROPE])
            scores = gl.zeros([ROWS, KEYS], gl.float32, SCORE_LAYOUT)
            mbarrier.wait(full.index(ring % TILES), ring // TILES & 1)
            scores = warpgroup_mma(q_left, left.permute([1, 0]), scores, use_acc=False, is_async=True)
            mbarrier.wait(rope_full.index(stage), step // STAGES & 1)
            scores = warpgroup_mma(q_rope, rope_keys.permute([1, 0]), scores, is_async=True)
            mbarrier.wait(full.index((ring + 1) % TILES), (ring + 1) // TILES & 1)
            scores = warpgroup_mma(q_right, right.permute([1, 0]), scores, is_async=True)
            outside |= ((ids < 0) | (ids >= num_pages)).to(gl.int32)
            scores = warpgroup_mma_wait(0, deps=(scores,))
            mbarrier.arrive(scores_ready.index(step % 2))
            scores *= scale
            if hides_a_key(block, length, q_len, KEYS, MASK):
                key = block * KEYS + key_of_block
                visible = key[None, :] <= position[:, None]
                if MASK:
                    visible &= visible_in_draft(
                        key[None, :], token[:, None], length, q_len, mask + request * mask_request, mask_row
                    )
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
            if not QUANTIZED and (block + 1) * KEYS > length:
                clear_keys_outside(left, 0, length - block * KEYS)
                clear_keys_outside(right, 0, length - block * KEYS)
            fence_async_shared()
            mbarrier.arrive(weights_ready.index(stage))
        before += gl.maximum(end - begin, 0)
        mbarrier.arrive(q_free)
        poisoned |= gl.max(outside, 0) > 0
        head = row % HEADS
        if DIRECT:
            factor, lse = row_factor(
                top, total, poisoned, sinks, head, out_scale, out_scale_tensor, SINKS, OUT_SCALE_TENSOR
            )
            lse_rows = lse_out + first_row * lse_token + token * lse_token + head
        else:
            factor, lse = row_factor(top, total, poisoned, sinks, head, 1.0, out_scale_tensor, False, False)
            first_part, apart = first_part_of(request, split, num_splits, max_q_len * HEADS, BALANCED)
            lse_rows = part_lse + first_part + row * apart
        mbarrier.wait(factors_free, (turn & 1) ^ 1)
        factors.store(factor)
        mbarrier.arrive(factors_ready)
        gl.store(lse_rows, lse, mask=live_row)


@gluon.jit
def _value_role(
    tiles, rope, shrinks, factors, scores_ready, weights_ready, factors_ready, factors_free, free, rope_free,
    out, out_token, out_head, part_out,
    row_of_tile, count, first, start, run_begin, run_end, split, num_splits,
    seq_lens, cum_seq_lens_q, max_q_len, max_seq_len,
    HEADS: gl.constexpr, RAGGED: gl.constexpr, DIRECT: gl.constexpr, BALANCED: gl.constexpr,
    OVERLAP: gl.constexpr, GATE: gl.constexpr, QUANTIZED: gl.constexpr,
):  # fmt: skip
    """The weighted sum of each block; at the end of a piece its product with the factor of the row."""
    TILES: gl.constexpr = tiles.shape[0]
    STAGES: gl.constexpr = rope.shape[0]
    rows: gl.constexpr = gl.SliceLayout(1, VALUE_LAYOUT)
    row = row_of_tile + gl.arange(0, ROWS, layout=rows)
    column = gl.arange(0, HALF, layout=gl.SliceLayout(0, VALUE_LAYOUT))
    before = 0
    for turn in range(count):
        request, first_row, q_len, _, begin, end, start = piece_of(
            turn, first, start, run_begin, run_end, split, num_splits,
            seq_lens, cum_seq_lens_q, max_q_len, max_seq_len, -1, RAGGED, BALANCED, False, KEYS,
        )  # fmt: skip
        acc_left = gl.zeros([ROWS, HALF], gl.float32, VALUE_LAYOUT)
        acc_right = gl.zeros([ROWS, HALF], gl.float32, VALUE_LAYOUT)
        for block in range(begin, end):
            step = before + block - begin
            stage = step % STAGES
            ring = _ring_of(step, turn, QUANTIZED)
            mbarrier.wait(weights_ready.index(stage), step // STAGES & 1)
            shrink = shrinks.index(stage).load(rows)[:, None]
            acc_left *= shrink
            acc_right *= shrink
            weights = rope.index(stage).reshape([ROWS, KEYS])
            left = tiles.index(ring % TILES).reshape([KEYS, HALF])
            right = tiles.index((ring + 1) % TILES).reshape([KEYS, HALF])
            if GATE:  # noqa: SIM102 one is decided by the compiler, the other by the GPU
                if block + 1 < end:
                    mbarrier.wait(scores_ready.index((step + 1) % 2), (step + 1) // 2 & 1)
            acc_left = warpgroup_mma(weights, left, acc_left, is_async=True)
            acc_right = warpgroup_mma(weights, right, acc_right, is_async=True)
            acc_left = warpgroup_mma_wait(1, deps=(acc_left,))
            mbarrier.arrive(free.index(ring % TILES))
            acc_right = warpgroup_mma_wait(0, deps=(acc_right,))
            mbarrier.arrive(free.index((ring + 1) % TILES))
            mbarrier.arrive(rope_free.index(stage))
        before += gl.maximum(end - begin, 0)
        if turn + 1 == count:
            admit_successor(OVERLAP)
        mbarrier.wait(factors_ready, turn & 1)
        factor = factors.load(rows)
        written = row < q_len * HEADS
        if DIRECT:
            pointers = out + (first_row + row // HEADS) * out_token + row % HEADS * out_head
            result: gl.constexpr = out.dtype.element_ty
        else:
            first_part, apart = first_part_of(request, split, num_splits, max_q_len * HEADS, BALANCED)
            pointers = part_out + (first_part + row * apart) * LATENT
            result: gl.constexpr = part_out.dtype.element_ty
            written &= factor != 0.0  # a row without keys in this piece leaves its part as it was
        pointers = pointers[:, None] + column[None, :]
        gl.store(pointers, (acc_left * factor[:, None]).to(result), mask=written[:, None])
        gl.store(pointers + HALF, (acc_right * factor[:, None]).to(result), mask=written[:, None])
        mbarrier.arrive(factors_free)  # behind the first use, which waits for the load


@gluon.jit(do_not_specialize=RUNTIME_INTEGERS)
def _mla_decode(
    q_half_map, q_rope_map, half_map, rope_map, k, k_page, k_slot, out, lse_out, part_out, part_lse,
    block_tables, seq_lens, cum_seq_lens_q, mask, sinks,
    score_scale, score_scale_tensor, out_scale, out_scale_tensor, out_token, out_head, lse_token,
    table_row, mask_request, mask_row, batch, num_splits, max_q_len, max_seq_len, num_pages,
    HEADS: gl.constexpr, PAGE: gl.constexpr, RAGGED: gl.constexpr, MASK: gl.constexpr, SINKS: gl.constexpr,
    SCALE_TENSOR: gl.constexpr, OUT_SCALE_TENSOR: gl.constexpr, STRICT: gl.constexpr,
    DIRECT: gl.constexpr, BALANCED: gl.constexpr, BATCH: gl.constexpr, OVERLAP: gl.constexpr,
    GATE: gl.constexpr, QUANTIZED: gl.constexpr,
):  # fmt: skip
    """One tile of rows (axis 0), one split (axis 1) of the keys of one request (axis 2), or `BALANCED` one of
    `num_splits` equal runs over all requests (axis 1).

    `DIRECT`: there is one split, and rows go to `out` and `lse_out`; else to `part_out` and `part_lse`.
    `QUANTIZED`: the cache is `k` in fp8, with the strides of `gluon_fp8`; else that of the maps.
    """
    row_of_tile = gl.program_id(0) * ROWS
    split = gl.program_id(1)
    TILES: gl.constexpr = FP8_TILES if QUANTIZED else BF16_TILES
    STAGES: gl.constexpr = FP8_STAGES if QUANTIZED else BF16_STAGES
    q_halves = gl.allocate_shared_memory(gl.bfloat16, [2 if QUANTIZED else 1, 1, ROWS, HALF], PAGE_TILE)
    q_rope = gl.allocate_shared_memory(gl.bfloat16, [ROWS, ROPE], TILE)
    tiles = gl.allocate_shared_memory(gl.bfloat16, [TILES, 1, KEYS, HALF], PAGE_TILE)
    rope = gl.allocate_shared_memory(gl.bfloat16, [STAGES, 1, KEYS, ROPE], PAGE_TILE)
    shrinks = gl.allocate_shared_memory(gl.float32, [STAGES, ROWS], VECTOR)
    factors = gl.allocate_shared_memory(gl.float32, [ROWS], VECTOR)
    q_full = _barrier()
    q_free = _barrier()
    factors_ready = _barrier()
    factors_free = _barrier()
    full = barriers(TILES)
    free = barriers(TILES)
    rope_full = barriers(STAGES)
    rope_free = barriers(STAGES)
    weights_ready = barriers(STAGES)
    scores_ready = barriers(2)

    wait_for_predecessor(OVERLAP)
    first, count, start, run_begin, run_end = run_of_program(
        split, num_splits, seq_lens, batch, max_seq_len, KEYS, BATCH, BALANCED
    )
    gl.warp_specialize(
        [
            (_value_role, (tiles, rope, shrinks, factors, scores_ready, weights_ready, factors_ready,
                           factors_free, free, rope_free, out, out_token, out_head, part_out,
                           row_of_tile, count, first, start, run_begin, run_end, split, num_splits,
                           seq_lens, cum_seq_lens_q, max_q_len, max_seq_len,
                           HEADS, RAGGED, DIRECT, BALANCED, OVERLAP, GATE, QUANTIZED)),
            (_score_role, (q_halves, q_rope, tiles, rope, shrinks, factors, q_full, q_free, full, free,
                           rope_full, scores_ready, weights_ready, factors_ready, factors_free,
                           block_tables, table_row, mask, mask_request, mask_row, sinks,
                           lse_out, lse_token, part_lse, score_scale, score_scale_tensor,
                           out_scale, out_scale_tensor, num_pages,
                           row_of_tile, count, first, start, run_begin, run_end, split, num_splits,
                           seq_lens, cum_seq_lens_q, max_q_len, max_seq_len,
                           HEADS, PAGE, RAGGED, MASK, SINKS, SCALE_TENSOR, OUT_SCALE_TENSOR, STRICT, DIRECT,
                           BALANCED, QUANTIZED)),
            (_load_and_convert_role, (q_half_map, q_rope_map, k, k_page, k_slot, q_halves, q_rope, tiles, rope,
                                      q_full, q_free, full, free, rope_full, rope_free, block_tables, table_row,
                                      num_pages,
                                      row_of_tile, count, first, start, run_begin, run_end, split, num_splits,
                                      seq_lens, cum_seq_lens_q, max_q_len, max_seq_len,
                                      HEADS, PAGE, RAGGED, BALANCED)) if QUANTIZED else
            (_load_role, (q_half_map, q_rope_map, half_map, rope_map, q_halves, q_rope, tiles, rope,
                          q_full, q_free, full, free, rope_full, rope_free, block_tables, table_row,
                          row_of_tile, count, first, start, run_begin, run_end, split, num_splits,
                          seq_lens, cum_seq_lens_q, max_q_len, max_seq_len,
                          HEADS, PAGE, RAGGED, BALANCED)),
        ],
        [4, 4 if QUANTIZED else 1],
        [FP8_SCORE_REGISTERS, FP8_LOAD_REGISTERS] if QUANTIZED else [BF16_SCORE_REGISTERS, BF16_LOAD_REGISTERS],
    )  # fmt: skip


@gluon.jit
def _barrier():
    barrier = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(barrier, count=1)
    return barrier


def query_maps(query: Tensor) -> tuple[TensorDescriptor, TensorDescriptor]:
    """TMA maps of `query` [num_tokens, H, 576] as rows."""
    rows = query.flatten(0, 1)
    one_page = rows[None]  # the left half of Q takes a place in the ring of latent halves
    return (
        TensorDescriptor(one_page, one_page.shape, one_page.stride(), [1, ROWS.value, HALF.value], PAGE_TILE.value),
        TensorDescriptor(rows, rows.shape, rows.stride(), [ROWS.value, ROPE.value], TILE.value),
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
    balanced: bool,
) -> None:
    """Arguments as in `launch.Launch`, plus the workspace; rows that the offsets do not cover are not
    written. `v` is None and `window_left` -1: this is MLA.
    """
    batch, heads = len(seq_lens), query.shape[1]
    work = divide(out, k, batch, max_q_len, max_seq_len, balanced)
    parts = work.partial_results(workspace)
    if gluon_mla_rows.fits(query, k, max_q_len):
        gluon_mla_rows.launch(
            work, out, lse, parts, query, k, block_tables, seq_lens, cum_seq_lens_q, mask, sinks,
            bmm1_scale, bmm1_scale_tensor, bmm2_scale, bmm2_scale_tensor, strict,
        )  # fmt: skip
    else:
        tiles = triton.cdiv(heads * max_q_len, ROWS.value)
        quantized = k.dtype == torch.float8_e4m3fn
        maps = (cache_map(k, KEYS.value, columns.value) for columns in (HALF, ROPE))
        cache = (None, None, *words_of(k)) if quantized else (*maps, None, 0, 0)
        _mla_decode[(tiles, *work.grid)](
            *query_maps(query), *cache, out, lse, *parts,
            block_tables, seq_lens, cum_seq_lens_q, mask, sinks,
            bmm1_scale * LOG2E, bmm1_scale_tensor, bmm2_scale, bmm2_scale_tensor,
            out.stride(0), out.stride(1), lse.stride(0), block_tables.stride(0),
            0 if mask is None else mask.stride(0), 0 if mask is None else mask.stride(1),
            batch, work.num_splits, max_q_len, max_seq_len, k.shape[0],
            HEADS=heads, PAGE=k.shape[1], RAGGED=cum_seq_lens_q is not None, MASK=mask is not None,
            SINKS=sinks is not None, SCALE_TENSOR=bmm1_scale_tensor is not None,
            OUT_SCALE_TENSOR=bmm2_scale_tensor is not None, STRICT=strict,
            DIRECT=work.direct, BALANCED=balanced,
            BATCH=triton.next_power_of_2(batch) if balanced else 1,
            GATE=tiles > 1, QUANTIZED=quantized, num_warps=8, **work.options(query.device),
        )  # fmt: skip
    work.combine(
        out, lse, parts, seq_lens, cum_seq_lens_q, sinks, bmm2_scale, bmm2_scale_tensor, keys=KEYS.value, strict=strict
    )
