"""MLA decode of up to 16 query rows on Hopper, in Triton Gluon: 16 heads with one token, as every GPU has them when a
model of 128 heads is spread over eight.

There are few rows, so both products are made the other way round: K Q^T is [keys, rows] and V^T P^T [columns, rows].
Keys and columns fill the 64 that a matrix instruction takes on one side, and the other one is as narrow as the rows
(FlashInfer's XQA does the same). A block then takes the matrix unit half of the time that 64 padded rows take, one
role does scores and values, and over a cache in fp8 there is room for tiles on their way:

    load    (1 warp):   wait free   -> TMA of a block: left half [64, 256], rope [64, 64], right half -> loaded
    convert (4 warps):  wait loaded -> an fp8 tile into a float16 one -> full      (fp8 caches alone)
    attend  (4 warps):  wait keys   -> K Q^T, mask, softmax, P into shared memory -> V^T P^T -> free

* Four halves, two blocks, are enough: a fifth half costs 1 us (docs/gpu-results.md).
* Float16 over fp8, the lazy maximum, dead keys and page ids outside of the pool are as in `gluon_gqa`.

Frozen in a graph: pointers, shapes, strides, floats, and the tensor maps of the cache.
Live: contents of `query`, `seq_lens`, `block_tables`, `cum_seq_lens_q`, `mask`, `sinks` and tensor scales.

Sources: online softmax, Milakov and Gimelshein 2018; split KV, Flash-Decoding 2023; weight absorption,
DeepSeek-V2 2024, section 2.1.
"""

from __future__ import annotations

import math

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

