"""Paged MHA under capture and replay holds the contract, in every world and under every perturbation.

With `--backend MODULE:FACTORY` the same tests judge another backend.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpu_tests.contract import cases
from gpu_tests.contract.scenario import Scenario, random_scenario

pytestmark = pytest.mark.suite("attention-graph-mha", gpus=0, est="20s")

FAST_WORLDS = ["mha-target", "mha-extend-packed", "mha-draft"]
SLOW_WORLDS = [world for world in cases.worlds("mha") if world not in FAST_WORLDS]


@pytest.mark.parametrize("scenario", cases.together("mha"), ids=str)
def test_the_contract_holds_unperturbed_and_with_everything_at_once(
    contract: Callable[[Scenario], None], scenario: Scenario
) -> None:
    contract(scenario)


@pytest.mark.parametrize("scenario", cases.alone(FAST_WORLDS), ids=str)
def test_the_contract_holds_under_each_perturbation_alone(
    contract: Callable[[Scenario], None], scenario: Scenario
) -> None:
    contract(scenario)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", cases.alone(SLOW_WORLDS), ids=str)
def test_the_contract_holds_under_each_perturbation_alone_in_every_world(
    contract: Callable[[Scenario], None], scenario: Scenario
) -> None:
    contract(scenario)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(cases.RANDOM_SCHEDULES))
def test_the_contract_holds_in_random_schedules(contract: Callable[[Scenario], None], seed: int) -> None:
    contract(random_scenario("mha", seed))
