"""Correct code written otherwise.  The contract must not flag it: it demands results, not an implementation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gpu_tests.backends.mha import MhaBackend, MhaMetadata
from gpu_tests.backends.mla import MlaBackend, MlaMetadata
from gpu_tests.backends.paged import page_rows
from gpu_tests.backends.protocol import Batch, Inputs, Mode, World
from gpu_tests.faults.catalogue import equivalent
from gpu_tests.faults.patching import pad_queries
from gpu_tests.faults.staged_kernel import StagedKernel


@equivalent("mha-other-kernel", "another kernel: split KV, op by op instead of one node", "mha-window")
class OtherMhaKernel(StagedKernel):
    splits = 4


@equivalent("mla-other-kernel", "another kernel: split KV, op by op instead of one node", "mla-extend-packed")
class OtherMlaKernel(StagedKernel):
    splits = 2


@equivalent("mha-metadata-in-graph", "metadata is rebuilt inside the graph; replay_prepare only rebinds it", "mha-safe")
class MetadataInGraph(MhaBackend):
    def use(self, metadata: list[MhaMetadata], batch: Batch) -> None:
        self.current = metadata

    def in_graph(self, batch: Batch) -> None:
        super().use(self.current, batch)


@equivalent(
    "mha-table-as-far-as-needed", "only the pages that this batch reaches are copied; the tail stays", "mha-target"
)
class TableAsFarAsNeeded(MhaBackend):
    def fill_table(self, metadata: MhaMetadata, batch: Batch, step: int) -> None:
        assert batch.seq_lens_cpu is not None
        longest = int(batch.seq_lens_cpu.max()) + self.spec.tokens_per_row(batch.forward_mode)
        width = min(-(-longest // self.spec.page_size), self.spec.max_pages)
        metadata.page_table[:, :width].copy_(page_rows(self.world, batch)[:, :width])


@equivalent("mla-buffers-of-its-own", "each captured size has buffers of its own", "mla-target")
class BuffersOfItsOwn(MlaBackend):
    def bind(self, buffers: dict[str, Tensor], mode: Mode, bs: int) -> MlaMetadata:
        return super().bind(self.allocate(), mode, bs)


@equivalent(
    "mla-padded-and-shifted", "packed queries are padded to the uniform stride, lengths shifted", "mla-extend-packed"
)
class PaddedAndShifted(MlaBackend):
    def attend(self, query: Tensor, metadata: MlaMetadata, batch: Batch) -> Tensor:
        n, layer, spec = metadata.max_seq_len_q, self.world.layer, self.spec
        padded, at = pad_queries(query, metadata.cu_seqlens_q, n, "end")
        out = self.world.kernels.decode_mla(
            padded.unflatten(0, (batch.batch_size, n)), self.world.kv.kv_cache(), self.workspace,
            spec.qk_nope_head_dim, spec.kv_lora_rank, spec.qk_rope_head_dim, metadata.block_kv_indices,
            metadata.seq_lens_k, metadata.max_seq_len_k, bmm1_scale=layer.k_scale * layer.scaling,
        )  # fmt: skip
        return out.flatten(0, 1)[at]


@equivalent("mha-static-output", "all steps return one static buffer", "mha-draft")
class StaticOutput(MhaBackend):
    def __init__(self, world: World) -> None:
        super().__init__(world)
        spec = world.spec
        tokens = spec.max_bs * max(spec.tokens_per_row(mode) for mode in spec.modes)
        options: dict[str, Any] = {"dtype": spec.torch_dtype, "device": world.device}
        self.out = torch.zeros(tokens, spec.num_q_heads, spec.head_dim, **options)

    def forward(self, step: int, inputs: Inputs, batch: Batch) -> Tensor:
        return self.out[: len(inputs.q)].copy_(super().forward(step, inputs, batch))


@equivalent("mla-longer-fill", "padded rows have length 2", "mla-safe")
class LongerFill(MlaBackend):
    def fill_value(self) -> int:
        return 2


@equivalent("mha-offsets-once", "uniform offsets are written when a size is bound, not at every replay", "mha-extend")
class OffsetsOnce(MhaBackend):
    def replay_prepare(self, batch: Batch) -> None:
        metadata = self.captured[batch.forward_mode, batch.batch_size]
        kept = [of_step.cu_seqlens_q for of_step in metadata]
        for of_step in metadata:
            of_step.cu_seqlens_q = of_step.cu_seqlens_q.clone()
        super().replay_prepare(batch)
        for of_step, offsets in zip(metadata, kept, strict=True):
            of_step.cu_seqlens_q = offsets
