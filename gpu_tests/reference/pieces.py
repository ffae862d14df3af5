"""What a program of a decode kernel works on: one request and a range of its key blocks, or several such pieces.

On the grid of splits a program has one piece: split `s` of `S` of one request. A fixed split gives every request
the same number of programs, whatever its length: with varied lengths most of them wait for the longest request.

On the balanced grid the blocks of all requests are one line, request after request, and program `p` of `P` takes
the places from `p * N // P` to `(p + 1) * N // P` of the `N` that there are (the idea of stream-K, Osama et al.
2023, and of FlashInfer's plan, but computed on the device from `seq_lens`, so that a graph serves any lengths). A
run may end in the middle of a request and span several.

What program `p` finds about request `b` is the part in slot `p + b`. Along the line every step raises `p` or
`b`, so slots are unique, there are `P + B - 1`, and those of a request stand side by side. A slot holds
`max_q_len * H` rows.

The price: the parts of a request depend on the lengths in front of it, and so do its last bits. A fixed split
gives a request the same bits whatever else is in the batch.
"""

from __future__ import annotations

import triton
import triton.language as tl

SWITCH = tl.constexpr(1)
"""Places in the line that the begin of a request takes, in front of its blocks: what a program loses when it goes
over to another request, in blocks.
"""


@triton.jit
def rows_of_request(request, cum_seq_lens_q, max_q_len, RAGGED: tl.constexpr):
    """First row of the request in the query, int64, and how many it has."""
    if RAGGED:
        first = tl.load(cum_seq_lens_q + request)
        count = tl.minimum(tl.load(cum_seq_lens_q + request + 1) - first, max_q_len)
    else:
        first = request * max_q_len
        count = max_q_len
    return first.to(tl.int64), count


@triton.jit
def blocks_of(length, max_seq_len, KEYS: tl.constexpr):
    """Blocks of `KEYS` keys of a request; none if its length breaks the contract."""
    return tl.where((length < 0) | (length > max_seq_len), 0, (length + KEYS - 1) // KEYS)


@triton.jit
def width_of(seq_lens, index, batch, max_seq_len, KEYS: tl.constexpr):
    """Places in the line that each request takes; 0 for numbers that are none of a request."""
    length = tl.load(seq_lens + index, mask=index < batch, other=0)
    return tl.where(index < batch, blocks_of(length, max_seq_len, KEYS) + SWITCH, 0)


@triton.jit
def run_of(run, runs, index, seq_lens, batch, max_seq_len, KEYS: tl.constexpr):
    """A run: its first request and how many it meets, the place in the line at which that first request
    starts, and the first place of the run and the one after its last.

    `index` holds the numbers from 0, at least `batch` of them.
    """
    width = width_of(seq_lens, index, batch, max_seq_len, KEYS)
    ends = tl.cumsum(width, 0)
    total = tl.sum(width, 0).to(tl.int64)
    begin = (run * total // runs).to(tl.int32)
    end = ((run + 1) * total // runs).to(tl.int32)
    first = tl.sum((ends <= begin).to(tl.int32), 0)
    after_last = tl.sum(((ends - width < end) & (index < batch)).to(tl.int32), 0)
    start = tl.sum(tl.where(index < first, width, 0), 0)
    return first, after_last - first, start, begin, end


@triton.jit
def piece_of(
    turn, first, start, run_begin, run_end, split, num_splits, seq_lens, cum_seq_lens_q, max_q_len, max_seq_len,
    window_left, RAGGED: tl.constexpr, BALANCED: tl.constexpr, WINDOW: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """The piece that a program takes in its turn: the request, its first row and number of query tokens, its
    length as given, the key blocks from `begin` to `end`, and the place at which the next request starts.

    `start` is the place at which this request does. A window has no balanced grid.
    """
    request = first + turn
    first_row, q_len = rows_of_request(request, cum_seq_lens_q, max_q_len, RAGGED)
    length = tl.load(seq_lens + request)
    blocks = blocks_of(length, max_seq_len, KEYS)
    if BALANCED:
        start += SWITCH
        begin, end = tl.maximum(run_begin - start, 0), tl.minimum(run_end - start, blocks)
        start += blocks
    else:
        first_block = 0
        if WINDOW:
            first_block = tl.maximum(length - q_len - window_left, 0) // KEYS
        per_split = tl.cdiv(blocks - first_block, num_splits)
        begin = first_block + split * per_split
        end = tl.minimum(begin + per_split, blocks)
    return request, first_row, q_len, length, begin, end, start


@triton.jit
def first_part_of(request, split, num_splits, rows, BALANCED: tl.constexpr):
    """Where the partial results of a request with `rows` rows begin, and how far apart those of its rows are:
    on the balanced grid one a slot, else split `s` of row `r` at `r * num_splits + s`.
    """
    if BALANCED:
        first, step = (split + request).to(tl.int64) * rows, 1
    else:
        first, step = request.to(tl.int64) * rows * num_splits + split, num_splits
    return first, step
