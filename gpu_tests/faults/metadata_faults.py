"""Faults of metadata: layouts, fills, copies, lengths, rebinding, tables, padded rows (M1 to M11, M13, M24)."""

from __future__ import annotations

import torch
from torch import Tensor

from gpu_tests.backends.mha import MhaBackend, MhaMetadata
from gpu_tests.backends.mla import MlaBackend, MlaMetadata
from gpu_tests.backends.paged import page_rows, query_lens, write_offsets
from gpu_tests.backends.protocol import Batch, Inputs, Mode, World
from gpu_tests.faults.catalogue import fault
from gpu_tests.faults.patching import pad_queries, without

# -- M1, M2: offsets -------------------------------------------------------------------------------------------------


@fault(
    "mla-replay-packed-unread-offsets",
    "M1",
    "sglang#21987",
    "as the seed, but only the field that no kernel reads in graph mode is packed: harmless here, fatal for a kernel "
    "that takes offsets",
    "mla-extend+ragged_accepts",
)
class ReplayPackedUnreadOffsets(MlaBackend):
    def replay_prepare(self, batch: Batch) -> None:
        super().replay_prepare(batch)
        if batch.spec_info is not None and batch.spec_info.accept_length is not None:
            write_offsets(self.current[0].cu_seqlens_q, batch.spec_info.accept_length + 1)


@fault(
    "mha-replay-uniform-offsets",
    "M1",
    "sglang#19807",
    "the reverse of the seed: rows are packed by accept_length, replay writes the uniform stride",
    "mha-extend-packed+ragged_accepts",
)
class ReplayUniformOffsets(MhaBackend):
    def replay_prepare(self, batch: Batch) -> None:
        super().replay_prepare(batch)
        if batch.forward_mode is Mode.DRAFT_EXTEND:
            uniform = torch.full_like(batch.seq_lens, self.spec.num_draft_tokens)
            write_offsets(self.current[0].cu_seqlens_q, uniform)


@fault(
    "mha-extend-reuses-other-offsets",
    "M1",
    "vllm#33341",
    "the draft pass takes the offsets of another pass: they cover more rows than the query has",
    "mha-extend",
)
class ExtendReusesOtherOffsets(MhaBackend):
    def fill_offsets(self, metadata: MhaMetadata, batch: Batch, step: int) -> None:
        super().fill_offsets(metadata, batch, step)
        write_offsets(metadata.cu_seqlens_q, query_lens(self.spec, batch) + 1)


@fault(
    "mha-extend-stride-of-steps",
    "M2",
    "sglang#27545",
    "draft extend at the stride num_steps + 1 while the runner packs num_draft_tokens: right for topk 1 only",
    "mha-extend-prefix",
)
class ExtendStrideOfSteps(MhaBackend):
    def attend(self, query: Tensor, metadata: MhaMetadata, batch: Batch) -> Tensor:
        stride = self.spec.num_steps + 1
        layer = self.world.layer
        return self.world.kernels.decode(
            query, self.world.kv.kv_cache(), self.workspace, metadata.page_table, metadata.cache_seqlens_int32,
            metadata.max_seq_len_k, layer.k_scale * layer.scaling, layer.v_scale,
            kv_layout=self.world.kv.layout, q_len_per_req=None, max_q_len=stride,
            cum_seq_lens_q=torch.arange(batch.batch_size + 1, dtype=torch.int32, device=query.device) * stride,
        )  # fmt: skip


# -- M3, M4: fills ---------------------------------------------------------------------------------------------------


@fault(
    "mla-capture-unfilled-table",
    "M3",
    "vllm#49364",
    "metadata is not built at capture: the page table holds its initial -1",
    "mla-target",
)
class CaptureUnfilledTable(MlaBackend):
    def capture_prepare(self, batch: Batch) -> None:
        with without(self, "fill_table"):
            super().capture_prepare(batch)


@fault(
    "mha-capture-unfilled-lengths-guarded",
    "M3",
    "sglang#26521",
    "the seed under a kernel that returns 0 for empty rows: no NaN anywhere, only the lengths that the kernel sees",
    "mha-safe",
)
class CaptureUnfilledLengthsGuarded(MhaBackend):
    def capture_prepare(self, batch: Batch) -> None:
        with without(self, "fill_lengths"):
            super().capture_prepare(batch)


