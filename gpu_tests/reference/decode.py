"""Paged decode attention with FlashInfer's signatures: what an engine's backend is pointed at.

`trtllm_batch_decode_with_kv_cache` (MHA, GQA, MQA) and `trtllm_batch_decode_with_kv_cache_mla` take the
arguments of the FlashInfer functions of the same name, in their order and with their meaning. One launch is
one opaque node of a graph (`torch.library.custom_op`): pointers, shapes and Python numbers are frozen at
capture, the contents of `seq_lens`, `block_tables`, `cum_seq_lens_q`, `mask`, `sinks` and tensor scales are
read at every replay.

Where this reference says more than FlashInfer does:

* Preconditions that the host can see (dtype, shape, stride, width, device) raise `KernelPreconditionError`,
  all of them at once. Those that only the data can show (a length above `max_seq_len`, a page id outside of
  the pool, offsets past the query) raise in the PyTorch kernel; a GPU cannot raise, so the others
  write NaN into the rows of that request and read nothing out of bounds.
* `backend` is the best kernel for the launch (`auto`, see `select`) or one by name.
* `empty_rows` decides about requests with `seq_len <= 0`: `strict` writes NaN, as XQA does on sm90, so that
  an unfilled length buffer shows; `safe` writes 0 and LSE -inf. A row that sees no key for another reason
  (more query tokens than keys) is 0 with LSE -inf under both.
* Only the rows that the offsets cover are written.
* Arguments of FlashInfer that are not implemented are refused unless they hold FlashInfer's default.

LSE is fp32 [num_tokens, H] in base 2 and does not contain the sink.

How the GPU kernels divide the work is `grid`: `split` cuts the keys of every request into as many parts, and
gives a request the same bits whatever else is in the batch, as long as batch size, `max_q_len` and
`max_seq_len` stay the same; `balanced` cuts the keys of the whole batch into equal runs, which is faster when
lengths vary, and gives a request the same bits only beside the same lengths (see `balanced`). Only the caller
can choose: when a graph is captured nobody knows how much the lengths of its replays will vary.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gpu_tests.reference import select, torch_decode
from gpu_tests.reference.preconditions import KernelPreconditionError, Problems
from gpu_tests.reference.splits import LARGEST_GPU, choose_runs, choose_splits, count_parts, partial_bytes

__all__ = [
    "KernelPreconditionError",
    "pack_mask",
    "trtllm_batch_decode_with_kv_cache",
    "trtllm_batch_decode_with_kv_cache_mla",
    "workspace_bytes",
]

Backend = Literal["auto", "gluon", "triton", "torch"]
EmptyRows = Literal["strict", "safe"]
Grid = Literal["split", "balanced"]
Scale = float | Tensor

# Arguments of FlashInfer 0.7 that select nothing here, with their defaults.
DEFAULTS_ONLY: dict[str, object] = {
    "o_scale": 1.0,
    "uses_shared_paged_kv_idx": True,
    "is_var_seq": True,
    "enable_block_sparse_attention": False,
    "enable_dcp": False,
    "cp_world": 1,
    "cp_rank": 0,
}

FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


def trtllm_batch_decode_with_kv_cache(
    query: Tensor,
    kv_cache: Tensor | tuple[Tensor, Tensor],
    workspace_buffer: Tensor | None,
    block_tables: Tensor,
    seq_lens: Tensor,
    max_seq_len: int,
    bmm1_scale: Scale = 1.0,
    bmm2_scale: Scale = 1.0,
    window_left: int = -1,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    *,
    sinks: Tensor | None = None,
    kv_layout: Literal["HND", "NHD"] = "HND",
    backend: Backend = "auto",
    q_len_per_req: int | None = 1,
    mask: Tensor | None = None,
    max_q_len: int | None = None,
    cum_seq_lens_q: Tensor | None = None,
    lse: Tensor | None = None,
    return_lse: bool = False,
    empty_rows: EmptyRows = "strict",
    grid: Grid = "split",
    enable_pdl: bool | None = None,
    **unsupported: object,
) -> Tensor | tuple[Tensor, Tensor]:
    """Decode attention of `query` [num_tokens, H, D] over a paged cache; `out` [num_tokens, H, Dv].

    * kv_cache: [P, 2, Hkv, page, D] (HND) or [P, 2, page, Hkv, D] (NHD), or a tuple (K, V) without the 2.
      Stride 1 in D, any other strides. Dtype of the query, or float8_e4m3fn with the scales folded into
      `bmm1_scale` (k) and `bmm2_scale` (v).
    * workspace_buffer: contiguous, at least `workspace_bytes(...)` bytes, may be dirty. The PyTorch kernel
      needs none.
    * block_tables: int32 [B, W], page ids. Entries past a request's last page are never read.
    * seq_lens: int32 [B], keys of each request INCLUDING the tokens of the query (causal is bottom-right).
    * max_seq_len: host bound of `seq_lens`, at most W * page. It steers the number of splits: equal bits need
      equal values.
    * bmm1_scale, bmm2_scale: of the scores (softmax scale included) and of the output; floats are frozen in a
      graph, one-element fp32 tensors are read at replay.
    * out, out_dtype: where and in which dtype to write; by default a new tensor in the dtype of the query.
    * window_left: keys left of the query's own that stay visible; -1 for no window.
    * sinks: fp32 [H], natural-log logits.
    * q_len_per_req: query tokens of every request. For ragged queries pass None, `cum_seq_lens_q` int32 [B +
      1] and `max_q_len`.
    * mask: uint16 [B, max_q_len, 2 * ceil(max_q_len / 32)] from `pack_mask`: bit j of row i lets query i see
      draft token j.
    * grid: how the work is divided; `balanced` has no window.
    * enable_pdl: a hint about scheduling, without effect here.

    Returns `out`, or `(out, lse)` with `return_lse`. Raises KernelPreconditionError.
    """
    problems = Problems("trtllm_batch_decode_with_kv_cache")
    problems.defaults_only(unsupported, DEFAULTS_ONLY)
    k, v = _split_kv(kv_cache, kv_layout, problems)
    launch = _Launch(
        query=query,
        k=k,
        v=v,
        head_dim_v=v.shape[-1],
        block_tables=block_tables,
        seq_lens=seq_lens,
        cum_seq_lens_q=cum_seq_lens_q,
        mask=mask,
        sinks=sinks,
        max_q_len=_query_length(q_len_per_req, max_q_len, cum_seq_lens_q, problems),
        max_seq_len=max_seq_len,
        bmm1_scale=bmm1_scale,
        bmm2_scale=bmm2_scale,
        window_left=window_left,
        empty_rows=empty_rows,
        grid=grid,
    )
    if out is None:
        out = query.new_empty(*query.shape[:-1], v.shape[-1], dtype=out_dtype)
    elif out_dtype is not None:
        problems.unless(out.dtype == out_dtype, "out", out.dtype, f"{out_dtype}, as out_dtype says")
    result = launch.run(out, lse, workspace_buffer, backend, problems)
    return result if return_lse else result[0]


def trtllm_batch_decode_with_kv_cache_mla(
    query: Tensor,
    kv_cache: Tensor,
    workspace_buffer: Tensor | None,
    qk_nope_head_dim: int,
    kv_lora_rank: int,
    qk_rope_head_dim: int,
    block_tables: Tensor,
    seq_lens: Tensor,
    max_seq_len: int,
    sparse_mla_top_k: int = 0,
    out: Tensor | None = None,
    bmm1_scale: Scale = 1.0,
    bmm2_scale: Scale = 1.0,
    sinks: Tensor | None = None,
    *,
    backend: Backend = "auto",
    mask: Tensor | None = None,
    max_q_len: int | None = None,
    cum_seq_lens_q: Tensor | None = None,
    lse: Tensor | None = None,
    return_lse: bool = False,
    empty_rows: EmptyRows = "strict",
    grid: Grid = "split",
    enable_pdl: bool | None = None,
    **unsupported: object,
) -> Tensor | tuple[Tensor, Tensor]:
    """MLA decode over a paged latent cache.

    * query: [B, q, H, L + R], or ragged [num_tokens, H, L + R] with `cum_seq_lens_q` and `max_q_len`; its
      first L columns are absorbed (q_nope times W_UK), L = `kv_lora_rank`, R = `qk_rope_head_dim`.
    * kv_cache: [P, page, L + R] or [P, 1, page, L + R].
    * bmm1_scale: contains 1 / sqrt(qk_nope_head_dim + qk_rope_head_dim), the head dim BEFORE absorption.
    * out: [B, q, H, L] or [num_tokens, H, L]; `lse` is [num_tokens, H] in both.

    `qk_nope_head_dim` is not used (as in FlashInfer); everything else as in
    `trtllm_batch_decode_with_kv_cache`.
    """
    problems = Problems("trtllm_batch_decode_with_kv_cache_mla")
    problems.defaults_only(unsupported, DEFAULTS_ONLY)
    problems.unless(sparse_mla_top_k == 0, "sparse_mla_top_k", sparse_mla_top_k, "0 (dense)")
    width = kv_lora_rank + qk_rope_head_dim
    layout_fits = kv_cache.dim() == 3 or (kv_cache.dim() == 4 and kv_cache.shape[1] == 1)
    problems.unless(layout_fits, "kv_cache", list(kv_cache.shape), "[P, page, D] or [P, 1, page, D]")
    problems.unless(kv_cache.shape[-1] == width, "kv_cache", list(kv_cache.shape), f"{width} columns")
    query_fits = query.dim() in (3, 4)
    problems.unless(query_fits, "query", list(query.shape), "[B, q, H, D] or [num_tokens, H, D]")
    if out is not None:
        problems.unless(out.is_contiguous(), "out", f"strides {list(out.stride())}", "contiguous")
    if not (layout_fits and query_fits):
        problems.raise_if_any()

    uniform = query.dim() == 4
    launch = _Launch(
        query=query.flatten(0, 1) if uniform else query,
        k=(kv_cache if kv_cache.dim() == 3 else kv_cache[:, 0]).unsqueeze(2),
        v=None,
        head_dim_v=kv_lora_rank,
        block_tables=block_tables,
        seq_lens=seq_lens,
        cum_seq_lens_q=cum_seq_lens_q,
        mask=mask,
        sinks=sinks,
        max_q_len=_query_length(query.shape[1] if uniform else None, max_q_len, cum_seq_lens_q, problems),
        max_seq_len=max_seq_len,
        bmm1_scale=bmm1_scale,
        bmm2_scale=bmm2_scale,
        window_left=-1,
        empty_rows=empty_rows,
        grid=grid,
    )
    if out is None:
        out = query.new_empty(*query.shape[:-1], kv_lora_rank)
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
    """Bytes of workspace that suffice for one launch of these shapes on any GPU (MLA: `num_kv_heads=1`)."""
    heads = (num_heads, num_kv_heads, head_dim_v, max_q_len)
    balanced = grid == "balanced"
    if balanced:
        num_splits = choose_runs(*heads, LARGEST_GPU)
    else:
        num_splits = choose_splits(batch_size, *heads, max_seq_len, LARGEST_GPU)
    return partial_bytes(count_parts(batch_size, max_q_len * num_heads, num_splits, balanced), head_dim_v)


@dataclass(frozen=True, kw_only=True)
class _Launch:
    """One launch in the form that both kernels share: k [P, page, Hkv, D]; v alike, None: columns of k."""

    query: Tensor
    k: Tensor
    v: Tensor | None
    head_dim_v: int
    block_tables: Tensor
    seq_lens: Tensor
    cum_seq_lens_q: Tensor | None
    mask: Tensor | None
    sinks: Tensor | None
    max_q_len: int
    max_seq_len: int
    bmm1_scale: Scale
    bmm2_scale: Scale
    window_left: int
    empty_rows: EmptyRows
    grid: Grid

    def run(
        self,
        out: Tensor,
        lse: Tensor | None,
        workspace: Tensor | None,
        backend: Backend,
        problems: Problems,
    ) -> tuple[Tensor, Tensor]:
        problems.unless(self.query.dim() == 3, "query", list(self.query.shape), "[num_tokens, H, D]")
        if self.query.dim() != 3:
            problems.raise_if_any()
        num_tokens, num_heads, _ = self.query.shape
        if lse is None:
            lse = self.query.new_empty(num_tokens, num_heads, dtype=torch.float32)
        self._check(problems, out, lse)
        known = backend in ("auto", "gluon", "triton", "torch")
        problems.unless(known, "backend", backend, "auto, gluon, triton or torch")
        problems.raise_if_any()
        kernel = self._kernel(backend, problems)
        if kernel == "torch":
            torch_decode.paged_decode_torch(out, lse, *self._op_arguments())
        else:
            # Triton is an optional dependency: a machine without a GPU does not need it.
            gluon = "gluon_gqa" if self.v is not None else "gluon_mla"
            module = importlib.import_module(f"gpu_tests.reference.{gluon if kernel == 'gluon' else 'triton_decode'}")
            batch = self.block_tables.shape[0]
            balanced = self.grid == "balanced"
            division = importlib.import_module("gpu_tests.reference.division")
            work = division.divide(out, self.k, batch, self.max_q_len, self.max_seq_len, balanced)
            problems.buffer("workspace_buffer", workspace, work.needed_bytes(), self.query.device)
            problems.raise_if_any()
            module.paged_decode(out, lse, workspace, *self._op_arguments(), balanced)
        return out, lse

    def _kernel(self, backend: Backend, problems: Problems) -> select.Kernel:
        """The kernel that the caller forces, or the best one; raises when it cannot run this launch."""
        gpu = {"capability": select.capability_of(self.query.device), "triton": select.triton_version()}
        if backend == "auto":
            choice = select.choose(self.query, self.k, self.v, head_dim_v=self.head_dim_v, **gpu)
            select.log_once(choice)
            backend = choice.kernel
        if backend == "gluon":
            select.check_gluon(problems, self.query, self.k, self.v, head_dim_v=self.head_dim_v, **gpu)
        elif backend == "triton":
            select.check_triton(problems, self.query, self.k, self.v, head_dim_v=self.head_dim_v)
        problems.raise_if_any()
        return backend

    def _op_arguments(self) -> tuple[object, ...]:
        """Scales as (float, tensor or None): a tensor is read at replay, a float is frozen at capture."""
        scales = [
            (1.0, scale) if isinstance(scale, Tensor) else (float(scale), None)
            for scale in (self.bmm1_scale, self.bmm2_scale)
        ]
        return (
            self.query,
            self.k,
            self.v,
            self.block_tables,
            self.seq_lens,
            self.cum_seq_lens_q,
            self.mask,
            self.sinks,
            *scales[0],
            *scales[1],
            self.max_q_len,
            self.max_seq_len,
            self.window_left,
            self.empty_rows == "strict",
        )

    def _check(self, problems: Problems, out: Tensor, lse: Tensor) -> None:
        query, k, v = self.query, self.k, self.v
        num_tokens, num_heads, head_dim = query.shape
        batch = self.block_tables.shape[0]
        problems.tensor("query", query, FLOATS, [num_tokens, num_heads, head_dim], inner_stride=True)
        problems.tensor("kv_cache", k, (query.dtype, torch.float8_e4m3fn), [*k.shape[:3], head_dim], inner_stride=True)
        if v is not None:
            problems.tensor("kv_cache (V)", v, (k.dtype,), [*k.shape[:3], self.head_dim_v], inner_stride=True)
        problems.unless(num_heads % k.shape[2] == 0, "query", f"{num_heads} heads", f"n x {k.shape[2]} KV heads")
        problems.tensor("block_tables", self.block_tables, (torch.int32,), [batch, None], inner_stride=True)
        problems.tensor("seq_lens", self.seq_lens, (torch.int32,), [batch], inner_stride=True)
        if self.cum_seq_lens_q is None:
            problems.unless(
                num_tokens == batch * self.max_q_len,
                "query",
                f"{num_tokens} rows",
                f"{batch} requests x {self.max_q_len} query tokens",
            )
        else:
            problems.tensor("cum_seq_lens_q", self.cum_seq_lens_q, (torch.int32,), [batch + 1], inner_stride=True)
        if self.mask is not None:
            words = 2 * ((self.max_q_len + 31) // 32)
            problems.tensor("mask", self.mask, (torch.uint16,), [batch, self.max_q_len, words], inner_stride=True)
        if self.sinks is not None:
            problems.tensor("sinks", self.sinks, (torch.float32,), [num_heads], inner_stride=True)
        for name, scale in (("bmm1_scale", self.bmm1_scale), ("bmm2_scale", self.bmm2_scale)):
            if isinstance(scale, Tensor):
                problems.tensor(name, scale, (torch.float32,), [1])
        problems.tensor("out", out, FLOATS, [num_tokens, num_heads, self.head_dim_v], inner_stride=True)
        problems.tensor("lse", lse, (torch.float32,), [num_tokens, num_heads], inner_stride=True)
        width, page_size = self.block_tables.shape[-1], k.shape[1]
        allowed = f"1 to {width * page_size}, what {width} pages of {page_size} hold"
        problems.unless(1 <= self.max_seq_len <= width * page_size, "max_seq_len", self.max_seq_len, allowed)
        problems.unless(self.window_left >= -1, "window_left", self.window_left, "-1 (none) or a count")
        problems.unless(self.grid in ("split", "balanced"), "grid", self.grid, "split or balanced")
        problems.unless(
            self.grid != "balanced" or self.window_left < 0,
            "grid",
            self.grid,
            "split with a window, which leaves every request about the same number of keys",
        )
        problems.unless(self.empty_rows in ("strict", "safe"), "empty_rows", self.empty_rows, "strict or safe")
        problems.same_device(query.device)


def _split_kv(kv_cache: Tensor | tuple[Tensor, Tensor], layout: str, problems: Problems) -> tuple[Tensor, Tensor]:
    """K and V as views [P, page, Hkv, D]."""
    problems.unless(layout in ("HND", "NHD"), "kv_layout", layout, "HND or NHD")
    if isinstance(kv_cache, Tensor):
        fits = kv_cache.dim() == 5 and kv_cache.shape[1] == 2
        problems.unless(fits, "kv_cache", list(kv_cache.shape), "[P, 2, ...] with 5 dimensions")
    else:
        fits = len(kv_cache) == 2 and all(side.dim() == 4 for side in kv_cache)
        problems.unless(fits, "kv_cache", [list(side.shape) for side in kv_cache], "K and V of 4 dimensions")
    if not fits:
        problems.raise_if_any()
    k, v = kv_cache.unbind(1) if isinstance(kv_cache, Tensor) else kv_cache
    return (k, v) if layout == "NHD" else (k.transpose(1, 2), v.transpose(1, 2))


def _query_length(per_request: int | None, longest: int | None, offsets: Tensor | None, problems: Problems) -> int:
    """The longest query of a request: uniform, or ragged with a bound that the host must know.

    FlashInfer's default of 1 for `q_len_per_req` wins over `cum_seq_lens_q` without a word; here both are an
    error.
    """
    if offsets is None:
        problems.unless(per_request is not None and per_request >= 1, "q_len_per_req", per_request, "1 or more")
        return per_request or 1
    problems.unless(per_request is None, "q_len_per_req", per_request, "None when cum_seq_lens_q is given")
    problems.unless(longest is not None and longest >= 1, "max_q_len", longest, "given with cum_seq_lens_q")
    return longest or 1
