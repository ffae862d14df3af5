"""The fp64 oracle: attention of ONE request, written to be trusted and read, not to be fast.

    out[t, h] = sum_s softmax_s(score[t, h, s]) * v[s, h // group]
    score[t, h, s] = softcap(scale * <q[t, h], k[s, h // group]>),   -inf where query t may not see key s

Conventions, the same in every function:

* `q` holds the LAST `T` tokens of a request of `S` tokens: query `t` stands at position `S - T + t`
  (bottom-right causal, as in FlashInfer, FlashAttention and FlashMLA). With `T > S` the first rows stand
  before every key.
* `window_left` counts the keys to the left of the query that stay visible; the query's own key is not
  counted. -1 means no window, 0 means the own key alone (FlashInfer's inclusive window).
* A row that sees no key has `out = 0` and `lse = -inf`, so that it is the neutral element of `merge`.
* `lse` never contains the sink. A sink is one more logit without a value, added once when the parts of a row
  have been merged; FlashMLA leaves the LSE unchanged in the same way.
* Inputs of any float dtype are read exactly as they are and computed in fp64; outputs are fp64.

Quantised caches are given dequantised: the oracle sees the values that a kernel really reads, so that a
quantisation error cannot hide a kernel error (FlashMLA tests its fp8 kernels in this way).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

LOG2E = math.log2(math.e)

LseBase = Literal["2", "e"]


class Attention(NamedTuple):
    """`out` fp64 [T, Hq, Dv] and `lse` fp64 [T, Hq], in the base that was asked for."""

    out: Tensor
    lse: Tensor


def visible_keys(
    num_queries: int, num_keys: int, *, causal: bool = True, window_left: int = -1, mask: Tensor | None = None
) -> Tensor:
    """Which query sees which key: bool [T, S].

    `mask` bool [T, S] takes keys away from what causality and window leave (see `tree_mask`).
    """
    if window_left < -1:
        raise ValueError(f"window_left must be -1 (none) or a count >= 0, got {window_left}")
    position = torch.arange(num_queries)[:, None] + (num_keys - num_queries)
    key = torch.arange(num_keys)[None, :]
    visible = torch.ones(num_queries, num_keys, dtype=torch.bool)
    if causal:
        visible &= key <= position
    if window_left >= 0:
        visible &= key >= position - window_left
    if mask is not None:
        if mask.shape != visible.shape or mask.dtype != torch.bool:
            raise ValueError(f"mask must be bool {list(visible.shape)}, got {mask.dtype} {list(mask.shape)}")
        visible &= mask.cpu()
    return visible


def tree_mask(parents: Sequence[int], num_keys: int) -> Tensor:
    """The mask of a draft tree: bool [T, S], for the last `T = len(parents)` of `S` tokens.

    `parents[t]` is the index of the parent of draft token `t` among the draft tokens, -1 for a root. A token
    sees itself, its ancestors, and all of the `S - T` tokens before the tree. Parents come before their
    children.
    """
    num_draft = len(parents)
    prefix = num_keys - num_draft
    if prefix < 0:
        raise ValueError(f"a tree of {num_draft} tokens does not fit into {num_keys} keys")
    mask = torch.zeros(num_draft, num_keys, dtype=torch.bool)
    mask[:, :prefix] = True
    for token, parent in enumerate(parents):
        if not -1 <= parent < token:
            raise ValueError(f"parents[{token}] is {parent}: it must be -1 or an earlier token")
        if parent >= 0:
            mask[token, prefix:] = mask[parent, prefix:]
        mask[token, prefix + token] = True
    return mask


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    causal: bool = True,
    window_left: int = -1,
    mask: Tensor | None = None,
    sinks: Tensor | None = None,
    softcap: float = 0.0,
    lse_base: LseBase = "2",
) -> Attention:
    """Attention of `q` [T, Hq, D] over `k` [S, Hkv, D] and `v` [S, Hkv, Dv] (MHA, GQA, MQA: Hkv divides Hq).

    `sinks` [Hq] are natural-log logits; `softcap > 0` bounds the scores by `softcap * tanh(score / softcap)`.
    Raises ValueError if the shapes do not fit.
    """
    num_queries, num_heads, head_dim = q.shape
    num_keys, num_kv_heads, _ = k.shape
    if num_heads % num_kv_heads or v.shape[:2] != k.shape[:2] or k.shape[2] != head_dim:
        raise ValueError(f"shapes do not fit: q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}")
    visible = visible_keys(num_queries, num_keys, causal=causal, window_left=window_left, mask=mask)
    visible = visible.to(k.device)
    # Heads h // group share a KV head: [T, Hkv, group, D] against [S, Hkv, D].
    grouped = q.double().unflatten(1, (num_kv_heads, num_heads // num_kv_heads))
    out = torch.zeros(num_queries, num_heads, v.shape[2], dtype=torch.float64, device=q.device)
    lse = torch.full((num_queries, num_heads), -math.inf, dtype=torch.float64, device=q.device)
    for t in range(num_queries):
        # Hidden keys are left out rather than weighted by 0: they may hold NaN, and 0 * NaN is NaN.
        seen = visible[t]
        if not seen.any():
            continue
        scores = scale * torch.einsum("kgd,skd->kgs", grouped[t], k[seen].double())
        if softcap > 0:
            scores = softcap * torch.tanh(scores / softcap)
        out[t] = torch.einsum("kgs,skd->kgd", torch.softmax(scores, dim=-1), v[seen].double()).flatten(0, 1)
        lse[t] = torch.logsumexp(scores, dim=-1).flatten()
    out = apply_sink(Attention(out, lse), sinks)
    return Attention(out, lse * LOG2E if lse_base == "2" else lse)


def apply_sink(part: Attention, sinks: Tensor | None) -> Tensor:
    """`out` of `part` (natural LSE) with one more logit per head in the denominator:
    exp(lse)/(exp(lse)+exp(sink)).
    """
    if sinks is None:
        return part.out
    kept = torch.sigmoid(part.lse - sinks.double().to(part.lse.device))
    # A row without keys stays 0; sink = -inf there would be -inf - -inf.
    return torch.where(torch.isneginf(part.lse)[..., None], 0.0, part.out * kept[..., None])


def merge(parts: Sequence[Attention], *, sinks: Tensor | None = None, lse_base: LseBase = "2") -> Attention:
    """Attention over the union of disjoint key sets, from the attention over each (all without sinks).

    Empty parts (`lse = -inf`) count for nothing, whatever their `out` holds; all empty gives an empty row.
    """
    to_natural = 1 / LOG2E if lse_base == "2" else 1.0
    lses = torch.stack([part.lse.double() for part in parts]) * to_natural
    outs = torch.stack([part.out.double() for part in parts])
    lse = torch.logsumexp(lses, dim=0)
    live = ~torch.isneginf(lses)
    weights = torch.where(live, torch.exp(lses - lse), 0.0)
    out = (weights[..., None] * torch.where(live[..., None], outs, 0.0)).sum(dim=0)
    out = apply_sink(Attention(out, lse), sinks)
    return Attention(out, lse / to_natural)


def mla_absorbed(
    q_latent: Tensor, q_rope: Tensor, latent: Tensor, rope: Tensor, *, scale: float, **options: object
) -> Attention:
    """MLA as decode kernels see it: MQA over the latent cache, values are the latent itself.

    `q_latent` [T, H, L] (q_nope times W_UK), `q_rope` [T, H, R], `latent` [S, L], `rope` [S, R]; out [T, H,
    L].
    """
    q = torch.cat([q_latent, q_rope], dim=-1)
    k = torch.cat([latent, rope], dim=-1)[:, None, :]
    return attention(q, k, latent[:, None, :], scale=scale, **options)  # type: ignore[arg-type]


def mla_expanded(
    q_nope: Tensor,
    q_rope: Tensor,
    latent: Tensor,
    rope: Tensor,
    w_uk: Tensor,
    w_uv: Tensor,
    *,
    scale: float,
    **options: object,
) -> Attention:
    """MLA as the model defines it (DeepSeek-V2, section 2.1): keys and values of every head made from the
    latent.

    `q_nope` [T, H, N], `q_rope` [T, H, R], `latent` [S, L], `rope` [S, R], `w_uk` [H, N, L], `w_uv` [H, L,
    V]; out [T, H, V]. Equal to `mla_absorbed(q_nope @ w_uk, ...) @ w_uv`; scale is 1/sqrt(N + R) in both.
    """
    num_heads = q_nope.shape[1]
    k_nope = torch.einsum("sl,hnl->shn", latent.double(), w_uk.double())
    k_rope = rope.double()[:, None, :].expand(-1, num_heads, -1)
    values = torch.einsum("sl,hlv->shv", latent.double(), w_uv.double())
    q = torch.cat([q_nope.double(), q_rope.double()], dim=-1)
    keys = torch.cat([k_nope, k_rope], dim=-1)
    return attention(q, keys, values, scale=scale, **options)  # type: ignore[arg-type]
