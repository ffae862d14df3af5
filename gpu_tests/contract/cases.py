"""Which scenarios the suites run: a fast selection for every pull request, and the whole matrix for the night."""

from __future__ import annotations

from gpu_tests.contract.scenario import PERTURBATIONS, WORLDS, Scenario

RANDOM_SCHEDULES = 250
"""Random schedules a family; with two families, 500 runs of correct backends without a false alarm."""


def worlds(family: str) -> list[str]:
    return [name for name, spec in WORLDS.items() if spec.family == family]


def together(family: str) -> list[Scenario]:
    """Every world unperturbed, and with everything at once."""
    return [Scenario(w, names) for w in worlds(family) for names in (frozenset[str](), frozenset(PERTURBATIONS))]


def alone(names: list[str]) -> list[Scenario]:
    """Every perturbation by itself: together they mask each other."""
    return [Scenario(world, frozenset({name})) for world in names for name in PERTURBATIONS]
