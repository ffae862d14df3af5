"""`suites`, `where`, `shards` and `doctor`: what they tell, and the exit code when something is wrong."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from ci.runner import gpus
from ci.runner.gpu_facts import Facts
from tests.cli.conftest import NIGHTLY, TEST, Nightcap

FILE = "tests/test_kernels.py"


def wrong(nightcap: Nightcap) -> str:
    found = nightcap("suites")
    assert found.code == 1
    return found.out


def test_suites_in_order_are_shown_with_what_they_need(engine: Path, nightcap: Nightcap) -> None:
    found = nightcap("suites")
    assert (found.code, found.out.splitlines()[2].split()) == (0, ["kernels", "1", "1", "5s", "0", "kernels"])
    told = json.loads(nightcap("suites", "--json").out)
    assert told["problems"] == []
    assert [(one["name"], one["files"], one["jobs"]) for one in told["suites"]] == [("kernels", 1, "kernels")]


@pytest.mark.parametrize(
    ("suites", "said"),
    [
        ("[kernels, kernel]", "workflows/nightly.yml:12: jobs.kernels.suites[1]: unknown suite 'kernel'"),
        ("[kernels, none]", "jobs.kernels.suites[1]: suite 'none' has no test: the job would be green for nothing"),
        ("[kernels, gone]", "suites.gone.files: 'gone/*.py' matches no file"),
        ("[kernels, twice]", "suites.twice.files: run.py is listed twice, by '*.py' and 'run.py'"),
        ("[kernels, scripts, twice]", "jobs.kernels.suites[2]: would run twice, in 'scripts' and in 'twice': run.py"),
    ],
)
def test_suites_tells_what_is_wrong_with_the_suites_of_a_job(
    engine: Path, nightcap: Nightcap, suites: str, said: str
) -> None:
    decls = (
        "{none: {est: 5s}, gone: {files: ['gone/*.py']}, scripts: {files: [run.py]}, twice: {files: ['*.py', run.py]}}"
    )
    text = NIGHTLY.replace("suites: [kernels]", f"suites: {suites}").replace("\njobs:", f"\nsuites: {decls}\njobs:")
    (engine / "workflows/nightly.yml").write_text(text)
    (engine / "run.py").write_text("print(1)\n")
    assert said in wrong(nightcap)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def test_a(): pass\n", "tests/test_more.py: suite: looks like a test file and belongs to no suite"),
        (
            TEST.replace('"kernels"', "NAME").format("1"),
            "test_more.py:3: suite: pytest.mark.suite: name=NAME cannot be read",
        ),
        (TEST.replace("kernels", "lonely").format("1"), "tests/test_more.py:3: suite: no job runs suite 'lonely'"),
        (
            TEST.replace('est="5s"', "gpus=8").format("1"),
            "8 GPUs needed by test_topk, which no pool that runs suite 'kernels' has",
        ),
        (TEST.replace('est="5s"', "min_sm=100").format("1"), "suite: SM 100 or newer needed by test_topk"),
    ],
)
def test_suites_tells_of_tests_that_no_night_would_run(
    engine: Path, nightcap: Nightcap, source: str, said: str
) -> None:
    (engine / "tests/test_more.py").write_text(source)
    assert said in wrong(nightcap)


QUARANTINE = """\
tests:
  - {{test: "tests/test_kernels.py::{}", reason: races, issue: my-org/my-engine#1, owner: "@me", expires: 2026-12-31}}
"""


def test_a_test_in_quarantine_is_planned_run_and_shown_without_turning_the_night_red(
    engine: Path, nightcap: Nightcap
) -> None:
    (engine / FILE).write_text(TEST.format("False"))
    (engine / "workflows/quarantine.yml").write_text(QUARANTINE.format("test_topk"))
    why = "races (my-org/my-engine#1, @me, until 2026-12-31)"
    assert nightcap("--today", "2026-12-31", "suites").code == 0
    plan = nightcap("--today", "2026-12-31", "plan", "--filter", "kernels")
    assert f"note: kernels: in quarantine: {FILE}::test_topk: {why}\n" in plan.out
    Path("plan.json").write_text(nightcap("--today", "2026-12-31", "plan", "--json", "--filter", "kernels").out)
    run = nightcap("run", "kernels", "--plan", "plan.json", "--results", "results")
    assert (run.code, run.out.splitlines()[-1].partition(";")[0]) == (0, "PASSED: 1 quarantined")
    gate = nightcap("gate", "plan.json", "results")
    assert gate.code == 0
    assert f"failed; it is in quarantine: {why}" in gate.out
    assert "PASSED: 1 quarantined of 1 test" in gate.out


def test_a_quarantine_that_expired_stops_the_plan_and_one_of_no_test_is_told(engine: Path, nightcap: Nightcap) -> None:
    (engine / "workflows/quarantine.yml").write_text(QUARANTINE.format("test_topk"))
    late = nightcap("--today", "2027-01-01", "plan")
    assert late.code == 2
    assert "workflows/quarantine.yml:2: tests[0].expires: the quarantine of" in late.err
    (engine / "workflows/quarantine.yml").write_text(QUARANTINE.format("test_gone"))
    assert "workflows/quarantine.yml:2: tests[0].test: 'tests/test_kernels.py::test_gone' is no test" in wrong(nightcap)
    assert nightcap("--today", "2026-12-01", "plan").code == 0


@pytest.mark.parametrize("test", [FILE, f"{FILE}::test_topk", f"{FILE}::test_topk[a-b]"])
def test_where_names_the_job_the_shard_and_the_command(engine: Path, nightcap: Nightcap, test: str) -> None:
    found = nightcap("where", test)
    assert found.code == 0
    assert found.out.splitlines()[2].split() == ["kernels", "kernels", "cpu", "1-of-1", "5s"]
    (place,) = json.loads(nightcap("where", test, "--json").out)
    assert place["command"].removeprefix("python -m pytest ").strip("'") == test
    assert found.out.endswith(f"run just that: {place['command']}\n")


def test_where_finds_a_test_that_the_syntax_tree_does_not_show_by_its_file(engine: Path, nightcap: Nightcap) -> None:
    (engine / FILE).write_text(TEST.format("True") + "\nfrom elsewhere import TestShared\n")
    assert nightcap("where", f"{FILE}::TestShared::test_x").code == 0


def test_where_answers_an_unknown_test_with_the_nearest(engine: Path, nightcap: Nightcap) -> None:
    found = nightcap("where", f"{FILE}::test_tokp")
    assert found.code == 1
    assert found.err == f"no job runs {FILE}::test_tokp. did you mean '{FILE}::test_topk', '{FILE}'?\n"


@pytest.fixture
def four_files(engine: Path) -> Path:
    for name, est in (("a", "90s"), ("b", "60s"), ("c", "30s"), ("kernels", "5m")):
        (engine / f"tests/test_{name}.py").write_text(TEST.replace("5s", est).format("True"))
    return engine


def test_shards_shows_who_runs_what_and_that_the_longest_file_decides(four_files: Path, nightcap: Nightcap) -> None:
    found = nightcap("shards", "kernels", "--count", "3")
    assert found.code == 0
    rows = [line.split() for line in found.out.splitlines()[2:9]]
    assert [row[0] for row in rows if "-of-" in row[0]] == ["1-of-3", "2-of-3", "3-of-3"]
    assert rows[0] == ["1-of-3", "6m"]
    assert ["kernels:tests/test_kernels.py", "5m"] in rows
    assert "More shards cannot help: kernels:tests/test_kernels.py (5m) decides; 2 would be as fast." in found.out
    assert "kernels:tests/test_kernels.py is predicted to take longer than the file timeout of 1m." in found.out


@pytest.mark.parametrize(("target", "count"), [("10m", 1), ("7m", 2), ("1m", 2)])
def test_shards_finds_the_smallest_count_for_a_target(
    four_files: Path, nightcap: Nightcap, target: str, count: int
) -> None:
    told = json.loads(nightcap("shards", "kernels", "--target", target, "--json").out)
    assert len(told["shards"]) == count
    assert sum(len(shard["files"]) for shard in told["shards"]) == 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--count", "2", "--target", "5m"), "--count and --target exclude each other"),
        (("--target", "soon"), "'soon'"),
        (("--count", "0"), "0 is not in the range"),
    ],
)
def test_shards_refuses_what_it_cannot_do(
    engine: Path, nightcap: Nightcap, arguments: tuple[str, ...], said: str
) -> None:
    found = nightcap("shards", "kernels", *arguments)
    assert found.code == 2
    assert said in found.err


def test_doctor_tells_a_host_without_gpus_from_one_that_should_have_some(
    nightcap: Nightcap, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = Facts(problem="NVML: Driver Not Loaded")
    monkeypatch.setattr("ci.cli.doctor.doctor", partial(gpus.doctor, ask=lambda: nothing))
    fit = nightcap("doctor")
    assert (fit.code, fit.out.splitlines()[0]) == (0, "no GPU, and none asked for: NVML: Driver Not Loaded")
    bad = nightcap("doctor", "--gpus", "8", "--json")
    report = json.loads(bad.out)
    assert (bad.code, report["status"]) == (1, "bad")
    assert report["problems"][0]["text"] == "NVML: Driver Not Loaded"
