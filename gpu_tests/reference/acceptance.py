"""When a kernel's output is accepted: per row (token, head), never only over the whole tensor.

A row passes if all of these hold, `ref` being the fp64 oracle and `lowp` the same attention in plain low
precision:

* NaN, +inf and -inf stand in the same places as in `ref` (FlashMLA, `kernelkit` check_is_allclose);
* max|out - ref| <= 2 * max|lowp - ref| + u * max|ref|  (FlashAttention-3, `hopper/test_flash_attn.py`, there
  over the whole tensor, where one bad row among many large ones is lost);
* the same with the L2 norm of the row in place of the maximum.

`u` is one rounding to the dtype of the output plus 2^-18 for fp32 sums in another order. It is relative to
the row: FlashAttention's absolute term, a rounding near 0.3, would hide a whole key of an 8k sequence, whose
outputs have a size of 1/sqrt(8192). Even so, one key of average weight among 8k is a change of less than one
bf16 rounding; a test that is after off-by-one keys gives the keys at the edges a weight that can be seen
(`emphasise`).

`lowp` is a sample of what rounding the weights does to a row: the largest of its errors over many columns of
one size. Where one column carries the row, it is a sample of one, which may be next to zero by luck, and a
correct kernel, which rounds the weights relative to another maximum, then fails. `weight_rounding` is the
bound of that error without luck; it takes the place of `2 * |lowp - ref|` where it is larger.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from gpu_tests.reference.oracle import visible_keys

LSE_ATOL = 2e-5
"""Absolute bound of an fp32 LSE in base 2, for scores of unit scale; one average key of 8k moves it by 1e-4.
"""


class RowError(NamedTuple):
    """A row that fails: `error` and `bound` in the norm that `reason` names."""

    token: int
    head: int
    reason: str
    error: float
    bound: float

    def __str__(self) -> str:
        return f"token {self.token}, head {self.head}: {self.reason} {self.error:.3g}, allowed {self.bound:.3g}"


def row_errors(
    out: Tensor,
    oracle_out: Tensor,
    lowp_out: Tensor,
    dtype: torch.dtype,
    weight_rounding: Tensor | None = None,
    roundings: int = 1,
) -> list[RowError]:
    """The rows of `out` [T, H, Dv] that are not accepted, in order. `dtype` is the one that `out` was rounded
    to, `roundings` how many results were on the way, each of which counts `u` once (absorbed MLA: the query,
    the latent output, the output).

    `lowp_out` [T, H, Dv] comes from `low_precision`, `weight_rounding` [T, H, Dv] from the function of that
    name. Raises ValueError if the shapes differ.
    """
    if not out.shape == oracle_out.shape == lowp_out.shape:
        shapes = [list(tensor.shape) for tensor in (out, oracle_out, lowp_out)]
        raise ValueError(f"out, oracle_out and lowp_out must have one shape, got {shapes}")
    ref = oracle_out.double()
    unit = _rounding(dtype)
    failures = _anomalies(out.double(), ref)
    for reason, norm in (("largest error", _largest), ("L2 error", _l2)):
        error = norm(out.double() - ref)
        weights = 2 * norm(lowp_out.double() - ref)
        if weight_rounding is not None:
            weights = torch.maximum(weights, norm(weight_rounding))
        bound = weights + roundings * unit * norm(ref)
        for token, head in (error > bound).nonzero().tolist():  # NaN compares false: anomalies are found above
            failures.append(RowError(token, head, reason, float(error[token, head]), float(bound[token, head])))
    return sorted(failures, key=lambda failure: failure[:2])


def lse_errors(lse: Tensor, oracle_lse: Tensor, atol: float = LSE_ATOL) -> list[RowError]:
    """The rows whose LSE [T, H] (both in one base) differs by more than `atol`, or is infinite or NaN
    elsewhere.
    """
    got, ref = lse.double()[..., None], oracle_lse.double()[..., None]
    failures = _anomalies(got, ref)
    error = _largest(got - ref)
    failures += [
        RowError(token, head, "LSE error", float(error[token, head]), atol)
        for token, head in (error > atol).nonzero().tolist()
    ]
    return sorted(failures, key=lambda failure: failure[:2])


def low_precision(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    out_scale: float = 1.0,
    causal: bool = True,
    window_left: int = -1,
    mask: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention as a simple kernel does it: fp32 scores, weights rounded to the dtype of `q`, fp32 sums,
    output rounded.

    Shapes as in `oracle.attention`; `k` and `v` as stored (fp8 without their scales, which go into `scale`
    and `out_scale`).
    """
    compute = torch.promote_types(q.dtype, torch.float32)
    visible = visible_keys(len(q), len(k), causal=causal, window_left=window_left, mask=mask)
    weights = _weights(q, k, scale, visible, sinks)
    values = v.to(compute).repeat_interleave(q.shape[1] // v.shape[1], dim=1)
    out = torch.einsum("ths,shd->thd", weights.to(q.dtype).to(compute), values) * out_scale
    return out.to(q.dtype)


def weight_rounding(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    out_scale: float = 1.0,
    causal: bool = True,
    window_left: int = -1,
    mask: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """What rounding the weights p to the dtype of `q` may do to an output, fp32 [T, H, Dv]:

        4 * u * sqrt(sum_s (p_s * v_s)^2)

    Higham and Mary 2019, "A new approach to probabilistic rounding error analysis": errors that are independent
    with mean zero add up as their squares do. An error that is uniform below u is sub-Gaussian with variance
    u^2 / 3, so an element exceeds 4 standard bounds with a probability below 2 * exp(-4^2 * 3 / 2) = 8e-11.
    Arguments as in `low_precision`.
    """
    visible = visible_keys(len(q), len(k), causal=causal, window_left=window_left, mask=mask)
    weights = _weights(q, k, scale, visible, sinks)
    values = v.to(weights.dtype).repeat_interleave(q.shape[1] // v.shape[1], dim=1)
    squares = torch.einsum("ths,shd->thd", weights.square(), values.square())
    return 4 * torch.finfo(q.dtype).eps / 2 * abs(out_scale) * squares.sqrt()


def emphasise(v: Tensor, positions: Iterable[int]) -> Tensor:
    """`v` [S, Hkv, Dv] with the values at `positions` raised to at least 1 in size and multiplied by sqrt(S),
    so that each weighs as much as all the others.

    The output of a row over S unrelated keys has a size of 1/sqrt(S), one key's share of it 1/S.
    """
    scaled = v.clone()
    for position in positions:
        values = v[position]
        scaled[position] = torch.copysign(values.abs().clamp(min=1), values) * math.sqrt(len(v))
    return scaled


def _weights(q: Tensor, k: Tensor, scale: float, visible: Tensor, sinks: Tensor | None) -> Tensor:
    """Softmax weights of the keys [T, H, S], at least fp32; 0 in a row that sees no key."""
    compute = torch.promote_types(q.dtype, torch.float32)
    keys = k.to(compute).repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    scores = torch.einsum("thd,shd->ths", q.to(compute), keys) * scale
    scores = scores.masked_fill(~visible.to(q.device)[:, None], -math.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.to(scores).view(1, -1, 1).expand(len(q), -1, 1)], dim=-1)
    return torch.softmax(scores, dim=-1)[..., : len(k)].nan_to_num(0.0)


def _rounding(dtype: torch.dtype) -> float:
    if dtype == torch.float64:
        return 2.0**-40
    return torch.finfo(dtype).eps / 2 + 2.0**-18


def _anomalies(out: Tensor, ref: Tensor) -> list[RowError]:
    wrong = torch.zeros_like(ref, dtype=torch.bool)
    for is_anomaly in (torch.isnan, torch.isposinf, torch.isneginf):
        wrong |= is_anomaly(out) != is_anomaly(ref)
    counts = wrong.sum(dim=-1)
    return [
        RowError(token, head, "NaN or Inf out of place, elements", float(counts[token, head]), 0.0)
        for token, head in counts.nonzero().tolist()
    ]


def _largest(rows: Tensor) -> Tensor:
    return rows.abs().amax(dim=-1)


def _l2(rows: Tensor) -> Tensor:
    return rows.square().sum(dim=-1).sqrt()
