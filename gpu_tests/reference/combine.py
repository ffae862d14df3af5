"""The second half of split KV in Triton: partial results of a row into its output. Takes 1 to 2 us.

A kernel that splits the keys of a request writes, per row (request, token, head) and split, the normalised
output of that split, fp32, and its LSE, base 2. A split without keys writes LSE = -inf and leaves its output
as it was, so that a workspace may be dirty; LSE = NaN poisons the row. Flash-Decoding 2023 has the formula.

One warp adds the few splits of a row. Where few rows have many splits (one request on the whole GPU), eight
warps add 128 columns of a row: a warp a row would wait for the loads of one split after the other.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

MANY_SPLITS = 32
RUNTIME_INTEGERS = ["num_splits", "max_q_len"]
"""Integers that must not be compiled in: one binary serves all batch sizes and lengths."""


def partial_results(workspace: Tensor, rows: int, num_splits: int, head_dim_v: int) -> tuple[Tensor, Tensor]:
    """The partial outputs [rows * num_splits * head_dim_v] and LSEs [rows * num_splits], fp32, in a workspace
    of at least `splits.partial_bytes` bytes. Split `s` of row `r` stands at `r * num_splits + s`.
    """
    num_parts = rows * num_splits
    scratch = workspace.view(-1).view(torch.uint8)[: 4 * num_parts * (head_dim_v + 1)].view(torch.float32)
    # Outputs first: they are stored as vectors, which asks for alignment.
    return scratch[: num_parts * head_dim_v], scratch[num_parts * head_dim_v :]


@triton.jit
def rows_of_request(request, cum_seq_lens_q, max_q_len, RAGGED: tl.constexpr):
    """First row of the request in the query, and how many it has."""
    if RAGGED:
        first = tl.load(cum_seq_lens_q + request)
        return first, tl.minimum(tl.load(cum_seq_lens_q + request + 1) - first, max_q_len)
    return request * max_q_len, max_q_len


@triton.jit(do_not_specialize=RUNTIME_INTEGERS)
def _combine(
    out, lse_out, part_out, part_lse, seq_lens, cum_seq_lens_q, sinks, out_scale, out_scale_tensor,
    out_token, out_head, lse_token, num_splits, max_q_len,
    HEADS: tl.constexpr, DV: tl.constexpr, RAGGED: tl.constexpr, SINKS: tl.constexpr,
    SCALE_TENSOR: tl.constexpr, STRICT: tl.constexpr,
    MAX_SPLITS: tl.constexpr, CHUNK: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One row (request, token, head) and `COLUMNS` of its columns."""
    part = tl.program_id(0).to(tl.int64)
    head = part % HEADS
    token = (part // HEADS) % max_q_len
    request = part // HEADS // max_q_len
    first_row, q_len = rows_of_request(request, cum_seq_lens_q, max_q_len, RAGGED)
    if token >= q_len:
        return
    splits = tl.arange(0, MAX_SPLITS)
    lses = tl.load(part_lse + part * num_splits + splits, mask=splits < num_splits, other=float("-inf"))
    poisoned = tl.max(tl.where(lses != lses, 1, 0), 0) > 0
    top = tl.max(lses, 0)
    finite_top = tl.where(top == float("-inf"), 0.0, top)
    total = tl.sum(tl.exp2(lses - finite_top), 0)
    denominator = total
    if SINKS:  # once per row, whatever the number of splits
        denominator += tl.exp2(tl.load(sinks + head) * 1.4426950408889634 - finite_top)

    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    acc = tl.zeros([COLUMNS], tl.float32)
    for begin in range(0, num_splits, CHUNK):
        some = begin + tl.arange(0, CHUNK)
        some_lse = tl.load(part_lse + part * num_splits + some, mask=some < num_splits, other=float("-inf"))
        weights = tl.exp2(some_lse - finite_top)
        rows = part_out + (part * num_splits + some)[:, None] * DV + columns[None, :]
        values = tl.load(rows, mask=(some_lse > float("-inf"))[:, None], other=0.0)
        acc += tl.sum(weights[:, None] * values, 0)

    scale = out_scale
    if SCALE_TENSOR:
        scale *= tl.load(out_scale_tensor)
    result = tl.where(total == 0.0, 0.0, acc / denominator * scale)
    lse = tl.where(total == 0.0, float("-inf"), finite_top + tl.log2(total))
    if STRICT:
        poisoned |= tl.load(seq_lens + request) <= 0
    result = tl.where(poisoned, float("nan"), result)
    lse = tl.where(poisoned, float("nan"), lse)
    row = first_row + token
    tl.store(out + row * out_token + head * out_head + columns, result.to(out.dtype.element_ty))
    if tl.program_id(1) == 0:
        tl.store(lse_out + row * lse_token + head, lse)


def combine(
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
    num_splits: int,
    max_q_len: int,
    strict: bool,
) -> None:
    """Writes `out` [num_tokens, H, Dv] times the scales, and `lse` fp32 [num_tokens, H] without the sinks.

    Rows that the offsets do not cover are not written. `strict`: NaN where `seq_lens` is not positive.
    """
    batch, (_, heads, head_dim_v) = len(seq_lens), out.shape
    many = num_splits >= MANY_SPLITS
    columns = min(head_dim_v, 128) if many else head_dim_v
    _combine[(batch * max_q_len * heads, head_dim_v // columns)](
        out, lse, part_out, part_lse, seq_lens, cum_seq_lens_q, sinks, scale, scale_tensor,
        out.stride(0), out.stride(1), lse.stride(0), num_splits, max_q_len,
        HEADS=heads, DV=head_dim_v, RAGGED=cum_seq_lens_q is not None, SINKS=sinks is not None,
        SCALE_TENSOR=scale_tensor is not None, STRICT=strict,
        MAX_SPLITS=triton.next_power_of_2(num_splits), CHUNK=32 if many else 1, COLUMNS=columns,
        num_warps=8 if many else 1,
    )  # fmt: skip
