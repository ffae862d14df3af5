"""Classes of failures by texts such as runs leave them, and who may try again."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.runner.classify import classify, rules
from tests.runner.harness import Bench

LOGS = sorted((Path(__file__).parent / "data" / "logs").glob("*.log"))
CLASSES = sorted({rule.failure.name for rule in rules()} | {"unknown"}, key=len, reverse=True)


def expected(path: Path) -> str:
    """`gpu-lost-ecc.log` -> `gpu-lost`: the longest class that the name begins with."""
    return next(name for name in CLASSES if path.stem.startswith(name))


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_a_text_has_the_class_in_its_name(path: Path) -> None:
    assert classify(path.read_text()).name == expected(path)


def test_every_class_has_a_text() -> None:
    assert {expected(path) for path in LOGS} == set(CLASSES)


def test_colours_do_not_hide_a_class() -> None:
    assert classify("\x1b[1m\x1b[31mE       assert 1 == 2\x1b[0m").name == "assertion"


def test_only_the_hosts_failures_are_retried() -> None:
    assert all(rule.failure.retries == 0 for rule in rules() if not rule.failure.infra)


FLAKY_NETWORK = """
    import pathlib
    def test_good(): pass
    def test_download():
        seen = pathlib.Path("seen.txt")
        tries = len(seen.read_text()) if seen.exists() else 0
        seen.write_text("x" * (tries + 1))
        if tries < {failures}:
            raise OSError("503 Server Error: Service Unavailable for url: http://hub")
"""


def test_what_the_host_did_is_retried_alone_and_told_as_flaky(bench: Bench) -> None:
    night = bench.run_file(FLAKY_NETWORK.format(failures=1))
    assert night.results == {"test_good": ["passed"], "test_download": ["failed", "passed"]}
    assert night.endings == ["infra", "completed"]
    assert night.result.units[0].counts == {"passed": 1, "flaky": 1}
    assert night.result.exit_code == 0


def test_retries_have_a_cap_and_end_as_the_hosts_fault(bench: Bench) -> None:
    night = bench.run_file(FLAKY_NETWORK.format(failures=9))
    assert night.results["test_download"] == ["failed"] * 3
    assert night.endings == ["infra"] * 3
    assert night.result.exit_code == 3


def test_an_assertion_is_never_tried_again(bench: Bench) -> None:
    night = bench.run_file("def test_a():\n    print('OSError: 503 Server Error')\n    assert 1 == 2")
    assert night.results == {"test_a": ["failed"]}
