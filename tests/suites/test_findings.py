"""What is wrong with suites as a whole, as `nightcap suites` shows it."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from textwrap import dedent

from ci.spec.loader import load
from ci.suites.catalogue import catalogue
from ci.suites.discover import discover
from ci.suites.findings import findings

FLEET = """
    repository: a/b
    pools:
      cpu: {labels: [cpu]}
      h200: {labels: [h200], gpus: 1, sm: 90}
      b200: {labels: [b200], gpus: 8, sm: 100}
    """
MARK = "import pytest\npytestmark = pytest.mark.suite('{}'{})\ndef test_x(): ...\n"


SAME_NAME = """
    title: M
    template: nightly
    triggers: {dispatch: {}}
    defaults: {timeout: 1h, file_timeout: 9m}
    suites: {same: {command: run}, other: {command: run, gpus: 1}}
    jobs: {j: {pool: h200, suites: [same, other]}}
    """


def found(root: Path, jobs: str, suites: str = "{}", **files: str) -> list[str]:
    """Findings of a repository with one workflow, as `rule place message`."""
    (root / "workflows").mkdir()
    (root / "workflows/runners.yml").write_text(dedent(FLEET))
    text = "title: N\ntemplate: nightly\ntriggers: {dispatch: {}}\ndefaults: {timeout: 1h, file_timeout: 9m}\n"
    text += f"suites: {suites}\njobs:\n"
    (root / "workflows/n.yml").write_text(text + "".join(f"  {job}\n" for job in jobs.split("; ")))
    for name, content in files.items():
        (root / (name.replace("__", "/") if "." in name else f"{name}.py")).write_text(content)
    specs, tests = load(root, today=date(2026, 1, 1)), discover(root)
    catalogues = {name: catalogue(one.suites, tests, root) for name, one in specs.workflows.items()}
    return [
        f"{one.rule} {one.problem.file}:{one.problem.line} {one.problem.message}"
        for one in findings(specs, catalogues, tests)
    ]


def test_a_test_file_in_no_suite_and_tests_left_out_of_one_are_found(tmp_path: Path) -> None:
    partly = "import pytest\n@pytest.mark.suite('a')\ndef test_in(): ...\n"
    partly += "def test_out(): ...\nclass TestC:\n def test_m(self): ..."
    assert found(
        tmp_path,
        "j: {pool: cpu, suites: [a, globbed]}",
        "{globbed: {files: [test_globbed.py]}}",
        test_forgotten="def test_x(): ...",
        test_imported="from base import TestBase",
        test_helpers="def make(): ...",
        test_globbed="def test_x(): ...",
        test_disabled="register_cuda_ci(est_time=1, suite='a', disabled='hangs')\ndef test_x(): ...",
        test_partly=partly,
    ) == [
        "no-suite test_forgotten.py:0 looks like a test file and belongs to no suite",
        "no-suite test_imported.py:0 looks like a test file and belongs to no suite",
        "no-suite test_partly.py:4 belong to no suite: test_out, TestC::test_m",
    ]


def test_a_suite_that_no_job_runs_is_found_where_it_is_named(tmp_path: Path) -> None:
    assert found(
        tmp_path,
        "j: {pool: cpu, suites: [a]}",
        "{idle: {command: run}}",
        test_a=MARK.format("a", ""),
        test_b=MARK.format("b", ""),
        test_c=MARK.format("b", ""),
    ) == [
        "no-job test_b.py:2 no job runs suite 'b'",
        "no-job workflows/n.yml:5 no job runs suite 'idle'",
    ]


def test_needs_that_no_pool_of_the_jobs_meets_are_found_and_those_that_one_meets_are_not(tmp_path: Path) -> None:
    newer = MARK.format("newer", ", gpus=1") + "@pytest.mark.suite('newer', gpus=1, min_sm=100)\ndef test_fp4(): ...\n"
    assert found(
        tmp_path,
        "c: {pool: cpu, suites: [met, declared]}; h: {pool: h200, suites: [met, newer, many]}; "
        "b: {pool: b200, suites: [big]}",
        "{declared: {files: [script.py], gpus: 2}}",
        test_met=MARK.format("met", ", gpus=1, min_sm=90"),
        test_newer=newer,
        test_many=MARK.format("many", ", gpus=8"),
        test_big=MARK.format("big", ", gpus=8, min_sm=100"),
        script="print()",
    ) == [
        "needs-unmet script.py:0 2 GPUs needed, which no pool that runs suite 'declared' has",
        "needs-unmet test_many.py:0 8 GPUs needed by test_x, which no pool that runs suite 'many' has",
        "needs-unmet test_newer.py:0 1 GPU of SM 100 or newer needed by test_fp4, "
        "which no pool that runs suite 'newer' has",
    ]


def test_a_test_that_two_suites_of_one_job_share_is_found(tmp_path: Path) -> None:
    both = "import pytest\npytestmark = [pytest.mark.suite('a'), pytest.mark.suite('b')]\ndef test_x(): ...\n"
    assert found(tmp_path, "j: {pool: cpu, suites: [a, b]}; k: {pool: cpu, suites: [a]}", test_both=both) == [
        "runs-twice workflows/n.yml:7 would run twice, in 'a' and in 'b': test_both.py::test_x"
    ]


def test_a_suite_that_two_workflows_declare_in_differing_ways_is_found(tmp_path: Path) -> None:
    declared = "{same: {command: run}, other: {command: run}}"
    assert found(
        tmp_path, "j: {pool: cpu, suites: [same, other]}", declared, **{"workflows__m.yml": dedent(SAME_NAME)}
    ) == ["declared-twice workflows/n.yml:5 suite 'other' is declared in another way in workflow 'm'"]
