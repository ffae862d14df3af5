"""The Gluon MLA kernel on a Hopper GPU against the fp64 oracle, eager and replayed; which kernel is chosen, and
why, on any machine.

Every shape is captured with one set of lengths, pages and contents and replayed with another, changed in
place: the replay must give the bits of an eager launch and the values of the oracle. Outputs and workspaces
are NaN before each launch; dead slots, spare pages and guard pages are NaN throughout.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor

from gpu_tests.reference import select
from gpu_tests.reference.decode import KernelPreconditionError
from gpu_tests.reference.trial import (
    BROKEN_METADATA,
    GLUON,
    HOPPER,
    Kernel,
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


# Shapes.


FP8 = {"kv_dtype": torch.float8_e4m3fn, "scales": (1.75, 1.75)}
CACHES = pytest.mark.parametrize("cache", [{}, FP8], ids=["bf16", "fp8"])


def lengths_of(page: int) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Lengths at capture and at replay: other lengths in every row, growing and shrinking."""
    return {
        "tiny": ((0, 1, 5, 2), (3, 0, 1, 9)),
        "page edges": ((page - 1, page, page + 1, 2 * page), (2 * page + 1, page, page - 1, 1)),
        "block edges": ((63, 64, 65, 129), (128, 127, 1, 192)),
        "varied": ((3000, 0, 17, 700, 1, 256), (5, 1500, 2999, 0, 130, 64)),
    }


TRIALS = [
    Trial(Shape(heads, 0, page, q_len, *lengths), splits)
    for heads, page, q_len in [*product((16, 128), (64, 128), (1, 2, 4, 8)), *product((16, 128), (16, 32), (1, 4))]
    for kind, lengths in lengths_of(page).items()
    for splits in ((1, 2, 5, None) if kind == "varied" else (1, None))
] + [
    Trial(Shape(heads, 0, 64, q_len, *lengths_of(64)["varied"]), splits)
    for heads, q_len, splits in product((5, 6, 24, 64), (1, 3), (1, None))
]
assert len(TRIALS) >= 150

FP8_TRIALS = [
    Trial(Shape(heads, 0, page, q_len, *lengths, **FP8), splits)
    for heads, page, q_len in [
        *product((16, 128), (16, 32, 64, 128), (1, 4)),
        *((16, 1, 1), (16, 8, 4), (128, 2, 1), (24, 64, 3), (16, 256, 8)),
    ]
    for kind, lengths in lengths_of(page).items()
    for splits in ((1, 3, None) if kind == "varied" else (None,))
]
assert len(FP8_TRIALS) >= 100

BALANCED = {
    "page edges": ((63, 64, 65, 128), (129, 64, 63, 1)),
    "varied": ((3000, 0, 17, 700, 1, 256), (5, 1500, 2999, 0, 130, 64)),
    "empty ends": ((0, 0, 130, 0, 64, 0, 0), (64, 0, 0, 0, 0, 0, 1)),
    "all empty": ((0, 0, 0), (0, 1, 0)),
    "one request": ((4000,), (1,)),
    "many requests": (tuple(i * 37 % 501 for i in range(90)), tuple(i * 91 % 400 for i in range(90))),
}
BALANCED_TRIALS = [
    pytest.param(
        Trial(Shape(heads, 0, page, q_len, *lengths, grid="balanced", **cache), runs),
        id=f"{'fp8-' * bool(cache)}balanced-{name.replace(' ', '-')}-mla{heads}-page{page}-q{q_len}-runs{runs or ''}",
    )
    for name, lengths in BALANCED.items()
    for cache, kinds in (
        ({}, ((16, 64, 1), (16, 128, 4), (128, 64, 2), (16, 16, 1), (16, 32, 4))),
        (FP8, ((16, 64, 1), (128, 128, 4), (16, 16, 4), (16, 4, 1))),
    )
    for heads, page, q_len in kinds
    for runs in (1, 3, 50, None)
]


