"""The options and markers of gpu_tests/conftest.py, seen from outside: a pytest in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.suite("attention-contract", gpus=0, est="20s")

ROOT = Path(__file__).parents[1]
ONE = "gpu_tests/test_mha_graph.py::test_the_contract_holds_unperturbed_and_with_everything_at_once"
PYTEST = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"


def run(*args: str, before: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", before + PYTEST, "-q", "-p", "no:cacheprovider", *args]
    # Where CI is set, pytest's summary repeats every message in full.
    environment = {name: value for name, value in os.environ.items() if name not in ("CI", "BUILD_NUMBER")}
    environment["PYTHONPATH"] = str(ROOT)
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False, timeout=120)


def test_suites_are_selected_by_their_names() -> None:
    files = ["gpu_tests/test_mha_graph.py", "gpu_tests/test_mla_graph.py"]
    done = run("--collect-only", "--driver", "cpu", "-m", "attention_graph_mla and not slow", *files)
    tests = [line for line in done.stdout.splitlines() if "::" in line]
    assert done.returncode == 0
    assert tests
    assert all(test.startswith("gpu_tests/test_mla_graph.py") for test in tests)


def test_another_backend_is_judged_and_its_failure_names_the_command() -> None:
    done = run(f"{ONE}[cpu-mha-draft#0]", "--backend", "gpu_tests.faults.seeds:CaptureUnfilledLengths")
    assert done.returncode == 1
    assert "kernel_lengths fails in mha-draft#0" in done.stdout
    command = "python -m gpu_tests.contract 'mha-draft#0' --backend gpu_tests.faults.seeds:CaptureUnfilledLengths"
    assert done.stdout.count(command) == 1


def test_a_world_that_a_backend_does_not_serve_is_skipped_with_its_reason() -> None:
    done = run(f"{ONE}[cpu-mha-draft#0]", "-rs", "--backend", "gpu_tests.backends.example_backend:MyBackend")
    assert "does not serve this world: decode and chain verify of MHA only" in done.stdout


def test_our_own_backend_is_never_skipped() -> None:
    before = (
        "import gpu_tests.backends as ours\n"
        "from gpu_tests.backends.example_backend import MyBackend\n"
        "ours.default_backend = MyBackend\n"
    )
    done = run(f"{ONE}[cpu-mha-draft#0]", "--driver", "cpu", before=before)
    assert done.returncode == 1
    assert "NotSupported: decode and chain verify of MHA only" in done.stdout


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--backend", "nowhere:make", "No module named 'nowhere'"),
        ("--driver", "abacus", "invalid choice: 'abacus'"),
        ("--kernel", "glouon", "--kernel 'glouon': did you mean 'gluon'?"),
        ("--grid", "square", "it is one of split, balanced"),
    ],
)
def test_a_wrong_option_is_a_usage_error(option: str, value: str, message: str) -> None:
    done = run("gpu_tests/test_mha_graph.py", "--collect-only", option, value)
    assert done.returncode == 4
    assert message in done.stderr


@pytest.mark.parametrize(("options", "status"), [([], 2), (["--backend", "engine:make"], 4)])
def test_without_torch_the_suites_say_how_to_install_it(options: list[str], status: int) -> None:
    done = run("gpu_tests/test_mha_graph.py", *options, before="import sys; sys.modules['torch'] = None; ")
    assert done.returncode == status
    assert "the attention suites need torch: pip install 'nightcap[torch]'" in done.stdout + done.stderr


def test_a_forced_kernel_is_counted_and_a_run_without_it_is_no_pass() -> None:
    ran = run(f"{ONE}[cpu-mha-draft#0]", "--kernel", "torch", "--driver", "cpu")
    assert ran.returncode == 0
    assert "kernel torch, grid split: ran in 1 tests, not applicable to 0" in ran.stdout
    left_out = run(f"{ONE}[cpu-mha-draft#0]", "-rs", "--kernel", "gluon", "--driver", "cpu", "-n", "1")
    assert left_out.returncode == 1
    assert "not applicable: kernel gluon, grid split: query: got device cpu" in left_out.stdout
    assert "kernel gluon, grid split: ran in 0 tests, not applicable to 1" in left_out.stdout
