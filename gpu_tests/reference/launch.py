"""One launch of paged decode attention: its arguments, their check, and the kernel that runs it.

The public functions (`decode`) differ in how arguments are given; what they describe is one `Launch`.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch import Tensor

from gpu_tests.reference import select, torch_decode
from gpu_tests.reference.grids import Grid
from gpu_tests.reference.preconditions import Problems

Backend = Literal["auto", "gluon", "triton", "torch"]
EmptyRows = Literal["strict", "safe"]
Layout = Literal["HND", "NHD"]
Scale = float | Tensor
Counts = TypeVar("Counts", Tensor, Tensor | None)

FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One launch in the form that the kernels share: k [P, page, Hkv, D]; v alike, None: columns of k."""

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


def int32(counts: Counts) -> Counts:
    """Lengths or offsets in uint32, as FlashInfer documents them, seen as int32: the same memory."""
    return counts.view(torch.int32) if counts is not None and counts.dtype == torch.uint32 else counts


def split_kv(kv_cache: Tensor | tuple[Tensor, Tensor], layout: str, problems: Problems) -> tuple[Tensor, Tensor]:
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


def query_length(per_request: int | None, longest: int | None, offsets: Tensor | None, problems: Problems) -> int:
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
