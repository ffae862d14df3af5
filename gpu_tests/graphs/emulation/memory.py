"""Memory as a captured graph sees it: storages by address, host memory told apart from device memory.

On the CPU every tensor is a CPU tensor.  `HostTable` remembers which storages stand for host memory;
everything else is "device" memory.  A graph refers to memory through a `Block` (one storage, weakly unless
the graph owns it) and an `Operand` (dtype, size, stride and offset within a block): the frozen pointer of a
CUDA kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from gpu_tests.graphs.driver import DanglingPointerError, UnsupportedOpError

OnDangling = Literal["raise", "poison", "keep"]


def storage_key(t: torch.Tensor) -> int:
    """The identity of the memory under `t`."""
    return int(t.untyped_storage()._cdata)


def raw_bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    """All of `storage` as uint8.  (A storage's own `clone` and `copy_` would import the compiler, 2 s.)"""
    return torch.empty(0, dtype=torch.uint8).set_(storage)  # type: ignore[call-overload,no-any-return]


class HostTable:
    """Which storages stand for host memory, and which of those are pinned.

    A weak reference keeps the address of a dead storage from being given to a new one, so a key never lies.
    """

    def __init__(self) -> None:
        self._marks: dict[int, tuple[StorageWeakRef, bool]] = {}
        self._purge_at = 1024

    def mark(self, t: torch.Tensor, pinned: bool = False) -> torch.Tensor:
        if len(self._marks) >= self._purge_at:
            self._marks = {k: m for k, m in self._marks.items() if not m[0].expired()}
            self._purge_at = max(1024, 2 * len(self._marks))
        storage = t.untyped_storage()
        self._marks[int(storage._cdata)] = (StorageWeakRef(storage), pinned)
        return t

    def is_host(self, t: torch.Tensor) -> bool:
        return storage_key(t) in self._marks

    def is_pinned(self, t: torch.Tensor) -> bool:
        mark = self._marks.get(storage_key(t))
        return mark is not None and mark[1]


HOST = HostTable()


def poison_(t: torch.Tensor) -> torch.Tensor:
    """Fill `t` with what no kernel should accept: NaN, or for integers their largest value.  Returns `t`."""
    if t.dtype.is_floating_point or t.dtype.is_complex:
        return t.fill_(float("nan"))
    if t.dtype == torch.bool:
        return t.fill_(True)
    return t.fill_(torch.iinfo(t.dtype).max)


class Block:
    """One storage that a graph points at.

    `owned` blocks are private memory of the graph (it keeps them alive); others belong to the user and are
    held weakly, as a CUDA graph holds a raw pointer.  `label` is how messages name it.
    """

    def __init__(self, t: torch.Tensor, *, owned: bool, label: str) -> None:
        storage = t.untyped_storage()
        self._ref = StorageWeakRef(storage)
        self._strong = storage if owned else None
        self._address, self._nbytes = storage.data_ptr(), storage.nbytes()
        self.owned, self.label, self.dtype = owned, label, t.dtype

    def storage(self) -> torch.UntypedStorage | None:
        """The memory, or None when it was freed or re-allocated since."""
        if self._strong is not None:
            return self._strong
        storage = torch.UntypedStorage._new_with_weak_ptr(self._ref.cdata)
        if storage is None or (storage.data_ptr(), storage.nbytes()) != (self._address, self._nbytes):
            return None
        return storage

    def resolve_dangling(self, policy: OnDangling, site: str) -> None:
        """Apply the policy to freed memory: raise, or point at poison from now on ("keep" never gets
        here).
        """
        if policy == "raise":
            raise DanglingPointerError(
                f"{site}: the graph reads or writes {self.label}, which was freed or re-allocated after "
                "capture; keep the tensor alive and write into it in place"
            )
        fill = torch.empty(max(1, -(-self._nbytes // self.dtype.itemsize)), dtype=self.dtype)
        self._strong = poison_(fill).untyped_storage()

    def keep_alive(self) -> None:
        self._strong = self.storage()

    def follow(self, t: torch.Tensor) -> None:
        """Take the address that `resize_` or `set_` gave the storage during capture."""
        storage = t.untyped_storage()
        self._address, self._nbytes = storage.data_ptr(), storage.nbytes()

    def flat(self) -> torch.Tensor:
        """All of the memory, in the dtype that it was first seen with."""
        storage = self.storage()
        assert storage is not None
        whole = storage.nbytes() // self.dtype.itemsize * self.dtype.itemsize
        return raw_bytes(storage)[:whole].view(self.dtype)

    def poison(self) -> None:
        poison_(self.flat())

    def in_use_elsewhere(self) -> bool:
        """Whether anybody but the graph still holds this private memory.

        One count is the graph's own reference (`torch._C` has no public way to ask).
        """
        storage = self.storage()
        return storage is not None and torch._C._storage_Use_Count(storage._cdata) > 1


@dataclass(frozen=True)
class Operand:
    """A frozen pointer with its layout."""

    block: Block
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    conj: bool
    neg: bool

    @classmethod
    def of(cls, t: torch.Tensor, block: Block) -> Operand:
        return cls(
            block,
            t.dtype,
            tuple(t.size()),
            tuple(t.stride()),
            int(t.storage_offset()),
            t.is_conj(),
            t.is_neg(),
        )

    def tensor(self) -> torch.Tensor:
        """The live tensor at this address."""
        t = torch.empty(0, dtype=self.dtype)
        t.set_(self.block.storage(), self.offset, self.size, self.stride)  # type: ignore[call-overload]
        if self.conj:
            t = torch._conj(t)
        return torch._neg_view(t) if self.neg else t

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.size)}"


def has_storage(t: torch.Tensor) -> bool:
    return t.layout == torch.strided and t.device.type != "meta"


def require_storage(t: torch.Tensor, op: str, site: str) -> None:
    if not has_storage(t):
        raise UnsupportedOpError(op, f"the emulation knows strided tensors only, this one is {t.layout}", site)
