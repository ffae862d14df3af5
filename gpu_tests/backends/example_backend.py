"""A backend of your own, as small as one can be: docs/backends.md walks through it."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor

from gpu_tests.backends.protocol import Batch, Inputs, Mode, NotSupported, World


class MyBackend:
    """MHA with one key length a row and a page table, in buffers that all captured sizes share."""

    def __init__(self, world: World) -> None:
        spec = world.spec
        if spec.family != "mha" or spec.modes != (Mode.DECODE, Mode.TARGET_VERIFY) or spec.tree:
            raise NotSupported("decode and chain verify of MHA only")
        self.world, self.spec = world, spec
        self.lengths = torch.zeros(spec.max_bs, dtype=torch.int32, device=world.device)
        self.pages = torch.zeros(spec.max_bs, spec.max_pages, dtype=torch.int32, device=world.device)
        self.workspace = torch.zeros(8 << 20, dtype=torch.uint8, device=world.device)

    def prepare(self, batch: Batch) -> None:
        """Fill the buffers: at capture, at replay and without a graph alike."""
        rows, page_size = batch.batch_size, self.spec.page_size
        self.metadata = SimpleNamespace(lengths=self.lengths[:rows], pages=self.pages[:rows])
        draft = self.spec.num_draft_tokens if batch.forward_mode is Mode.TARGET_VERIFY else 0
        self.metadata.lengths.copy_(batch.seq_lens + draft)
        slots = self.world.req_to_token[batch.req_pool_indices]
        self.metadata.pages.copy_(slots[:, ::page_size] // page_size)

    capture_prepare = replay_prepare = eager_prepare = prepare

    def in_graph(self, batch: Batch) -> None:
        """Nothing is recorded besides the forward pass."""

    def forward(self, step: int, inputs: Inputs, batch: Batch) -> Tensor:
        layer, kv = self.world.layer, self.world.kv
        kv.write(batch.out_cache_loc[step], inputs.k, inputs.v)
        return self.world.kernels.decode(
            inputs.q, kv.kv_cache(), self.workspace, self.metadata.pages, self.metadata.lengths,
            self.spec.max_context, layer.k_scale * layer.scaling, layer.v_scale, layer.window_left,
            sinks=layer.sinks, kv_layout=kv.layout, q_len_per_req=self.spec.tokens_per_row(batch.forward_mode),
        )  # fmt: skip

    def weights_updated(self) -> None:
        """Nothing is derived from the weights."""

    def fill_value(self) -> int:
        return 1

    def metadata_objects(self) -> list[SimpleNamespace]:
        return [self.metadata]
