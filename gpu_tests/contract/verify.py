"""Run scenarios against a backend and say what is wrong: what the suites and the command line call."""

from __future__ import annotations

import importlib
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace

from gpu_tests.backends.protocol import BackendFactory
from gpu_tests.contract.checks import Finding, headline, judge
from gpu_tests.contract.drive import run
from gpu_tests.contract.report import report
from gpu_tests.contract.scenario import PERTURBATIONS, Scenario
from gpu_tests.graphs import GraphDriver

DEFAULT_BACKEND = "gpu_tests.backends:default_backend"


class ContractViolation(AssertionError):
    """A backend breaks the contract; the message is the whole report."""


def load_factory(path: str) -> BackendFactory:
    """The factory that `module:name` names.  Raises ValueError with what is wrong."""
    module, colon, name = path.partition(":")
    if not colon:
        raise ValueError(f"{path!r} is not MODULE:FACTORY, for instance {DEFAULT_BACKEND}")
    try:
        return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]
    except ModuleNotFoundError as error:
        raise ValueError(f"{path!r}: {error}") from error
    except AttributeError as error:
        raise ValueError(f"{path!r}: module {module} has no {name!r}") from error


def findings(scenario: Scenario, factory: BackendFactory, driver: GraphDriver) -> list[Finding]:
    """Everything that the contract has against the backend in this scenario.

    A factory may carry `adapt(spec) -> spec`, what shapes it can serve, and `exemptions`, a list of `Exemption`.
    """
    scenario = replace(scenario, adapt=getattr(factory, "adapt", None))
    return judge(run(scenario, factory, driver), getattr(factory, "exemptions", ()))


def shrink(scenario: Scenario, fails: Callable[[Scenario], bool]) -> Scenario:
    """A scenario that still fails, from which no perturbation can be taken away.  `scenario` fails."""
    alone = [frozenset[str](), *(frozenset({name}) for name in PERTURBATIONS if scenario.has(name))]
    for few in alone:
        if len(few) < len(scenario.perturbations) and fails(smaller := replace(scenario, perturbations=few)):
            return smaller
    for name in PERTURBATIONS:
        smaller = replace(scenario, perturbations=scenario.perturbations - {name})
        if smaller != scenario and fails(smaller):
            scenario = smaller
    return scenario


def verify(
    scenario: Scenario,
    factory: BackendFactory,
    driver: GraphDriver,
    backend_path: str = DEFAULT_BACKEND,
    driver_name: str = "cpu",
) -> None:
    """Raise ContractViolation, with the shortest scenario that shows it, if the backend breaks the contract."""
    found = findings(scenario, factory, driver)
    if not found:
        return
    first = headline(found)

    def fails(candidate: Scenario) -> bool:
        return any(f.check == first for f in findings(candidate, factory, driver))

    shortest = shrink(scenario, fails)
    command = reproduce(shortest, backend_path, driver_name)
    raise ContractViolation("\n" + report(findings(shortest, factory, driver), shortest, command))


def reproduce(scenario: Scenario, backend_path: str, driver_name: str) -> str:
    """The one command that runs `scenario` again."""
    words: Sequence[str] = ["python", "-m", "gpu_tests.contract", str(scenario)]
    if backend_path != DEFAULT_BACKEND:
        words = [*words, "--backend", backend_path]
    return shlex.join([*words, "--driver", driver_name])
