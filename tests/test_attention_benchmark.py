"""What the attention benchmark counts, compares with the oracle, and keeps when a kernel fails: all that needs no
GPU. Figures are never asserted.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import attention, attention_kernels, attention_timing, attention_workload
from benchmarks.attention_cases import AIMS, CASES, Case
from benchmarks.attention_results import CallError, Results
from benchmarks.attention_workload import Workload
from gpu_tests.reference.decode import KernelPreconditionError
from gpu_tests.reference.oracle import visible_keys

MLA = Case(16, 0, 2, 70, 32, 2)
GQA = Case(16, 2, 2, 70, 16, 3, varied=True, window=20, sinks=True)
LIMITS = {"read_gb_per_s": 4500.0, "matmul_tflop_per_s": 700.0}


@given(q_len=st.integers(1, 8), more=st.integers(0, 60), window=st.integers(-1, 70))
def test_keys_and_pairs_are_those_that_the_oracle_makes_visible(q_len: int, more: int, window: int) -> None:
    case = Case(64, 8, 1, q_len + more, 32, q_len, window=window)
    visible = visible_keys(q_len, q_len + more, window_left=window)
    assert case.keys_read(q_len + more) == visible.any(0).sum()
    assert case.pairs(q_len + more) == visible.sum()


def test_bytes_and_flop_of_known_shapes() -> None:
    mla, gqa = Case(16, 0, 1, 100, 64, 1), Case(64, 8, 1, 100, 32, 4)
    assert mla.kv_bytes(100) == 100 * 576 * 2
    assert mla.flop(100) == 2 * 100 * 16 * (576 + 512)
    assert gqa.kv_bytes(100) == 100 * 2 * 8 * 128 * 2
    assert gqa.flop(100) == 2 * (97 + 98 + 99 + 100) * 64 * 256
    assert replace(gqa, kv_dtype="fp8").kv_bytes(100) == gqa.kv_bytes(100) // 2
    assert replace(gqa, window=9).kv_bytes(100) == 13 * 2 * 8 * 128 * 2


def test_a_workload_counts_its_lengths_its_query_and_its_output() -> None:
    workload = Workload(GQA, 0, sets=1, device="cpu")
    assert min(workload.lengths) >= GQA.q_len
    visible = [visible_keys(3, length, window_left=20) for length in workload.lengths]
    kv = sum(int(each.any(0).sum()) for each in visible) * 2 * 2 * 128 * 2
    assert workload.bytes() == kv + 2 * (2 * 3 * 16 * 128) * 2
    assert workload.flop() == 2 * sum(int(each.sum()) for each in visible) * 16 * 256


def test_names_of_cases_differ_and_records_without_the_newer_fields_are_read() -> None:
    assert len({str(case) for case in CASES}) == len(set(CASES)) == len(CASES)
    old = {"family": "MLA", "heads": 16, "kv_heads": 0, "batch": 32, "length": 8192, "page_size": 64, "q_len": 1}
    assert Case.of({"case": old | {"varied": False, "layout": "HND"}}) == CASES[0]
    assert all(aim.case in CASES and (aim.ratio is None) != (aim.of_floor is None) for aim in AIMS)


@pytest.mark.parametrize(
    "case",
    [MLA, replace(MLA, kv_dtype="fp8"), GQA, replace(GQA, kv_dtype="fp8", layout="NHD", window=-1)],
    ids=str,
)
def test_a_right_output_has_a_small_error_and_one_without_the_option_a_large_one(case: Case) -> None:
    workload = Workload(case, 0, sets=1, device="cpu")
    attention_kernels.nightcap(workload, "torch", "split")(0)
    assert workload.error() < 1e-2
    without = {"kv_dtype": "bf16", "window": -1} if case.options else {"q_len": 1, "length": 69}
    workload.case = replace(case, **without)
    assert not workload.error() < 0.1
    workload.case = case
    workload.out[-1, -1, -1] = math.nan
    assert workload.error() == math.inf


class FakeGraph:
    launches = 1

    def microseconds(self) -> float:
        return 100.0


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Results:
    """Results of a machine whose graphs take 100 us."""

    def launch_once(launch: attention_workload.Launch, *_: int) -> FakeGraph:
        launch(0)
        return FakeGraph()

    monkeypatch.setattr(attention_timing, "capture", launch_once)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: type("Card", (), {"L2_cache_size": 0}))
    monkeypatch.setattr(attention_workload, "Workload", lambda case, l2: Workload(case, l2, device="cpu"))
    found = Results(tmp_path / "new" / "file.json")
    found.begin({"card": "Some GPU"}, LIMITS, [])
    return found


def right(workload: Workload) -> attention_workload.Launch:
    return attention_kernels.nightcap(workload, "torch", "split")


def wrong(workload: Workload) -> attention_workload.Launch:
    return lambda index: right(workload)(index).mul_(2)


def fails(_: Workload) -> attention_workload.Launch:
    raise RuntimeError("not on this GPU")


def refuses(_: Workload) -> attention_workload.Launch:
    raise KernelPreconditionError("pages of 64")


def on_disk(results: Results) -> dict[str, dict[str, Any]]:
    return {record["kernel"]: record for record in json.loads(results.path.read_text())["records"]}


def test_every_kernel_leaves_a_record_that_says_what_became_of_it(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"Nightcap A": right, "Nightcap B": refuses, "FlashInfer C": fails, "torch, D": wrong}
    monkeypatch.setattr(attention_kernels, "kernels", lambda _: found)
    attention.measure(MLA, results)
    records = on_disk(results)
    assert {Case.of(record) for record in records.values()} == {MLA}
    assert records["Nightcap A"]["us"] == 100.0
    assert records["Nightcap A"]["gb_per_s"] == Workload(MLA, 0, sets=1, device="cpu").bytes() / 1e5
    assert records["Nightcap B"]["refused"] == "pages of 64"
    assert records["FlashInfer C"]["failed"] == "RuntimeError: not on this GPU"
    assert records["torch, D"]["error"] > 0.1
    assert [name for name, record in records.items() if "us" in record] == ["Nightcap A"]


def test_a_kernel_that_ends_the_process_is_a_failure_and_the_next_run_goes_on(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(_: Workload) -> attention_workload.Launch:
        raise SystemExit("as if killed")

    found = {"Nightcap A": right, "FlashInfer B": ends}
    monkeypatch.setattr(attention_kernels, "kernels", lambda _: found)
    with pytest.raises(SystemExit, match="as if killed"):
        attention.measure(MLA, results)
    assert on_disk(results)["FlashInfer B"]["failed"] == "the process ended while the kernel ran"

    again = Results(results.path)
    again.begin({"card": "Some GPU"}, {"read_gb_per_s": 1.0}, [])
    assert again.run["limits"] == LIMITS, "the figures of one file have one floor"
    attention.measure(MLA, again)
    assert set(on_disk(again)) == {"Nightcap A", "FlashInfer B"}
    assert on_disk(again)["Nightcap A"]["us"] == 100.0


def test_a_failure_that_breaks_the_context_stops_the_run_with_its_record_on_disk(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", broken)
    monkeypatch.setattr(attention_kernels, "kernels", lambda _: {"FlashInfer C": fails, "Nightcap A": right})
    with pytest.raises(RuntimeError, match="illegal memory access"):
        attention.measure(MLA, results)
    assert set(on_disk(results)) == {"FlashInfer C"}


def test_a_file_of_another_machine_is_not_continued(results: Results) -> None:
    with pytest.raises(CallError, match="of another machine"):
        Results(results.path).begin({"card": "Another GPU"}, LIMITS, [])


def test_a_file_that_cannot_be_written_is_named_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CallError, match=r"file/results.json: cannot be written: (File exists|Not a directory)"):
        Results(tmp_path / "file" / "results.json").begin({"card": "A GPU"}, LIMITS, [])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"cases": 451}', "file.json: not a results file of this benchmark; choose another file"),
        ('{"benchmark": "attention-decode",\n "records": [', "file.json, line 2: no JSON: Expecting value"),
        ("[]", "file.json: got a list, must be an object"),
        ('{"benchmark": "attention-decode", "records": [{}]}', "not as this benchmark writes it: KeyError: 'case'"),
        ('{"benchmark": "attention-decode", "records": null}', "not as this benchmark writes it: TypeError"),
    ],
)
def test_a_file_that_is_none_of_ours_is_refused_and_left_as_it_is(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file.json"
    path.write_text(text)
    assert attention.main(["--json", str(path)]) == 2
    assert message in capsys.readouterr().err
    assert path.read_text() == text


@pytest.mark.parametrize(
    ("cases", "message"),
    [("MLB", "no case matches 'MLB'. Cases:\n  MLA 16 heads"), ("(", "'(' is no regular expression: missing")],
)
def test_a_wrong_call_names_all_that_is_wrong(
    cases: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert attention.main(["--json", str(tmp_path), "--cases", cases]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert f"{tmp_path}: Is a directory" in printed
    assert "needs an NVIDIA GPU" in printed
    assert attention.main(["--json", str(tmp_path / "new.json"), "--cases", "MLA"]) == 2
    assert capsys.readouterr().err == "benchmarks.attention: needs an NVIDIA GPU; torch sees none\n"
    with pytest.raises(SystemExit, match="2"):
        attention.main(["--report", "--cases", "MLA"])


def test_the_report_is_of_the_repository_wherever_it_is_called_and_names_all_broken_files(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    for folder in (root / "benchmarks/results", root / "docs", elsewhere):
        folder.mkdir(parents=True)
    monkeypatch.setattr(attention, "ROOT", root)
    monkeypatch.chdir(elsewhere)
    assert attention.main(["--report"]) == 0
    assert (root / "docs/gpu-results.md").read_text().startswith("# Decode attention on GPUs")
    (root / "docs/gpu-results.md").write_text("kept")
    (root / "benchmarks/results/a.json").write_text("{")
    (root / "benchmarks/results/b.json").write_text('{"benchmark": "attention-decode"}')
    (root / "benchmarks/results/c.json").write_text('{"benchmark": "attention-ablations"}')
    assert attention.main(["--report"]) == 2
    printed = capsys.readouterr().err
    assert "a.json, line 1: no JSON" in printed
    assert "b.json: not as this benchmark writes it: KeyError: 'machine'" in printed
    assert "c.json: not as this benchmark writes it: KeyError: 'records'" in printed
    assert (root / "docs/gpu-results.md").read_text() == "kept"
