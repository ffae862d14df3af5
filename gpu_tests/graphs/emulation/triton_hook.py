"""Triton launches under `TRITON_INTERPRET=1` as opaque nodes.

The interpreter copies its arguments to numpy and back: a capture would see harmless copies, and the replay
would be silently wrong.  While a capture is active, each launch goes to the recorder as a whole.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpu_tests.graphs.opaque import active_recorder


@contextmanager
def interpreted_triton_is_opaque() -> Iterator[None]:
    """Route `kernel[grid](...)` to the active recorder; nothing to do where the interpreter is not loaded."""
    interpreter = sys.modules.get("triton.runtime.interpreter")
    if interpreter is None:
        yield
        return
    kernel_class = interpreter.InterpretedFunction
    run = kernel_class.run

    def recorded(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        recorder = active_recorder()
        if recorder is None or warmup:
            return run(kernel, *args, grid=grid, warmup=warmup, **kwargs)
        if callable(grid):  # its result is what a launch freezes
            grid = grid({**dict(zip(kernel.arg_names, args, strict=False)), **kwargs})
        launch = functools.partial(run, kernel)
        functools.update_wrapper(launch, kernel.fn)
        return recorder.call_opaque(launch, args, {"grid": grid, "warmup": warmup, **kwargs})

    kernel_class.run = recorded
    try:
        yield
    finally:
        kernel_class.run = run
