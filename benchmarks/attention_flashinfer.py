"""FlashInfer's kernels for the attention benchmark: optional, compared when the package is importable.

Each runs as its users run it under CUDA graphs: wrappers are planned once on the host, `run` is captured.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gpu_tests.reference.decode import pack_mask

if TYPE_CHECKING:
    from benchmarks.attention import Case, Workload

Launch = Callable[[int], Tensor]

AVAILABLE = importlib.util.find_spec("flashinfer") is not None
WORKSPACE = 256 << 20


def not_measured() -> list[str]:
    return [] if AVAILABLE else ["FlashInfer: the package flashinfer-python is not installed"]


def kernels(case: Case) -> dict[str, Callable[[Workload], Launch]]:
    """Name -> function that prepares a workload and returns its launch."""
    if not AVAILABLE:
        return {}
    if case.family == "MLA":
        return {"FlashInfer fa2": lambda w: _mla(w, "fa2"), "FlashInfer fa3": lambda w: _mla(w, "fa3")}
    found: dict[str, Callable[[Workload], Launch]] = {}
    if case.q_len == 1:
        found["FlashInfer fa2"] = _tensor_core_decode
    if torch.cuda.get_device_capability()[0] == 9 and case.layout == "HND":
        found["FlashInfer XQA"] = _xqa
    return found


def build(cases: list[Case]) -> None:
    """Compile every kernel that the cases need, side by side: one build takes 10 to 35 seconds."""
    from benchmarks.attention import Case, Workload

    tiny = {}
    for case in cases:
        for name, prepare in kernels(case).items():
            small = Case(case.heads, case.kv_heads, 2, 64, case.page_size, case.q_len, layout=case.layout)
            # XQA has a binary per page size and query length, the others one for all.
            key = (name, case.family, *((case.page_size, case.q_len) if name.endswith("XQA") else ()))
            tiny.setdefault(key, (prepare, small))

    def first_launch(job: tuple[Callable[[Workload], Launch], Case]) -> None:
        prepare, small = job
        prepare(Workload(small, l2_bytes=0))(0)

    with ThreadPoolExecutor(6) as pool:  # a build that fails is reported when its kernel is measured
        wait([pool.submit(first_launch, job) for job in tiny.values()])
    torch.cuda.synchronize()


def _pages(workload: Workload) -> tuple[Tensor, Tensor]:
    """The page table as offsets and concatenated ids, on the GPU."""
    page_size = workload.case.page_size
    counts = torch.tensor([-(-length // page_size) for length in workload.lengths])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]).int().cuda()
    ids = torch.cat([row[:count] for row, count in zip(workload.block_tables, counts.tolist(), strict=True)])
    return offsets, ids


def _mla(workload: Workload, backend: str) -> Launch:
    from flashinfer.mla import BatchMLAPagedAttentionWrapper

    case = workload.case
    offsets, ids = _pages(workload)
    rows = torch.arange(case.batch + 1, dtype=torch.int32, device="cuda") * case.q_len
    wrapper = BatchMLAPagedAttentionWrapper(
        torch.zeros(WORKSPACE, dtype=torch.uint8, device="cuda"),
        use_cuda_graph=True,
        qo_indptr=rows.clone(),
        kv_indptr=offsets.clone(),
        kv_indices=ids.clone(),
        kv_len_arr=workload.seq_lens.clone(),
        backend=backend,
    )
    wrapper.plan(
        rows, offsets, ids, workload.seq_lens, case.heads, 512, 64, case.page_size, case.q_len > 1,
        case.softmax_scale, torch.bfloat16, torch.bfloat16,
    )  # fmt: skip
    nope, rope = workload.query[..., :512].contiguous(), workload.query[..., 512:].contiguous()

    def launch(index: int) -> Tensor:
        cache = workload.kv_sets[index]
        return wrapper.run(nope, rope, cache[..., :512], cache[..., 512:], out=workload.out)

    return launch


def _tensor_core_decode(workload: Workload) -> Launch:
    from flashinfer.decode import BatchDecodeWithPagedKVCacheWrapper

    case = workload.case
    offsets, ids = _pages(workload)
    last = (workload.seq_lens - 1) % case.page_size + 1
    wrapper = BatchDecodeWithPagedKVCacheWrapper(
        torch.zeros(WORKSPACE, dtype=torch.uint8, device="cuda"),
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
        q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16, sm_scale=case.softmax_scale,
    )  # fmt: skip
    return lambda index: wrapper.run(workload.query, workload.kv_sets[index], out=workload.out)


def _xqa(workload: Workload) -> Launch:
    from flashinfer.decode import xqa_batch_decode_with_kv_cache

    case = workload.case
    workspace = torch.zeros(WORKSPACE, dtype=torch.uint8, device="cuda")
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
        bmm1_scale=case.softmax_scale,
        bmm2_scale=1.0,
        out=out,
        kv_layout=case.layout,
        q_len_per_req=case.q_len,
        mask=mask,
    )
