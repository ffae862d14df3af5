"""Faults of memory, streams, host and weights: what a graph sees too late or never (M12, M21 to M23, M26, M28)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from gpu_tests.backends.mha import MhaBackend, MhaMetadata
from gpu_tests.backends.mla import MlaBackend, MlaMetadata, per_token
from gpu_tests.backends.paged import kv_lens, write_offsets
from gpu_tests.backends.protocol import Batch, Inputs, Mode, World
from gpu_tests.faults.catalogue import fault
from gpu_tests.faults.kernel_faults import MergeOfEmptyParts
from gpu_tests.faults.staged_kernel import Launch


@contextmanager
def another_stream(device: torch.device) -> Iterator[None]:
    """Run the block where a capture does not look: another stream; on the CPU, outside the recording modes."""
    if device.type == "cuda":
        with torch.cuda.stream(torch.cuda.Stream()):
            yield
        return
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        yield


# -- M12: workspaces ---------------------------------------------------------------------------------------------------


@fault(
    "mha-shared-workspace",
    "M12",
    "vllm#25520",
    "the workspace is the one that other kernels of the engine write: its counters are not zero",
    "mha-target+dirty_workspace",
)
class SharedWorkspace(MhaBackend):
    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.workspace = world.shared_workspace


@fault(
    "mla-workspace-not-zeroed",
    "M12",
    "sglang#10330",
    "the workspace is allocated without zeroing it",
    "mla-target",
)
class WorkspaceNotZeroed(MlaBackend):
    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.workspace = torch.empty(len(self.workspace), dtype=torch.uint8, device=world.device)


@fault(
    "mha-scratch-over-counters",
    "M12",
    "flashinfer#3433",
    "scratch is carved out of the workspace from its start, over the counters",
    "mha-target",
)
class ScratchOverCounters(MhaBackend):
    def attend(self, query: Tensor, metadata: MhaMetadata, batch: Batch) -> Tensor:
        scratch = self.workspace[: query.numel() * query.itemsize].view(query.dtype).view(query.shape)
        scratch.copy_(query)
        return super().attend(scratch, metadata, batch)


# -- M16, M26: scales and weights that change --------------------------------------------------------------------------


@fault(
    "mha-scales-frozen",
    "M16",
    "modelexpress#783",
    "scales are read once as Python floats: the graph keeps them when weights are refitted",
    "mha-scaled+refit",
)
class ScalesFrozen(MhaBackend):
    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.k_scale, self.v_scale = float(world.layer.k_scale), float(world.layer.v_scale)

    def attend(self, query: Tensor, metadata: MhaMetadata, batch: Batch) -> Tensor:
        layer = self.world.layer
        return self.world.kernels.decode(
            query, self.world.kv.kv_cache(), self.workspace, metadata.page_table, metadata.cache_seqlens_int32,
            metadata.max_seq_len_k, self.k_scale * layer.scaling, self.v_scale,
            kv_layout=self.world.kv.layout, q_len_per_req=metadata.max_seq_len_q,
        )  # fmt: skip


@fault(
    "mla-weights-rebound",
    "M26",
    "sglang#4961",
    "the absorbed weights are made anew at an update; the graph reads the old ones, which were freed",
    "mla-target",
)
class WeightsRebound(MlaBackend):
    def weights_updated(self) -> None:
        assert self.world.layer.w_kc is not None
        assert self.world.layer.w_vc is not None
        self.w_kc, self.w_vc = self.world.layer.w_kc.clone(), self.world.layer.w_vc.clone()


@fault(
    "mla-weights-stale",
    "M26",
    "sglang#27140",
    "the absorbed weights are not made again after an update",
    "mla-target+refit",
)
class WeightsStale(MlaBackend):
    def weights_updated(self) -> None:
        pass


@fault(
    "mla-small-update-skipped",
    "M26",
    "sglang#11780",
    "an update that changes little is taken for none: below every tolerance, but the bits must change",
    "mla-target+nudge",
)
class SmallUpdateSkipped(MlaBackend):
    def weights_updated(self) -> None:
        assert self.world.layer.w_kc is not None
        if not torch.allclose(self.w_kc, self.world.layer.w_kc):
            super().weights_updated()


@fault(
    "mla-wrong-absorbed-weight",
    "M25",
    "sglang#9123",
    "the output is expanded with the weight of the next head",
    "mla-target",
)
class WrongAbsorbedWeight(MlaBackend):
    def expand(self, latent_out: Tensor) -> Tensor:
        return per_token(latent_out, self.w_vc.roll(1, dims=0))


# -- M21, M22, M28: streams and the host -------------------------------------------------------------------------------


@fault(
    "mha-cache-write-uncaptured",
    "M21",
    "sageattention#371",
    "the cache is written on another stream: the capture does not record it",
    "mha-target",
)
class CacheWriteUncaptured(MhaBackend):
    def forward(self, step: int, inputs: Inputs, batch: Batch) -> Tensor:
        with another_stream(self.world.device):
            self.world.kv.write(batch.out_cache_loc[step], inputs.k, inputs.v)
        return self.attend(inputs.q, self.current[step], batch)


@fault(
    "mla-host-read-in-graph",
    "M22",
    "flashinfer mla (cum_seq_lens_q without max_q_len)",
    "the kernel's bound is read from the device while capturing",
    "mla-target",
)
class HostReadInGraph(MlaBackend):
    def attend(self, query: Tensor, metadata: MlaMetadata, batch: Batch) -> Tensor:
        metadata.max_seq_len_k = int(metadata.seq_lens_k.max())
        return super().attend(query, metadata, batch)


@fault(
    "mha-host-read-at-replay",
    "M22",
    "vllm#22758",
    "replay_prepare reads the longest length from the device: correct, and it stalls every step",
    "mha-target",
)
class HostReadAtReplay(MhaBackend):
    def replay_prepare(self, batch: Batch) -> None:
        super().replay_prepare(batch)
        self.longest = self.current[0].cache_seqlens_int32.max().item()


@fault(
    "mla-copies-lent-host-memory",
    "M28",
    "trt-llm#15546",
    "lengths are copied inside the graph from the runner's pinned buffer, which the runner has reused by then",
    "mla-extend+host_reuse",
)
class CopiesLentHostMemory(MlaBackend):
    def in_graph(self, batch: Batch) -> None:
        if batch.seq_lens_cpu is not None and batch.forward_mode is Mode.DRAFT_EXTEND:
            self.current[0].seq_lens_k.copy_(batch.seq_lens_cpu, non_blocking=True)


# -- M23: memory of another graph --------------------------------------------------------------------------------------


@fault(
    "mha-constant-made-in-capture",
    "M23",
    "vllm test_cudagraph_input_address_check",
    "a constant is made when first needed, inside the first capture: it lives in that graph's memory, and other graphs "
    "read it before it is written",
    "mha-target+no_warmup+shrink_grow#1",
)
class ConstantMadeInCapture(MhaBackend):
    ones: Tensor | None = None

    def attend(self, query: Tensor, metadata: MhaMetadata, batch: Batch) -> Tensor:
        if self.ones is None:
            self.ones = torch.ones(1, device=query.device)
        return super().attend(query, metadata, batch) * self.ones


@fault(
    "mla-scratch-read-before-written",
    "M23",
    "cubecl#1612",
    "scratch of the graph path is read once before anything wrote it, in the very first warm-up run",
    "mla-target",
)
class ScratchReadBeforeWritten(MlaBackend):
    scratch: Tensor | None = None

    def capture_prepare(self, batch: Batch) -> None:
        super().capture_prepare(batch)
        if self.scratch is None:
            self.scratch = torch.empty(1, device=self.world.device)

    def attend(self, query: Tensor, metadata: MlaMetadata, batch: Batch) -> Tensor:
        out = super().attend(query, metadata, batch)
        if self.scratch is not None:
            out = out + self.scratch * 0
            self.scratch.zero_()
        return out


@fault(
    "mha-output-in-shared-buffer",
    "M23",
    "pytorch#166975",
    "all steps of a chain return one static buffer of rows, laid out for the largest size in another order",
    "mha-draft",
)
class OutputInSharedBuffer(MhaBackend):
    def __init__(self, world: World) -> None:
        super().__init__(world)
        spec = world.spec
        self.out = torch.zeros(
            spec.max_bs, spec.num_q_heads, spec.head_dim, dtype=spec.torch_dtype, device=world.device
        )

    def forward(self, step: int, inputs: Inputs, batch: Batch) -> Tensor:
        out = super().forward(step, inputs, batch)
        self.out[-len(out) :].copy_(out)
        return self.out[: len(out)]


@fault(
    "mha-lengths-in-graph-from-capture",
    "M4",
    "sglang#29843",
    "metadata is rebuilt inside the graph, from a copy of the lengths that was made at capture",
    "mha-target",
)
class LengthsInGraphFromCapture(MhaBackend):
    def capture_prepare(self, batch: Batch) -> None:
        super().capture_prepare(batch)
        self.lengths = kv_lens(self.spec, batch, 0).clone()

    def in_graph(self, batch: Batch) -> None:
        for metadata in self.current:
            metadata.cache_seqlens_int32.copy_(self.lengths[: batch.batch_size])
            write_offsets(metadata.cu_seqlens_k, metadata.cache_seqlens_int32)


@fault(
    "mha-shadow-table",
    "M4",
    "flashinfer#2511",
    "the kernel reads a copy of the page table that was made at capture; the metadata itself is refreshed",
    "mha-target",
)
class ShadowTable(MhaBackend):
    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.shadows: dict[tuple[Mode, int], Tensor] = {}

    def capture_prepare(self, batch: Batch) -> None:
        super().capture_prepare(batch)
        self.shadows[batch.forward_mode, batch.batch_size] = self.current[0].page_table.clone()

    def attend(self, query: Tensor, metadata: MhaMetadata, batch: Batch) -> Tensor:
        shadow = self.shadows.get((batch.forward_mode, batch.batch_size), metadata.page_table)
        return super().attend(query, replace(metadata, page_table=shadow), batch)


@fault(
    "mla-eager-scales-the-query",
    "M6",
    "flashinfer#5180",
    "without a graph the score scale goes into the query, in the graph into the kernel: other bits, within tolerance",
    "mla-target",
)
class EagerScalesTheQuery(MlaBackend):
    def eager_prepare(self, batch: Batch) -> None:
        super().eager_prepare(batch)
        kernels, scaling = self.world.kernels, self.world.layer.scaling

        def scaled(query: Tensor, *args: Any, **options: Any) -> Any:
            return kernels.mla(query * scaling, *args, **{**options, "bmm1_scale": options["bmm1_scale"] / scaling})

        self.world = replace(self.world, kernels=kernels.with_kernels(kernels.mha, scaled))


@fault(
    "mha-splits-of-capture",
    "M6",
    "vllm#20301",
    "the number of splits follows the longest row of the capture batch: on a graph captured with long rows, short ones "
    "leave two splits empty, and their merge is NaN",
    "mha-target+capture_long",
)
class SplitsOfCapture(MhaBackend):
    def __init__(self, world: World) -> None:
        kernel = _SplitsOfBound()
        super().__init__(replace(world, kernels=world.kernels.with_kernels(kernel.mha, kernel.mla)))

    def capture_prepare(self, batch: Batch) -> None:
        super().capture_prepare(batch)
        self.bound(batch)

    def eager_prepare(self, batch: Batch) -> None:
        super().eager_prepare(batch)
        self.bound(batch)

    def bound(self, batch: Batch) -> None:
        assert batch.seq_lens_cpu is not None
        if int(batch.seq_lens_cpu.max()) <= 32:
            self.current[0].max_seq_len_k = 64


class _SplitsOfBound(MergeOfEmptyParts):
    def parts(self, scores: Tensor, at: Launch) -> list[Tensor]:
        return list(at.key.split(32))
