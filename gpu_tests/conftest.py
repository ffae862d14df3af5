"""Markers, options and fixtures of the GPU suites.

`pytest gpu_tests` runs everything on the CPU emulation, and on real CUDA graphs as well where there is a GPU.
`-m attention_graph_mla` selects a suite by its name, with `_` for `-`.  `--backend MODULE:FACTORY` runs the
contract against your own backend (docs/backends.md), `--kernel NAME --grid NAME` with one reference kernel behind it
(docs/contract.md).
"""

from __future__ import annotations

import importlib.util
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

TORCH_MISSING = "the attention suites need torch: pip install 'nightcap[torch]'"
HERE = Path(__file__).parent
CHOICE: pytest.StashKey[Any] = pytest.StashKey()
PROPERTY = "forced kernel"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gpu_tests", "attention under capture and replay")
    group.addoption(
        "--backend",
        metavar="MODULE:FACTORY",
        help="run the contract against this backend instead of ours",
    )
    group.addoption("--kernel", default="auto", help="force a reference kernel on the contract: gluon, triton or torch")
    group.addoption("--grid", default="split", help="how that kernel divides its work: split or balanced")
    group.addoption(
        "--driver",
        choices=["cpu", "cuda", "all"],
        default="all",
        help="graphs to run on: the CPU emulation, real CUDA graphs, or all that this machine has (default)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "suite(name, gpus=1, min_sm=0, est=...): the suite of a file; its name with '_' for '-' is a marker too",
    )
    if hasattr(config, "workerinput"):
        # Several workers of pytest-xdist with all threads each stand in each other's way.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    backend, kernel, grid = (config.getoption(f"--{name}") for name in ("backend", "kernel", "grid"))
    if backend is None and (kernel, grid) == ("auto", "split"):
        return
    if importlib.util.find_spec("torch") is None:
        raise pytest.UsageError(TORCH_MISSING)
    from gpu_tests.contract.kernels import KernelChoice
    from gpu_tests.contract.verify import load_factory

    try:
        choice = config.stash[CHOICE] = KernelChoice(kernel, grid)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    if choice.forced and not config.getoption("collectonly") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(ForcedKernelRan(choice))
    if backend is not None:
        try:
            load_factory(backend)
        except ValueError as error:
            raise pytest.UsageError(f"--backend {error}") from error


class ForcedKernelRan:
    """Counts the tests in which a forced kernel ran: a run in which it ran in none is no pass."""

    def __init__(self, choice: Any) -> None:
        self._choice, self._tests = choice, Counter[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            self._tests.update(value for name, value in report.user_properties if name == PROPERTY)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not self._tests["ran"]:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        ran, left_out = self._tests["ran"], self._tests["not applicable"]
        terminalreporter.write_line(f"{self._choice}: ran in {ran} tests, not applicable to {left_out}")


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    if importlib.util.find_spec("torch") is None and module_path.is_relative_to(HERE):
        return _NoTorch.from_parent(parent, path=module_path)
    return None


class _NoTorch(pytest.Module):
    """In place of a test file that cannot run: an error that says what to install, never a silent pass."""

    def collect(self) -> Any:
        raise self.CollectError(TORCH_MISSING)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Make every suite name a marker, so that `-m` selects by it."""
    for item in items:
        for suite in item.iter_markers("suite"):
            name = suite.args[0].replace("-", "_")
            config.addinivalue_line("markers", f"{name}: tests of the suite {suite.args[0]}")
            item.add_marker(name)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "driver" not in metafunc.fixturenames:
        return
    from gpu_tests.graphs import available_drivers

    wanted = metafunc.config.getoption("--driver")
    drivers = {driver.device.type: driver for driver in available_drivers()}
    if wanted not in ("all", *drivers):
        raise pytest.UsageError(f"--driver {wanted}: this machine has {', '.join(drivers)}")
    chosen = [name for name in drivers if wanted in ("all", name)]
    metafunc.parametrize("driver", [drivers[name] for name in chosen], ids=chosen)


@pytest.fixture(scope="session")
def isolated() -> Iterator[Any]:
    """A process for what may cost its CUDA context; it starts when it is first called."""
    from gpu_tests.contract.isolated import Isolated

    with Isolated() as process:
        yield process


@pytest.fixture
def contract(driver: Any, isolated: Any, request: pytest.FixtureRequest) -> Callable[[Any], None]:
    """`contract(scenario)` fails, with the report, if the backend under test breaks the contract there."""
    from gpu_tests.backends.protocol import NotSupported
    from gpu_tests.contract import verify
    from gpu_tests.contract.kernels import BEST, NotApplicable

    path = request.config.getoption("--backend") or verify.DEFAULT_BACKEND
    kernel = request.config.stash.get(CHOICE, BEST)
    judged = verify.judge_on(driver, path, isolated, kernel)

    def check(scenario: Any) -> None:
        violated = ""
        outcome = "ran"
        try:
            verify.verify(scenario, judged)
        except NotApplicable as reason:
            outcome = "not applicable"
            pytest.skip(f"not applicable: {reason}")
        except NotSupported as reason:
            outcome = "not supported"
            if path == verify.DEFAULT_BACKEND:
                raise  # ours serves every world: to leave one out would look like a pass
            pytest.skip(f"{path} does not serve this world: {reason}")
        except verify.ContractViolation as violation:
            violated = str(violation)
        finally:
            request.node.user_properties.append((PROPERTY, outcome))
        if violated:  # out of the handler: pytest would print the report a second time as its cause
            pytest.fail(violated, pytrace=False)

    return check
