"""The page of GPU results is what the JSON files give, and says so when a kernel failed or was wrong."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import attention_report

ROOT = Path(__file__).parents[1]

CASE = {"family": "MLA", "heads": 16, "kv_heads": 0, "batch": 32, "length": 8192, "page_size": 64, "q_len": 1}
CASE |= {"varied": False, "layout": "HND"}
TIMED = {"us": 100.0, "rounds_us": [99.0, 100.0, 102.0], "floor_us": 65.0, "fraction_of_floor": 0.65}
TIMED |= {"flashinfer_us": 80.0}
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


def test_the_committed_page_is_what_the_committed_files_give() -> None:
    committed = (ROOT / "docs/gpu-results.md").read_text(encoding="utf-8")
    expected = attention_report.page(ROOT / "benchmarks/results")
    assert committed == expected, "run: python -m benchmarks.attention --report"


def test_a_record_becomes_a_row_with_its_machine_above(tmp_path: Path) -> None:
    run = run_of({"case": CASE, "kernel": "K"} | TIMED)
    (tmp_path / "a.json").write_text(json.dumps(run), encoding="utf-8")
    (tmp_path / "other.json").write_text(json.dumps({"benchmark": "something else"}), encoding="utf-8")
    page = attention_report.page(tmp_path)
    assert "## Some GPU, 2026-01-02" in page
    assert "driver 1.2, CUDA 13.0, torch 2.11.0." in page
    assert "read 4600 GB/s, bf16 matmul 700 TFLOP/s" in page
    assert "Not measured: FlashInfer: not installed." in page
    assert "| 16 | 32 | 8192 | 64 | 1 | K | 100.0 | 3.0 % | 3000 | 90 | 65 % | 1.25 | 2.0e-03 |" in page


def test_wrong_and_failed_kernels_have_no_time() -> None:
    wrong = attention_report.line({"case": CASE, "kernel": "K", "error": 0.5})
    failed = attention_report.line({"case": CASE, "kernel": "K", "failed": "RuntimeError: no\nmore"})
    assert "time, us wrong" in wrong
    assert "5.0e-01" in wrong
    assert "time, us failed" in failed
    assert failed.endswith("RuntimeError: no")
