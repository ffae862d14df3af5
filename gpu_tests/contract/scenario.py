"""What is run, as data: worlds with names, perturbations with names, and the rounds that they make.

A `Scenario` is written `WORLD[+perturbation...]#SEED`, for instance `mla-extend+padded+ragged_accepts#7` or
`mha-target+everything#0`, and is a function of that text: the same rounds on every machine.  Each perturbation draws
from its own random stream, so that leaving one out changes nothing else; that is what makes shrinking work.
"""

from __future__ import annotations

import difflib
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

from gpu_tests.backends.protocol import Mode, RunnerSpec, WorldSpec

TARGET = (Mode.DECODE, Mode.TARGET_VERIFY)
DRAFT = (Mode.DRAFT_DECODE,)
EXTEND = (Mode.DRAFT_EXTEND,)

PACKED = RunnerSpec(rows="packed", host_lists="none", index_dtype="int32")
PREFIX = RunnerSpec(seq_lens="prefix", index_dtype="int32", stale_pool_indices=False)

WORLDS: dict[str, WorldSpec] = {
    "mla-target": WorldSpec("mla", TARGET),
    "mla-draft": WorldSpec("mla", DRAFT),
    "mla-extend": WorldSpec("mla", EXTEND),
    "mla-extend-no-host": WorldSpec("mla", EXTEND, RunnerSpec(host_lists="none")),
    "mla-extend-prefix": WorldSpec("mla", EXTEND, PREFIX, num_draft_tokens=6),
    "mla-extend-packed": WorldSpec("mla", EXTEND, PACKED),
    "mla-scaled": WorldSpec("mla", TARGET, scaled_kv=True),
    "mla-safe": WorldSpec("mla", (*TARGET, *DRAFT, *EXTEND), empty_rows="safe"),
    "mla-bf16": WorldSpec("mla", TARGET, dtype="bfloat16"),
    "mla-fp8": WorldSpec("mla", TARGET, dtype="bfloat16", kv_dtype="float8_e4m3fn", scaled_kv=True),
    "mla-long": WorldSpec("mla", (*TARGET, *EXTEND), max_context=4096, page_size=64),
    "mla-deepseek": WorldSpec(
        "mla",
        (*TARGET, *EXTEND),
        dtype="bfloat16",
        num_q_heads=16,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        page_size=64,
        max_context=256,
    ),
    "mla-deepseek-128": WorldSpec(
        "mla",
        TARGET,
        capture_sizes=(1, 2),
        num_draft_tokens=2,
        dtype="bfloat16",
        num_q_heads=128,
        kv_lora_rank=512,
        qk_nope_head_dim=32,
        qk_rope_head_dim=64,
        v_head_dim=32,
        page_size=64,
        max_context=192,
    ),
    "mha-target": WorldSpec("mha", TARGET),
    "mha-draft": WorldSpec("mha", DRAFT),
    "mha-extend": WorldSpec("mha", EXTEND),
    "mha-extend-prefix": WorldSpec("mha", EXTEND, PREFIX, num_draft_tokens=6),
    "mha-extend-packed": WorldSpec("mha", EXTEND, PACKED),
    "mha-window": WorldSpec("mha", TARGET, window_left=17, sinks=True),
    "mha-tree": WorldSpec("mha", (Mode.TARGET_VERIFY,), tree=True, num_draft_tokens=6, num_steps=3),
    "mha-scaled": WorldSpec("mha", TARGET, scaled_kv=True, kv_storage="token", kv_layout="HND"),
    "mha-safe": WorldSpec("mha", (*TARGET, *DRAFT, *EXTEND), empty_rows="safe"),
    "mha-bf16": WorldSpec("mha", TARGET, dtype="bfloat16", kv_storage="page", num_q_heads=6, num_kv_heads=2),
    "mha-fp8": WorldSpec("mha", TARGET, dtype="bfloat16", kv_dtype="float8_e4m3fn", scaled_kv=True, page_size=32),
    "mha-long": WorldSpec("mha", (*TARGET, *DRAFT), max_context=4096, page_size=64),
    "mha-llama": WorldSpec(
        "mha",
        (*TARGET, *DRAFT),
        dtype="bfloat16",
        num_q_heads=16,
        num_kv_heads=2,
        head_dim=128,
        page_size=32,
        max_context=256,
    ),
}

