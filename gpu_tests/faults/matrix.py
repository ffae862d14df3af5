"""The kill matrix: which check catches which fault, in the scenario that the fault names."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch

from gpu_tests.contract.checks import headline
from gpu_tests.contract.isolated import ContextLost, Isolated, NoAnswer
from gpu_tests.contract.scenario import Scenario
from gpu_tests.contract.verify import REFUSED_CAPTURE, findings
from gpu_tests.faults.registry import EQUIVALENTS, FAULTS, Fault
from gpu_tests.graphs import GraphDriver, available_drivers

STORED = Path(__file__).parent / "data" / "kills_cuda.json"
"""The matrix on a real GPU, written by `python -m gpu_tests.faults --driver cuda --json`."""


@dataclass(frozen=True)
class Kill:
    """What the contract said of one fault.  No checks: it was not caught.

    died: CUDA's reason if the scenario cost its process the CUDA context, which is a catch as well.
    unknown: why there is no result (a time limit, an error of the harness), which is none.
    """

    fault: str
    operator: str
    scenario: str
    headline: str | None
    checks: list[str]
    died: str = ""
    unknown: str = ""

    @property
    def caught(self) -> bool:
        return bool(self.checks or self.died) and not self.unknown

    @property
    def verdict(self) -> str:
        """The check nearest to the cause, or what else became of it."""
        return self.headline or self.died or (f"NO RESULT: {self.unknown}" if self.unknown else "NOT CAUGHT")


def kill(fault: Fault, driver: GraphDriver, scenario: Scenario | None = None) -> Kill:
    """Run the contract against a fault, in its own scenario unless another is given."""
    scenario = scenario or Scenario.parse(fault.scenario)
    found = findings(scenario, fault.factory, driver)
    checks = sorted({f.check for f in found})
    return Kill(fault.id, fault.operator, str(scenario), headline(found), checks)


def kill_by_name(fault_id: str, scenario: str, driver_name: str) -> dict[str, Any]:
    """`kill` with arguments and result as JSON: for a process of its own."""
    (driver,) = (d for d in available_drivers() if d.device.type == driver_name)
    return asdict(kill({**FAULTS, **EQUIVALENTS}[fault_id], driver, Scenario.parse(scenario)))


def isolated_kill(process: Isolated, fault: Fault, driver_name: str, scenario: Scenario | None = None) -> Kill:
    """`kill` in a process that may lose its CUDA context."""
    text = str(scenario or Scenario.parse(fault.scenario))
    try:
        found = Kill(**process.call("gpu_tests.faults.matrix:kill_by_name", fault.id, text, driver_name))
    except ContextLost as reason:
        return Kill(fault.id, fault.operator, text, None, [], died=str(reason))
    except NoAnswer as reason:
        return Kill(fault.id, fault.operator, text, None, [], unknown=str(reason).strip().splitlines()[-1])
    if REFUSED_CAPTURE & set(found.checks):
        process.close()
    return found


def kill_all(faults: Sequence[Fault], driver: GraphDriver, workers: int | None = None) -> Iterator[Kill]:
    """One kill a fault, as they come.  Where a wild index costs the process, in `workers` processes."""
    if not driver.capabilities.fatal_faults:
        yield from (kill(fault, driver) for fault in faults)
        return
    count = min(workers or min(8, os.cpu_count() or 1), len(faults))
    processes: SimpleQueue[Isolated] = SimpleQueue()
    every = [Isolated() for _ in range(count)]

    def one(fault: Fault) -> Kill:
        process = processes.get()
        try:
            return isolated_kill(process, fault, driver.device.type)
        finally:
            processes.put(process)

    try:
        for process in every:
            processes.put(process)
        with ThreadPoolExecutor(count) as pool:
            for done in as_completed([pool.submit(one, fault) for fault in faults]):
                yield done.result()
    finally:
        for process in every:
            process.close()


def needs(fault: Fault, perturbation: str, driver: GraphDriver) -> bool:
    """Whether the fault's scenario has this perturbation, and does not catch the fault without it."""
    scenario = Scenario.parse(fault.scenario)
    without = replace(scenario, perturbations=scenario.perturbations - {perturbation})
    return without != scenario and not kill(fault, driver, without).caught


def environment_of(driver: GraphDriver) -> dict[str, str]:
    """What a stored matrix was measured on."""
    device = driver.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {"driver": device.type, "device": name, "torch": torch.__version__, "python": platform.python_version()}


def store(path: Path, environment: dict[str, str], kills: Iterable[Kill]) -> None:
    """Write the matrix so far; the file is whole at any moment, also if the process is killed."""
    document = {"environment": environment, "kills": [asdict(k) for k in sorted(kills, key=lambda k: k.fault)]}
    partial = path.with_name(f"{path.name}.part")
    partial.write_text(json.dumps(document, indent=1) + "\n")
    partial.replace(path)


def load(path: Path) -> tuple[dict[str, str], dict[str, Kill]]:
    """The environment and the kills, by fault, of a stored matrix."""
    document = json.loads(path.read_text())
    return document["environment"], {k["fault"]: Kill(**k) for k in document["kills"]}
