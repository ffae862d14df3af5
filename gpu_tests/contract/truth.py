"""The truth about a round: what every request holds, where it lies, which bytes a pass writes, what it must return.

The contract owns it: a backend is never asked.  `World` objects are made here, filled before each pass, and judged
afterwards against `Expected`, which is computed from the requests' content alone.
"""

from __future__ import annotations

import functools
import math
import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gpu_tests.backends.kernel_plug import KernelPlug
from gpu_tests.backends.mla import per_token
from gpu_tests.backends.protocol import Inputs, Layer, Mode, World, WorldSpec
from gpu_tests.backends.runner import Feed
from gpu_tests.contract.scenario import Round, Row
from gpu_tests.reference.acceptance import low_precision
from gpu_tests.reference.oracle import attention, mla_expanded, tree_mask
from gpu_tests.reference.paged import PagedKV, empty_kv, empty_mla

SPARE_PAGES = 8
WILD_SLOT = 2147480000
"""A slot far outside any pool, below 2^31 (FlashMLA's tests use it)."""

MLA_ROUNDINGS = 3
"""The absorbed query, the kernel's latent output and the expanded output."""

FILLS = {"dead_nan": math.nan, "dead_inf": math.inf, "dead_huge": 3e4}


def make_world(spec: WorldSpec, device: torch.device) -> World:
    """A fresh engine: pool, request table, layer."""
    pages = 1 + spec.max_bs * spec.max_pages + SPARE_PAGES
    # Scales are tensors, so that they can change under a graph.
    scales: Any = [torch.full((1,), s, device=device) for s in ((0.5, 0.75) if spec.scaled_kv else (1.0, 1.0))]
    if spec.family == "mla":
        kv = empty_mla(
            pages, spec.page_size, kv_lora_rank=spec.kv_lora_rank, qk_rope_head_dim=spec.qk_rope_head_dim,
            dtype=spec.torch_kv_dtype, device=device, scale=scales[0],
        )  # fmt: skip
    else:
        kv = empty_kv(
            pages, spec.page_size, spec.num_kv_heads, spec.head_dim, dtype=spec.torch_kv_dtype, device=device,
            layout=spec.kv_layout, storage=spec.kv_storage, page_gap=spec.head_dim,
            k_scale=scales[0], v_scale=scales[1],
        )  # fmt: skip
    return World(
        spec=spec,
        device=device,
        req_to_token=torch.zeros(spec.max_bs + 1, spec.max_context, dtype=torch.int32, device=device),
        kv=kv,
        layer=_layer(spec, kv, device),
        kernels=KernelPlug(device, spec.empty_rows, spec.kernel, spec.grid),
        shared_workspace=torch.zeros(1 << 16, dtype=torch.uint8, device=device),
    )


def _layer(spec: WorldSpec, kv: PagedKV, device: torch.device) -> Layer:
    layer = Layer(0.0, kv.k_scale, kv.v_scale, window_left=spec.window_left)  # type: ignore[arg-type]
    if spec.family == "mla":
        # The head dim before absorption: 1 / sqrt(nope + rope).
        layer.scaling = (spec.qk_nope_head_dim + spec.qk_rope_head_dim) ** -0.5
        heads, nope, latent = spec.num_q_heads, spec.qk_nope_head_dim, spec.kv_lora_rank
        layer.w_kc = _randn("w_kc", (heads, nope, latent), spec, device) * nope**-0.5
        layer.w_vc = _randn("w_vc", (heads, latent, spec.v_head_dim), spec, device) * latent**-0.5
    else:
        layer.scaling = spec.head_dim**-0.5
        if spec.sinks:
            layer.sinks = _randn("sinks", (spec.num_q_heads,), spec, device).float()
    return layer


@dataclass(frozen=True)
class RowTruth:
    """One row of a pass.

    tokens: where its query tokens stand in the batch; the first `compared` of them have a defined output.
    pages, end: its pages and how many keys it has at step 0, the query's included (one more each step).
    masked: a draft tree hides some of its keys.
    identity: rows of equal identity must agree bit for bit; `distinct`: first tokens of different ones must not.
    """

    index: int
    name: str
    tokens: range
    compared: int
    pages: tuple[int, ...]
    end: int
    masked: bool
    identity: tuple[object, ...]
    distinct: tuple[object, ...]


