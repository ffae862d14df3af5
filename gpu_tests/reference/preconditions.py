"""The errors of a kernel whose arguments break its contract: each argument, its value and what is allowed."""

from __future__ import annotations

import torch
from torch import Tensor


class KernelPreconditionError(ValueError):
    """The arguments of a kernel break its contract."""


class Problems:
    """Collects violated preconditions, so that a caller sees all of them at once."""

    def __init__(self, function: str) -> None:
        self._function = function
        self.lines: list[str] = []
        self._devices: dict[str, torch.device] = {}

    def unless(self, holds: bool, argument: str, got: object, allowed: str) -> None:
        if not holds:
            self.lines.append(f"{argument}: got {got}, must be {allowed}")

    def defaults_only(self, arguments: dict[str, object], defaults: dict[str, object]) -> None:
        """Arguments that are not implemented may hold their default in `defaults`, or None if they have none
        there.
        """
        for name, value in arguments.items():
            default = defaults.get(name)
            fits = value is None or (type(value) is type(default) and value == default)
            self.unless(fits, name, value, f"{default}: it is not implemented")

    def tensor(
        self,
        argument: str,
        tensor: Tensor,
        dtypes: tuple[torch.dtype, ...],
        shape: list[int | None],
        inner_stride: bool = False,
    ) -> None:
        """`None` in `shape` stands for any size; `inner_stride` asks for stride 1 in the last dimension."""
        names = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        self.unless(tensor.dtype in dtypes, argument, str(tensor.dtype).removeprefix("torch."), names)
        fits = tensor.dim() == len(shape) and all(
            want in (None, got) for want, got in zip(shape, tensor.shape, strict=True)
        )
        self.unless(fits, argument, f"shape {list(tensor.shape)}", f"{shape}".replace("None", "any"))
        if inner_stride and tensor.dim() and tensor.shape[-1] > 1:
            self.unless(
                tensor.stride(-1) == 1,
                argument,
                f"strides {list(tensor.stride())}",
                "1 in the last dimension",
            )
        self._devices[argument] = tensor.device

    def buffer(self, argument: str, buffer: Tensor | None, needed: int, device: torch.device) -> None:
        """A buffer of any dtype with `needed` bytes."""
        if buffer is None:
            self.unless(False, argument, None, f"at least {needed} bytes")
            return
        size = buffer.numel() * buffer.element_size()
        self.unless(buffer.is_contiguous(), argument, f"strides {list(buffer.stride())}", "contiguous")
        self.unless(size >= needed, argument, f"{size} bytes", f"at least {needed} bytes")
        self.unless(buffer.device == device, argument, f"device {buffer.device}", f"on {device}, as the query")

    def same_device(self, device: torch.device) -> None:
        for argument, other in self._devices.items():
            self.unless(other == device, argument, f"device {other}", f"on {device}, as the query")

    def raise_if_any(self) -> None:
        if self.lines:
            raise KernelPreconditionError("\n  ".join([f"{self._function}:", *self.lines]))
