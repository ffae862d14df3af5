"""The gate reads what the runner really writes: a night of real processes, judged."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

from ci.gate import Night, judge, load_results
from ci.plan import Plan, PlannedJob, Shard, Unit
from ci.runner.options import RunOptions
from ci.runner.shard import run_shard

FILES = {
    "test_good.py": """
        import pytest
        @pytest.mark.parametrize("n", [1, 2])
        def test_a(n): ...
        @pytest.mark.skipif(True, reason="no GPU")
        def test_b(): ...
    """,
    "test_bad.py": """
        def test_a(): assert 1 == 2
        def test_b(): ...
    """,
    "test_dies.py": """
        import os, signal
        def test_a(): ...
        def test_b(): os.kill(os.getpid(), signal.SIGKILL)
        def test_c(): ...
    """,
    "test_broken.py": """
        import nothing_of_that_name
        def test_a(): ...
    """,
    "test_leaves.py": """
        import os
        def test_a(): os._exit(0)
        def test_b(): ...
    """,
}
TRUTH = {
    "test_good.py::test_a[1]": "passed",
    "test_good.py::test_a[2]": "passed",
    "test_good.py::test_b": "skipped",
    "test_bad.py::test_a": "failed",
    "test_bad.py::test_b": "passed",
    "test_dies.py::test_a": "passed",
    "test_dies.py::test_b": "crashed",
    "test_dies.py::test_c": "passed",
    "test_broken.py::test_a": "failed",
    "test_leaves.py::test_a": "crashed",
    "test_leaves.py::test_b": "passed",
}


def run(root: Path, *names: str) -> Night:
    """Run these files as one shard, and judge what the runner leaves on disk."""
    units = []
    for name in names:
        (root / name).write_text(textwrap.dedent(FILES[name]))
        planned = dict.fromkeys(test.partition("[")[0] for test in TRUTH if test.startswith(name))
        units.append(Unit(suite="s", kind="pytest", path=name, tests=tuple(planned), seconds=1))
    shard = Shard(index=1, count=1, seconds=1, units=tuple(units))
    job = PlannedJob(
        key="j", state="selected", reason="all", pool="p", timeout=60, file_timeout=30, disk_gib=0, shards=(shard,)
    )
    plan = Plan(workflow="w", event="schedule", filter="all", jobs=(job,)).sealed()
    # These tests may themselves run under the runner: its marks are left out.
    env = {key: value for key, value in os.environ.items() if not key.startswith(("NIGHTCAP_", "PYTEST_"))}
    options = RunOptions(
        root=root, results=root / "results", plan_hash=plan.hash, workflow="w", env=env, quiet=True,
        locks=root / "locks",
    )  # fmt: skip
    run_shard(job, shard, options=options)
    return judge(plan, None, load_results(root / "results"))


def test_a_night_of_real_faults_is_judged_test_by_test(tmp_path: Path) -> None:
    night = run(tmp_path, *FILES)
    assert {one.test: one.verdict for one in night.tests} == TRUTH
    assert sorted((one.kind, one.tests) for one in night.problems) == sorted(
        (verdict, (test,)) for test, verdict in TRUTH.items() if verdict in ("failed", "crashed")
    )
    assert (night.verdict, night.jobs[0].verdict) == ("failed", "failed")


def test_a_night_of_one_good_file_is_green(tmp_path: Path) -> None:
    night = run(tmp_path, "test_good.py")
    assert (night.verdict, night.findings) == ("passed", ())
