"""What a seeded fault is: a small diff on a correct backend or kernel, with the public bug that it re-creates.

A fault is registered by a decorator on a class (a backend with one method changed) or on a function (a kernel in place
of the reference); the docs show the source of exactly that.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from gpu_tests.backends import default_backend
from gpu_tests.backends.protocol import BackendFactory, World
from gpu_tests.faults.staged_kernel import StagedKernel

OPERATORS: dict[str, str] = {
    "M1": "offsets packed by accept_length at replay, uniform at capture, or the reverse",
    "M2": "stride num_steps + 1 in place of num_draft_tokens",
    "M3": "a buffer is not filled at capture",
    "M4": "a buffer is not copied at replay",
    "M5": "lengths off by one, by the draft, by the step, or without the new tokens",
    "M6": "a host number or decision frozen at capture",
    "M7": "metadata rebound to a fresh tensor at replay",
    "M8": "row stride taken from the batch, not from the buffer",
    "M9": "stale entries of an earlier batch",
    "M10": "pages confused: token for page, order ignored, page size 1 assumed",
    "M11": "padded rows touch what is live",
    "M12": "workspace or counters dirty, shared, or not reset",
    "M13": "a buffer is too small",
    "M14": "window or sink wrong",
    "M15": "causality or draft mask wrong",
    "M16": "scale dropped, swapped, doubled or stale",
    "M17": "LSE base, or empty parts of a merge",
    "M18": "32-bit overflow of page * stride",
    "M19": "contiguity or layout assumed",
    "M20": "finite mask value, or tail keys and values counted",
    "M21": "work that the capture does not record",
    "M22": "the host waits for the device",
    "M23": "memory of one graph used by another",
    "M24": "the graph or metadata of another size or mode is used",
    "M25": "heads, rope dimensions, or the value slice mixed up",
    "M26": "weights stale after an update",
    "M27": "a row's result depends on its neighbours",
    "M28": "host memory overwritten before its copy is done",
}


@dataclass(frozen=True)
class Fault:
    """One fault, or an equivalent, which is correct code written otherwise and must not be flagged.

    source: public thread.  where: what the diff changes.  scenario: text of one scenario that catches it.  patch: the
    diff, as the source of what is changed.  not_on_gpu: why real CUDA graphs cannot show it, if they cannot.
    """

    id: str
    operator: str
    source: str
    what: str
    where: str
    scenario: str
    factory: BackendFactory
    patch: str
    not_on_gpu: str = ""


FAULTS: dict[str, Fault] = {}
EQUIVALENTS: dict[str, Fault] = {}


def fault(id: str, operator: str, source: str, what: str, scenario: str, not_on_gpu: str = "") -> Callable[[Any], Any]:
    """Register a backend class, or a kernel function, as a fault."""
    return _register(FAULTS, id, operator, source, what, scenario, not_on_gpu)


def equivalent(id: str, what: str, scenario: str) -> Callable[[Any], Any]:
    """Register correct code that looks different: it must not be flagged."""
    return _register(EQUIVALENTS, id, "", "", what, scenario)


def _register(
    into: dict[str, Fault],
    id: str,
    operator: str,
    source: str,
    what: str,
    scenario: str,
    not_on_gpu: str = "",
) -> Callable[[Any], Any]:
    def register(patched: Any) -> Any:
        if id in FAULTS or id in EQUIVALENTS:
            raise ValueError(f"two faults are called {id!r}")
        text = inspect.getsource(patched)
        patch = text[re.search(r"^(class|def) ", text, re.M).start() :]  # type: ignore[union-attr]
        where, factory = _planted(patched)
        into[id] = Fault(id, operator, source, what, where, scenario, factory, patch, not_on_gpu)
        return patched

    return register


def _planted(patched: Any) -> tuple[str, Any]:
    """Where the diff is, and a factory of backends that have it."""
    if not inspect.isclass(patched):
        return "arguments of the kernel", functools.partial(_over_kernels, patched)
    base = patched.__mro__[1].__name__
    if issubclass(patched, StagedKernel):
        kernel = patched()
        return base, lambda world: default_backend(
            replace(world, kernels=world.kernels.with_kernels(kernel.mha, kernel.mla))
        )
    return base, patched


def _over_kernels(between: Callable[..., Any], world: World) -> Any:
    """Our backend over a function that stands between the plug and its kernels: `between(kernel, *args, **kwargs)`."""
    plug = world.kernels
    patched = plug.with_kernels(functools.partial(between, plug.mha), functools.partial(between, plug.mla))
    return default_backend(replace(world, kernels=patched))
