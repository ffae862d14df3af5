"""One launch of a decode kernel, and the truth about it: what the suites of all kernels are made of.

Outputs and workspaces are NaN before each launch; dead slots, spare pages and guard pages are NaN throughout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from gpu_tests.reference import oracle
from gpu_tests.reference.acceptance import emphasise, low_precision, lse_errors, row_errors, weight_rounding
from gpu_tests.reference.decode import (
    pack_mask,
    trtllm_batch_decode_with_kv_cache,
    trtllm_batch_decode_with_kv_cache_mla,
    workspace_bytes,
)
from gpu_tests.reference.paged import PagedKV, empty_kv, empty_mla, shuffled_page_table


@dataclass(frozen=True)
class Kernel:
    """An implementation, where it runs, and the dtypes that it is tested with there."""

    backend: str
    device: str
    dtypes: tuple[torch.dtype, ...]

    def __str__(self) -> str:
        return f"{self.backend}-{self.device}"


HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
needs_hopper = pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU (sm_90)")
GLUON = Kernel("gluon", "cuda", (torch.bfloat16,))
WORKSPACE = 40 << 20
"""fp32 elements: more than any forced number of splits needs in a trial."""


@dataclass(frozen=True)
class Shape:
    """`kv_heads` 0 stands for MLA (latent 512, rope 64)."""

    heads: int
    kv_heads: int
    page_size: int
    q_len: int
    lengths: tuple[int, ...]
    replay_lengths: tuple[int, ...] = ()
    head_dim: int = 128
    layout: str = "HND"
    storage: str = "separate"
    window_left: int = -1
    sinks: tuple[float, ...] = ()
    parents: tuple[int, ...] = ()
    scales: tuple[float, float] = (1.0, 1.0)
    kv_dtype: torch.dtype | None = None
    page_gap: int = 16
    grid: str = "split"

    @property
    def mla(self) -> bool:
        return self.kv_heads == 0

    @property
    def max_seq_len(self) -> int:
        return max(self.page_size, *self.lengths, *self.replay_lengths)

    def __str__(self) -> str:
        family = f"mla{self.heads}" if self.mla else f"gqa{self.heads}x{self.kv_heads}"
        grid = "" if self.grid == "split" else f"-{self.grid}"
        cache = "-fp8" if self.kv_dtype == torch.float8_e4m3fn else ""
        return f"{family}-page{self.page_size}-q{self.q_len}{grid}{cache}-" + "_".join(map(str, self.lengths))


@dataclass
class Launch:
    """The buffers of one launch, at fixed addresses, and the truth about what is in them."""

    kernel: Kernel
    shape: Shape
    dtype: torch.dtype
    empty_rows: str = "safe"
    cache: PagedKV = field(init=False)
    query: Tensor = field(init=False)
    lengths: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        shape, device = self.shape, self.kernel.device
        pages = sum(max(pair) // shape.page_size + 1 for pair in self._length_pairs()) + 2
        dtype = shape.kv_dtype or self.dtype
        k_scale, v_scale = shape.scales
        if shape.mla:
            self.cache = empty_mla(
                pages, shape.page_size, dtype=dtype, device=device, page_gap=shape.page_gap, scale=k_scale
            )
        else:
            self.cache = empty_kv(
                pages, shape.page_size, shape.kv_heads, shape.head_dim, dtype=dtype, device=device,
                layout=shape.layout, storage=shape.storage, page_gap=shape.page_gap,
                k_scale=k_scale, v_scale=v_scale,
            )  # fmt: skip
        self.query = torch.zeros(len(shape.lengths) * shape.q_len, shape.heads, self.head_dim, dtype=self.dtype)
        self.query = self.query.to(device)
        width = -(-shape.max_seq_len // shape.page_size) + 1
        self.block_tables = torch.zeros(len(shape.lengths), width, dtype=torch.int32, device=device)
        self.seq_lens = torch.zeros(len(shape.lengths), dtype=torch.int32, device=device)
        self.out = self.query.new_zeros(*self.query.shape[:2], 512 if shape.mla else shape.head_dim)
        self.lse = self.query.new_zeros(self.query.shape[:2], dtype=torch.float32)
        size = workspace_bytes(
            batch_size=len(shape.lengths), num_heads=shape.heads, num_kv_heads=shape.kv_heads or 1,
            head_dim_v=self.out.shape[-1], max_q_len=shape.q_len, max_seq_len=shape.max_seq_len,
            grid=shape.grid,
        )  # fmt: skip
        self.workspace = torch.zeros(size // 4, device=device)
        self.sinks = torch.tensor(shape.sinks, device=device) if shape.sinks else None
        self.fill(shape.lengths, seed=0)

    @property
    def head_dim(self) -> int:
        return 576 if self.shape.mla else self.shape.head_dim

    @property
    def softmax_scale(self) -> float:
        return 1 / math.sqrt(192 if self.shape.mla else self.shape.head_dim)

    def _length_pairs(self) -> list[tuple[int, int]]:
        return list(zip(self.shape.lengths, self.shape.replay_lengths or self.shape.lengths, strict=True))

    def fill(self, lengths: tuple[int, ...], seed: int) -> None:
        """Give every request new tokens, on new pages, in place. Table tails hold a page id far out of the
        pool.
        """
        shape, device = self.shape, self.kernel.device
        generator = torch.Generator(device).manual_seed(seed)
        tail, width = 2147480000, self.block_tables.shape[1]
        pages = shuffled_page_table(lengths, shape.page_size, self.cache.num_pages, width=width, seed=seed, tail=tail)
        self.lengths = lengths
        self.seq_lens.copy_(torch.tensor(lengths))
        self.block_tables.copy_(pages)
        self.query.copy_(torch.randn(self.query.shape, generator=generator, device=device))
        if shape.mla:
            # Values are keys here: one column is emphasised, and left out of the scores.
            self.query[..., 0] = 0
        self.cache.poison()
        for row, length in enumerate(lengths):
            k, v = (
                torch.randn(length, *side.shape[2:], generator=generator, device=device)
                for side in (self.cache.k, self.cache.v)
            )
            slots = self.cache.slots(pages[row], length).to(device)
            if shape.mla:
                k[..., :1] = emphasise(k[..., :1], self._edges(length))
                self.cache.write(slots, k)
            else:
                self.cache.write(slots, k, emphasise(v, self._edges(length)))

    def _edges(self, length: int) -> set[int]:
        """Keys that an off-by-one would lose or gain: the ends, and both sides of the window's left end."""
        first, rows = length - self.shape.q_len, range(self.shape.q_len)
        edges = {0, length - 1} | {first + row for row in rows}
        if self.shape.window_left >= 0:
            edges |= {first + row - self.shape.window_left - side for row in rows for side in (0, 1)}
        return {edge for edge in edges if 0 <= edge < length}

    def run(self, **options: object) -> tuple[Tensor, Tensor]:
        """One launch on NaN-filled outputs and workspace. `options` override arguments."""
        for buffer in (self.out, self.lse, self.workspace):
            buffer.fill_(math.nan)
        self.launch(**options)
        return self.out.clone(), self.lse.clone()

    def run_ragged(self, offsets: Sequence[int]) -> tuple[Tensor, Tensor]:
        """One launch in which request `i` has the query rows from `offsets[i]` to `offsets[i + 1]`."""
        given = torch.tensor(offsets, dtype=torch.int32, device=self.kernel.device)
        query = {"query": self.query, "out": self.out} if self.shape.mla else {"q_len_per_req": None}
        return self.run(cum_seq_lens_q=given, max_q_len=self.shape.q_len, **query)

    def launch(self, **options: object) -> None:
        shape = self.shape
        k_scale, v_scale = shape.scales
        arguments: dict[str, object] = {
            "workspace_buffer": self.workspace,
            "kv_cache": self.cache.kv_cache(),
            "block_tables": self.block_tables,
            "seq_lens": self.seq_lens,
            "max_seq_len": shape.max_seq_len,
            "bmm1_scale": self.softmax_scale * k_scale,
            "bmm2_scale": v_scale,
            "lse": self.lse,
            "sinks": self.sinks,
            "backend": self.kernel.backend,
            "empty_rows": self.empty_rows,
            "grid": shape.grid,
        }
        if shape.parents:
            mask = oracle.tree_mask(shape.parents, shape.q_len).expand(len(self.lengths), -1, -1)
            arguments["mask"] = pack_mask(mask).to(self.kernel.device)
        if shape.mla:
            query = self.query.unflatten(0, (-1, shape.q_len))
            arguments |= {"query": query, "out": self.out.unflatten(0, (-1, shape.q_len))}
            arguments |= {"qk_nope_head_dim": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
            trtllm_batch_decode_with_kv_cache_mla(**(arguments | options))  # type: ignore[arg-type]
        else:
            arguments |= {"query": self.query, "out": self.out, "kv_layout": shape.layout}
            arguments |= {"q_len_per_req": shape.q_len, "window_left": shape.window_left}
            trtllm_batch_decode_with_kv_cache(**(arguments | options))  # type: ignore[arg-type]

    def rows(self, request: int) -> slice:
        return slice(request * self.shape.q_len, (request + 1) * self.shape.q_len)

    def failures(self, out: Tensor, lse: Tensor) -> list[str]:
        """What the oracle says about `out` and `lse`, a line for each failing row."""
        lines = []
        for request, length in enumerate(self.lengths):
            rows, pages = self.rows(request), self.block_tables[request]
            q = self.query[rows]
            options = {"window_left": self.shape.window_left, "sinks": self.sinks}
            if self.shape.parents:
                options["mask"] = oracle.tree_mask(self.shape.parents, length)
            ref = oracle.attention(q, *self.cache.gather(pages, length), scale=self.softmax_scale, **options)
            k_scale, v_scale = self.shape.scales
            k, v = self.cache.stored(pages, length)
            low = (q, k.to(self.dtype), v.to(self.dtype))
            options |= {"scale": self.softmax_scale * k_scale, "out_scale": v_scale}
            errors = row_errors(
                out[rows], ref.out, low_precision(*low, **options), self.dtype, weight_rounding(*low, **options)
            ) + lse_errors(lse[rows], ref.lse)
            lines += [f"request {request} (length {length}): {error}" for error in errors]
        return lines


def assert_accepted(launch: Launch, result: tuple[Tensor, Tensor]) -> None:
    failures = launch.failures(*result)
    assert not failures, f"{launch.shape}, {launch.dtype}: {len(failures)} rows fail\n" + "\n".join(failures[:10])


def same_bits(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> bool:
    return all(torch.equal(x.view(torch.uint8), y.view(torch.uint8)) for x, y in zip(a, b, strict=True))


def assert_ragged_accepted(launch: Launch, offsets: Sequence[int]) -> None:
    """Rows up to the last offset are what the oracle says, and the others are not written."""
    out, lse = launch.run_ragged(offsets)
    assert out[offsets[-1] :].isnan().all()
    assert lse[offsets[-1] :].isnan().all()
    for request, (start, stop) in enumerate(pairwise(offsets)):
        pages, length = launch.block_tables[request], launch.lengths[request]
        query, scale = launch.query[start:stop], launch.softmax_scale
        ref = oracle.attention(query, *launch.cache.gather(pages, length), scale=scale)
        stored = launch.cache.stored(pages, length)
        low = [make(query, *stored, scale=scale) for make in (low_precision, weight_rounding)]
        assert row_errors(out[start:stop], ref.out, low[0], launch.dtype, low[1]) == []
        assert lse_errors(lse[start:stop], ref.lse) == []


def assert_strict_marks_the_request_without_keys(launch: Launch) -> None:
    """`launch` is strict and has 4 query tokens; its first request has no key, its second one has one."""
    out, lse = launch.run()
    assert out[:4].isnan().all()
    assert lse[:4].isnan().all()
    # One key and 4 query tokens: three rows see no key, which is legal in a padded request.
    assert (out[4:7] == 0).all()
    assert torch.isneginf(lse[4:7]).all()
    assert out[7:].isfinite().all()


def too_long(launch: Launch) -> None:
    launch.seq_lens[1] = launch.shape.max_seq_len + 1


def page_past_the_pool(launch: Launch) -> None:
    launch.block_tables[1, 0] = launch.cache.num_pages


def page_minus_one(launch: Launch) -> None:
    launch.block_tables[1, 0] = -1


def last_page_past_the_pool(launch: Launch) -> None:
    launch.block_tables[1, (launch.lengths[1] - 1) // launch.shape.page_size] = launch.cache.num_pages


BROKEN_METADATA = [too_long, page_past_the_pool, page_minus_one, last_page_past_the_pool]
"""Each breaks the contract in request 1 of a launch, in place."""


@dataclass(frozen=True)
class Trial:
    """A shape for a Gluon kernel and the number of splits that is forced on it; None: what the kernel chooses."""

    shape: Shape
    splits: int | None
    dtype: torch.dtype = torch.bfloat16
    kernel: Kernel = GLUON

    def __str__(self) -> str:
        return f"{self.shape}-splits{self.splits or ''}"

    def launch(self, monkeypatch: pytest.MonkeyPatch, empty_rows: str = "safe") -> Launch:
        from gpu_tests.reference import division

        if self.splits is not None:
            monkeypatch.setattr(division, "splits_for", lambda *_: self.splits)
        launch = Launch(self.kernel, self.shape, self.dtype, empty_rows=empty_rows)
        launch.workspace = torch.zeros(WORKSPACE, device=self.kernel.device)
        return launch


def replayed(launch: Launch) -> Callable[[], tuple[Tensor, Tensor]]:
    """A captured launch; each call replays it over NaN."""
    launch.run()  # compiles the kernels: that cannot happen inside a capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch.launch()

    def replay() -> tuple[Tensor, Tensor]:
        for buffer in (launch.out, launch.lse, launch.workspace[: 1 << 20]):
            buffer.fill_(math.nan)
        graph.replay()
        return launch.out, launch.lse

    return replay
