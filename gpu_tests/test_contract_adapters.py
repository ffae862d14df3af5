"""The SGLang adapter serves both generations of the engine's interface, judged with stand-ins written here.

The stand-ins have the interface of SGLang's backends and nothing else of theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from gpu_tests.backends import sglang_adapter
from gpu_tests.backends.engine_doubles import Lax
from gpu_tests.backends.sglang_adapter import sglang_backend
from gpu_tests.contract.isolated import Isolated
from gpu_tests.contract.scenario import Scenario
from gpu_tests.contract.verify import Verdict, judge_on

pytestmark = pytest.mark.suite("attention-contract", gpus=0, est="10s")


class ForwardMode(Enum):
    DECODE = auto()
    TARGET_VERIFY = auto()
    DRAFT_EXTEND_V2 = auto()


class StandIn:
    """What both generations share: buffers of lengths and pages, and the kernel call."""

    def __init__(self, runner: Lax, step: int) -> None:
        self.runner, self.step = runner, step
        self.max_context = runner.model_config.context_len
        self.draft = runner.server_args.speculative_num_draft_tokens

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        return 1

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        pages = -(-self.max_context // self.runner.page_size)
        self.lens = torch.zeros(max_bs, dtype=torch.int32, device=self.runner.device)
        self.table = torch.zeros(max_bs, pages, dtype=torch.int32, device=self.runner.device)
        self.workspace = torch.zeros(8 << 20, dtype=torch.uint8, device=self.runner.device)

    def bind(self, bs: int) -> None:
        self.forward_metadata = SimpleNamespace(cache_seqlens=self.lens[:bs], page_table=self.table[:bs])

    def fill(self, mode: ForwardMode, indices: Tensor, seq_lens: Tensor, spec_info: Any) -> None:
        metadata = self.forward_metadata
        metadata.cache_seqlens.copy_(seq_lens + self.new_tokens(mode, spec_info))
        slots = self.runner.req_to_token_pool.req_to_token[indices]
        metadata.page_table.copy_(slots[:, :: self.runner.page_size] // self.runner.page_size)

    def new_tokens(self, mode: ForwardMode, spec_info: Any) -> int:
        if mode is ForwardMode.TARGET_VERIFY:
            return int(self.draft)
        return self.step + 1 if mode is ForwardMode.DECODE and spec_info is not None else 0

    def init_forward_metadata(self, fb: Any) -> None:
        self.bind(fb.batch_size)
        self.fill(fb.forward_mode, fb.req_pool_indices, fb.seq_lens, fb.spec_info)

    def tokens_per_row(self, fb: Any) -> int:
        return 1 if fb.forward_mode is ForwardMode.DECODE else self.draft


class MhaStandIn(StandIn):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, layer: Any, fb: Any, save_kv_cache: bool) -> Tensor:
        fb.token_to_kv_pool.set_kv_buffer(layer, fb.out_cache_loc, k, v)
        metadata = self.forward_metadata
        return self.runner.kernels.decode(  # type: ignore[no-any-return]
            q, fb.token_to_kv_pool.get_kv_buffer(layer.layer_id), self.workspace, metadata.page_table,
            metadata.cache_seqlens, self.max_context, layer.k_scale * layer.scaling, layer.v_scale,
            kv_layout="NHD", q_len_per_req=self.tokens_per_row(fb),
        )  # fmt: skip


class LegacyMha(MhaStandIn):
    def init_forward_metadata_capture_cuda_graph(
        self, bs: int, num_tokens: int, indices: Tensor, seq_lens: Tensor, encoder_lens: None, mode: Any, info: Any
    ) -> None:
        self.bind(bs)
        self.fill(mode, indices, seq_lens, info)

    def init_forward_metadata_replay_cuda_graph(
        self, bs: int, indices: Tensor, seq_lens: Tensor, total: int, encoder_lens: None, mode: Any, info: Any,
        seq_lens_cpu: Tensor,
    ) -> None:  # fmt: skip
        self.bind(bs)
        self.fill(mode, indices, seq_lens, info)


class LegacyMhaUnfilled(LegacyMha):
    """As sglang#26521 had it: bound at capture, filled at replay only."""

    def init_forward_metadata_capture_cuda_graph(self, bs: int, *args: Any) -> None:
        self.bind(bs)


class NewMla(StandIn):
    def init_forward_metadata_out_graph(self, fb: Any, in_capture: bool = False) -> None:
        self.bind(fb.batch_size)

    def init_forward_metadata_in_graph(self, fb: Any) -> None:
        self.fill(fb.forward_mode, fb.req_pool_indices, fb.seq_lens, fb.spec_info)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, layer: Any, fb: Any, save_kv_cache: bool, q_rope: Tensor, k_rope: Tensor
    ) -> Tensor:
        fb.token_to_kv_pool.set_mla_kv_buffer(layer, fb.out_cache_loc, k, k_rope)
        metadata, latent, rope = self.forward_metadata, q.shape[-1], q_rope.shape[-1]
        query = torch.cat([q, q_rope], dim=-1)
        out: Tensor = self.runner.kernels.decode_mla(
            query.unflatten(0, (fb.batch_size, -1)), fb.token_to_kv_pool.get_key_buffer(0), self.workspace, 16,
            latent, rope, metadata.page_table, metadata.cache_seqlens, self.max_context, bmm1_scale=layer.scaling,
        )  # fmt: skip
        return out.flatten(0, 1)


class NewMlaHostRead(NewMla):
    """Reads a device value in the recorded part, which the interface forbids."""

    def init_forward_metadata_in_graph(self, fb: Any) -> None:
        super().init_forward_metadata_in_graph(fb)
        self.longest = self.forward_metadata.cache_seqlens.max().item()


LEGACY = sglang_backend(LegacyMha, ForwardMode)
NEW = sglang_backend(NewMla, ForwardMode)
UNFILLED = sglang_backend(LegacyMhaUnfilled, ForwardMode)
HOST_READ = sglang_backend(NewMlaHostRead, ForwardMode)


@pytest.fixture
def judged(driver: Any, isolated: Isolated) -> Callable[[str, str], Verdict]:
    """What the contract says of a factory of this file in a scenario."""
    return lambda factory, scenario: judge_on(driver, f"{__name__}:{factory}", isolated)(Scenario.parse(scenario))


@pytest.mark.parametrize(
    ("factory", "world"),
    [
        ("LEGACY", "mha-target"),
        ("LEGACY", "mha-draft"),
        ("LEGACY", "mha-extend"),
        ("NEW", "mla-target"),
        ("NEW", "mla-draft"),
        ("NEW", "mla-extend"),
    ],
)
def test_both_generations_hold_the_contract(judged: Callable[[str, str], Verdict], factory: str, world: str) -> None:
    for scenario in (f"{world}#0", f"{world}+everything#0"):
        assert judged(factory, scenario).report == f"{scenario}: holds"


@pytest.mark.parametrize(
    ("factory", "world", "check"),
    [("UNFILLED", "mha-draft", "kernel_lengths"), ("HOST_READ", "mla-target", "host_sync")],
)
def test_a_bug_behind_the_adapter_is_found(
    judged: Callable[[str, str], Verdict], factory: str, world: str, check: str
) -> None:
    assert check in judged(factory, world).checks


def test_a_double_lists_what_it_was_asked_for_and_does_not_know() -> None:
    double = Lax(known=1)
    assert double.known == 1
    assert double.unheard_of is None
    assert double.missing == {"unheard_of"}


def test_an_adapter_for_an_engine_is_short() -> None:
    assert len(Path(sglang_adapter.__file__).read_text().splitlines()) <= 150
