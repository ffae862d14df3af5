"""The decode functions stand in for FlashInfer's: the same arguments go in, the same attention comes out.

`data/flashinfer-decode.json` holds the parameters of FlashInfer's functions with their defaults, in their order; one
list is a parameter, and has a second element if it has a default.  Where FlashInfer is installed it is compared with
the package, and on a Hopper GPU the calls of an engine go to FlashInfer's kernels and to ours: XQA for MHA, the fa3
wrapper for MLA (FlashInfer's own function of that name has no kernel for Hopper).
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gpu_tests.reference import decode, oracle
from gpu_tests.reference.decode import DEFAULTS_ONLY, KernelPreconditionError, pack_mask
from gpu_tests.reference.paged import shuffled_page_table

pytestmark = pytest.mark.suite("attention-reference", gpus=0, est="60s")

FACTS = json.loads((Path(__file__).parent / "data" / "flashinfer-decode.json").read_text())
FUNCTIONS: dict[str, list[list[Any]]] = FACTS["functions"]
MHA, MLA, XQA = (
    "trtllm_batch_decode_with_kv_cache",
    "trtllm_batch_decode_with_kv_cache_mla",
    "xqa_batch_decode_with_kv_cache",
)
OURS: dict[str, Callable[..., Any]] = {
    MHA: decode.trtllm_batch_decode_with_kv_cache,
    MLA: decode.trtllm_batch_decode_with_kv_cache_mla,
    XQA: decode.xqa_batch_decode_with_kv_cache,
}

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
INSTALLED = importlib.util.find_spec("flashinfer") is not None
needs_flashinfer = pytest.mark.skipif(not INSTALLED, reason="needs the package flashinfer-python")
needs_both = pytest.mark.skipif(
    not (HOPPER and INSTALLED), reason="needs a Hopper GPU (sm_90) and the package flashinfer-python"
)


# The calls that are compared.

HEADS, KV_HEADS, HEAD_DIM, LATENT, ROPE = 32, 4, 128, 512, 64
MLA_HEADS = 16
K_SCALE, V_SCALE = 0.5, 0.75
"""Scales of an fp8 cache: no two alike, so that one in the place of another shows."""


@dataclass(frozen=True)
class Call:
    """One call of an engine.  Page 0 belongs to no request; table tails hold it, as engines leave them."""

    page_size: int
    q_len: int = 1
    layout: str = "HND"
    window_left: int = -1
    sinks: bool = False
    fp8: bool = False

    def __str__(self) -> str:
        words = [self.layout, f"page{self.page_size}", f"q{self.q_len}"]
        words += [f"window{self.window_left}"] * (self.window_left >= 0)
        return "-".join(words + ["sinks"] * self.sinks + ["fp8"] * self.fp8)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Keys of each request: few, whole pages, and many."""
        return self.q_len + 2, 3 * self.page_size, 129, 700

    def common(self, device: str) -> dict[str, Any]:
        """The arguments that both families have."""
        width = -(-max(self.lengths) // self.page_size)
        pages = sum(-(-length // self.page_size) for length in self.lengths) + 1
        table = shuffled_page_table(self.lengths, self.page_size, pages - 1, width=width, seed=0, tail=-1) + 1
        return {
            "workspace_buffer": torch.zeros(128 << 20, dtype=torch.uint8, device=device),
            "block_tables": table.to(device),
            "seq_lens": torch.tensor(self.lengths, dtype=torch.int32, device=device),
            "max_seq_len": max(self.lengths),
        }

    def mha(self, device: str) -> dict[str, Any]:
        """Arguments of `trtllm_batch_decode_with_kv_cache`."""
        common = self.common(device)
        pages, tokens = int(common["block_tables"].max()) + 1, len(self.lengths) * self.q_len
        inner = (KV_HEADS, self.page_size) if self.layout == "HND" else (self.page_size, KV_HEADS)
        cache, k_scale, v_scale = normal(pages, 2, *inner, HEAD_DIM, device=device), 1.0, 1.0
        if self.fp8:
            k_scale, v_scale = K_SCALE, V_SCALE
            scales = torch.tensor([k_scale, v_scale], device=device)[:, None, None, None]
            cache = (cache / scales).to(torch.float8_e4m3fn)
        chain = torch.ones(self.q_len, self.q_len, dtype=torch.bool, device=device).tril()
        return common | {
            "query": normal(tokens, HEADS, HEAD_DIM, device=device),
            "kv_cache": cache,
            "bmm1_scale": k_scale * HEAD_DIM**-0.5,
            "bmm2_scale": v_scale,
            "window_left": self.window_left,
            "sinks": torch.linspace(-1, 5, HEADS, device=device) if self.sinks else None,
            "kv_layout": self.layout,
            "q_len_per_req": self.q_len,
            "mask": pack_mask(chain.expand(len(self.lengths), -1, -1)) if self.q_len > 1 else None,
        }

    def mla(self, device: str) -> dict[str, Any]:
        """Arguments of `trtllm_batch_decode_with_kv_cache_mla`."""
        common = self.common(device)
        pages = int(common["block_tables"].max()) + 1
        return common | {
            "query": normal(len(self.lengths), self.q_len, MLA_HEADS, LATENT + ROPE, device=device),
            "kv_cache": normal(pages, self.page_size, LATENT + ROPE, device=device),
            "qk_nope_head_dim": 128,
            "kv_lora_rank": LATENT,
            "qk_rope_head_dim": ROPE,
            "bmm1_scale": (128 + ROPE) ** -0.5,
        }


def normal(*shape: int, device: str) -> Tensor:
    generator = torch.Generator(device).manual_seed(len(shape))
    return torch.randn(shape, generator=generator, device=device).to(torch.bfloat16)


def largest_difference(a: Tensor, b: Tensor) -> float:
    """The largest difference in a row (token and head), in units of the row's largest element."""
    a, b = a.double(), b.double()
    return float(((a - b).abs().amax(-1) / b.abs().amax(-1)).max())


BF16, FP8 = 0.02, 0.15
"""Rows may differ by this part of their largest element: weights are rounded to bf16 at different places, and XQA
rounds queries and weights to e4m3 where the cache is fp8.
"""


# On any machine.


def written_down(parameters: Iterable[inspect.Parameter]) -> list[list[Any]]:
    """Parameters as the file of facts has them."""
    return [[p.name] if p.default is inspect.Parameter.empty else [p.name, p.default] for p in parameters]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_parameters_are_those_of_flashinfer_in_its_order_and_ours_are_taken_by_name_behind_them(name: str) -> None:
    parameters = list(inspect.signature(OURS[name]).parameters.values())
    theirs = len(FUNCTIONS[name])
    assert written_down(parameters[:theirs]) == FUNCTIONS[name]
    assert {p.kind for p in parameters[:theirs]} == {inspect.Parameter.POSITIONAL_OR_KEYWORD}
    assert {p.kind for p in parameters[theirs:]} == {inspect.Parameter.KEYWORD_ONLY}


WITHOUT_EFFECT = {"enable_pdl", "qk_nope_head_dim"}
"""A hint about scheduling, and the width of heads that no kernel sees, in FlashInfer neither."""


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_argument_is_read_or_refused(name: str) -> None:
    body = ast.parse(inspect.getsource(OURS[name])).body[0].body  # type: ignore[attr-defined]
    read = {node.id for statement in body for node in ast.walk(statement) if isinstance(node, ast.Name)}
    for parameter in inspect.signature(OURS[name]).parameters:
        assert [parameter in read, parameter in DEFAULTS_ONLY, parameter in WITHOUT_EFFECT].count(True) == 1, parameter


PARAMETERS = [
    (name, parameter, default[0])
    for name, parameters in FUNCTIONS.items()
    for parameter, *default in parameters
    if default
]


def arguments_of(name: str) -> dict[str, Any]:
    """A call on the CPU in the fewest arguments."""
    call = Call(16, layout="NHD" if name == XQA else "HND")
    arguments = call.mla("cpu") if name == MLA else call.mha("cpu")
    return {parameter: arguments[parameter] for parameter, *default in FUNCTIONS[name] if not default}


@pytest.mark.parametrize(("name", "parameter", "default"), PARAMETERS)
def test_the_default_of_every_parameter_is_taken_and_changes_nothing(name: str, parameter: str, default: Any) -> None:
    arguments = arguments_of(name)
    without = OURS[name](**arguments)
    assert torch.equal(OURS[name](**(arguments | {parameter: default})), without)


@pytest.mark.parametrize(("name", "parameter", "default"), [case for case in PARAMETERS if case[1] in DEFAULTS_ONLY])
def test_what_is_not_implemented_is_refused_by_name(name: str, parameter: str, default: Any) -> None:
    other = {type(None): 1, bool: not default, str: "other"}.get(type(default), 2)
    with pytest.raises(KernelPreconditionError, match=f"{parameter}: got {other}, must be {default}: it is not impl"):
        OURS[name](**(arguments_of(name) | {parameter: other}))


CALLS = [
    Call(page_size, q_len, layout)
    for page_size, q_len, layout in [
        (16, 1, "HND"), (32, 1, "NHD"), (64, 1, "HND"), (16, 4, "NHD"), (32, 4, "HND"), (64, 4, "NHD"),
    ]
] + [
    Call(32, 1, "NHD", sinks=True),
    Call(32, 4, "HND", sinks=True),
    Call(64, 1, "HND", window_left=17),
    Call(32, 4, "NHD", window_left=17),
    Call(32, 1, "HND", fp8=True),
    Call(64, 4, "NHD", fp8=True),
]  # fmt: skip


def live_keys(arguments: dict[str, Any], request: int) -> tuple[Tensor, Tensor]:
    """K and V [S, Hkv, D] of a request, from the pages of a call."""
    k, v = arguments["kv_cache"].unbind(1)
    if arguments["kv_layout"] == "HND":
        k, v = k.transpose(1, 2), v.transpose(1, 2)
    position = torch.arange(int(arguments["seq_lens"][request]))
    page = arguments["block_tables"][request].cpu()[position // k.shape[1]]
    return k[page, position % k.shape[1]], v[page, position % k.shape[1]]


@pytest.mark.parametrize("call", CALLS, ids=str)
@pytest.mark.parametrize("name", [MHA, XQA])
def test_the_calls_that_are_compared_mean_what_the_oracle_says(name: str, call: Call) -> None:
    arguments = call.mha("cpu")
    out = OURS[name](**arguments)
    if name == XQA and call.q_len > 1:
        assert out.shape == (len(call.lengths), call.q_len, HEADS, HEAD_DIM)
        out = out.flatten(0, 1)
    k_scale, v_scale = (K_SCALE, V_SCALE) if call.fp8 else (1.0, 1.0)
    for request in range(len(call.lengths)):
        k, v = live_keys(arguments, request)
        rows = slice(request * call.q_len, (request + 1) * call.q_len)
        truth = oracle.attention(
            arguments["query"][rows], k.double() * k_scale, v.double() * v_scale,
            scale=HEAD_DIM**-0.5, window_left=call.window_left, sinks=arguments["sinks"],
        ).out  # fmt: skip
        assert largest_difference(out[rows], truth) < BF16


# XQA's own interface.


def ragged(longest: int, device: str) -> tuple[dict[str, Any], list[Tensor]]:
    """A call with drafts of several lengths, none among them, and the mask [T, S] of each request: trees."""
    call = Call(32, longest, layout="NHD")
    counts = [longest, 0, 1, longest // 2 + 1]
    offsets = [sum(counts[:request]) for request in range(len(counts) + 1)]
    trees = [[(token - 2 if token % 2 else token - 1) for token in range(count)] for count in counts]
    trees = [[max(parent, -1) for parent in tree] for tree in trees]
    drafts = torch.zeros(sum(counts), longest, dtype=torch.bool)
    for (start, stop), tree in zip(pairwise(offsets), trees, strict=True):
        drafts[start:stop, : len(tree)] = oracle.tree_mask(tree, len(tree))
    arguments = call.mha(device)
    arguments |= {
        "query": arguments["query"][: sum(counts)],
        "mask": pack_mask(drafts[None])[0].to(device),
        "q_cu_seq_lens": torch.tensor(offsets, dtype=torch.int32, device=device),
    }
    return arguments, [oracle.tree_mask(tree, length) for tree, length in zip(trees, call.lengths, strict=True)]


@pytest.mark.parametrize("longest", [2, 4, 40])
def test_ragged_drafts_bring_the_rows_of_their_masks(longest: int) -> None:
    arguments, masks = ragged(longest, "cpu")
    out = OURS[XQA](**arguments)
    assert out.shape == arguments["query"].shape
    offsets = arguments["q_cu_seq_lens"].tolist()
    for request, (start, stop) in enumerate(pairwise(offsets)):
        if start < stop:
            k, v = live_keys(arguments, request)
            truth = oracle.attention(
                arguments["query"][start:stop], k, v, scale=HEAD_DIM**-0.5, mask=masks[request]
            ).out  # fmt: skip
            assert largest_difference(out[start:stop], truth) < BF16


def test_the_masks_of_ragged_drafts_are_read_when_the_kernel_runs_and_matter() -> None:
    arguments, _ = ragged(4, "cpu")
    tree = OURS[XQA](**arguments)
    arguments["mask"].view(torch.int16).fill_(-1)
    chain = OURS[XQA](**arguments)
    assert not torch.equal(tree, chain)
    assert torch.equal(chain, OURS[XQA](**(arguments | {"mask": None})))


def test_ragged_drafts_may_all_be_empty() -> None:
    arguments, _ = ragged(4, "cpu")
    empty = {name: arguments[name][:0] for name in ("query", "mask")}
    empty["q_cu_seq_lens"] = torch.zeros_like(arguments["q_cu_seq_lens"])
    assert OURS[XQA](**(arguments | empty)).shape == (0, *arguments["query"].shape[1:])


@pytest.mark.parametrize("q_len", [1, 4])
@pytest.mark.parametrize("shape", ["of XQA", "of tokens"])
def test_the_given_output_is_written_in_either_shape_and_comes_back(q_len: int, shape: str) -> None:
    arguments = Call(16, q_len).mha("cpu")
    expected = OURS[XQA](**arguments)
    given = torch.empty_like(expected if shape == "of XQA" else arguments["query"])
    assert OURS[XQA](**arguments, out=given) is given
    assert torch.equal(given.view_as(expected), expected)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_lengths_and_offsets_may_be_unsigned_as_flashinfer_documents_them(name: str) -> None:
    if name == XQA:
        arguments, _ = ragged(4, "cpu")
    else:
        arguments = Call(16, 1).mla("cpu") if name == MLA else Call(16, 1).mha("cpu")
        offsets = torch.arange(len(arguments["seq_lens"]) + 1, dtype=torch.int32)
        arguments |= {"cum_seq_lens_q": offsets, "max_q_len": 1, "query": arguments["query"].flatten(0, -3)}
        arguments |= {} if name == MLA else {"q_len_per_req": None, "mask": None}
    counts = ["seq_lens", "q_cu_seq_lens" if name == XQA else "cum_seq_lens_q"]
    unsigned = {argument: arguments[argument].to(torch.uint32) for argument in counts}
    assert torch.equal(OURS[name](**(arguments | unsigned)), OURS[name](**arguments))


def test_a_mask_of_one_token_is_not_read() -> None:
    arguments = Call(16, 1).mha("cpu")
    nothing = torch.zeros(len(arguments["seq_lens"]), 8, 2, dtype=torch.uint16)
    assert torch.equal(OURS[XQA](**(arguments | {"mask": nothing})), OURS[XQA](**arguments))


@pytest.mark.parametrize(
    ("options", "messages"),
    [
        ({"q_len_per_req": 1}, ["q_len_per_req: got 1, must be 2 or more: the longest query of q_cu_seq_lens"]),
        ({"q_len_per_req": None}, ["q_len_per_req: got None, must be 2 or more"]),
        ({"q_cu_seq_lens": None}, ["query: got 8 rows, must be 4 requests x 4 query tokens"]),
        ({"mask": torch.zeros(4, 4, 2, dtype=torch.uint16)}, ["mask: got shape [4, 4, 2], must be [8, 2]"]),
        (
            {"out": torch.zeros(HEADS, 8, HEAD_DIM).bfloat16().transpose(0, 1), "window_left": -2, "o_scale": 0.5},
            ["out: got strides", "window_left: got -2", "o_scale: got 0.5, must be 1.0"],
        ),
        ({"q_len_per_req": "4"}, ["q_len_per_req: got '4', must be an integer or None"]),
        ({"query": None, "out": []}, ["query: got None, must be a tensor", "out: got a list"]),
        ({"q_cu_seq_lens": [0, 8]}, ["q_cu_seq_lens: got a list, must be a tensor or None"]),
        (
            {"q_cu_seq_lens": None, "query": torch.zeros(16, HEADS, HEAD_DIM).bfloat16(), "mask": None}
            | {"out": torch.zeros(4, 3, HEADS, HEAD_DIM)},
            ["out: got shape [4, 3, 32, 128], must be [16, 32, 128] or [4, 4, 32, 128]"],
        ),
    ],
)
def test_what_does_not_fit_xqa_is_named(options: dict[str, Any], messages: list[str]) -> None:
    with pytest.raises(KernelPreconditionError) as caught:
        OURS[XQA](**(ragged(4, "cpu")[0] | options))
    assert [message for message in messages if message not in str(caught.value)] == []


# MLA's own interface.


RAGGED = {"cum_seq_lens_q": torch.tensor([0, 3, 6, 9, 12], dtype=torch.int32)}


@pytest.mark.parametrize(
    ("options", "messages"),
    [
        ({"kv_cache": None}, ["kv_cache: got None, must be a tensor"]),
        ({"kv_cache": (torch.zeros(1),)}, ["kv_cache: got a tuple, must be a tensor"]),
        ({"kv_cache": torch.tensor(0.0)}, ["kv_cache: got [], must be [P, page, D] or [P, 1, page, D]"]),
        ({"kv_lora_rank": "512"}, ["kv_lora_rank: got '512', must be an integer"]),
        ({"kv_lora_rank": 0}, ["kv_lora_rank: got 0, must be 1 to 576, the columns of kv_cache"]),
        ({"kv_lora_rank": 1 << 62}, [f"kv_lora_rank: got {1 << 62}, must be 1 to 576, the columns of kv_cache"]),
        ({"query": torch.zeros(12, MLA_HEADS, 576)}, ["query: got [12, 16, 576], must be [B, q, H, D] with q of 1"]),
        ({"query": torch.zeros(4, 0, MLA_HEADS, 576)}, ["query: got [4, 0, 16, 576], must be [B, q, H, D] with q"]),
        (RAGGED, ["query: got [4, 3, 16, 576], must be [B, q, H, D] with q of 1 or more, or with cum_seq_lens_q"]),
        (
            RAGGED | {"query": torch.zeros(12, MLA_HEADS, 576).bfloat16()},
            ["max_q_len: got None, must be 1 to 2147483647 with cum_seq_lens_q"],
        ),
        *(
            ({"out": torch.zeros(shape), "sinks": torch.zeros(2)}, [f"out: got shape {list(shape)}, must be [4, 3, 16"])
            for shape in ((7,), (12, MLA_HEADS, LATENT), (12, LATENT), (4, 3, MLA_HEADS, 8))
        ),
        ({"out": torch.zeros(7), "sinks": torch.zeros(2)}, ["sinks: got shape [2], must be [16]"]),
    ],
)
def test_what_does_not_fit_mla_is_named_as_its_caller_knows_it(options: dict[str, Any], messages: list[str]) -> None:
    with pytest.raises(KernelPreconditionError) as caught:
        OURS[MLA](**(Call(16, 3).mla("cpu") | options))
    assert [message for message in messages if message not in str(caught.value)] == []
    assert "q_len_per_req" not in str(caught.value)
    assert str(caught.value).count("out: ") <= 1


# Beside FlashInfer.


@needs_flashinfer
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_facts_are_those_of_the_installed_package(name: str) -> None:
    version = importlib.metadata.version(FACTS["package"])
    assert version.startswith(FACTS["version"]), f"the facts are of {FACTS['version']}: write them anew for {version}"
    package = importlib.import_module("flashinfer.mla" if name == MLA else "flashinfer.decode")
    parameters = inspect.signature(getattr(package, name)).parameters.values()
    assert written_down(parameters) == FUNCTIONS[name]


def engine(name: str, arguments: dict[str, Any]) -> Tensor:
    """The line of an engine's backend: the function is looked up where the engine finds it."""
    result: Tensor = getattr(importlib.import_module("flashinfer.decode"), name)(**arguments)
    return result


@needs_both
@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["auto", "triton"])
@pytest.mark.parametrize("call", CALLS, ids=str)
def test_an_engine_that_calls_us_in_place_of_xqa_gets_the_same_attention(
    call: Call, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = {name: engine(name, call.mha("cuda")) for name in (MHA, XQA)}
    for name, expected in theirs.items():
        monkeypatch.setattr(f"flashinfer.decode.{name}", functools.partial(OURS[name], backend=kernel))
        ours = engine(name, call.mha("cuda"))
        assert ours.shape == expected.shape
        assert not torch.equal(ours, expected), "the bits of another kernel were expected: was it swapped?"
        assert largest_difference(ours, expected) < (FP8 if call.fp8 else BF16)


@needs_both
@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["auto", "triton"])
def test_ragged_drafts_get_the_same_attention_as_from_xqa(kernel: str) -> None:
    from flashinfer.decode import xqa_batch_decode_with_kv_cache

    arguments, _ = ragged(4, "cuda")
    unsigned = {argument: arguments[argument].to(torch.uint32) for argument in ("seq_lens", "q_cu_seq_lens")}
    expected = xqa_batch_decode_with_kv_cache(**(arguments | unsigned))
    ours = OURS[XQA](**(ragged(4, "cuda")[0] | unsigned), backend=kernel)
    assert ours.shape == expected.shape
    assert not torch.equal(ours, expected), "the bits of another kernel were expected: was it swapped?"
    assert largest_difference(ours, expected) < BF16


def fa3(arguments: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """FlashInfer's MLA for Hopper, from the arguments of its function for Blackwell: output and LSE in base 2."""
    from flashinfer.mla import BatchMLAPagedAttentionWrapper

    query, cache, lengths = arguments["query"], arguments["kv_cache"], arguments["seq_lens"]
    batch, q_len = query.shape[:2]
    counts = -(-lengths.cpu() // cache.shape[1])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]).int().cuda()
    pages = torch.cat([row[:n] for row, n in zip(arguments["block_tables"], counts.tolist(), strict=True)])
    rows = torch.arange(batch + 1, dtype=torch.int32, device="cuda") * q_len
    wrapper = BatchMLAPagedAttentionWrapper(torch.zeros(128 << 20, dtype=torch.uint8, device="cuda"), backend="fa3")
    wrapper.plan(
        rows, offsets, pages, lengths, MLA_HEADS, LATENT, ROPE, cache.shape[1], q_len > 1,
        arguments["bmm1_scale"], torch.bfloat16, torch.bfloat16,
    )  # fmt: skip
    nope, rope = query.flatten(0, 1).split([LATENT, ROPE], dim=-1)
    split = cache.split([LATENT, ROPE], dim=-1)
    out, lse = wrapper.run(nope.contiguous(), rope.contiguous(), *split, return_lse=True)
    return out, lse


@needs_both
@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["gluon", "triton"])
@pytest.mark.parametrize("call", [Call(64), Call(64, 4), Call(32), Call(16, 4)], ids=str)
def test_mla_by_the_interface_for_blackwell_is_what_fa3_gives_on_hopper(call: Call, kernel: str) -> None:
    arguments = call.mla("cuda")
    out, lse = OURS[MLA](**arguments, backend=kernel, return_lse=True)
    expected, expected_lse = fa3(arguments)
    assert largest_difference(out.flatten(0, 1), expected) < BF16
    assert (lse - expected_lse).abs().max() < 0.01
