"""The decode kernels against the fp64 oracle, per row: in PyTorch on any machine, in Triton on a GPU.

On a GPU every shape is also captured into a CUDA graph, its lengths, pages and contents are changed in place,
and the replay must give the bits of an eager launch and the values of the oracle. With TRITON_INTERPRET=1 the
Triton kernels run on the CPU, in fp32.

Outputs and workspaces are NaN before each launch; dead slots, spare pages and guard pages are NaN throughout.
"""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gpu_tests.reference.decode import (
    KernelPreconditionError,
    pack_mask,
    trtllm_batch_decode_with_kv_cache,
    workspace_bytes,
)
from gpu_tests.reference.trial import (
    Kernel,
    Launch,
    Shape,
    assert_accepted,
    assert_ragged_accepted,
    assert_strict_marks_the_request_without_keys,
    same_bits,
)

pytestmark = pytest.mark.suite("attention-reference", gpus=0, est="30s")

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


ON_CPU = Kernel("torch", "cpu", (torch.bfloat16, torch.float16, torch.float32, torch.float64))
ON_GPU = Kernel("triton", "cuda", (torch.bfloat16, torch.float16))
KERNELS = [ON_CPU]
if torch.cuda.is_available():
    KERNELS.append(ON_GPU)
elif INTERPRETED:
    KERNELS.append(Kernel("triton", "cpu", (torch.float32,)))


# Every shape, eager and replayed.

FAMILIES = [(16, 0), (128, 0), (64, 8)]
PAGES = [16, 32, 64]
Q_LENS = [1, 4]