PERTURBATIONS: dict[str, str] = {
    "ragged_lengths": "lengths differ between rows and between rounds, growing and shrinking",
    "page_edges": "lengths end one before, at and one after a page boundary",
    "tiny_lengths": "requests with no or one token before the pass",
    "full_context": "a request that ends at max_context",
    "capture_long": "captured with real requests near max_context instead of the fill rule",
    "padded": "one live row fewer than captured",
    "shrink_grow": "the number of live rows, and with it the graph, changes from round to round, in any order",
    "idle": "a round without live rows on the largest graph",
    "ragged_accepts": "accepted draft tokens differ between rows, a short row before a long one",
    "permuted_pages": "pages of a request out of order",
    "shared_pages": "two requests share the pages of a common prefix",
    "recycled": "requests move to other request slots and other pages between rounds",
    "table_tail": "req_to_token past a request's last page points outside the pool",
    "dead_nan": "KV slots without a live token hold NaN",
    "dead_inf": "KV slots without a live token hold Inf",
    "dead_huge": "KV slots without a live token hold huge finite numbers",
    "pad_nan": "inputs of padded tokens are NaN",
    "twins": "the same request twice in a batch",
    "refit": "weights, scales and sinks are updated in place between rounds",
    "nudge": "as refit, by a few units in the last place",
    "no_warmup": "captured without a warm-up run",
    "host_reuse": "host tensors of the batch are overwritten once replay_prepare has returned, before the replay runs",
    "dirty_workspace": "other users of the shared workspace leave their data in it",
}

EVERYTHING = "everything"
"""Stands for all perturbations at once in a scenario's text."""


@dataclass(frozen=True)
class Row:
    """One live row: a request (the seed of its content) in a request slot, with `prefix` tokens in the cache."""

    request: int
    slot: int
    prefix: int
    accept: int


@dataclass(frozen=True)
class Round:
    """One forward pass.  `bs` is the captured size it runs on; `layout` seeds the page order, None is in order."""

    mode: Mode
    bs: int
    rows: tuple[Row, ...]
    layout: int | None = None
    first_page: int = 0
    shared: bool = False
    update: Literal["none", "refit", "nudge"] = "none"


