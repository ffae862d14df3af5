"""Which grid the rule chooses; tests/test_gpu_results.py compares it with what was measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_tests.reference.grids import choose_grid

pytestmark = pytest.mark.suite("attention-reference", gpus=0, est="30s")

MLA = {"num_heads": 16, "num_kv_heads": 1, "head_dim_v": 512, "max_q_len": 1, "num_sms": 132}
GQA = {"num_heads": 64, "num_kv_heads": 8, "head_dim_v": 128, "max_q_len": 1, "num_sms": 132}


@pytest.mark.parametrize("model", [MLA, GQA], ids=["MLA", "GQA"])
def test_equal_lengths_are_split_and_one_long_request_among_short_ones_is_balanced(model: dict[str, int]) -> None:
    assert choose_grid([8192] * 32, max_seq_len=8192, **model).grid == "split"
    assert choose_grid([8192] + [100] * 31, max_seq_len=8192, **model).grid == "balanced"


def test_the_reason_gives_the_figures() -> None:
    choice = choose_grid([8192] * 32, max_seq_len=8192, **MLA)
    assert choice.reason == "32 blocks of 64 keys on the busiest place with splits, 34 on the balanced grid"


def test_a_window_has_no_balanced_grid() -> None:
    assert choose_grid([8192] + [100] * 31, max_seq_len=8192, window_left=127, **GQA).grid == "split"


def test_all_wrong_numbers_are_named_at_once() -> None:
    wrong = MLA | {"num_heads": 10, "num_kv_heads": 4, "num_sms": 0}
    with pytest.raises(ValueError, match=r"num_sms: got 0, .*; num_heads: got 10, .* multiple .*; seq_lens: got -1"):
        choose_grid([5, -1], max_seq_len=10, **wrong)
    with pytest.raises(ValueError, match="num_kv_heads: got 0, must be 1 or more"):
        choose_grid([5], max_seq_len=10, **(MLA | {"num_kv_heads": 0}))


def test_a_length_out_of_range_is_an_error() -> None:
    with pytest.raises(ValueError, match="got 9000, must be from 0 to max_seq_len = 8192"):
        choose_grid([100, 9000], max_seq_len=8192, **MLA)


@given(st.lists(st.integers(0, 4096), max_size=40), st.sampled_from([MLA, GQA]))
def test_any_batch_has_a_choice_that_does_not_depend_on_the_order(lengths: list[int], model: dict[str, int]) -> None:
    # With one wave of programs every place has one of them, in whatever order.
    choice = choose_grid(lengths, max_seq_len=4096, **model)
    if model is MLA:
        assert choose_grid(lengths[::-1], max_seq_len=4096, **model) == choice
