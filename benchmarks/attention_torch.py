"""What torch offers for decode attention: no paged KV, so each kernel is given contiguous copies of the cache.

Only equal lengths, one token a request and bf16 KV can be compared. GQA runs in cuDNN's fused attention; MLA, whose
keys are wider than its values, in two matrix products with a softmax between them.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.attention_cases import Case
from benchmarks.attention_workload import Launch, Workload


def kernels(case: Case) -> dict[str, Callable[[Workload], Launch]]:
    """Name -> function that prepares a workload and returns its launch."""
    # Without a mask of its own torch has no bottom-right causal decode, and it has neither fp8 KV nor sinks.
    if case.varied or case.q_len > 1 or case.options:
        return {}
    if case.family == "MLA":
        return {"torch, matmul and softmax": _products}
    return {"torch, cuDNN": _cudnn}


def _contiguous(workload: Workload) -> list[tuple[Tensor, Tensor]]:
    """Keys [B, Hkv, S, D] and values [B, Hkv, S, Dv] of every KV set."""
    case, table = workload.case, workload.block_tables.long()
    sets = []
    for cache in workload.kv_sets:
        pages = cache[table]
        if case.family == "MLA":
            latent = pages.flatten(1, 2)[:, None]
            sets.append((latent, latent[..., :512]))
        else:
            pages = pages if case.layout == "HND" else pages.transpose(3, 4)
            k, v = pages.permute(2, 0, 3, 1, 4, 5).flatten(3, 4)
            sets.append((k.contiguous(), v.contiguous()))
    return sets


def _cudnn(workload: Workload) -> Launch:
    sets, query = _contiguous(workload), workload.query[:, :, None]

    def launch(index: int) -> Tensor:
        k, v = sets[index]
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return functional.scaled_dot_product_attention(
                query, k, v, scale=workload.case.softmax_scale, enable_gqa=True
            )

    return launch


def _products(workload: Workload) -> Launch:
    sets, scale = _contiguous(workload), workload.case.softmax_scale

    def launch(index: int) -> Tensor:
        k, v = (side[:, 0] for side in sets[index])
        weights = (workload.query @ k.transpose(1, 2) * scale).float().softmax(-1)
        return weights.to(v.dtype) @ v

    return launch