from gpu_tests.reference.combine import admit_successor, wait_for_predecessor
from gpu_tests.reference.division import Division
from gpu_tests.reference.gluon_parts import (
    barriers,
    cache_map,
    clear_keys_outside,
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
from gpu_tests.reference.select import GLUON_PAGES, MLA_COLUMNS

LOG2E = math.log2(math.e)
KEYS = gl.constexpr(64)
LATENT, ROPE = gl.constexpr(MLA_COLUMNS[0]), gl.constexpr(MLA_COLUMNS[1])
HALF = gl.constexpr(MLA_COLUMNS[0] // 2)
HALVES, ROPES = gl.constexpr(4), gl.constexpr(2)
LOADED = gl.constexpr(2)
"""Latent halves and rope tiles that a CTA holds, and how many of each on their way from a cache in fp8."""

OPERAND_TILES = gl.constexpr(gl.NVMMASharedLayout(128, 16, rank=3))

CONVERT_REGISTERS, LOAD_REGISTERS = gl.constexpr(112), gl.constexpr(56)
REGISTERS, REGISTERS_FP8 = 152, 136
"""A thread, on average over the roles."""

RUNTIME_INTEGERS = ["batch", "num_splits", "max_q_len", "max_seq_len", "num_pages", "table_row"]
"""Integers that must not be compiled in: one binary serves all batch sizes and lengths."""


def fits(query: Tensor, k: Tensor, max_q_len: int) -> bool:
    """Whether the kernel can run what `select.check_gluon` admits of MLA."""
    return query.shape[1] * max_q_len <= ROWS.value and k.shape[1] in GLUON_PAGES


@gluon.jit
def _load_role(
    half_map, rope_map, halves, ropes, half_full, half_free, rope_full, rope_free, block_tables, table_row,
    count, first, start, run_begin, run_end, split, num_splits, seq_lens, cum_seq_lens_q, max_q_len, max_seq_len,
    PAGE: gl.constexpr, RAGGED: gl.constexpr, BALANCED: gl.constexpr,
):  # fmt: skip
    """Fills one tile after the other: the left half of a block, its rope columns, the right half."""
    before = 0
    for turn in range(count):
        request, _, _, length, begin, end, start = piece_of(
            turn, first, start, run_begin, run_end, split, num_splits,
            seq_lens, cum_seq_lens_q, max_q_len, max_seq_len, -1, RAGGED, BALANCED, False, KEYS,
        )  # fmt: skip
        pages = block_tables + request.to(gl.int64) * table_row
        # One block ahead: a page id that is loaded when it is needed costs its latency in every block.
        next_ids = page_ids(pages, begin, end, length, PAGE, KEYS)
        for block in range(begin, end):
            ids = next_ids
            next_ids = page_ids(pages, block + 1, end, length, PAGE, KEYS)
            step = before + block - begin
            slot = block * KEYS % PAGE
            _load_tile(half_map, halves, half_full, half_free, 2 * step, ids, slot, 0, PAGE)
            _load_tile(rope_map, ropes, rope_full, rope_free, step, ids, slot, LATENT, PAGE)
            _load_tile(half_map, halves, half_full, half_free, 2 * step + 1, ids, slot, HALF, PAGE)
        before += gl.maximum(end - begin, 0)


@gluon.jit
def _load_tile(page_map, tiles, full, free, ring, ids, slot, column, PAGE: gl.constexpr):
    """Fills the tile of a ring whose turn it is with columns of a block, which lies in the pages `ids`, from `slot`
    of the first one.
    """
    TILES: gl.constexpr = tiles.shape[0]
    tile, ready = tiles.index(ring % TILES), full.index(ring % TILES)
    mbarrier.wait(free.index(ring % TILES), (ring // TILES & 1) ^ 1)
    mbarrier.expect(ready, tile.shape[1] * tile.shape[2] * tile.dtype.primitive_bitwidth // 8)
    if PAGE < KEYS:
        for part in gl.static_range(len(ids)):
            rows = tile.slice(part * PAGE, PAGE, dim=1)
            tma.async_copy_global_to_shared(page_map, [ids[part], 0, column], ready, rows)
    else:
        tma.async_copy_global_to_shared(page_map, [ids[0], slot, column], ready, tile)


@gluon.jit
def _convert_role(
    loaded, loaded_ropes, loaded_full, loaded_free, loaded_rope_full, loaded_rope_free,
    halves, ropes, half_full, half_free, rope_full, rope_free,
    count, first, start, run_begin, run_end, split, num_splits, seq_lens, cum_seq_lens_q, max_q_len, max_seq_len,
    RAGGED: gl.constexpr, BALANCED: gl.constexpr,
):  # fmt: skip
    """Fills one float16 tile after the other from the fp8 tiles that the load role fills."""
    done = 0
    for turn in range(count):
        piece = piece_of(
            turn, first, start, run_begin, run_end, split, num_splits,
            seq_lens, cum_seq_lens_q, max_q_len, max_seq_len, -1, RAGGED, BALANCED, False, KEYS,
        )  # fmt: skip
        begin, end, start = piece[4], piece[5], piece[6]
        stop = done + gl.maximum(end - begin, 0)
        for step in range(done, stop):
            # The predicate is always true: see `gluon_gqa`.
            live = step < stop
            left, right = 2 * step, 2 * step + 1
            _convert(loaded, loaded_full, loaded_free, halves, half_full, half_free, left, live)
            _convert(loaded_ropes, loaded_rope_full, loaded_rope_free, ropes, rope_full, rope_free, step, live)
            _convert(loaded, loaded_full, loaded_free, halves, half_full, half_free, right, live)
        done = stop


@gluon.jit
def _convert(sources, source_full, source_free, targets, full, free, ring, live):
    """One tile [1, keys, columns]. It is given back behind the fence, when the loads of all threads are done."""
    SOURCES: gl.constexpr = sources.shape[0]
    TARGETS: gl.constexpr = targets.shape[0]
    keys: gl.constexpr = sources.shape[2]
    columns: gl.constexpr = sources.shape[3]
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    source, target = ring % SOURCES, ring % TARGETS
    mbarrier.wait(source_full.index(source), ring // SOURCES & 1, pred=live)
    mbarrier.wait(free.index(target), (ring // TARGETS & 1) ^ 1)
    raw = sources.index(source).reshape([keys, columns])
    tile = targets.index(target).reshape([keys, columns])
    for column in gl.static_range(0, columns, 64):
        values = raw.slice(column, 64, dim=1).load(layout).to(targets.dtype)
        tile.slice(column, 64, dim=1).store(values)
    fence_async_shared()
    mbarrier.arrive(source_free.index(source))
    mbarrier.arrive(full.index(target))


@gluon.jit
def _query_part(query, first_row, q_row, q_token, q_head, live, COLUMN: gl.constexpr, COLUMNS: gl.constexpr,
                HEADS: gl.constexpr):  # fmt: skip
    """Columns of the query rows [ROWS, COLUMNS]; 0 where a row is none of the request."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    column = COLUMN + gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, layout))
    rows = query + (first_row + q_row // HEADS) * q_token + q_row % HEADS * q_head
    return gl.load(rows[:, None] + column[None, :], mask=live[:, None], other=0.0)


@gluon.jit
def _attend_role(
    halves, ropes, q_left, q_right, q_rope, weight_tile, half_full, half_free, rope_full, rope_free,
    query, out, lse_out, part_out, part_lse, block_tables, mask, sinks,
    score_scale, score_scale_tensor, out_scale, out_scale_tensor, q_token, q_head, out_token, out_head, lse_token,
    table_row, mask_request, mask_row, num_pages,
    count, first, start, run_begin, run_end, split, num_splits, seq_lens, cum_seq_lens_q, max_q_len, max_seq_len,
    HEADS: gl.constexpr, PAGE: gl.constexpr, RAGGED: gl.constexpr, MASK: gl.constexpr, SINKS: gl.constexpr,
    SCALE_TENSOR: gl.constexpr, OUT_SCALE_TENSOR: gl.constexpr, STRICT: gl.constexpr, DIRECT: gl.constexpr,
    BALANCED: gl.constexpr, OVERLAP: gl.constexpr, FP8: gl.constexpr,
):  # fmt: skip
    """Scores, softmax and the weighted sum of each block; at the end of a piece its results."""
    load_rows: gl.constexpr = gl.SliceLayout(1, gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))
    row = gl.arange(0, ROWS, layout=OF_ROWS)
    token, head = row // HEADS, row % HEADS
    key_of_block = gl.arange(0, KEYS, layout=gl.SliceLayout(1, LAYOUT))
    column = gl.arange(0, HALF, layout=gl.SliceLayout(1, LAYOUT))
    q_row = gl.arange(0, ROWS, layout=load_rows)
    scale = score_scale
    if SCALE_TENSOR:
        scale *= gl.load(score_scale_tensor)
    before = 0
    for turn in range(count):
        request, first_row, q_len, length, begin, end, start = piece_of(
            turn, first, start, run_begin, run_end, split, num_splits,
            seq_lens, cum_seq_lens_q, max_q_len, max_seq_len, -1, RAGGED, BALANCED, False, KEYS,
        )  # fmt: skip
        q_live = q_row < q_len * HEADS
        left_part = _query_part(query, first_row, q_row, q_token, q_head, q_live, 0, HALF, HEADS)
        right_part = _query_part(query, first_row, q_row, q_token, q_head, q_live, HALF, HALF, HEADS)
        rope_part = _query_part(query, first_row, q_row, q_token, q_head, q_live, LATENT, ROPE, HEADS)
        row_scale = gl.full([ROWS], 1.0, gl.float32, OF_ROWS) * scale
        if FP8:
            largest = gl.maximum(gl.maximum(largest_of(left_part), largest_of(right_part)), largest_of(rope_part))
            power = power_below(largest)
            row_scale *= gl.convert_layout(power, OF_ROWS)
            left_part, right_part = in_float16(left_part, power), in_float16(right_part, power)
            rope_part = in_float16(rope_part, power)
        q_left.store(left_part)
        q_right.store(right_part)
        q_rope.store(rope_part)
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
        acc_left = gl.zeros([HALF, ROWS], gl.float32, LAYOUT)
        acc_right = gl.zeros([HALF, ROWS], gl.float32, LAYOUT)
        for block in range(begin, end):
            ids = next_ids
            next_ids = page_ids(pages, block + 1, end, length, PAGE, KEYS)
            for part in gl.static_range(len(ids)):
                poisoned |= (ids[part] < 0) | (ids[part] >= num_pages)
            step = before + block - begin
            stage, ring = step % ROPES, 2 * step
            left = halves.index(ring % HALVES).reshape([KEYS, HALF])
            right = halves.index((ring + 1) % HALVES).reshape([KEYS, HALF])
            rope = ropes.index(stage).reshape([KEYS, ROPE])
            scores = gl.zeros([KEYS, ROWS], gl.float32, LAYOUT)
            mbarrier.wait(half_full.index(ring % HALVES), ring // HALVES & 1)
            scores = warpgroup_mma(left, q_left.permute([1, 0]), scores, use_acc=False, is_async=True)
            mbarrier.wait(rope_full.index(stage), step // ROPES & 1)
            scores = warpgroup_mma(rope, q_rope.permute([1, 0]), scores, is_async=True)
            mbarrier.wait(half_full.index((ring + 1) % HALVES), (ring + 1) // HALVES & 1)
            scores = warpgroup_mma(right, q_right.permute([1, 0]), scores, is_async=True)
            scores = warpgroup_mma_wait(0, deps=(scores,))
            mbarrier.arrive(rope_free.index(stage))

            scores *= row_scale[None, :]
            if hides_a_key(block, length, q_len, KEYS, MASK):
                scores = mask_scores(
                    scores, block * KEYS + key_of_block, position, token, request, length, q_len, -1,
                    mask, mask_request, mask_row, False, MASK,
                )  # fmt: skip
            weights, shrink, top, total = soften(scores, top, total)
            acc_left *= shrink
            acc_right *= shrink
            weight_tile.store(weights.to(weight_tile.dtype))
            if (block + 1) * KEYS > length:
                clear_keys_outside(left, 0, length - block * KEYS)
                clear_keys_outside(right, 0, length - block * KEYS)
            fence_async_shared()
            acc_left = warpgroup_mma(left.permute([1, 0]), weight_tile, acc_left, is_async=True)
            acc_right = warpgroup_mma(right.permute([1, 0]), weight_tile, acc_right, is_async=True)
            acc_left = warpgroup_mma_wait(1, deps=(acc_left,))
            mbarrier.arrive(half_free.index(ring % HALVES))
            acc_right = warpgroup_mma_wait(0, deps=(acc_right,))
            mbarrier.arrive(half_free.index((ring + 1) % HALVES))
        before += gl.maximum(end - begin, 0)

        if turn + 1 == count:
            admit_successor(OVERLAP)
        factor, rows, written = finish_rows(
            top, gl.sum(total, 0), poisoned, token, head, live_row, first_row, request, split, num_splits, max_q_len,
            sinks, out, lse_out, part_out, part_lse, out_scale, out_scale_tensor, out_token, out_head, lse_token,
            HEADS, LATENT, SINKS, OUT_SCALE_TENSOR, DIRECT, BALANCED,
        )  # fmt: skip
        pointers = rows[None, :] + column[:, None]
        gl.store(pointers, (acc_left * factor[None, :]).to(rows.dtype.element_ty), mask=written[None, :])
        gl.store(pointers + HALF, (acc_right * factor[None, :]).to(rows.dtype.element_ty), mask=written[None, :])


@gluon.jit(do_not_specialize=RUNTIME_INTEGERS)
def _mla_decode(
    half_map, rope_map, query, out, lse_out, part_out, part_lse, block_tables, seq_lens, cum_seq_lens_q, mask, sinks,
    score_scale, score_scale_tensor, out_scale, out_scale_tensor, q_token, q_head, out_token, out_head, lse_token,
    table_row, mask_request, mask_row, batch, num_splits, max_q_len, max_seq_len, num_pages,
    HEADS: gl.constexpr, PAGE: gl.constexpr, RAGGED: gl.constexpr, MASK: gl.constexpr, SINKS: gl.constexpr,
    SCALE_TENSOR: gl.constexpr, OUT_SCALE_TENSOR: gl.constexpr, STRICT: gl.constexpr,
    DIRECT: gl.constexpr, BALANCED: gl.constexpr, BATCH: gl.constexpr, OVERLAP: gl.constexpr,
    FP8: gl.constexpr,
):  # fmt: skip
    """All rows of one request and one split (axis 1) of its keys (axis 2), or `BALANCED` one of `num_splits` equal
    runs over all requests (axis 1).

    `DIRECT`: there is one split, and rows go to `out` and `lse_out`; else to `part_out` and `part_lse`.
    """
    split = gl.program_id(1)
    operand: gl.constexpr = gl.float16 if FP8 else half_map.dtype
    q_left = gl.allocate_shared_memory(operand, [ROWS, HALF], OPERAND)
    q_right = gl.allocate_shared_memory(operand, [ROWS, HALF], OPERAND)
    q_rope = gl.allocate_shared_memory(operand, [ROWS, ROPE], OPERAND)
    weight_tile = gl.allocate_shared_memory(operand, [KEYS, ROWS], WEIGHTS)
    halves = gl.allocate_shared_memory(operand, [HALVES, 1, KEYS, HALF], OPERAND_TILES)
    ropes = gl.allocate_shared_memory(operand, [ROPES, 1, KEYS, ROPE], OPERAND_TILES)
    half_full, half_free = barriers(HALVES), barriers(HALVES)
    rope_full, rope_free = barriers(ROPES), barriers(ROPES)
    if FP8:
        loaded = gl.allocate_shared_memory(half_map.dtype, [LOADED, 1, KEYS, HALF], half_map.layout)
        loaded_ropes = gl.allocate_shared_memory(rope_map.dtype, [LOADED, 1, KEYS, ROPE], rope_map.layout)
        loaded_full, loaded_free = barriers(LOADED), barriers(LOADED)
        loaded_rope_full, loaded_rope_free = barriers(LOADED), barriers(LOADED)
    else:
        loaded, loaded_full, loaded_free = halves, half_full, half_free
        loaded_ropes, loaded_rope_full, loaded_rope_free = ropes, rope_full, rope_free
    wait_for_predecessor(OVERLAP)
    first, count, start, run_begin, run_end = run_of_program(
        split, num_splits, seq_lens, batch, max_seq_len, KEYS, BATCH, BALANCED
    )
    # The roles of a partition have to stand in the call: a tuple with a None in it cannot be a variable.
    if FP8:
        gl.warp_specialize(
            [
                (_attend_role, (halves, ropes, q_left, q_right, q_rope, weight_tile, half_full, half_free,
                                rope_full, rope_free, query, out, lse_out, part_out, part_lse, block_tables, mask,
                                sinks, score_scale, score_scale_tensor, out_scale, out_scale_tensor,
                                q_token, q_head, out_token, out_head, lse_token,
                                table_row, mask_request, mask_row, num_pages,
                                count, first, start, run_begin, run_end, split, num_splits,
                                seq_lens, cum_seq_lens_q, max_q_len, max_seq_len,
                                HEADS, PAGE, RAGGED, MASK, SINKS, SCALE_TENSOR, OUT_SCALE_TENSOR, STRICT, DIRECT,
                                BALANCED, OVERLAP, FP8)),
                (_convert_role, (loaded, loaded_ropes, loaded_full, loaded_free, loaded_rope_full, loaded_rope_free,
                                 halves, ropes, half_full, half_free, rope_full, rope_free,
                                 count, first, start, run_begin, run_end, split, num_splits,
                                 seq_lens, cum_seq_lens_q, max_q_len, max_seq_len, RAGGED, BALANCED)),
                (_load_role, (half_map, rope_map, loaded, loaded_ropes, loaded_full, loaded_free,
                              loaded_rope_full, loaded_rope_free, block_tables, table_row,
                              count, first, start, run_begin, run_end, split, num_splits,
                              seq_lens, cum_seq_lens_q, max_q_len, max_seq_len, PAGE, RAGGED, BALANCED)),
            ],
            [4, 1],
            [CONVERT_REGISTERS, LOAD_REGISTERS],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_attend_role, (halves, ropes, q_left, q_right, q_rope, weight_tile, half_full, half_free,
                                rope_full, rope_free, query, out, lse_out, part_out, part_lse, block_tables, mask,
                                sinks, score_scale, score_scale_tensor, out_scale, out_scale_tensor,
                                q_token, q_head, out_token, out_head, lse_token,
                                table_row, mask_request, mask_row, num_pages,
                                count, first, start, run_begin, run_end, split, num_splits,
                                seq_lens, cum_seq_lens_q, max_q_len, max_seq_len,
                                HEADS, PAGE, RAGGED, MASK, SINKS, SCALE_TENSOR, OUT_SCALE_TENSOR, STRICT, DIRECT,
                                BALANCED, OVERLAP, FP8)),
                (_load_role, (half_map, rope_map, loaded, loaded_ropes, loaded_full, loaded_free,
                              loaded_rope_full, loaded_rope_free, block_tables, table_row,
                              count, first, start, run_begin, run_end, split, num_splits,
                              seq_lens, cum_seq_lens_q, max_q_len, max_seq_len, PAGE, RAGGED, BALANCED)),
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
    block_tables: Tensor,
    seq_lens: Tensor,
    cum_seq_lens_q: Tensor | None,
    mask: Tensor | None,
    sinks: Tensor | None,
    bmm1_scale: float,
    bmm1_scale_tensor: Tensor | None,
    bmm2_scale: float,
    bmm2_scale_tensor: Tensor | None,
    strict: bool,
) -> None:
    """The first half of a launch that `fits`, as `gluon_mla.paged_decode` divides it."""
    batch, heads, fp8 = len(seq_lens), query.shape[1], k.element_size() == 1
    _mla_decode[(1, *work.grid)](
        cache_map(k, KEYS.value, HALF.value), cache_map(k, KEYS.value, ROPE.value), query, out, lse, *parts,
        block_tables, seq_lens, cum_seq_lens_q, mask, sinks,
        bmm1_scale * LOG2E, bmm1_scale_tensor, bmm2_scale, bmm2_scale_tensor,
        query.stride(0), query.stride(1), out.stride(0), out.stride(1), lse.stride(0), block_tables.stride(0),
        0 if mask is None else mask.stride(0), 0 if mask is None else mask.stride(1),
        batch, work.num_splits, work.max_q_len, work.max_seq_len, k.shape[0],
        HEADS=heads, PAGE=k.shape[1], RAGGED=cum_seq_lens_q is not None, MASK=mask is not None,
        SINKS=sinks is not None, SCALE_TENSOR=bmm1_scale_tensor is not None,
        OUT_SCALE_TENSOR=bmm2_scale_tensor is not None, STRICT=strict,
        DIRECT=work.direct, BALANCED=work.balanced, FP8=fp8,
        BATCH=triton.next_power_of_2(batch) if work.balanced else 1,
        num_warps=4, maxnreg=REGISTERS_FP8 if fp8 else REGISTERS, **work.options(query.device),
    )  # fmt: skip
