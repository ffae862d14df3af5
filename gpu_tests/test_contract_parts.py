"""The parts of the contract, each by itself: scenarios, the runner's double, the plug, guards, words, exemptions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpu_tests.backends import default_backend
from gpu_tests.backends.example_backend import MyBackend
from gpu_tests.backends.protocol import Batch, Inputs, Mode, World
from gpu_tests.backends.runner import Feed, Runner
from gpu_tests.contract.cache import copy_of
from gpu_tests.contract.checks import CHECKS, Exemption
from gpu_tests.contract.guards import Guards
from gpu_tests.contract.metadata import BatchFacts, words
from gpu_tests.contract.scenario import PERTURBATIONS, WORLDS, Scenario
from gpu_tests.contract.truth import Truth, make_world
from gpu_tests.contract.verify import findings, load_factory, shrink
from gpu_tests.faults.registry import FAULTS
from gpu_tests.graphs import CpuGraphDriver

pytestmark = pytest.mark.suite("attention-contract", gpus=0, est="10s")

CPU = torch.device("cpu")


# -- scenarios ---------------------------------------------------------------------------------------------------------


@given(st.sampled_from(list(WORLDS)), st.sets(st.sampled_from(list(PERTURBATIONS))), st.integers(0, 10**6))
def test_a_scenario_is_a_function_of_its_text(world: str, names: set[str], seed: int) -> None:
    scenario = Scenario(world, frozenset(names), seed)
    assert Scenario.parse(str(scenario)) == scenario
    assert Scenario.parse(str(scenario)).rounds() == scenario.rounds()


@given(st.sampled_from(list(WORLDS)), st.sets(st.sampled_from(list(PERTURBATIONS))), st.integers(0, 1000))
def test_every_round_fits_the_world(world: str, names: set[str], seed: int) -> None:
    scenario = Scenario(world, frozenset(names), seed)
    spec = scenario.spec
    for round_ in scenario.rounds():
        new = max(spec.tokens_per_row(round_.mode), spec.steps(round_.mode))
        assert round_.bs in spec.capture_sizes
        assert len(round_.rows) <= round_.bs
        assert len({row.slot for row in round_.rows}) == len(round_.rows)
        assert all(0 <= row.prefix <= spec.max_context - new for row in round_.rows)
        assert all(0 <= row.accept < spec.num_draft_tokens for row in round_.rows)


def test_leaving_out_a_perturbation_changes_nothing_else() -> None:
    with_pages = Scenario.parse("mla-extend+ragged_lengths+ragged_accepts+permuted_pages#5").rounds()
    without = Scenario.parse("mla-extend+ragged_lengths+ragged_accepts#5").rounds()
    assert [round_.rows for round_ in with_pages] == [round_.rows for round_ in without]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mla-nothing", "it is one of mla-target"),
        ("mla-target+sideways", "no perturbation 'sideways': it is one of ragged_lengths"),
        ("mla-targt", "no world 'mla-targt': did you mean 'mla-target'?"),
        ("mla-target+ragged", "no perturbation 'ragged': did you mean 'ragged_"),
        ("mla-target#x", "is not WORLD[+perturbation...][#SEED]"),
    ],
)
def test_a_wrong_scenario_says_what_is_allowed(text: str, message: str) -> None:
    with pytest.raises(ValueError) as error:
        Scenario.parse(text)
    assert message in str(error.value)


def test_shrinking_ends_at_a_scenario_from_which_nothing_can_be_taken() -> None:
    needed = {"padded", "ragged_accepts"}
    start = Scenario("mla-extend", frozenset(PERTURBATIONS))
    shortest = shrink(start, lambda scenario: needed <= scenario.perturbations)
    assert shortest.perturbations == needed
    assert shrink(start, lambda scenario: True).perturbations == frozenset()


# -- the truth and the runner's double ---------------------------------------------------------------------------------


def extend_world(**runner: Any) -> World:
    spec = WORLDS["mla-extend"]
    return make_world(replace(spec, runner=replace(spec.runner, **runner)), CPU)


def extend_feed(world: World, rows: int = 3) -> Feed:
    scenario = Scenario.parse("mla-extend+ragged_accepts+ragged_lengths")
    first = scenario.rounds()[0]
    return Truth(world).load(replace(first, rows=first.rows[:rows]))[0]


def test_padded_rows_follow_the_fill_rule() -> None:
    world = extend_world()
    runner = Runner(world, fill_value=1, to_host=CpuGraphDriver().to_host)
    feed = extend_feed(world)
    batch = runner.padded(feed, 4)
    assert batch.seq_lens.tolist() == [*feed.seq_lens, 1]
    assert batch.out_cache_loc[0, 12:].tolist() == [0] * 4
    assert batch.spec_info is not None
    assert batch.spec_info.accept_length is not None
    assert batch.spec_info.accept_length.tolist()[3] == world.spec.num_draft_tokens
    assert batch.seq_lens_cpu is not None
    assert batch.seq_lens_cpu.tolist() == batch.seq_lens.tolist()
    assert feed.accept_length is not None
    counts = [i <= accept for accept in feed.accept_length for i in range(4)]
    assert runner.live_tokens(batch).tolist() == counts + [False] * 4


@pytest.mark.parametrize(("stale", "last"), [(True, 4), (False, 0)])
def test_request_indices_of_padded_rows_are_stale_or_zero_as_declared(stale: bool, last: int) -> None:
    world = extend_world(stale_pool_indices=stale)
    runner = Runner(world, fill_value=1, to_host=CpuGraphDriver().to_host)
    runner.padded(extend_feed(world, 4), 4)
    assert runner.padded(extend_feed(world, 3), 4).req_pool_indices.tolist() == [1, 2, 3, last]


def test_packed_rows_take_accept_length_plus_one_tokens() -> None:
    world = extend_world(rows="packed", host_lists="none", index_dtype="int32")
    feed = extend_feed(world)
    assert feed.accept_length is not None
    assert len(feed.positions) == sum(a + 1 for a in feed.accept_length)
    batch, _ = Runner(world, 1, CpuGraphDriver().to_host).plain(feed)
    assert batch.num_tokens == len(feed.positions)
    assert batch.seq_lens_cpu is None
    assert batch.seq_lens.dtype == torch.int32


def test_prefix_lengths_leave_the_new_tokens_out() -> None:
    full, prefix = extend_feed(extend_world()), extend_feed(extend_world(seq_lens="prefix"))
    assert full.seq_lens == [n + 4 for n in prefix.seq_lens]


def test_static_buffers_keep_their_addresses() -> None:
    world = extend_world()
    runner = Runner(world, 1, CpuGraphDriver().to_host)
    addresses = [runner.dummy(Mode.DRAFT_EXTEND, bs).seq_lens.data_ptr() for bs in (4, 2, 1)]
    assert len({*addresses, runner.padded(extend_feed(world), 4).seq_lens.data_ptr()}) == 1


def test_a_copy_of_a_cache_has_memory_of_its_own_and_the_same_gaps() -> None:
    kv = make_world(WORLDS["mha-scaled"], CPU).kv
    copy = copy_of(kv)
    assert copy.k.stride() == kv.k.stride()
    assert copy.k.untyped_storage().data_ptr() == copy.v.untyped_storage().data_ptr() != kv.k.data_ptr()


# -- kernels -----------------------------------------------------------------------------------------------------------


def call(world: World, rows: int, covered: int, workspace: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    spec = world.spec
    query = torch.randn(rows, spec.num_q_heads, spec.head_dim)
    offsets = torch.tensor([0, *[covered] * len(lengths)], dtype=torch.int32)
    table = torch.zeros(len(lengths), spec.max_pages, dtype=torch.int32)
    return world.kernels.decode(
        query, world.kv.kv_cache(), workspace, table, torch.tensor(lengths, dtype=torch.int32), spec.max_context,
        kv_layout="NHD", q_len_per_req=None, cum_seq_lens_q=offsets, max_q_len=rows,
    )  # fmt: skip


@pytest.fixture
def mha_world() -> World:
    world = make_world(WORLDS["mha-target"], CPU)
    Truth(world)
    return world


def test_rows_that_the_offsets_do_not_cover_are_nan(mha_world: World) -> None:
    out = call(mha_world, 3, 2, torch.zeros(1 << 16, dtype=torch.uint8), [5])
    assert torch.isfinite(out[:2]).all()
    assert torch.isnan(out[2]).all()


def test_the_plug_logs_what_a_kernel_saw_and_counts_dirty_workspaces(mha_world: World) -> None:
    with mha_world.kernels.logging() as calls:
        call(mha_world, 2, 2, torch.zeros(1 << 16, dtype=torch.uint8), [5])
        call(mha_world, 2, 2, torch.ones(1 << 16, dtype=torch.uint8), [7])
    assert [c.tensors["seq_lens"].tolist() for c in calls] == [[5], [7]]
    assert calls[0].host["max_seq_len"] == mha_world.spec.max_context
    assert mha_world.kernels.dirty_launches() == 1


# -- guards ------------------------------------------------------------------------------------------------------------


def test_a_write_past_an_end_is_seen_and_named() -> None:
    with Guards() as guards:
        small = torch.zeros(3, dtype=torch.int32)
        torch.full((2, 2), 7.0)
    assert guards.damaged() == []
    small.as_strided((4,), (1,), small.storage_offset())[3] = 9
    assert len(guards.damaged()) == 1
    assert guards.damaged()[0].startswith("torch.int32 [3] made at ")
    assert "test_contract_parts.py" in guards.damaged()[0]


def test_guarded_tensors_hold_what_was_asked_for() -> None:
    with Guards():
        made = [torch.zeros(2, 3), torch.ones((4,), dtype=torch.int64), torch.full((2,), 5), torch.empty(0)]
    assert [list(t.shape) for t in made] == [[2, 3], [4], [2], [0]]
    assert made[0].eq(0).all()
    assert made[1].eq(1).all()
    assert made[2].tolist() == [5, 5]
    assert made[2].dtype == torch.int64


# -- words -------------------------------------------------------------------------------------------------------------

FACTS = BatchFacts(seq_lens=[100, 200, 300], accept_length=[0, 3, 1], num_draft_tokens=4)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([0, 4, 8, 12], "uniform stride 4: [0, 4, 8, 12]"),
        ([0, 1, 5, 7], "packed by accept_length: [0, 1, 5, 7]"),
        ([0, 100, 300, 600], "packed by seq_lens: [0, 100, 300, 600]"),
        ([100, 200, 300], "seq_lens: [100, 200, 300]"),
        ([104, 204, 304], "seq_lens + 4: [104, 204, 304]"),
        ([103, 200, 302], "seq_lens - (accept_length + 1) + 4: [103, 200, 302]"),
        ([1, 4, 2], "accept_length + 1: [1, 4, 2]"),
        ([3, 3, 3], "the same for all rows: [3, 3, 3]"),
        ([9, 1, 5], "[9, 1, 5]"),
    ],
)
def test_metadata_is_put_in_the_terms_of_the_batch(numbers: list[int], text: str) -> None:
    assert words(torch.tensor(numbers, dtype=torch.int32), FACTS) == text


def test_a_buffer_that_nobody_wrote_is_called_so() -> None:
    zeros = torch.zeros(3, dtype=torch.int32)
    assert words(zeros, FACTS, unwritten=True) == "never written before capture (zero-initialised)"


# -- exemptions and factories ------------------------------------------------------------------------------------------


def test_an_exemption_takes_out_its_field_and_needs_a_reason() -> None:
    fault = FAULTS["mha-replay-stale-unread-offsets"]
    scenario = Scenario.parse(fault.scenario)

    def exempted(exemption: Exemption) -> list[Any]:
        def factory(world: World) -> Any:
            return fault.factory(world)

        factory.exemptions = [exemption]  # type: ignore[attr-defined]
        return findings(scenario, factory, CpuGraphDriver())

    assert exempted(Exemption("same_metadata", "read by no kernel", field="cu_seqlens_k")) == []
    assert exempted(Exemption("same_metadata", "read by no kernel", field="cu_seqlens_k", world="mha-draft"))
    assert exempted(Exemption("same_metadata", "another field", field="page_table"))
    with pytest.raises(ValueError, match="needs a reason"):
        Exemption("same_metadata", " ")
    with pytest.raises(ValueError, match="no check 'metadata'"):
        Exemption("metadata", "why not")


def test_a_factory_may_say_what_shapes_it_serves() -> None:
    seen = []

    def factory(world: World) -> Any:
        seen.append(world.spec.page_size)
        return default_backend(world)

    factory.adapt = lambda spec: replace(spec, page_size=32)  # type: ignore[attr-defined]
    assert findings(Scenario("mha-target"), factory, CpuGraphDriver()) == []
    assert set(seen) == {32}


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("gpu_tests", "is not MODULE:FACTORY"),
        ("no_such_module:make", "No module named 'no_such_module'"),
        ("gpu_tests.backends:no_such", "module gpu_tests.backends has no 'no_such'"),
        ("gpu_tests.backends:default_backnd", "did you mean 'default_backend'?"),
        (":make", "is not MODULE:FACTORY"),
        ("gpu_tests.contract.drive:WARMUPS", "is 'int', not a factory that takes a World"),
    ],
)
def test_a_wrong_factory_says_what_is_wrong(path: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_factory(path)


def test_checks_are_named_in_the_order_from_cause_to_symptom() -> None:
    names = list(CHECKS)
    assert names.index("guards") < names.index("stability") < names.index("output") < names.index("sensitivity")


def test_a_module_that_fails_to_import_says_what_it_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "engine_that_raises.py").write_text("import json\njson.no_such\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=r"importing engine_that_raises raised AttributeError: .*no_such"):
        load_factory("engine_that_raises:make")


# -- backends that are none --------------------------------------------------------------------------------------------


def raises(world: World) -> MyBackend:
    raise RuntimeError("no weights here")


class WrongShape(MyBackend):
    def forward(self, step: int, inputs: Inputs, batch: Batch) -> torch.Tensor:
        return super().forward(step, inputs, batch)[:, :1]


class WrongDtype(MyBackend):
    def forward(self, step: int, inputs: Inputs, batch: Batch) -> torch.Tensor:
        return super().forward(step, inputs, batch).double()


class ReturnsNothing(MyBackend):
    def forward(self, step: int, inputs: Inputs, batch: Batch) -> Any:
        super().forward(step, inputs, batch)


class TensorsAsMetadata(MyBackend):
    def metadata_objects(self) -> Any:
        return [self.metadata.lengths]


class NoMetadata(MyBackend):
    def metadata_objects(self) -> Any:
        return None


class NoFillValue(MyBackend):
    def fill_value(self) -> Any:
        return None


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (raises, "no weights here"),
        (lambda world: 42, "the factory returned 'int', which lacks capture_prepare, in_graph, "),
        (WrongShape, "forward returned torch.float32 [4, 1, 16], must be torch.float32 [4, 4, 16]"),
        (WrongDtype, "forward returned torch.float64 [4, 4, 16], must be torch.float32 [4, 4, 16]"),
        (ReturnsNothing, "forward returned None, must be torch.float32 [4, 4, 16]"),
        (TensorsAsMetadata, "metadata_objects() holds a 'Tensor', must hold dataclasses, namespaces or mappings"),
        (NoMetadata, "metadata_objects() returned 'NoneType', must be a list, one object a step"),
        (NoFillValue, "fill_value() returned None, must be an int"),
    ],
)
def test_what_is_no_backend_fails_with_what_it_should_have_been(factory: Any, message: str) -> None:
    (found,) = findings(Scenario("mha-target"), factory, CpuGraphDriver())
    assert found.check == "capture"
    assert message in found.message
