"""Keys in fp8 (e4m3) on their way from global memory into tiles of bf16 in shared memory.

Hopper's matrix instructions take both operands in one type, and the query is bf16 (the scales of the cache are
folded into those of scores and output, so nothing is scaled here). TMA cannot convert: 128 threads load keys
into registers, convert and store them. A block of 64 keys x 576 columns passes as `PANELS` of 64 columns, in the
order in which scores need them, of which `WINDOW` are in flight: as soon as one has been stored, its registers
are asked for the next but `WINDOW`.

Each key is looked up by itself, so that pages may have any size.
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

WINDOW = gl.constexpr(7)
"""Panels in flight: 28 kB. 4 kB more cost 8 registers a thread, which are not there."""

WORDS = gl.constexpr(gl.BlockedLayout([1, 4], [8, 4], [4, 1], [1, 0]))
"""A panel in words of four e4m3, [64, 16]: a thread loads 16 bytes of each of two keys. Eight neighbouring threads,
which store together, have two keys and every other 16 bytes of their rows in a tile: with its swizzle these are all
banks of shared memory.
"""

WORD_TILE = gl.constexpr(gl.NVMMASharedLayout(128, 32, rank=2))
"""The layout of a tile of bf16 when its elements are words of two."""


@gluon.jit
def rows_of_keys(k, k_page, k_slot, page, key, limit, num_pages, PAGE: gl.constexpr):
    """Where the rows of keys lie, and which are live: below `limit` and on a page of the pool. `k` points to words;
    the strides count 16 bytes, so that the compiler sees that a thread's loads are aligned.
    """
    live = (key < limit) & (page >= 0) & (page < num_pages)
    return k + (page.to(gl.int64) * k_page + key % PAGE * k_slot) * 4, live


@gluon.jit
def load_panel(rows, live, panel: gl.constexpr):
    """A panel of the rows in words; 0 in rows that are not live, whatever lies there."""
    LATENT: gl.constexpr = (PANELS - 1) * PANEL
    if panel < ROPE_PANEL:
        column: gl.constexpr = PANEL * panel
    elif panel == ROPE_PANEL:
        column: gl.constexpr = LATENT
    else:
        column: gl.constexpr = PANEL * (panel - 1)
    word = column // 4 + gl.arange(0, PANEL // 4, layout=gl.SliceLayout(0, WORDS))
    return gl.load(rows[:, None] + word[None, :], mask=live[:, None], other=0)


@gluon.jit
def store_panel(words, tile, panel: gl.constexpr):
    """Converts a panel into the columns of `tile` [1, 64, columns], bf16, from `panel * 64` on."""
    KEYS: gl.constexpr = tile.shape[1]
    COLUMNS: gl.constexpr = tile.shape[2]
    pairs = tile.reshape([KEYS, COLUMNS])._reinterpret(gl.int32, [KEYS, COLUMNS // 2], WORD_TILE)
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
