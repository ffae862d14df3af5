"""Runs the Gluon kernels on a CPU, from the very functions that the compiler gets: each role is a thread.

Gluon has no interpreter of its own (Triton 3.6). This one takes the Python function behind a kernel and runs it with
other meanings of its names: tensors are torch tensors, pointers are storages with offsets, shared memory is a buffer,
a TMA copy and a matrix instruction are done at once, and barriers block threads as they block warps. So it shows
whether pieces, rings, phases, masks and formulas are right, and whether roles wait for each other for ever. It shows
nothing of layouts, of the order of memory accesses and of speed: those are the GPU's.
"""

from __future__ import annotations

import inspect
import itertools
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.runtime.jit import JITFunction

from gpu_tests.reference import balanced, combine, gluon_gqa, gluon_gqa_rows, gluon_mla, gluon_mla_rows, select

WAIT_SECONDS = 10.0
"""How long a role may wait at a barrier before the kernel counts as hung."""


class Value(Tensor):
    """A tensor or a scalar of a kernel: it never changes, as `a += b` gives a new one there."""

    __iadd__, __isub__, __imul__ = Tensor.__add__, Tensor.__sub__, Tensor.__mul__
    __iand__, __ior__ = Tensor.__and__, Tensor.__or__

    def to(self, dtype: Any, bitcast: bool = False) -> Value:  # type: ignore[override]
        kind = dtype.element_ty if isinstance(dtype, Element) else dtype
        return self.view(kind) if bitcast else super().to(kind)


def value(x: Any, dtype: torch.dtype | None = None) -> Any:
    if isinstance(x, (bool, int, float)):
        kind = torch.bool if isinstance(x, bool) else torch.int32 if isinstance(x, int) else torch.float32
        x = torch.tensor(x, dtype=dtype or kind)
    return x.as_subclass(Value)


@dataclass(frozen=True)
class Element:
    """What a kernel asks of `pointer.dtype` and `tile.dtype`."""

    element_ty: torch.dtype

    @property
    def primitive_bitwidth(self) -> int:
        return 8 * self.element_ty.itemsize


@dataclass(frozen=True)
class Pointer:
    """Elements of a tensor's storage from its first one on."""

    memory: Tensor
    offset: Any = 0

    @classmethod
    def to(cls, tensor: Tensor) -> Pointer:
        size = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
        return cls(tensor.as_strided((size,), (1,)))

    @property
    def dtype(self) -> Element:
        return Element(self.memory.dtype)

    def __add__(self, more: Any) -> Pointer:
        return Pointer(self.memory, self.offset + more)

    def __getitem__(self, index: Any) -> Pointer:
        return Pointer(self.memory, self.offset[index])


def load(pointer: Pointer, mask: Any = True, other: Any = 0, eviction_policy: str = "") -> Value:
    offset, mask = torch.broadcast_tensors(torch.as_tensor(pointer.offset).long(), torch.as_tensor(mask))
    found = pointer.memory[torch.where(mask, offset, 0)]
    fits = found.float() if found.dtype == torch.float8_e4m3fn else found
    if fits.dtype == torch.uint16:
        fits = fits.int()
    return value(torch.where(mask, fits, torch.as_tensor(other).to(fits.dtype)).to(fits.dtype))


def store(pointer: Pointer, x: Any, mask: Any = True) -> None:
    given = torch.as_tensor(x)
    shape = torch.broadcast_shapes(torch.as_tensor(pointer.offset).shape, given.shape, torch.as_tensor(mask).shape)
    offset, given, mask = (torch.as_tensor(t).expand(shape) for t in (pointer.offset, given, mask))
    pointer.memory[offset[mask].long()] = given[mask].to(pointer.memory.dtype)


@dataclass(frozen=True)
class Shared:
    """Shared memory, or a view of it."""

    data: Tensor

    @property
    def shape(self) -> torch.Size:
        return self.data.shape

    @property
    def dtype(self) -> Element:
        return Element(self.data.dtype)

    def index(self, i: Any) -> Shared:
        return Shared(self.data[int(i)])

    def slice(self, start: int, length: int, dim: int = 0) -> Shared:
        return Shared(self.data.narrow(dim, start, length))

    def reshape(self, shape: Sequence[Any]) -> Shared:
        return Shared(self.data.view([int(size) for size in shape]))

    def permute(self, order: Sequence[int]) -> Shared:
        return Shared(self.data.permute(order))

    def _reinterpret(self, dtype: torch.dtype, shape: Sequence[Any], layout: object) -> Shared:
        return Shared(self.data.view(dtype)).reshape(shape)

    def load(self, layout: object = None) -> Value:
        return value(self.data.clone())

    def store(self, x: Tensor) -> None:
        self.data.copy_(x)


