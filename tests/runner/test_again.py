"""Running failed tests again from a journal, and repeating one by hand."""

from __future__ import annotations

import subprocess

import pytest

from ci.plan import Shard
from ci.runner.again import UnknownTest, failed_before, reproduce
from tests.runner.harness import Bench, plan, unit

MIXED = """
    import os, pathlib, pytest
    repaired = pathlib.Path("repaired").exists()
    def test_good(): pass
    @pytest.mark.parametrize("i", ["a b", "it's"])
    def test_bad(i): assert repaired or i == "a b"
    def test_crashes():
        if not repaired: os.abort()
"""


def test_only_what_failed_runs_again(bench: Bench) -> None:
    mixed, good, broken = bench.file(MIXED), bench.file("def test_a(): pass", "test_good.py"), "test_broken.py"
    bench.file("import repaired\ndef test_a(): pass", broken)
    script = bench.file("import os; raise SystemExit(0 if os.path.exists('repaired') else 1)", "script.py")
    units = (unit(mixed), unit(good), unit(broken, f"{broken}::test_a"), unit(script, script, kind="script"))
    first = bench.run(*units)
    only = failed_before(bench.journal(), plan(*units).shards[0])
    assert only == {
        ("s", mixed): (f"{mixed}::test_bad[it's]", f"{mixed}::test_crashes"),
        ("s", broken): (),
        ("s", script): (),
    }
    bench.file("", "repaired.py")
    bench.file("", "repaired")
    second = bench.run(*units, options={"only": only})
    assert first.result.exit_code == 1
    assert second.results == {
        "test_bad[it's]": ["passed"],
        "test_crashes": ["passed"],
        "test_a": ["passed"],
        script: ["passed"],
    }
    assert second.result.exit_code == 0
    assert failed_before(bench.journal(), plan(*units[2:]).shards[0]) == {}


def test_what_never_ran_runs_again_as_a_whole(bench: Bench) -> None:
    script = bench.file("", "script.py")
    units = (unit(script, script, kind="script"), unit("test_never.py"))
    bench.run(units[0])
    assert failed_before(bench.journal(), plan(*units).shards[0]) == {("s", "test_never.py"): ()}


def test_of_another_shard_only_what_the_journal_speaks_of_runs_again(bench: Bench) -> None:
    moved, other = unit(bench.file("def test_a(): assert 0", "test_moved.py")), unit("test_other.py")
    bench.run(moved)
    shards = [Shard(index=2, count=2, seconds=1, units=(moved, other)), plan(moved, other).shards[0]]
    again = [failed_before(bench.journal(), shard) for shard in shards]
    assert again[0] == {("s", "test_moved.py"): ("test_moved.py::test_a",)}
    assert again[1] == again[0] | {("s", "test_other.py"): ()}


def test_a_test_is_reproduced_by_commands_that_a_shell_understands(bench: Bench) -> None:
    one = unit(bench.file(MIXED))
    job = plan(one, env={"MODE": "it's on"})
    bench.run(one)
    text = reproduce(bench.journal(), "test_it.py::test_bad[it's]", job)
    assert "# job j, shard 1-of-1, on " in text
    assert "# attempt 1: failed: call: assert (False or \"it's\" == 'a b'" in text
    assert text.endswith("export MODE='it'\"'\"'s on'\npython -m pytest 'test_it.py::test_bad[it'\"'\"'s]'\n")
    said = subprocess.run(
        ["bash", "-c", text.replace("python -m pytest", "printf %s") + '\nprintf " $MODE"'],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert said.stdout == "test_it.py::test_bad[it's] it's on"


def test_an_unknown_test_is_answered_with_the_nearest(bench: Bench) -> None:
    one = unit(bench.file("def test_decode(): pass"))
    bench.run(one)
    with pytest.raises(UnknownTest, match=r"; did you mean 'test_it\.py::test_decode'"):
        reproduce(bench.journal(), "test_it.py::test_decoed", plan(one))
