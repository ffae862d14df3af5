"""The contract catches every seeded fault, says what it is, and does not flag correct code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_tests.contract.checks import CHECKS
from gpu_tests.contract.isolated import Isolated
from gpu_tests.contract.scenario import PERTURBATIONS, Scenario
from gpu_tests.contract.verify import DEFAULT_BACKEND, ContractViolation, reproduce, verdict, verify
from gpu_tests.faults import docs
from gpu_tests.faults.__main__ import main
from gpu_tests.faults.matrix import Kill, isolated_kill, kill, kill_all, load, needs
from gpu_tests.faults.registry import EQUIVALENTS, FAULTS, OPERATORS
from gpu_tests.graphs import CpuGraphDriver

pytestmark = pytest.mark.suite("attention-faults", gpus=0, est="40s")


class Matrix:
    """Kills by fault, each computed once; on a GPU in a process that may lose its context."""

    def __init__(self, isolated: Isolated) -> None:
        self._isolated = isolated
        self._kills: dict[tuple[str, str], Kill] = {}

    def of(self, fault_id: str, driver: Any) -> Kill:
        key = (driver.device.type, fault_id)
        if key not in self._kills:
            fatal, fault = driver.capabilities.fatal_faults, FAULTS[fault_id]
            self._kills[key] = isolated_kill(self._isolated, fault, key[0]) if fatal else kill(fault, driver)
        return self._kills[key]


@pytest.fixture(scope="module")
def matrix(isolated: Isolated) -> Matrix:
    return Matrix(isolated)


def needs_the_emulation(driver: Any) -> None:
    if driver.device.type != "cpu":
        pytest.skip("a statement about the catalogue, judged on the emulation")


@pytest.mark.parametrize("fault_id", FAULTS)
def test_every_fault_is_caught(matrix: Matrix, driver: Any, fault_id: str) -> None:
    fault, found = FAULTS[fault_id], matrix.of(fault_id, driver)
    if driver.device.type == "cuda" and fault.not_on_gpu:
        assert not found.caught, f"a GPU does show it, strike out: {fault.not_on_gpu}"
        return
    message = f"{fault.what} ({fault.source}) is not caught in {fault.scenario}"
    assert found.caught, found.unknown or message


@pytest.mark.parametrize("fault_id", EQUIVALENTS)
def test_correct_code_written_otherwise_is_not_flagged(driver: Any, fault_id: str) -> None:
    variant = EQUIVALENTS[fault_id]
    world = Scenario.parse(variant.scenario).world
    for scenario in (Scenario(world), Scenario(world, frozenset(PERTURBATIONS))):
        assert kill(variant, driver, scenario).checks == []


def test_every_operator_has_a_fault_and_there_are_enough_of_both_families() -> None:
    assert {f.operator for f in FAULTS.values()} == set(OPERATORS)
    assert len(FAULTS) >= 45
    assert len(EQUIVALENTS) >= 5
    assert {f.id.partition("-")[0] for f in FAULTS.values()} == {"mla", "mha"}


def test_every_check_is_the_reason_that_a_fault_is_caught(matrix: Matrix, driver: Any) -> None:
    needs_the_emulation(driver)
    headlines = {matrix.of(fault_id, driver).headline for fault_id in FAULTS}
    assert headlines == set(CHECKS)


def test_every_perturbation_is_the_reason_that_a_fault_is_caught(driver: Any) -> None:
    needs_the_emulation(driver)
    idle = {name for name in PERTURBATIONS if not any(needs(fault, name, driver) for fault in FAULTS.values())}
    assert idle == set()


def test_the_page_of_faults_is_up_to_date(matrix: Matrix, driver: Any) -> None:
    needs_the_emulation(driver)
    page = docs.page([matrix.of(fault_id, driver) for fault_id in FAULTS], docs.stored_on_gpu())
    assert docs.PAGE.read_text() == page, "run: python -m gpu_tests.faults --docs"


@pytest.mark.parametrize("fault_id", ["mha-decode-off-by-one", "mha-verify-prefix-only"])
def test_no_tolerance_lets_one_key_of_four_thousand_pass(driver: Any, fault_id: str) -> None:
    assert "output" in kill(FAULTS[fault_id], driver, Scenario.parse("mha-long+full_context")).checks


def test_the_matrix_is_printed_as_lines_and_stored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "kills.json"
    assert main(["mha-shadow-table", "mha-other-kernel", "--driver", "cpu", "--json", str(file)]) == 1
    printed = capsys.readouterr()
    lines = ["M4\tmha-shadow-table\toutput\toutput", "\tmha-other-kernel\tNOT CAUGHT\t", "1 of 2 faults caught"]
    assert printed.out.splitlines() == lines
    assert printed.err.splitlines() == ["1/2 mha-shadow-table: output", "2/2 mha-other-kernel: NOT CAUGHT"]
    environment, kills = load(file)
    assert environment["driver"] == "cpu"
    assert kills["mha-shadow-table"] == Kill("mha-shadow-table", "M4", "mha-target#0", "output", ["output"])
    assert not kills["mha-other-kernel"].caught


def test_where_a_wild_index_is_fatal_faults_run_in_processes_of_their_own() -> None:
    driver = CpuGraphDriver()
    driver.capabilities = replace(driver.capabilities, fatal_faults=True)
    chosen = [FAULTS[name] for name in ("mha-shadow-table", "mla-draft-without-step", "mla-host-read-in-graph")]
    found = {k.fault: k for k in kill_all(chosen, driver, workers=1)}
    assert found == {fault.id: kill(fault, driver) for fault in chosen}


def test_no_result_is_no_catch(driver: Any) -> None:
    with Isolated(limit_s=0.01) as hurried:
        found = isolated_kill(hurried, FAULTS["mha-shadow-table"], driver.device.type)
    assert found.unknown == "no answer within 0.01 s"
    assert not found.caught


def test_the_page_shows_what_was_measured_on_a_gpu() -> None:
    caught = {name: Kill(name, f.operator, f.scenario, "output", ["output"]) for name, f in FAULTS.items()}
    lost = Kill("mha-table-tail-read", "M20", "mha-target+table_tail", None, [], died="index out of bounds")
    measured = docs.OnGpu({"device": "H200", "torch": "2.11"}, {**caught, lost.fault: lost})
    page = docs.page(list(caught.values()), measured)
    assert f"(H200, torch 2.11): {len(FAULTS)} of {len(FAULTS)} are caught there." in page
    assert "- on a GPU: **index out of bounds**" in page
    assert page.count("- on a GPU: **output**") == len(FAULTS) - 1
    assert "- on a GPU" not in docs.page(list(caught.values()), None)


def test_a_diff_can_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mla-weights-stale", "--show"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("# mla-weights-stale (M26, sglang#27140)")
    assert "class WeightsStale(MlaBackend):\n    def weights_updated(self) -> None:\n        pass" in shown


def test_an_unknown_fault_is_a_usage_error_with_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["mla-weights-stalled"])
    assert "no fault 'mla-weights-stalled': did you mean 'mla-weights-stale'?" in capsys.readouterr().err


def report_of(fault_id: str, driver: Any) -> str:
    fault = FAULTS[fault_id]
    with pytest.raises(ContractViolation) as violation:
        verify(
            Scenario.parse(fault.scenario),
            lambda s: verdict(s, fault.factory, driver, reproduce(s, DEFAULT_BACKEND, driver.device.type)),
        )
    return str(violation.value)


def test_the_report_says_that_offsets_are_packed_at_replay(driver: Any) -> None:
    text = report_of("mla-replay-packed-offsets", driver)
    assert "cu_seqlens_q: uniform stride 4: [0, 4, 8, 12, 16] at capture, packed by accept_length: " in text
    assert "python -m gpu_tests.contract 'mla-extend+ragged_accepts#0'" in text


def test_the_report_says_that_lengths_were_never_written(driver: Any) -> None:
    text = report_of("mha-capture-unfilled-lengths", driver)
    assert "cache_seqlens_int32[0]: never written before capture (zero-initialised), seq_lens + 1: " in text
    assert "the kernel saw length 0; all rows: [0, 0, 0, 0]" in text


def test_a_replay_that_raises_shows_its_metadata_beside_that_of_the_capture(driver: Any) -> None:
    needs_the_emulation(driver)
    text = report_of("mha-max-seq-len-of-capture", driver)
    assert "replay fails in mha-target#0" in text
    assert "metadata, round " in text
    assert "cache_seqlens_int32: " in text
