"""Guard zones round every buffer, so that a write past an end is seen and does not corrupt the heap.

Inside `with Guards() as guards:` every tensor that `torch.zeros`, `ones`, `full` and `empty` make lies in the middle
of a larger allocation whose ends hold a pattern; `guards.damaged()` names the buffers whose ends were overwritten.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

ZONE_BYTES = 256
_PATTERN = 0x5A


@dataclass(frozen=True)
class _Buffer:
    raw: Tensor
    zone: int
    what: str

    def ends(self) -> Tensor:
        return torch.cat([self.raw[: self.zone], self.raw[-self.zone :]])


class Guards(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self._buffers: list[_Buffer] = []

    def versions(self) -> dict[int, int]:
        """How often each buffer was written so far, by the address of its storage."""
        return {b.raw.untyped_storage().data_ptr(): b.raw._version for b in self._buffers}

    def damaged(self) -> list[str]:
        """Buffers with a damaged guard zone: shape, dtype and where they were made (waits for the device)."""
        return [b.what for b in self._buffers if bool((b.ends().view(torch.uint8) != _PATTERN).any())]

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func not in (torch.zeros, torch.ones, torch.full, torch.empty):
            return func(*args, **kwargs)
        if func is torch.full:
            size, rest = args[0], args[1:]
        else:
            size, rest = (args[0] if len(args) == 1 and not isinstance(args[0], int) else args), ()
        count = torch.Size(size).numel()
        dtype = kwargs.get("dtype") or (torch.tensor(rest[0]).dtype if rest else torch.get_default_dtype())
        zone = ZONE_BYTES // dtype.itemsize
        raw = func((count + 2 * zone,), *rest, **kwargs)
        for end in (raw[:zone], raw[-zone:]):
            end.view(torch.uint8).fill_(_PATTERN)
        maker = sys._getframe(1)
        site = f"{os.path.relpath(maker.f_code.co_filename)}:{maker.f_lineno}"
        self._buffers.append(_Buffer(raw, zone, f"{dtype} {list(size)} made at {site}"))
        return raw[zone : zone + count].view(size)
