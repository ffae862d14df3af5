"""Record a function as a program of nodes with frozen pointers and host numbers.

Recording has no effect: each op is run to learn the layout of its results, and afterwards the memory of
others is put back, private memory is poisoned and the random generator is rewound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from gpu_tests.graphs.driver import ReplayError, UncapturableKernelError
from gpu_tests.graphs.emulation import rules
from gpu_tests.graphs.emulation.host_rules import Finding, HostAwareMode, PythonCalls, is_host, tensors_in
from gpu_tests.graphs.emulation.memory import (
    HOST,
    Block,
    Operand,
    has_storage,
    raw_bytes,
    require_storage,
    storage_key,
)
from gpu_tests.graphs.emulation.triton_hook import interpreted_triton_is_opaque
from gpu_tests.graphs.opaque import recording_opaque_calls
from gpu_tests.graphs.sites import name_of, user_site


@dataclass(frozen=True)
class Frozen:
    """A host tensor's value as it was at capture."""

    value: torch.Tensor

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Frozen) or self.value.dtype != other.value.dtype:
            return False
        return torch.equal(*(f.value.reshape(-1).view(torch.uint8) for f in (self, other)))  # NaN equals NaN

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return f"host {self.value.tolist()}"


@dataclass(frozen=True)
class Node:
    """One kernel: `fn(*args)` with `Operand`, `Frozen` and host numbers as leaves, results copied to
    `outs`.
    """

    op: str
    fn: Callable[..., Any]
    leaves: tuple[Any, ...]
    spec: pytree.TreeSpec
    outs: tuple[Operand | None, ...]
    site: str

    def run(self) -> None:
        args, kwargs = pytree.tree_unflatten([_live(leaf) for leaf in self.leaves], self.spec)
        try:
            results = tensors_in(self.fn(*args, **kwargs))
        except (RuntimeError, IndexError, ValueError) as error:
            raise ReplayError(f"{self.site}: {self.op} failed at replay: {error}") from error
        for out, result in zip(self.outs, results, strict=True):
            if out is None:
                continue
            if out.size != tuple(result.size()):
                raise ReplayError(
                    f"{self.site}: {self.op} gave shape {list(result.size())} at replay, {list(out.size)} at capture"
                )
            out.tensor().copy_(result)


def _live(leaf: Any) -> Any:
    if isinstance(leaf, Operand):
        return leaf.tensor()
    return leaf.value.clone() if isinstance(leaf, Frozen) else leaf


@dataclass
class Program:
    """Nodes in order, and the memory that they point at."""

    nodes: list[Node]
    private: list[Block]
    uninitialised: list[Block]
    external: list[Block]


