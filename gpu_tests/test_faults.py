"""The contract catches every seeded fault, says what it is, and does not flag correct code."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpu_tests.contract.checks import CHECKS
from gpu_tests.contract.scenario import PERTURBATIONS, Scenario
from gpu_tests.contract.verify import ContractViolation, verify
from gpu_tests.faults import EQUIVALENTS, FAULTS, OPERATORS, docs
from gpu_tests.faults.__main__ import main
from gpu_tests.faults.matrix import Kill, kill, kill_all, necessary

pytestmark = pytest.mark.suite("attention-faults", gpus=0, est="40s")


class Matrix:
    """Kills by fault, computed once.  On the CPU one at a time, on a GPU all at once in processes of their own."""

    def __init__(self) -> None:
        self._kills: dict[tuple[str, str], Kill] = {}

    def of(self, fault_id: str, driver: Any) -> Kill:
        key = (driver.device.type, fault_id)
        if key not in self._kills:
            wanted = FAULTS.values() if driver.capabilities.fatal_faults else [FAULTS[fault_id]]
            self._kills.update({(key[0], k.fault): k for k in kill_all(wanted, driver)})
        return self._kills[key]


@pytest.fixture(scope="module")
def matrix() -> Matrix:
    return Matrix()


def needs_the_emulation(driver: Any) -> None:
    if driver.device.type != "cpu":
        pytest.skip("a statement about the catalogue, judged on the emulation")


@pytest.mark.parametrize("fault_id", FAULTS)
def test_every_fault_is_caught(matrix: Matrix, driver: Any, fault_id: str) -> None:
    fault = FAULTS[fault_id]
    assert matrix.of(fault_id, driver).caught, f"{fault.what} ({fault.source}) is not caught in {fault.scenario}"


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
    reasons = {name for fault in FAULTS.values() for name in necessary(fault, driver)}
    assert reasons == set(PERTURBATIONS)


def test_the_page_of_faults_is_up_to_date(matrix: Matrix, driver: Any) -> None:
    needs_the_emulation(driver)
    page = docs.page([matrix.of(fault_id, driver) for fault_id in FAULTS])
    assert docs.PAGE.read_text() == page, "run: python -m gpu_tests.faults --docs"


@pytest.mark.parametrize("fault_id", ["mha-decode-off-by-one", "mha-verify-prefix-only"])
def test_no_tolerance_lets_one_key_of_four_thousand_pass(driver: Any, fault_id: str) -> None:
    assert "output" in kill(FAULTS[fault_id], driver, Scenario.parse("mha-long+full_context")).checks


def test_the_matrix_is_printed_as_json_and_as_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mha-shadow-table", "--driver", "cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {
            "fault": "mha-shadow-table",
            "operator": "M4",
            "scenario": "mha-target#0",
            "headline": "output",
            "checks": ["output"],
            "died": "",
        }
    ]
    assert main(["mha-shadow-table", "mha-other-kernel", "--driver", "cpu"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["M4\tmha-shadow-table\toutput\toutput", "\tmha-other-kernel\tNOT CAUGHT\t", "1 of 2 faults caught"]


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
        verify(Scenario.parse(fault.scenario), fault.factory, driver)
    return str(violation.value)


def test_the_report_says_that_offsets_are_packed_at_replay(driver: Any) -> None:
    text = report_of("mla-replay-packed-offsets", driver)
    assert "cu_seqlens_q: uniform stride 4: [0, 4, 8, 12, 16] at capture, packed by accept_length: " in text
    assert "python -m gpu_tests.contract 'mla-extend+ragged_accepts#0'" in text


def test_the_report_says_that_lengths_were_never_written(driver: Any) -> None:
    text = report_of("mha-capture-unfilled-lengths", driver)
    assert "cache_seqlens_int32[0]: never written before capture (zero-initialised), seq_lens + 1: " in text
    assert "the kernel saw length 0; all rows: [0, 0, 0, 0]" in text
