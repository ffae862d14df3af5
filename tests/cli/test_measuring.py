"""`durations update`: what a journal adds to the measured times, and what it must not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ci.suites.durations import Durations, Key
from tests.cli.conftest import NIGHTLY, TEST, Nightcap

FILE = "tests/test_kernels.py"
TWO = TEST + "\ndef test_sort():\n    pass\n"


def entries() -> dict[Key, int]:
    """How many samples there are of each time."""
    found = Durations.load(Path("workflows/durations.json")).entries
    return {key: len(entry.samples) for key, entry in found.items()}


def test_a_passed_run_is_a_sample_once_and_then_predicts(engine: Path, nightcap: Nightcap) -> None:
    assert nightcap("run", "kernels", "--results", "results").code == 0
    for _ in range(2):
        found = nightcap("durations", "update", "results")
        assert (found.code, found.out) == (0, "1 of 1 runs count; workflows/durations.json has 1 time\n")
        assert entries() == {Key("kernels", "cpu", FILE): 1}
    measured = json.loads(Path("workflows/durations.json").read_text())["suites"]["kernels"]["cpu"][FILE]["seconds"]
    (unit,) = json.loads(nightcap("plan", "--json").out)["jobs"][0]["shards"][0]["units"]
    assert unit["seconds"] == measured


@pytest.mark.parametrize(
    ("source", "arguments"),
    [
        (TWO.format("False"), ()),
        (TWO.format("True"), ("--only", f"{FILE}::test_topk")),
        (TWO.format("pytest.skip('no GPU')").replace("pass", "pytest.skip('no GPU')"), ()),
    ],
    ids=["failed", "a part", "skipped"],
)
def test_a_run_that_failed_was_skipped_or_ran_a_part_says_nothing(
    engine: Path, nightcap: Nightcap, source: str, arguments: tuple[str, ...]
) -> None:
    (engine / FILE).write_text(source)
    nightcap("run", "kernels", "--results", "results", *arguments)
    assert nightcap("durations", "update", "results").out.startswith("0 of 1 runs count")
    assert entries() == {}


def test_tests_that_a_job_excludes_need_no_result(engine: Path, nightcap: Nightcap) -> None:
    (engine / FILE).write_text(TWO.format("True").replace("\ndef test_sort", "\n@pytest.mark.slow\ndef test_sort"))
    (engine / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    (engine / "workflows/nightly.yml").write_text(NIGHTLY.replace("[quick]", "[quick]\n    exclude_marks: [slow]"))
    assert nightcap("run", "kernels", "--results", "results").code == 0
    assert nightcap("durations", "update", "results").out.startswith("1 of 1 runs count")


def test_times_of_other_workflows_stay_and_those_of_files_that_are_gone_go(engine: Path, nightcap: Nightcap) -> None:
    weekly = (
        NIGHTLY.replace("Nightly Test", "Weekly Test").replace("[kernels]", "[scripts]").replace("kernels", "weekly")
    )
    weekly = weekly.replace("\njobs:", "\nsuites: {scripts: {files: [run.py]}}\njobs:")
    (engine / "workflows/weekly.yml").write_text(weekly)
    (engine / "run.py").write_text("print(1)\n")
    for workflow, job in (("nightly", "kernels"), ("weekly", "weekly")):
        assert nightcap("run", job, "--workflow", workflow, "--results", f"results/{job}").code == 0
        nightcap("durations", "update", f"results/{job}")
    assert entries() == {Key("kernels", "cpu", FILE): 1, Key("scripts", "cpu", "run.py"): 1}
    (engine / FILE).rename(engine / "tests/test_renamed.py")
    found = nightcap("durations", "update", "results")
    assert found.out.startswith("1 of 1 runs count")
    assert entries() == {Key("scripts", "cpu", "run.py"): 1}


def test_each_test_of_a_manifest_has_its_own_time(engine: Path, nightcap: Nightcap) -> None:
    decl = "\nsuites: {ext: {command: cp given.xml out.xml, manifest: tests.json, junit: out.xml}}\njobs:"
    (engine / "workflows/nightly.yml").write_text(NIGHTLY.replace("\njobs:", decl).replace("[kernels]", "[ext]"))
    (engine / "tests.json").write_text('{"ext": {"k::a": 100, "k::b": 100}}')
    (engine / FILE).unlink()
    failure = '<testcase classname="k" name="b" time="3"><failure/></testcase>'
    case = '<testcase classname="k" name="a" time="2.5"/>'
    (engine / "given.xml").write_text(f"<testsuite>{case}{failure}</testsuite>")
    assert nightcap("run", "kernels", "--results", "results").code == 1
    nightcap("durations", "update", "results")
    assert entries() == {Key("ext", "cpu", "k::a"): 1}
    assert Durations.load(Path("workflows/durations.json")).entries[Key("ext", "cpu", "k::a")].seconds == 2.5


def test_a_journal_of_an_unknown_job_is_named_and_left_out(engine: Path, nightcap: Nightcap) -> None:
    nightcap("run", "kernels", "--results", "results")
    (engine / "workflows/nightly.yml").write_text(NIGHTLY.replace("  kernels:", "  renamed:"))
    found = nightcap("durations", "update", "results")
    assert "left out, of a job that the specs do not have: results/journal.jsonl" in found.out
    assert entries() == {}
