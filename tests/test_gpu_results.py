"""The page of GPU results and its plots are what the JSON files give, and say so when a kernel failed or was
wrong.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import attention_report, attention_roofline
from benchmarks.attention_cases import AIMS, Aim, Case
from benchmarks.attention_workload import lengths_of
from gpu_tests.reference.grids import choose_grid

ROOT = Path(__file__).parents[1]

CASE = {"family": "MLA", "heads": 16, "kv_heads": 0, "batch": 32, "length": 8192, "page_size": 64, "q_len": 1}
CASE |= {"varied": False, "layout": "HND"}
TIMED = {"us": 100.0, "rounds_us": [99.0, 100.0, 102.0], "floor_us": 65.0, "fraction_of_floor": 0.65}
TIMED |= {"gb_per_s": 3000.0, "tflop_per_s": 90.0, "error": 0.002}


def run_of(*records: dict[str, object]) -> dict[str, object]:
    machine = {"card": "Some GPU", "compute_capability": "9.0", "sms": 132, "driver": "1.2", "cuda": "13.0"}
    return {
        "benchmark": "attention-decode",
        "date": "2026-01-02",
        "machine": machine | {"versions": {"torch": "2.11.0", "flashinfer-python": None}},
        "limits": {"read_gb_per_s": 4600.4, "matmul_tflop_per_s": 700.2},
        "not_measured": ["FlashInfer: not installed"],
        "records": list(records),
    }


def test_the_committed_page_and_plots_are_what_the_committed_files_give() -> None:
    expected = attention_report.files(ROOT / "benchmarks/results")
    committed = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("gpu-results*")}
    assert committed == expected, "run: python -m benchmarks.attention --report"


def test_a_record_becomes_a_row_with_its_machine_above(tmp_path: Path) -> None:
    run = run_of(
        {"case": CASE, "kernel": "Nightcap K"} | TIMED,
        {"case": CASE, "kernel": "FlashInfer fa2"} | TIMED | {"us": 90.0},
        {"case": CASE, "kernel": "FlashInfer fa3"} | TIMED | {"us": 80.0},
        {"case": CASE | {"page_size": 32}, "kernel": "FlashInfer fa3"} | TIMED | {"us": 10.0},
        {"case": CASE, "kernel": "Nightcap L", "refused": "pages of 64"},
    )
    (tmp_path / "a.json").write_text(json.dumps(run), encoding="utf-8")
    (tmp_path / "other.json").write_text(json.dumps({"benchmark": "something else"}), encoding="utf-8")
    made = attention_report.files(tmp_path)
    assert list(made) == ["gpu-results.md", "gpu-results-a.svg"]
    page = made["gpu-results.md"]
    assert "![Roofline](gpu-results-a.svg)" in page
    assert "## Some GPU, 2026-01-02" in page
    assert "driver 1.2, CUDA 13.0, torch 2.11.0." in page
    assert "read 4600 GB/s, bf16 matmul 700 TFLOP/s" in page
    assert "Not measured: FlashInfer: not installed." in page
    assert "| 16 | 32 | 8192 | 64 | 1 |  | Nightcap K | 100.0 | 3.0 % | 3000 | 90 | 65 % | 1.25 | 2.0e-03 |" in page
    assert "Nightcap L" not in page


def test_options_stand_in_the_row_and_a_refusal_on_the_console() -> None:
    case = asdict(Case(64, 8, 32, 8192, 32, 1, kv_dtype="fp8", window=1024, sinks=True))
    timed = attention_report.line({"case": case, "kernel": "K"} | TIMED)
    assert "heads 64/8 HND  batch 32  keys 8192  page 32  q 1  options fp8 KV, window 1024, sinks  kernel K" in timed
    refused = attention_report.line({"case": case, "kernel": "K", "refused": "MLA alone"})
    assert refused.endswith("window 1024, sinks: K is not for it: MLA alone")


RATIO, FLOOR = AIMS[0], next(aim for aim in AIMS if aim.of_floor)


@pytest.mark.parametrize(
    ("aim", "ours", "rival", "cells"),
    [
        (RATIO, {"us": 80.0}, {"us": 83.0}, "83.0 | 0.964 | ratio 0.964 | met |"),
        (RATIO, {"us": 80.1}, {"us": 83.0}, "83.0 | 0.965 | ratio 0.964 | **missed** |"),
        (RATIO, {"us": 80.0}, None, " |  |  | ratio 0.964 | not measured |"),
        (RATIO, None, {"us": 83.0}, "83.0 |  | ratio 0.964 | not measured |"),
        (FLOOR, {"fraction_of_floor": 0.75}, None, "| 75 % |  |  |  | 75 % of floor | met |"),
        (FLOOR, {"fraction_of_floor": 0.74}, {"us": 50.0}, "50.0 | 2.000 | 75 % of floor | **missed** |"),
    ],
)
def test_an_aim_is_met_missed_or_not_measured(
    aim: Aim, ours: dict[str, float] | None, rival: dict[str, float] | None, cells: str, tmp_path: Path
) -> None:
    records = [{"case": asdict(aim.case), "kernel": "torch, matmul"} | TIMED]
    if ours:
        records.append({"case": asdict(aim.case), "kernel": "Nightcap Slow"} | TIMED | {"us": 1e3})
        records.append({"case": asdict(aim.case), "kernel": "Nightcap Gluon, balanced"} | TIMED | ours)
    if rival:
        records.append({"case": asdict(aim.case), "kernel": "FlashInfer fa3"} | TIMED | rival)
    (tmp_path / "a.json").write_text(json.dumps(run_of(*records)), encoding="utf-8")
    rows = attention_report.files(tmp_path)["gpu-results.md"].splitlines()
    (row,) = [row for row in rows if row.startswith(f"| {aim.case} |")]
    assert row.endswith(cells)
    assert ("Nightcap Gluon, balanced" in row) == bool(ours)


def test_ablations_are_shown_with_what_was_changed(tmp_path: Path) -> None:
    record = {"case": CASE, "variant": "without combine", "what": "the second kernel takes 2 us", "us": 79.96}
    run = {"benchmark": "attention-ablations", "date": "2026-01-02", "machine": {"card": "Some GPU"}}
    run |= {"text": "Kernels changed for the purpose.", "records": [record]}
    (tmp_path / "b.json").write_text(json.dumps(run), encoding="utf-8")
    made = attention_report.files(tmp_path)
    assert list(made) == ["gpu-results.md"]
    assert (
        "## What the time is made of: Some GPU, 2026-01-02\n\nKernels changed for the purpose."
        in made["gpu-results.md"]
    )
    shape = "MLA 16 heads, B32, 8192 keys, page 64, q1"
    assert f"| {shape} | without combine | 80.0 | the second kernel takes 2 us |" in made["gpu-results.md"]


def test_wrong_and_failed_kernels_have_no_time() -> None:
    wrong = attention_report.line({"case": CASE, "kernel": "K", "error": 0.5})
    failed = attention_report.line({"case": CASE, "kernel": "K", "failed": "RuntimeError: no\nmore"})
    assert "time, us wrong" in wrong
    assert "5.0e-01" in wrong
    assert "time, us failed" in failed
    assert failed.endswith("RuntimeError: no")


def test_the_plot_has_the_fastest_kernel_of_each_kind_in_a_case_and_no_other() -> None:
    slower = {"case": CASE, "kernel": "Nightcap Triton"} | TIMED | {"us": 120.0}
    faster = {"case": CASE, "kernel": "Nightcap Gluon, balanced <&>"} | TIMED
    others = [{"case": CASE, "kernel": name} | TIMED for name in ("FlashInfer fa3", "torch, cuDNN")]
    failed = {"case": CASE, "kernel": "FlashInfer XQA", "failed": "no"}
    plot = ElementTree.fromstring(attention_roofline.plot(run_of(slower, faster, *others, failed)))
    titles = [title.text or "" for title in plot.iter("{http://www.w3.org/2000/svg}title")]
    assert [title.split(": ")[1] for title in titles] == [
        f"{name}, 100.0 us, 65 % of the floor"
        for name in ("Nightcap Gluon, balanced <&>", "FlashInfer fa3", "torch, cuDNN")
    ]


def test_points_lie_on_the_roof_when_a_kernel_takes_the_time_of_the_floor() -> None:
    at_bandwidth = {"case": CASE, "kernel": "Nightcap K"} | TIMED | {"gb_per_s": 4600.4, "tflop_per_s": 46.004}
    svg = "{http://www.w3.org/2000/svg}"
    plot = ElementTree.fromstring(attention_roofline.plot(run_of(at_bandwidth)))
    roof = next(line for line in plot.iter(f"{svg}polyline") if line.get("stroke") == "black")
    (x0, y0), (x1, y1) = (
        [float(number) for number in corner.split(",")] for corner in (roof.get("points") or "").split()[:2]
    )
    point = next(circle for circle in plot.iter(f"{svg}circle") if len(circle))
    x, y = float(point.get("cx") or 0), float(point.get("cy") or 0)
    assert abs(y0 + (y1 - y0) * (x - x0) / (x1 - x0) - y) < 0.5


def test_a_run_without_figures_has_a_plot_all_the_same() -> None:
    ElementTree.fromstring(attention_roofline.plot(run_of()))


def timed_on_both_grids() -> list[list[dict[str, Any]]]:
    """The records of a case and a kernel of ours that was timed on both grids."""
    files = sorted((ROOT / "benchmarks/results").glob("attention-h200*.json"))
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in files]
    records = [
        record
        for run in runs
        if run["benchmark"] == "attention-decode"
        for record in run["records"]
        if record["kernel"].startswith("Nightcap Gluon") and "us" in record
    ]
    pairs = [list(group) for _, group in groupby(records, key=lambda record: record["case"])]
    return [pair for pair in pairs if len(pair) == 2]


def test_the_rule_chooses_the_faster_grid_of_those_that_were_measured() -> None:
    pairs = timed_on_both_grids()
    assert len(pairs) >= 5
    for pair in pairs:
        case = Case.of(pair[0])
        times = {"balanced" if "balanced" in record["kernel"] else "split": record["us"] for record in pair}
        choice = choose_grid(
            lengths_of(case), num_heads=case.heads, num_kv_heads=case.kv_heads or 1, head_dim_v=case.head_dim_v,
            max_q_len=case.q_len, max_seq_len=case.length, num_sms=132, window_left=case.window,
        )  # fmt: skip
        assert times[choice.grid] <= 1.03 * min(times.values()), (str(case), choice, times)
