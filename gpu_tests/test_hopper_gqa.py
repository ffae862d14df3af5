"""The Gluon kernel of MHA and GQA on a Hopper GPU against the fp64 oracle, eager and replayed; what it takes, on any
machine.

As in `test_hopper_kernels`: captured with one set of lengths, pages and contents, replayed with another, changed
in place; outputs and workspaces are NaN before each launch, dead slots, spare pages and guard pages throughout.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor

from gpu_tests.reference import select
from gpu_tests.reference.trial import (
    BROKEN_METADATA,
    HOPPER,
    Launch,
    Shape,
    Trial,
    assert_accepted,
    assert_ragged_accepted,
    assert_strict_marks_the_request_without_keys,
    needs_hopper,
    replayed,
    same_bits,
)

pytestmark = pytest.mark.suite("attention-reference", gpus=0, est="30s")


FP8 = {"kv_dtype": torch.float8_e4m3fn, "scales": (0.5, 1.75)}
VARIED = ((3000, 0, 17, 700, 1, 256), (5, 1500, 2999, 0, 130, 64))


def edges_of(page: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Lengths at the edges of pages and blocks at capture, and others at replay."""
    return (page - 1, page, page + 1, 63, 64, 65), (2 * page + 1, page, 1, 129, 128, 0)


TRIALS = (
    [
        Trial(Shape(heads, kv_heads, page, q_len, *lengths, **fp8), splits)
        for (heads, kv_heads), page, q_len, fp8 in product(((64, 8), (8, 8)), (16, 32, 64, 128), (1, 4), ({}, FP8))
        for lengths, splits in ((edges_of(page), 1), (edges_of(page), None), (VARIED, 1), (VARIED, 5), (VARIED, None))
    ]
    + [
        Trial(
            Shape(heads, kv_heads, 32, q_len, *VARIED, layout=layout, storage=storage, head_dim=head_dim), None, dtype
        )
        for heads, kv_heads, q_len, layout, storage, head_dim, dtype in (
            (24, 2, 8, "HND", "page", 128, torch.bfloat16),
            (24, 2, 3, "NHD", "page", 128, torch.float16),
            (128, 1, 1, "NHD", "separate", 128, torch.bfloat16),
            (32, 8, 4, "HND", "separate", 64, torch.float16),
            (32, 8, 2, "NHD", "separate", 64, torch.bfloat16),
            (6, 6, 1, "HND", "page", 64, torch.bfloat16),
        )
    ]
    + [
        Trial(Shape(heads, kv_heads, 32, q_len, *VARIED, layout=layout, head_dim=head_dim, **FP8), None, dtype)
        for heads, kv_heads, q_len, layout, head_dim, dtype in (
            (32, 8, 2, "NHD", 64, torch.bfloat16),
            (32, 8, 8, "HND", 64, torch.bfloat16),
            (16, 1, 1, "NHD", 128, torch.float16),
            (24, 2, 3, "NHD", 128, torch.float16),
        )
    ]
)
assert len(TRIALS) >= 150

BALANCED = {
    "page edges": edges_of(32),
    "varied": VARIED,
    "empty ends": ((0, 0, 130, 0, 64, 0, 0), (64, 0, 0, 0, 0, 0, 1)),
    "all empty": ((0, 0, 0), (0, 1, 0)),
    "one request": ((4000,), (1,)),
    "many requests": (tuple(i * 37 % 501 for i in range(90)), tuple(i * 91 % 400 for i in range(90))),
}
BALANCED_TRIALS = [
    pytest.param(
        Trial(replace(shape, lengths=lengths[0], replay_lengths=lengths[1]), runs), id=f"{name}-{shape}-{runs}"
    )
    for name, lengths in BALANCED.items()
    for shape in (
        Shape(64, 8, 32, 1, (), grid="balanced"),
        Shape(64, 8, 16, 4, (), grid="balanced", **FP8),
        Shape(64, 8, 32, 2, (), grid="balanced", **FP8),
        Shape(8, 8, 64, 2, (), grid="balanced"),
    )
    for runs in (1, 3, 50, None)
]


