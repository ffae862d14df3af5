"""What the MLA and MHA backends share: the life of captured metadata, and the layout formulas of each mode.

Metadata of a captured size is bound once, as prefix slices of buffers that all sizes share, and filled by the same
code at capture, at replay and eagerly.  That is the whole secret of agreement: sglang#21987 and sglang#26521 are two
ways of not doing it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from gpu_tests.backends.protocol import Batch, Inputs, Mode, World, WorldSpec

WORKSPACE_BYTES = 32 << 20

MetadataT = TypeVar("MetadataT")


class PagedBackend(ABC, Generic[MetadataT]):
    """Metadata life cycle.  A subclass says what the buffers are, how a size is bound to them, how they are filled."""

    def __init__(self, world: World) -> None:
        self.world, self.spec = world, world.spec
        steps = max(world.spec.steps(mode) for mode in world.spec.modes)
        self.buffers = [self.allocate() for _ in range(steps)]
        self.captured: dict[tuple[Mode, int], list[MetadataT]] = {}
        self.current: list[MetadataT] = []
        self.workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=world.device)

    @abstractmethod
    def allocate(self) -> dict[str, Tensor]:
        """Static buffers of one step for `max_bs` rows."""

    @abstractmethod
    def bind(self, buffers: dict[str, Tensor], mode: Mode, bs: int) -> MetadataT:
        """The metadata of one size as prefix slices of `buffers`."""

    @abstractmethod
    def fill_lengths(self, metadata: MetadataT, batch: Batch, step: int) -> None:
        """Write the lengths of this batch into `metadata`, in place."""

    @abstractmethod
    def fill_offsets(self, metadata: MetadataT, batch: Batch, step: int) -> None:
        """Write the offsets; lengths are filled."""

    @abstractmethod
    def fill_table(self, metadata: MetadataT, batch: Batch, step: int) -> None:
        """Write the page table."""

    def fill_mask(self, metadata: MetadataT, batch: Batch, step: int) -> None:
        """Write the draft mask, if there is one."""

    @abstractmethod
    def forward(self, step: int, inputs: Inputs, batch: Batch) -> Tensor:
        """The attention of one step, over the current metadata."""

    def capture_prepare(self, batch: Batch) -> None:
        self.captured[batch.forward_mode, batch.batch_size] = self._bind_steps(self.buffers, batch)
        self.use(self.captured[batch.forward_mode, batch.batch_size], batch)

    def replay_prepare(self, batch: Batch) -> None:
        self.use(self.captured[batch.forward_mode, batch.batch_size], batch)

    def eager_prepare(self, batch: Batch) -> None:
        self.use(self._bind_steps([self.allocate() for _ in self.buffers], batch), batch)

    def use(self, metadata: list[MetadataT], batch: Batch) -> None:
        """Make `metadata` current and fill it."""
        self.current = metadata
        for step, of_step in enumerate(metadata):
            self.fill_lengths(of_step, batch, step)
            self.fill_offsets(of_step, batch, step)
            self.fill_table(of_step, batch, step)
            self.fill_mask(of_step, batch, step)

    def in_graph(self, batch: Batch) -> None:
        """Nothing: all metadata is prepared outside the graph."""

    def weights_updated(self) -> None:
        """Nothing is derived from the layer's tensors."""

    def fill_value(self) -> int:
        return 1

    def metadata_objects(self) -> list[Any]:
        return list(self.current)

    def _bind_steps(self, buffers: list[dict[str, Tensor]], batch: Batch) -> list[MetadataT]:
        steps = self.spec.steps(batch.forward_mode)
        return [self.bind(of_step, batch.forward_mode, batch.batch_size) for of_step in buffers[:steps]]


def query_lens(spec: WorldSpec, batch: Batch) -> Tensor:
    """Query tokens of each row: [R]."""
    if batch.forward_mode is Mode.DRAFT_EXTEND and spec.runner.rows == "packed":
        assert batch.spec_info is not None
        assert batch.spec_info.accept_length is not None
        return batch.spec_info.accept_length + 1
    return torch.full_like(batch.seq_lens, spec.tokens_per_row(batch.forward_mode))


def kv_lens(spec: WorldSpec, batch: Batch, step: int) -> Tensor:
    """Keys of each row, the tokens of the query included: [R]."""
    if batch.forward_mode is Mode.DRAFT_DECODE:
        return batch.seq_lens + (step + 1)
    if batch.forward_mode is Mode.TARGET_VERIFY:
        return batch.seq_lens + spec.num_draft_tokens
    if batch.forward_mode is Mode.DRAFT_EXTEND and spec.runner.seq_lens == "prefix":
        return batch.seq_lens + query_lens(spec, batch)
    return batch.seq_lens


def page_rows(world: World, batch: Batch) -> Tensor:
    """The page ids of each row: int32 [R, max_pages].  Entries past a row's last page hold anything."""
    firsts = world.req_to_token[batch.req_pool_indices][:, :: world.spec.page_size]
    return firsts // world.spec.page_size


def write_offsets(cu_seqlens: Tensor, lens: Tensor) -> None:
    """cu_seqlens [R + 1] = running sum of `lens` [R], in place.  Element 0 is 0 since allocation."""
    cu_seqlens[1:].copy_(torch.cumsum(lens, dim=0))


def is_ragged(spec: WorldSpec, mode: Mode) -> bool:
    """Whether the rows of a batch have different numbers of query tokens."""
    return mode is Mode.DRAFT_EXTEND and spec.runner.rows == "packed"
