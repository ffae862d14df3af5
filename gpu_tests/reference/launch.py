"""One launch of paged decode attention: its arguments, their check, and the kernel that runs it.

The public functions (`decode`) differ in how arguments are given; what they describe is one `Launch`.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from numbers import Integral, Real
from types import NoneType
from typing import Literal, TypeVar, get_args

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
LARGEST_INT = torch.iinfo(torch.int32).max
LARGEST_SCALE = torch.finfo(torch.float32).max

TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    **dict.fromkeys(("query", "block_tables", "seq_lens"), ((Tensor,), "a tensor")),
    **dict.fromkeys(
        ("workspace_buffer", "cum_seq_lens_q", "q_cu_seq_lens", "mask", "sinks", "out", "lse"),
        ((Tensor, NoneType), "a tensor or None"),
    ),
    **dict.fromkeys(("max_seq_len", "window_left", "kv_lora_rank", "qk_rope_head_dim"), ((Integral,), "an integer")),
    **dict.fromkeys(("q_len_per_req", "max_q_len"), ((Integral, NoneType), "an integer or None")),
    **dict.fromkeys(("bmm1_scale", "bmm2_scale"), ((Real, Tensor), "a number or a tensor")),
    "out_dtype": ((torch.dtype, NoneType), "a dtype or None"),
}
"""Of the arguments of all decode functions, by name."""

WORDS: dict[str, tuple[str, ...]] = {
    "backend": get_args(Backend),
    "kv_layout": get_args(Layout),
    "empty_rows": get_args(EmptyRows),
    "grid": get_args(Grid),
}
"""Arguments that are one of a few words, by name."""

CACHE = ("query", "kv_cache", "kv_cache (V)")
LENGTHS = ("max_seq_len", "q_len_per_req", "max_q_len")


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

    @property
    def window(self) -> int:
        """`window_left`, or -1 if it hides nothing: large ones would leave the range of positions."""
        return -1 if self.window_left >= self.max_seq_len else self.window_left

    def run(
        self,
        out: Tensor,
        lse: Tensor | None,
        workspace: Tensor | None,
        backend: Backend,
        problems: Problems,
    ) -> tuple[Tensor, Tensor]:
        num_tokens, num_heads, _ = self.query.shape
        if lse is None:
            lse = self.query.new_empty(num_tokens, num_heads, dtype=torch.float32)
        self._check(problems, out, lse)
        kernel = self._kernel(backend, problems)
        if kernel not in ("torch", None):
            needed = self._workspace_bytes(out, problems)
            problems.buffer("workspace_buffer", workspace, needed, self.query.device)
        problems.raise_if_any()
        if kernel == "torch":
            torch_decode.paged_decode_torch(out, lse, *self._op_arguments())
        else:
            # Triton is an optional dependency: a machine without a GPU does not need it.
            gluon = "gluon_gqa" if self.v is not None else "gluon_mla"
            module = importlib.import_module(f"gpu_tests.reference.{gluon if kernel == 'gluon' else 'triton_decode'}")
            module.paged_decode(out, lse, workspace, *self._op_arguments(), self.grid == "balanced")
        return out, lse

    def _kernel(self, backend: Backend, problems: Problems) -> select.Kernel | None:
        """The kernel that the caller forces, with what it asks for, or the best one; None if there is none of that
        name.
        """
        gpu = {"capability": select.capability_of(self.query.device), "triton": select.triton_version()}
        if backend == "auto":
            choice = select.choose(self.query, self.k, self.v, head_dim_v=self.head_dim_v, **gpu)
            if not problems.lines:
                select.log_once(choice)
            return choice.kernel
        if problems.about("backend"):
            return None
        if backend == "triton":
            self._check_triton(problems)
        if backend == "gluon" and not problems.about(*CACHE):
            select.check_gluon(problems, self.query, self.k, self.v, head_dim_v=self.head_dim_v, **gpu)
        return backend

    def _check_triton(self, problems: Problems) -> None:
        runs = self.query.device.type != "cpu" or os.environ.get("TRITON_INTERPRET") == "1"
        place = "on a GPU in Triton, or in its interpreter (TRITON_INTERPRET=1)"
        if not problems.about(*CACHE):
            select.check_triton(problems, self.query, self.k, self.v, head_dim_v=self.head_dim_v)
        problems.unless(runs, "query", f"device {self.query.device}", place)
        problems.unless(select.triton_version() is not None, "triton", None, "installed")

    def _workspace_bytes(self, out: Tensor, problems: Problems) -> int | None:
        """Bytes that this launch needs on its GPU; None if an argument is wrong that they depend on."""
        if problems.about(*CACHE, *LENGTHS, "block_tables", "out", "grid", "triton"):
            return None
        division = importlib.import_module("gpu_tests.reference.division")  # needs Triton
        batch, balanced = self.block_tables.shape[0], self.grid == "balanced"
        return division.divide(out, self.k, batch, self.max_q_len, self.max_seq_len, balanced).needed_bytes()

    def _op_arguments(self) -> tuple[object, ...]:
        """Scales as (float, tensor or None): a tensor is read at replay, a float is frozen at capture."""
        scales = [
            (1.0, scale.reshape(1)) if isinstance(scale, Tensor) else (float(scale), None)
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
            self.window,
            self.empty_rows == "strict",
        )

    def _check(self, problems: Problems, out: Tensor, lse: Tensor) -> None:
        query, k, v = self.query, self.k, self.v
        num_tokens, num_heads, head_dim = query.shape
        _, page_size, kv_heads, _ = k.shape
        problems.tensor("query", query, FLOATS, [num_tokens, num_heads, head_dim], inner_stride=True)
        problems.tensor("kv_cache", k, (query.dtype, torch.float8_e4m3fn), [*k.shape[:3], head_dim], inner_stride=True)
        if v is not None:
            problems.tensor("kv_cache (V)", v, (k.dtype,), [*k.shape[:3], self.head_dim_v], inner_stride=True)
        problems.unless(page_size >= 1, "kv_cache", f"pages of {page_size}", "1 or more")
        problems.unless(kv_heads >= 1, "kv_cache", f"{kv_heads} KV heads", "1 or more")
        fits = kv_heads < 1 or (num_heads >= 1 and num_heads % kv_heads == 0)
        problems.unless(fits, "query", f"{num_heads} heads", f"n x {kv_heads} KV heads")
        self._check_requests(problems)
        if self.sinks is not None:
            problems.tensor("sinks", self.sinks, (torch.float32,), [num_heads], inner_stride=True)
        for name, scale in (("bmm1_scale", self.bmm1_scale), ("bmm2_scale", self.bmm2_scale)):
            if isinstance(scale, Tensor):
                problems.tensor(name, scale, (torch.float32,), [] if scale.dim() == 0 else [1])
            else:
                problems.unless(abs(scale) <= LARGEST_SCALE, name, scale, "finite in float32")
        problems.tensor("out", out, FLOATS, [num_tokens, num_heads, self.head_dim_v], inner_stride=True)
        problems.tensor("lse", lse, (torch.float32,), [num_tokens, num_heads], inner_stride=True)
        problems.unless(self.window_left >= -1, "window_left", self.window_left, "-1 (none) or a count")
        problems.unless(
            self.grid != "balanced" or self.window < 0,
            "grid",
            self.grid,
            "split with a window, which leaves every request about the same number of keys",
        )
        problems.same_device(query.device)

    def _check_requests(self, problems: Problems) -> None:
        """What has a row a request; the table says how many there are."""
        num_tokens, page_size = self.query.shape[0], self.k.shape[1]
        batch, width = self.block_tables.shape if self.block_tables.dim() == 2 else (None, None)
        problems.tensor("block_tables", self.block_tables, (torch.int32,), [None, None], inner_stride=True)
        problems.tensor("seq_lens", self.seq_lens, (torch.int32,), [batch], inner_stride=True)
        if self.cum_seq_lens_q is not None:
            bounds = None if batch is None else batch + 1
            problems.tensor("cum_seq_lens_q", self.cum_seq_lens_q, (torch.int32,), [bounds], inner_stride=True)
        if self.mask is not None:
            words = 2 * ((self.max_q_len + 31) // 32)
            problems.tensor("mask", self.mask, (torch.uint16,), [batch, self.max_q_len, words], inner_stride=True)
        if batch is None or width is None:
            return
        problems.unless(batch >= 1, "block_tables", f"{batch} requests", "1 or more")
        if self.cum_seq_lens_q is None and not problems.about("q_len_per_req"):
            rows = f"{batch} requests x {self.max_q_len} query tokens"
            problems.unless(num_tokens == batch * self.max_q_len, "query", f"{num_tokens} rows", rows)
        allowed = f"1 to {width * page_size}, what {width} pages of {page_size} hold"
        problems.unless(1 <= self.max_seq_len <= width * page_size, "max_seq_len", self.max_seq_len, allowed)


def check_types(given: dict[str, object], problems: Problems, cache: tuple[type, ...]) -> None:
    """What the arguments of a decode function are by themselves: of which type, and which word. Raises if what else
    is asked of them cannot be said: types are wrong, or the layout is. `cache` may hold tensors in pairs.
    """
    for name, (types, allowed) in TYPES.items():
        if name in given:
            problems.is_a(name, given[name], types, allowed)
    kv_cache = given["kv_cache"]
    problems.is_a("kv_cache", kv_cache, cache, "a tensor" if cache == (Tensor,) else "a tensor or a pair (K, V)")
    if isinstance(kv_cache, tuple | list) and not problems.about("kv_cache"):
        for side in kv_cache:
            problems.is_a("kv_cache", side, (Tensor,), "tensors")
    for name, words in WORDS.items():
        if name in given:
            allowed = f"{', '.join(words[:-1])} or {words[-1]}"
            fits = isinstance(given[name], str) and given[name] in words
            problems.unless(fits, name, given[name], allowed)
    if problems.about(*TYPES, "kv_cache", "kv_layout"):
        problems.raise_if_any()


def int32(counts: Counts) -> Counts:
    """Lengths or offsets in uint32, as FlashInfer documents them, seen as int32: the same memory."""
    return counts.view(torch.int32) if counts is not None and counts.dtype == torch.uint32 else counts


def split_kv(
    query: Tensor, kv_cache: Tensor | tuple[Tensor, Tensor], layout: Layout, problems: Problems
) -> tuple[Tensor, Tensor]:
    """K and V as views [P, page, Hkv, D]. Raises if they or the query lack a dimension."""
    problems.unless(query.dim() == 3, "query", list(query.shape), "[num_tokens, H, D]")
    if isinstance(kv_cache, Tensor):
        fits = kv_cache.dim() == 5 and kv_cache.shape[1] == 2
        problems.unless(fits, "kv_cache", list(kv_cache.shape), "[P, 2, ...] with 5 dimensions")
    else:
        fits = len(kv_cache) == 2 and all(side.dim() == 4 for side in kv_cache)
        problems.unless(fits, "kv_cache", [list(side.shape) for side in kv_cache], "K and V of 4 dimensions")
    if problems.about("query", "kv_cache"):
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
        return int(per_request or 1)
    problems.unless(per_request is None, "q_len_per_req", per_request, "None when cum_seq_lens_q is given")
    return ragged_length(longest, problems)


def ragged_length(longest: int | None, problems: Problems) -> int:
    """The bound of the lengths of ragged queries."""
    fits = longest is not None and 1 <= longest <= LARGEST_INT
    problems.unless(fits, "max_q_len", longest, f"1 to {LARGEST_INT} with cum_seq_lens_q")
    return int(longest or 1)


def fitting(out: Tensor | None, shapes: list[list[int]], problems: Problems) -> Tensor | None:
    """The output that is given, if it has one of the shapes; None stands for a new one, beside which what else is wrong
    can be said.
    """
    if out is None:
        return None
    problems.unless(out.is_contiguous(), "out", f"strides {list(out.stride())}", "contiguous")
    fits = list(out.shape) in shapes
    problems.unless(fits, "out", f"shape {list(out.shape)}", " or ".join(map(str, shapes)))
    return out if fits else None
