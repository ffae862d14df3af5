"""Faults of kernels: window, sink, causality, scales, merging, addressing, tails, heads (M14 to M20, M25, M27)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gpu_tests.faults.catalogue import fault
from gpu_tests.faults.staged_kernel import Launch, StagedKernel

LOG2E = math.log2(math.e)
MHA_SCALES = slice(6, 8)
"""Where bmm1_scale and bmm2_scale stand among the positional arguments of the MHA kernel."""


# -- M14, M15: window, sink, causality, mask ---------------------------------------------------------------------------


@fault(
    "mha-window-exclusive",
    "M14",
    "tokenspeed#578",
    "the window is taken as exclusive: one key too few",
    "mha-window",
)
def window_exclusive(kernel: Callable[..., Any], *args: Any, **options: Any) -> Any:
    args = (*args[:8], args[8] - 1, *args[9:])
    return kernel(*args, **options)


@fault(
    "mha-window-dropped",
    "M14",
    "vllm#40961",
    "sliding-window layers are treated as full attention",
    "mha-window+full_context",
)
def window_dropped(kernel: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return kernel(*args[:8], -1, *args[9:], **options)


@fault("mha-sink-dropped", "M14", "rocm-libraries#12229", "the sink is left out of the denominator", "mha-window")
def sink_dropped(kernel: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return kernel(*args, **{**options, "sinks": None})


@fault(
    "mha-sink-once-per-split",
    "M14",
    "rocm-libraries#12227",
    "with split KV the sink is counted once a split",
    "mha-window",
)
class SinkOncePerSplit(StagedKernel):
    def merge(self, outs: Tensor, lses: Tensor, at: Launch) -> Tensor:
        assert at.sinks is not None
        return super().merge(outs, torch.logaddexp(lses, at.sinks.expand_as(lses)), at)


@fault(
    "mha-verify-not-causal",
    "M15",
    "flashinfer test_trtllm_gen_mla.py:251",
    "several query tokens without a causal mask: draft tokens see their successors",
    "mha-target",
)
class VerifyNotCausal(StagedKernel):
    def visible(self, at: Launch) -> Tensor:
        return (at.key < at.length) & torch.ones_like(at.index[:, None], dtype=torch.bool)


@fault(
    "mla-causal-top-left",
    "M15",
    "sglang#12295",
    "the causal mask is aligned to the top left: draft tokens see the first keys only",
    "mla-target",
)
class CausalTopLeft(StagedKernel):
    def visible(self, at: Launch) -> Tensor:
        return (at.key <= at.index[:, None]) & (at.key < at.length)


@fault(
    "mha-mask-dropped",
    "M15",
    "sglang KNOWN_FAILURES (tree verify, topk 2)",
    "the draft tree's mask is not passed on: siblings see each other",
    "mha-tree",
)
def mask_dropped(kernel: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return kernel(*args, **{**options, "mask": None})


# -- M16, M17: scales and merging --------------------------------------------------------------------------------------


@fault("mha-value-scale-dropped", "M16", "sglang#28144", "the scale of the values is left out", "mha-scaled")
def value_scale_dropped(kernel: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return kernel(*args[:7], 1.0, *args[8:], **options)


@fault(
    "mha-scales-swapped",
    "M16",
    "vllm#42916",
    "the scales of keys and values are swapped",
    "mha-scaled",
)
def scales_swapped(kernel: Callable[..., Any], *args: Any, **options: Any) -> Any:
    scaling = args[0].shape[-1] ** -0.5
    k_scale, v_scale = args[6] / scaling, args[7]
    return kernel(*args[:6], v_scale * scaling, k_scale, *args[8:], **options)


@fault(
    "mla-scale-times-log2e-twice",
    "M16",
    "flashinfer kernel notes (bmm1_scale_log2)",
    "the score scale is multiplied by log2(e) once too often",
    "mla-target",
)
def scale_times_log2e_twice(kernel: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return kernel(*args, **{**options, "bmm1_scale": options["bmm1_scale"] * LOG2E})


@fault(
    "mha-merge-in-wrong-base",
    "M17",
    "sglang#35045",
    "partial results carry a base-2 LSE, the merge takes it as natural",
    "mha-target+full_context",
)
class MergeInWrongBase(StagedKernel):
    def merge(self, outs: Tensor, lses: Tensor, at: Launch) -> Tensor:
        return super().merge(outs, lses * LOG2E, at)


@fault(
    "mla-merge-of-empty-parts",
    "M17",
    "flashinfer#4051",
    "splits without a key carry LSE -inf; the merge subtracts -inf from -inf where two of them meet",
    "mla-target",
)
class MergeOfEmptyParts(StagedKernel):
    def merge(self, outs: Tensor, lses: Tensor, at: Launch) -> Tensor:
        out, lse = outs[-1], lses[-1]
        for part in range(len(outs) - 2, -1, -1):
            top = torch.maximum(lse, lses[part])
            mine, theirs = torch.exp(lse - top), torch.exp(lses[part] - top)
            out = (out * mine[..., None] + outs[part] * theirs[..., None]) / (mine + theirs)[..., None]
            lse = top + torch.log(mine + theirs)
        return out


@fault(
    "mla-empty-part-counts",
    "M17",
    "vllm#49294",
    "a split without a key returns a finite LSE, so its zeros are averaged in",
    "mla-target",
)
class EmptyPartCounts(StagedKernel):
    def partial(self, scores: Tensor, visible: Tensor, values: Tensor, at: Launch) -> tuple[Tensor, Tensor]:
        out, lse = super().partial(scores, visible, values, at)
        return out, torch.where(torch.isneginf(lse), 0.0, lse)


# -- M18, M19, M20: addressing and tails -------------------------------------------------------------------------------


@fault(
    "mha-page-offset-overflow",
    "M18",
    "flashinfer#3136",
    "page * stride overflows its integer; 14 bits here stand for the 31 of a real kernel, as the pool is small",
    "mha-scaled+recycled+full_context",
)
class PageOffsetOverflow(StagedKernel):
    def pages(self, at: Launch) -> Tensor:
        pages, stride = super().pages(at), at.k.stride(0)
        return torch.where(pages * stride < 1 << 14, pages, (pages * stride % (1 << 14)) // stride)


@fault(
    "mha-contiguity-assumed",
    "M19",
    "aiter#3498",
    "pages are addressed as if K and V each were contiguous; here they share one tensor with gaps",
    "mha-bf16",
)
class ContiguityAssumed(StagedKernel):
    def gather(self, at: Launch) -> tuple[Tensor, Tensor]:
        def flat(t: Tensor) -> Tensor:
            strides = [math.prod(t.shape[dim + 1 :]) for dim in range(t.dim())]
            return t.as_strided(t.shape, strides, t.storage_offset())

        keys, _ = super().gather(at)
        page_size = at.k.shape[1]
        page = self.pages(at)[:, at.key // page_size].clamp(0, at.k.shape[0] - 1).long()
        return keys, flat(at.v)[page, at.key % page_size]


@fault(
    "mha-keys-and-values-swapped",
    "M19",
    "sglang test_trtllm_mha_stride_parity",
    "in the interleaved cache the two halves are taken the wrong way round",
    "mha-scaled",
)
def keys_and_values_swapped(kernel: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return kernel(args[0], args[1].flip(1), *args[2:], **options)


@fault(
    "mha-finite-mask-value",
    "M20",
    "flashinfer#4267",
    "hidden keys get a finite score: rows that see no key average over hidden ones instead of returning 0",
    "mha-extend",
)
class FiniteMaskValue(StagedKernel):
    splits = 1

    def hide(self, scores: Tensor, visible: Tensor) -> Tensor:
        return torch.where(visible, scores, -5e4)

    def weighted(self, weights: Tensor, visible: Tensor, values: Tensor) -> Tensor:
        return (weights[..., None] * values.nan_to_num(0.0)).sum(1)


@fault(
    "mla-tail-times-zero",
    "M20",
    "flash-attention#1745",
    "values past the end of a row are multiplied by a weight of 0: NaN there reaches the output",
    "mla-target+dead_nan",
)
class TailTimesZero(StagedKernel):
    def weighted(self, weights: Tensor, visible: Tensor, values: Tensor) -> Tensor:
        return (weights[..., None] * values).sum(1)


@fault(
    "mha-tail-times-zero-cleaned",
    "M20",
    "flash-attention#2374",
    "as above behind a clean-up of NaN that forgets infinities",
    "mha-target+dead_inf",
)
class TailTimesZeroCleaned(StagedKernel):
    def weighted(self, weights: Tensor, visible: Tensor, values: Tensor) -> Tensor:
        clean = torch.where(torch.isnan(values), 0.0, values)
        return (weights[..., None] * clean).sum(1)


@fault(
    "mla-scores-of-tail-in-maximum",
    "M20",
    "flashinfer#942",
    "the running maximum is taken before masking: a huge dead key drives every weight of the row to 0",
    "mla-target+dead_huge",
)
class ScoresOfTailInMaximum(StagedKernel):
    splits = 1

    def partial(self, scores: Tensor, visible: Tensor, values: Tensor, at: Launch) -> tuple[Tensor, Tensor]:
        top = scores.nan_to_num(-math.inf, -math.inf, -math.inf).amax(1, keepdim=True)
        weights = torch.where(visible, torch.exp(scores - top), 0.0)
        total = weights.sum(1)
        out = self.weighted(weights, visible, values) / torch.where(total == 0, 1.0, total)[..., None]
        return out, top[:, 0] + torch.log(total)


@fault(
    "mha-tail-in-denominator",
    "M20",
    "flashinfer#3716",
    "lanes that pad a row to the tile of 8 count in the denominator with score 0",
    "mha-target+page_edges",
)
class TailInDenominator(StagedKernel):
    splits = 1

    def partial(self, scores: Tensor, visible: Tensor, values: Tensor, at: Launch) -> tuple[Tensor, Tensor]:
        out, lse = super().partial(scores, visible, values, at)
        lanes = (-at.length % 8).float()
        wrong = torch.logaddexp(lse, torch.log(lanes))
        return out * torch.exp(lse - wrong)[..., None], wrong


@fault(
    "mha-table-tail-read",
    "M20",
    "vllm#47305",
    "keys past a row's end are loaded before they are masked: the page table's tail is followed",
    "mha-target+table_tail",
)
class TableTailRead(StagedKernel):
    def gather(self, at: Launch) -> tuple[Tensor, Tensor]:
        page_size = at.k.shape[1]
        page = self.pages(at)[:, at.key // page_size].long()
        return at.k[page, at.key % page_size], at.v[page, at.key % page_size]


# -- M25, M27: heads, slices, neighbours -------------------------------------------------------------------------------


@fault(
    "mha-heads-modulo",
    "M25",
    "aiter#2577",
    "query head h reads KV head h % n instead of h // group",
    "mha-target",
)
class HeadsModulo(StagedKernel):
    def kv_heads(self, q_heads: int, kv_heads: int, device: torch.device) -> Tensor:
        return torch.arange(q_heads, device=device) % kv_heads


@fault(
    "mla-rope-dropped",
    "M25",
    "flashinfer FP8 KPE swizzle (row-coded test)",
    "the rope part of the keys is not read",
    "mla-target",
)
def rope_dropped(kernel: Callable[..., Any], query: Tensor, *args: Any, **options: Any) -> Any:
    query = query.clone()
    query[..., args[3] :] = 0
    return kernel(query, *args, **options)


@fault(
    "mla-values-from-wrong-columns",
    "M25",
    "trt-llm#18164",
    "the values are the last columns of the cache entry instead of the first",
    "mla-target",
)
class ValuesFromWrongColumns(StagedKernel):
    def latent_values(self, k: Tensor, latent: int) -> Tensor:
        return k[..., -latent:]


@fault(
    "mha-splits-follow-the-batch",
    "M27",
    "sglang#26412",
    "the split boundary follows the longest request of the batch: a request's bits depend on its neighbours",
    "mha-target+ragged_lengths",
)
class SplitsFollowTheBatch(StagedKernel):
    def attend(self, scores: Tensor, visible: Tensor, values: Tensor, at: Launch) -> Tensor:
        boundary = at.length.amax() // 5
        first, second = (visible & side[None, :, None] for side in (at.key < boundary, at.key >= boundary))
        parts = [self.partial(scores, side, values, at) for side in (first, second)]
        return self.merge(torch.stack([o for o, _ in parts]), torch.stack([lse for _, lse in parts]), at)


@fault(
    "mla-rounding-follows-the-row",
    "M27",
    "flashmla#212",
    "odd rows round the other way: one request, two results, a unit in the last place apart",
    "mla-target+twins",
)
class RoundingFollowsTheRow(StagedKernel):
    def merge(self, outs: Tensor, lses: Tensor, at: Launch) -> Tensor:
        out = super().merge(outs, lses, at)
        odd = (at.row % 2 == 1)[:, None, None]
        return torch.where(odd, torch.nextafter(out, torch.full_like(out, math.inf)), out)