class Barrier:
    """An mbarrier for one arrival a phase, and bytes that are on their way."""

    def __init__(self) -> None:
        self.phase, self.pending, self.bytes = 0, 1, 0
        self.changed = threading.Condition()

    def update(self, arrivals: int, more_bytes: int) -> None:
        with self.changed:
            self.pending -= arrivals
            self.bytes += more_bytes
            assert self.pending >= 0, "more arrivals than the barrier is for"
            if self.pending == 0 and self.bytes == 0:
                self.phase, self.pending = self.phase + 1, 1
                self.changed.notify_all()

    def wait(self, parity: Any, pred: Any = True) -> None:
        """Until the phase of that parity is over, as `mbarrier.try_wait.parity` has it."""
        if not pred:
            return
        with self.changed:
            over = self.changed.wait_for(lambda: (self.phase - 1) % 2 == int(parity) % 2, WAIT_SECONDS)
        assert over, f"a role waited for {WAIT_SECONDS} s: the roles wait for each other"


class Barriers(list[Barrier]):
    def index(self, i: Any) -> Barrier:  # type: ignore[override]
        return self[int(i)]


@dataclass(frozen=True)
class TensorMap:
    """What TMA knows of a tensor."""

    base: Tensor
    block_shape: Sequence[int]
    layout: object

    @property
    def dtype(self) -> torch.dtype:
        return self.base.dtype


def copy_block(source: TensorMap, coordinates: Sequence[Any], barrier: Barrier, target: Shared) -> None:
    """A TMA copy: what lies outside of the tensor is zero."""
    starts = [int(coordinate) for coordinate in coordinates]
    target.data.zero_()
    inside: list[slice] = []
    for start, size, block in zip(starts, source.base.shape, source.block_shape, strict=True):
        inside.append(slice(max(start, 0), min(start + block, size)))
    if all(part.start < part.stop for part in inside):
        into = tuple(slice(part.start - start, part.stop - start) for part, start in zip(inside, starts, strict=True))
        target.data[into] = source.base[tuple(inside)]
    barrier.update(0, -target.data.numel() * target.data.element_size())


def multiply(a: Any, b: Any, acc: Tensor, use_acc: bool = True, is_async: bool = False) -> Value:
    first, second = (side.data if isinstance(side, Shared) else side for side in (a, b))
    product = first.float() @ second.float()
    return value(acc + product if use_acc else product)


def wait_for_product(pending: int, deps: tuple[Value, ...]) -> Any:
    return deps[0] if len(deps) == 1 else deps


def bf16_of_e4m3(words: Value) -> Value:
    """What `gluon_fp8` has in instructions of the GPU."""
    converted = words.contiguous().as_subclass(Tensor).view(torch.float8_e4m3fn).to(torch.bfloat16)
    return value(converted.view(torch.int32))


@dataclass
class Program:
    """The place of a program in its grid."""

    ids: tuple[int, ...]
    grid: tuple[int, ...]


class Constant(int):
    """A number that the compiler knows."""

    @property
    def value(self) -> int:
        return int(self)


def unwrap(x: Any) -> Any:
    if not isinstance(x, gl.constexpr):
        return x
    return Constant(x.value) if type(x.value) is int else x.value


def scalar(function: Callable[..., Tensor]) -> Callable[..., Any]:
    """A function of torch for tensors, scalars and Python numbers."""

    def apply(*args: Any) -> Any:
        if all(isinstance(arg, (int, float)) for arg in args):
            return function(*map(torch.tensor, args)).item()
        return value(function(*(torch.as_tensor(arg) for arg in args)))

    return apply


class Language:
    """The names of `gl` and `tl` that the kernels use."""

    def __init__(self, program: Program) -> None:
        self._program = program

    int16, int32, int64 = torch.int16, torch.int32, torch.int64
    float16, bfloat16, float32, float8e4nv = torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn
    constexpr = gl.constexpr
    static_range = staticmethod(range)
    load, store = staticmethod(load), staticmethod(store)
    maximum, minimum = staticmethod(scalar(torch.maximum)), staticmethod(scalar(torch.minimum))
    exp2, log2, abs = staticmethod(torch.exp2), staticmethod(torch.log2), staticmethod(torch.abs)

    def __getattr__(self, name: str) -> Any:  # layouts have no meaning here
        if name.endswith("Layout"):
            return lambda *args, **kwargs: None
        raise AttributeError(name)

    def program_id(self, axis: int) -> Value:
        return value(self._program.ids[axis])  # type: ignore[no-any-return]

    def num_warps(self) -> int:
        return 4

    def arange(self, start: int, stop: int, layout: object = None) -> Value:
        return value(torch.arange(start, stop, dtype=torch.int32))  # type: ignore[no-any-return]

    def full(self, shape: Sequence[int], x: float, dtype: torch.dtype, layout: object = None) -> Value:
        return value(torch.full([int(size) for size in shape], x, dtype=dtype))  # type: ignore[no-any-return]

    def zeros(self, shape: Sequence[int], dtype: torch.dtype, layout: object = None) -> Value:
        return self.full(shape, 0, dtype)

    def zeros_like(self, x: Tensor) -> Value:
        return value(torch.zeros_like(x))  # type: ignore[no-any-return]

    def where(self, condition: Any, a: Any, b: Any) -> Value:
        condition, a, b = (torch.as_tensor(x) for x in (condition, a, b))
        kind = a.dtype if a.dim() >= b.dim() else b.dtype
        return value(torch.where(condition, a.to(kind), b.to(kind)))  # type: ignore[no-any-return]

    def max(self, x: Tensor, axis: int) -> Value:
        return value(x.amax(axis))  # type: ignore[no-any-return]

    def sum(self, x: Tensor, axis: int) -> Value:
        return value(x.sum(axis, dtype=x.dtype if x.dtype != torch.bool else torch.int32))  # type: ignore[no-any-return]

    def cumsum(self, x: Tensor, axis: int) -> Value:
        return value(x.cumsum(axis, dtype=x.dtype))  # type: ignore[no-any-return]

    def cdiv(self, a: Any, b: Any) -> Any:
        return (a + b - 1) // b

    def convert_layout(self, x: Value, layout: object) -> Value:
        return x

    def allocate_shared_memory(self, dtype: Any, shape: Sequence[Any], layout: object) -> Any:
        if dtype == torch.int64:
            return Barriers(Barrier() for _ in range(int(shape[0]))) if len(shape) == 2 else Barrier()
        filled = torch.full([int(size) for size in shape], float("nan")).to(
            dtype
        )  # nobody may read what is not written
        return Shared(filled)

    def warp_specialize(self, roles: Sequence[tuple[Any, tuple[Any, ...]]], *_: object) -> None:
        failures: list[BaseException] = []

        def run(role: Callable[..., None], arguments: tuple[Any, ...]) -> None:
            try:
                role(*arguments)
            except BaseException as failure:
                failures.append(failure)

        threads = [threading.Thread(target=run, args=role, daemon=True) for role in roles]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]


