"""Paged MHA/GQA under capture and replay: SGLang's trtllm_mha, in the buffers, field names and calls that it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gpu_tests.backends.paged import (
    PagedBackend,
    is_ragged,
    kv_lens,
    page_rows,
    query_lens,
    write_offsets,
)
from gpu_tests.backends.protocol import Batch, Inputs, Mode, NotSupported, World
from gpu_tests.reference.decode import pack_mask


@dataclass
class MhaMetadata:
    """cache_seqlens_int32 [R], page_table int32 [R, pages], cu_seqlens_q, cu_seqlens_k int32 [R + 1], draft mask bits.

    `cu_seqlens_k` is there for prefill kernels: decode kernels do not read it.
    """

    cache_seqlens_int32: Tensor
    page_table: Tensor
    cu_seqlens_q: Tensor
    cu_seqlens_k: Tensor
    custom_mask: Tensor | None
    max_seq_len_k: int
    max_seq_len_q: int


class MhaBackend(PagedBackend[MhaMetadata]):
    """MHA decode, draft decode, target verify (chain or tree) and draft extend (uniform or packed rows)."""

    def __init__(self, world: World) -> None:
        if world.spec.family != "mha":
            raise NotSupported("MhaBackend serves MHA, GQA and MQA")
        super().__init__(world)

    def allocate(self) -> dict[str, Tensor]:
        rows, device = self.spec.max_bs, self.world.device
        ints: dict[str, Any] = {"dtype": torch.int32, "device": device}
        n = self.spec.num_draft_tokens
        return {
            "cache_seqlens": torch.zeros(rows, **ints),
            "page_table": torch.zeros(rows, self.spec.max_pages, **ints),
            "cu_seqlens_q": torch.zeros(rows + 1, **ints),
            "cu_seqlens_k": torch.zeros(rows + 1, **ints),
            "custom_mask": pack_mask(torch.zeros(rows, n, n, dtype=torch.bool, device=device)),
        }

    def bind(self, buffers: dict[str, Tensor], mode: Mode, bs: int) -> MhaMetadata:
        masked = self.spec.tree and mode is Mode.TARGET_VERIFY
        return MhaMetadata(
            cache_seqlens_int32=buffers["cache_seqlens"][:bs],
            page_table=buffers["page_table"][:bs],
            cu_seqlens_q=buffers["cu_seqlens_q"][: bs + 1],
            cu_seqlens_k=buffers["cu_seqlens_k"][: bs + 1],
            custom_mask=buffers["custom_mask"][:bs] if masked else None,
            max_seq_len_k=self.spec.max_context,
            max_seq_len_q=self.spec.tokens_per_row(mode),
        )

    def fill_lengths(self, metadata: MhaMetadata, batch: Batch, step: int) -> None:
        metadata.cache_seqlens_int32.copy_(kv_lens(self.spec, batch, step))

    def fill_offsets(self, metadata: MhaMetadata, batch: Batch, step: int) -> None:
        write_offsets(metadata.cu_seqlens_q, query_lens(self.spec, batch))
        write_offsets(metadata.cu_seqlens_k, metadata.cache_seqlens_int32)

    def fill_table(self, metadata: MhaMetadata, batch: Batch, step: int) -> None:
        metadata.page_table.copy_(page_rows(self.world, batch))

    def fill_mask(self, metadata: MhaMetadata, batch: Batch, step: int) -> None:
        if metadata.custom_mask is not None:
            assert batch.spec_info is not None
            assert batch.spec_info.custom_mask is not None
            metadata.custom_mask.copy_(pack_mask(batch.spec_info.custom_mask))

    def forward(self, step: int, inputs: Inputs, batch: Batch) -> Tensor:
        self.world.kv.write(batch.out_cache_loc[step], inputs.k, inputs.v)
        return self.attend(inputs.q, self.current[step], batch)

    def attend(self, query: Tensor, metadata: MhaMetadata, batch: Batch) -> Tensor:
        """The kernel call: query [T, Hq, D] -> [T, Hq, D]."""
        layer = self.world.layer
        ragged = is_ragged(self.spec, batch.forward_mode)
        return self.world.kernels.decode(
            query,
            self.world.kv.kv_cache(),
            self.workspace,
            metadata.page_table,
            metadata.cache_seqlens_int32,
            metadata.max_seq_len_k,
            layer.k_scale * layer.scaling,
            layer.v_scale,
            layer.window_left,
            sinks=layer.sinks,
            kv_layout=self.world.kv.layout,
            q_len_per_req=None if ragged else metadata.max_seq_len_q,
            mask=metadata.custom_mask,
            cum_seq_lens_q=metadata.cu_seqlens_q if ragged else None,
            max_q_len=metadata.max_seq_len_q if ragged else None,
        )
