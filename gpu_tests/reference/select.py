"""Which kernel runs a launch, and why: what each one asks for, and which is best where several can.

    torch    any device and dtype, request by request, reads its metadata on the host: CPUs
    triton   GPUs, every option: the fallback, and the second opinion about the others
    gluon    Hopper: MLA in bf16, MHA and GQA in 16 bits, or over an fp8 cache

The choice is a function of the device, shapes, strides and dtypes, so that a captured graph keeps its kernel
whatever its lengths are at replay. `backend="auto"` of the decode functions follows it and logs each choice
once, at level INFO; naming a backend forces it, and a kernel that cannot run the launch refuses it.
"""

from __future__ import annotations

import functools
import importlib.metadata
import logging
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gpu_tests.reference.preconditions import Problems

Kernel = Literal["gluon", "triton", "torch"]
Capability = tuple[int, int]

MLA_COLUMNS = (512, 64)
"""Latent and rope columns that the Gluon kernel of MLA is written for."""

GLUON_HEAD_DIMS = (64, 128)
"""Columns of keys and of values that the Gluon kernel of MHA and GQA is written for."""

GLUON_PAGES = (16, 32, 64, 128)
"""Page sizes of the Gluon kernels: a block of 64 keys lies in one page, or fills whole ones. MLA over an fp8 cache
takes any power of two: what is none of these goes to the kernel that looks up each key.
"""

GLUON_TRITON = ("3.6",)
"""Versions of Triton that the Gluon kernels were run with on a GPU: Gluon's functions change their names
between minor versions (3.9 has `async_load` for `async_copy_global_to_shared`).
"""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choice:
    """A kernel and the reason in words."""

    kernel: Kernel
    reason: str


def capability_of(device: torch.device) -> Capability | None:
    """Compute capability of a GPU; None for anything else."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else None


@functools.cache
def triton_version() -> str | None:
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return None


def choose(
    query: Tensor,
    k: Tensor,
    v: Tensor | None,
    *,
    head_dim_v: int,
    capability: Capability | None,
    triton: str | None,
) -> Choice:
    """The kernel for `query` [num_tokens, H, D] over `k` [P, page, Hkv, D] and `v`; without `v` (MLA) the values
    are columns of `k`. `capability` is the GPU's, `triton` the version that is installed.
    """
    if capability is None:
        return Choice("torch", f"the query is on {query.device.type}")
    problems = Problems("Gluon")
    check_gluon(problems, query, k, v, head_dim_v=head_dim_v, capability=capability, triton=triton)
    if problems.lines:
        return Choice("triton", "Gluon does not fit: " + "; ".join(problems.lines))
    family = "MLA" if v is None else "MHA and GQA"
    cache = f"a cache in {_dtype(k)} with pages of {k.shape[1]}"
    return Choice("gluon", f"{family} in {_dtype(query)} over {cache} on Hopper, Triton {triton}")


def check_triton(problems: Problems, query: Tensor, k: Tensor, v: Tensor | None, *, head_dim_v: int) -> None:
    """What the Triton kernel asks for beyond the common preconditions: no fp64, tiles of powers of two."""
    problems.unless(query.dtype != torch.float64, "query", "float64", "float32, float16 or bfloat16 in Triton")
    widths = {"value columns": head_dim_v}
    if v is not None:
        widths["key columns"] = k.shape[-1]
    elif k.shape[-1] > head_dim_v:
        widths["rope columns"] = k.shape[-1] - head_dim_v
    for name, width in widths.items():
        fits = width >= 16 and width & (width - 1) == 0
        problems.unless(fits, f"kv_cache ({name})", width, "a power of two from 16 in Triton")


def check_gluon(
    problems: Problems,
    query: Tensor,
    k: Tensor,
    v: Tensor | None,
    *,
    head_dim_v: int,
    capability: Capability | None,
    triton: str | None,
) -> None:
    """What the Gluon kernels ask for beyond the common preconditions."""
    tested = triton is not None and triton.startswith(tuple(f"{version}." for version in GLUON_TRITON))
    problems.unless(tested, "triton", triton, f"one of {', '.join(GLUON_TRITON)} for Gluon")
    problems.unless(capability == (9, 0), "query", f"device {_name(capability)}", "Hopper (sm_90) in Gluon")
    if v is None:
        _check_gluon_mla(problems, query, k, head_dim_v)
    else:
        _check_gluon_gqa(problems, query, k, v)


def _check_gluon_mla(problems: Problems, query: Tensor, k: Tensor, head_dim_v: int) -> None:
    columns = (head_dim_v, k.shape[-1] - head_dim_v)
    problems.unless(columns == MLA_COLUMNS, "kv_cache", f"{columns} columns", f"{MLA_COLUMNS} in Gluon")
    problems.unless(k.shape[2] == 1, "kv_cache", f"{k.shape[2]} KV heads", "1 in MLA")
    problems.unless(query.dtype == torch.bfloat16, "query", _dtype(query), "bfloat16 in Gluon")
    if k.dtype == torch.float8_e4m3fn:
        fits = k.shape[1] & (k.shape[1] - 1) == 0
        problems.unless(fits, "kv_cache", f"pages of {k.shape[1]}", "a power of two in Gluon")
    else:
        problems.unless(k.dtype == torch.bfloat16, "kv_cache", _dtype(k), "bfloat16 or float8_e4m3fn in Gluon")
        _check_pages(problems, k)
    for name, tensor in (("query", query), ("kv_cache", k)):
        _check_alignment(problems, name, tensor)
    dense = query.stride(0) == query.shape[1] * query.stride(1)
    problems.unless(dense, "query", f"strides {list(query.stride())}", "tokens without gaps in Gluon")


def _check_gluon_gqa(problems: Problems, query: Tensor, k: Tensor, v: Tensor) -> None:
    columns = (k.shape[-1], v.shape[-1])
    fits = columns[0] == columns[1] and columns[0] in GLUON_HEAD_DIMS
    problems.unless(fits, "kv_cache", f"{columns} columns", f"the same in keys and values, {GLUON_HEAD_DIMS}, in Gluon")
    halves = (torch.bfloat16, torch.float16)
    problems.unless(query.dtype in halves, "query", _dtype(query), "bfloat16 or float16 in Gluon")
    _check_pages(problems, k)
    for tensor in (k, v):
        _check_alignment(problems, "kv_cache", tensor)


def _check_pages(problems: Problems, k: Tensor) -> None:
    problems.unless(k.shape[1] in GLUON_PAGES, "kv_cache", f"pages of {k.shape[1]}", f"{GLUON_PAGES} in Gluon")


def _check_alignment(problems: Problems, name: str, tensor: Tensor) -> None:
    """TMA, and loads of 16 bytes: addresses and strides are multiples of 16 bytes."""
    size = tensor.element_size()
    aligned = tensor.data_ptr() % 16 == 0 and all(stride * size % 16 == 0 for stride in tensor.stride()[:-1])
    problems.unless(aligned, name, f"strides {list(tensor.stride())}", "aligned to 16 bytes in Gluon")


@functools.cache
def log_once(choice: Choice) -> None:
    logger.info("paged decode runs in %s: %s", choice.kernel, choice.reason)


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _name(capability: Capability | None) -> str:
    return "cpu" if capability is None else "sm_{}{}".format(*capability)
