"""Decide whether a torch call makes the host touch device memory, and keep track of what is host memory.

`Finding` is the answer for one call.  The recorder turns findings into errors; the sync guard lists them.
`PythonCalls` watches the calls that never reach the dispatcher on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.overrides import TorchFunctionMode
from torch.utils import _device
from torch.utils._python_dispatch import TorchDispatchMode

from gpu_tests.graphs.driver import (
    CaptureError,
    DeviceMixError,
    HostCopyError,
    HostReadError,
    UncapturableKernelError,
    UnsupportedOpError,
)
from gpu_tests.graphs.emulation import rules
from gpu_tests.graphs.emulation.memory import HOST, has_storage


@dataclass(frozen=True)
class Finding:
    """Why a call cannot be captured; `waits` is whether in plain code it makes the host wait for the
    device.
    """

    op: str
    reason: str
    error: type[CaptureError]
    waits: bool = True


_PAGEABLE = "copies pageable host memory to the device; use pinned memory with non_blocking=True, or a fill kernel"
_BLOCKING = "a copy between host and device without non_blocking=True waits for the device"
_TO_PAGEABLE = "copies device memory to pageable host memory"


def is_host(t: torch.Tensor) -> bool:
    return has_storage(t) and HOST.is_host(t)


def tensors_in(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def is_mask(t: torch.Tensor | None) -> bool:
    return t is not None and t.dtype in (torch.bool, torch.uint8)


def check_op(func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Finding | None:
    """Judge one dispatched op that has at least one device operand."""
    name = rules.packet_name(func)
    if name in rules.HOST_READ_OPS:
        reason, condition = rules.HOST_READ_OPS[name]
        if condition is None or condition(args, kwargs):
            return Finding(name, reason, HostReadError)
    if any(not is_host(args[i]) for i in rules.ITEM_INSIDE.get(str(func), ())):
        return Finding(name, rules.ITEM_REASON, HostReadError)
    if name in rules.UNCAPTURABLE_OPS:
        return Finding(name, rules.UNCAPTURABLE_OPS[name], UncapturableKernelError)
    if kwargs.get("generator") is not None:
        return Finding(
            name,
            "its generator is not the default one, so the graph cannot advance it",
            UnsupportedOpError,
            False,
        )
    if name in ("aten.index", "aten.index_put", "aten.index_put_", "aten._index_put_impl_"):
        return _check_index(name, args)
    if name == "aten.copy_":
        return _check_copy(args[0], args[1], bool(args[2]) if len(args) > 2 else kwargs.get("non_blocking", False))
    return _check_host_operands(func, args, kwargs)


def _check_index(name: str, args: tuple[Any, ...]) -> Finding | None:
    indices = [i for i in args[1] if i is not None]
    if any(is_host(i) for i in indices):
        return Finding(name, f"a list, array or host tensor as index {_PAGEABLE}", HostCopyError)
    value = args[2] if len(args) > 2 else None
    host_value = value is not None and is_host(value)
    if any(is_mask(i) for i in indices):
        # One mask and one host number is a masked fill: nothing to read, nothing to copy.
        if host_value and value.dim() == 0 and len(indices) == 1:
            return None
        return Finding(name, "a boolean mask as index: " + rules.SHAPE_REASON, HostReadError)
    if host_value:
        return Finding(name, f"the value on the right is a host number and {_PAGEABLE}", HostCopyError)
    return None


def _check_copy(dst: torch.Tensor, src: torch.Tensor, non_blocking: bool) -> Finding | None:
    to_host, from_host = is_host(dst), is_host(src)
    if to_host == from_host:
        return None
    if not HOST.is_pinned(dst if to_host else src):
        error = HostReadError if to_host else HostCopyError
        return Finding("aten.copy_", _TO_PAGEABLE if to_host else _PAGEABLE, error, waits=not non_blocking)
    return None if non_blocking else Finding("aten.copy_", _BLOCKING, HostCopyError)


def _check_host_operands(func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Finding | None:
    hosts = [t for t in tensors_in((args, kwargs)) if is_host(t)]
    if not hosts:
        return None
    name = rules.packet_name(func)
    if all(t.dim() == 0 for t in hosts):
        if rules.allows_host_scalar(func):
            return None
        if name in rules.COPIES_HOST_SCALAR:
            return Finding(name, f"a 0-dim host tensor {_PAGEABLE}", HostCopyError)
    return Finding(
        name,
        "a device tensor meets a host tensor with dimensions, which eager CUDA refuses as well (host: made "
        "without device=, with device='cpu' as a string, from Python data, or by to_host)",
        DeviceMixError,
        waits=False,
    )


class PythonCalls(TorchFunctionMode):
    """Watch Python calls: host reads that bypass the dispatcher, factories without a device, `.to`."""

    def __init__(self, mode: HostAwareMode) -> None:
        super().__init__()
        self.mode = mode

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        first = args[0] if args else None
        if not isinstance(first, torch.Tensor):
            return self._factory(func, name, args, kwargs) if name in rules.FACTORIES else func(*args, **kwargs)
        if not has_storage(first):
            return func(*args, **kwargs)
        if name in ("to", "cpu"):
            return self._to(func, args, kwargs)
        if name in rules.HOST_READ_METHODS:
            return self._host_read(func, args, kwargs)
        if name == "pin_memory" and is_host(first):
            with self.mode.host_section():
                return HOST.mark(first.clone(), pinned=True)
        if name == "is_pinned":
            return HOST.is_pinned(first)
        if name == "new_tensor" and not is_host(first):
            self.mode.found(Finding("Tensor.new_tensor", _PAGEABLE, HostCopyError))
            return _on_device(func(*args, **kwargs))
        if name == "one_hot" and not is_host(first):
            return _one_hot(*args, **kwargs)
        return func(*args, **kwargs)

    def _factory(self, func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        from_data = name in rules.FROM_PYTHON_DATA
        if from_data and not all(is_host(t) for t in tensors_in((args, kwargs))):
            self.mode.found(Finding(f"torch.{name}", "reads device tensors inside a list on the host", HostReadError))
        if _is_host_device(kwargs.get("device")):
            with self.mode.host_section():
                out = func(*args, **kwargs)
            for t in tensors_in(out):
                HOST.mark(t, pinned=bool(kwargs.get("pin_memory", False)))
            return out
        if from_data:
            self.mode.found(Finding(f"torch.{name}(device=)", _PAGEABLE, HostCopyError))
            return _on_device(func(*args, **kwargs))
        return func(*args, **kwargs)

    def _host_read(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not is_host(args[0]):
            name = func.__name__
            self.mode.found(Finding(f"Tensor.{name}", rules.HOST_READ_METHODS[name], HostReadError))
        with self.mode.host_section():
            return func(*args, **kwargs)

    def _to(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`.to` and `.cpu` between host and device become the `copy_` that CUDA does."""
        source = args[0]
        to_host = True if func.__name__ == "cpu" else _target_is_host((*args[1:], *kwargs.values()))
        if to_host is None or to_host == is_host(source):
            return func(*args, **kwargs)
        same_device = func(*args, **kwargs)  # a no-op, or a change of dtype on the side of the source
        flags = [v for v in (*args[1:], kwargs.get("non_blocking")) if isinstance(v, bool)]
        non_blocking = bool(flags and flags[0])
        if to_host:
            # `.to("cpu", non_blocking=True)` allocates pinned memory: a live copy node.
            with self.mode.host_section():
                target = HOST.mark(torch.empty_like(same_device), pinned=non_blocking)
        else:
            target = torch.empty(same_device.size(), dtype=same_device.dtype, device=source.device)
        return target.copy_(same_device, non_blocking=non_blocking)


