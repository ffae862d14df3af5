"""Parts that the Gluon kernels for Hopper share: barriers, page ids, draft masks, and slots that hold no live key."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier


@gluon.jit
def barriers(count: gl.constexpr):
    """`count` barriers in shared memory, each for one arrival."""
    made = gl.allocate_shared_memory(gl.int64, [count, 1], mbarrier.MBarrierLayout())
    for index in gl.static_range(count):
        mbarrier.init(made.index(index), count=1)
    return made


@gluon.jit
def page_ids(pages, block, end, length, PAGE: gl.constexpr, KEYS: gl.constexpr):
    """The ids of the pages that a block before `end` lies in, one unless pages are smaller than a block; 0 where
    it has no live key.
    """
    parts: gl.constexpr = max(KEYS // PAGE, 1)
    ids = ()
    for part in gl.static_range(parts):
        key = block * KEYS + part * PAGE
        ids += (gl.load(pages + key // PAGE, mask=(block < end) & (key < length), other=0),)
    return ids


@gluon.jit
def visible_in_draft(key, token, length, q_len, mask, mask_row):
    """Which tokens see which keys by the draft mask of a request; keys before the draft are seen. `key` and `token`
    are vectors that broadcast against each other.
    """
    draft = gl.maximum(key - (length - q_len), 0)
    in_draft = (token < q_len) & (key >= length - q_len) & (draft < q_len)
    bits = gl.load(mask + token * mask_row + draft // 16, mask=in_draft, other=0xFFFF).to(gl.int32)
    return ((bits >> (draft % 16)) & 1) == 1


@gluon.jit
def clear_keys_outside(tile, first, end):
    """Zeroes the rows of a tile [keys, columns] before `first` and from `end` on: the weights of those keys are 0,
    but 0 * NaN is NaN.
    """
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [gl.num_warps(), 1], [1, 0])
    key = gl.arange(0, tile.shape[0], layout=gl.SliceLayout(1, layout))
    live = (key >= first) & (key < end)
    columns: gl.constexpr = tile.shape[1]
    for column in gl.static_range(0, columns, 64):
        part = tile.slice(column, 64, dim=1)
        part.store(gl.where(live[:, None], part.load(layout), 0.0))