@fault(
    "mha-replay-stale-lengths",
    "M4",
    "sglang#26655",
    "lengths are not copied at replay",
    "mha-draft",
)
class ReplayStaleLengths(MhaBackend):
    def replay_prepare(self, batch: Batch) -> None:
        with without(self, "fill_lengths"):
            super().replay_prepare(batch)


@fault(
    "mla-replay-first-step-only",
    "M4",
    "vllm#38311",
    "of a chain of draft steps only the first step's metadata is refreshed",
    "mla-draft",
)
class ReplayFirstStepOnly(MlaBackend):
    def replay_prepare(self, batch: Batch) -> None:
        metadata = self.captured[batch.forward_mode, batch.batch_size]
        self.use(metadata[:1], batch)
        self.current = metadata


@fault(
    "mla-replay-stale-table",
    "M4",
    "vllm#38311",
    "the page table is not copied at replay",
    "mla-target+permuted_pages",
)
class ReplayStaleTable(MlaBackend):
    def replay_prepare(self, batch: Batch) -> None:
        with without(self, "fill_table"):
            super().replay_prepare(batch)


@fault(
    "mha-replay-stale-mask",
    "M4",
    "sglang#32920",
    "the draft tree's mask is not copied at replay: every tree is a chain",
    "mha-tree",
)
class ReplayStaleMask(MhaBackend):
    def replay_prepare(self, batch: Batch) -> None:
        with without(self, "fill_mask"):
            super().replay_prepare(batch)


@fault(
    "mha-replay-stale-unread-offsets",
    "M4",
    "sglang#26019",
    "cu_seqlens_k is not refreshed at replay; today's decode kernel does not read it",
    "mha-target",
)
class ReplayStaleUnreadOffsets(MhaBackend):
    def replay_prepare(self, batch: Batch) -> None:
        captured = self.captured[batch.forward_mode, batch.batch_size]
        before = [metadata.cu_seqlens_k.clone() for metadata in captured]
        super().replay_prepare(batch)
        for metadata, stale in zip(captured, before, strict=True):
            metadata.cu_seqlens_k.copy_(stale)


# -- M5, M6: lengths and frozen numbers --------------------------------------------------------------------------------


@fault(
    "mha-verify-prefix-only",
    "M5",
    "sglang KNOWN_FAILURES C.3",
    "target verify with the lengths of the prefix: the draft's own keys are not seen",
    "mha-target",
)
class VerifyPrefixOnly(MhaBackend):
    def fill_lengths(self, metadata: MhaMetadata, batch: Batch, step: int) -> None:
        super().fill_lengths(metadata, batch, step)
        if batch.forward_mode is Mode.TARGET_VERIFY:
            metadata.cache_seqlens_int32.copy_(batch.seq_lens)


@fault(
    "mla-draft-without-step",
    "M5",
    "sglang#26521",
    "every draft step with the length of step 0: later steps miss the newest keys",
    "mla-draft",
)
class DraftWithoutStep(MlaBackend):
    def fill_lengths(self, metadata: MlaMetadata, batch: Batch, step: int) -> None:
        super().fill_lengths(metadata, batch, 0)


@fault(
    "mla-extend-padded-unshifted",
    "M5",
    "sglang#12295",
    "packed queries are padded to the uniform stride, but the lengths are not shifted with them",
    "mla-extend-packed+ragged_accepts",
)
class ExtendPaddedUnshifted(MlaBackend):
    def attend(self, query: Tensor, metadata: MlaMetadata, batch: Batch) -> Tensor:
        n, layer, spec = metadata.max_seq_len_q, self.world.layer, self.spec
        padded, at = pad_queries(query, metadata.cu_seqlens_q, n, "start")
        out = self.world.kernels.decode_mla(
            padded.unflatten(0, (batch.batch_size, n)), self.world.kv.kv_cache(), self.workspace,
            spec.qk_nope_head_dim, spec.kv_lora_rank, spec.qk_rope_head_dim, metadata.block_kv_indices,
            metadata.seq_lens_k, metadata.max_seq_len_k, bmm1_scale=layer.k_scale * layer.scaling,
        )  # fmt: skip
        return out.flatten(0, 1)[at]


