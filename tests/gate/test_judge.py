"""The rules of the gate, one by one: what a night is, given a plan, GitHub's results and the journals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ci.gate import JobResult, Night, judge
from ci.journal import Journal, TestStarted, UnitFinished, UnitStarted
from ci.plan import Plan

MakePlan = Callable[..., Plan]
Record = Callable[..., Journal]
F = "tests/test_a.py"
A, B, C = f"{F}::test_a", f"{F}::TestX::test_b", f"{F}::test_c"


def red(night: Night) -> list[tuple[str, str, str, tuple[str, ...]]]:
    return [(one.kind, one.job, one.shard, one.tests) for one in night.problems]


def kinds(night: Night) -> list[str]:
    return [one.kind for one in night.problems]


def verdicts(night: Night) -> dict[str, str]:
    return {one.test: one.verdict for one in night.tests}


def results(**jobs: str) -> dict[str, JobResult]:
    return {key.replace("_", "-"): JobResult(result=result) for key, result in {"plan": "success", **jobs}.items()}


@pytest.fixture
def plan(make_plan: MakePlan) -> Plan:
    return make_plan({"mla": [{F: [A, B, C]}]})


@pytest.fixture
def judged(plan: Plan, record: Record) -> Callable[..., Night]:
    """The night of one job with one file that ran these attempts."""

    def judged(*attempts: dict[str, Any], **shard: Any) -> Night:
        return judge(plan, None, [record(plan, "mla", "1-of-1", {F: attempts}, **shard)])

    return judged


PASSED = {A: "passed", B: "passed", C: "passed"}


def test_a_night_in_which_every_planned_test_passed_is_green(judged: Callable[..., Night]) -> None:
    night = judged({"results": PASSED})
    assert (night.verdict, night.exit_code, night.findings) == ("passed", 0, ())
    assert [job.verdict for job in night.jobs] == ["passed"]
    assert verdicts(night) == PASSED


def test_a_night_reads_back_from_its_own_json(judged: Callable[..., Night]) -> None:
    night = judged({"results": PASSED | {B: "failed"}}, exit_code=1)
    assert Night.model_validate_json(night.model_dump_json()) == night


def test_parametrised_results_meet_the_planned_function(judged: Callable[..., Night]) -> None:
    ran = {f"{A}[b-1]": "passed", f"{A}[x::y[0]]": "passed", B: "passed", C: "skipped"}
    night = judged({"results": ran})
    assert night.verdict == "passed"
    assert verdicts(night) == ran
    assert all(test.planned for test in night.tests)


@pytest.mark.parametrize(
    ("attempts", "verdict", "kind"),
    [
        ([{"results": PASSED | {B: "failed"}}], "failed", "failed"),
        ([{"results": PASSED | {B: "timed-out"}}], "timed-out", "timed-out"),
        ([{"results": PASSED | {B: "crashed"}, "ending": "crashed"}], "crashed", "crashed"),
        ([{"results": PASSED | {B: None}, "ending": "crashed", "signal": "SIGSEGV"}], "crashed", "crashed"),
        ([{"results": PASSED | {B: None}, "ending": "timed-out"}], "timed-out", "timed-out"),
        ([{"results": PASSED | {B: None}, "ending": "silent"}], "timed-out", "timed-out"),
        ([{"results": PASSED | {B: None}}], "lost", "lost"),
        ([{"results": PASSED | {B: "never"}}], "lost", "lost"),
        ([{"results": {A: "passed", C: "passed"}}], "lost", "lost"),
        # A crash that the resume did not run again stays one; a retry that failed again is the last word.
        (
            [
                {"results": {A: "passed", B: None, C: "never"}, "ending": "crashed"},
                {"results": {C: "passed"}},
            ],
            "crashed",
            "crashed",
        ),
        ([{"results": PASSED | {B: "failed"}}, {"results": {B: "failed"}}], "failed", "failed"),
        ([{"results": PASSED}, {"results": {B: "failed"}}], "failed", "failed"),
        ([{"results": PASSED | {B: "failed"}}, {"results": {B: "skipped"}}], "failed", "failed"),
    ],
)
def test_a_test_without_a_good_result_turns_the_night_red_by_name(
    judged: Callable[..., Night], attempts: list[dict[str, Any]], verdict: str, kind: str
) -> None:
    night = judged(*attempts, exit_code=1)
    assert verdicts(night) == PASSED | {B: verdict}
    assert red(night) == [(kind, "mla", "1-of-1", (B,))]
    assert night.exit_code != 0


@pytest.mark.parametrize(
    ("ending", "verdict"),
    [("crashed", "crashed"), ("timed-out", "timed-out"), ("silent", "timed-out"), ("interrupted", "lost")],
)
def test_a_test_without_an_end_took_the_time_until_its_process_ended(
    plan: Plan, record: Record, ending: str, verdict: str
) -> None:
    whole = record(plan, "mla", "1-of-1", {F: [{"results": {A: "passed", B: None, C: "never"}, "ending": ending}]})
    started = {TestStarted: 10, UnitStarted: 7}
    events = [event.model_copy(update={"at": started.get(type(event), event.at)}) for event in whole.events]
    ended = [event.model_copy(update={"seconds": 33}) if event.event == "unit_finished" else event for event in events]
    night = judge(plan, None, [replace(whole, events=tuple(ended))])
    assert {one.test: (one.verdict, one.seconds) for one in night.tests} == {
        A: ("passed", 0.5),
        B: (verdict, 30),
        C: ("lost", 0),
    }


@pytest.mark.parametrize("bad", ["failed", "crashed", "timed-out", None])
def test_failed_then_passed_is_flaky_and_neither_red_nor_plain_green(
    judged: Callable[..., Night], bad: str | None
) -> None:
    first = {"results": PASSED | {B: bad}, "ending": "completed" if bad == "failed" else "crashed"}
    night = judged(first, {"results": {B: "passed"}})
    assert night.verdict == "passed"
    assert verdicts(night)[B] == "flaky"
    assert [(one.kind, one.tests) for one in night.findings] == [("flaky", (B,))]


def test_a_retry_after_a_crash_at_import_gives_every_parameter_its_first_result(
    judged: Callable[..., Night],
) -> None:
    at_import = {
        "results": {A: "crashed", B: "crashed", C: "crashed"},
        "ending": "crashed",
        "collected": False,
    }
    ran = {f"{A}[0]": "passed", f"{A}[1]": "passed", B: "passed", C: "passed"}
    night = judged(at_import, {"results": ran})
    assert verdicts(night) == dict.fromkeys(ran, "flaky")
    assert night.verdict == "passed"
    import_error = {"results": {A: "failed", B: "failed", C: "failed"}, "ending": "infra", "collected": ()}
    assert verdicts(judged(import_error, {"results": ran})) == dict.fromkeys(ran, "flaky")
    again = judged({"results": {A: "passed", f"{B}[0]": "failed", C: "passed"}}, at_import, exit_code=1)
    assert verdicts(again) == {A: "crashed", f"{B}[0]": "crashed", C: "crashed"}


def test_two_results_of_one_attempt_are_a_duplicate(judged: Callable[..., Night]) -> None:
    assert red(judged({"results": PASSED | {B: "twice"}})) == [("duplicate", "mla", "1-of-1", (B,))]


@pytest.mark.parametrize("kept", ["test_started", "test_finished"])
def test_a_second_start_or_a_second_end_is_enough_to_be_a_duplicate(plan: Plan, record: Record, kept: str) -> None:
    twice = record(plan, "mla", "1-of-1", {F: [{"results": PASSED | {B: "twice"}}]})
    other = "test_finished" if kept == "test_started" else "test_started"
    line = max(n for n, event in enumerate(twice.events) if event.event == other and event.test == B)
    events = twice.events[:line] + twice.events[line + 1 :]
    assert kinds(judge(plan, None, [replace(twice, events=events)])) == ["duplicate"]


@pytest.mark.parametrize(
    ("attempt", "kind"),
    [
        ({"results": PASSED, "ending": "crashed", "signal": "SIGABRT"}, "file-crashed"),
        ({"results": PASSED, "ending": "timed-out"}, "file-timed-out"),
        ({"results": PASSED, "exit_code": 3}, "file-failed"),
        ({"results": PASSED, "ending": "infra"}, "infra"),
    ],
)
def test_a_file_that_ends_badly_after_its_last_test_is_red(
    judged: Callable[..., Night], attempt: dict[str, Any], kind: str
) -> None:
    assert kinds(judged(attempt, exit_code=1)) == [kind]


def test_a_file_that_had_to_be_started_again_is_a_warning(judged: Callable[..., Night]) -> None:
    night = judged({"results": PASSED, "ending": "crashed"}, {"results": {C: "passed"}})
    assert [one.kind for one in night.findings] == ["unsteady-file"]
    assert night.verdict == "passed"


def test_a_failure_that_the_runner_blames_on_the_host_is_infra(judged: Callable[..., Night]) -> None:
    night = judged({"results": PASSED | {B: "failed"}, "ending": "infra"}, exit_code=1)
    assert verdicts(night)[B] == "failed"
    assert night.jobs[0].verdict == "infra"
    assert night.verdict == "incomplete"


def test_a_host_that_refused_to_start_is_infra_and_names_itself(plan: Plan, record: Record) -> None:
    journal = record(plan, "mla", "1-of-1", {}, notes=[("infra", "7 of 8 GPUs answer")], exit_code=3)
    night = judge(plan, None, [journal])
    assert red(night) == [("infra", "mla", "1-of-1", tuple(sorted([A, B, C])))]
    assert night.problems[0].message == "host gpu-07: 7 of 8 GPUs answer"
    assert night.jobs[0].verdict == "infra"


def test_a_runner_that_fails_for_no_test_is_red(judged: Callable[..., Night]) -> None:
    assert kinds(judged({"results": PASSED}, exit_code=1)) == ["shard-failed"]


def test_all_tests_skipped_is_no_signal(judged: Callable[..., Night]) -> None:
    night = judged({"results": {A: "skipped", B: "skipped", C: "skipped"}})
    assert night.jobs[0].verdict == "no-signal"
    assert night.exit_code != 0


@pytest.mark.parametrize(("marks", "verdict"), [(("slow",), "skipped"), ((), "lost")])
def test_a_deselected_test_is_fine_only_when_the_job_excludes_a_mark(
    make_plan: MakePlan, record: Record, marks: tuple[str, ...], verdict: str
) -> None:
    plan = make_plan({"mla": [{F: [A, B]}]}, exclude_marks=marks)
    attempt = {"results": {A: "passed"}, "deselected": [f"{B}[big]", f"{F}::test_never_planned"]}
    night = judge(plan, None, [record(plan, "mla", "1-of-1", {F: [attempt]})])
    assert verdicts(night)[f"{B}[big]"] == verdict
    assert (night.verdict == "passed") == bool(marks)


def test_an_unplanned_result_is_named_and_red_only_when_it_is_bad(judged: Callable[..., Night]) -> None:
    extra = f"{F}::TestX::test_inherited"
    night = judged({"results": PASSED | {extra: "passed"}})
    assert [(one.kind, one.tests) for one in night.findings] == [("unplanned", (extra,))]
    assert night.verdict == "passed"
    assert judged({"results": PASSED | {extra: "failed"}}, exit_code=1).verdict == "failed"


def test_a_quarantined_failure_is_shown_and_not_red(plan: Plan, record: Record) -> None:
    attempt = {"results": {A: "passed", f"{B}[0]": "failed", C: "passed"}}
    journal = record(plan, "mla", "1-of-1", {F: [attempt]}, exit_code=1)
    assert judge(plan, results(mla="failure"), [journal]).verdict == "failed"
    jobs = tuple(job.model_copy(update={"quarantine": {B: "known race"}}) for job in plan.jobs)
    plan = plan.model_copy(update={"jobs": jobs}).sealed()
    night = judge(plan, results(mla="failure"), [record(plan, "mla", "1-of-1", {F: [attempt]}, exit_code=1)])
    assert verdicts(night)[f"{B}[0]"] == "quarantined"
    assert [one.message for one in night.findings] == ["failed; it is in quarantine: known race"]
    assert night.verdict == "passed"


# --- journals --------------------------------------------------------------------------------------------


def test_a_missing_shard_is_named_with_every_test_that_it_takes(make_plan: MakePlan, record: Record) -> None:
    plan = make_plan({"mla": [{F: [A]}, {"tests/test_b.py": ["tests/test_b.py::test_x"]}]})
    night = judge(plan, None, [record(plan, "mla", "1-of-2", {F: [{"results": {A: "passed"}}]})])
    assert red(night) == [("missing-shard", "mla", "2-of-2", ("tests/test_b.py::test_x",))]
    assert [shard.verdict for shard in night.jobs[0].shards] == ["passed", "incomplete"]


def test_a_journal_of_another_plan_counts_for_nothing(plan: Plan, record: Record) -> None:
    journal = record(plan, "mla", "1-of-1", {F: [{"results": PASSED}]}, plan_hash="feed")
    night = judge(plan, None, [journal])
    assert kinds(night) == ["wrong-plan"]
    assert set(verdicts(night).values()) == {"lost"}


def test_a_journal_cut_at_any_event_is_red_and_loses_exactly_the_rest(plan: Plan, record: Record) -> None:
    whole = record(plan, "mla", "1-of-1", {F: [{"results": PASSED}]})
    for length in range(1, len(whole.events)):
        cut = replace(whole, events=whole.events[:length], unreadable=length % 2)
        night = judge(plan, None, [cut])
        ended = {event.test for event in cut.events if event.event == "test_finished"}
        assert kinds(night) == ["cut-journal"], length
        assert {test for test, verdict in verdicts(night).items() if verdict == "passed"} == ended
        assert set(night.problems[0].tests) == set(PASSED) - ended


def test_a_journal_without_its_first_line_is_red(plan: Plan, record: Record) -> None:
    whole = record(plan, "mla", "1-of-1", {F: [{"results": PASSED}]})
    headless = replace(whole, events=whole.events[1:])
    assert kinds(judge(plan, None, [headless])) == ["headless-journal", "missing-shard"]


def test_a_line_that_cannot_be_read_is_counted_and_red_only_if_it_was_needed(plan: Plan, record: Record) -> None:
    whole = record(plan, "mla", "1-of-1", {F: [{"results": PASSED}]})
    night = judge(plan, None, [replace(whole, unreadable=1)])
    assert [one.kind for one in night.findings] == ["unreadable-lines"]
    assert night.verdict == "passed"
    for line, event in enumerate(whole.events):
        half = replace(whole, events=whole.events[:line] + whole.events[line + 1 :], unreadable=1)
        needed = event.event != "test_started"
        assert (judge(plan, None, [half]).verdict != "passed") == needed, event


def test_a_missing_end_of_a_file_is_a_hole(plan: Plan, record: Record) -> None:
    whole = record(plan, "mla", "1-of-1", {F: [{"results": PASSED}]})
    events = tuple(event for event in whole.events if not isinstance(event, UnitFinished))
    assert kinds(judge(plan, None, [replace(whole, events=events)])) == ["holed-journal"]


def test_a_completed_attempt_without_a_result_is_a_hole_even_if_a_later_one_has_it(
    judged: Callable[..., Night],
) -> None:
    night = judged({"results": PASSED | {B: None}}, {"results": {B: "passed"}})
    assert [(one.kind, one.tests) for one in night.problems] == [("holed-journal", (B,))]


def test_an_attempt_that_left_no_line_is_a_hole(plan: Plan, record: Record) -> None:
    whole = record(plan, "mla", "1-of-1", {F: [{"results": PASSED}, {"results": PASSED}]})
    events = tuple(event for event in whole.events if getattr(event, "attempt", 2) == 2)
    assert kinds(judge(plan, None, [replace(whole, events=events)])) == ["holed-journal"]


def test_an_interrupted_shard_explains_its_lost_tests_once(judged: Callable[..., Night]) -> None:
    attempt = {"results": {A: "passed", B: None, C: "never"}, "ending": "interrupted"}
    night = judged(attempt, exit_code=130, interrupted="SIGTERM")
    assert kinds(night) == ["interrupted"]
    assert set(night.problems[0].tests) == {B, C}


def test_a_copy_of_a_journal_changes_nothing_and_a_different_one_is_red(plan: Plan, record: Record) -> None:
    one = record(plan, "mla", "1-of-1", {F: [{"results": PASSED}]})
    other = record(plan, "mla", "1-of-1", {F: [{"results": PASSED | {A: "skipped"}}]})
    assert judge(plan, None, [one, replace(one, source="copy")]) == judge(plan, None, [one])
    assert kinds(judge(plan, None, [one, other])) == ["two-journals"]
    assert judge(plan, None, [one, other]) == judge(plan, None, [other, one])
    damaged = replace(one, unreadable=1)
    assert kinds(judge(plan, None, [one, damaged])) == ["two-journals"]
    assert judge(plan, None, [one, damaged]) == judge(plan, None, [damaged, one])


def test_the_latest_attempt_of_each_shard_wins(make_plan: MakePlan, record: Record) -> None:
    x = "tests/test_b.py::test_x"
    plan = make_plan({"mla": [{F: [A]}, {"tests/test_b.py": [x]}]})
    kept = record(plan, "mla", "1-of-2", {F: [{"results": {A: "passed"}}]})
    old = record(plan, "mla", "2-of-2", {"tests/test_b.py": [{"results": {x: "failed"}}]}, exit_code=1)
    new = record(plan, "mla", "2-of-2", {"tests/test_b.py": [{"results": {x: "passed"}}]}, run_attempt=2)
    night = judge(plan, results(mla="success"), [new, kept, old])
    assert night.verdict == "passed"
    assert verdicts(night) == {A: "passed", x: "flaky"}
    assert [(shard.run_attempt, shard.superseded) for shard in night.jobs[0].shards] == [(1, ()), (2, (1,))]
    at_import = {"results": {x: "crashed"}, "ending": "crashed", "collected": False}
    died = record(plan, "mla", "2-of-2", {"tests/test_b.py": [at_import]}, exit_code=1)
    runs = {"tests/test_b.py": [{"results": {f"{x}[0]": "passed"}}]}
    passed = record(plan, "mla", "2-of-2", runs, run_attempt=3)
    assert verdicts(judge(plan, None, [passed, kept, died, new])) == {A: "passed", f"{x}[0]": "flaky"}
    worse = replace(new, events=old.events[:1] + new.events[1:])  # the same results, said to be attempt 1
    assert judge(plan, None, [kept, old, worse]).exit_code != 0


def test_a_failure_under_another_plan_is_no_history(plan: Plan, record: Record) -> None:
    old = record(plan, "mla", "1-of-1", {F: [{"results": PASSED | {A: "failed"}}]}, plan_hash="feed")
    new = record(plan, "mla", "1-of-1", {F: [{"results": PASSED}]}, run_attempt=2)
    assert verdicts(judge(plan, None, [old, new])) == PASSED


def test_problems_come_with_the_worst_first(make_plan: MakePlan, record: Record) -> None:
    plan = make_plan({"a": [{F: [A]}], "b": [{F: [A]}]})
    failed = record(plan, "b", "1-of-1", {F: [{"results": {A: "failed"}}]}, exit_code=1)
    night = judge(plan, None, [failed])
    assert [(one.job, one.kind) for one in night.findings] == [("b", "failed"), ("a", "missing-shard")]


def test_a_test_reported_by_two_shards_is_a_duplicate(make_plan: MakePlan, record: Record) -> None:
    plan = make_plan({"mla": [{F: [A]}, {F: [B]}]})
    both = {F: [{"results": {A: "passed", B: "passed"}}]}
    journals = [record(plan, "mla", shard, both) for shard in ("1-of-2", "2-of-2")]
    assert red(judge(plan, None, journals)) == [("duplicate", "mla", "", (B, A))]


def test_a_file_that_the_plan_gives_to_another_shard_is_red(plan: Plan, record: Record) -> None:
    files = {
        F: [{"results": PASSED}],
        "tests/test_z.py": [{"results": {"tests/test_z.py::test_z": "passed"}}],
    }
    night = judge(plan, None, [record(plan, "mla", "1-of-1", files)])
    assert red(night) == [("unplanned-unit", "mla", "1-of-1", ("tests/test_z.py::test_z",))]


@pytest.mark.parametrize(("job", "shard"), [("mla", "1-of-2"), ("other", "1-of-1")])
def test_a_journal_that_nobody_planned_is_red(plan: Plan, record: Record, job: str, shard: str) -> None:
    files = {F: [{"results": PASSED}]}
    night = judge(plan, None, [record(plan, "mla", "1-of-1", files), record(plan, job, shard, files)])
    assert kinds(night) == ["unplanned-shard"]


# --- GitHub's results ------------------------------------------------------------------------------------


def test_jobs_that_were_not_selected_are_no_failure(make_plan: MakePlan, record: Record) -> None:
    plan = make_plan({"a": [{F: [A]}], "b": "not-selected", "c": "disabled", "d": "empty"})
    journals = [record(plan, "a", "1-of-1", {F: [{"results": {A: "passed"}}]})]
    night = judge(plan, results(a="success", b="skipped", c="skipped", d="skipped"), journals)
    assert night.verdict == "passed"
    assert [job.verdict for job in night.jobs] == ["passed", "not-selected", "not-selected", "not-selected"]
    assert [job.reason for job in night.jobs[1:]] == ["not-selected: all", "disabled: all", "empty: all"]


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ("success", []),
        ("failure", ["job-failed"]),
        ("cancelled", ["job-cancelled"]),
        ("skipped", ["unexpected-skip"]),
    ],
)
def test_githubs_result_adds_problems_to_green_journals(
    plan: Plan, record: Record, result: str, expected: list[str]
) -> None:
    journal = record(plan, "mla", "1-of-1", {F: [{"results": PASSED}]})
    assert kinds(judge(plan, results(mla=result), [journal])) == expected


def test_a_failed_test_explains_githubs_failure(plan: Plan, record: Record) -> None:
    journal = record(plan, "mla", "1-of-1", {F: [{"results": PASSED | {A: "failed"}}]}, exit_code=1)
    assert kinds(judge(plan, results(mla="failure"), [journal])) == ["failed"]
    assert judge(plan, results(mla="success"), [journal]).verdict == "failed"


def test_a_flaky_test_does_not_explain_githubs_failure(plan: Plan, record: Record) -> None:
    attempts = [{"results": PASSED | {A: "failed"}}, {"results": {A: "passed"}}]
    night = judge(plan, results(mla="failure"), [record(plan, "mla", "1-of-1", {F: attempts})])
    assert kinds(night) == ["job-failed"]


def test_a_selected_job_that_was_skipped_is_named_once_with_all_its_tests(plan: Plan) -> None:
    night = judge(plan, results(mla="skipped"), [])
    assert [(one.kind, set(one.tests)) for one in night.problems] == [("unexpected-skip", {A, B, C})]
    assert night.jobs[0].verdict == "incomplete"


def test_a_cancelled_job_says_that_a_timeout_looks_the_same(plan: Plan) -> None:
    night = judge(plan, results(mla="cancelled"), [])
    assert sorted(kinds(night)) == ["job-cancelled", "missing-shard"]
    assert any("time limit" in one.message for one in night.problems)


def test_a_job_that_ran_although_it_is_not_selected_is_red(make_plan: MakePlan, record: Record) -> None:
    plan = make_plan({"a": [{F: [A]}], "b": "not-selected"})
    journal = record(plan, "a", "1-of-1", {F: [{"results": {A: "passed"}}]})
    assert kinds(judge(plan, results(a="success", b="success"), [journal])) == ["unexpected-run"]
    stray = record(plan, "b", "1-of-1", {})
    assert kinds(judge(plan, None, [journal, stray])) == ["unexpected-run"]


def test_plan_and_needs_must_name_the_same_jobs(plan: Plan, record: Record) -> None:
    journal = record(plan, "mla", "1-of-1", {F: [{"results": PASSED}]})
    assert kinds(judge(plan, results(mla="success", stranger="success"), [journal])) == ["unknown-job"]
    assert kinds(judge(plan, results(), [journal])) == ["not-in-needs"]
    assert kinds(judge(plan, {"mla": JobResult(result="success")}, [journal])) == ["not-in-needs"]


# --- The plan --------------------------------------------------------------------------------------------


def test_a_failed_plan_is_red_with_its_own_words(plan: Plan) -> None:
    failed = {"plan": JobResult(result="failure", outputs={"error": "'mlaa' is no job: did you mean 'mla'?"})}
    night = judge(None, failed | {"mla": JobResult(result="skipped")}, [])
    assert kinds(night) == ["plan-failed"]
    assert "did you mean 'mla'?" in night.problems[0].message
    assert night.exit_code != 0


def test_no_plan_is_red(plan: Plan) -> None:
    assert kinds(judge(None, None, [])) == ["plan-missing"]
    assert kinds(judge(None, results(mla="success"), [])) == ["plan-missing"]


def test_a_changed_plan_is_red(plan: Plan, record: Record) -> None:
    changed = plan.model_copy(update={"filter": "mla"})
    journal = record(plan, "mla", "1-of-1", {F: [{"results": PASSED}]})
    assert kinds(judge(changed, None, [journal])) == ["plan-damaged"]


def test_a_plan_that_selects_nothing_is_red(make_plan: MakePlan) -> None:
    assert kinds(judge(make_plan({"a": "not-selected"}), None, [])) == ["nothing-selected"]


def test_a_selected_job_without_shards_is_red(make_plan: MakePlan) -> None:
    assert kinds(judge(make_plan({"a": []}), results(a="success"), [])) == ["no-signal"]