class Recorder(HostAwareMode):
    """The mode that is active during a capture."""

    def __init__(self, cuda_kernel_limits: bool) -> None:
        super().__init__()
        self._cuda_kernel_limits = cuda_kernel_limits
        self.program = Program([], [], [], [])
        self._blocks: dict[int, Block] = {}
        self._saved: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    @contextmanager
    def recording(self) -> Iterator[Program]:
        """Record what the block does; then undo its effects on memory and on the random generator."""
        rng = torch.get_rng_state()
        try:
            with recording_opaque_calls(self), interpreted_triton_is_opaque(), PythonCalls(self), self:
                yield self.program
        finally:
            for memory, before in self._saved.values():
                memory.copy_(before)
            self._saved.clear()
            torch.set_rng_state(rng)
        for block in self.program.private:
            block.poison()

    def found(self, finding: Finding) -> None:
        if finding.error is UncapturableKernelError and not self._cuda_kernel_limits:
            return
        raise finding.error(finding.op, finding.reason, user_site())

    def knows(self, t: torch.Tensor) -> bool:
        return storage_key(t) in self._blocks

    def run(self, func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name, site = rules.packet_name(func), user_site()
        inputs = tensors_in((args, kwargs))
        for t in inputs:
            require_storage(t, name, site)
        written = _written(func, args, kwargs)
        leaves, spec = self._freeze(args, kwargs)
        self._save(written)
        result = _execute(func, args, kwargs)
        if torch.Tag.inplace_view in func.tags:  # changes the tensor object on the host, launches nothing
            for t in written:
                self._block(t).follow(t)
            return result
        outs = self._outputs(tensors_in(result), inputs, name, site)
        if name in rules.UNINITIALISED:
            for t in tensors_in(result):
                t.zero_()  # a harmless value for the rest of the capture; poison comes afterwards
                self.program.uninitialised.append(self._block(t))
        elif written or any(outs):
            self.program.nodes.append(Node(name, func, leaves, spec, outs, site))
        return result

    def call_opaque(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record `fn` as one node.  What it writes is unknown, so every operand is put back afterwards."""
        name, site = getattr(fn, "__qualname__", None) or repr(fn), user_site()
        inputs = tensors_in((args, kwargs))
        with _kernel_running(), _disable_current_modes():
            leaves, spec = self._freeze(args, kwargs)
            self._save(inputs)
            result = fn(*args, **kwargs)
        outs = self._outputs(tensors_in(result), inputs, name, site)
        self.program.nodes.append(Node(name, fn, leaves, spec, outs, site))
        return result

    def _freeze(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], pytree.TreeSpec]:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        return tuple(self._leaf(leaf) for leaf in leaves), spec

    def _leaf(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or not has_storage(leaf):
            return leaf
        if is_host(leaf) and not HOST.is_pinned(leaf):
            return Frozen(leaf.detach().clone())
        return Operand.of(leaf, self._block(leaf))

    def _block(self, t: torch.Tensor) -> Block:
        """The block under `t`; memory seen for the first time belongs to the user."""
        block = self._blocks.get(storage_key(t))
        if block is None:
            what = f"{str(t.dtype).removeprefix('torch.')}{list(t.size())}"
            block = Block(t, owned=False, label=f"`{name_of(t) or 'a tensor'}` {what}")
            self._blocks[storage_key(t)] = block
            self.program.external.append(block)
        return block

    def _save(self, written: list[torch.Tensor]) -> None:
        for t in written:
            if not self._block(t).owned and storage_key(t) not in self._saved:
                memory = raw_bytes(t.untyped_storage())
                self._saved[storage_key(t)] = (memory, memory.clone())

    def _outputs(
        self, results: list[torch.Tensor], inputs: list[torch.Tensor], name: str, site: str
    ) -> tuple[Operand | None, ...]:
        """Pin what the op allocated; an output that aliases an operand has no memory of its own."""
        aliased = {storage_key(t) for t in inputs if has_storage(t)}
        outs: list[Operand | None] = []
        for t in results:
            require_storage(t, name, site)
            if storage_key(t) in aliased:
                outs.append(None)
                continue
            block = Block(t, owned=True, label=f"the result of {name} at {site}")
            self._blocks[storage_key(t)] = block
            self.program.private.append(block)
            outs.append(Operand.of(t, block))
        return tuple(outs)


def _written(func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The operands that the op writes, by its schema and by `rules.HIDDEN_WRITES`."""
    written: list[torch.Tensor] = []
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = kwargs.get(argument.name, args[i] if i < len(args) else None)
            written += tensors_in(value)
    for i in rules.HIDDEN_WRITES.get(rules.packet_name(func), ()):
        written += tensors_in(args[i])
    return written


@contextmanager
def _kernel_running() -> Iterator[None]:
    """What a kernel does inside is no node of its own."""
    with torch._C.DisableTorchFunction(), recording_opaque_calls(None):
        yield


def _execute(func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the op for the layout of its results.

    CUDA looks at no data while it captures, so an op that fails on the data of the moment (an index out of
    range in a buffer that is not filled yet) must not fail here: then only shapes are computed.
    """
    with _kernel_running():
        try:
            return func(*args, **kwargs)
        except (RuntimeError, IndexError) as error:
            if rules.DATA_ERRORS.search(str(error)) is None:
                raise
            return _layout_only(func, args, kwargs, error)


def _layout_only(func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> Any:
    """Results with the layout that the op would give and arbitrary contents; re-raises a failure of
    shapes.
    """
    with torch.device("meta"):
        meta_args, meta_kwargs = pytree.tree_map_only(torch.Tensor, lambda t: t.to("meta"), (args, kwargs))
        meta_kwargs = {k: torch.device("meta") if k == "device" else v for k, v in meta_kwargs.items()}
        try:
            result = func(*meta_args, **meta_kwargs)
        except (RuntimeError, IndexError, NotImplementedError):
            raise error from None
    written = _written(func, args, kwargs)
    if written:
        return written[0] if len(written) == 1 else tuple(written)
    return pytree.tree_map_only(
        torch.Tensor,
        lambda t: torch.empty_strided(t.size(), t.stride(), dtype=t.dtype, device="cpu").zero_(),
        result,
    )