def lengths_of(page: int, kind: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Lengths at capture and at replay: other lengths in every row, growing and shrinking."""
    return {
        "tiny": ((0, 1, 5, 2), (3, 0, 1, 9)),
        "page edges": ((page - 1, page, page + 1, 2 * page), (2 * page + 1, page, page - 1, 1)),
        "tile edges": ((63, 64, 65, 129), (128, 127, 1, 192)),
        "varied": ((3000, 0, 17, 700, 1, 256), (5, 1500, 2999, 0, 130, 64)),
    }[kind]


LENGTHS = ["tiny", "page edges", "tile edges", "varied"]
SHAPES = [
    Shape(heads, kv_heads, page, q_len, *lengths_of(page, kind), layout="HND" if page == 32 else "NHD")
    for (heads, kv_heads), page, q_len, kind in product(FAMILIES, PAGES, Q_LENS, LENGTHS)
]
assert len(SHAPES) == 72


def selected(kernel: Kernel, shape: Shape) -> bool:
    """A GPU runs all shapes; a CPU few with 128 heads and none that is long; the interpreter, which is slow,
    a few.
    """
    if kernel.device == "cuda":
        return True
    if kernel.backend == "triton":
        return shape.max_seq_len < 40 and shape.heads == 16 and shape.page_size == 16
    return shape.max_seq_len < 300 and (shape.heads < 128 or shape.page_size == 64)


CASES = [
    pytest.param(kernel, shape, id=f"{kernel}-{shape}")
    for kernel in KERNELS
    for shape in SHAPES
    if selected(kernel, shape)
]


@pytest.mark.parametrize(("kernel", "shape"), CASES)
def test_every_row_agrees_with_the_oracle(kernel: Kernel, shape: Shape) -> None:
    dtype = kernel.dtypes[SHAPES.index(shape) % len(kernel.dtypes)]
    launch = Launch(kernel, shape, dtype)
    assert_accepted(launch, launch.run())
    launch.fill(shape.replay_lengths, seed=1)
    eager = launch.run()
    assert_accepted(launch, eager)
    assert same_bits(eager, launch.run())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: a real CUDA graph")
def test_replay_after_a_change_in_place_equals_eager(shape: Shape) -> None:
    launch = Launch(ON_GPU, shape, torch.bfloat16)
    launch.run()  # compiles the kernels: that cannot happen inside a capture
    replay = replayed(launch)
    launch.fill(shape.replay_lengths, seed=1)
    eager = launch.run()
    assert_accepted(launch, eager)
    for _ in range(3):
        assert same_bits(eager, replay())


# The balanced grid.

BALANCED = {
    "page edges": ((15, 16, 17, 32), (33, 16, 15, 1)),
    "empty ends": ((0, 0, 130, 0, 64, 0, 0), (64, 0, 0, 0, 0, 0, 1)),
    "all empty": ((0, 0, 0), (0, 1, 0)),
    "one request": ((300,), (1,)),
    "many requests": (tuple(i * 37 % 51 for i in range(20)), tuple(i * 91 % 50 for i in range(20))),
}
BALANCED_SHAPES = {
    f"balanced-{name.replace(' ', '-')}-{family}": Shape(*heads, 16, q_len, *lengths, head_dim=64, grid="balanced")
    for name, lengths in BALANCED.items()
    for family, heads, q_len in (("mla", (16, 0), 1), ("gqa", (8, 2), 1), ("gqa-q4", (8, 2), 4))
}


@pytest.mark.parametrize("name", BALANCED_SHAPES)
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_the_balanced_grid_agrees_with_the_oracle_and_with_itself(kernel: Kernel, name: str) -> None:
    launch = Launch(kernel, BALANCED_SHAPES[name], kernel.dtypes[0])
    assert_accepted(launch, launch.run())
    replay = replayed(launch) if kernel.device == "cuda" else launch.run
    launch.fill(launch.shape.replay_lengths, seed=1)
    eager = launch.run()
    assert_accepted(launch, eager)
    assert same_bits(eager, replay())


def replayed(launch: Launch) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    """A captured launch; a call replays it over NaN."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch.launch()

    def replay() -> tuple[torch.Tensor, torch.Tensor]:
        for buffer in (launch.out, launch.lse, launch.workspace):
            buffer.fill_(math.nan)
        graph.replay()
        return launch.out, launch.lse

    return replay


# What the options mean.

BASE = Shape(8, 2, 16, 1, (0, 1, 15, 16, 17, 65), head_dim=64)
VERIFY = replace(BASE, q_len=4)
LONG = replace(VERIFY, lengths=(700, 3, 129))
OPTIONS = {
    **{f"window {left}": replace(LONG, window_left=left) for left in (0, 1, 128, 129, 699, 700, 9999)},
    "window, one token": replace(LONG, q_len=1, window_left=5),
    "sinks": replace(LONG, sinks=(0.0, -math.inf, 40.0, 3.0, 0.5, -1.0, 2.0, 1.0)),
    "sinks and window": replace(LONG, sinks=(0.0, -math.inf, 40.0, 3.0, 0.5, -1.0, 2.0, 1.0), window_left=64),
    "MLA sinks": Shape(4, 0, 16, 2, (300, 2), sinks=(0.0, -math.inf, 40.0, 3.0)),
    "draft tree": replace(LONG, lengths=(700, 4, 129), parents=(-1, 0, 0, 2)),
    "draft tree with window": replace(LONG, lengths=(700, 4, 129), parents=(-1, 0, 0, 2), window_left=70),
    "MLA draft tree": Shape(4, 0, 16, 4, (300, 4), parents=(-1, 0, 1, 0)),
    "more query tokens than keys": replace(VERIFY, lengths=(1, 2, 3, 4)),
    "heads not a power of two": replace(VERIFY, heads=6),
    "MQA": replace(VERIFY, kv_heads=1),
    "MHA": replace(VERIFY, kv_heads=8),
    "MLA, 6 heads": Shape(6, 0, 16, 3, (300, 2)),
    "fp8 KV": replace(LONG, kv_dtype=torch.float8_e4m3fn, scales=(0.5, 1.75)),
    "sinks, few requests": replace(LONG, lengths=(700, 3), sinks=(0.0, -math.inf, 40.0, 3.0, 0.5, -1.0, 2.0, 1.0)),
    "sinks, balanced": replace(LONG, sinks=(0.0, -math.inf, 40.0, 3.0, 0.5, -1.0, 2.0, 1.0), grid="balanced"),
    "MLA draft tree, balanced": Shape(4, 0, 16, 4, (300, 4), parents=(-1, 0, 1, 0), grid="balanced"),
    "fp8 KV, balanced": replace(LONG, kv_dtype=torch.float8_e4m3fn, scales=(0.5, 1.75), grid="balanced"),
    "page size 1": replace(VERIFY, page_size=1),
    "page size 128": replace(LONG, page_size=128),
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_options_agree_with_the_oracle(kernel: Kernel, name: str) -> None:
    launch = Launch(kernel, OPTIONS[name], kernel.dtypes[0])
    assert_accepted(launch, launch.run())


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_memory_layout_does_not_change_a_bit(kernel: Kernel) -> None:
    results = []
    for layout, storage in product(("NHD", "HND"), ("separate", "page", "token")):
        launch = Launch(kernel, replace(LONG, layout=layout, storage=storage), kernel.dtypes[0])
        results.append(launch.run())
        assert_accepted(launch, results[-1])
    assert all(same_bits(results[0], other) for other in results[1:])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU with 40 GB")
def test_pages_further_than_two_to_the_31_elements_apart() -> None:
    # page * stride in int32 wraps: vllm-project/vllm#47671, flashinfer-ai/flashinfer#3136.
    launch = Launch(ON_GPU, Shape(16, 0, 16, 1, (100, 17, 64), page_gap=2**28), torch.bfloat16)
    assert int(launch.block_tables[0, :7].max()) * launch.cache.k.stride(0) >= 2**31
    assert_accepted(launch, launch.run())


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_a_request_has_the_same_bits_whatever_its_neighbours_are(kernel: Kernel) -> None:
    launch = Launch(kernel, replace(LONG, lengths=(700, 3, 129), replay_lengths=(700, 3, 129)), kernel.dtypes[0])
    before = launch.run()
    launch.seq_lens[1:] = torch.tensor([0, 1])
    after = launch.run()
    rows = launch.rows(0)
    assert same_bits((before[0][rows], before[1][rows]), (after[0][rows], after[1][rows]))


GRIDS = pytest.mark.parametrize("grid", ["split", "balanced"])


@GRIDS
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_strict_writes_nan_into_requests_without_keys_and_nowhere_else(kernel: Kernel, grid: str) -> None:
    launch = Launch(kernel, replace(VERIFY, lengths=(0, 1, 20), grid=grid), kernel.dtypes[0], empty_rows="strict")
    assert_strict_marks_the_request_without_keys(launch)


@GRIDS
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_ragged_queries_write_only_the_rows_that_the_offsets_cover(kernel: Kernel, grid: str) -> None:
    launch = Launch(kernel, replace(VERIFY, lengths=(20, 33, 5), grid=grid), kernel.dtypes[0])
    assert_ragged_accepted(launch, (0, 1, 5, 7))


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_ragged_mla_with_uniform_offsets_equals_the_uniform_call(kernel: Kernel) -> None:
    launch = Launch(kernel, Shape(4, 0, 16, 2, (20, 0, 33)), kernel.dtypes[0])
    uniform = launch.run()
    assert same_bits(uniform, launch.run_ragged((0, 2, 4, 6)))


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_tensor_scales_are_read_when_the_kernel_runs(kernel: Kernel) -> None:
    launch = Launch(kernel, BASE, kernel.dtypes[0])
    bmm1, bmm2 = (torch.full((1,), scale, device=kernel.device) for scale in (0.3, 2.5))
    from_floats = launch.run(bmm1_scale=float(bmm1), bmm2_scale=2.5)
    from_tensors = launch.run(bmm1_scale=bmm1, bmm2_scale=bmm2)
    torch.testing.assert_close(from_tensors, from_floats, rtol=1e-2, atol=1e-5, equal_nan=True)
    bmm1.fill_(0.1)
    assert not torch.equal(launch.run(bmm1_scale=bmm1, bmm2_scale=bmm2)[0], from_tensors[0])


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_outputs_that_are_not_given_are_made_also_in_inference_mode(kernel: Kernel) -> None:
    launch = Launch(kernel, BASE, kernel.dtypes[0])
    expected = launch.run()
    with torch.inference_mode():
        out, lse = trtllm_batch_decode_with_kv_cache(
            launch.query,
            launch.cache.kv_cache(),
            launch.workspace,
            launch.block_tables,
            launch.seq_lens,
            launch.shape.max_seq_len,
            launch.softmax_scale,
            backend=kernel.backend,
            return_lse=True,
            empty_rows="safe",
        )
    assert same_bits(expected, (out, lse))


# Broken arguments.


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_all_broken_preconditions_are_named_at_once(kernel: Kernel) -> None:
    launch = Launch(kernel, BASE, kernel.dtypes[0])
    with pytest.raises(KernelPreconditionError) as caught:
        launch.run(
            seq_lens=launch.seq_lens.long(),
            block_tables=launch.block_tables[:, ::2],
            max_seq_len=100_000,
            window_left=-2,
            grid="even",
            sinks=torch.zeros(3, device=kernel.device),
            out=launch.out[..., :8],
            o_scale=2.0,
            uses_shared_paged_kv_idx=True,
        )
    message = str(caught.value)
    for line in (
        "o_scale: got 2.0, must be 1.0: it is not implemented",
        "seq_lens: got int64, must be int32",
        "block_tables: got strides [6, 2], must be 1 in the last dimension",
        "max_seq_len: got 100000, must be 1 to 48, what 3 pages of 16 hold",
        "window_left: got -2, must be -1 (none) or a count",
        "grid: got even, must be split or balanced",
        "sinks: got shape [3], must be [8]",
        "out: got shape [6, 8, 8], must be [6, 8, 64]",
    ):
        assert line in message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"q_len_per_req": 1, "cum_seq_lens_q": torch.zeros(7).int(), "max_q_len": 1},
            "None when cum_seq_lens_q",
        ),
        ({"q_len_per_req": None, "cum_seq_lens_q": torch.zeros(7).int()}, "max_q_len: got None"),
        ({"q_len_per_req": 2}, "query: got 6 rows, must be 6 requests x 2 query tokens"),
        ({"kv_layout": "NDH"}, "kv_layout: got NDH"),
        ({"kv_cache": torch.zeros(3, 1, 2, 16, 64)}, "kv_cache: got \\[3, 1, 2, 16, 64\\]"),
        ({"query": torch.zeros(6, 8, 32)}, "kv_cache: got shape"),
        ({"query": torch.zeros(6, 64)}, "query: got \\[6, 64\\]"),
        ({"query": torch.zeros(6)}, "query: got \\[6\\]"),
        ({"backend": "cuda"}, "backend: got cuda, must be auto, gluon, triton or torch"),
        ({"empty_rows": "zero"}, "empty_rows: got zero"),
        ({"grid": "balanced", "window_left": 3}, "grid: got balanced, must be split with a window"),
        ({"bmm1_scale": torch.zeros(1).double()}, "bmm1_scale: got float64"),
        ({"bmm1_scale": "1"}, "bmm1_scale: got '1', must be a number or a tensor"),
        ({"bmm2_scale": None}, "bmm2_scale: got None, must be a number or a tensor"),
        ({"bmm1_scale": 10**400}, "bmm1_scale: got 10+, must be finite in float32"),
        ({"bmm2_scale": float("nan")}, "bmm2_scale: got nan, must be finite in float32"),
        ({"bmm2_scale": torch.zeros(2)}, r"bmm2_scale: got shape \[2\], must be \[1\]"),
        ({"grid": np.array(["split"])}, r"grid: got \['split'\], must be split or balanced"),
        ({"q_len_per_req": None, "cum_seq_lens_q": torch.zeros(7).int(), "max_q_len": 2**63}, "max_q_len: got 9223"),
        *(({name: None}, f"{name}: got None, must be a tensor$") for name in ("query", "block_tables", "seq_lens")),
        *(
            ({name: [1, 2]}, f"{name}: got a list, must be a tensor")
            for name in ("query", "block_tables", "seq_lens", "workspace_buffer", "sinks", "mask", "out", "lse")
        ),
        ({"cum_seq_lens_q": [0, 6], "q_len_per_req": None}, "cum_seq_lens_q: got a list, must be a tensor or None"),
        ({"kv_cache": None}, "kv_cache: got None, must be a tensor or a pair \\(K, V\\)"),
        ({"kv_cache": (torch.zeros(3, 2, 16, 64), None)}, "kv_cache: got None, must be tensors"),
        ({"kv_cache": torch.zeros(3, 2, 0, 16, 64)}, "kv_cache: got 0 KV heads, must be 1 or more"),
        ({"kv_cache": torch.zeros(3, 2, 2, 0, 64), "kv_layout": "HND"}, "kv_cache: got pages of 0"),
        ({"query": torch.zeros(6, 0, 64)}, "query: got 0 heads, must be n x 2 KV heads"),
        ({"max_seq_len": "48"}, "max_seq_len: got '48', must be an integer"),
        ({"max_seq_len": 48.0}, "max_seq_len: got 48.0, must be an integer"),
        ({"max_seq_len": torch.tensor(48)}, "max_seq_len: got a Tensor, must be an integer"),
        ({"window_left": None}, "window_left: got None, must be an integer"),
        ({"q_len_per_req": 1.0}, "q_len_per_req: got 1.0, must be an integer or None"),
        ({"q_len_per_req": True}, "q_len_per_req: got True, must be an integer or None"),
        ({"max_q_len": "1"}, "max_q_len: got '1', must be an integer or None"),
        ({"out_dtype": "bfloat16"}, "out_dtype: got 'bfloat16', must be a dtype or None"),
        ({"block_tables": torch.tensor(0).int()}, r"block_tables: got shape \[\], must be \[any, any\]"),
        ({"block_tables": torch.zeros(6).int()}, r"block_tables: got shape \[6\], must be \[any, any\]"),
        ({"block_tables": torch.zeros(0, 6).int()}, "block_tables: got 0 requests, must be 1 or more"),
        ({"backend": "triton"}, "query: got device cpu, must be on a GPU in Triton, or in its interpreter"),
    ],
)
def test_a_broken_precondition_is_named(
    options: dict[str, object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    launch = Launch(ON_CPU, BASE, torch.float32)
    with pytest.raises(KernelPreconditionError, match=message):
        launch.run(**options)


@pytest.mark.parametrize(
    ("options", "messages"),
    [
        (
            {"query": None, "seq_lens": [1], "max_seq_len": "1", "o_scale": 2.0, "backend": "cuda", "grid": "even"},
            [
                *("query: got None", "seq_lens: got a list", "max_seq_len: got '1'", "o_scale: got 2.0"),
                *("backend: got cuda", "grid: got even"),
            ],
        ),
        (
            {"block_tables": torch.zeros(6).int(), "seq_lens": torch.zeros(6), "backend": "cuda", "window_left": -2},
            ["block_tables: got shape [6]", "seq_lens: got float32", "backend: got cuda", "window_left: got -2"],
        ),
        (
            {"backend": "triton", "workspace_buffer": None, "max_seq_len": 0, "sinks": torch.zeros(3)},
            ["query: got device cpu", "workspace_buffer: got None", "max_seq_len: got 0", "sinks: got shape [3]"],
        ),
        (
            {"backend": "gluon", "workspace_buffer": torch.zeros(64)[::2], "q_len_per_req": 2},
            ["query: got 6 rows", "workspace_buffer: got strides [2], must be contiguous"],
        ),
    ],
)
def test_what_stands_by_itself_is_named_beside_everything_else(
    options: dict[str, object], messages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(KernelPreconditionError) as caught:
        Launch(ON_CPU, BASE, torch.float32).run(**options)
    assert [message for message in messages if message not in str(caught.value)] == []


def break_length(launch: Launch) -> None:
    launch.seq_lens[2] = launch.shape.max_seq_len + 1


def break_page(launch: Launch) -> None:
    launch.block_tables[2, 0] = launch.cache.num_pages


def break_page_to_minus_one(launch: Launch) -> None:
    launch.block_tables[2, 0] = -1


@GRIDS
@pytest.mark.parametrize("fault", [break_length, break_page, break_page_to_minus_one])
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_metadata_that_breaks_the_contract_shows(kernel: Kernel, fault: object, grid: str) -> None:
    launch = Launch(kernel, replace(BASE, lengths=(3, 20, 17, 65), grid=grid), kernel.dtypes[0])
    healthy = launch.run()
    fault(launch)  # type: ignore[operator]
    if kernel.backend == "torch":
        with pytest.raises(KernelPreconditionError, match=r"seq_lens\[2\]"):
            launch.run()
    else:
        out, lse = launch.run()
        assert out[2].isnan().all()
        assert lse[2].isnan().all()
        others = [0, 1, 3]
        assert out[others].isfinite().all()
        if grid == "split":
            assert same_bits((healthy[0][others], healthy[1][others]), (out[others], lse[others]))


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([0, 2, 4, 7], "0 to 7, must be inside the 6 rows"),
        ([0, 4, 2, 6], "got -2, must be"),
        ([0, 5, 5, 6], "got 5"),
    ],
)
def test_offsets_that_break_the_contract_show(offsets: list[int], message: str) -> None:
    launch = Launch(ON_CPU, replace(BASE, lengths=(5, 6, 7), q_len=2), torch.float32)
    cum_seq_lens_q = torch.tensor(offsets, dtype=torch.int32)
    with pytest.raises(KernelPreconditionError, match=message):
        launch.run(cum_seq_lens_q=cum_seq_lens_q, q_len_per_req=None, max_q_len=4)


def test_an_unfit_workspace_is_refused_with_the_size_that_suffices(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="only the Triton kernel needs a workspace")
    importlib.import_module("gpu_tests.reference.division")  # its kernels are defined for a GPU, as other tests need
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # nothing is run: the workspace is refused
    launch = Launch(ON_CPU, BASE, torch.float32)
    with pytest.raises(KernelPreconditionError, match=r"workspace_buffer: got 4 bytes, must be at least \d+ bytes"):
        launch.run(backend="triton", workspace_buffer=torch.zeros(1))
    odd = torch.zeros(1 << 20, dtype=torch.uint8)[3:]
    message = "workspace_buffer: got an address 3 bytes past a multiple of 16, must be aligned to 16 bytes"
    with pytest.raises(KernelPreconditionError, match=message):
        launch.run(backend="triton", workspace_buffer=odd)


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("window_left", [1000, 2**31 - 1, 2**63])
def test_a_window_wider_than_any_request_is_none(kernel: Kernel, window_left: int) -> None:
    # Added to a position it would leave the range of int32.
    launch = Launch(kernel, replace(VERIFY, lengths=(0, 1, 2, 40)), kernel.dtypes[0])
    assert same_bits(launch.run(window_left=window_left), launch.run())


def test_numbers_of_numpy_and_scales_without_a_dimension_are_as_good_as_others() -> None:
    launch = Launch(ON_CPU, VERIFY, torch.float32)
    options = {"q_len_per_req": np.int16(VERIFY.q_len), "max_seq_len": np.int32(launch.shape.max_seq_len)}
    options |= {"window_left": np.int64(-1), "cp_world": np.int64(1), "bmm1_scale": torch.tensor(launch.softmax_scale)}
    assert same_bits(launch.run(**options), launch.run(bmm1_scale=torch.tensor([launch.softmax_scale])))
    shapes = {"batch_size": 40000, "num_heads": 128, "num_kv_heads": 1, "head_dim_v": 512, "max_q_len": 8}
    shapes |= {"max_seq_len": 8192}
    narrow = {name: np.int32(number) for name, number in shapes.items()}
    assert workspace_bytes(**narrow) == workspace_bytes(**shapes) > 2**31  # type: ignore[arg-type]


def test_the_pytorch_kernel_gives_the_same_bits_for_either_grid() -> None:
    launch = Launch(ON_CPU, VERIFY, torch.float32)
    assert same_bits(launch.run(grid="split"), launch.run(grid="balanced"))


def test_the_bytes_of_a_workspace_are_refused_with_all_wrong_numbers() -> None:
    with pytest.raises(ValueError, match="workspace_bytes:") as caught:
        workspace_bytes(
            batch_size=0, num_heads=-1, num_kv_heads=0, head_dim_v="8", max_q_len=0, max_seq_len=0, grid="even"
        )  # fmt: skip
    for line in (
        *(f"{name}: got 0, must be 1 or more" for name in ("batch_size", "num_kv_heads", "max_q_len", "max_seq_len")),
        "num_heads: got -1, must be 1 or more",
        "head_dim_v: got '8', must be an integer",
        "grid: got even, must be split or balanced",
    ):
        assert line in str(caught.value)
    with pytest.raises(ValueError, match="num_heads: got 5, must be a multiple of num_kv_heads = 2"):
        workspace_bytes(batch_size=1, num_heads=5, num_kv_heads=2, head_dim_v=8, max_q_len=1, max_seq_len=1)


# What a graph recorder sees.


class Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func.namespace == "nightcap" or func.name() == "aten::item":
            self.kernels.append(func.name())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("shape", [VERIFY, Shape(4, 0, 16, 2, (20, 0, 33))], ids=str)
def test_one_launch_is_one_node_without_a_host_read(kernel: Kernel, shape: Shape) -> None:
    launch = Launch(kernel, shape, kernel.dtypes[0])
    with torch.inference_mode(), Recorder() as recorder:
        launch.launch()
    assert recorder.kernels == [f"nightcap::paged_decode_{kernel.backend}"]


def test_packed_masks_have_a_bit_a_draft_token() -> None:
    mask = torch.zeros(1, 2, 40, dtype=torch.bool)
    mask[0, 0, [0, 15, 16, 39]] = True
    packed = pack_mask(mask)
    assert packed.dtype == torch.uint16
    assert packed.tolist() == [[[0x8001, 1, 1 << 7, 0], [0, 0, 0, 0]]]
