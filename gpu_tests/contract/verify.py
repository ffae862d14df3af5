"""Run scenarios against a backend and say what is wrong: what the suites and the command line call."""

from __future__ import annotations

import difflib
import importlib
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from gpu_tests.backends.protocol import BackendFactory, NotSupported, WorldSpec
from gpu_tests.contract.checks import CHECKS, Finding, judge
from gpu_tests.contract.drive import run
from gpu_tests.contract.isolated import ContextLost, Isolated
from gpu_tests.contract.kernels import BEST, KernelChoice, NotApplicable
from gpu_tests.contract.report import report
from gpu_tests.contract.scenario import PERTURBATIONS, Scenario
from gpu_tests.graphs import GraphDriver, available_drivers

DEFAULT_BACKEND = "gpu_tests.backends:default_backend"


REFUSED_CAPTURE = frozenset({"capture", "host_sync"})
"""Checks after which a process of its own is replaced: torch does not clean up after a capture that was refused."""


class ContractViolation(AssertionError):
    """A backend breaks the contract; the message is the whole report."""


def load_factory(path: str) -> BackendFactory:
    """The factory that `module:name` names.  Raises ValueError with what is wrong."""
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        raise ValueError(f"{path!r} is not MODULE:FACTORY, for instance {DEFAULT_BACKEND}")
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        hint = (
            f" (is the folder of {module.partition('.')[0]!r} in PYTHONPATH?)"
            if f"{module}.".startswith(f"{error.name}.")
            else ""
        )
        raise ValueError(f"{path!r}: {error}{hint}") from error
    except Exception as error:  # whatever a user's module raises when it is imported
        raise ValueError(f"{path!r}: importing {module} raised {type(error).__name__}: {error}") from error
    factory: BackendFactory | None = getattr(imported, name, None)
    if factory is None:
        near = difflib.get_close_matches(name, vars(imported), n=1)
        raise ValueError(
            f"{path!r}: module {module} has no {name!r}" + (f": did you mean {near[0]!r}?" if near else "")
        )
    if not callable(factory):
        raise ValueError(f"{path!r} is {type(factory).__name__!r}, not a factory that takes a World")
    return factory


def findings(
    scenario: Scenario, factory: BackendFactory, driver: GraphDriver, kernel: KernelChoice = BEST
) -> list[Finding]:
    """Everything that the contract has against the backend, with `kernel` behind it, in this scenario.

    A factory may carry `adapt(spec) -> spec`, what shapes it can serve, and `exemptions`, a list of `Exemption`.
    """
    served: Callable[[WorldSpec], WorldSpec] = getattr(factory, "adapt", lambda spec: spec)
    scenario = replace(scenario, adapt=lambda spec: served(kernel.adapt(spec)))
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


@dataclass(frozen=True)
class Verdict:
    """What the contract says of one scenario, `report` as a person reads it.

    No headline: it holds.  not_supported: why the backend does not serve it; not_applicable: why the kernel that was
    forced cannot run it.
    """

    headline: str | None = None
    checks: tuple[str, ...] = ()
    report: str = ""
    not_supported: str = ""
    not_applicable: str = ""


def verdict(
    scenario: Scenario, factory: BackendFactory, driver: GraphDriver, command: str = "", kernel: KernelChoice = BEST
) -> Verdict:
    """Run the scenario; `command` is what the report says to reproduce it."""
    try:
        found = findings(scenario, factory, driver, kernel)
    except NotSupported as reason:
        return Verdict(not_supported=str(reason))
    except NotApplicable as reason:
        return Verdict(not_applicable=f"{kernel}: {reason}")
    if not found:
        return Verdict(report=f"{scenario}: holds")
    checks = tuple(check for check in CHECKS if any(f.check == check for f in found))
    return Verdict(checks[0], checks, report(found, scenario, command))


def verdict_of_text(scenario: str, backend_path: str, driver_name: str, kernel: str, grid: str) -> dict[str, Any]:
    """`verdict` with arguments and result as JSON: for a process of its own."""
    (driver,) = (d for d in available_drivers() if d.device.type == driver_name)
    parsed, choice = Scenario.parse(scenario), KernelChoice(kernel, grid)
    command = reproduce(parsed, backend_path, driver_name, choice)
    return asdict(verdict(parsed, load_factory(backend_path), driver, command, choice))


def isolated_verdict(
    process: Isolated, scenario: Scenario, backend_path: str, driver_name: str, kernel: KernelChoice = BEST
) -> Verdict:
    """`verdict` in a process that may lose its CUDA context; a loss without a finding is a failed replay."""
    try:
        words = (str(scenario), backend_path, driver_name, kernel.kernel, kernel.grid)
        answer = process.call("gpu_tests.contract.verify:verdict_of_text", *words)
    except ContextLost as reason:
        command = reproduce(scenario, backend_path, driver_name, kernel)
        text = f"replay fails in {scenario}\n\nthe CUDA context was lost: {reason}\n\nreproduce: {command}"
        return Verdict("replay", ("replay",), text)
    found = Verdict(**{**answer, "checks": tuple(answer["checks"])})
    if REFUSED_CAPTURE & set(found.checks):
        process.close()
    return found


def judge_on(
    driver: GraphDriver, backend_path: str, process: Isolated, kernel: KernelChoice = BEST
) -> Callable[[Scenario], Verdict]:
    """How scenarios are judged on a driver: in `process` where a wild index costs the CUDA context, else here."""
    name, factory = driver.device.type, load_factory(backend_path)
    if driver.capabilities.fatal_faults:
        return lambda scenario: isolated_verdict(process, scenario, backend_path, name, kernel)

    def judged(scenario: Scenario) -> Verdict:
        return verdict(scenario, factory, driver, reproduce(scenario, backend_path, name, kernel), kernel)

    return judged


def verify(scenario: Scenario, judged: Callable[[Scenario], Verdict]) -> None:
    """Raise ContractViolation, with the shortest scenario that shows it, if the backend breaks the contract.

    Raises NotSupported for a world that the backend does not serve, NotApplicable for one that the forced kernel
    cannot run.
    """
    first = judged(scenario)
    if first.not_applicable:
        raise NotApplicable(first.not_applicable)
    if first.not_supported:
        raise NotSupported(first.not_supported)
    if first.headline is None:
        return
    shortest = shrink(scenario, lambda candidate: first.headline in judged(candidate).checks)
    raise ContractViolation("\n" + judged(shortest).report)


def reproduce(scenario: Scenario, backend_path: str, driver_name: str, kernel: KernelChoice = BEST) -> str:
    """The one command that runs `scenario` again."""
    words: Sequence[str] = ["python", "-m", "gpu_tests.contract", str(scenario)]
    if backend_path != DEFAULT_BACKEND:
        words = [*words, "--backend", backend_path]
    return shlex.join([*words, *kernel.options, "--driver", driver_name])
