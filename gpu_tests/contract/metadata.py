"""A backend's metadata as values: snapshots of named fields, and what they say in words.

`snapshot(objects)` reads dataclasses, namespaces and mappings; a field is a tensor or a host number.  `words` puts a
lengths or offsets tensor into the terms of the batch: "uniform stride 4", "packed by accept_length", "seq_lens + 4".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gpu_tests.backends.protocol import ProtocolError

Value = Tensor | int | float | bool


@dataclass(frozen=True)
class Field:
    """One metadata field at one moment.  `tensor` is the live tensor, `value` a copy on the host."""

    name: str
    value: Value
    tensor: Tensor | None = None
    version: int = 0

    @property
    def layout(self) -> str:
        """Everything about the tensor that a graph freezes, but its address."""
        assert self.tensor is not None
        return f"{self.tensor.dtype} {list(self.tensor.shape)} strides {list(self.tensor.stride())}"

    @property
    def address(self) -> int:
        assert self.tensor is not None
        return self.tensor.data_ptr()


Snapshot = dict[str, Field]


def snapshot(objects: Sequence[object | Mapping[str, Any]]) -> Snapshot:
    """The fields of all steps; with more than one step, names end in `[step]`."""
    if not isinstance(objects, Sequence):
        raise ProtocolError(
            f"metadata_objects() returned {type(objects).__name__!r}, must be a list, one object a step"
        )
    found: Snapshot = {}
    for step, source in enumerate(objects):
        for name, value in _items(source):
            label = f"{name}[{step}]" if len(objects) > 1 else name
            if isinstance(value, Tensor):
                found[label] = Field(label, value.detach().to("cpu", copy=True), value, value._version)
            elif isinstance(value, int | float):
                found[label] = Field(label, value)
    return found


def _items(source: object | Mapping[str, Any]) -> list[tuple[str, Any]]:
    if isinstance(source, Mapping):
        return list(source.items())
    if dataclasses.is_dataclass(source):
        return [(f.name, getattr(source, f.name)) for f in dataclasses.fields(source)]
    if isinstance(source, Tensor) or not hasattr(source, "__dict__"):
        # A tensor has an empty __dict__: without a word it would be metadata that nothing looks at.
        what = type(source).__name__
        raise ProtocolError(f"metadata_objects() holds a {what!r}, must hold dataclasses, namespaces or mappings")
    return list(vars(source).items())


@dataclass(frozen=True)
class BatchFacts:
    """What a batch says, on the host: the terms that `words` may use."""

    seq_lens: list[int]
    accept_length: list[int] | None
    num_draft_tokens: int


def words(value: Value, facts: BatchFacts, unwritten: bool = False) -> str:
    """What a field holds, in the terms of the batch; falls back to the numbers."""
    if not isinstance(value, Tensor):
        return str(value)
    if unwritten and not value.any():
        return "never written before capture (zero-initialised)"
    if unwritten:
        return f"never written before capture, holds {_numbers(value)}"
    if value.dim() != 1 or value.dtype.is_floating_point:
        return _numbers(value)
    meaning = _offsets(value, facts) if len(value) == len(facts.seq_lens) + 1 else _lengths(value, facts)
    return f"{meaning}: {_numbers(value)}" if meaning else _numbers(value)


def _offsets(value: Tensor, facts: BatchFacts) -> str | None:
    steps = value.diff().tolist()
    if int(value[0]) != 0 or not steps:
        return None
    if facts.accept_length is not None and steps == [a + 1 for a in facts.accept_length] and len(set(steps)) > 1:
        return "packed by accept_length"
    if steps == facts.seq_lens and len(set(steps)) > 1:
        return "packed by seq_lens"
    if len(set(steps)) == 1:
        return f"uniform stride {steps[0]}"
    return None


def _lengths(value: Tensor, facts: BatchFacts) -> str | None:
    numbers, lens = value.tolist(), facts.seq_lens
    if len(numbers) != len(lens) or not numbers:
        return None
    if numbers == lens:
        return "seq_lens"
    if len(set(numbers)) == 1:
        return "the same for all rows"
    differences = {n - length for n, length in zip(numbers, lens, strict=True)}
    if len(differences) == 1:
        return _shifted("seq_lens", differences.pop())
    if facts.accept_length is not None:
        shifts = {n - length + a + 1 for n, length, a in zip(numbers, lens, facts.accept_length, strict=True)}
        if len(shifts) == 1:
            return _shifted("seq_lens - (accept_length + 1)", shifts.pop())
        if numbers == [a + 1 for a in facts.accept_length]:
            return "accept_length + 1"
    return None


def _shifted(what: str, by: int) -> str:
    return what if not by else f"{what} {'+' if by > 0 else '-'} {abs(by)}"


def _numbers(value: Tensor) -> str:
    flat = value.flatten()
    text = ", ".join(str(n) for n in flat[:12].tolist())
    return f"[{text}{', ...' if len(flat) > 12 else ''}]"


def equal(a: Field, b: Field) -> bool:
    """Same contents, whatever the address."""
    if isinstance(a.value, Tensor) and isinstance(b.value, Tensor):
        return a.value.shape == b.value.shape and torch.equal(a.value, b.value)
    return type(a.value) is type(b.value) and bool(a.value == b.value)
