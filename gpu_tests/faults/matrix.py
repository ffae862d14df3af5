"""The kill matrix: which check catches which fault, in the scenario that the fault names."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace

from gpu_tests.contract.checks import headline
from gpu_tests.contract.scenario import PERTURBATIONS, Scenario
from gpu_tests.contract.verify import findings
from gpu_tests.faults.catalogue import Fault
from gpu_tests.graphs import GraphDriver


@dataclass(frozen=True)
class Kill:
    """What the contract said of one fault.  No checks: it was not caught.

    died: how the process ended if it did not survive (a device-side assert on a GPU), which is a catch as well.
    """

    fault: str
    operator: str
    scenario: str
    headline: str | None
    checks: list[str]
    died: str = ""

    @property
    def caught(self) -> bool:
        return bool(self.checks or self.died)


def kill(fault: Fault, driver: GraphDriver, scenario: Scenario | None = None) -> Kill:
    """Run the contract against a fault, in its own scenario unless another is given."""
    scenario = scenario or Scenario.parse(fault.scenario)
    found = findings(scenario, fault.factory, driver)
    checks = sorted({f.check for f in found})
    return Kill(fault.id, fault.operator, str(scenario), headline(found), checks)


def kill_all(faults: Iterable[Fault], driver: GraphDriver) -> Iterator[Kill]:
    """One kill a fault.  Where a wild index costs the process, each fault gets one of its own."""
    if not driver.capabilities.fatal_faults:
        yield from (kill(fault, driver) for fault in faults)
        return
    with ThreadPoolExecutor(max_workers=8) as pool:
        yield from pool.map(lambda fault: _kill_in_process(fault, driver.device.type), faults)


def necessary(fault: Fault, driver: GraphDriver) -> list[str]:
    """The perturbations of the fault's scenario without which it is not caught there."""
    scenario = Scenario.parse(fault.scenario)
    return [
        name
        for name in PERTURBATIONS
        if scenario.has(name)
        and not kill(fault, driver, replace(scenario, perturbations=scenario.perturbations - {name})).caught
    ]


def _kill_in_process(fault: Fault, driver_name: str) -> Kill:
    command = [sys.executable, "-m", "gpu_tests.faults", fault.id, "--driver", driver_name, "--json", "--in-process"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    try:
        (found,) = json.loads(done.stdout)
        return Kill(**found)
    except ValueError:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        return Kill(fault.id, fault.operator, fault.scenario, None, [], died=last)


def as_json(kills: Iterable[Kill]) -> str:
    return json.dumps([asdict(k) for k in kills], indent=2)
