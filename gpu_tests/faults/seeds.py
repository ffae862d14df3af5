"""The two bugs that the contract was built around, exactly as they stood."""

from __future__ import annotations

from gpu_tests.backends.mha import MhaBackend
from gpu_tests.backends.mla import MlaBackend
from gpu_tests.backends.paged import write_offsets
from gpu_tests.backends.protocol import Batch, Mode
from gpu_tests.faults.catalogue import fault
from gpu_tests.faults.patching import without


@fault(
    "mla-replay-packed-offsets",
    "M1",
    "sglang#21987",
    "captured with the uniform stride num_draft_tokens, replayed with offsets packed by accept_length and lengths "
    "shifted by it: NaN in speculative decoding, seen by an 8-GPU server test only",
    "mla-extend+ragged_accepts",
)
class ReplayPackedOffsets(MlaBackend):
    def replay_prepare(self, batch: Batch) -> None:
        super().replay_prepare(batch)
        if batch.forward_mode is not Mode.DRAFT_EXTEND:
            return
        assert batch.spec_info is not None
        assert batch.spec_info.accept_length is not None
        metadata, extend = self.current[0], batch.spec_info.accept_length + 1
        accepts = batch.spec_info.accept_length_cpu
        metadata.max_seq_len_q = max(accepts) + 1 if accepts else 1
        metadata.seq_lens_q.copy_(extend)
        write_offsets(metadata.cu_seqlens_q, extend)
        metadata.seq_lens_k.copy_(batch.seq_lens - extend + metadata.max_seq_len_q)


@fault(
    "mha-capture-unfilled-lengths",
    "M3",
    "sglang#26521",
    "draft decode binds the zero-initialised cache_seqlens at capture and never fills it: the captured kernel runs "
    "over no keys, NaN at warm-up",
    "mha-draft",
)
class CaptureUnfilledLengths(MhaBackend):
    def capture_prepare(self, batch: Batch) -> None:
        if batch.forward_mode is not Mode.DRAFT_DECODE:
            super().capture_prepare(batch)
            return
        with without(self, "fill_lengths"):
            super().capture_prepare(batch)
