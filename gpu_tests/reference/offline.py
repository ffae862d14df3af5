"""Compile the Triton and Gluon kernels for Hopper on a machine without a GPU, and count what the compiler made.

    python -m gpu_tests.reference.offline        a JSON object: launch -> one entry a kernel

The launches go through the real call path; only the driver is replaced, and a launch stops after the
compiler. A spill is a local-memory instruction in the SASS (STL, LDL); HGMMA is Hopper's matrix instruction; a wide
load brings 16 bytes a thread from global memory. What should be 0 has its words in `sass`, `carried` in its function.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __name__ == "__main__" and importlib.util.find_spec("triton") is None:
    print("python -m gpu_tests.reference.offline: needs triton: pip install 'nightcap[gpu]'", file=sys.stderr)
    sys.exit(2)

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from gpu_tests.reference import combine, division, gluon_gqa, gluon_mla, triton_decode
from gpu_tests.reference.sass import registers_beyond, stale_operands, unfinished_loads
from gpu_tests.reference.splits import count_parts, partial_bytes

HOPPER = GPUTarget("cuda", 90, 32)


class _NoDevice:
    """What Triton asks of a driver before it launches: the target, and a device of which there is one."""

    def get_current_target(self) -> GPUTarget:
        return HOPPER

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_only() -> list[Any]:
    """From here on launches of this process are compiled for Hopper and not run. The list gets each kernel."""
    kernels: list[Any] = []
    run = JITFunction.run

    def compile_and_keep(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernels.append(run(self, *args, grid=grid, warmup=True, **options))
        return kernels[-1]

    driver.set_active(_NoDevice())
    JITFunction.run = compile_and_keep
    combine.overlaps = lambda device: True  # the options with more code
    return kernels


def launch(
    kernel: Any,
    *,
    heads: int,
    kv_heads: int = 0,
    page_size: int = 64,
    q_len: int = 1,
    splits: int = 1,
    options: bool = False,
    balanced: bool = False,
    fp8: bool = False,
) -> None:
    """One launch of `kernel` (a module with `paged_decode`); `kv_heads` 0 is MLA. `options` turns all on:
    ragged queries, draft mask, sinks, tensor scales, strict, and a window in GQA unless `balanced`.
    """
    batch, latent, max_seq_len = 2, kv_heads == 0, 4096
    division.splits_for = lambda *_: splits
    columns, columns_v = (576, 512) if latent else (128, 128)
    query = torch.zeros(batch * q_len, heads, columns, dtype=torch.bfloat16)
    dtype, size = torch.float8_e4m3fn if fp8 else torch.bfloat16, page_size * (kv_heads or 1) * columns
    with_gaps = torch.zeros(4, size + 16, dtype=dtype)  # between pages: as little alignment as there may be
    k = with_gaps[:, :size].unflatten(1, (page_size, kv_heads or 1, columns))
    tables = torch.zeros(batch, -(-max_seq_len // page_size), dtype=torch.int32)
    out, lse = query.new_zeros(*query.shape[:2], columns_v), torch.zeros(query.shape[:2])
    num_parts = count_parts(batch, q_len * heads, splits, balanced)
    workspace = torch.zeros(partial_bytes(num_parts, columns_v), dtype=torch.uint8)
    scale = torch.ones(1)
    kernel.paged_decode(
        out, lse, workspace, query, k, None if latent else torch.zeros_like(k), tables,
        torch.ones(batch, dtype=torch.int32),
        torch.arange(batch + 1, dtype=torch.int32) * q_len if options else None,
        torch.zeros(batch, q_len, 2, dtype=torch.uint16) if options else None,
        torch.zeros(heads) if options else None,
        0.1, scale if options else None, 1.0, scale if options else None,
        q_len, max_seq_len, 64 if options and not (latent or balanced) else -1, options, balanced,
    )  # fmt: skip


LAUNCHES: dict[str, Callable[[], None]] = {
    f"{family}, {name}": lambda kernel=kernel, shape=shape, extra=extra: launch(kernel, **shape, **extra)
    for family, kernel, shape in (
        ("MLA 16 heads in Gluon", gluon_mla, {"heads": 16}),
        ("MLA 128 heads in Gluon", gluon_mla, {"heads": 128, "page_size": 128}),
        ("MLA 16 heads and pages of 16 in Gluon", gluon_mla, {"heads": 16, "page_size": 16}),
        ("MLA 16 heads in Gluon over fp8", gluon_mla, {"heads": 16, "page_size": 16, "fp8": True}),
        ("MLA 128 heads in Gluon over fp8", gluon_mla, {"heads": 128, "fp8": True}),
        ("MLA 4 heads in Gluon", gluon_mla, {"heads": 4}),
        ("MLA 4 heads in Gluon over fp8", gluon_mla, {"heads": 4, "fp8": True}),
        ("GQA 64 to 8 heads in Gluon", gluon_gqa, {"heads": 64, "kv_heads": 8, "page_size": 32}),
        (
            "GQA 64 to 8 heads in Gluon over fp8",
            gluon_gqa,
            {"heads": 64, "kv_heads": 8, "page_size": 16, "fp8": True},
        ),
        ("GQA 32 to 8 heads in Gluon over fp8", gluon_gqa, {"heads": 32, "kv_heads": 8, "fp8": True}),
        ("MLA 16 heads in Triton", triton_decode, {"heads": 16, "page_size": 32}),
        ("GQA 64 to 8 heads in Triton", triton_decode, {"heads": 64, "kv_heads": 8}),
    )
    for name, extra in (
        ("one split", {}),
        ("5 splits", {"splits": 5}),
        ("one split, 4 tokens, all options", {"q_len": 4, "options": True}),
        ("5 splits, 4 tokens, all options", {"q_len": 4, "options": True, "splits": 5}),
        ("5 runs", {"splits": 5, "balanced": True}),
        ("5 runs, 4 tokens, all options", {"q_len": 4, "options": True, "splits": 5, "balanced": True}),
    )
}


def count(kernel: Any) -> dict[str, Any]:
    """Figures of a compiled kernel, from its SASS, and `carried` of what was compiled and what was made of it."""
    disassembler = Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        cubin.write(kernel.asm["cubin"])
        cubin.flush()
        sass = subprocess.run([disassembler, "-c", cubin.name], capture_output=True, text=True, check=True).stdout
    return {
        "kernel": kernel.name,
        "shared_bytes": kernel.metadata.shared,
        "hgmma": len(re.findall(r"\bHGMMA\b", sass)),
        "wide_loads": len(re.findall(r"\bLDG\.E\.128\b", sass)),
        "spills": len(re.findall(r"\b(?:STL|LDL)\b", sass)),
        "stale_operands": stale_operands(sass),
        "unfinished_loads": unfinished_loads(sass),
        "registers_beyond": registers_beyond(sass),
        "carried": [carried(str(kernel.asm[stage])) for stage in ("source", "ttgir")],
    }


def carried(ir: str) -> list[int]:
    """How many values each loop over the pieces of a program carries from turn to turn.

    Triton 3.6 takes a value for dead that only bounds an inner loop without results, and carries it no longer.
    """
    loops = (line.partition(" iter_args(")[2] for line in ir.splitlines() if "scf.for %turn" in line)
    return [values.partition(")")[0].count(" = ") for values in loops]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m gpu_tests.reference.offline",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args()
    kernels, figures = compile_only(), {}
    for name, compile_launch in LAUNCHES.items():
        kernels.clear()
        compile_launch()
        figures[name] = [count(kernel) for kernel in kernels]
    json.dump({"triton": triton.__version__, "launches": figures}, sys.stdout, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
