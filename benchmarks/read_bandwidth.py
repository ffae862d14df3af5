"""A Triton kernel that only reads: the bandwidth that decode attention could reach at best."""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096


@triton.jit
def _sum(data, sums, blocks, step, BLOCK: tl.constexpr):
    acc = tl.zeros([BLOCK], tl.float32)
    for block in range(tl.program_id(0), blocks, step):
        acc += tl.load(data + block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK))
    tl.store(sums + tl.program_id(0), tl.sum(acc, 0))


def read_all(data: Tensor, warps: int) -> Callable[[int], Tensor]:
    """A launch that reads `data` (fp32, a multiple of `BLOCK` elements) once."""
    programs = torch.cuda.get_device_properties(data.device).multi_processor_count * (32 // warps)
    sums = torch.empty(programs, device=data.device)

    def launch(_: int) -> Tensor:
        _sum[(programs,)](data, sums, data.numel() // BLOCK, programs, BLOCK=BLOCK, num_warps=warps)
        return sums

    return launch
