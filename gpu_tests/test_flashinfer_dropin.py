"""The decode functions stand in for FlashInfer's: the same arguments go in, the same attention comes out.

`data/flashinfer-decode.json` holds the parameters of FlashInfer's functions with their defaults, in their order; one
list is a parameter, and has a second element if it has a default.  Where FlashInfer is installed it is compared with
the package, and on a Hopper GPU the calls of an engine go to FlashInfer's kernels and to ours: XQA for MHA, the fa3
wrapper for MLA (FlashInfer's own function of that name has no kernel for Hopper).
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gpu_tests.reference import decode, oracle
from gpu_tests.reference.decode import KernelPreconditionError, pack_mask
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
    XQA: decode.trtllm_batch_decode_with_kv_cache,
}
"""XQA's parameters are taken by the function that calls XQA in FlashInfer; a caller names `kv_layout`, whose default
differs.
"""

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


@pytest.mark.parametrize("name", FUNCTIONS)
def test_parameters_that_we_name_have_the_defaults_of_flashinfer(name: str) -> None:
    ours = inspect.signature(OURS[name]).parameters
    for parameter, *default in FUNCTIONS[name]:
        if parameter in ours and (name, parameter) != (XQA, "kv_layout"):
            assert default == [ours[parameter].default] or (not default and ours[parameter].default is inspect._empty)


KEYWORDS_ONLY = pytest.mark.xfail(
    raises=TypeError, strict=True, reason="optional arguments behind the first ones are taken by name alone"
)


@pytest.mark.parametrize("name", [pytest.param(name, marks=KEYWORDS_ONLY) for name in (MHA, MLA)])
def test_arguments_are_taken_in_the_order_of_flashinfer(name: str) -> None:
    names = [parameter for parameter, *_ in FUNCTIONS[name]]
    bound = inspect.signature(OURS[name]).bind(*names)
    assert bound.arguments == {parameter: parameter for parameter in names}


@pytest.mark.parametrize("name", [MHA, MLA])
def test_the_arguments_without_a_default_are_taken_in_order(name: str) -> None:
    needed = [parameter for parameter, *default in FUNCTIONS[name] if not default]
    bound = inspect.signature(OURS[name]).bind(*needed)
    assert bound.arguments == {parameter: parameter for parameter in needed}


PARAMETERS = [
    (name, parameter, default[0])
    for name, parameters in FUNCTIONS.items()
    for parameter, *default in parameters
    if default
]
REFUSED_DEFAULT = pytest.mark.xfail(
    raises=KernelPreconditionError, strict=True, reason="'auto' is refused although it is the default"
)


def arguments_of(name: str) -> dict[str, Any]:
    """A call on the CPU in the fewest arguments."""
    call = Call(16, layout="NHD" if name == XQA else "HND")
    arguments = call.mla("cpu") if name == MLA else call.mha("cpu")
    return {p: arguments[p] for p, *default in FUNCTIONS[name] if not default} | (
        {"kv_layout": "NHD"} if name == XQA else {}
    )


@pytest.mark.parametrize(
    ("name", "parameter", "default"),
    [
        pytest.param(*case, marks=[REFUSED_DEFAULT] if case[1] in ("cute_dsl_impl", "kv_scale_format") else [])
        for case in PARAMETERS
    ],
)
def test_the_default_of_every_parameter_is_taken_and_changes_nothing(name: str, parameter: str, default: Any) -> None:
    arguments = arguments_of(name)
    without = OURS[name](**arguments)
    assert torch.equal(OURS[name](**(arguments | {parameter: default})), without)


@pytest.mark.parametrize(("name", "parameter", "default"), PARAMETERS)
def test_what_is_not_implemented_is_refused_by_name(name: str, parameter: str, default: Any) -> None:
    if parameter in inspect.signature(OURS[name]).parameters:
        return  # implemented: the suites of the kernels say how well
    other = {type(None): 1, bool: not default, str: "other"}.get(type(default), 2)
    with pytest.raises(KernelPreconditionError, match=f"{parameter}: got .* it is not implemented"):
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


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_the_calls_that_are_compared_mean_what_the_oracle_says(call: Call) -> None:
    arguments = call.mha("cpu")
    out = OURS[MHA](**arguments)
    k, v = (side if call.layout == "NHD" else side.transpose(1, 2) for side in arguments["kv_cache"].unbind(1))
    k_scale, v_scale = (K_SCALE, V_SCALE) if call.fp8 else (1.0, 1.0)
    for row, length in enumerate(call.lengths):
        positions = torch.arange(length)
        page, offset = arguments["block_tables"][row][positions // call.page_size], positions % call.page_size
        rows = slice(row * call.q_len, (row + 1) * call.q_len)
        truth = oracle.attention(
            arguments["query"][rows], k[page, offset].double() * k_scale, v[page, offset].double() * v_scale,
            scale=HEAD_DIM**-0.5, window_left=call.window_left, sinks=arguments["sinks"],
        ).out  # fmt: skip
        assert largest_difference(out[rows], truth) < BF16


# Beside FlashInfer.


@needs_flashinfer
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_facts_are_those_of_the_installed_package(name: str) -> None:
    version = importlib.metadata.version(FACTS["package"])
    assert version.startswith(FACTS["version"]), f"the facts are of {FACTS['version']}: write them anew for {version}"
    package = importlib.import_module("flashinfer.mla" if name == MLA else "flashinfer.decode")
    parameters = inspect.signature(getattr(package, name)).parameters.values()
    theirs = [[p.name] if p.default is inspect._empty else [p.name, p.default] for p in parameters]
    assert theirs == FUNCTIONS[name]


def engine(name: str, arguments: dict[str, Any]) -> Tensor:
    """The line of an engine's backend: the function is looked up where the engine finds it."""
    result: Tensor = getattr(importlib.import_module("flashinfer.decode"), name)(**arguments)
    return result.view(-1, HEADS, HEAD_DIM)


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
        assert not torch.equal(ours, expected), "the bits of another kernel were expected: was it swapped?"
        assert largest_difference(ours, expected) < (FP8 if call.fp8 else BF16)


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
