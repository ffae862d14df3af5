"""The plan: every planned test once, a reason for every job, a hash over all of it."""

from __future__ import annotations

import re
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from click import ClickException
from hypothesis import given, settings
from hypothesis import strategies as st

from ci.cli.project import Project
from ci.plan import Plan, shard_index
from ci.planning import effective_inputs
from ci.spec.models import Dispatch, Input, Job, Triggers, Workflow
from ci.spec.problems import FilterError, SpecError

TODAY = date(2026, 12, 1)
RUNNERS = """\
repository: acme/engine
pools:
  cpu: {labels: [ubuntu-24.04], hosted: true, timeout: 2h}
  gpu: {labels: [self-hosted, gpu], gpus: 1, sm: 90, timeout: 6h, setup: [echo ready]}
"""
HEAD = 'title: Nightly\ntemplate: nightly\ntriggers: {schedule: {cron: "17 0 * * *"}, dispatch: {}}\n'
TEST = 'import pytest\npytestmark = pytest.mark.suite("{suite}", est="{est}")\n\n\ndef test_one():\n    pass\n{more}'


@pytest.fixture
def repository(tmp_path: Path) -> Any:
    """`repository(jobs, {path: text})` writes specs and files and gives a plan's maker."""

    def build(spec: str, files: dict[str, str] | None = None) -> Any:
        texts = {"workflows/runners.yml": RUNNERS, "workflows/nightly.yml": HEAD + spec, **(files or {})}
        for path, text in texts.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)

        def plan(filter_text: str = "all", event: str = "schedule", **inputs: object) -> Plan:
            return Project(tmp_path, TODAY).plan("nightly", event, filter_text, inputs)

        return plan

    return build


def file_of(suite: str, *, est: str = "60s", more: str = "") -> str:
    return TEST.format(suite=suite, est=est, more=more)


ATTENTION = "jobs:\n  attention: {pool: gpu, suites: [mla], timeout: 2h, file_timeout: 40m, shards: SHARDS}\n"


@pytest.mark.parametrize(("shards", "count"), [("1", 1), ("3", 3), ("8", 5), ("{max: 4, target: 3m}", 3)])
def test_every_planned_test_is_in_exactly_one_shard(repository: Any, shards: str, count: int) -> None:
    files = {f"tests/test_{index}.py": file_of("mla") for index in range(5)}
    job = repository(ATTENTION.replace("SHARDS", shards), files)().job("attention")
    tests = [test for shard in job.shards for unit in shard.units for test in unit.tests]
    assert sorted(tests) == [f"tests/test_{index}.py::test_one" for index in range(5)]
    assert [shard.id for shard in job.shards] == [f"{index}-of-{count}" for index in range(1, count + 1)]


def test_a_plan_reads_back_and_knows_when_it_was_changed(repository: Any) -> None:
    plan = repository(ATTENTION.replace("SHARDS", "1"), {"tests/test_a.py": file_of("mla")})()
    again = Plan.model_validate_json(plan.model_dump_json())
    assert again == plan
    assert again.intact()
    assert not again.model_copy(update={"filter": "other"}).intact()


def test_a_new_test_gives_another_hash(repository: Any, tmp_path: Path) -> None:
    plan = repository(ATTENTION.replace("SHARDS", "1"), {"tests/test_a.py": file_of("mla")})
    before = plan().hash
    more = "\n\ndef test_two():\n    pass\n"
    (tmp_path / "tests/test_a.py").write_text(file_of("mla", more=more))
    from ci.cli import project

    for cached in (project._specs, project._catalogue, project._discovery):
        cached.cache_clear()
    assert plan().hash != before


def test_a_shard_that_starts_after_an_expiry_still_agrees_with_its_plan(repository: Any, tmp_path: Path) -> None:
    rests = f"enabled: false, disabled: {{reason: broken, expires: {TODAY}}}"
    job = f"  other: {{pool: cpu, suites: [mla], timeout: 2h, file_timeout: 40m, {rests}}}\n"
    plan = repository(ATTENTION.replace("SHARDS", "1") + job, {"tests/test_a.py": file_of("mla")})()
    later = Project(tmp_path, TODAY + timedelta(days=1))
    with pytest.raises(SpecError, match="expired on"):
        later.plan("nightly", "schedule", "all")
    later.agree(plan)
    with pytest.raises(ClickException, match="check out the same commit"):
        later.agree(plan.model_copy(update={"filter": "attention"}).sealed())