@dataclass(frozen=True)
class Expected:
    """What one step of a row must return: fp64 oracle and plain low precision, both [compared tokens, H, Dv].

    roundings: in how many results a correct backend rounds on the way (`acceptance.row_errors`).
    """

    row: RowTruth
    oracle: Tensor
    low_precision: Tensor
    roundings: int = 1


class Truth:
    """Content and placement of requests for one world."""

    def __init__(self, world: World, perturbations: frozenset[str] = frozenset()) -> None:
        self.world, self.spec, self._perturbations = world, world.spec, perturbations
        self._original = {
            name: t.clone()
            for name in ("w_kc", "w_vc", "sinks", "k_scale", "v_scale")
            if (t := getattr(world.layer, name)) is not None
        }
        self._fill_pages()

    def load(self, round_: Round) -> tuple[Feed, list[RowTruth]]:
        """Put the engine into the state before the pass; the pass itself as a feed, and what is true of its rows."""
        self._update_layer(round_.update)
        self._fill_pages()
        rows: list[RowTruth] = []
        start = 0
        order = self._page_order(round_)
        placed: list[tuple[int, ...]] = []
        for index, row in enumerate(round_.rows):
            shared = self._shared_pages(round_, index)
            count = math.ceil((row.prefix + self._new_tokens(round_.mode)) / self.spec.page_size) - shared
            pages = (*(placed[0][:shared] if shared else ()), *order[start : start + count])
            placed.append(pages)
            start += count
            self._place(round_, index, pages, shared)
            rows.append(self._row_truth(round_, index, pages, rows[-1].tokens.stop if rows else 0, shared))
        return self._feed(round_, rows), rows

    def dummy_rows(self, mode: Mode, bs: int, fill_value: int) -> list[RowTruth]:
        """The rows of `Runner.dummy`: request slot 0, so page 0, at the length of the fill rule."""
        per_row = self.spec.tokens_per_row(mode)
        end = fill_value + {Mode.DECODE: 0, Mode.DRAFT_DECODE: 1, Mode.TARGET_VERIFY: per_row}.get(mode, 0)
        if mode is Mode.DRAFT_EXTEND and self.spec.runner.seq_lens == "prefix":
            end += per_row
        pages = (0,) * math.ceil((end + self.spec.steps(mode)) / self.spec.page_size)
        return [
            RowTruth(i, "fill rule", range(i * per_row, (i + 1) * per_row), per_row, pages, end, False, (i,), (i,))
            for i in range(bs)
        ]

    def write(self, feed: Feed, step: int, inputs: Inputs, kv: PagedKV) -> None:
        """Write into `kv` what step `step` must write for the live rows.  `inputs` hold the tokens of the batch."""
        live = slice(0, len(feed.positions))
        slots = torch.tensor(feed.out_cache_loc[step], dtype=torch.int64, device=kv.k.device)
        kv.write(slots, inputs.k[live], None if inputs.v is None else inputs.v[live])

    def expected(self, rows: list[RowTruth], step: int, inputs: Inputs, kv: PagedKV) -> list[Expected]:
        """What step `step` must return for each row, given what the cache holds when the kernel runs."""
        return [self._expected_row(row, step, inputs.q, kv) for row in rows]

    def parents(self, row: int) -> list[int]:
        """The draft tree of a row, different from row to row; token 0 is the root."""
        return [-1, *(random.Random(f"tree/{row}/{t}").randrange(t) for t in range(1, self.spec.num_draft_tokens))]

    def _new_tokens(self, mode: Mode) -> int:
        return max(self.spec.tokens_per_row(mode), self.spec.steps(mode))

    def _query_tokens(self, mode: Mode, row: Row) -> int:
        if mode is Mode.DRAFT_EXTEND and self.spec.runner.rows == "packed":
            return row.accept + 1
        return self.spec.tokens_per_row(mode)

    def _update_layer(self, update: str) -> None:
        factor = {"none": 1.0, "refit": 1.25, "nudge": 1 + 4 * torch.finfo(self.spec.torch_dtype).eps}[update]
        for name, original in self._original.items():
            if name not in ("k_scale", "v_scale") or self.spec.scaled_kv:
                getattr(self.world.layer, name).copy_(original * factor)

    def _fill_pages(self) -> None:
        """All slots dead: other requests' leftovers or poison.  Page 0 is finite, padded rows attend to it."""
        kv, fills = self.world.kv, [value for name, value in FILLS.items() if name in self._perturbations]
        sides = [kv.k] if kv.mla else [kv.k, kv.v]
        for i, side in enumerate(sides):
            side.copy_(_randn(f"dead/{i}", tuple(side.shape), self.spec, self.world.device))
            for j, value in enumerate(fills):
                side[1:][:, j :: len(fills)] = value

    def _page_order(self, round_: Round) -> list[int]:
        pages = list(range(1, self.world.kv.num_pages))
        if round_.layout is not None:
            random.Random(f"pages/{round_.layout}").shuffle(pages)
        turn = 5 * round_.first_page % len(pages)
        return pages[turn:] + pages[:turn]

    def _shared_pages(self, round_: Round, index: int) -> int:
        if not round_.shared or index != 1:
            return 0
        return min(round_.rows[0].prefix, round_.rows[1].prefix) // self.spec.page_size

    def _content(self, round_: Round, index: int, shared: int) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v of every position of a row, in the model's units."""
        q, k, v = _request(self.spec, round_.rows[index].request)
        if shared:
            tokens = shared * self.spec.page_size
            _, k0, v0 = _request(self.spec, round_.rows[0].request)
            k, v = torch.cat([k0[:tokens], k[tokens:]]), torch.cat([v0[:tokens], v[tokens:]])
        return q, k, v

    def _place(self, round_: Round, index: int, pages: tuple[int, ...], shared: int) -> None:
        world, row = self.world, round_.rows[index]
        slots = world.kv.slots(pages, len(pages) * self.spec.page_size)
        _, k, v = self._content(round_, index, shared)
        live = slots[: row.prefix]
        k, v = k[: row.prefix].to(world.device), v[: row.prefix].to(world.device)
        world.kv.write(live, k, None if world.kv.mla else v)
        table = world.req_to_token[row.slot]
        table[: len(slots)] = slots[: len(table)].int()
        table[len(slots) :] = WILD_SLOT if "table_tail" in self._perturbations else 0

    def _row_truth(self, round_: Round, index: int, pages: tuple[int, ...], first_token: int, shared: int) -> RowTruth:
        row, mode = round_.rows[index], round_.mode
        count = self._query_tokens(mode, row)
        content = (row.request, round_.rows[0].request if shared else None, shared)
        tree = index if self.spec.tree else None
        # A sink that moves by an ulp may leave every bit as it was.
        refit_shows = self.spec.family == "mla" or (self.spec.sinks and round_.update == "refit")
        return RowTruth(
            index=index,
            name=f"request {row.request} (slot {row.slot}, {row.prefix} tokens before)",
            tokens=range(first_token, first_token + count),
            compared=row.accept + 1 if mode is Mode.DRAFT_EXTEND else count,
            pages=pages,
            end=row.prefix + count,
            masked=self.spec.tree,
            identity=(mode, content, row.prefix, count, tree, round_.update),
            distinct=(row.request, row.prefix, round_.update if refit_shows else None),
        )

    def _feed(self, round_: Round, rows: list[RowTruth]) -> Feed:
        mode, spec = round_.mode, self.spec
        prefix_only = mode in (Mode.DRAFT_DECODE, Mode.TARGET_VERIFY) or (
            mode is Mode.DRAFT_EXTEND and spec.runner.seq_lens == "prefix"
        )
        steps = range(spec.steps(mode))
        positions = [[row.end - len(row.tokens) + i for row in rows for i in range(len(row.tokens))]]
        positions += [[p + step for p in positions[0]] for step in steps[1:]]
        owner = [row.index for row in rows for _ in row.tokens]
        slots = [self.world.kv.slots(row.pages, len(row.pages) * spec.page_size).tolist() for row in rows]
        masks = [tree_mask(self.parents(row.index), spec.num_draft_tokens) for row in rows if row.masked]
        return Feed(
            mode=mode,
            req_pool_indices=[row.slot for row in round_.rows],
            seq_lens=[r.prefix if prefix_only else t.end for r, t in zip(round_.rows, rows, strict=True)],
            out_cache_loc=[[slots[r][p] for r, p in zip(owner, positions[step], strict=True)] for step in steps],
            positions=positions[0],
            inputs=[self._inputs(round_, rows, owner, positions[step]) for step in steps],
            counts=[i < row.compared for row in rows for i in range(len(row.tokens))],
            accept_length=[row.accept for row in round_.rows] if mode is Mode.DRAFT_EXTEND else None,
            custom_mask=torch.stack(masks) if masks else None,
        )

    def _inputs(self, round_: Round, rows: list[RowTruth], owner: list[int], positions: list[int]) -> Inputs:
        contents = [self._content(round_, row.index, self._shared_pages(round_, row.index)) for row in rows]
        empty = _request(self.spec, 0)
        q, k, v = (
            torch.stack([contents[r][side][p] for r, p in zip(owner, positions, strict=True)])
            if owner
            else empty[side][:0]
            for side in range(3)
        )
        return Inputs(q, k, None if self.spec.family == "mla" else v)

    def _expected_row(self, row: RowTruth, step: int, q: Tensor, kv: PagedKV) -> Expected:
        spec, layer, end = self.spec, self.world.layer, row.end + step
        queries = q[row.tokens.start : row.tokens.stop].cpu()
        slots = kv.slots(row.pages, end)
        page, offset = slots // kv.page_size, slots % kv.page_size
        k, v = kv.k[page, offset].cpu(), kv.v[page, offset].cpu()
        k_scale, v_scale = float(layer.k_scale), float(layer.v_scale)
        options: dict[str, Any] = {
            "window_left": layer.window_left,
            "mask": tree_mask(self.parents(row.index), end) if row.masked else None,
            "sinks": None if layer.sinks is None else layer.sinks.cpu(),
        }
        scaled = {"scale": layer.scaling * k_scale, "out_scale": v_scale, **options}
        if spec.family == "mla":
            oracle, low = _expected_mla(spec, layer, queries, k, k_scale, scaled)
        else:
            oracle = attention(queries, k.double() * k_scale, v.double() * v_scale, scale=layer.scaling, **options).out
            low = low_precision(queries, k, v, **scaled)
        roundings = MLA_ROUNDINGS if spec.family == "mla" else 1
        return Expected(row, oracle[: row.compared], low[: row.compared], roundings)


