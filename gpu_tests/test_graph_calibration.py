"""The emulation against real CUDA graphs: the same snippets, the stored verdicts of a GPU, one comparison."""

from __future__ import annotations

import pytest

from gpu_tests.graphs import CpuGraphDriver, calibrate, figures
from gpu_tests.graphs.calibrate import Comparison, Disagreement
from gpu_tests.graphs.snippets import TABLE, Observation

pytestmark = pytest.mark.suite("graph-emulation", gpus=0, est="30s")

CAPTURED, REFUSED = Observation("captured", "fresh"), Observation("refused", error="because")


@pytest.fixture(scope="module")
def emulated() -> dict[str, Observation]:
    return calibrate.observe_all(CpuGraphDriver())


def test_the_table_is_large_and_its_names_are_unique() -> None:
    assert len({entry.name for entry in TABLE}) == len(TABLE) >= 194


def test_no_snippet_ends_in_a_value_that_nobody_can_name(emulated: dict[str, Observation]) -> None:
    assert [name for name, o in emulated.items() if o.value == "other"] == []


def test_capture_never_has_an_effect(emulated: dict[str, Observation]) -> None:
    assert [name for name, o in emulated.items() if "effect" in o.value] == []


def test_the_emulation_agrees_with_cuda(emulated: dict[str, Observation]) -> None:
    environment, cuda = calibrate.load(calibrate.STORED)
    comparison = calibrate.compare(emulated, cuda)
    assert comparison.problems() == [], calibrate.report(comparison, environment)


# The comparison itself.


def _disagreement(emulation: Observation, cuda: Observation, explanation: str = "known") -> Disagreement:
    return Disagreement("x", "host read", emulation, cuda, explanation)


def test_accepting_what_cuda_refuses_is_unsafe_and_the_reverse_is_not() -> None:
    unsafe, strict = _disagreement(CAPTURED, REFUSED), _disagreement(REFUSED, CAPTURED)
    assert Comparison(200, (unsafe, strict)).unsafe == [unsafe]


@pytest.mark.parametrize(
    ("comparison", "problem"),
    [
        (Comparison(200, (_disagreement(REFUSED, CAPTURED, explanation=""),)), "no explanation"),
        (Comparison(200, (_disagreement(REFUSED, CAPTURED),) * 18), "only 182 snippets agree"),
        (Comparison(200, (_disagreement(CAPTURED, REFUSED),) * 6), "6 snippets are unsafe"),
    ],
)
def test_a_comparison_fails_for_each_reason(comparison: Comparison, problem: str) -> None:
    assert any(problem in p for p in comparison.problems())


def test_a_comparison_within_bounds_has_no_problem() -> None:
    assert Comparison(200, (_disagreement(CAPTURED, REFUSED),) * 5).problems() == []


def test_values_are_compared_as_well_as_verdicts(emulated: dict[str, Observation]) -> None:
    frozen = {**emulated, "x * number": Observation("captured", "frozen")}
    (found,) = calibrate.compare(emulated, frozen).disagreements
    assert found.name == "x * number"


def test_a_snippet_without_a_stored_verdict_is_an_error(emulated: dict[str, Observation]) -> None:
    stored = {name: o for name, o in emulated.items() if name != "item"}
    with pytest.raises(SystemExit, match="item"):
        calibrate.compare(emulated, stored)


def test_stored_observations_read_back_equal(emulated: dict[str, Observation], tmp_path) -> None:
    calibrate.store(tmp_path / "cpu.json", calibrate.environment_of("cpu"), emulated)
    environment, loaded = calibrate.load(tmp_path / "cpu.json")
    assert loaded == emulated
    assert environment["driver"] == "cpu"


def test_the_page_shows_the_figures_of_today(emulated: dict[str, Observation]) -> None:
    page = figures.PAGE.read_text()
    assert figures.page_with_figures(page, emulated) == page, "run: python -m gpu_tests.graphs.figures"