@fault(
    "mha-decode-off-by-one",
    "M5",
    "vllm#47305",
    "the newest key is left out: one key of many",
    "mha-target",
)
class DecodeOffByOne(MhaBackend):
    def fill_lengths(self, metadata: MhaMetadata, batch: Batch, step: int) -> None:
        super().fill_lengths(metadata, batch, step)
        if batch.forward_mode is Mode.DECODE:
            metadata.cache_seqlens_int32.sub_(1).clamp_(min=1)


@fault(
    "mha-max-seq-len-of-capture",
    "M6",
    "vllm#40961",
    "max_seq_len is the longest row of the capture batch, frozen in the graph",
    "mha-target",
)
class MaxSeqLenOfCapture(MhaBackend):
    def capture_prepare(self, batch: Batch) -> None:
        super().capture_prepare(batch)
        assert batch.seq_lens_cpu is not None
        self.current[0].max_seq_len_k = int(batch.seq_lens_cpu.max()) + self.spec.num_draft_tokens


@fault(
    "mha-max-seq-len-with-headroom",
    "M6",
    "flashinfer#4647",
    "max_seq_len is the longest row of the capture batch plus a generous head-room: right until a request outgrows it",
    "mha-target",
)
class MaxSeqLenWithHeadroom(MhaBackend):
    def capture_prepare(self, batch: Batch) -> None:
        super().capture_prepare(batch)
        assert batch.seq_lens_cpu is not None
        pages = -(-int(batch.seq_lens_cpu.max()) // self.spec.page_size)
        self.current[0].max_seq_len_k = min(64 + pages * self.spec.page_size, self.spec.max_context)


# -- M7, M8, M9, M10: addresses, strides and tables --------------------------------------------------------------------


@fault(
    "mha-replay-rebinds-table",
    "M7",
    "vllm-ascend#8508",
    "replay binds a fresh page table; the graph reads the old one",
    "mha-target",
)
class ReplayRebindsTable(MhaBackend):
    def replay_prepare(self, batch: Batch) -> None:
        for metadata in self.captured[batch.forward_mode, batch.batch_size]:
            metadata.page_table = metadata.page_table.clone()
        super().replay_prepare(batch)


@fault(
    "mla-replay-rebinds-unread-lengths",
    "M7",
    "flashinfer#2511",
    "replay binds fresh query lengths of equal values; no kernel of today reads them",
    "mla-target",
)
class ReplayRebindsUnreadLengths(MlaBackend):
    def replay_prepare(self, batch: Batch) -> None:
        super().replay_prepare(batch)
        self.current[0].seq_lens_q = self.current[0].seq_lens_q.clone()


@fault(
    "mla-replay-int64-lengths",
    "M7",
    "sglang#12687",
    "replay passes the runner's int64 lengths through; the kernel was captured over int32 ones",
    "mla-extend",
)
class ReplayInt64Lengths(MlaBackend):
    def replay_prepare(self, batch: Batch) -> None:
        super().replay_prepare(batch)
        self.current[0].seq_lens_k = self.current[0].seq_lens_k.long()


@fault(
    "mha-table-stride-of-batch",
    "M8",
    "vllm#41834",
    "the table is written at the row stride of this batch's longest request, and read at the buffer's: row 0 is right",
    "mha-target",
)
class TableStrideOfBatch(MhaBackend):
    def fill_table(self, metadata: MhaMetadata, batch: Batch, step: int) -> None:
        assert batch.seq_lens_cpu is not None
        rows = page_rows(self.world, batch)
        longest = int(batch.seq_lens_cpu.max()) + self.spec.num_draft_tokens
        width = min(-(-longest // self.spec.page_size), rows.shape[1])
        metadata.page_table.view(-1)[: batch.batch_size * width].view(-1, width).copy_(rows[:, :width])


@fault(
    "mha-table-too-short",
    "M9",
    "sglang#27338",
    "only the pages of the prefix are copied: a draft that starts a new page reads an earlier batch's entry",
    "mha-target+page_edges",
)
class TableTooShort(MhaBackend):
    def fill_table(self, metadata: MhaMetadata, batch: Batch, step: int) -> None:
        assert batch.seq_lens_cpu is not None
        width = max(1, -(-int(batch.seq_lens_cpu.max()) // self.spec.page_size))
        metadata.page_table[:, :width].copy_(page_rows(self.world, batch)[:, :width])


@fault(
    "mla-padded-rows-keep-lengths",
    "M9",
    "sglang#10892",
    "with fewer live rows than captured, padded rows keep an earlier batch's lengths",
    "mla-target+shrink_grow+padded+ragged_lengths",
)
class PaddedRowsKeepLengths(MlaBackend):
    def replay_prepare(self, batch: Batch) -> None:
        before = self.captured[batch.forward_mode, batch.batch_size][0].seq_lens_k.clone()
        super().replay_prepare(batch)
        padded = (batch.out_cache_loc[0].view(batch.batch_size, -1) == 0).all(1)
        lengths = self.current[0].seq_lens_k
        lengths.copy_(torch.where(padded, before, lengths))


@fault(
    "mha-tokens-for-pages",
    "M10",
    "vllm#27547",
    "slots of tokens are taken for page ids, as if the page size were 1",
    "mha-target",
)
class TokensForPages(MhaBackend):
    def fill_table(self, metadata: MhaMetadata, batch: Batch, step: int) -> None:
        slots = self.world.req_to_token[batch.req_pool_indices][:, : self.spec.max_pages]
        metadata.page_table.copy_(slots % self.world.kv.num_pages)


@fault(
    "mla-pages-in-order",
    "M10",
    "sglang KNOWN_FAILURES (interleaved_pages)",
    "a request's pages are assumed to follow its first one",
    "mla-target+permuted_pages",
)
class PagesInOrder(MlaBackend):
    def fill_table(self, metadata: MlaMetadata, batch: Batch, step: int) -> None:
        first = page_rows(self.world, batch)[:, :1]
        ids = first + torch.arange(self.spec.max_pages, dtype=torch.int32, device=first.device)
        metadata.block_kv_indices[:, : self.spec.max_pages].copy_(ids.clamp(max=self.world.kv.num_pages - 1))


@fault(
    "mha-table-by-row",
    "M10",
    "sglang#25529",
    "rows are looked up by their place in the batch instead of by req_pool_indices",
    "mha-target+recycled",
)
class TableByRow(MhaBackend):
    def fill_table(self, metadata: MhaMetadata, batch: Batch, step: int) -> None:
        rows = self.world.req_to_token[1 : batch.batch_size + 1, :: self.spec.page_size] // self.spec.page_size
        metadata.page_table.copy_(rows)


# -- M11: padded rows --------------------------------------------------------------------------------------------------


@fault(
    "mha-padding-writes-last-slot",
    "M11",
    "vllm#43869",
    "padded tokens carry slot -1, which Python takes for the last slot of the pool",
    "mha-target+padded",
)
class PaddingWritesLastSlot(MhaBackend):
    def forward(self, step: int, inputs: Inputs, batch: Batch) -> Tensor:
        slots = batch.out_cache_loc[step]
        last = self.world.kv.num_pages * self.spec.page_size - 1
        self.world.kv.write(torch.where(slots == 0, last, slots), inputs.k, inputs.v)
        return self.attend(inputs.q, self.current[step], batch)


@fault(
    "mla-padding-of-length-zero",
    "M11",
    "flashinfer#2883",
    "padded rows have length 0, for which the kernel writes NaN",
    "mla-target",
)
class PaddingOfLengthZero(MlaBackend):
    def fill_value(self) -> int:
        return 0


@fault(
    "mla-padding-in-batch-scale",
    "M11",
    "vllm#37442",
    "the output is scaled by the largest value of the whole batch and back: NaN of a padded row reaches all rows",
    "mla-target+padded+pad_nan",
)
class PaddingInBatchScale(MlaBackend):
    def forward(self, step: int, inputs: Inputs, batch: Batch) -> Tensor:
        out = super().forward(step, inputs, batch)
        largest = out.abs().amax()
        return torch.where(torch.isnan(largest), largest, out)


@fault(
    "mla-idle-rank",
    "M11",
    "sglang#24401",
    "the longest live row is looked up on the host; an idle rank has none",
    "mla-target+idle",
)
class IdleRank(MlaBackend):
    def replay_prepare(self, batch: Batch) -> None:
        super().replay_prepare(batch)
        assert batch.seq_lens_cpu is not None
        self.longest = max(n for n in batch.seq_lens_cpu.tolist() if n > self.fill_value())


@fault(
    "mha-empty-prefix-taken-for-padding",
    "M11",
    "sglang#22688",
    "a request without tokens before its draft is taken for a padded row",
    "mha-target+tiny_lengths",
)
class EmptyPrefixTakenForPadding(MhaBackend):
    def fill_lengths(self, metadata: MhaMetadata, batch: Batch, step: int) -> None:
        super().fill_lengths(metadata, batch, step)
        lengths = metadata.cache_seqlens_int32
        if batch.forward_mode is Mode.TARGET_VERIFY:
            lengths.copy_(torch.where(batch.seq_lens == 0, self.fill_value(), lengths))


@fault(
    "mla-shared-prefix-by-first-page",
    "M10",
    "constructed: no public thread known",
    "requests with the same first page are taken to share all of their pages",
    "mla-target+shared_pages",
)
class SharedPrefixByFirstPage(MlaBackend):
    def fill_table(self, metadata: MlaMetadata, batch: Batch, step: int) -> None:
        rows = page_rows(self.world, batch)
        first_owner = (rows[:, :1] == rows[:, 0]).int().argmax(1)
        metadata.block_kv_indices[:, : self.spec.max_pages].copy_(rows[first_owner])


# -- M13, M24: sizes and keys ------------------------------------------------------------------------------------------


@fault(
    "mha-offsets-buffer-too-small",
    "M13",
    "sglang#32691",
    "cu_seqlens_k has max_bs entries; the kernel that fills it writes max_bs + 1",
    "mha-target",
)
class OffsetsBufferTooSmall(MhaBackend):
    def allocate(self) -> dict[str, Tensor]:
        small = torch.zeros(self.spec.max_bs, dtype=torch.int32, device=self.world.device)
        # A kernel has a pointer and no bounds.
        pointer = small.as_strided((self.spec.max_bs + 1,), (1,), small.storage_offset())
        return {**super().allocate(), "cu_seqlens_k": pointer}


@fault(
    "mha-mask-buffer-too-small",
    "M13",
    "sglang#29450",
    "the draft mask has room for num_steps + 1 tokens a row instead of num_draft_tokens",
    "mha-tree",
)
class MaskBufferTooSmall(MhaBackend):
    def allocate(self) -> dict[str, Tensor]:
        buffers = super().allocate()
        return {**buffers, "custom_mask": buffers["custom_mask"][:, : self.spec.num_steps + 1]}


@fault(
    "mha-offsets-cached-by-size",
    "M24",
    "onnxruntime#32239",
    "offsets are cached by batch size alone: verify gets those of decode",
    "mha-target",
)
class OffsetsCachedBySize(MhaBackend):
    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.offsets: dict[int, Tensor] = {}

    def fill_offsets(self, metadata: MhaMetadata, batch: Batch, step: int) -> None:
        super().fill_offsets(metadata, batch, step)
        known = self.offsets.setdefault(batch.batch_size, metadata.cu_seqlens_q.clone())
        metadata.cu_seqlens_q.copy_(known)


@fault(
    "mla-metadata-keyed-by-size",
    "M24",
    "nntrainer#4313",
    "captured metadata is keyed by batch size alone: draft decode gets the single step of another mode",
    "mla-safe",
)
class MetadataKeyedBySize(MlaBackend):
    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.by_size: dict[int, list[MlaMetadata]] = {}

    def capture_prepare(self, batch: Batch) -> None:
        super().capture_prepare(batch)
        self.by_size[batch.batch_size] = self.current

    def replay_prepare(self, batch: Batch) -> None:
        self.use(self.by_size[batch.batch_size][: self.spec.steps(batch.forward_mode)], batch)