def test_a_job_takes_along_all_that_its_host_needs(repository: Any) -> None:
    spec = """\
env: {LEVEL: 1, DEBUG: true}
jobs:
  attention:
    {pool: gpu, suites: [mla], timeout: 2h, file_timeout: 40m, env: {LEVEL: "2"}, artifacts: ["*.log"]}
  report: {pool: cpu, commands: [echo], timeout: 5m}
"""
    plan = repository(spec, {"tests/test_a.py": file_of("mla")})()
    job, report = plan.jobs
    assert job.env == {"LEVEL": "2", "DEBUG": "true"}
    assert (job.pool, job.gpus, job.sm, job.setup) == ("gpu", 1, 90, ("echo ready",))
    assert (job.timeout, job.file_timeout, job.artifacts) == (7200, 2400, ("*.log",))
    assert (report.timeout, report.file_timeout, report.env["LEVEL"]) == (300, 300, "1")


def test_a_file_whose_tests_cannot_be_listed_is_planned_as_a_whole(repository: Any) -> None:
    shared = 'import pytest\nfrom shared import TestShared\npytestmark = pytest.mark.suite("mla")\n'
    units = repository(ATTENTION.replace("SHARDS", "1"), {"tests/test_a.py": shared})().job("attention").shards[0].units
    assert [(unit.path, unit.tests) for unit in units] == [("tests/test_a.py", ())]


def test_a_command_that_shards_itself_runs_in_every_shard_beside_test_files(repository: Any) -> None:
    spec = "suites:\n  own: {command: run, est: 5m}\n" + ATTENTION.replace("[mla]", "[mla, own]")
    shards = repository(spec.replace("SHARDS", "3"), {"tests/test_a.py": file_of("mla")})().job("attention").shards
    assert [[unit.path for unit in shard.units] for shard in shards] == [["tests/test_a.py", "own"], ["own"], ["own"]]


def test_a_job_that_is_not_selected_has_no_shards_and_says_why(repository: Any) -> None:
    two = ATTENTION.replace("SHARDS", "1") + "  other: {pool: cpu, suites: [mla], timeout: 2h, file_timeout: 40m}\n"
    plan = repository(two, {"tests/test_a.py": file_of("mla")})("other", "workflow_dispatch")
    assert [job.key for job in plan.selected] == ["other"]
    assert plan.job("attention").shards == ()
    assert plan.job("attention").reason == "not named by the filter"


def test_an_unknown_suite_and_an_empty_one_are_refused_with_their_lines(repository: Any) -> None:
    spec = "suites:\n  quiet: {est: 5m}\njobs:\n"
    jobs = "  a: {pool: gpu, suites: [mlaa], timeout: 2h, file_timeout: 40m}\n"
    empty = "  b: {pool: gpu, suites: [quiet], timeout: 2h, file_timeout: 40m}\n"
    plan = repository(spec + jobs + empty, {"tests/test_a.py": file_of("mla")})
    with pytest.raises(SpecError) as raised:
        plan()
    text = str(raised.value)
    assert "workflows/nightly.yml:7: jobs.a.suites[0]: unknown suite 'mlaa'\n    fix: did you mean 'mla'?" in text
    assert "workflows/nightly.yml:8: jobs.b.suites[0]: suite 'quiet' has no test" in text


def test_an_empty_suite_that_is_allowed_takes_no_machine(repository: Any) -> None:
    spec = "suites:\n  quiet: {allow_empty: {reason: waits for the first test, expires: 2026-12-31}}\njobs:\n"
    job = "  a: {pool: gpu, suites: [quiet], timeout: 2h, file_timeout: 40m}\n"
    planned = repository(spec + job)().job("a")
    assert planned.state == "empty"
    assert planned.shards == ()
    assert "allowed until 2026-12-31: waits for the first test" in planned.reason


def test_tests_with_an_excluded_mark_are_not_planned(repository: Any) -> None:
    more = "\n\n@pytest.mark.slow\ndef test_slow():\n    pass\n"
    spec = ATTENTION.replace("shards: SHARDS", "exclude_marks: [slow]")
    only_slow = (
        'import pytest\npytestmark = [pytest.mark.suite("mla"), pytest.mark.slow]\n\n\ndef test_all():\n    pass\n'
    )
    files = {"tests/test_a.py": file_of("mla", more=more), "tests/test_b.py": only_slow}
    units = repository(spec, files)().job("attention").shards[0].units
    assert [(unit.path, unit.tests) for unit in units] == [("tests/test_a.py", ("tests/test_a.py::test_one",))]


def test_an_external_command_gets_its_tests_in_one_unit_a_shard(repository: Any) -> None:
    spec = "suites:\n  mla: {command: run, manifest: tests.json, junit: out.xml}\n"
    files = {"tests.json": '{"mla": {"a.py": 60, "b.py": 50, "c.py": 10}}'}
    shards = repository(spec + ATTENTION.replace("SHARDS", "2"), files)().job("attention").shards
    assert [unit.items for shard in shards for unit in shard.units] in (
        [("a.py",), ("b.py", "c.py")],
        [("b.py", "c.py"), ("a.py",)],
    )
    assert all(unit.tests == unit.items and unit.command == "run" for shard in shards for unit in shard.units)


