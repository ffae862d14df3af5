"""Paged MLA under capture and replay: SGLang's trtllm_mla, in the buffers, field names and calls that it has.

The cache holds one latent and one rope part a token; queries are absorbed (q_nope times w_kc) before the kernel and
its output is expanded (times w_vc) after it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

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


@dataclass
class MlaMetadata:
    """block_kv_indices [R, blocks] (-1 past the table), seq_lens_k, seq_lens_q [R], cu_seqlens_q [R + 1]; int32."""

    block_kv_indices: Tensor
    seq_lens_k: Tensor
    seq_lens_q: Tensor
    cu_seqlens_q: Tensor
    max_seq_len_k: int
    max_seq_len_q: int


class MlaBackend(PagedBackend[MlaMetadata]):
    """MLA decode, draft decode, target verify and draft extend (uniform or packed rows)."""

    def __init__(self, world: World) -> None:
        if world.spec.family != "mla":
            raise NotSupported("MlaBackend serves MLA")
        super().__init__(world)
        assert world.layer.w_kc is not None
        assert world.layer.w_vc is not None
        self.w_kc, self.w_vc = world.layer.w_kc.clone(), world.layer.w_vc.clone()

    def weights_updated(self) -> None:
        """In place: the graph keeps the address (sglang#4961)."""
        assert self.world.layer.w_kc is not None
        assert self.world.layer.w_vc is not None
        self.w_kc.copy_(self.world.layer.w_kc)
        self.w_vc.copy_(self.world.layer.w_vc)

    def allocate(self) -> dict[str, Tensor]:
        rows, device = self.spec.max_bs, self.world.device
        # The kernel wants whole blocks of 128 tokens in a table row.
        per_block = max(1, 128 // self.spec.page_size)
        blocks = math.ceil(self.spec.max_pages / per_block) * per_block
        return {
            "block_kv_indices": torch.full((rows, blocks), -1, dtype=torch.int32, device=device),
            "seq_lens_k": torch.zeros(rows, dtype=torch.int32, device=device),
            "seq_lens_q": torch.zeros(rows, dtype=torch.int32, device=device),
            "cu_seqlens_q": torch.zeros(rows + 1, dtype=torch.int32, device=device),
        }

    def bind(self, buffers: dict[str, Tensor], mode: Mode, bs: int) -> MlaMetadata:
        return MlaMetadata(
            block_kv_indices=buffers["block_kv_indices"][:bs],
            seq_lens_k=buffers["seq_lens_k"][:bs],
            seq_lens_q=buffers["seq_lens_q"][:bs],
            cu_seqlens_q=buffers["cu_seqlens_q"][: bs + 1],
            max_seq_len_k=self.spec.max_context,
            max_seq_len_q=self.spec.tokens_per_row(mode),
        )

    def fill_lengths(self, metadata: MlaMetadata, batch: Batch, step: int) -> None:
        metadata.seq_lens_k.copy_(kv_lens(self.spec, batch, step))
        metadata.seq_lens_q.copy_(query_lens(self.spec, batch))

    def fill_offsets(self, metadata: MlaMetadata, batch: Batch, step: int) -> None:
        write_offsets(metadata.cu_seqlens_q, metadata.seq_lens_q)

    def fill_table(self, metadata: MlaMetadata, batch: Batch, step: int) -> None:
        metadata.block_kv_indices[:, : self.spec.max_pages].copy_(page_rows(self.world, batch))

    def forward(self, step: int, inputs: Inputs, batch: Batch) -> Tensor:
        self.world.kv.write(batch.out_cache_loc[step], inputs.k)
        return self.expand(self.attend(self.absorb(inputs.q), self.current[step], batch))

    def absorb(self, q: Tensor) -> Tensor:
        """q [T, H, nope + rope] -> [T, H, latent + rope]."""
        nope, rope = q.split([self.spec.qk_nope_head_dim, self.spec.qk_rope_head_dim], dim=-1)
        return torch.cat([per_token(nope, self.w_kc), rope], dim=-1)

    def expand(self, latent_out: Tensor) -> Tensor:
        """[T, H, latent] -> [T, H, v_head_dim]."""
        return per_token(latent_out, self.w_vc)

    def attend(self, query: Tensor, metadata: MlaMetadata, batch: Batch) -> Tensor:
        """The kernel call: query [T, H, latent + rope] -> [T, H, latent]."""
        spec, layer = self.spec, self.world.layer
        ragged = is_ragged(spec, batch.forward_mode)
        out = self.world.kernels.decode_mla(
            query if ragged else query.unflatten(0, (batch.batch_size, -1)),
            self.world.kv.kv_cache(),
            self.workspace,
            spec.qk_nope_head_dim,
            spec.kv_lora_rank,
            spec.qk_rope_head_dim,
            metadata.block_kv_indices,
            metadata.seq_lens_k,
            metadata.max_seq_len_k,
            bmm1_scale=layer.k_scale * layer.scaling,
            bmm2_scale=layer.k_scale,
            cum_seq_lens_q=metadata.cu_seqlens_q if ragged else None,
            max_q_len=metadata.max_seq_len_q if ragged else None,
        )
        return out if ragged else out.flatten(0, 1)


def per_token(x: Tensor, weight: Tensor) -> Tensor:
    """x [T, H, n] times weight [H, n, m] as one product a token.

    A library picks its algorithm by the shape of the whole product: like this no token's bits depend on the others.
    """
    return torch.stack([torch.bmm(token[:, None], weight)[:, 0] for token in x])
