"""The kernels that a backend calls, with the vendor's signature, watched.

`KernelPlug.decode` and `.decode_mla` stand for FlashInfer's `trtllm_batch_decode_with_kv_cache` and `..._mla`, argument
for argument; an engine's module can be pointed at them.  Each call

* fills `out` with NaN first, so that rows which the offsets do not cover show;
* logs its host arguments and copies of the metadata tensors, recorded in the graph: current after each replay;
* counts launches over a workspace whose counters are not zero, which the vendor forbids (`dirty_launches()`);
* runs the reference kernel as one node.  It raises `KernelPreconditionError` for what the vendor would reject, and
  treats rows of seq_len <= 0 as `empty_rows` says: "strict" writes NaN, as XQA really does on sm90, "safe" writes 0.

Which of the reference kernels that is follows the launch, unless `kernel` and `grid` force one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from gpu_tests.reference import decode as reference
from gpu_tests.reference.grids import Grid

ForcedKernel = Literal["auto", "gluon", "triton", "torch"]

COUNTER_BYTES = 256
"""Bytes at the start of a workspace that hold the multi-CTA counters (vLLM#25520, flashinfer#4002)."""


@dataclass
class KernelCall:
    """One call of a kernel: its host arguments by name, and live copies of the metadata tensors that it reads.

    `tensors` holds block_tables, seq_lens and, if given, cum_seq_lens_q; after a replay they hold what the kernel saw
    in that replay.
    """

    kernel: Literal["decode", "decode_mla"]
    host: dict[str, Any]
    tensors: dict[str, Tensor]


class KernelPlug:
    """Both kernels for one device.  `mha` and `mla` are the functions behind them.

    `kernel`: `auto` leaves the choice to the launch, a name overrides even the `backend` that an engine passes.
    """

    def __init__(
        self,
        device: torch.device,
        empty_rows: Literal["strict", "safe"] = "strict",
        kernel: ForcedKernel = "auto",
        grid: Grid = "split",
        mha: Callable[..., Any] = reference.trtllm_batch_decode_with_kv_cache,
        mla: Callable[..., Any] = reference.trtllm_batch_decode_with_kv_cache_mla,
    ) -> None:
        self.empty_rows = empty_rows
        self.mha, self.mla = mha, mla
        self._forced: dict[str, str] = {} if kernel == "auto" else {"backend": kernel}
        self._forced |= {} if grid == "split" else {"grid": grid}
        self._dirty = torch.zeros((), dtype=torch.int64, device=device)
        self._logs: list[list[KernelCall]] = []

    def with_kernels(self, mha: Callable[..., Any], mla: Callable[..., Any]) -> KernelPlug:
        """The same plug, with its log and counts, over other kernels."""
        other = copy.copy(self)
        other.mha, other.mla = mha, mla
        return other

    @contextmanager
    def logging(self) -> Iterator[list[KernelCall]]:
        """Collect the calls made in the block."""
        self._logs.append([])
        try:
            yield self._logs[-1]
        finally:
            self._logs.pop()

    def dirty_launches(self) -> int:
        """Launches so far, replays included, that found dirty counters (waits for the device)."""
        return int(self._dirty)

    def decode(
        self,
        query: Tensor,
        kv_cache: Tensor | tuple[Tensor, Tensor],
        workspace_buffer: Tensor,
        block_tables: Tensor,
        seq_lens: Tensor,
        max_seq_len: int,
        bmm1_scale: float | Tensor = 1.0,
        bmm2_scale: float | Tensor = 1.0,
        window_left: int = -1,
        out: Tensor | None = None,
        **options: Any,
    ) -> Tensor:
        """MHA/GQA over a paged cache: `query` [tokens, Hq, D] -> [tokens, Hq, D]."""
        options |= self._forced
        host = {"max_seq_len": max_seq_len, "window_left": window_left, "query_rows": query.shape[0]}
        self._watch("decode", workspace_buffer, block_tables, seq_lens, host, options)
        out = torch.empty_like(query) if out is None else out
        self.mha(
            query, kv_cache, workspace_buffer[COUNTER_BYTES:], block_tables, seq_lens, max_seq_len,
            bmm1_scale, bmm2_scale, window_left, out.fill_(torch.nan), empty_rows=self.empty_rows, **options,
        )  # fmt: skip
        return out

    def decode_mla(
        self,
        query: Tensor,
        kv_cache: Tensor | tuple[Tensor, Tensor],
        workspace_buffer: Tensor,
        qk_nope_head_dim: int,
        kv_lora_rank: int,
        qk_rope_head_dim: int,
        block_tables: Tensor,
        seq_lens: Tensor,
        max_seq_len: int,
        out: Tensor | None = None,
        **options: Any,
    ) -> Tensor:
        """MLA over a latent cache [P, page, L + R]: `query` [B, q, H, L + R] or [tokens, H, L + R] -> [..., H, L]."""
        options |= self._forced
        host = {"max_seq_len": max_seq_len, "query_rows": query.shape[:-2].numel()}
        self._watch("decode_mla", workspace_buffer, block_tables, seq_lens, host, options)
        out = query.new_empty(*query.shape[:-1], kv_lora_rank) if out is None else out
        self.mla(
            query, kv_cache, workspace_buffer[COUNTER_BYTES:], qk_nope_head_dim, kv_lora_rank, qk_rope_head_dim,
            block_tables, seq_lens, max_seq_len, out=out.fill_(torch.nan), empty_rows=self.empty_rows, **options,
        )  # fmt: skip
        return out

    def _watch(
        self,
        kernel: Literal["decode", "decode_mla"],
        workspace: Tensor,
        block_tables: Tensor,
        seq_lens: Tensor,
        host: dict[str, Any],
        options: dict[str, Any],
    ) -> None:
        self._dirty += (workspace[:COUNTER_BYTES] != 0).any()
        tensors = {"block_tables": block_tables, "seq_lens": seq_lens}
        for name, value in options.items():
            if name == "cum_seq_lens_q" and value is not None:
                tensors[name] = value
            elif not isinstance(value, Tensor):
                host[name] = value
        if self._logs:
            self._logs[-1].append(KernelCall(kernel, host, {name: t.clone() for name, t in tensors.items()}))
