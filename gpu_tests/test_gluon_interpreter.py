"""The Gluon kernels against the fp64 oracle on a CPU, role by role: pieces, rings, phases, masks and formulas of every
kernel and option, without a GPU. Layouts and the order of memory accesses are for the suites on a Hopper GPU.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_tests.reference.trial import (
    BROKEN_METADATA,
    Kernel,
    Launch,
    Shape,
    Trial,
    assert_accepted,
    assert_ragged_accepted,
    assert_strict_marks_the_request_without_keys,
    same_bits,
)

pytestmark = [
    pytest.mark.suite("attention-reference", gpus=0, est="30s"),
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None, reason="needs triton, in which the kernels are written"
    ),
]

ON_CPU = Kernel("gluon", "cpu", (torch.bfloat16,))
FP8: dict[str, Any] = {"kv_dtype": torch.float8_e4m3fn, "scales": (0.5, 1.75)}
MLA, GQA = Shape(18, 0, 64, 4, (130, 4, 65)), Shape(12, 2, 32, 4, (130, 4, 65))
FEW_ROWS, FEW_GQA = replace(MLA, heads=4), replace(GQA, heads=4, **FP8)  # with kernels of their own


@pytest.fixture(autouse=True)
def kernels() -> Iterator[list[Any]]:
    from gpu_tests.reference.gluon_interpreter import interpreted

    with interpreted() as kernels:
        yield kernels


def trial(shape: Shape, splits: int | None) -> Trial:
    return Trial(shape, splits, kernel=ON_CPU)


EDGES = {"q1": (1, (63, 64, 0, 65, 1, 129)), "q4": (4, (66, 4, 0, 128, 1))}
SHAPES = [
    trial(replace(family, page_size=page, q_len=q_len, lengths=lengths, grid=grid, **cache), splits)
    for family, cache in (*product((MLA, FEW_ROWS, GQA), ({}, FP8)), (FEW_GQA, {}))
    for page, (q_len, lengths) in product((16, 64, 128), EDGES.values())
    for grid, splits in (("split", 1), ("split", 2), ("balanced", 3), ("balanced", 7))
]


@pytest.mark.parametrize("case", SHAPES, ids=lambda case: f"{case}-{case.shape.grid}")
def test_every_row_agrees_with_the_oracle(case: Trial, kernels: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    launch = case.launch(monkeypatch)
    assert_accepted(launch, launch.run())
    assert sum(kernel.programs for kernel in kernels) > 0


SINKS = (0.0, -math.inf, 40.0, 3.0)
OPTIONS = {
    "draft tree and sinks": replace(GQA, sinks=SINKS * 3, parents=(-1, 0, 0, 2)),
    "draft tree and sinks, fp8": replace(GQA, sinks=SINKS * 3, parents=(-1, 0, 0, 2), **FP8),
    "window": replace(GQA, window_left=40),
    "window, fp8": replace(GQA, window_left=40, **FP8),
    "few rows, draft tree and sinks": replace(FEW_GQA, sinks=SINKS, parents=(-1, 0, 0, 2)),
    "few rows, window": replace(FEW_GQA, window_left=40),
    "few rows, window of one key": replace(FEW_GQA, q_len=1, window_left=0, lengths=(130, 1, 64, 65)),
    "few rows, 64 columns, fp16": replace(FEW_GQA, head_dim=64, layout="NHD"),
    "more tokens than keys": replace(GQA, lengths=(1, 2, 3)),
    "64 columns, one group, fp16": replace(GQA, heads=2, head_dim=64),
    "many rows": replace(GQA, heads=24, kv_heads=1, lengths=(70,)),
    "NHD, pages with both sides": replace(GQA, layout="NHD", storage="page"),
    "MLA, draft tree and sinks": replace(MLA, heads=8, sinks=SINKS * 2, parents=(-1, 0, 0, 2)),
    "MLA, draft tree, fp8": replace(MLA, heads=8, parents=(-1, 0, 0, 2), **FP8),
    "MLA, pages of one key, fp8": replace(MLA, page_size=1, lengths=(70, 4), **FP8),
    "MLA, few rows, draft tree and sinks": replace(FEW_ROWS, sinks=SINKS, parents=(-1, 0, 0, 2)),
    "MLA, few rows, draft tree and sinks, fp8": replace(FEW_ROWS, sinks=SINKS, parents=(-1, 0, 0, 2), **FP8),
    "MLA, few rows, pages of one key, fp8": replace(FEW_ROWS, page_size=1, lengths=(70, 4), **FP8),
    "MLA, few rows, more tokens than keys": replace(FEW_ROWS, lengths=(1, 2, 3)),
}
OPTIONS |= {
    f"two roots, the first one the last key of a block, {name}": replace(
        family, parents=(-1, -1, 1, 1), lengths=(67, 131, 66, 4)
    )
    for name, family in {
        "GQA": GQA, "GQA, fp8": replace(GQA, **FP8), "GQA, few rows": FEW_GQA,
        "MLA": replace(MLA, heads=8), "MLA, fp8": replace(MLA, heads=8, **FP8),
        "MLA, few rows": FEW_ROWS, "MLA, few rows, fp8": replace(FEW_ROWS, **FP8),
    }.items()
}  # fmt: skip


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("name", OPTIONS)
def test_options_agree_with_the_oracle(name: str, splits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dtype = torch.float16 if "fp16" in name else torch.bfloat16
    launch = replace(trial(OPTIONS[name], splits), dtype=dtype).launch(monkeypatch)
    assert_accepted(launch, launch.run())


@st.composite
def launches(draw: st.DrawFn) -> tuple[Shape, int | None]:
    """Any shape that the kernels take. Prefix or whole of a request end near that of a block, and trees fit into it."""
    mla, fp8, tree = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    kv_heads, q_len = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    heads = draw(st.sampled_from([1, 4, 5, 17])) * (1 if mla else kv_heads)
    near = st.sampled_from([-1, 0, 1, q_len - 1, q_len, q_len + 1])
    edges = st.tuples(st.integers(0, 3), near).map(lambda edge: max(64 * edge[0] + edge[1], q_len * tree))
    lengths = draw(st.lists(edges, min_size=1, max_size=3))
    grid = draw(st.sampled_from(["split", "balanced"]))
    window = draw(st.sampled_from([-1, 0, 5, 63, 64])) if grid == "split" and not mla else -1
    shape = Shape(
        heads, 0 if mla else kv_heads, draw(st.sampled_from([16, 32, 64, 128])), q_len, tuple(lengths), grid=grid,
        window_left=window, layout=draw(st.sampled_from(["HND", "NHD"])), head_dim=draw(st.sampled_from([64, 128])),
        sinks=draw(st.sampled_from([(), SINKS * heads]))[:heads],
        parents=tuple(draw(st.integers(-1, token - 1)) for token in range(q_len)) if tree else (),
        **(FP8 if fp8 else {}),
    )  # fmt: skip
    return shape, draw(st.sampled_from([1, 2, 5]))


@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(launches())
def test_any_launch_agrees_with_the_oracle(of: tuple[Shape, int | None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        launch = trial(*of).launch(patch)
        assert_accepted(launch, launch.run())


FAMILIES = pytest.mark.parametrize(
    "family", [MLA, FEW_ROWS, GQA, FEW_GQA], ids=["MLA", "MLA, few rows", "GQA", "GQA, few rows"]
)
GRIDS = pytest.mark.parametrize(("grid", "splits"), [("split", 1), ("split", 2), ("balanced", 3)])


@FAMILIES
@GRIDS
def test_ragged_queries_write_only_the_rows_that_the_offsets_cover(
    family: Shape, grid: str, splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = trial(replace(family, lengths=(130, 33, 5), grid=grid), splits).launch(monkeypatch)
    assert_ragged_accepted(launch, (0, 1, 5, 7))


@FAMILIES
@GRIDS
def test_strict_writes_nan_into_requests_without_keys_and_nowhere_else(
    family: Shape, grid: str, splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = trial(replace(family, lengths=(0, 1, 70), grid=grid), splits).launch(monkeypatch, empty_rows="strict")
    assert_strict_marks_the_request_without_keys(launch)


@FAMILIES
@GRIDS
@pytest.mark.parametrize("fault", BROKEN_METADATA)
def test_metadata_that_breaks_the_contract_poisons_that_request_alone(
    fault: Callable[[Launch], None], family: Shape, grid: str, splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = trial(replace(family, q_len=1, lengths=(65, 100, 3), grid=grid), splits).launch(monkeypatch)
    fault(launch)
    out, lse = launch.run()
    assert [bool(row.isnan().all()) for row in out] == [False, True, False]
    assert lse.isnan().all(dim=1).tolist() == [False, True, False]


@pytest.mark.parametrize("family", [FEW_ROWS, GQA, FEW_GQA], ids=["MLA, few rows", "GQA", "GQA, few rows"])
def test_over_fp8_a_query_out_of_the_range_of_float16_has_the_bits_of_one_in_it(
    family: Shape, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = trial(replace(family, **FP8), 2).launch(monkeypatch)
    expected = launch.run()
    launch.query *= 2.0**40
    assert same_bits(launch.run(bmm1_scale=launch.softmax_scale * launch.shape.scales[0] / 2.0**40), expected)


LAUNCHED = {
    "MLA": (MLA, "gluon_mla"), "MLA, fp8": (replace(MLA, **FP8), "gluon_mla"),
    "MLA, few rows": (FEW_ROWS, "gluon_mla_rows"), "MLA, few rows, fp8": (replace(FEW_ROWS, **FP8), "gluon_mla_rows"),
    "MLA, few rows, fp8, small pages": (replace(FEW_ROWS, page_size=8, **FP8), "gluon_mla"),
    "GQA": (GQA, "gluon_gqa"), "GQA, fp8": (replace(GQA, **FP8), "gluon_gqa"),
    "GQA, few rows": (FEW_GQA, "gluon_gqa_rows"), "GQA, few rows, bf16": (replace(GQA, heads=4), "gluon_gqa"),
}  # fmt: skip


@pytest.mark.parametrize(("family", "module"), LAUNCHED.values(), ids=LAUNCHED)
def test_a_maximum_that_leaves_the_range_of_weights_is_renewed_and_few_rows_have_their_kernel(
    family: Shape, module: str, kernels: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Scores of random vectors are too much alike for that: the first block would have the maximum of all.
    launch = trial(replace(family, lengths=(260, 70)), 1).launch(monkeypatch)
    launch.query *= 10
    assert_accepted(launch, launch.run())
    assert {kernel.kernel.fn.__module__.rpartition(".")[2] for kernel in kernels if kernel.programs} == {module}


# What it is there to find.


def changed(monkeypatch: pytest.MonkeyPatch, module: str, name: str, before: str, after: str) -> None:
    """Replaces text in the source of a function of a kernel."""
    import inspect
    import sys
    import types

    of = sys.modules[f"gpu_tests.reference.{module}"]
    kernel = getattr(of, name)
    source = inspect.getsource(kernel.fn)
    assert before in source
    text = source[source.index("def ") :].replace(before, after)
    names: dict[str, Any] = {}
    exec(compile("from __future__ import annotations\n" + text, f"{module} changed", "exec"), vars(of), names)
    function = types.FunctionType(names[name].__code__, kernel.fn.__globals__, name)
    monkeypatch.setattr(kernel, "fn", function)


FAULTS = {
    "a tile is never given back": (GQA, "gluon_gqa", "_attend_role", "mbarrier.arrive(free", "(free"),
    "a ring of the wrong length": (GQA, "gluon_gqa_load", "_load_tile", "ring // TILES & 1", "ring // 2 & 1"),
    "dead keys are not cleared": (GQA, "gluon_parts", "clear_keys_outside", "(key < end)", "(key < end + 1)"),
    "the last block is not masked": (GQA, "gluon_parts", "hides_a_key", "length - q_len", "length + 64"),
    "a piece begins one block late": (GQA, "pieces", "piece_of", "run_begin - start, 0)", "run_begin - start, 1)"),
    "keys of another page": (GQA, "gluon_parts", "page_ids", "key // PAGE, mask", "key // PAGE * 0, mask"),
    "few rows, the scale of a row is lost": (
        FEW_ROWS, "gluon_mla_rows", "_attend_role", "row_scale *= gl", "row_scale = scale * gl.max(power, 0) + 0 * gl",
    ),
    "few rows, both halves are one": (FEW_ROWS, "gluon_mla_rows", "_load_role", "slot, HALF, PAGE", "slot, 0, PAGE"),
    "few rows, a tile is converted twice": (
        FEW_ROWS, "gluon_mla_rows", "_convert_role", "2 * step, 2 * step + 1", "2 * step, 2 * step",
    ),
    "few rows of GQA, dead values are kept": (
        FEW_GQA, "gluon_gqa_rows", "_attend_role", "(key < length))", "(key < length + 1))",
    ),
    "few rows of GQA, a tile is never given back": (
        FEW_GQA, "gluon_gqa_rows", "_attend_role", "mbarrier.arrive(free", "(free",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_in_a_kernel_is_found(fault: tuple[Shape, str, str, str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    from gpu_tests.reference import gluon_interpreter

    monkeypatch.setattr(gluon_interpreter, "WAIT_SECONDS", 0.5)
    family, *change = fault
    cache = FP8 if family is FEW_ROWS else {}
    launch = trial(replace(family, lengths=(900, 70, 33), grid="balanced", **cache), 3).launch(monkeypatch)
    assert_accepted(launch, launch.run())
    changed(monkeypatch, *change)
    with pytest.raises(AssertionError):
        assert_accepted(launch, launch.run())
