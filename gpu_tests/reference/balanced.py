"""The second half of split KV on the balanced grid (see `pieces`): the parts of a row, in the slots of the runs that
met its request, into its output.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from gpu_tests.reference.combine import admit_successor, load_parts, row_factor, wait_for_predecessor
from gpu_tests.reference.pieces import SWITCH, blocks_of, rows_of_request, width_of

PARTS, COLUMNS, ELEMENTS = 4, 512, 32
"""Parts and columns that a program of the combine takes at once, and elements of a thread. Most requests have no
more than four parts; narrower programs are more of them, and each of them searches the runs of its request.
"""

RUNTIME_INTEGERS = ["batch", "runs", "max_q_len", "max_seq_len"]


@triton.jit
def _run_with(block, total, runs):
    """The run that holds a block of the line."""
    return (((block + 1).to(tl.int64) * runs - 1) // tl.maximum(total, 1)).to(tl.int32)


@triton.jit(do_not_specialize=RUNTIME_INTEGERS)
def _combine(
    out, lse_out, part_out, part_lse, seq_lens, cum_seq_lens_q, sinks, out_scale, out_scale_tensor,
    out_token, out_head, lse_token, batch, runs, max_q_len, max_seq_len,
    HEADS: tl.constexpr, DV: tl.constexpr, RAGGED: tl.constexpr, SINKS: tl.constexpr,
    SCALE_TENSOR: tl.constexpr, STRICT: tl.constexpr, OVERLAP: tl.constexpr,
    KEYS: tl.constexpr, BATCH: tl.constexpr, PARTS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One row (request, token, head) and `COLUMNS` of its columns."""
    row_of_slot = tl.program_id(0) % (HEADS * max_q_len)
    request = tl.program_id(0) // (HEADS * max_q_len)
    token, head = row_of_slot // HEADS, row_of_slot % HEADS
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    index = tl.arange(0, BATCH)
    length = tl.load(seq_lens + request)
    own = blocks_of(length, max_seq_len, KEYS)
    width = width_of(seq_lens, index, batch, max_seq_len, KEYS)
    start = tl.sum(tl.where(index < request, width, 0), 0) + SWITCH
    total = tl.sum(width, 0)
    first = _run_with(start, total, runs)
    count = tl.where(own > 0, _run_with(start + own - 1, total, runs) - first + 1, 0)
    first_row, q_len = rows_of_request(request, cum_seq_lens_q, max_q_len, RAGGED)
    admit_successor(OVERLAP)
    # Before any program returns: what waits for this kernel alone must not overtake the one in front of it.
    wait_for_predecessor(OVERLAP)
    if token >= q_len:
        return
    poisoned = length > max_seq_len
    if STRICT:
        poisoned |= length <= 0

    top = tl.full([], float("-inf"), tl.float32)
    weight = tl.full([], 0.0, tl.float32)
    acc = tl.zeros([COLUMNS], tl.float32)
    for turn in range(0, count, PARTS):
        part = turn + tl.arange(0, PARTS)
        rows = (first + request + part).to(tl.int64) * (HEADS * max_q_len) + row_of_slot
        lses = tl.load(part_lse + rows, mask=part < count, other=float("-inf"))
        values = load_parts(part_out + rows[:, None] * DV + columns[None, :], part < count)
        poisoned |= tl.max(tl.where(lses != lses, 1, 0), 0) > 0
        values = tl.where((lses > float("-inf"))[:, None], values, 0.0)  # not written: anything, even NaN
        new_top = tl.maximum(top, tl.max(lses, 0))
        finite_top = tl.where(new_top == float("-inf"), 0.0, new_top)
        weights = tl.exp2(lses - finite_top)
        shrink = tl.exp2(top - finite_top)
        acc = acc * shrink + tl.sum(weights[:, None] * values, 0)
        weight = weight * shrink + tl.sum(weights, 0)
        top = new_top
    factor, lse = row_factor(top, weight, poisoned, sinks, head, out_scale, out_scale_tensor, SINKS, SCALE_TENSOR)
    row = first_row + token
    tl.store(out + row * out_token + head * out_head + columns, (acc * factor).to(out.dtype.element_ty))
    if tl.program_id(1) == 0:
        tl.store(lse_out + row * lse_token + head, lse)


def combine_runs(
    out: Tensor,
    lse: Tensor,
    part_out: Tensor,
    part_lse: Tensor,
    seq_lens: Tensor,
    cum_seq_lens_q: Tensor | None,
    sinks: Tensor | None,
    scale: float,
    scale_tensor: Tensor | None,
    *,
    runs: int,
    keys: int,
    max_q_len: int,
    max_seq_len: int,
    strict: bool,
    options: dict[str, object],
) -> None:
    """As `combine.combine`, for the parts of `runs` runs over blocks of `keys` keys."""
    batch, (_, heads, head_dim_v) = len(seq_lens), out.shape
    columns = min(COLUMNS, head_dim_v)
    _combine[(batch * max_q_len * heads, head_dim_v // columns)](
        out, lse, part_out, part_lse, seq_lens, cum_seq_lens_q, sinks, scale, scale_tensor,
        out.stride(0), out.stride(1), lse.stride(0), batch, runs, max_q_len, max_seq_len,
        HEADS=heads, DV=head_dim_v, RAGGED=cum_seq_lens_q is not None, SINKS=sinks is not None,
        SCALE_TENSOR=scale_tensor is not None, STRICT=strict, KEYS=keys, BATCH=triton.next_power_of_2(batch),
        PARTS=PARTS, COLUMNS=columns, num_warps=max(1, PARTS * columns // (32 * ELEMENTS)), **options,
    )  # fmt: skip