@needs_hopper
@pytest.mark.parametrize("trial", [*([*TRIALS, *FP8_TRIALS] if HOPPER else TRIALS[:1]), *BALANCED_TRIALS], ids=str)
def test_every_row_agrees_with_the_oracle_and_replay_with_eager(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = trial.launch(monkeypatch)
    assert_accepted(launch, launch.run())
    replay = replayed(launch)
    launch.fill(trial.shape.replay_lengths, seed=1)
    eager = launch.run()
    assert_accepted(launch, eager)
    assert same_bits(eager, replay())


LONG = Shape(16, 0, 64, 4, (1700, 4, 129, 64))
OPTIONS = {
    "sinks": replace(LONG, sinks=(0.0, -math.inf, 40.0, 3.0) * 4),
    "draft tree": replace(LONG, parents=(-1, 0, 0, 2)),
    "more query tokens than keys": replace(LONG, lengths=(1, 2, 3, 4)),
    "sinks, 128 heads": replace(LONG, heads=128, sinks=(0.0, -math.inf, 40.0, 3.0) * 32),
    "sinks, fp8": replace(LONG, sinks=(0.0, -math.inf, 40.0, 3.0) * 4, **FP8),
    "draft tree, fp8": replace(LONG, page_size=16, parents=(-1, 0, 0, 2), **FP8),
    "draft tree, 128 heads, fp8": replace(LONG, heads=128, parents=(-1, 0, 0, 2), **FP8),
    "more query tokens than keys, fp8": replace(LONG, page_size=32, lengths=(1, 2, 3, 4), **FP8),
    "two roots": replace(LONG, parents=(-1, -1, 1, 1), lengths=(67, 131, 66, 4)),  # the first one ends a block
    "two roots, fp8": replace(LONG, parents=(-1, -1, 1, 1), lengths=(67, 131, 66, 4), **FP8),
    "few rows, two roots": replace(LONG, heads=4, parents=(-1, -1, 1, 1), lengths=(67, 131, 66, 4)),
    "few rows, two roots, fp8": replace(LONG, heads=4, parents=(-1, -1, 1, 1), lengths=(67, 131, 66, 4), **FP8),
    "few rows, sinks": replace(LONG, q_len=1, sinks=(0.0, -math.inf, 40.0, 3.0) * 4),
    "few rows, draft tree": replace(LONG, heads=4, parents=(-1, 0, 0, 2)),
    "few rows, more query tokens than keys": replace(LONG, heads=4, page_size=32, lengths=(1, 2, 3, 4)),
    "few rows, sinks and draft tree, fp8": replace(
        LONG, heads=4, sinks=(0.0, -math.inf, 40.0, 3.0), parents=(-1, 0, 0, 2), **FP8
    ),
}
OPTIONS |= {f"{name}, balanced": replace(shape, grid="balanced") for name, shape in OPTIONS.items()}
SPLITS = [1, 3, None]
HEADS = pytest.mark.parametrize("heads", [4, 16])
"""With 4 query tokens 16 rows, which have a kernel of their own, and 64."""


@needs_hopper
@pytest.mark.parametrize("splits", SPLITS)
@pytest.mark.parametrize("name", OPTIONS)
def test_options_agree_with_the_oracle(name: str, splits: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = Trial(OPTIONS[name], splits).launch(monkeypatch)
    assert_accepted(launch, launch.run())


GRIDS = pytest.mark.parametrize("grid", ["split", "balanced"])


@needs_hopper
@GRIDS
@HEADS
@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, torch.float8_e4m3fn], ids=["bf16", "fp8"])
@pytest.mark.parametrize("splits", SPLITS)
def test_ragged_queries_write_only_the_rows_that_the_offsets_cover(
    splits: int | None, kv_dtype: torch.dtype, heads: int, grid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = replace(LONG, heads=heads, lengths=(400, 33, 5), grid=grid, kv_dtype=kv_dtype)
    launch = Trial(shape, splits).launch(monkeypatch)
    assert_ragged_accepted(launch, (0, 1, 5, 7))


@needs_hopper
@CACHES
@HEADS
@pytest.mark.parametrize("splits", SPLITS)
def test_tensor_scales_are_read_at_replay(
    splits: int | None, heads: int, cache: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = Trial(replace(LONG, heads=heads, **cache), splits).launch(monkeypatch)
    scales = [torch.full((1,), value, device="cuda") for value in (0.3, 2.5)]
    launch.run(bmm1_scale=scales[0], bmm2_scale=scales[1])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch.launch(bmm1_scale=scales[0], bmm2_scale=scales[1])
    scales[0].fill_(0.1)
    scales[1].fill_(0.5)
    graph.replay()
    replayed_bits = launch.out.clone(), launch.lse.clone()
    assert same_bits(replayed_bits, launch.run(bmm1_scale=scales[0], bmm2_scale=scales[1]))
    floats = launch.run(bmm1_scale=float(scales[0]), bmm2_scale=0.5)
    torch.testing.assert_close(replayed_bits, floats, rtol=1e-2, atol=1e-5)


@needs_hopper
@GRIDS
@HEADS
@pytest.mark.parametrize("splits", SPLITS)
def test_strict_writes_nan_into_requests_without_keys_and_nowhere_else(
    splits: int | None, heads: int, grid: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = Trial(replace(LONG, heads=heads, lengths=(0, 1, 200), grid=grid), splits).launch(
        monkeypatch, empty_rows="strict"
    )
    assert_strict_marks_the_request_without_keys(launch)


@needs_hopper
@CACHES
@pytest.mark.parametrize("heads", [16, 128])
@pytest.mark.parametrize("page", [16, 64])
@pytest.mark.parametrize("splits", SPLITS)
@pytest.mark.parametrize("fault", BROKEN_METADATA)
def test_metadata_that_breaks_the_contract_shows_in_that_request_alone(
    fault: Callable[[Launch], None],
    splits: int | None,
    page: int,
    heads: int,
    cache: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shape = replace(LONG, heads=heads, q_len=1, page_size=page, lengths=(300, 200, 1025), **cache)
    launch = Trial(shape, splits).launch(monkeypatch)
    healthy = launch.run()
    fault(launch)
    out, lse = launch.run()
    assert out[1].isnan().all()
    assert lse[1].isnan().all()
    others = [0, 2]
    assert same_bits((healthy[0][others], healthy[1][others]), (out[others], lse[others]))


@needs_hopper
@CACHES
@pytest.mark.parametrize("heads", [16, 128])
@pytest.mark.parametrize("fault", BROKEN_METADATA)
def test_metadata_that_breaks_the_contract_poisons_its_request_on_the_balanced_grid(
    fault: Callable[[Launch], None], heads: int, cache: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = replace(LONG, heads=heads, q_len=1, lengths=(300, 200, 1025), grid="balanced", **cache)
    launch = Trial(shape, 7).launch(monkeypatch)
    fault(launch)
    out, lse = launch.run()
    assert [bool(row.isnan().all()) for row in out] == [False, True, False]
    assert lse.isnan().all(dim=1).tolist() == [False, True, False]


@needs_hopper
@pytest.mark.slow
@pytest.mark.parametrize(
    "shape",
    [
        Shape(16, 0, 64, 1, (8192, 1, 700, 0, 4000) * 6, grid="balanced"),
        Shape(16, 0, 64, 1, (32768,)),
        Shape(16, 0, 64, 4, (8192, 1, 700, 8191) * 4),
        Shape(128, 0, 128, 1, (4096, 0, 3000, 17) * 32),
        Shape(16, 0, 16, 1, (8192, 1, 700, 0, 4000) * 6, grid="balanced", **FP8),
        Shape(16, 0, 64, 4, (8192, 1, 700, 8191) * 4, **FP8),
        Shape(128, 0, 128, 1, (4096, 0, 3000, 17) * 32, **FP8),
    ],
    ids=str,
)
def test_1500_replays_give_the_same_bits(shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = Trial(shape, None).launch(monkeypatch)
    expected = launch.run()
    replay = replayed(launch)
    differing = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(1500):
        for got, want in zip(replay(), expected, strict=True):
            differing += (got.view(torch.uint8) != want.view(torch.uint8)).sum()
    assert int(differing) == 0


def single_keys(monkeypatch: pytest.MonkeyPatch, heads: int) -> Launch:
    """Four requests of one key each over an fp8 cache: the weight is 1, and a row of the output is that key."""
    launch = Trial(replace(LONG, heads=heads, q_len=1, lengths=(1,) * 4, kv_dtype=torch.float8_e4m3fn), 1).launch(
        monkeypatch
    )
    launch.query.zero_()
    return launch


def write_key(launch: Launch, request: int, codes: Tensor) -> None:
    """Stores e4m3 `codes` [512], uint8, as the latent columns of the only key of a request; its rope is 0."""
    page = int(launch.block_tables[request, 0])
    row = launch.cache.k.view(torch.uint8)[page, 0, 0]
    row.zero_()
    row[: len(codes)] = codes


@needs_hopper
@pytest.mark.parametrize("heads", [16, 64])
def test_every_finite_e4m3_is_read_exactly_wherever_it_stands(heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = single_keys(monkeypatch, heads)
    codes = torch.arange(512, device="cuda").to(torch.uint8)  # each code twice
    codes[codes & 0x7F == 0x7F] = 0  # NaN
    rolled = torch.stack([codes.roll(shift) for shift in range(4)])
    for request in range(4):
        write_key(launch, request, rolled[request])
    out, _ = launch.run()
    expected = rolled.view(torch.float8_e4m3fn).to(torch.bfloat16)
    assert torch.equal(out, expected[:, None].expand_as(out))


@needs_hopper
@pytest.mark.parametrize("heads", [16, 64])
@pytest.mark.parametrize("code", [0x7F, 0xFF])
def test_nan_in_a_live_key_in_fp8_is_nan_in_the_rows_that_see_it(
    code: int, heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = single_keys(monkeypatch, heads)
    for request in range(4):
        codes = torch.zeros(512, dtype=torch.uint8, device="cuda")
        codes[300] = code if request == 1 else 0
        write_key(launch, request, codes)
    out, lse = launch.run()
    assert out.isnan().all(dim=(1, 2)).tolist() == [False, True, False, False]
    assert lse.isnan().all(dim=1).tolist() == [False, True, False, False]
    assert (out[[0, 2, 3]] == 0).all()


@needs_hopper
def test_auto_takes_gluon_for_mla_and_triton_for_what_it_cannot_run(caplog: pytest.LogCaptureFixture) -> None:
    select.log_once.cache_clear()
    shapes = (LONG, replace(LONG, page_size=8), replace(LONG, page_size=8, **FP8))
    with caplog.at_level(logging.INFO, logger=select.__name__):
        for shape in shapes:
            launch = Launch(GLUON, shape, torch.bfloat16)
            assert_accepted(launch, launch.run(backend="auto"))
    assert [record.args[0] for record in caplog.records if record.args] == ["gluon", "triton", "gluon"]


# Which kernel, and why: on any machine.

MLA = {"v": None, "head_dim_v": 512, "capability": (9, 0), "triton": "3.6.0"}


def mla_tensors(
    page_size: int = 64, dtype: torch.dtype = torch.bfloat16, kv_dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    return torch.zeros(4, 16, 576, dtype=dtype), torch.zeros(3, page_size, 1, 576, dtype=kv_dtype or dtype)


def fp8_tensors(page_size: int = 64, dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, Tensor]:
    return mla_tensors(page_size, dtype, torch.float8_e4m3fn)


def with_page_gap(k: Tensor, gap: int) -> Tensor:
    """A cache as `k` with `gap` elements between its pages."""
    pages = k.flatten(1)
    return torch.zeros(len(pages), pages.shape[1] + gap, dtype=k.dtype)[:, : pages.shape[1]].unflatten(1, k.shape[1:])


def test_mla_on_hopper_runs_in_gluon_and_the_reason_says_so() -> None:
    choice = select.choose(*mla_tensors(), **MLA)
    assert choice.kernel == "gluon"
    assert choice.reason == "MLA in bfloat16 over a cache in bfloat16 with pages of 64 on Hopper, Triton 3.6.0"


@pytest.mark.parametrize("page_size", [1, 2, 16, 64, 256])
def test_mla_over_an_fp8_cache_runs_in_gluon_with_pages_of_any_power_of_two(page_size: int) -> None:
    choice = select.choose(*fp8_tensors(page_size), **MLA)
    cache = f"a cache in float8_e4m3fn with pages of {page_size}"
    assert choice == select.Choice("gluon", f"MLA in bfloat16 over {cache} on Hopper, Triton 3.6.0")


@pytest.mark.parametrize(
    ("options", "tensors", "reason"),
    [
        ({"capability": (10, 0)}, mla_tensors(), "device sm_100, must be Hopper"),
        ({"triton": "3.9.0"}, mla_tensors(), "triton: got 3.9.0, must be one of 3.6"),
        ({"triton": None}, mla_tensors(), "triton: got None"),
        ({}, mla_tensors(page_size=8), "pages of 8, must be (16, 32, 64, 128)"),
        ({}, mla_tensors(dtype=torch.float16), "float16, must be bfloat16"),
        ({}, mla_tensors(dtype=torch.float16), "kv_cache: got float16, must be bfloat16 or float8_e4m3fn in Gluon"),
        ({}, fp8_tensors(dtype=torch.float16), "query: got float16, must be bfloat16 in Gluon"),
        ({}, fp8_tensors(page_size=48), "pages of 48, must be a power of two in Gluon"),
        ({}, (fp8_tensors()[0], with_page_gap(fp8_tensors()[1], 8)), "must be aligned to 16 bytes in Gluon"),
        ({"head_dim_v": 256}, mla_tensors(), "(256, 320) columns, must be (512, 64)"),
        ({}, (mla_tensors()[0][:, :8], mla_tensors()[1]), "tokens without gaps"),
    ],
)
def test_what_gluon_cannot_run_goes_to_triton_and_the_reason_names_it(
    options: dict[str, object], tensors: tuple[Tensor, Tensor], reason: str
) -> None:
    choice = select.choose(*tensors, **(MLA | options))
    assert choice.kernel == "triton"
    assert reason in choice.reason


def test_tensors_on_the_cpu_run_in_torch() -> None:
    choice = select.choose(*mla_tensors(), **(MLA | {"capability": None}))
    assert choice == select.Choice("torch", "the query is on cpu")


def test_a_forced_kernel_that_cannot_run_the_launch_names_all_reasons() -> None:
    cpu = Kernel("torch", "cpu", (torch.float32,))
    launch = Launch(cpu, replace(LONG, page_size=8, heads=4), torch.float32)
    with pytest.raises(KernelPreconditionError) as caught:
        launch.run(backend="gluon")
    for problem in ("device cpu", "pages of 8", "query: got float32", "kv_cache: got float32"):
        assert problem in str(caught.value)


def test_each_choice_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    select.log_once.cache_clear()
    launch = Launch(Kernel("torch", "cpu", (torch.float32,)), replace(LONG, heads=4), torch.float32)
    with caplog.at_level(logging.INFO, logger=select.__name__):
        launch.run(backend="auto")
        launch.run(backend="auto")
    assert caplog.messages == ["paged decode runs in torch: the query is on cpu"]
