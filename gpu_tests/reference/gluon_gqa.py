"""MHA, GQA and MQA decode on Hopper in Triton Gluon: roles, P in registers, split KV, then the shared combine.

One CTA takes 64 packed query rows (query tokens x heads of a group) on one KV head, and one split of the keys of
a request or a run over the whole batch, in blocks of 64 keys. Reading keys and values once is the limit, so the
tile is as wide as Hopper's matrix instruction even if most of its rows are padding, and the work is kept small. Over
fp8 caches launches with up to 16 rows go to `gluon_gqa_rows`.

    load    (1 warp):   wait free   -> TMA of the keys, then of the values of a block [64, D] -> loaded
    convert (4 warps):  wait loaded -> an fp8 tile into a float16 one -> full      (fp8 caches alone)
    attend  (4 warps):  wait keys   -> Q K^T, mask, softmax in registers -> wait values -> P V -> free

* Two CTAs share an SM: one multiplies while the other one does its softmax.
* A page is one or more boxes of the tensor map, whatever the layout of the cache (HND, NHD): strides tell.
* The matrix instruction takes keys and values from shared memory in 16 bits. Those of an fp8 cache become float16,
  which is one instruction for two of them; bfloat16 takes four or more, and the conversion would take longer
  than the load. The query becomes float16, too, each row divided by the power of two that brings it below 2, so
  that none is out of range; what a row loses is below 2^-25 of its largest element.
* Values of slots that no row may see (past the length, left of the window) are zeroed in shared memory, since
  0 * NaN is NaN.
* The maximum is lazy: it is renewed only when a weight would exceed 2^15, so that most blocks rescale by 1.
* A page id outside of the pool makes TMA read zeros, not memory; the rows are poisoned with NaN.

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

from gpu_tests.reference import gluon_gqa_rows
from gpu_tests.reference.combine import admit_successor, wait_for_predecessor
from gpu_tests.reference.division import divide
from gpu_tests.reference.gluon_gqa_load import KEYS, load_role, tensor_map
from gpu_tests.reference.gluon_parts import (
    LAZY,
    ROOM,
    barriers,
    clear_keys_outside,
    finish_rows,
    hides_a_key,
    in_float16,
    largest_of,
    page_ids,
    power_below,
    run_of_program,
    visible_in_draft,
)
from gpu_tests.reference.pieces import piece_of

LOG2E = math.log2(math.e)
ROWS = gl.constexpr(64)
TILES, TILES_FP8 = 3, (4, 3)
"""Tiles of keys or values that a CTA holds; of an fp8 cache, those on the way and those that are converted."""

SCORE_LAYOUT = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
ROW_LAYOUT = gl.constexpr(gl.SliceLayout(1, SCORE_LAYOUT.value))
OPERAND = gl.constexpr(gl.NVMMASharedLayout(128, 16, rank=2))
OPERAND_TILES = gl.constexpr(gl.NVMMASharedLayout(128, 16, rank=4))

LOAD_REGISTERS, CONVERT_REGISTERS = gl.constexpr(24), gl.constexpr(56)
REGISTERS, REGISTERS_FP8 = 128, 80
"""A thread, on average over the roles: what two CTAs of 8 or 12 warps on an SM can have."""
RUNTIME_INTEGERS = ["batch", "num_splits", "max_q_len", "max_seq_len", "num_pages", "window_left", "table_row"]
"""Integers that must not be compiled in: one binary serves all batch sizes and lengths."""


@gluon.jit
def _convert_role(
    raw, raw_full, raw_free, tiles, full, free,
    count, first, start, run_begin, run_end, split, num_splits,
    seq_lens, cum_seq_lens_q, max_q_len, max_seq_len, window_left,
    D: gl.constexpr, RAW_TILES: gl.constexpr, TILES: gl.constexpr,
    RAGGED: gl.constexpr, BALANCED: gl.constexpr, WINDOW: gl.constexpr,
):  # fmt: skip
    """Fills one float16 tile after the other from the fp8 tiles that the load role fills."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [gl.num_warps(), 1], [1, 0])
    done = 0
    for turn in range(count):
        piece = piece_of(
            turn, first, start, run_begin, run_end, split, num_splits,
            seq_lens, cum_seq_lens_q, max_q_len, max_seq_len, window_left, RAGGED, BALANCED, WINDOW, KEYS,
        )  # fmt: skip
        begin, end, start = piece[4], piece[5], piece[6]
        stop = done + 2 * gl.maximum(end - begin, 0)
        for ring in range(done, stop):
            source, target = ring % RAW_TILES, ring % TILES
            # The predicate is always true. Triton 3.6 takes a value that only bounds a loop for dead, and would give
            # every piece the bounds of the first one.
            mbarrier.wait(raw_full.index(source), ring // RAW_TILES & 1, pred=ring < stop)
            values = raw.index(source).reshape([KEYS, D]).load(layout).to(tiles.dtype)
            mbarrier.wait(free.index(target), (ring // TILES & 1) ^ 1)
            tiles.index(target).reshape([KEYS, D]).store(values)
            fence_async_shared()
            # Behind the fence: in front of it loads may be on their way still when TMA overwrites the tile.
            mbarrier.arrive(raw_free.index(source))
            mbarrier.arrive(full.index(target))
        done = stop


@gluon.jit
def _attend_role(
    tiles, q_tile, full, free, query, out, lse_out, part_out, part_lse, block_tables, mask, sinks,
    score_scale, score_scale_tensor, out_scale, out_scale_tensor, q_token, q_head, out_token, out_head, lse_token,
    table_row, mask_request, mask_row, num_pages, row_of_tile, kv_head,
    count, first, start, run_begin, run_end, split, num_splits,
    seq_lens, cum_seq_lens_q, max_q_len, max_seq_len, window_left,
    GROUP: gl.constexpr, KV_HEADS: gl.constexpr, PAGE: gl.constexpr, D: gl.constexpr, TILES: gl.constexpr,
    FP8: gl.constexpr, RAGGED: gl.constexpr, WINDOW: gl.constexpr, MASK: gl.constexpr, SINKS: gl.constexpr,
    SCALE_TENSOR: gl.constexpr, OUT_SCALE_TENSOR: gl.constexpr, STRICT: gl.constexpr, DIRECT: gl.constexpr,
    BALANCED: gl.constexpr, OVERLAP: gl.constexpr,
):  # fmt: skip
    """Scores, softmax and the weighted sum of values of each block; at the end of a piece its results."""
    # With three roles a thread starts with fewer registers than ptxas asks for the wider instruction (C7602).
    value_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64 if FP8 else D, 16])
    weight_layout: gl.constexpr = gl.DotOperandLayout(0, value_layout, 2)
    load_layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [gl.num_warps(), 1], [1, 0])
    row = row_of_tile + gl.arange(0, ROWS, layout=ROW_LAYOUT)
    token = row // GROUP
    head = kv_head * GROUP + row % GROUP
    key_of_block = gl.arange(0, KEYS, layout=gl.SliceLayout(0, SCORE_LAYOUT))
    q_row = row_of_tile + gl.arange(0, ROWS, layout=gl.SliceLayout(1, load_layout))
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
        row_scale = gl.full([ROWS], 1.0, gl.float32, ROW_LAYOUT) * scale
        if FP8:
            power = power_below(largest_of(q))
            q = in_float16(q, power)
            row_scale *= gl.convert_layout(power, ROW_LAYOUT)
        q_tile.store(q)
        fence_async_shared()

        poisoned = length > max_seq_len
        if DIRECT and STRICT:
            poisoned |= length <= 0
        live_row = token < q_len
        position = length - q_len + token
        pages = block_tables + request.to(gl.int64) * table_row
        next_ids = page_ids(pages, begin, end, length, PAGE, KEYS)
        top = gl.full([ROWS], float("-inf"), gl.float32, ROW_LAYOUT)
        total = gl.zeros([ROWS], gl.float32, ROW_LAYOUT)
        acc = gl.zeros([ROWS, D], gl.float32, value_layout)
        for block in range(begin, end):
            ids = next_ids
            next_ids = page_ids(pages, block + 1, end, length, PAGE, KEYS)
            for part in gl.static_range(len(ids)):
                poisoned |= (ids[part] < 0) | (ids[part] >= num_pages)
            first_seen = length - q_len - window_left if WINDOW else 0
            ring = 2 * (before + block - begin)
            keys = tiles.index(ring % TILES).reshape([KEYS, D])
            mbarrier.wait(full.index(ring % TILES), ring // TILES & 1)
            scores = gl.zeros([ROWS, KEYS], gl.float32, SCORE_LAYOUT)
            scores = warpgroup_mma(q_tile, keys.permute([1, 0]), scores, use_acc=False, is_async=True)
            scores = warpgroup_mma_wait(0, deps=(scores,))
            mbarrier.arrive(free.index(ring % TILES))

            scores *= row_scale[:, None]
            edge = hides_a_key(block, length, q_len, KEYS, MASK)
            if WINDOW:
                edge |= block * KEYS < first_seen + q_len - 1
            if edge:
                key = block * KEYS + key_of_block
                visible = key[None, :] <= position[:, None]
                if WINDOW:
                    visible &= key[None, :] >= position[:, None] - window_left
                if MASK:
                    visible &= visible_in_draft(
                        key[None, :], token[:, None], length, q_len, mask + request * mask_request, mask_row
                    )
                scores = gl.where(visible, scores, float("-inf"))
            peak = gl.max(scores, 1)
            new_top = gl.where(peak > top + LAZY, peak - ROOM, top)
            finite_top = gl.where(new_top == float("-inf"), 0.0, new_top)
            shrink = gl.exp2(top - finite_top)
            weights = gl.exp2(scores - finite_top[:, None])
            total = total * shrink + gl.sum(weights, 1)
            top = new_top
            acc *= gl.convert_layout(shrink, gl.SliceLayout(1, value_layout))[:, None]
            weights = gl.convert_layout(weights.to(q_tile.dtype), weight_layout)

            ring += 1
            values = tiles.index(ring % TILES).reshape([KEYS, D])
            mbarrier.wait(full.index(ring % TILES), ring // TILES & 1)
            if ((block + 1) * KEYS > length) | (block * KEYS < first_seen):
                clear_keys_outside(values, first_seen - block * KEYS, length - block * KEYS)
                fence_async_shared()
            acc = warpgroup_mma(weights, values, acc, is_async=True)
            acc = warpgroup_mma_wait(0, deps=(acc,))
            mbarrier.arrive(free.index(ring % TILES))
        before += gl.maximum(end - begin, 0)

        if turn + 1 == count:
            admit_successor(OVERLAP)
        factor, rows, written = finish_rows(
            top, total, poisoned, token, head, live_row, first_row, request, split, num_splits, max_q_len,
            sinks, out, lse_out, part_out, part_lse, out_scale, out_scale_tensor, out_token, out_head, lse_token,
            GROUP * KV_HEADS, D, SINKS, OUT_SCALE_TENSOR, DIRECT, BALANCED,
        )  # fmt: skip
        out_rows: gl.constexpr = gl.SliceLayout(1, value_layout)
        column = gl.arange(0, D, layout=gl.SliceLayout(0, value_layout))
        pointers = gl.convert_layout(rows, out_rows)[:, None] + column[None, :]
        acc *= gl.convert_layout(factor, out_rows)[:, None]
        gl.store(pointers, acc.to(rows.dtype.element_ty), mask=gl.convert_layout(written, out_rows)[:, None])


@gluon.jit(do_not_specialize=RUNTIME_INTEGERS)
def _gqa_decode(
    k_map, v_map, query, out, lse_out, part_out, part_lse, block_tables, seq_lens, cum_seq_lens_q, mask, sinks,
    score_scale, score_scale_tensor, out_scale, out_scale_tensor, q_token, q_head, out_token, out_head, lse_token,
    table_row, mask_request, mask_row, batch, num_splits, max_q_len, max_seq_len, num_pages, window_left,
    GROUP: gl.constexpr, KV_HEADS: gl.constexpr, PAGE: gl.constexpr, D: gl.constexpr,
    LOAD_TILES: gl.constexpr, TILES: gl.constexpr, FP8: gl.constexpr,
    RAGGED: gl.constexpr, WINDOW: gl.constexpr, MASK: gl.constexpr, SINKS: gl.constexpr,
    SCALE_TENSOR: gl.constexpr, OUT_SCALE_TENSOR: gl.constexpr, STRICT: gl.constexpr,
    DIRECT: gl.constexpr, BALANCED: gl.constexpr, BATCH: gl.constexpr, OVERLAP: gl.constexpr,
):  # fmt: skip
    """One tile of rows on one KV head (axis 0), one split (axis 1) of the keys of one request (axis 2), or
    `BALANCED` one of `num_splits` equal runs over all requests (axis 1).

    `DIRECT`: there is one split, and rows go to `out` and `lse_out`; else to `part_out` and `part_lse`.
    """
    row_of_tile = gl.program_id(0) // KV_HEADS * ROWS
    kv_head = gl.program_id(0) % KV_HEADS
    split = gl.program_id(1)
    wait_for_predecessor(OVERLAP)
    first, count, start, run_begin, run_end = run_of_program(
        split, num_splits, seq_lens, batch, max_seq_len, KEYS, BATCH, BALANCED
    )

    operand: gl.constexpr = gl.float16 if FP8 else query.dtype.element_ty
    # Not in registers, where there is room for it: ptxas 12.8 gives them to others in the loop when D is 64.
    q_tile = gl.allocate_shared_memory(operand, [ROWS, D], OPERAND)
    loaded = gl.allocate_shared_memory(k_map.dtype, [LOAD_TILES, 1, 1, KEYS, D], k_map.layout)
    loaded_full = barriers(LOAD_TILES)
    loaded_free = barriers(LOAD_TILES)
    if FP8:
        tiles = gl.allocate_shared_memory(operand, [TILES, 1, 1, KEYS, D], OPERAND_TILES)
        full = barriers(TILES)
        free = barriers(TILES)
    else:
        tiles, full, free = loaded, loaded_full, loaded_free
    # The roles of a partition have to stand in the call: a tuple with a None in it cannot be a variable.
    if FP8:
        gl.warp_specialize(
            [
                (_attend_role, (tiles, q_tile, full, free, query, out, lse_out, part_out, part_lse,
                                block_tables, mask, sinks, score_scale, score_scale_tensor,
                                out_scale, out_scale_tensor, q_token, q_head, out_token, out_head, lse_token,
                                table_row, mask_request, mask_row, num_pages, row_of_tile, kv_head,
                                count, first, start, run_begin, run_end, split, num_splits,
                                seq_lens, cum_seq_lens_q, max_q_len, max_seq_len, window_left,
                                GROUP, KV_HEADS, PAGE, D, TILES, FP8, RAGGED, WINDOW, MASK, SINKS,
                                SCALE_TENSOR, OUT_SCALE_TENSOR, STRICT, DIRECT, BALANCED, OVERLAP)),
                (_convert_role, (loaded, loaded_full, loaded_free, tiles, full, free,
                                 count, first, start, run_begin, run_end, split, num_splits,
                                 seq_lens, cum_seq_lens_q, max_q_len, max_seq_len, window_left,
                                 D, LOAD_TILES, TILES, RAGGED, BALANCED, WINDOW)),
                (load_role, (k_map, v_map, loaded, loaded_full, loaded_free, block_tables, table_row, kv_head,
                             count, first, start, run_begin, run_end, split, num_splits,
                             seq_lens, cum_seq_lens_q, max_q_len, max_seq_len, window_left,
                             PAGE, LOAD_TILES, RAGGED, BALANCED, WINDOW)),
            ],
            [4, 1],
            [CONVERT_REGISTERS, LOAD_REGISTERS],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_attend_role, (tiles, q_tile, full, free, query, out, lse_out, part_out, part_lse,
                                block_tables, mask, sinks, score_scale, score_scale_tensor,
                                out_scale, out_scale_tensor, q_token, q_head, out_token, out_head, lse_token,
                                table_row, mask_request, mask_row, num_pages, row_of_tile, kv_head,
                                count, first, start, run_begin, run_end, split, num_splits,
                                seq_lens, cum_seq_lens_q, max_q_len, max_seq_len, window_left,
                                GROUP, KV_HEADS, PAGE, D, TILES, FP8, RAGGED, WINDOW, MASK, SINKS,
                                SCALE_TENSOR, OUT_SCALE_TENSOR, STRICT, DIRECT, BALANCED, OVERLAP)),
                (load_role, (k_map, v_map, loaded, loaded_full, loaded_free, block_tables, table_row, kv_head,
                             count, first, start, run_begin, run_end, split, num_splits,
                             seq_lens, cum_seq_lens_q, max_q_len, max_seq_len, window_left,
                             PAGE, LOAD_TILES, RAGGED, BALANCED, WINDOW)),
            ],
            [1],
            [LOAD_REGISTERS],
        )  # fmt: skip