@dataclass(frozen=True)
class Scenario:
    """A world, what is perturbed, and a seed.  `adapt` changes the world's spec to what a backend can serve."""

    world: str
    perturbations: frozenset[str] = frozenset()
    seed: int = 0
    adapt: Callable[[WorldSpec], WorldSpec] | None = None

    def __post_init__(self) -> None:
        if self.world not in WORLDS:
            raise ValueError(f"no world {self.world!r}: {_allowed(self.world, WORLDS)}")
        if unknown := self.perturbations - PERTURBATIONS.keys():
            name = min(unknown)
            raise ValueError(f"no perturbation {name!r}: {_allowed(name, [*PERTURBATIONS, EVERYTHING])}")

    def __str__(self) -> str:
        names = [name for name in PERTURBATIONS if name in self.perturbations]
        names = [EVERYTHING] if len(names) == len(PERTURBATIONS) else names
        return f"{'+'.join([self.world, *names])}#{self.seed}"

    @classmethod
    def parse(cls, text: str) -> Scenario:
        """The inverse of `str`.  Raises ValueError that says what is allowed."""
        match = re.fullmatch(r"([\w-]+)((?:\+\w+)*)(?:#(\d+))?", text)
        if match is None:
            raise ValueError(f"{text!r} is not WORLD[+perturbation...][#SEED]")
        world, names, seed = match.groups()
        given = set(names.split("+")[1:])
        perturbations = frozenset(given - {EVERYTHING} | (PERTURBATIONS.keys() if EVERYTHING in given else set()))
        return cls(world, perturbations, int(seed or 0))

    @property
    def spec(self) -> WorldSpec:
        spec = WORLDS[self.world]
        return spec if self.adapt is None else self.adapt(spec)

    def has(self, name: str) -> bool:
        return name in self.perturbations

    def stream(self, name: str) -> random.Random:
        """The random stream of one perturbation."""
        return random.Random(f"{self.world}/{name}/{self.seed}")

    def rounds(self, passes: int = 4) -> list[Round]:
        """`passes` rounds of each mode."""
        return [self._round(index, mode) for index in range(passes) for mode in self.spec.modes]

    def capture_round(self, mode: Mode, bs: int) -> Round | None:
        """What the size is captured with; None for the fill rule."""
        if not self.has("capture_long"):
            return None
        longest = _longest_prefix(self.spec, mode)
        rows = tuple(Row(500 + i, i + 1, longest - i, self.spec.num_draft_tokens - 1) for i in range(bs))
        return Round(mode, bs, rows)

    def _round(self, index: int, mode: Mode) -> Round:
        live, bs = self._sizes(index)
        prefixes, accepts = self._prefixes(index, mode, live), self._accepts(index, live)
        slots = list(range(1, live + 1))
        recycled = self.has("recycled")
        if recycled:
            slots = random.Random(f"{self.seed}/slots/{index}").sample(range(1, self.spec.max_bs + 1), live)
        rows = [
            Row(1000 * index + i, slot, prefix, accept)
            for i, (slot, prefix, accept) in enumerate(zip(slots, prefixes, accepts, strict=True))
        ]
        if live >= 3:
            # The same request in every round of a mode: its bits may not depend on its neighbours.
            middle = live // 2
            rows[middle] = Row(99, slots[middle], 21, 1 if self.has("ragged_accepts") else accepts[middle])
        if self.has("twins") and live >= 2:
            rows[-1] = replace(rows[0], slot=rows[-1].slot)
        updated = index >= 2
        return Round(
            mode,
            bs,
            tuple(rows),
            layout=self.seed + (index if recycled else 0) if self.has("permuted_pages") or recycled else None,
            first_page=index if recycled else 0,
            shared=self.has("shared_pages"),
            update="refit" if updated and self.has("refit") else "nudge" if updated and self.has("nudge") else "none",
        )

    def _sizes(self, index: int) -> tuple[int, int]:
        """Live rows of round `index` and the captured size that it runs on."""
        largest = self.spec.max_bs
        if self.has("idle") and index == 1:
            return 0, largest
        live = largest
        if self.has("shrink_grow"):
            first = self.stream("shrink_grow").randrange(4)
            live = [largest, 1, largest - 1, 2][(index + first) % 4]
        if self.has("padded"):
            live = max(1, live - 1)
            return live, min(size for size in self.spec.capture_sizes if size > live)
        return live, min(size for size in self.spec.capture_sizes if size >= live)

    def _prefixes(self, index: int, mode: Mode, live: int) -> list[int]:
        longest = _longest_prefix(self.spec, mode)
        page, new = self.spec.page_size, self.spec.tokens_per_row(mode)
        prefixes = [20] * live
        edits: list[tuple[str, Callable[[random.Random, int], int]]] = [
            ("ragged_lengths", lambda rng, i: rng.randrange(2, longest)),
            ("page_edges", lambda rng, i: page * rng.randrange(1, 3) + rng.choice([-1, 0, 1]) - new),
            ("tiny_lengths", lambda rng, i: rng.choice([0, 1])),
            ("full_context", lambda rng, i: longest),
        ]
        active = [(name, edit) for name, edit in edits if self.has(name)]
        for i in range(live):
            # Rows take turns, so that perturbations of lengths do not undo each other.
            if active:
                name, edit = active[(i + index) % len(active)]
                prefixes[i] = max(0, edit(random.Random(f"{self.seed}/{name}/{index}/{i}"), i))
        return prefixes

    def _accepts(self, index: int, live: int) -> list[int]:
        n = self.spec.num_draft_tokens
        if not self.has("ragged_accepts"):
            return [n - 1] * live
        # [1, N, 2], [2, 1, N]: equal accepts and a last short row hide packing (sglang#19807, sglang#21987).
        pattern = [0, n - 1, 1, min(2, n - 1)]
        shift = self.stream("ragged_accepts").randrange(4) + index
        return [pattern[(i + shift) % len(pattern)] for i in range(live)]


def _allowed(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    return f"{f'did you mean {near[0]!r}? ' if near else ''}it is one of {', '.join(names)}"


def _longest_prefix(spec: WorldSpec, mode: Mode) -> int:
    return spec.max_context - max(spec.tokens_per_row(mode), spec.steps(mode))


def random_scenario(family: str, seed: int) -> Scenario:
    """A world of the family and a subset of the perturbations, drawn by `seed`."""
    rng = random.Random(f"random/{family}/{seed}")
    world = rng.choice([name for name, spec in WORLDS.items() if spec.family == family])
    count = rng.randrange(2, len(PERTURBATIONS))
    return Scenario(world, frozenset(rng.sample(list(PERTURBATIONS), count)), seed)
