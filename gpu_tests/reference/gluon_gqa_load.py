"""Keys and values of MHA, GQA and MQA on their way to the Gluon kernels: the load role and its tensor maps."""

from __future__ import annotations

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from gpu_tests.reference.gluon_parts import page_ids
from gpu_tests.reference.pieces import piece_of

KEYS = gl.constexpr(64)
"""Keys of a block."""


@gluon.jit
def load_role(
    k_map, v_map, tiles, full, free, block_tables, table_row, kv_head,
    count, first, start, run_begin, run_end, split, num_splits,
    seq_lens, cum_seq_lens_q, max_q_len, max_seq_len, window_left,
    PAGE: gl.constexpr, TILES: gl.constexpr, RAGGED: gl.constexpr, BALANCED: gl.constexpr, WINDOW: gl.constexpr,
):  # fmt: skip
    """Fills one tile of the ring after the other: the keys of a block, then its values."""
    before = 0
    for turn in range(count):
        request, _, _, length, begin, end, start = piece_of(
            turn, first, start, run_begin, run_end, split, num_splits,
            seq_lens, cum_seq_lens_q, max_q_len, max_seq_len, window_left, RAGGED, BALANCED, WINDOW, KEYS,
        )  # fmt: skip
        pages = block_tables + request.to(gl.int64) * table_row
        # One block ahead: a page id that is loaded when it is needed costs its latency in every block.
        next_ids = page_ids(pages, begin, end, length, PAGE, KEYS)
        for block in range(begin, end):
            ids = next_ids
            next_ids = page_ids(pages, block + 1, end, length, PAGE, KEYS)
            ring = 2 * (before + block - begin)
            slot = block * KEYS % PAGE
            _load_tile(k_map, tiles, full, free, ring, ids, kv_head, slot, PAGE, TILES)
            _load_tile(v_map, tiles, full, free, ring + 1, ids, kv_head, slot, PAGE, TILES)
        before += gl.maximum(end - begin, 0)


@gluon.jit
def _load_tile(
    page_map, tiles, full, free, ring, ids, kv_head, slot, PAGE: gl.constexpr, TILES: gl.constexpr
):  # fmt: skip
    """Fills the tile of the ring whose turn it is with a block of one KV head, which lies in the pages `ids`,
    from `slot` of the first one.
    """
    index = ring % TILES
    tile, ready = tiles.index(index), full.index(index)
    mbarrier.wait(free.index(index), (ring // TILES & 1) ^ 1)
    mbarrier.expect(ready, tile.shape[2] * tile.shape[3] * tile.dtype.primitive_bitwidth // 8)
    if PAGE < KEYS:
        for part in gl.static_range(len(ids)):
            rows = tile.slice(part * PAGE, PAGE, dim=2)
            tma.async_copy_global_to_shared(page_map, [ids[part], kv_head, 0, 0], ready, rows)
    else:
        tma.async_copy_global_to_shared(page_map, [ids[0], kv_head, slot, 0], ready, tile)


def tensor_map(side: Tensor) -> TensorDescriptor:
    """TMA map of the keys or the values [P, page, Hkv, D]; a box is a page of one head, or 64 keys of it."""
    pages = side.transpose(1, 2)
    keys, columns = min(KEYS.value, pages.shape[2]), pages.shape[3]
    bits = 8 * pages.element_size()
    tile = gl.NVMMASharedLayout(min(128, columns * bits // 8), bits, rank=4)
    return TensorDescriptor(pages, pages.shape, pages.stride(), [1, 1, keys, columns], tile)
