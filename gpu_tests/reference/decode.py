"""Paged decode attention with FlashInfer's signatures: what an engine's backend is pointed at.

`trtllm_batch_decode_with_kv_cache` and `xqa_batch_decode_with_kv_cache` (MHA, GQA, MQA) and
`trtllm_batch_decode_with_kv_cache_mla` take the arguments of the FlashInfer 0.7.2 functions of the same name, in their
order, with their defaults and their meaning; what is ours is taken by name, behind them. One launch is one opaque node
of a graph (`torch.library.custom_op`): pointers, shapes and Python numbers are frozen at capture, the contents of
`query`, the cache, `seq_lens`, `block_tables`, offsets, `mask`, `sinks` and tensor scales are read at every replay.

Where this reference says more than FlashInfer does:

* Preconditions that the host can see (type, dtype, shape, stride, width, device) raise `KernelPreconditionError`,
  all of them at once; a wrong type or a missing dimension comes before what depends on it. Those that only the
  data can show (a length above `max_seq_len`, a page id outside of the pool, offsets past the query) raise in the
  PyTorch kernel; a GPU cannot raise, so the others write NaN into the rows of that request and read nothing out of
  bounds.
* `backend` is the best kernel for the launch (`auto`, see `select`) or one by name.
* `empty_rows` decides about requests with `seq_len <= 0`: `strict` writes NaN, as XQA does on sm90, so that
  an unfilled length buffer shows; `safe` writes 0 and LSE -inf. A row that sees no key for another reason
  (more query tokens than keys) is 0 with LSE -inf under both.
* Only the rows that the offsets cover are written.
* Arguments of FlashInfer that are not implemented (`DEFAULTS_ONLY`) are refused unless they hold its default.
  `enable_pdl` is a hint about scheduling, and has no effect here.

LSE is fp32 [num_tokens, H] in base 2 and does not contain the sink.

How the GPU kernels divide the work is `grid`: `split` cuts the keys of every request into as many parts, and
gives a request the same bits whatever else is in the batch, as long as batch size, `max_q_len` and
`max_seq_len` stay the same; `balanced` cuts the keys of the whole batch into equal runs, which is faster when
lengths vary, and gives a request the same bits only beside the same lengths (see `pieces`). Only the caller
can choose: when a graph is captured nobody else knows how much the lengths of its replays will vary.
`grids.choose_grid` has the measured rule.
"""

from __future__ import annotations

from numbers import Integral

import torch
from torch import Tensor

from gpu_tests.reference.grids import Grid
from gpu_tests.reference.launch import (
    WORDS,
    Backend,
    EmptyRows,
    Launch,
    Layout,
    Scale,
    check_types,
    fitting,
    int32,
    query_length,
    ragged_length,
    split_kv,
)
from gpu_tests.reference.preconditions import KernelPreconditionError, Problems
from gpu_tests.reference.splits import LARGEST_GPU, choose_runs, choose_splits, count_parts, partial_bytes

__all__ = [
    "DEFAULTS_ONLY",
    "KernelPreconditionError",
    "pack_mask",
    "trtllm_batch_decode_with_kv_cache",
    "trtllm_batch_decode_with_kv_cache_mla",
    "workspace_bytes",
    "xqa_batch_decode_with_kv_cache",
]

DEFAULTS_ONLY: dict[str, object] = {
    "o_scale": 1.0,  # of outputs in fp8, which are not written here
    "o_sf_scale": None,  # of outputs in NVFP4, as is the next
    "o_sf_vec_size": None,
    "kv_cache_sf": None,  # of caches in NVFP4, which are not read here
    "bf16q_fp8kv_transform_mode": None,
    "kv_scale_format": "auto",
    "use_fp16_softmax": None,
    "skip_softmax_threshold_scale_factor": None,
    "sparse_mla_top_k": 0,
    "sparse_mla_top_k_lens": None,
    "enable_block_sparse_attention": False,
    "uses_shared_paged_kv_idx": True,
    "is_var_seq": True,
    "bmm1_scale_log2": None,
    "return_lse_base": None,
    "multi_ctas_kv_counter_buffer": None,
    "cute_dsl_impl": "auto",
    "enable_dcp": False,
    "cp_world": 1,
    "cp_rank": 0,
    "causal_seqlens_kv_global": None,
    "request_order": None,
    "request_order_plan": None,
}
"""Arguments of FlashInfer that are not implemented here, with their defaults: formats of 4 bits and fp8 outputs, sparse
attention, attention over the caches of several ranks, and what steers one of FlashInfer's kernels alone.
"""


