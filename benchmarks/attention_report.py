"""docs/gpu-results.md and its plots from the JSON files of `benchmarks.attention`: a function of the files
alone.

Files whose `benchmark` is `attention-ablations` are written by hand, from kernels changed for the purpose: `date`
and `machine` as in the other files, `text` that says what was done, and `records` of `case`, `variant` (which
change), `what` (what it shows) and `us`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks import attention_roofline
from benchmarks.attention_cases import AIMS, Aim, Case
from benchmarks.attention_results import BENCHMARK, CallError, blaming, read

HEAD = """\
# Decode attention on GPUs

Made by `python -m benchmarks.attention --report` from `benchmarks/results/`; do not edit. How it is measured
stands at the head of `benchmarks/attention.py`. *Floor* is the time that the measured read bandwidth or
matmul rate of the card allows, whichever is longer; *of floor* is floor / time. *Spread* is (slowest -
fastest) / median of three rounds: treat differences below it, or below 5 %, as noise. *Of FlashInfer* is the
time divided by that of FlashInfer's fastest kernel for the case. *Error* is the largest error against the fp64
oracle, relative to the largest output.

The Triton kernels are portable and written to be read: the fallback and the second opinion. The Gluon kernels are
those that `auto` takes on Hopper. *Balanced* is the grid of equal runs over the whole batch (`grid="balanced"`, for
lengths that vary); without the word, every request is split into as many parts.
"""

COLUMNS = (
    "heads",
    "batch",
    "keys",
    "page",
    "q",
    "options",
    "kernel",
    "time, us",
    "spread",
    "GB/s",
    "TFLOP/s",
    "of floor",
    "of FlashInfer",
    "error",
)

Record = dict[str, Any]


def files(results: Path) -> dict[str, str]:
    """What stands in `docs/`, name -> text: the page, and a plot a run. Files of other benchmarks in `results`
    are left out. Raises CallError with all files that cannot be read.
    """
    runs, ablations, plots, problems = [], [], {}, []
    for path in sorted(results.glob("*.json")):
        plot = f"gpu-results-{path.stem}.svg"
        try:
            run = read(path)
            with blaming(path):
                if run.get("benchmark") == BENCHMARK:
                    runs.append(_run(run, plot))
                    plots[plot] = attention_roofline.plot(run)
                elif run.get("benchmark") == "attention-ablations":
                    ablations.append(_ablations(run))
        except CallError as error:
            problems.append(str(error))
    if problems:
        raise CallError("\n".join(problems))
    return {"gpu-results.md": "\n".join([HEAD, *runs, *ablations]), **plots}


def line(record: Record) -> str:
    """One record for the console."""
    if "refused" in record:
        return f"{Case.of(record)}: {record['kernel']} is not for it: {record['refused']}"
    cells = zip(COLUMNS, _cells(record, None), strict=True)
    return "  ".join(f"{name} {cell}" for name, cell in cells if cell)


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
        *_aims(run["records"]),
        f"![Roofline]({plot})",
        "",
    ]
    for family, title in (("MLA", "MLA (latent 512 + rope 64)"), ("GQA", "GQA (head dim 128)")):
        records = [record for record in run["records"] if Case.of(record).family == family and "refused" not in record]
        if records:
            rows = [_cells(record, _fastest(_of_case(run["records"], Case.of(record)))) for record in records]
            lines += [f"### {title}, bf16", "", *_table(COLUMNS, rows), ""]
    return "\n".join(lines)


def _aims(records: list[Record]) -> list[str]:
    """The table of the aims whose cases were measured."""
    rows = [_aim(aim, _of_case(records, aim.case)) for aim in AIMS if _of_case(records, aim.case)]
    if not rows:
        return []
    columns = ("shape", "our fastest kernel", "time, us", "of floor", "rival", "its time, us", "ratio", "aim", "")
    return ["### Aims", "", *_table(columns, rows), ""]


def _aim(aim: Aim, records: list[Record]) -> list[str]:
    """A row of the table of aims, from the records of its case."""
    ours, rival = _fastest(records, "Nightcap"), _fastest(records, aim.rival)
    target = f"ratio {aim.ratio:.3f}" if aim.ratio else f"{100 * (aim.of_floor or 0):.0f} % of floor"
    found = [str(aim.case)]
    found += [ours["kernel"], f"{ours['us']:.1f}", f"{100 * ours['fraction_of_floor']:.0f} %"] if ours else [""] * 3
    found += [rival["kernel"], f"{rival['us']:.1f}"] if rival else ["", ""]
    found += [f"{ours['us'] / rival['us']:.3f}" if ours and rival else "", target]
    if not ours or (aim.ratio and not rival):
        return [*found, "not measured"]
    met = ours["us"] <= aim.ratio * rival["us"] if aim.ratio and rival else ours["fraction_of_floor"] >= aim.of_floor
    return [*found, "met" if met else "**missed**"]


def _of_case(records: list[Record], case: Case) -> list[Record]:
    return [record for record in records if Case.of(record) == case]


def _fastest(records: list[Record], kernel: str = "FlashInfer") -> Record | None:
    """The fastest timed record whose kernel's name begins so."""
    timed = [record for record in records if "us" in record and record["kernel"].startswith(kernel)]
    return min(timed, key=lambda record: float(record["us"]), default=None)


def _ablations(run: dict[str, Any]) -> str:
    columns = ("shape", "variant", "time, us", "what it shows")
    rows = [
        [str(Case.of(record)), record["variant"], f"{record['us']:.1f}", record["what"]] for record in run["records"]
    ]
    title = f"## What the time is made of: {run['machine']['card']}, {run['date']}"
    return "\n".join([title, "", run["text"], "", *_table(columns, rows), ""])


def _cells(record: Record, flashinfer: Record | None) -> list[str]:
    """The columns of a record, beside FlashInfer's fastest of the case."""
    case = Case.of(record)
    heads = str(case.heads) if case.family == "MLA" else f"{case.heads}/{case.kv_heads} {case.layout}"
    keys = f"1 to {case.length}" if case.varied else str(case.length)
    cells = [heads, str(case.batch), keys, str(case.page_size), str(case.q_len), ", ".join(case.options)]
    cells.append(record["kernel"])
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
        f"{record['us'] / flashinfer['us']:.2f}" if flashinfer else "",
        f"{record['error']:.1e}",
    ]


def _table(columns: Iterable[str], rows: Iterable[list[str]]) -> list[str]:
    columns = list(columns)
    return [_row(columns), _row(["---"] * len(columns)), *map(_row, rows)]


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
