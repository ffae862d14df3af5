"""What one rank of a tensor-parallel attention layer owns, cut from the world of a single rank.

    heads     query head h belongs to rank h // (Hq / W).  GQA: KV heads likewise, and if there are fewer KV heads
              than ranks each is kept by W / Hkv ranks.  MLA: every rank keeps the whole latent cache.
    requests  data-parallel attention: every rank keeps all heads and has requests, pages and lengths of its own.

Either way the output projection follows and one all-reduce a step makes the result known to all ranks: with `heads` a
sum of partial products, with `requests` a gather, each rank adding its rows to a buffer of zeros
(sglang's `dp_gather` does it in this way).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from gpu_tests.backends.protocol import Inputs, World, WorldSpec
from gpu_tests.backends.runner import Feed
from gpu_tests.contract.truth import make_world

Split = Literal["heads", "requests"]


class CannotSplit(ValueError):
    """The heads of a world cannot be shared out among so many ranks."""


@dataclass(frozen=True)
class Share:
    """The part of one rank: its query heads and KV heads of the whole layer."""

    split: Split
    rank: int
    world_size: int
    heads: slice
    kv_heads: slice

    @classmethod
    def of(cls, split: Split, spec: WorldSpec, rank: int, world_size: int) -> Share:
        """Raises CannotSplit."""
        kv_heads = 1 if spec.family == "mla" else spec.num_kv_heads
        if split == "requests":
            return cls(split, rank, world_size, slice(0, spec.num_q_heads), slice(0, kv_heads))
        if spec.num_q_heads % world_size:
            raise CannotSplit(f"{spec.num_q_heads} query heads over {world_size} ranks: not a whole number each")
        if kv_heads % world_size and world_size % kv_heads:
            raise CannotSplit(f"{kv_heads} KV heads over {world_size} ranks: one number must divide the other")
        own, own_kv = spec.num_q_heads // world_size, max(1, kv_heads // world_size)
        first_kv = rank * kv_heads // world_size
        return cls(split, rank, world_size, slice(rank * own, (rank + 1) * own), slice(first_kv, first_kv + own_kv))

    @property
    def segments(self) -> int:
        """Parts of the all-reduced buffer: the sum, or the rows of each rank."""
        return 1 if self.split == "heads" else self.world_size

    @property
    def segment(self) -> int:
        """The part that holds the result for this rank's batch."""
        return 0 if self.split == "heads" else self.rank

    def spec(self, whole: WorldSpec) -> WorldSpec:
        """The world of this rank, as it would be written down."""
        kv_heads = self.kv_heads.stop - self.kv_heads.start
        return replace(whole, num_q_heads=self.heads.stop - self.heads.start, num_kv_heads=kv_heads)

    def world(self, whole: World) -> World:
        """A world in memory of its own, with this rank's part of the weights."""
        part = make_world(self.spec(whole.spec), whole.device)
        layer, source = part.layer, whole.layer
        for name in ("w_kc", "w_vc", "sinks"):
            if (weight := getattr(source, name)) is not None:
                setattr(layer, name, weight[self.heads].clone())
        return part

    def load(self, part: World, whole: World) -> None:
        """Bring cache and request table of the rank to the state of the whole world."""
        part.req_to_token.copy_(whole.req_to_token)
        part.kv.k.copy_(whole.kv.k[:, :, self.kv_heads])
        if not part.kv.mla:
            part.kv.v.copy_(whole.kv.v[:, :, self.kv_heads])

    def inputs(self, whole: Inputs) -> Inputs:
        """The rank's heads of the layer's inputs."""
        v = None if whole.v is None else whole.v[:, self.kv_heads]
        return Inputs(whole.q[:, self.heads], whole.k[:, self.kv_heads], v)

    def feed(self, whole: Feed) -> Feed:
        """The same pass as this rank is fed."""
        return replace(whole, inputs=[self.inputs(x) for x in whole.inputs])


def output_projection(spec: WorldSpec, hidden: int, device: torch.device) -> Tensor:
    """W_O [Hq, Dv, hidden] of the whole layer: the same on every machine, outputs of unit scale."""
    width = spec.v_head_dim if spec.family == "mla" else spec.head_dim
    weight = torch.randn(spec.num_q_heads, width, hidden, generator=torch.Generator().manual_seed(hidden))
    return (weight * (spec.num_q_heads * width) ** -0.5).to(device=device, dtype=spec.torch_dtype)


def project(attention: Tensor, weight: Tensor) -> Tensor:
    """attention [T, H, Dv] times weight [H, Dv, hidden], summed over these heads: [T, hidden]."""
    return attention.flatten(1) @ weight.flatten(0, 1)


def next_inputs(inputs: Inputs, hidden: Tensor) -> Inputs:
    """The inputs of the next step of a draft: its keys depend on the layer's output [T, hidden].

    Every rank must derive the same keys, so `hidden` is what came out of the all-reduce.
    """
    k = inputs.k.clone()
    width = min(k.shape[-1], hidden.shape[-1])
    k[..., :width].add_(hidden[:, None, :width], alpha=0.25)
    return Inputs(inputs.q, k, inputs.v)