class _Hopper:
    """`mbarrier` and `tma`."""

    MBarrierLayout = staticmethod(lambda: None)
    init = staticmethod(lambda barrier, count: None)
    expect = staticmethod(lambda barrier, size: barrier.update(1, int(size)))
    arrive = staticmethod(lambda barrier: barrier.update(1, 0))
    wait = staticmethod(lambda barrier, phase, pred=True: barrier.wait(phase, pred))
    async_copy_global_to_shared = staticmethod(
        lambda source, coordinates, barrier, target: copy_block(source, coordinates, barrier, target)
    )


@dataclass
class Interpreted:
    """A kernel that is launched like a JITFunction, and run here."""

    kernel: JITFunction
    programs: int = field(default=0, init=False)

    def __getitem__(self, grid: Sequence[int]) -> Callable[..., None]:
        return lambda *args, **kwargs: self._launch(tuple(map(int, grid)), args, kwargs)

    def _launch(self, grid: tuple[int, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        parameters = inspect.signature(self.kernel.fn).parameters
        options = {name: given for name, given in kwargs.items() if name in parameters}
        given = [argument(arg) for arg in args]
        sizes = (*grid, 1, 1)[:3]
        for ids in itertools.product(*map(range, reversed(sizes))):
            self.programs += 1
            language = Language(Program(tuple(reversed(ids)), sizes))
            runnable(self.kernel, language, {})(*given, **options)


def argument(given: Any) -> Any:
    """What a kernel gets for what its launch was given."""
    if isinstance(given, Tensor):
        return Pointer.to(given)
    if isinstance(given, TensorDescriptor):
        return TensorMap(given.base, given.block_shape, given.layout)
    return given


def runnable(kernel: JITFunction, language: Language, seen: dict[Any, Callable[..., Any]]) -> Callable[..., Any]:
    """The Python function of a kernel, with the meanings of this file for its names."""
    if kernel in seen:
        return seen[kernel]
    meanings: dict[str, Any] = {
        "gl": language,
        "tl": language,
        "mbarrier": _Hopper,
        "tma": _Hopper,
        "fence_async_shared": lambda: None,
        "warpgroup_mma": multiply,
        "warpgroup_mma_wait": wait_for_product,
        "_bf16_of_e4m3": bf16_of_e4m3,
    }
    names: dict[str, Any] = {}
    function = types.FunctionType(kernel.fn.__code__, names, kernel.fn.__name__, kernel.fn.__defaults__)
    seen[kernel] = function
    for name, thing in kernel.fn.__globals__.items():
        if name in meanings:
            names[name] = meanings[name]
        elif isinstance(thing, JITFunction):
            names[name] = runnable(thing, language, seen)
        else:
            names[name] = unwrap(thing)
    return function


@contextmanager
def interpreted() -> Iterator[list[Interpreted]]:
    """Inside, launches of the Gluon kernels run here, with both halves, and the choice of a kernel takes the CPU for a
    Hopper GPU. Yields the kernels; each counts its programs.
    """
    kernels: list[Interpreted] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(select, "capability_of", lambda device: (9, 0))
        patch.setattr(select, "triton_version", lambda: f"{select.GLUON_TRITON[0]}.0")
        for module in (gluon_gqa, gluon_gqa_rows, gluon_mla, gluon_mla_rows, combine, balanced):
            for name, thing in list(vars(module).items()):
                # What is launched says which of its integers are not compiled in; the other functions are called.
                if isinstance(thing, JITFunction) and thing.do_not_specialize:
                    kernels.append(Interpreted(thing))
                    patch.setattr(module, name, kernels[-1])
        yield kernels
