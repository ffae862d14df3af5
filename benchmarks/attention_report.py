"""docs/gpu-results.md and its plots from the JSON files of `benchmarks.attention`: a function of the files
alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks import attention_roofline

HEAD = """\
# Decode attention on GPUs

Made by `python -m benchmarks.attention --report` from `benchmarks/results/`; do not edit. How it is measured
stands at the head of `benchmarks/attention.py`. *Floor* is the time that the measured read bandwidth or
matmul rate of the card allows, whichever is longer; *of floor* is floor / time. *Spread* is (slowest -
fastest) / median of three rounds: treat differences below it, or below 5 %, as noise. *Of FlashInfer* is the
time divided by that of FlashInfer's fastest kernel for the case. *Error* is the largest error against the fp64
oracle, relative to the largest output.

The Triton kernels are portable and written to be read: the fallback and the second opinion. The Gluon kernel is
the one that `auto` takes for MLA on Hopper. *Balanced* is the grid of equal runs over the whole batch
(`grid="balanced"`, for lengths that vary); without the word, every request is split into as many parts.
"""

COLUMNS = (
    "heads",
    "batch",
    "keys",
    "page",
    "q",
    "kernel",
    "time, us",
    "spread",
    "GB/s",
    "TFLOP/s",
    "of floor",
    "of FlashInfer",
    "error",
)


def files(results: Path) -> dict[str, str]:
    """What stands in `docs/`, name -> text: the page, and a plot a run. Files of other benchmarks in `results`
    are left out.
    """
    loaded = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"))}
    runs = {stem: run for stem, run in loaded.items() if run.get("benchmark") == "attention-decode"}
    plots = {stem: f"gpu-results-{stem}.svg" for stem in runs}
    page = "\n".join([HEAD, *(_run(run, plots[stem]) for stem, run in runs.items())])
    return {"gpu-results.md": page, **{plots[stem]: attention_roofline.plot(run) for stem, run in runs.items()}}


def _run(run: dict[str, Any], plot: str) -> str:
    machine, limits = run["machine"], run["limits"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items() if version)
    lines = [
        f"## {machine['card']}, {run['date']}",
        "",
        f"Compute capability {machine['compute_capability']}, {machine['sms']} SMs, "
        f"driver {machine['driver']}, CUDA {machine['cuda']}, {versions}.",
        "",
        f"Measured limits: read {limits['read_gb_per_s']:.0f} GB/s, "
        f"bf16 matmul {limits['matmul_tflop_per_s']:.0f} TFLOP/s.",
        "",
        *(f"Not measured: {reason}.\n" for reason in run["not_measured"]),
        f"![Roofline]({plot})",
        "",
    ]
    for family, title in (("MLA", "MLA (latent 512 + rope 64), bf16"), ("GQA", "GQA (head dim 128), bf16")):
        records = [record for record in run["records"] if record["case"]["family"] == family]
        if records:
            lines += [f"### {title}", "", _row(COLUMNS), _row(["---"] * len(COLUMNS))]
            lines += [_row(_cells(record)) for record in records]
            lines.append("")
    return "\n".join(lines)


def line(record: dict[str, Any]) -> str:
    """One record for the console."""
    return "  ".join(f"{name} {cell}" for name, cell in zip(COLUMNS, _cells(record), strict=True))


def _cells(record: dict[str, Any]) -> list[str]:
    case = record["case"]
    heads = str(case["heads"]) if case["family"] == "MLA" else f"{case['heads']}/{case['kv_heads']} {case['layout']}"
    keys = f"1 to {case['length']}" if case["varied"] else str(case["length"])
    cells = [heads, str(case["batch"]), keys, str(case["page_size"]), str(case["q_len"]), record["kernel"]]
    if "failed" in record:
        return [*cells, "failed", "", "", "", "", "", record["failed"].split("\n")[0][:60]]
    if "us" not in record:
        return [*cells, "wrong", "", "", "", "", "", f"{record['error']:.1e}"]
    spread = (max(record["rounds_us"]) - min(record["rounds_us"])) / record["us"]
    return [
        *cells,
        f"{record['us']:.1f}",
        f"{100 * spread:.1f} %",
        f"{record['gb_per_s']:.0f}",
        f"{record['tflop_per_s']:.0f}",
        f"{100 * record['fraction_of_floor']:.0f} %",
        "" if record["flashinfer_us"] is None else f"{record['us'] / record['flashinfer_us']:.2f}",
        f"{record['error']:.1e}",
    ]


def _row(cells: object) -> str:
    return "| " + " | ".join(cells) + " |"  # type: ignore[arg-type]
