"""How much of torch the emulation replays exactly: a sweep over torch's own table of operators.

    python -m gpu_tests.graphs.opinfo --json gpu_tests/graphs/data/opinfo_cpu.json

Each operator is captured on one sample input; then another sample is loaded into the same memory, the graph
is replayed, and the result is compared bit for bit with eager code on that other sample.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import itertools
import json
import logging
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.testing._internal.common_methods_invocations import op_db

from gpu_tests.graphs.driver import CaptureError, UncapturableKernelError
from gpu_tests.graphs.emulation import CpuGraph, CpuGraphDriver
from gpu_tests.graphs.opinfo_results import VERDICTS

MIN_EXACT = 646

_DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64, torch.float64, torch.float16, torch.int32)
_MAX_SAMPLES = 20
_BY_NATURE = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")


@dataclass(frozen=True)
class Result:
    """What became of one operator; `reason` is the refusal, the error or the difference.

    `refused_on_cuda`: by default the emulation refuses it, because CUDA's kernel for it cannot be captured;
    the verdict is for a capture with `cuda_kernel_limits=False`.
    """

    op: str
    verdict: str
    reason: str = ""
    refused_on_cuda: bool = False


@dataclass(frozen=True)
class _Case:
    """An operator with two samples that differ in the values of their tensors alone."""

    call: Callable[[list[Any]], Any]
    first: list[Any]
    second: list[Any]


def sweep(names: Iterable[str] | None = None) -> list[Result]:
    """One result an operator (and variant), in the table's order."""
    gc.freeze()  # the table itself is a million objects, which every collection would visit
    wanted = None if names is None else set(names)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [check(op) for op in op_db if wanted is None or _full_name(op) in wanted]


def check(op: Any) -> Result:
    name = _full_name(op)
    try:
        case = _case_of(op)
        expected = _seeded(lambda: case.call([_copy(leaf) for leaf in case.second]))
    except (RuntimeError, ValueError, TypeError, NotImplementedError, AssertionError, ImportError) as error:
        return Result(name, "not runnable", _first_line(error))
    static = [_copy(leaf) for leaf in case.first]
    try:
        graph, limited = _capture(lambda: case.call(static))
    except CaptureError as error:
        return Result(name, "refused", f"{error.op}: {error.reason}")
    for target, source in zip(static, case.second, strict=True):
        if isinstance(target, torch.Tensor):
            target.copy_(source)
    _seeded(graph.replay)
    result = _judge(name, _tensors(graph.out), _tensors(expected))
    return replace(result, refused_on_cuda=limited)


def _capture(fn: Callable[[], Any]) -> tuple[CpuGraph, bool]:
    """The graph, and whether CUDA's own kernel would refuse it: the replay is measured all the same."""
    try:
        return CpuGraphDriver().capture(fn, warmup=0), False
    except UncapturableKernelError:
        return CpuGraphDriver(cuda_kernel_limits=False).capture(fn, warmup=0), True


def _judge(name: str, got: list[torch.Tensor], expected: list[torch.Tensor]) -> Result:
    if name.split(".")[0] in _BY_NATURE:
        return Result(name, "uninitialised")
    pairs = list(zip(got, expected, strict=True))
    if all(a.shape == b.shape and a.dtype == b.dtype and _equal(a, b) for a, b in pairs):
        return Result(name, "exact")
    if all(a.shape == b.shape and torch.allclose(a, b, 1e-3, 1e-3, equal_nan=True) for a, b in pairs):
        return Result(name, "close")
    return Result(name, "wrong", "; ".join(f"{a.flatten()[:4]} instead of {b.flatten()[:4]}" for a, b in pairs))


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    both_nan = (
        a.isnan() & b.isnan() if a.is_floating_point() or a.is_complex() else torch.zeros_like(a, dtype=torch.bool)
    )
    return bool(((a == b) | both_nan).all())


def _case_of(op: Any) -> _Case:
    """The first sample with data whose twin from another seed has the same layout."""
    supported = op.supported_dtypes("cpu")
    dtype = next((d for d in (*_DTYPES, *sorted(supported, key=str)) if d in supported), torch.float32)
    torch.manual_seed(1)
    # Two iterators draw from one random stream, so twins have equal layouts and other values.
    for one, two in itertools.islice(zip(_samples(op, dtype), _samples(op, dtype), strict=False), _MAX_SAMPLES):
        first, spec = pytree.tree_flatten((one.input, one.args, one.kwargs))
        second, other_spec = pytree.tree_flatten((two.input, two.args, two.kwargs))
        if spec == other_spec and _same_layout(first, second) and any(_has_data(leaf) for leaf in first):
            # Host numbers are frozen at capture, so the second sample takes those of the first.
            second = [b if isinstance(b, torch.Tensor) else a for a, b in zip(first, second, strict=True)]

            def call(leaves: list[Any], spec: pytree.TreeSpec = spec) -> Any:
                input_, args, kwargs = pytree.tree_unflatten(leaves, spec)
                return op.op(input_, *args, **kwargs)

            return _Case(call, first, second)
    # Factories take no tensor at all: the program is all there is to replay.
    sample = next(_samples(op, dtype))
    leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    if any(isinstance(leaf, torch.Tensor) for leaf in leaves):
        raise ValueError("no two samples have the same layout")

    def call_factory(leaves: list[Any]) -> Any:
        input_, args, kwargs = pytree.tree_unflatten(leaves, spec)
        return op.op(input_, *args, **{**kwargs, "device": torch.device("cpu")} if "device" in kwargs else kwargs)

    return _Case(call_factory, leaves, leaves)


def _samples(op: Any, dtype: torch.dtype) -> Iterator[Any]:
    return iter(op.sample_inputs("cpu", dtype, requires_grad=False))


def _same_layout(first: list[Any], second: list[Any]) -> bool:
    def layout(leaf: Any) -> Any:
        return (leaf.shape, leaf.stride(), leaf.dtype) if isinstance(leaf, torch.Tensor) else type(leaf)

    return all(layout(a) == layout(b) for a, b in zip(first, second, strict=True))


def _has_data(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.numel() > 0


def _copy(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf.detach() for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _seeded(fn: Callable[[], Any]) -> Any:
    torch.manual_seed(42)  # the seed that wrappers in the table set by themselves
    return fn()


def _full_name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args(argv)
    logging.disable(logging.WARNING)
    results = sweep()
    counts = Counter(r.verdict for r in results)
    if options.json is not None:
        document = {
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "torch": torch.__version__,
            "counts": {verdict: counts[verdict] for verdict in VERDICTS},
            "exact_but_refused_on_cuda": [r.op for r in results if r.verdict == "exact" and r.refused_on_cuda],
            "not_exact": [asdict(r) for r in results if r.verdict != "exact"],
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    for verdict, meaning in VERDICTS.items():
        print(f"{counts[verdict]:4} {verdict}: {meaning}")
    for r in results:
        if r.verdict != "exact":
            print(f"  {r.verdict:14} {r.op}: {r.reason}")
    return 1 if counts["wrong"] or counts["exact"] < MIN_EXACT else 0


if __name__ == "__main__":
    sys.exit(main())
