"""The errors of a kernel whose arguments break its contract: each argument, its value and what is allowed."""

from __future__ import annotations

from numbers import Number

import torch
from torch import Tensor

ALIGNMENT = 16
"""Bytes: kernels store vectors of so many."""


class KernelPreconditionError(ValueError):
    """The arguments of a kernel break its contract."""


class Problems:
    """Collects violated preconditions, so that a caller sees all of them at once."""

    def __init__(self, function: str) -> None:
        self._function = function
        self.lines: list[str] = []
        self._arguments: set[str] = set()
        self._devices: dict[str, torch.device] = {}

    def unless(self, holds: bool, argument: str, got: object, allowed: str) -> None:
        if not holds:
            self.lines.append(f"{argument}: got {got}, must be {allowed}")
            self._arguments.add(argument)

    def about(self, *arguments: str) -> bool:
        """Whether one of the arguments has a problem, so that what depends on it cannot be said."""
        return not self._arguments.isdisjoint(arguments)

    def is_a(self, argument: str, value: object, types: tuple[type, ...], allowed: str) -> None:
        """A bool is no number."""
        fits = isinstance(value, types) and not isinstance(value, bool)
        short = value is None or isinstance(value, str | bool | Number)
        self.unless(fits, argument, repr(value) if short else f"a {type(value).__name__}", allowed)

    def defaults_only(self, arguments: dict[str, object], defaults: dict[str, object]) -> None:
        """Arguments that are not implemented may hold their default in `defaults`, or None if they have none
        there.
        """
        for name, value in arguments.items():
            default = defaults.get(name)
            numbers = all(isinstance(each, Number) and not isinstance(each, bool) for each in (value, default))
            alike = numbers or type(value) is type(default)  # one of NumPy's is as good as one of Python's
            fits = value is None or (alike and value == default)
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

    def buffer(self, argument: str, buffer: Tensor | None, needed: int | None, device: torch.device) -> None:
        """A buffer of any dtype with `needed` bytes; None if they cannot be said, for what else is wrong."""
        least = "a tensor" if needed is None else f"at least {needed} bytes"
        if buffer is None:
            self.unless(False, argument, None, least)
            return
        size = buffer.numel() * buffer.element_size()
        self.unless(buffer.is_contiguous(), argument, f"strides {list(buffer.stride())}", "contiguous")
        self.unless(needed is None or size >= needed, argument, f"{size} bytes", least)
        self.unless(buffer.device == device, argument, f"device {buffer.device}", f"on {device}, as the query")
        beyond = buffer.data_ptr() % ALIGNMENT
        self.unless(
            beyond == 0, argument, f"an address {beyond} bytes past a multiple of {ALIGNMENT}",
            f"aligned to {ALIGNMENT} bytes",
        )  # fmt: skip

    def same_device(self, device: torch.device) -> None:
        for argument, other in self._devices.items():
            self.unless(other == device, argument, f"device {other}", f"on {device}, as the query")

    def raise_if_any(self) -> None:
        if self.lines:
            raise KernelPreconditionError("\n  ".join([f"{self._function}:", *self.lines]))
