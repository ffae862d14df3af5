"""FlashInfer's kernels for the attention benchmark: optional, compared when the package is importable.

Each runs as its users run it under CUDA graphs: wrappers are planned once on the host, `run` is captured. Every
kernel has the options of the case: fp8 KV, window, sinks, tokens a request. XQA reads fp8 KV with an fp8 copy of
the query, which its error shows.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.attention_cases import Case
from benchmarks.attention_workload import Launch, Workload
from gpu_tests.reference.decode import pack_mask

AVAILABLE = importlib.util.find_spec("flashinfer") is not None
WORKSPACE = 256 << 20
KV_DTYPES = {"bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}


def not_measured() -> list[str]:
    return [] if AVAILABLE else ["FlashInfer: the package flashinfer-python is not installed"]


def kernels(case: Case) -> dict[str, Callable[[Workload], Launch]]:
    """Name -> function that prepares a workload and returns its launch."""
    if not AVAILABLE:
        return {}
    if case.family == "MLA":
        return {"FlashInfer fa2": lambda w: _mla(w, "fa2"), "FlashInfer fa3": lambda w: _mla(w, "fa3")}
    found = {"FlashInfer fa2": _sink if case.sinks else _tensor_core_decode}
    if case.layout == "HND":
        found["FlashInfer XQA"] = _xqa
    return found


def _mla(workload: Workload, backend: str) -> Launch:
    from flashinfer.mla import BatchMLAPagedAttentionWrapper

    case = workload.case
    offsets, ids = _pages(workload)
    rows = _query_offsets(workload)
    wrapper = BatchMLAPagedAttentionWrapper(
        _float_workspace(),
        use_cuda_graph=True,
        qo_indptr=rows.clone(),
        kv_indptr=offsets.clone(),
        kv_indices=ids.clone(),
        kv_len_arr=workload.seq_lens.clone(),
        backend=backend,
    )
    wrapper.plan(
        rows, offsets, ids, workload.seq_lens, case.heads, 512, 64, case.page_size, case.q_len > 1,
        case.softmax_scale, torch.bfloat16, KV_DTYPES[case.kv_dtype],
    )  # fmt: skip
    nope, rope = workload.query[..., :512].contiguous(), workload.query[..., 512:].contiguous()
    scale = workload.kv_scale
    scales = {"ckv_scale": scale, "kpe_scale": scale} if case.kv_dtype == "fp8" else {}

    def launch(index: int) -> Tensor:
        cache = workload.kv_sets[index]
        return wrapper.run(nope, rope, cache[..., :512], cache[..., 512:], out=workload.out, **scales)

    return launch


def _tensor_core_decode(workload: Workload) -> Launch:
    from flashinfer.decode import BatchDecodeWithPagedKVCacheWrapper

    case = workload.case
    offsets, ids = _pages(workload)
    last = _last_pages(workload)
    wrapper = BatchDecodeWithPagedKVCacheWrapper(
        _float_workspace(),
        case.layout,
        use_cuda_graph=True,
        use_tensor_cores=True,
        paged_kv_indptr_buffer=offsets.clone(),
        paged_kv_indices_buffer=ids.clone(),
        paged_kv_last_page_len_buffer=last.clone(),
        backend="fa2",
    )
    wrapper.plan(
        offsets, ids, last, case.heads, case.kv_heads, case.head_dim, case.page_size,
        q_data_type=torch.bfloat16, kv_data_type=KV_DTYPES[case.kv_dtype], sm_scale=case.softmax_scale,
        window_left=case.window, q_len_per_req=case.q_len,
    )  # fmt: skip
    scales = {"k_scale": workload.kv_scale, "v_scale": workload.kv_scale} if case.kv_dtype == "fp8" else {}
    return lambda index: wrapper.run(workload.query, workload.kv_sets[index], out=workload.out, **scales)


def _sink(workload: Workload) -> Launch:
    """The wrapper for decode and prefill with sinks: of bf16 KV alone."""
    from flashinfer.attention import BatchAttentionWithAttentionSinkWrapper

    case = workload.case
    offsets, ids = _pages(workload)
    rows, last = _query_offsets(workload), _last_pages(workload)
    wrapper = BatchAttentionWithAttentionSinkWrapper(
        _float_workspace(),
        case.layout,
        use_cuda_graph=True,
        qo_indptr_buf=rows.clone(),
        paged_kv_indptr_buf=offsets.clone(),
        paged_kv_indices_buf=ids.clone(),
        paged_kv_last_page_len_buf=last.clone(),
        backend="fa2",
        q_data_type=torch.bfloat16,
        kv_data_type=torch.bfloat16,
        head_dim_qk=case.head_dim,
        head_dim_vo=case.head_dim,
        window_left=case.window,
    )
    wrapper.plan(
        rows, offsets, ids, last, case.heads, case.kv_heads, case.head_dim, case.page_size,
        causal=True, window_left=case.window, q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16,
    )  # fmt: skip
    return lambda index: wrapper.run(
        workload.query, workload.kv_sets[index], workload.sinks, case.softmax_scale, out=workload.out
    )


def _xqa(workload: Workload) -> Launch:
    from flashinfer.decode import xqa_batch_decode_with_kv_cache

    case = workload.case
    workspace = _float_workspace()
    out, mask = workload.out, None
    if case.q_len > 1:
        out = out.unflatten(0, (case.batch, case.q_len))
        chain = torch.ones(case.q_len, case.q_len, dtype=torch.bool, device="cuda").tril()
        mask = pack_mask(chain.expand(case.batch, -1, -1))
    return lambda index: xqa_batch_decode_with_kv_cache(
        workload.query,
        workload.kv_sets[index],
        workspace,
        workload.block_tables,
        workload.seq_lens,
        case.length,
        bmm1_scale=case.softmax_scale * workload.kv_scale,
        bmm2_scale=workload.kv_scale,
        window_left=case.window,
        out=out,
        sinks=workload.sinks,
        kv_layout=case.layout,
        q_len_per_req=case.q_len,
        mask=mask,
    )


def _float_workspace() -> Tensor:
    return torch.zeros(WORKSPACE, dtype=torch.uint8, device="cuda")


def _query_offsets(workload: Workload) -> Tensor:
    case = workload.case
    return torch.arange(case.batch + 1, dtype=torch.int32, device="cuda") * case.q_len


def _last_pages(workload: Workload) -> Tensor:
    """Tokens in the last page of each request."""
    return (workload.seq_lens - 1) % workload.case.page_size + 1


def _pages(workload: Workload) -> tuple[Tensor, Tensor]:
    """The page table as offsets and concatenated ids, on the GPU."""
    page_size = workload.case.page_size
    counts = torch.tensor([-(-length // page_size) for length in workload.lengths])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]).int().cuda()
    ids = torch.cat([row[:count] for row, count in zip(workload.block_tables, counts.tolist(), strict=True)])
    return offsets, ids
