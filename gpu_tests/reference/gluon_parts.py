"""Parts that the Gluon kernels for Hopper share: barriers, tensor maps, the run of a program, page ids, draft masks,
slots that hold no live key, the results of a row, and queries in float16.
"""

from __future__ import annotations

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from gpu_tests.reference.combine import row_factor
from gpu_tests.reference.pieces import first_part_of, run_of

LAZY, ROOM = gl.constexpr(15.0), gl.constexpr(7.0)
"""By how many powers of two a weight may exceed 1 before the maximum is renewed, and by how many the largest one does
then: 2^15 is in the range of float16, and weights down to 2^-21 of the largest keep all of its bits.
"""


@gluon.jit
def barriers(count: gl.constexpr):
    """`count` barriers in shared memory, each for one arrival."""
    made = gl.allocate_shared_memory(gl.int64, [count, 1], mbarrier.MBarrierLayout())
    for index in gl.static_range(count):
        mbarrier.init(made.index(index), count=1)
    return made


@gluon.jit
def run_of_program(split, num_splits, seq_lens, batch, max_seq_len, KEYS: gl.constexpr, BATCH: gl.constexpr,
                   BALANCED: gl.constexpr):  # fmt: skip
    """As `pieces.run_of`; without `BALANCED` one piece of the request of the program, in a loop of one turn, which the
    compiler removes.
    """
    if BALANCED:
        index = gl.arange(0, BATCH, layout=gl.BlockedLayout([max(BATCH // 32, 1)], [32], [gl.num_warps()], [0]))
        first, count, start, begin, end = run_of(split, num_splits, index, seq_lens, batch, max_seq_len, KEYS)
    else:
        first, count, start, begin, end = gl.program_id(2), 1, 0, 0, 0
    return first, count, start, begin, end


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
def hides_a_key(block, length, q_len, KEYS: gl.constexpr, MASK: gl.constexpr):
    """Whether a block may have a key that a row does not see by causal order or by the draft mask: one behind the first
    token of the draft, which a mask may hide, too.
    """
    seen_by_all: gl.constexpr = 0 if MASK else 1
    return (block + 1) * KEYS > length - q_len + seen_by_all


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


@gluon.jit
def finish_rows(
    top, total, poisoned, token, head, live_row, first_row, request, split, num_splits, max_q_len,
    sinks, out, lse_out, part_out, part_lse, out_scale, out_scale_tensor, out_token, out_head, lse_token,
    HEADS: gl.constexpr, COLUMNS: gl.constexpr, SINKS: gl.constexpr, OUT_SCALE_TENSOR: gl.constexpr,
    DIRECT: gl.constexpr, BALANCED: gl.constexpr,
):  # fmt: skip
    """Stores the LSE of each row; returns the factor of its sum of values, where that goes, and whether it does."""
    if DIRECT:
        factor, lse = row_factor(
            top, total, poisoned, sinks, head, out_scale, out_scale_tensor, SINKS, OUT_SCALE_TENSOR
        )
        gl.store(lse_out + (first_row + token) * lse_token + head, lse, mask=live_row)
        rows = out + (first_row + token) * out_token + head * out_head
        written = live_row
    else:
        factor, lse = row_factor(top, total, poisoned, sinks, head, 1.0, out_scale_tensor, False, False)
        first_part, apart = first_part_of(request, split, num_splits, max_q_len * HEADS, BALANCED)
        part = first_part + (token * HEADS + head) * apart
        gl.store(part_lse + part, lse, mask=live_row)
        rows = part_out + part * COLUMNS
        written = live_row & (factor != 0.0)  # a row without keys in this piece leaves its part as it was
    return factor, rows, written


@gluon.jit
def largest_of(q):
    """The largest absolute value of each row of a query [rows, columns]."""
    return gl.max(gl.abs(q.to(gl.float32)), 1)


@gluon.jit
def power_below(largest):
    """The power of two by which a row is divided so that its largest element is below 2, for float16."""
    power = (largest.to(gl.int32, bitcast=True) & 0x7F800000).to(gl.float32, bitcast=True)
    return gl.where(power > 0.0, power, 1.0)


@gluon.jit
def in_float16(q, power):
    """The query [rows, columns] in float16, each row divided by its power of two."""
    return (q.to(gl.float32) / power[:, None]).to(gl.float16)


def cache_map(k: Tensor, keys: int, columns: int) -> TensorDescriptor:
    """TMA map of an MLA cache `k` [P, page, 1, D]; a box is `columns` of a page, or of `keys` keys of it."""
    pages, bits = k.squeeze(2), 8 * k.element_size()
    tile = gl.NVMMASharedLayout(min(128, columns * bits // 8), bits, rank=3)
    return TensorDescriptor(pages, pages.shape, pages.stride(), [1, min(keys, k.shape[1]), columns], tile)