class HostAwareMode(TorchDispatchMode):
    """Base of recorder and sync guard: tells host ops from device ops, and reports findings.

    Ops on host tensors alone run at once, as they do on CUDA during a capture; their results are host
    tensors.
    """

    def __init__(self) -> None:
        super().__init__()
        self._host_depth = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Newer torch wraps a mode for the compiler, and so imports the compiler (2 s) at the first op; not
        here.
        """
        return False

    def found(self, finding: Finding) -> None:
        raise NotImplementedError

    def run(self, func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError

    @contextmanager
    def host_section(self) -> Iterator[None]:
        """Ops inside belong to the host: neither judged nor recorded."""
        self._host_depth += 1
        try:
            yield
        finally:
            self._host_depth -= 1

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._host_depth:
            return func(*args, **kwargs)
        if func is torch.ops.aten.lift_fresh.default:  # a tensor that torch built from Python data on the host
            return func(*args) if self.knows(args[0]) else HOST.mark(func(*args))
        tensors = tensors_in((args, kwargs))
        if tensors and all(is_host(t) for t in tensors):
            out = func(*args, **kwargs)
            for t in tensors_in(out):
                if not is_host(t):
                    HOST.mark(t)
            return out
        finding = check_op(func, args, kwargs)
        if finding is not None:
            self.found(finding)
        elif _is_composite(func):  # only under inference_mode do these get here whole
            with self:
                # The C++ kernel, as in eager code; `func.decompose` may pick a Python one that rounds
                # otherwise.
                return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
        return self.run(func, args, kwargs)

    def knows(self, t: torch.Tensor) -> bool:
        """Whether `t` is device memory already."""
        return False


def _is_composite(func: torch._ops.OpOverload) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


def _is_host_device(device: Any) -> bool:
    """The string 'cpu', or nothing, means the host; a torch.device object means the emulated device."""
    if device is None:
        return _device.CURRENT_DEVICE is None
    return isinstance(device, str) and device.startswith("cpu")


def _target_is_host(values: tuple[Any, ...]) -> bool | None:
    """Where `.to(...)` goes; None when it changes the dtype alone."""
    for value in values:
        if isinstance(value, torch.Tensor):
            return is_host(value)
        if isinstance(value, torch.device):
            return False
        if isinstance(value, str):
            return value.startswith("cpu")
    return None


def _on_device(t: torch.Tensor) -> torch.Tensor:
    """A device copy of a tensor that `lift_fresh` took for host memory (reached by the sync guard alone)."""
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.Python)):
        return t.clone()


def _one_hot(index: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """`one_hot` as CUDA runs it: with a class count there is no host read (the CPU kernel has one)."""
    if num_classes < 0:
        num_classes = int(index.max().item()) + 1
    classes = torch.arange(num_classes, device=index.device)
    return (index.unsqueeze(-1) == classes).to(torch.int64)
