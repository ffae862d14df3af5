"""Specs are read from a folder as a whole, with defaults applied and a line for every place."""

from __future__ import annotations

import shutil
from datetime import date
from pathlib import Path

import pytest

from ci.spec.loader import Specs, load
from ci.spec.models import format_duration, parse_duration
from ci.spec.problems import Problem, SpecError, shown

ROOT = Path(__file__).parents[2]
TODAY = date(2026, 9, 1)
RUNNERS = """\
repository: acme/engine
pools:
  8-gpu-b200: {labels: [8-gpu-b200], gpus: 8, sm: 100}
  ubuntu: {labels: [ubuntu-24.04], hosted: true}
"""
NIGHTLY = """\
title: Nightly
template: nightly
triggers:
  schedule: {cron: "17 0 * * *", timezone: Europe/Berlin}
  dispatch: {}
defaults: {pool: 8-gpu-b200, timeout: 2h, file_timeout: 40m}
jobs:
  attention:
    suites: [mla]
    shards: {max: 4, target: 30m}
  metrics:
    pool: ubuntu
    commands: ["true"]
    timeout: 10m
    after: {jobs: all, when: end}
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "workflows"
    folder.mkdir()
    (folder / "runners.yml").write_text(RUNNERS)
    (folder / "nightly.yml").write_text(NIGHTLY)
    (folder / "actions.lock.yml").write_text("actions/checkout: {sha: abc}\n")
    (folder / "durations.json").write_text("{}")
    return tmp_path


def problems(root: Path, today: date = TODAY) -> list[str]:
    with pytest.raises(SpecError) as caught:
        load(root, today=today)
    return [str(problem) for problem in caught.value.problems]


def test_a_folder_of_specs_is_loaded_with_defaults_applied(root: Path) -> None:
    specs = load(root, today=TODAY)
    assert list(specs.workflows) == ["nightly"]
    assert specs.fleet.pools["8-gpu-b200"].sm == 100
    attention, metrics = specs.workflows["nightly"].jobs.values()
    assert (attention.pool, attention.timeout, attention.file_timeout) == ("8-gpu-b200", 7200, 2400)
    assert (metrics.pool, metrics.timeout) == ("ubuntu", 600)
    assert specs.workflows["nightly"].triggers.schedules[0].timezone == "Europe/Berlin"


def test_later_checks_can_name_a_line(root: Path) -> None:
    specs = load(root, today=TODAY)
    problem = specs.problem("nightly", ("jobs", "attention", "suites", 0), "unknown suite 'mla'", "write it")
    assert problem == Problem("workflows/nightly.yml", 9, "jobs.attention.suites[0]", "unknown suite 'mla'", "write it")


def test_the_specs_of_this_repository_load() -> None:
    assert isinstance(load(ROOT, today=TODAY), Specs)


def test_a_repository_without_specs_is_told_how_to_begin(tmp_path: Path) -> None:
    assert problems(tmp_path) == ["workflows: no such folder\n    fix: run `nightcap init` to write first specs"]
    (tmp_path / "workflows").mkdir()
    assert problems(tmp_path) == [
        "workflows/runners.yml: no such file\n"
        "    fix: it names the repository and its pools of runners; `nightcap init` writes a first one"
    ]


def test_a_fleet_without_workflows_is_told_so(root: Path) -> None:
    (root / "workflows" / "nightly.yml").unlink()
    assert problems(root)[0].startswith("workflows: no workflow beside runners.yml")


def test_workflows_are_judged_even_if_there_is_no_fleet(root: Path) -> None:
    (root / "workflows" / "runners.yml").unlink()
    (root / "workflows" / "nightly.yml").write_text(NIGHTLY.replace("timeout: 10m", "timeout: 10"))
    found = problems(root)
    assert [line.partition("\n")[0] for line in found] == [
        "workflows/nightly.yml:14: jobs.metrics.timeout: 10 is a duration without a unit",
        "workflows/runners.yml: no such file",
    ]


def test_a_spec_that_would_be_overlooked_is_a_problem(root: Path) -> None:
    shutil.copy(root / "workflows" / "nightly.yml", root / "workflows" / "weekly.yaml")
    (root / "workflows" / "my spec.yml").write_text(NIGHTLY.replace("Nightly", "Mine"))
    assert [line.partition("\n")[0] for line in problems(root)] == [
        "workflows/my spec.yml: not a file name for a spec",
        "workflows/weekly.yaml: not read: specs end in .yml",
    ]


def test_an_allowance_holds_to_the_end_of_its_day(root: Path) -> None:
    off = "    enabled: false\n    disabled: {reason: fan, expires: 2026-09-01}\n    suites: [mla]\n"
    (root / "workflows" / "nightly.yml").write_text(NIGHTLY.replace("    suites: [mla]\n", off))
    load(root, today=date(2026, 9, 1))
    assert "expired on 2026-09-01" in problems(root, date(2026, 9, 2))[0]


def test_an_alias_of_yaml_is_judged_where_it_is_used(root: Path) -> None:
    text = NIGHTLY.replace("suites: [mla]", "suites: &s [mla, mla]") + "  again: {suites: *s}\n"
    (root / "workflows" / "nightly.yml").write_text(text)
    assert [line.partition(":")[2].partition(" the")[0] for line in problems(root)] == [
        "9: jobs.again.suites[1]:",
        "9: jobs.attention.suites[1]:",
    ]


@pytest.mark.parametrize("seconds", [1, 59, 60, 90, 3600, 5400, 86_400, 93_784])
def test_durations_are_written_as_they_are_read(seconds: int) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


def test_a_value_in_an_error_is_one_short_printable_line() -> None:
    for value in ("a\nb\x1b[31m\u202e", "x" * 10_000, ["x"] * 10_000, {"a": 1}, 10**400, True, None, 1.5):
        assert shown(value).isprintable()
        assert len(shown(value)) <= 200
