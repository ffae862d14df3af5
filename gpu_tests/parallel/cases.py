"""Programs that must pass on every rank, and faulty ones of which the suite must name the rank.

A case is data: a world of the contract, how it is split, what is perturbed, and the `Program` that the ranks follow.
A faulty program differs from the right one in one decision, on the last rank alone unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gpu_tests.backends.protocol import Mode, World, WorldSpec
from gpu_tests.backends.runner import Feed
from gpu_tests.contract.scenario import Round, Scenario
from gpu_tests.contract.truth import RowTruth
from gpu_tests.parallel.split import Split

GraphKey = tuple[Mode, int]
Adapt = Callable[[WorldSpec], WorldSpec]


class Program:
    """The decisions that every rank takes for itself; this is the right program."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size
        self.faulty = rank == world_size - 1

    def capture_order(self, keys: list[GraphKey]) -> list[GraphKey]:
        """In which order the graphs are captured; given largest first."""
        return keys

    def heads_of(self) -> int:
        """The rank whose part of q, w_kc and w_vc is loaded."""
        return self.rank

    def projection_of(self) -> int:
        """The rank whose rows of W_O are loaded."""
        return self.rank

    def receive(self, part: World, rows: list[RowTruth]) -> None:
        """What happens to the request table on its way to this rank."""

    def feed(self, feed: Feed) -> Feed:
        """The pass as this rank's scheduler has it."""
        return feed

    def joins(self, live_rows: int) -> bool:
        """Whether the rank replays its graph for this pass."""
        return True

    def reduces(self, step: int) -> bool:
        """Whether the rank takes part in the all-reduce of a step."""
        return True

    def keep_sum(self, reduced: Tensor) -> None:
        """What the rank does to the sum that the all-reduce gave it, in place."""

    def feeds_back(self, partial: Tensor, reduced: Tensor) -> Tensor:
        """What the next step of a draft is made from."""
        return reduced


class StrayPage(Program):
    """The second page of the first request is the first page of the second."""

    def receive(self, part: World, rows: list[RowTruth]) -> None:
        page = part.spec.page_size
        if self.faulty and len(rows) > 1 and len(rows[0].pages) > 1:
            table = part.req_to_token[1]
            table[page : 2 * page] = part.req_to_token[2][:page]


class OtherAccept(Program):
    """One token fewer was accepted of the first request."""

    def feed(self, feed: Feed) -> Feed:
        if not self.faulty or not feed.rows:
            return feed
        return replace(feed, seq_lens=[feed.seq_lens[0] - 1, *feed.seq_lens[1:]])


class MissingRow(Program):
    """The last request has not arrived: a padded row stands in its place."""

    def feed(self, feed: Feed) -> Feed:
        if not self.faulty or feed.rows < 2:
            return feed
        tokens = len(feed.positions) // feed.rows * (feed.rows - 1)
        return replace(
            feed,
            req_pool_indices=feed.req_pool_indices[:-1],
            seq_lens=feed.seq_lens[:-1],
            out_cache_loc=[slots[:tokens] for slots in feed.out_cache_loc],
            positions=feed.positions[:tokens],
            counts=feed.counts[:tokens],
            inputs=[
                replace(x, q=x.q[:tokens], k=x.k[:tokens], v=None if x.v is None else x.v[:tokens]) for x in feed.inputs
            ],
        )


class IdleStaysAway(Program):
    """A rank without requests does not replay its graph."""

    def joins(self, live_rows: int) -> bool:
        return not self.faulty or live_rows > 0


class SkipsAStep(Program):
    """The all-reduce of step 1 is behind a condition that is false on one rank."""

    def reduces(self, step: int) -> bool:
        return not self.faulty or step != 1


class SmallestFirst(Program):
    """The graphs are captured smallest first."""

    def capture_order(self, keys: list[GraphKey]) -> list[GraphKey]:
        return keys[::-1] if self.faulty else keys


class OthersHeads(Program):
    """Query heads and absorbed weights of the neighbour."""

    def heads_of(self) -> int:
        return self.rank - 1 if self.faulty else self.rank


class OthersProjection(Program):
    """Rows of W_O of the neighbour."""

    def projection_of(self) -> int:
        return self.rank - 1 if self.faulty else self.rank