def test_a_command_without_junit_has_one_result_a_shard(repository: Any) -> None:
    spec = "suites:\n  mla: {command: run, est: 5m}\n"
    shards = repository(spec + ATTENTION.replace("SHARDS", "2"))().job("attention").shards
    assert [unit.tests for shard in shards for unit in shard.units] == [("mla 1-of-2",), ("mla 2-of-2",)]


def test_plain_commands_are_one_planned_result(repository: Any) -> None:
    spec = "jobs:\n  report: {pool: cpu, commands: [echo a, echo b], timeout: 5m}\n"
    unit = repository(spec)().job("report").shards[0].units[0]
    assert (unit.kind, unit.tests, unit.command) == ("command", ("report",), "echo a\necho b")


def test_a_shard_that_is_predicted_to_take_longer_than_the_timeout_is_noted(repository: Any) -> None:
    plan = repository(ATTENTION.replace("SHARDS", "1"), {"tests/test_a.py": file_of("mla", est="3h")})()
    assert any("more than the timeout 2h" in note for note in plan.job("attention").notes)


def test_a_filter_that_means_nothing_makes_no_plan(repository: Any) -> None:
    plan = repository(ATTENTION.replace("SHARDS", "1"), {"tests/test_a.py": file_of("mla")})
    with pytest.raises(FilterError, match="did you mean 'attention'"):
        plan("atention")


INPUTS = {
    "model": Input(description="Which", type="choice", options=["small", "large"], default="small"),
    "fast": Input(description="Quick", type="boolean", default=True),
    "count": Input(description="How many", type="number", default=3),
    "note": Input(description="Any text"),
}
WITH_INPUTS = Workflow(
    title="x", template="nightly", triggers=Triggers(dispatch=Dispatch(inputs=INPUTS)), jobs={"a": Job(commands=["x"])}
)


@pytest.mark.parametrize(
    ("given_inputs", "wanted"),
    [
        ({}, {"model": "small", "fast": True, "count": 3, "note": ""}),
        ({"fast": "false", "count": "2.5"}, {"model": "small", "fast": False, "count": 2.5, "note": ""}),
        (
            {"fast": False, "model": "large", "note": "${{ x }}"},
            {"model": "large", "fast": False, "count": 3, "note": "${{ x }}"},
        ),
        ({"model": "", "fast": "", "count": "", "note": ""}, {"model": "small", "fast": True, "count": 3, "note": ""}),
    ],
)
def test_inputs_have_their_defaults_and_types_on_every_event(given_inputs: Any, wanted: Any) -> None:
    assert effective_inputs(WITH_INPUTS, given_inputs) == wanted


def test_a_required_input_is_missed_in_a_manual_run_alone() -> None:
    inputs = {"model": Input(description="x", required=True), "note": Input(description="x")}
    workflow = WITH_INPUTS.model_copy(update={"triggers": Triggers(dispatch=Dispatch(inputs=inputs))})
    assert effective_inputs(workflow, {}) == {"model": "", "note": ""}
    with pytest.raises(SpecError, match="model: is required"):
        effective_inputs(workflow, {"model": "", "note": "x"})


def test_all_wrong_inputs_are_named_at_once() -> None:
    with pytest.raises(SpecError) as raised:
        effective_inputs(WITH_INPUTS, {"modle": "x", "fast": "maybe", "count": "nan", "model": "huge"})
    text = str(raised.value)
    for part in (
        "did you mean 'model'",
        "'maybe' is no boolean",
        "'nan' is no finite number",
        "is none of small, large",
    ):
        assert part in text


@pytest.mark.parametrize("value", ["nan", "1e999", "-inf", "three"])
def test_an_input_that_is_no_number_is_refused(value: str) -> None:
    with pytest.raises(SpecError, match=f"'{value}' is no finite number$"):
        effective_inputs(WITH_INPUTS, {"count": value})


def test_inputs_longer_than_the_gate_can_receive_are_refused() -> None:
    assert effective_inputs(WITH_INPUTS, {"note": "x" * 3_900})["note"] == "x" * 3_900
    with pytest.raises(SpecError, match="characters in all, at most 4,000"):
        effective_inputs(WITH_INPUTS, {"note": "x" * 4_001})


@settings(max_examples=200)
@given(st.text(max_size=12) | st.from_regex(r"[0-9]{1,3}(/|-of-)[0-9]{1,3}", fullmatch=True))
def test_a_shard_is_read_or_refused_never_guessed(text: str) -> None:
    match = re.fullmatch(r"([0-9]+)(?:/|-of-)([0-9]+)", text)
    if match and 1 <= int(match[1]) <= int(match[2]):
        assert shard_index(text) == (int(match[1]), int(match[2]))
    else:
        with pytest.raises(ValueError, match="write it as 2/4"):
            shard_index(text)
