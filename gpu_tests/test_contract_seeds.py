"""Both seed bugs give the numbers that they gave in production, and the corrected backends the right ones.

Numbers of sglang#21987: N = 4, lengths [100, 200, 300] with the new tokens, accepts [0, 3, 1].
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from gpu_tests.backends.mha import MhaBackend
from gpu_tests.backends.mla import MlaBackend
from gpu_tests.backends.protocol import Batch, Mode, SpecInfo, World
from gpu_tests.contract.scenario import WORLDS
from gpu_tests.contract.truth import make_world
from gpu_tests.faults.seeds import CaptureUnfilledLengths, ReplayPackedOffsets

pytestmark = pytest.mark.suite("attention-contract", gpus=0, est="10s")


def world(name: str, driver: Any) -> World:
    return make_world(replace(WORLDS[name], max_context=512, capture_sizes=(3,)), driver.device)


def batch(world: World, mode: Mode, lengths: list[int], accepts: list[int] | None, host_list: bool = True) -> Batch:
    def ints(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, device=world.device)

    tokens = len(lengths) * world.spec.tokens_per_row(mode)
    return Batch(
        forward_mode=mode,
        batch_size=len(lengths),
        num_tokens=tokens,
        req_pool_indices=ints([1, 2, 3]),
        seq_lens=ints(lengths),
        seq_lens_cpu=torch.tensor(lengths),
        positions=ints([0] * tokens),
        out_cache_loc=ints([0] * tokens)[None],
        spec_info=SpecInfo(
            world.spec.num_draft_tokens,
            None if accepts is None else ints(accepts),
            accepts if host_list else None,
        ),
    )


CAPTURE = ([1, 1, 1], [4, 4, 4])


@pytest.mark.parametrize(
    ("backend", "accepts", "host_list", "max_q", "offsets", "lengths"),
    [
        (ReplayPackedOffsets, [0, 3, 1], True, 4, [0, 1, 5, 7], [103, 200, 302]),
        (ReplayPackedOffsets, [0, 3, 1], False, 1, [0, 1, 5, 7], [100, 197, 299]),
        (ReplayPackedOffsets, [2, 2, 2], True, 3, [0, 3, 6, 9], [100, 200, 300]),
        (MlaBackend, [0, 3, 1], True, 4, [0, 4, 8, 12], [100, 200, 300]),
        (MlaBackend, [0, 3, 1], False, 4, [0, 4, 8, 12], [100, 200, 300]),
    ],
)
def test_draft_extend_metadata_at_replay(
    driver: Any,
    backend: type[MlaBackend],
    accepts: list[int],
    host_list: bool,
    max_q: int,
    offsets: list[int],
    lengths: list[int],
) -> None:
    at = world("mla-extend", driver)
    under_test = backend(at)
    under_test.capture_prepare(batch(at, Mode.DRAFT_EXTEND, *CAPTURE))
    (captured,) = under_test.metadata_objects()
    assert captured.cu_seqlens_q.tolist() == [0, 4, 8, 12]

    under_test.replay_prepare(batch(at, Mode.DRAFT_EXTEND, [100, 200, 300], accepts, host_list))
    (metadata,) = under_test.metadata_objects()
    assert metadata.max_seq_len_q == max_q
    assert metadata.cu_seqlens_q.tolist() == offsets
    assert metadata.seq_lens_k.tolist() == lengths


def test_a_padded_row_of_the_packed_replay_has_no_keys_left(driver: Any) -> None:
    at = world("mla-extend", driver)
    under_test = ReplayPackedOffsets(at)
    under_test.capture_prepare(batch(at, Mode.DRAFT_EXTEND, *CAPTURE))
    padded = batch(at, Mode.DRAFT_EXTEND, [100, 200, 1], [0, 3, 4])
    assert padded.spec_info is not None
    padded.spec_info.accept_length_cpu = [0, 3]
    under_test.replay_prepare(padded)
    assert under_test.metadata_objects()[0].seq_lens_k.tolist()[2] <= 0


@pytest.mark.parametrize(
    ("backend", "lengths"),
    [(CaptureUnfilledLengths, [[0, 0, 0]] * 3), (MhaBackend, [[2, 2, 2], [3, 3, 3], [4, 4, 4]])],
)
def test_draft_decode_lengths_at_capture(driver: Any, backend: type[MhaBackend], lengths: list[list[int]]) -> None:
    at = world("mha-draft", driver)
    under_test = backend(at)
    under_test.capture_prepare(batch(at, Mode.DRAFT_DECODE, [1, 1, 1], None))
    assert [m.cache_seqlens_int32.tolist() for m in under_test.metadata_objects()] == lengths