class FeedsBackPartial(Program):
    """The draft goes on from the partial sum, before the all-reduce."""

    def feeds_back(self, partial: Tensor, reduced: Tensor) -> Tensor:
        return partial if self.faulty else reduced


class OtherBits(Program):
    """The sum differs in its last bits, as if the rank added the parts in an order of its own."""

    def keep_sum(self, reduced: Tensor) -> None:
        if self.faulty:
            reduced.mul_(1 + torch.finfo(reduced.dtype).eps)


class NobodyReduces(Program):
    """The all-reduce is missing on every rank: nothing hangs."""

    def reduces(self, step: int) -> bool:
        return False


@dataclass(frozen=True)
class Blame:
    """The finding that a fault must lead to.  Rank -1 is the last; None: not asked.

    alone: no other rank has a finding.
    """

    check: str
    step: int | None = None
    field: str | None = None
    row: int | None = None
    column: int | None = None
    rank: int = -1
    alone: bool = True


@dataclass(frozen=True)
class Case:
    """A program on a world.

    world, perturbations: of `contract.scenario`; idle_ranks: indices of ranks that have no requests in round 1.
    shape: the world's spec for a number of ranks.  source: the public bug that a fault re-creates.
    hangs: a device is stuck afterwards, so on GPUs the case needs processes of its own.
    passes: of each mode; hidden: width of the layer's output.
    """

    name: str
    world: str
    shape: Callable[[WorldSpec, int], WorldSpec]
    split: Split = "heads"
    perturbations: tuple[str, ...] = ()
    idle_ranks: tuple[int, ...] = ()
    hidden: int = 48
    passes: int = 4
    program: type[Program] = Program
    blame: Blame | None = None
    source: str = ""
    hangs: bool = False
    devices: tuple[str, ...] = ("cpu", "cuda")

    def scenario(self, rank: int, world_size: int, adapt: Adapt | None = None) -> Scenario:
        """The same on all ranks if heads are split, another one on each if requests are.

        adapt: changes the world to what a backend can serve.
        """
        names = set(self.perturbations)
        if rank in {i % world_size for i in self.idle_ranks}:
            names.add("idle")
        seed = rank if self.split == "requests" else 0

        def shape(spec: WorldSpec) -> WorldSpec:
            shaped = self.shape(spec, world_size)
            return adapt(shaped) if adapt else shaped

        return Scenario(self.world, frozenset(names), seed, shape)

    def rounds(self, rank: int, world_size: int, adapt: Adapt | None = None) -> list[Round]:
        """The passes of one rank, each on the captured size that the rank with most requests needs."""
        all_ranks = [self.scenario(r, world_size, adapt).rounds(self.passes) for r in range(world_size)]
        return [replace(rounds[rank], bs=max(r.bs for r in rounds)) for rounds in zip(*all_ranks, strict=True)]


def mla_heads(spec: WorldSpec, world_size: int) -> WorldSpec:
    """Three heads a rank: all head counts that are no power of two are served."""
    return replace(spec, num_q_heads=3 * world_size)


def gqa_heads(spec: WorldSpec, world_size: int) -> WorldSpec:
    """Two KV heads a rank, three query heads to each."""
    return replace(spec, num_q_heads=6 * world_size, num_kv_heads=2 * world_size)


def one_kv_head(spec: WorldSpec, world_size: int) -> WorldSpec:
    """Fewer KV heads than ranks: all ranks keep the same one."""
    return replace(spec, num_q_heads=2 * world_size, num_kv_heads=1)


def all_heads(spec: WorldSpec, world_size: int) -> WorldSpec:
    return spec


def heads_of_deepseek(spec: WorldSpec, world_size: int) -> WorldSpec:
    """All 128 heads of DeepSeek-V3."""
    return replace(spec, num_q_heads=128)


def heads_of_llama(spec: WorldSpec, world_size: int) -> WorldSpec:
    """All heads of Llama-3-70B: 64 over 8 KV heads."""
    return replace(spec, num_q_heads=64, num_kv_heads=8)


TRAFFIC = ("ragged_lengths", "shrink_grow", "permuted_pages", "recycled", "table_tail", "dead_nan")