def chain(inputs: Inputs, previous: Tensor, spec: WorldSpec) -> Inputs:
    """The inputs of the next step of a draft: its keys depend on what attention returned.

    Elementwise, so that it gives the same bits for a token in any batch.
    """
    heads = inputs.k.shape[1]
    first = previous[:, :: previous.shape[1] // heads]
    k = inputs.k.clone()
    k[..., : first.shape[-1]].add_(first, alpha=0.25)
    return Inputs(inputs.q, k, inputs.v)


def _expected_mla(
    spec: WorldSpec, layer: Layer, q: Tensor, k: Tensor, k_scale: float, scaled: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """The oracle from the model's definition, the low-precision control absorbed as kernels do it."""
    assert layer.w_kc is not None
    assert layer.w_vc is not None
    w_kc, w_vc, latent = layer.w_kc.cpu(), layer.w_vc.cpu(), spec.kv_lora_rank
    nope, rope = q.split([spec.qk_nope_head_dim, spec.qk_rope_head_dim], dim=-1)
    cached = k[:, 0].double() * k_scale
    oracle = mla_expanded(nope, rope, cached[:, :latent], cached[:, latent:], w_kc, w_vc, scale=layer.scaling).out
    absorbed = torch.cat([per_token(nope, w_kc), rope], dim=-1)
    return oracle, per_token(low_precision(absorbed, k, k[..., :latent], **scaled), w_vc)


@functools.lru_cache(maxsize=512)
def _request(spec: WorldSpec, request: int) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v of every position of a request, on the host: what the model computes for its tokens."""
    length, cpu = spec.max_context, torch.device("cpu")
    if spec.family == "mla":
        q_width, kv_heads = spec.qk_nope_head_dim + spec.qk_rope_head_dim, 1
        width = spec.kv_lora_rank + spec.qk_rope_head_dim
    else:
        q_width, kv_heads, width = spec.head_dim, spec.num_kv_heads, spec.head_dim
    q = _randn(f"q/{request}", (length, spec.num_q_heads, q_width), spec, cpu)
    k = _randn(f"k/{request}", (length, kv_heads, width), spec, cpu)
    v = _randn(f"v/{request}", (length, kv_heads, width), spec, cpu)
    return q, k, v


def _randn(name: str, shape: tuple[int, ...], spec: WorldSpec, device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(random.Random(name).getrandbits(60))
    return torch.randn(shape, generator=generator).to(device=device, dtype=spec.torch_dtype)