def trtllm_batch_decode_with_kv_cache(
    query: Tensor, kv_cache: Tensor | tuple[Tensor, Tensor], workspace_buffer: Tensor | None, block_tables: Tensor,
    seq_lens: Tensor, max_seq_len: int, bmm1_scale: Scale = 1.0, bmm2_scale: Scale = 1.0, window_left: int = -1,
    out: Tensor | None = None, out_dtype: torch.dtype | None = None, o_sf_scale: float | None = None,
    o_sf_vec_size: int | None = None, sinks: Tensor | None = None, kv_layout: Layout = "HND",
    enable_pdl: bool | None = None, backend: Backend = "auto", q_len_per_req: int | None = 1,
    o_scale: float | None = 1.0, mask: Tensor | None = None, max_q_len: int | None = None,
    cum_seq_lens_q: Tensor | None = None, skip_softmax_threshold_scale_factor: float | None = None,
    kv_cache_sf: object = None, uses_shared_paged_kv_idx: bool = True, lse: Tensor | None = None,
    return_lse: bool = False, bmm1_scale_log2: Tensor | None = None,
    multi_ctas_kv_counter_buffer: Tensor | None = None, enable_block_sparse_attention: bool = False,
    cp_world: int = 1, cp_rank: int = 0, causal_seqlens_kv_global: Tensor | None = None,
    bf16q_fp8kv_transform_mode: str | None = None, request_order: Tensor | None = None,
    request_order_plan: object = None, *, empty_rows: EmptyRows = "strict", grid: Grid = "split",
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """Decode attention of `query` [num_tokens, H, D] over a paged cache; `out` [num_tokens, H, Dv].

    * query: fp16, bf16, fp32 or fp64, as the kernel takes (`select`); stride 1 in D, any other strides.
    * kv_cache: [P, 2, Hkv, page, D] (HND) or [P, 2, page, Hkv, D] (NHD), or a tuple (K, V) without the 2.
      Stride 1 in D, any other strides. Dtype of the query, or float8_e4m3fn with the scales folded into
      `bmm1_scale` (k) and `bmm2_scale` (v).
    * workspace_buffer: contiguous, aligned to 16 bytes, at least `workspace_bytes(...)` bytes, may be dirty. It is
      written from its first byte on, where FlashInfer's kernels keep counters: share it with none of them. The
      PyTorch kernel needs none.
    * block_tables: int32 [B, W], page ids. Entries past a request's last page are never read.
    * seq_lens: int32, or uint32 below 2^31, [B] with B of 1 or more: keys of each request INCLUDING the tokens of the
      query (causal is bottom-right).
    * max_seq_len: host bound of `seq_lens`, at most W * page. It steers the number of splits: equal bits need
      equal values.
    * bmm1_scale, bmm2_scale: of the scores (softmax scale included) and of the output; floats are frozen in a
      graph, one-element fp32 tensors are read at replay.
    * out, out_dtype: where and in which dtype to write; by default a new tensor in the dtype of the query. Stride 1
      in Dv, any other strides.
    * lse: where to write it, fp32 [num_tokens, H] with stride 1 in H; by default a new tensor.
    * window_left: keys left of the query's own that stay visible; -1 for no window.
    * sinks: fp32 [H], natural-log logits.
    * q_len_per_req: query tokens of every request. For ragged queries pass None, `cum_seq_lens_q` int32 or uint32
      [B + 1] and `max_q_len`.
    * mask: uint16 [B, max_q_len, 2 * ceil(max_q_len / 32)] from `pack_mask`: bit j of row i lets query i see
      draft token j, if j <= i.
    * grid: how the work is divided; `balanced` has no window. The PyTorch kernel divides no work, and gives the same
      bits for both: code that asks for `balanced` runs on a CPU too. The contract's command line refuses the pair,
      since such a run says nothing about the balanced grid.

    Returns `out`, or `(out, lse)` with `return_lse`. Raises KernelPreconditionError.
    """
    problems = Problems("trtllm_batch_decode_with_kv_cache")
    _check_alone(locals(), problems, (Tensor, tuple, list))
    k, v = split_kv(query, kv_cache, kv_layout, problems)
    launch = Launch(
        query=query,
        k=k,
        v=v,
        head_dim_v=v.shape[-1],
        block_tables=block_tables,
        seq_lens=int32(seq_lens),
        cum_seq_lens_q=int32(cum_seq_lens_q),
        mask=mask,
        sinks=sinks,
        max_q_len=query_length(q_len_per_req, max_q_len, cum_seq_lens_q, problems),
        max_seq_len=int(max_seq_len),
        bmm1_scale=bmm1_scale,
        bmm2_scale=bmm2_scale,
        window_left=int(window_left),
        empty_rows=empty_rows,
        grid=grid,
    )
    if out is None:
        out = query.new_empty(*query.shape[:-1], v.shape[-1], dtype=out_dtype)
    elif out_dtype is not None:
        problems.unless(out.dtype == out_dtype, "out", out.dtype, f"{out_dtype}, as out_dtype says")
    result = launch.run(out, lse, workspace_buffer, backend, problems)
    return result if return_lse else result[0]


def xqa_batch_decode_with_kv_cache(
    query: Tensor, kv_cache: Tensor | tuple[Tensor, Tensor], workspace_buffer: Tensor | None, block_tables: Tensor,
    seq_lens: Tensor, max_seq_len: int, bmm1_scale: Scale = 1.0, bmm2_scale: Scale = 1.0, window_left: int = -1,
    out: Tensor | None = None, sinks: Tensor | None = None, kv_layout: Layout = "NHD", enable_pdl: bool | None = None,
    q_len_per_req: int | None = 1, o_scale: float | None = 1.0, mask: Tensor | None = None, kv_cache_sf: object = None,
    q_cu_seq_lens: Tensor | None = None, *, backend: Backend = "auto", empty_rows: EmptyRows = "strict",
    grid: Grid = "split",
) -> Tensor:  # fmt: skip
    """The same attention by XQA's interface (`flashinfer/xqa.py` and `csrc/xqa/mha.cu`).

    As in `trtllm_batch_decode_with_kv_cache`, but:

    * kv_layout: NHD is the default.
    * q_len_per_req: query tokens of every request; with `q_cu_seq_lens`, the most of any request, more than 1.
    * q_cu_seq_lens: int32 or uint32 [B + 1], where each request's rows begin in a ragged `query`; a request may
      have none. What is wrong with it is said of `cum_seq_lens_q`, its name in a launch.
    * mask: read when `q_len_per_req` is more than 1, without it the draft is a chain (XQA demands one). Rows of
      2 * ceil(q_len_per_req / 32) words, [B, q_len_per_req, words]; ragged [num_tokens, words], one for each row of
      `query`, which a gather in front of the kernel brings into the shape of the others, at replay too.
    * out: [B, q, H, D] if q = `q_len_per_req` is more than 1 and the same for all, else [num_tokens, H, D]. One that
      is given is contiguous, in either shape, and comes back as it is.

    What differs from XQA: `max_seq_len` is a bound that is kept (XQA takes the width of `block_tables` for it);
    `bmm2_scale` scales the output also where the cache is not fp8; a query sees no later token of its draft,
    whatever the mask says; `o_scale` and `kv_cache_sf` are refused, since fp8 outputs and NVFP4 caches are not
    implemented. XQA has no LSE.
    """
    problems = Problems("xqa_batch_decode_with_kv_cache")
    _check_alone(locals(), problems, (Tensor, tuple, list))
    k, v = split_kv(query, kv_cache, kv_layout, problems)
    offsets = int32(q_cu_seq_lens)
    fewest = 1 if offsets is None else 2
    fits = q_len_per_req is not None and q_len_per_req >= fewest
    longest = "" if offsets is None else ": the longest query of q_cu_seq_lens"
    problems.unless(fits, "q_len_per_req", q_len_per_req, f"{fewest} or more{longest}")
    rows = int(q_len_per_req) if q_len_per_req is not None and fits else fewest
    if mask is not None:
        mask = _mask_by_request(mask, query, offsets, rows, problems) if rows > 1 else None
    shapes = [[*query.shape[:-1], v.shape[-1]]]
    if offsets is None and fits and len(query) % rows == 0:
        shapes.append([len(query) // rows, rows, *shapes[0][1:]])
    out = fitting(out, shapes, problems)
    if out is None:
        out = query.new_empty(shapes[-1] if rows > 1 else shapes[0])
    launch = Launch(
        query=query,
        k=k,
        v=v,
        head_dim_v=v.shape[-1],
        block_tables=block_tables,
        seq_lens=int32(seq_lens),
        cum_seq_lens_q=offsets,
        mask=mask,
        sinks=sinks,
        max_q_len=rows,
        max_seq_len=int(max_seq_len),
        bmm1_scale=bmm1_scale,
        bmm2_scale=bmm2_scale,
        window_left=int(window_left),
        empty_rows=empty_rows,
        grid=grid,
    )
    launch.run(out.flatten(0, 1) if out.dim() == 4 else out, None, workspace_buffer, backend, problems)
    return out


def trtllm_batch_decode_with_kv_cache_mla(
    query: Tensor, kv_cache: Tensor, workspace_buffer: Tensor | None, qk_nope_head_dim: int, kv_lora_rank: int,
    qk_rope_head_dim: int, block_tables: Tensor, seq_lens: Tensor, max_seq_len: int, sparse_mla_top_k: int = 0,
    out: Tensor | None = None, bmm1_scale: Scale = 1.0, bmm2_scale: Scale = 1.0, sinks: Tensor | None = None,
    skip_softmax_threshold_scale_factor: float | None = None, enable_pdl: bool | None = None,
    backend: Backend = "auto", is_var_seq: bool = True, uses_shared_paged_kv_idx: bool = True,
    lse: Tensor | None = None, return_lse: bool = False, cute_dsl_impl: str = "auto", kv_scale_format: str = "auto",
    cum_seq_lens_q: Tensor | None = None, max_q_len: int | None = None,
    multi_ctas_kv_counter_buffer: Tensor | None = None, sparse_mla_top_k_lens: Tensor | None = None,
    enable_dcp: bool = False, cp_world: int = 1, cp_rank: int = 0, causal_seqlens_kv_global: Tensor | None = None,
    use_fp16_softmax: bool | None = None, return_lse_base: str | None = None, *, mask: Tensor | None = None,
    empty_rows: EmptyRows = "strict", grid: Grid = "split",
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """MLA decode over a paged latent cache.

    * query: [B, q, H, L + R], or ragged [num_tokens, H, L + R] with `cum_seq_lens_q` and `max_q_len`; its
      first L columns are absorbed (q_nope times W_UK), L = `kv_lora_rank`, R = `qk_rope_head_dim`.
    * kv_cache: [P, page, L + R] or [P, 1, page, L + R].
    * bmm1_scale: contains 1 / sqrt(qk_nope_head_dim + qk_rope_head_dim), the head dim BEFORE absorption.
    * out: [B, q, H, L] or [num_tokens, H, L], as the query is, contiguous; `lse` is [num_tokens, H] in both.

    `qk_nope_head_dim` is not used (as in FlashInfer); `mask` is ours; everything else as in
    `trtllm_batch_decode_with_kv_cache`.
    """
    problems = Problems("trtllm_batch_decode_with_kv_cache_mla")
    _check_alone(locals(), problems, (Tensor,))
    width = kv_lora_rank + qk_rope_head_dim
    problems.unless(qk_rope_head_dim >= 0, "qk_rope_head_dim", qk_rope_head_dim, "0 or more")
    layout_fits = kv_cache.dim() == 3 or (kv_cache.dim() == 4 and kv_cache.shape[1] == 1)
    problems.unless(layout_fits, "kv_cache", list(kv_cache.shape), "[P, page, D] or [P, 1, page, D]")
    columns = kv_cache.shape[-1] if kv_cache.dim() else 0
    problems.unless(columns == width, "kv_cache", list(kv_cache.shape), f"{width} columns")
    allowed = f"1 to {columns}, the columns of kv_cache"
    problems.unless(1 <= kv_lora_rank <= columns, "kv_lora_rank", kv_lora_rank, allowed)
    uniform = cum_seq_lens_q is None
    allowed = "[B, q, H, D] with q of 1 or more, or with cum_seq_lens_q [num_tokens, H, D]"
    query_fits = query.dim() == (4 if uniform else 3) and (not uniform or query.shape[1] >= 1)
    problems.unless(query_fits, "query", list(query.shape), allowed)
    if problems.about("kv_lora_rank", "query") or not layout_fits:
        problems.raise_if_any()

    shape = [*query.shape[:-1], kv_lora_rank]
    out = fitting(out, [shape], problems)
    if out is None:
        out = query.new_empty(shape)
    launch = Launch(
        query=query.flatten(0, 1) if uniform else query,
        k=(kv_cache if kv_cache.dim() == 3 else kv_cache[:, 0]).unsqueeze(2),
        v=None,
        head_dim_v=int(kv_lora_rank),
        block_tables=block_tables,
        seq_lens=int32(seq_lens),
        cum_seq_lens_q=int32(cum_seq_lens_q),
        mask=mask,
        sinks=sinks,
        max_q_len=query.shape[1] if uniform else ragged_length(max_q_len, problems),
        max_seq_len=int(max_seq_len),
        bmm1_scale=bmm1_scale,
        bmm2_scale=bmm2_scale,
        window_left=-1,
        empty_rows=empty_rows,
        grid=grid,
    )
    flat_out = out.flatten(0, 1) if uniform else out
    _, lse = launch.run(flat_out, lse, workspace_buffer, backend, problems)
    return (out, lse) if return_lse else out


def pack_mask(mask: Tensor) -> Tensor:
    """A draft mask bool [B, q, q] as XQA reads it: uint16 [B, q, 2 * ceil(q / 32)]."""
    batch, rows, columns = mask.shape
    words = 2 * ((columns + 31) // 32)
    bits = torch.zeros(batch, rows, words * 16, dtype=torch.int32, device=mask.device)
    bits[..., :columns] = mask
    weights = 1 << torch.arange(16, dtype=torch.int32, device=mask.device)
    return (bits.unflatten(-1, (words, 16)) * weights).sum(-1, dtype=torch.int32).to(torch.uint16)


def workspace_bytes(
    *,
    batch_size: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim_v: int,
    max_q_len: int,
    max_seq_len: int,
    grid: Grid = "split",
) -> int:
    """Bytes of workspace that suffice for one launch of these shapes on any GPU (MLA: `num_kv_heads=1`).

    Raises KernelPreconditionError, which is a ValueError, with all that is wrong.
    """
    numbers = {"batch_size": batch_size, "num_heads": num_heads, "num_kv_heads": num_kv_heads}
    numbers |= {"head_dim_v": head_dim_v, "max_q_len": max_q_len, "max_seq_len": max_seq_len}
    problems = Problems("workspace_bytes")
    for name, number in numbers.items():
        problems.is_a(name, number, (Integral,), "an integer")
        problems.unless(problems.about(name) or number >= 1, name, number, "1 or more")
    if not problems.about("num_heads", "num_kv_heads"):
        fits = num_heads % num_kv_heads == 0
        problems.unless(fits, "num_heads", num_heads, f"a multiple of num_kv_heads = {num_kv_heads}")
    problems.unless(isinstance(grid, str) and grid in WORDS["grid"], "grid", grid, "split or balanced")
    problems.raise_if_any()
    batch_size, *heads, max_seq_len = (int(number) for number in numbers.values())  # products may pass NumPy's ranges
    num_heads, _, head_dim_v, max_q_len = heads
    balanced = grid == "balanced"
    if balanced:
        num_splits = choose_runs(*heads, LARGEST_GPU)
    else:
        num_splits = choose_splits(batch_size, *heads, max_seq_len, LARGEST_GPU)
    return partial_bytes(count_parts(batch_size, max_q_len * num_heads, num_splits, balanced), head_dim_v)


def _check_alone(arguments: dict[str, object], problems: Problems, cache: tuple[type, ...]) -> None:
    """What can be said of each argument without the others; `cache`: the types of `kv_cache`."""
    given = {name: value for name, value in arguments.items() if name in DEFAULTS_ONLY}
    problems.defaults_only(given, DEFAULTS_ONLY)
    check_types(arguments, problems, cache)


def _mask_by_request(
    mask: Tensor, query: Tensor, offsets: Tensor | None, rows: int, problems: Problems
) -> Tensor | None:
    """A mask as a launch takes it, [B, rows, words]: of ragged queries, whose mask has the rows of `query`, each
    request's own and after them some that no query reads; None if the mask does not fit.
    """
    if offsets is None:
        return mask
    problems.tensor("mask", mask, (torch.uint16,), [query.shape[0], 2 * ((rows + 31) // 32)], inner_stride=True)
    if problems.lines or offsets.dim() != 1 or mask.device != offsets.device:
        return None  # the launch names what else does not fit
    if not len(mask):
        return mask.new_zeros(len(offsets) - 1, rows, mask.shape[1])
    row = offsets[:-1, None] + torch.arange(rows, dtype=torch.int32, device=offsets.device)
    return mask.view(torch.int16)[row.clamp(0, len(mask) - 1)].view(torch.uint16)
