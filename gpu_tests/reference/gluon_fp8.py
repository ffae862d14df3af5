"""Keys in fp8 (e4m3) on their way from global memory into tiles of bf16 in shared memory.

Hopper's matrix instructions take both operands in one type, and the query is bf16 (the scales of the cache are
folded into those of scores and output, so nothing is scaled here). There is no room for tiles of fp8 beside those
of bf16, and TMA cannot convert: 128 threads load keys into registers, convert and store them. A block of 64 keys x
576 columns is `PANELS` of 64 columns, in the order in which scores need them, and a whole block is in flight to
registers while the one before it is multiplied.

* The compiler has one scoreboard for all of these loads, and waits for all of them at the first use of one. Nothing
  may wait for a load in the middle of a block: a page id that is needed there, or a register that was spilled, would
  have the latency of memory each time.
* The next block is asked for behind the last fence of this one: a fence is a memory barrier, too, and may wait for
  loads that are in flight.
* Loads are not masked, since their registers would have to be zeroed first. Dead keys become 0 on the way.
* Each key is looked up by itself, so that pages may have any size.
"""

from __future__ import annotations

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from gpu_tests.reference.select import MLA_COLUMNS

PANEL = gl.constexpr(64)
PANELS = gl.constexpr(sum(MLA_COLUMNS) // 64)
ROPE_PANEL = gl.constexpr(MLA_COLUMNS[0] // 2 // 64)
"""Panels of a block: the left half of the latent columns, rope, the right half."""

WORDS = gl.constexpr(gl.BlockedLayout([1, 4], [8, 4], [4, 1], [1, 0]))
"""A panel in words of four e4m3, [64, 16]: a thread loads 16 bytes of each of two keys. Eight neighbouring threads,
which store together, have two keys and every other 16 bytes of their rows in a tile: with its swizzle these are all
banks of shared memory.
"""

WORD_TILE = gl.constexpr(gl.NVMMASharedLayout(128, 32, rank=2))
"""The layout of a tile of bf16 when its elements are words of two."""


@gluon.jit
def rows_of_keys(k, k_page, k_slot, page, key, num_pages, PAGE: gl.constexpr):
    """Where the rows of keys lie; a page outside of the pool is taken for page 0. `k` points to words; the strides
    count 16 bytes, so that the compiler sees that a thread's loads are aligned.
    """
    page = gl.where((page >= 0) & (page < num_pages), page, 0)
    return k + (page.to(gl.int64) * k_page + key % PAGE * k_slot) * 4


@gluon.jit
def load_block(rows):
    """The rows in words, as a tuple of panels."""
    panels = ()
    for panel in gl.static_range(PANELS):
        panels += (_load_panel(rows, panel),)
    return panels


@gluon.jit
def _load_panel(rows, panel: gl.constexpr):
    if panel < ROPE_PANEL:
        column: gl.constexpr = PANEL * panel
    elif panel == ROPE_PANEL:
        column: gl.constexpr = PANEL * (PANELS - 1)
    else:
        column: gl.constexpr = PANEL * (panel - 1)
    word = column // 4 + gl.arange(0, PANEL // 4, layout=gl.SliceLayout(0, WORDS))
    return gl.load(rows[:, None] + word[None, :])


@gluon.jit
def store_panels(panels, first: gl.constexpr, live, tile):
    """Converts panels from `first` on into `tile` [1, 64, columns], bf16; keys that are not live become 0, since
    0 * NaN is NaN.
    """
    KEYS: gl.constexpr = tile.shape[1]
    COLUMNS: gl.constexpr = tile.shape[2]
    pairs = tile.reshape([KEYS, COLUMNS])._reinterpret(gl.int32, [KEYS, COLUMNS // 2], WORD_TILE)
    for panel in gl.static_range(COLUMNS // PANEL):
        words = gl.where(live[:, None], panels[first + panel], 0)
        pairs.slice(PANEL // 2 * panel, PANEL // 2, dim=1).store(_bf16_of_e4m3(words))


@gluon.jit
def _bf16_of_e4m3(words):
    """Words of four e4m3, [R, W], as words of two bf16, [R, 2 W]: exact, and NaN stays NaN.

    By way of fp16 and fp32: two instructions an element. Shifting the bits into place and multiplying by 2^120 takes
    more, and makes 480 of NaN.
    """
    low, high = gl.inline_asm_elementwise(
        """
        {
            .reg .b16 p<2>, h<4>;
            .reg .b32 x<2>;
            .reg .f32 f<4>;
            mov.b32 {p0, p1}, $2;
            cvt.rn.f16x2.e4m3x2 x0, p0;
            cvt.rn.f16x2.e4m3x2 x1, p1;
            mov.b32 {h0, h1}, x0;
            mov.b32 {h2, h3}, x1;
            cvt.f32.f16 f0, h0;
            cvt.f32.f16 f1, h1;
            cvt.f32.f16 f2, h2;
            cvt.f32.f16 f3, h3;
            cvt.rn.bf16x2.f32 $0, f1, f0;
            cvt.rn.bf16x2.f32 $1, f3, f2;
        }
        """,
        "=r,=r,r",
        [words],
        dtype=(gl.int32, gl.int32),
        is_pure=True,
        pack=1,
    )
    return gl.join(low, high).reshape([words.shape[0], 2 * words.shape[1]])


def words_of(k: Tensor) -> tuple[Tensor, int, int]:
    """The cache `k` [P, page, 1, 576] in fp8 as words of four, and the strides of pages and slots in 16 bytes."""
    return k.squeeze(2).view(torch.int32), k.stride(0) // 16, k.stride(1) // 16