@torch.library.custom_op("nightcap::paged_decode_gluon_gqa", mutates_args=("out", "lse", "workspace"))
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
    written. `v` is never None: `gluon_mla` is for MLA.
    """
    assert v is not None
    batch, heads, kv_heads = len(seq_lens), query.shape[1], k.shape[2]
    work = divide(out, k, batch, max_q_len, max_seq_len, balanced)
    parts = work.partial_results(workspace)
    if gluon_gqa_rows.fits(query, k, max_q_len):
        gluon_gqa_rows.launch(
            work, out, lse, parts, query, k, v, block_tables, seq_lens, cum_seq_lens_q, mask, sinks,
            bmm1_scale, bmm1_scale_tensor, bmm2_scale, bmm2_scale_tensor, window_left, strict,
        )  # fmt: skip
    else:
        group, fp8 = heads // kv_heads, k.element_size() == 1
        tiles = triton.cdiv(group * max_q_len, ROWS.value)
        load_tiles, tiles_held = TILES_FP8 if fp8 else (TILES, TILES)
        _gqa_decode[(tiles * kv_heads, *work.grid)](
            tensor_map(k), tensor_map(v), query, out, lse, *parts,
            block_tables, seq_lens, cum_seq_lens_q, mask, sinks,
            bmm1_scale * LOG2E, bmm1_scale_tensor, bmm2_scale, bmm2_scale_tensor,
            query.stride(0), query.stride(1), out.stride(0), out.stride(1), lse.stride(0), block_tables.stride(0),
            0 if mask is None else mask.stride(0), 0 if mask is None else mask.stride(1),
            batch, work.num_splits, max_q_len, max_seq_len, k.shape[0], window_left,
            GROUP=group, KV_HEADS=kv_heads, PAGE=k.shape[1], D=k.shape[3],
            LOAD_TILES=load_tiles, TILES=tiles_held, FP8=fp8,
            RAGGED=cum_seq_lens_q is not None, WINDOW=window_left >= 0, MASK=mask is not None,
            SINKS=sinks is not None, SCALE_TENSOR=bmm1_scale_tensor is not None,
            OUT_SCALE_TENSOR=bmm2_scale_tensor is not None, STRICT=strict,
            DIRECT=work.direct, BALANCED=balanced,
            BATCH=triton.next_power_of_2(batch) if balanced else 1,
            num_warps=4, maxnreg=REGISTERS_FP8 if fp8 else REGISTERS, **work.options(query.device),
        )  # fmt: skip
    work.combine(
        out, lse, parts, seq_lens, cum_seq_lens_q, sinks, bmm2_scale, bmm2_scale_tensor, keys=KEYS.value, strict=strict
    )
