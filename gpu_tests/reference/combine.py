"""The second half of split KV in Triton: partial results of a row into its output.

A kernel that splits the keys of a request writes, per row (request, token, head) and split, the normalised
output of that split, fp32, and its LSE, base 2. A split without keys writes LSE = -inf and leaves its output
as it was, so that a workspace may be dirty; LSE = NaN poisons the row. Flash-Decoding 2023 has the formula.
Split `s` of row `r` stands at `r * num_splits + s`. With one split a kernel writes the output itself
(`row_factor` holds what both have to agree on).

It is a chain of latencies, so it has as few links as possible:

* All splits of a row are loaded at once, whatever their LSE says, and those that were not written are thrown
  away in registers. A loop over the splits would wait for memory once a turn.
* A program takes as many columns as leave `ELEMENTS` elements to a thread: one warp a row for two splits,
  eight warps for 32 columns of a row with 256 splits, which also spreads a single request over the GPU.
* Partial results stay in the L2 cache for the next launch (`load_parts`): 3.9 us of 88.4 for 32 requests of 64 rows.
* On Hopper and later it is launched while the last blocks of the first half are at work, and waits there
  (`launch_options`). On an H200 that saves 1.5 us of 81.1 for 32 requests. Launched earlier it would wait for longer,
  and gain less. It admits the next kernel at once: that one waits for its end before it reads or writes anything,
  and its launch takes no time of its own, 1 us of 18.6 for one request.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from gpu_tests.reference.pieces import rows_of_request

ELEMENTS, WARP, MAX_WARPS = 32, 32, 8
RUNTIME_INTEGERS = ["num_splits", "max_q_len"]
"""Integers that must not be compiled in: one binary serves all batch sizes and lengths."""


def overlaps(device: torch.device) -> bool:
    """Whether kernels there may start before the one in front of them has ended (programmatic dependent
    launch).
    """
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def launch_options(device: torch.device) -> dict[str, object]:
    """Options of a launch of a kernel that begins with `wait_for_predecessor(OVERLAP)`."""
    if overlaps(device):
        return {"OVERLAP": True, "launch_pdl": True}
    return {"OVERLAP": False}


@triton.jit
def wait_for_predecessor(OVERLAP: tl.constexpr):
    """Before the first access to what the kernel in front reads or writes: what it wrote is visible from here on, what
    it reads may be overwritten.
    """
    if OVERLAP:
        gdc_wait()


@triton.jit
def admit_successor(OVERLAP: tl.constexpr):
    """The next kernel may be launched when every program of this one has come here or has ended; it then waits for
    the end of all of them.
    """
    if OVERLAP:
        gdc_launch_dependents()


@triton.jit
def row_factor(top, total, poisoned, sinks, head, out_scale, out_scale_tensor, SINKS: tl.constexpr,
               SCALE_TENSOR: tl.constexpr):  # fmt: skip
    """What the weighted sum of values of a row has to be multiplied with, and the LSE of the row.

    `total` is the sum of 2^(score - top). A row without keys has the factor 0 and LSE -inf.
    """
    finite_top = tl.where(total == 0.0, 0.0, top)
    denominator = total
    if SINKS:  # once per row, whatever the number of splits
        denominator += tl.exp2(tl.load(sinks + head) * 1.4426950408889634 - finite_top)
    scale = out_scale
    if SCALE_TENSOR:
        scale *= tl.load(out_scale_tensor)
    factor = tl.where(total == 0.0, 0.0, scale / denominator)
    lse = tl.where(total == 0.0, float("-inf"), finite_top + tl.log2(total))
    return tl.where(poisoned, float("nan"), factor), tl.where(poisoned, float("nan"), lse)


@triton.jit
def load_parts(pointers, there):
    """Partial results [parts, columns]; 0 where a part is not `there`. They are dead from here on, and the next launch
    writes others in their place: they are kept in the L2 cache until then, so that nobody waits for them on their way
    to memory.
    """
    return tl.load(pointers, mask=there[:, None], other=0.0, eviction_policy="evict_last")


@triton.jit(do_not_specialize=RUNTIME_INTEGERS)
def _combine(
    out, lse_out, part_out, part_lse, seq_lens, cum_seq_lens_q, sinks, out_scale, out_scale_tensor,
    out_token, out_head, lse_token, num_splits, max_q_len,
    HEADS: tl.constexpr, DV: tl.constexpr, RAGGED: tl.constexpr, SINKS: tl.constexpr,
    SCALE_TENSOR: tl.constexpr, STRICT: tl.constexpr, OVERLAP: tl.constexpr,
    SPLITS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One row (request, token, head) and `COLUMNS` of its columns."""
    part = tl.program_id(0)
    head = part % HEADS
    token = (part // HEADS) % max_q_len
    request = part // HEADS // max_q_len
    split = tl.arange(0, SPLITS)
    parts = part.to(tl.int64) * num_splits + split
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    admit_successor(OVERLAP)
    wait_for_predecessor(OVERLAP)
    lses = tl.load(part_lse + parts, mask=split < num_splits, other=float("-inf"))
    values = load_parts(part_out + parts[:, None] * DV + columns[None, :], split < num_splits)
    first_row, q_len = rows_of_request(request, cum_seq_lens_q, max_q_len, RAGGED)
    if token >= q_len:
        return
    poisoned = tl.max(tl.where(lses != lses, 1, 0), 0) > 0
    if STRICT:
        poisoned |= tl.load(seq_lens + request) <= 0
    top = tl.max(lses, 0)
    weights = tl.exp2(lses - tl.where(top == float("-inf"), 0.0, top))
    values = tl.where((lses > float("-inf"))[:, None], values, 0.0)  # not written: anything, even NaN
    acc = tl.sum(weights[:, None] * values, 0)
    factor, lse = row_factor(
        top, tl.sum(weights, 0), poisoned, sinks, head, out_scale, out_scale_tensor, SINKS, SCALE_TENSOR
    )
    row = first_row + token
    tl.store(out + row * out_token + head * out_head + columns, (acc * factor).to(out.dtype.element_ty))
    if tl.program_id(1) == 0:
        tl.store(lse_out + row * lse_token + head, lse)


def _tile(num_splits: int, head_dim_v: int) -> tuple[int, int, int]:
    """Splits (a power of two), columns and warps of a program."""
    splits = triton.next_power_of_2(num_splits)
    columns = min(head_dim_v, max(16, MAX_WARPS * WARP * ELEMENTS // splits))
    return splits, columns, min(MAX_WARPS, max(1, splits * columns // (WARP * ELEMENTS)))


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
    options: dict[str, object],
) -> None:
    """Writes `out` [num_tokens, H, Dv] times the scales, and `lse` fp32 [num_tokens, H] without the sinks.

    Rows that the offsets do not cover are not written. `strict`: NaN where `seq_lens` is not positive. `options`
    are those of the first half's launch.
    """
    batch, (_, heads, head_dim_v) = len(seq_lens), out.shape
    splits, columns, warps = _tile(num_splits, head_dim_v)
    _combine[(batch * max_q_len * heads, head_dim_v // columns)](
        out, lse, part_out, part_lse, seq_lens, cum_seq_lens_q, sinks, scale, scale_tensor,
        out.stride(0), out.stride(1), lse.stride(0), num_splits, max_q_len,
        HEADS=heads, DV=head_dim_v, RAGGED=cum_seq_lens_q is not None, SINKS=sinks is not None,
        SCALE_TENSOR=scale_tensor is not None, STRICT=strict,
        SPLITS=splits, COLUMNS=columns, num_warps=warps, **options,
    )  # fmt: skip