RIGHT: tuple[Case, ...] = (
    Case("mla-target", "mla-target", mla_heads, perturbations=TRAFFIC),
    Case("mla-draft", "mla-draft", mla_heads, perturbations=TRAFFIC),
    Case("mla-extend", "mla-extend", mla_heads, perturbations=(*TRAFFIC, "ragged_accepts")),
    Case("gqa-target", "mha-target", gqa_heads, perturbations=TRAFFIC),
    Case("gqa-draft", "mha-draft", gqa_heads, perturbations=TRAFFIC),
    Case("gqa-one-kv-head", "mha-target", one_kv_head, perturbations=TRAFFIC),
    Case("mla-tiny-lengths", "mla-target", mla_heads, perturbations=("tiny_lengths", "padded", "permuted_pages")),
    Case("gqa-all-idle", "mha-target", gqa_heads, perturbations=(*TRAFFIC, "idle")),
    Case("mla-requests-skewed", "mla-target", all_heads, "requests", TRAFFIC),
    Case("mla-requests-one-rank-idle", "mla-draft", all_heads, "requests", TRAFFIC, idle_ranks=(-1,)),
    Case("deepseek", "mla-deepseek", heads_of_deepseek, perturbations=TRAFFIC, hidden=512, passes=2, devices=("cuda",)),
    Case("llama", "mha-llama", heads_of_llama, perturbations=TRAFFIC, hidden=512, passes=2, devices=("cuda",)),
)

VARIED = ("ragged_lengths", "permuted_pages")

FAULTS: tuple[Case, ...] = (
    Case(
        "stray-page-mla", "mla-target", mla_heads, perturbations=VARIED, passes=2, program=StrayPage,
        blame=Blame("metadata", field="block_kv_indices", row=0, column=1), source="vllm#31307",
    ),
    Case(
        "stray-page-gqa", "mha-target", gqa_heads, perturbations=VARIED, passes=2, program=StrayPage,
        blame=Blame("metadata", field="page_table", row=0, column=1), source="vllm#31307",
    ),
    Case(
        "other-accept", "mla-target", mla_heads, perturbations=VARIED, passes=2, program=OtherAccept,
        blame=Blame("metadata", field="seq_lens_k", row=0), source="vllm#49027",
    ),
    Case(
        "missing-row", "mha-target", gqa_heads, perturbations=VARIED, passes=2, program=MissingRow,
        blame=Blame("metadata", field="cache_seqlens_int32", row=3), source="sglang#2684",
    ),
    Case(
        "others-heads", "mla-target", mla_heads, perturbations=VARIED, passes=2, program=OthersHeads,
        blame=Blame("attention", step=0),
    ),
    Case(
        "others-projection", "mha-target", gqa_heads, perturbations=VARIED, passes=2, program=OthersProjection,
        blame=Blame("partial", step=0),
    ),
    Case(
        "feeds-back-partial", "mla-draft", mla_heads, perturbations=VARIED, passes=2, program=FeedsBackPartial,
        blame=Blame("kv"),
    ),
    Case(
        "nobody-reduces", "mla-target", mla_heads, perturbations=VARIED, passes=2, program=NobodyReduces,
        blame=Blame("output", step=0, alone=False),
    ),
    Case(
        "other-bits", "mla-draft", mla_heads, perturbations=VARIED, passes=2, program=OtherBits,
        blame=Blame("reduced", step=0), source="vllm#49027",
    ),
    Case(
        "smallest-first", "mla-target", mla_heads, program=SmallestFirst,
        blame=Blame("capture_order"), source="pegainfer#498",
    ),
    Case(
        "idle-stays-away", "mla-target", all_heads, "requests", VARIED, idle_ranks=(-1,), passes=2,
        program=IdleStaysAway, blame=Blame("hang", step=0), source="sglang#2684", hangs=True,
    ),
    Case(
        "skips-a-step", "mla-draft", mla_heads, perturbations=VARIED, passes=2, program=SkipsAStep,
        blame=Blame("hang", step=1), source="vllm#49027", hangs=True,
    ),
)  # fmt: skip

CASES: dict[str, Case] = {case.name: case for case in (*RIGHT, *FAULTS)}
