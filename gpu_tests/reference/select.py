"""Which kernel runs a launch, and why: what each one asks for, and which is best where several can.

    torch    any device and dtype, request by request, reads its metadata on the host: CPUs
    triton   GPUs, every option: the fallback, and the second opinion about the others
    gluon    MLA on Hopper in bf16

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
"""Latent and rope columns that the Gluon kernel is written for."""

GLUON_PAGES = (16, 32, 64, 128)
"""Page sizes of the Gluon kernel: a block of 64 keys lies in one page, or fills whole ones."""

GLUON_TRITON = ("3.6",)
"""Versions of Triton that the Gluon kernel was run with on a GPU: Gluon's functions change their names
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
    *,
    head_dim_v: int,
    latent: bool,
    capability: Capability | None,
    triton: str | None,
) -> Choice:
    """The kernel for `query` [num_tokens, H, D] over `k` [P, page, Hkv, D]; `latent`: values are columns of
    `k` (MLA). `capability` is the GPU's, `triton` the version that is installed.
    """
    if capability is None:
        return Choice("torch", f"the query is on {query.device.type}")
    problems = Problems("Gluon")
    check_gluon(problems, query, k, head_dim_v=head_dim_v, latent=latent, capability=capability, triton=triton)
    if problems.lines:
        return Choice("triton", "Gluon does not fit: " + "; ".join(problems.lines))
    return Choice("gluon", f"MLA in bfloat16 with pages of {k.shape[1]} on Hopper, Triton {triton}")


def check_triton(problems: Problems, query: Tensor, k: Tensor, *, head_dim_v: int, latent: bool) -> None:
    """What the Triton kernel asks for beyond the common preconditions: no fp64, tiles of powers of two."""
    problems.unless(query.dtype != torch.float64, "query", "float64", "float32, float16 or bfloat16 in Triton")
    widths = {"value columns": head_dim_v}
    if not latent:
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
    *,
    head_dim_v: int,
    latent: bool,
    capability: Capability | None,
    triton: str | None,
) -> None:
    """What the Gluon kernel asks for beyond the common preconditions."""
    tested = triton is not None and triton.startswith(tuple(f"{version}." for version in GLUON_TRITON))
    problems.unless(tested, "triton", triton, f"one of {', '.join(GLUON_TRITON)} for Gluon")
    problems.unless(capability == (9, 0), "query", f"device {_name(capability)}", "Hopper (sm_90) in Gluon")
    if not latent or k.shape[2] != 1:
        problems.unless(False, "kv_cache", f"{k.shape[2]} KV heads with keys and values", "MLA in Gluon")
        return
    columns = (head_dim_v, k.shape[-1] - head_dim_v)
    problems.unless(columns == MLA_COLUMNS, "kv_cache", f"{columns} columns", f"{MLA_COLUMNS} in Gluon")
    for name, tensor in (("query", query), ("kv_cache", k)):
        dtype = str(tensor.dtype).removeprefix("torch.")
        problems.unless(tensor.dtype == torch.bfloat16, name, dtype, "bfloat16 in Gluon")
        # TMA: addresses and strides are multiples of 16 bytes.
        aligned = tensor.data_ptr() % 16 == 0 and all(stride % 8 == 0 for stride in tensor.stride()[:2])
        problems.unless(aligned, name, f"strides {list(tensor.stride())}", "aligned to 16 bytes in Gluon")
    dense = query.stride(0) == query.shape[1] * query.stride(1)
    problems.unless(dense, "query", f"strides {list(query.stride())}", "tokens without gaps in Gluon")
    problems.unless(k.shape[1] in GLUON_PAGES, "kv_cache", f"pages of {k.shape[1]}", f"{GLUON_PAGES} in Gluon")


@functools.cache
def log_once(choice: Choice) -> None:
    logger.info("paged decode runs in %s: %s", choice.kernel, choice.reason)


def _name(capability: Capability | None) -> str:
    return "cpu" if capability is None else "sm_{}{}".format(*capability)