@needs_hopper
@pytest.mark.parametrize("trial", [*(TRIALS if HOPPER else TRIALS[:1]), *BALANCED_TRIALS], ids=str)
def test_every_row_agrees_with_the_oracle_and_replay_with_eager(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = trial.launch(monkeypatch)
    assert_accepted(launch, launch.run())
    replay = replayed(launch)
    launch.fill(trial.shape.replay_lengths, seed=1)
    eager = launch.run()
    assert_accepted(launch, eager)
    assert same_bits(eager, replay())


LONG = Shape(64, 8, 32, 4, (1700, 4, 129, 64))
FEW_ROWS = replace(LONG, heads=32, **FP8)
"""16 of them, over fp8: they have a kernel of their own."""

SINKS = (0.0, -math.inf, 40.0, 3.0) * 16
OPTIONS = {
    "sinks": replace(LONG, sinks=SINKS),
    "draft tree": replace(LONG, parents=(-1, 0, 0, 2)),
    "more query tokens than keys": replace(LONG, lengths=(1, 2, 3, 4)),
    "window": replace(LONG, window_left=100),
    "window of one key": replace(LONG, q_len=1, window_left=0, lengths=(1700, 1, 64, 65)),
    "window and sinks": replace(LONG, q_len=1, window_left=127, sinks=SINKS, lengths=(1700, 128, 129, 64)),
    "window, fp8": replace(LONG, window_left=77, **FP8),
    "sinks and draft tree, fp8": replace(LONG, sinks=SINKS, parents=(-1, 0, 0, 2), **FP8),
    "few rows, sinks and draft tree, fp8": replace(FEW_ROWS, sinks=SINKS[:32], parents=(-1, 0, 0, 2)),
    "few rows, more query tokens than keys, fp8": replace(FEW_ROWS, lengths=(1, 2, 3, 4)),
    "few rows, window, fp8": replace(FEW_ROWS, window_left=77),
    "two roots": replace(LONG, parents=(-1, -1, 1, 1), lengths=(67, 131, 66, 4)),  # the first one ends a block
    "two roots, fp8": replace(LONG, parents=(-1, -1, 1, 1), lengths=(67, 131, 66, 4), **FP8),
    "few rows, two roots, fp8": replace(FEW_ROWS, parents=(-1, -1, 1, 1), lengths=(67, 131, 66, 4)),
    "few rows, window of one key, fp8": replace(FEW_ROWS, q_len=1, window_left=0, lengths=(1700, 1, 64, 65)),
}
OPTIONS |= {
    f"{name}, balanced": replace(shape, grid="balanced") for name, shape in OPTIONS.items() if shape.window_left < 0
}


@needs_hopper
@pytest.mark.parametrize("splits", [1, 3, None])
@pytest.mark.parametrize("name", OPTIONS)
def test_options_agree_with_the_oracle(name: str, splits: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = Trial(OPTIONS[name], splits).launch(monkeypatch)
    assert_accepted(launch, launch.run())


GRIDS = pytest.mark.parametrize("grid", ["split", "balanced"])
SHAPES = pytest.mark.parametrize("shape", [LONG, FEW_ROWS], ids=["bf16", "few rows, fp8"])


@needs_hopper
@GRIDS
@SHAPES
@pytest.mark.parametrize("splits", [1, 3, None])
def test_ragged_queries_write_only_the_rows_that_the_offsets_cover(
    splits: int | None, shape: Shape, grid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = Trial(replace(shape, lengths=(400, 33, 5), grid=grid), splits).launch(monkeypatch)
    assert_ragged_accepted(launch, (0, 1, 5, 7))


@needs_hopper
@GRIDS
@SHAPES
@pytest.mark.parametrize("splits", [1, 3, None])
def test_strict_writes_nan_into_requests_without_keys_and_nowhere_else(
    splits: int | None, shape: Shape, grid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = Trial(replace(shape, lengths=(0, 1, 200), grid=grid), splits).launch(monkeypatch, empty_rows="strict")
    assert_strict_marks_the_request_without_keys(launch)


@needs_hopper
@GRIDS
@pytest.mark.parametrize(
    "family", [LONG, replace(LONG, heads=256, **FP8), FEW_ROWS], ids=["bf16", "fp8", "few rows, fp8"]
)
@pytest.mark.parametrize("fault", BROKEN_METADATA)
def test_metadata_that_breaks_the_contract_poisons_that_request_alone(
    fault: Callable[[Launch], None], family: Shape, grid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = Trial(replace(family, q_len=1, lengths=(300, 200, 1025), grid=grid), 7).launch(monkeypatch)
    fault(launch)
    out, lse = launch.run()
    assert [bool(row.isnan().all()) for row in out] == [False, True, False]
    assert lse.isnan().all(dim=1).tolist() == [False, True, False]
    assert out[[0, 2]].isfinite().all()


# What it takes: on any machine.

GQA = {"head_dim_v": 128, "capability": (9, 0), "triton": "3.6.0"}


def tensors(
    page_size: int = 32, dtype: torch.dtype = torch.bfloat16, kv_dtype: torch.dtype | None = None, head_dim: int = 128
) -> tuple[Tensor, Tensor, Tensor]:
    cache = torch.zeros(2, 3, page_size, 8, head_dim, dtype=kv_dtype or dtype)
    return torch.zeros(4, 64, head_dim, dtype=dtype), *cache.unbind(0)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (tensors(), "bfloat16 over a cache in bfloat16 with pages of 32"),
        (tensors(kv_dtype=torch.float8_e4m3fn), "bfloat16 over a cache in float8_e4m3fn with pages of 32"),
        (tensors(dtype=torch.float16, head_dim=64), "float16 over a cache in float16"),
    ],
)
def test_gqa_on_hopper_runs_in_gluon_and_the_reason_says_so(given: tuple[Tensor, ...], words: str) -> None:
    choice = select.choose(*given, **GQA)
    assert choice.kernel == "gluon"
    assert choice.reason.startswith("MHA and GQA in " + words)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (tensors(page_size=8), "pages of 8, must be (16, 32, 64, 128)"),
        (tensors(dtype=torch.float32), "float32, must be bfloat16 or float16"),
        (tensors(head_dim=256), "(256, 256) columns, must be the same in keys and values, (64, 128)"),
        ((tensors()[0], tensors(head_dim=132)[1][..., 4:], tensors()[2]), "aligned to 16 bytes"),
    ],
)
def test_what_gluon_cannot_run_goes_to_triton_and_the_reason_names_it(given: tuple[Tensor, ...], reason: str) -> None:
    choice = select.choose(*given, **GQA)
    assert choice.kernel == "triton"
    assert reason in choice.reason
