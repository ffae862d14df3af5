"""Every kernel that `benchmarks.attention` compares: ours here, the others in their own modules."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from benchmarks import attention_flashinfer, attention_torch
from benchmarks.attention_cases import Case
from benchmarks.attention_workload import Launch, Workload
from gpu_tests.reference import decode

BACKENDS = {"Nightcap Triton": "triton", "Nightcap Gluon": "gluon"}


def kernels(case: Case) -> dict[str, Callable[[Workload], Launch]]:
    """Name -> function that prepares a workload and returns its launch. A kernel that does not take the case raises:
    ours KernelPreconditionError, FlashInfer's whatever FlashInfer raises.
    """
    return _ours(case) | attention_flashinfer.kernels(case) | attention_torch.kernels(case)


def _ours(case: Case) -> dict[str, Callable[[Workload], Launch]]:
    grids = {"": "split", ", balanced": "balanced"} if case.batch >= 32 else {"": "split"}
    return {
        name + suffix: functools.partial(nightcap, backend=backend, grid=grid)
        for name, backend in BACKENDS.items()
        for suffix, grid in grids.items()
    }


def nightcap(workload: Workload, backend: str, grid: str) -> Launch:
    """One of our kernels, called as an engine calls FlashInfer."""
    case, query = workload.case, workload.query
    common = {
        "workspace_buffer": workload.workspace,
        "block_tables": workload.block_tables,
        "seq_lens": workload.seq_lens,
        "max_seq_len": case.length,
        "bmm1_scale": case.softmax_scale * workload.kv_scale,
        "bmm2_scale": workload.kv_scale,
        "sinks": workload.sinks,
        "lse": query.new_empty(query.shape[:2], dtype=torch.float32),
        "backend": backend,
        "grid": grid,
    }
    if case.family == "MLA":
        uniform_query, out = (side.unflatten(0, (-1, case.q_len)) for side in (query, workload.out))
        dims = {"qk_nope_head_dim": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
        return lambda i: decode.trtllm_batch_decode_with_kv_cache_mla(
            uniform_query, workload.kv_sets[i], out=out, **dims, **common
        )
    return lambda i: decode.trtllm_batch_decode_with_kv_cache(
        query,
        workload.kv_sets[i],
        out=workload.out,
        kv_layout=case.layout,
        q_len_per_req=case.q_len,
        window_left=case.window,
        **common,
    )
