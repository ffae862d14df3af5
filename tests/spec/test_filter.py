"""A filter selects exactly the jobs that its text names, says why, and is refused when it names nothing."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ci.spec.filter import Selection, select
from ci.spec.models import Workflow
from ci.spec.problems import FilterError

WORKFLOW = Workflow.model_validate(
    {
        "title": "Nightly",
        "template": "nightly",
        "triggers": {"dispatch": {}},
        "jobs": {
            "specialized-8-gpu-b200": {
                "pool": "8-gpu-b200",
                "suites": ["mla", "mha"],
                "tags": ["attention", "blackwell"],
                "aliases": ["perf-8-gpu-b200"],
            },
            "general-8-gpu-h200": {"pool": "8-gpu-h200", "suites": ["mla"], "tags": ["attention"]},
            "general-8-gpu": {"pool": "8-gpu-h200", "suites": ["mha"]},
            "Kernel_1": {"pool": "1-gpu", "suites": ["kernel"]},
            "off": {
                "pool": "1-gpu",
                "suites": ["kernel"],
                "enabled": False,
                "disabled": {"reason": "broken fan", "expires": "2026-10-01"},
            },
            "metrics": {"pool": "cpu", "commands": ["x"], "select": "always", "tags": ["report"]},
        },
    }
)
B200, H200, GENERAL, KERNEL, METRICS = (key for key in WORKFLOW.jobs if key != "off")


def picked(text: str) -> list[str]:
    """The selected jobs, without the one that always runs beside them."""
    selected = select(text, WORKFLOW).selected
    assert METRICS in selected
    return [key for key in selected if key != METRICS]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", [B200, H200, GENERAL, KERNEL]),
        ("   ", [B200, H200, GENERAL, KERNEL]),
        (" ALL ", [B200, H200, GENERAL, KERNEL]),
        ("all, !Kernel_1", [B200, H200, GENERAL]),
        ("general-8-gpu", [GENERAL]),
        ("kernel_1", [KERNEL]),
        ("perf-8-gpu-b200", [B200]),
        ("kernel_1 ,general-8-gpu", [GENERAL, KERNEL]),
        ("*-8-gpu-*", [B200, H200]),
        ("general-8-gpu-?200", [H200]),
        ("PERF*", [B200]),
        ("tag:attention", [B200, H200]),
        ("tag : BLACK*", [B200]),
        ("pool:8-gpu-h200", [H200, GENERAL]),
        ("suite:m?a, kernel_1", [B200, H200, GENERAL, KERNEL]),
        ("!perf*", [H200, GENERAL, KERNEL]),
        ("! perf*, !tag:attention", [GENERAL, KERNEL]),
        ("!suite:mha, *8-gpu*", [H200]),
        ("*8-gpu*, !suite:mha", [H200]),
        ("kernel_1, off", [KERNEL]),
    ],
)
def test_a_filter_selects_what_its_terms_name(text: str, expected: list[str]) -> None:
    assert picked(text) == expected


def test_every_job_has_a_reason() -> None:
    assert select("*-b200, tag:attention, !general-8-gpu-h200", WORKFLOW) == Selection(
        selected=(B200, METRICS),
        reasons={
            B200: "matches `*-b200`",
            H200: "removed by `!general-8-gpu-h200`",
            GENERAL: "not named by the filter",
            KERNEL: "not named by the filter",
            "off": "disabled until 2026-10-01: broken fan",
            METRICS: "always runs (select: always)",
        },
    )
    assert select("all", WORKFLOW).reasons[B200] == "selected: all"
    assert select("perf*", WORKFLOW).reasons[B200] == "matches `perf*` (alias perf-8-gpu-b200)"
    assert select("!off", WORKFLOW).reasons[B200] == "selected: all that no term removes"


def test_a_job_that_always_runs_is_removed_by_name_alone() -> None:
    assert select("kernel_1, !metrics", WORKFLOW).selected == (KERNEL,)
    assert select("!tag:report, kernel_1", WORKFLOW).reasons[METRICS] == "removed by `!tag:report`"


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        (
            "specialised-8-gpu-b200",
            ["'specialised-8-gpu-b200' matches no job: did you mean 'specialized-8-gpu-b200'"],
        ),
        ("8-gpu", ["'8-gpu' matches no job: did you mean"]),
        ("attention", ["'attention' matches no job: did you mean 'tag:attention'?"]),
        (
            "nope, !zzz",
            ["'nope' matches no job: there are specialized-8-gpu-b200", "'!zzz' matches no job: there are"],
        ),
        ("!tag:atention", ["'!tag:atention' matches no job: did you mean '!tag:attention'?"]),
        ("pool:*-b300", ["'pool:*-b300' matches no job: there are 1-gpu, 8-gpu-b200, 8-gpu-h200, cpu"]),
        ("suite:perf-8-gpu-b200", ["'suite:perf-8-gpu-b200' matches no job: there are kernel, mha, mla"]),
        ("kernel_1 metrics", ["'kernel_1 metrics' matches no job"]),
        ("tags:attention", ["unknown prefix in 'tags:attention': did you mean tag:?"]),
        ("https://x", ["unknown prefix in 'https://x': there are tag:, pool: and suite:"]),
        ("a::b", ["unknown prefix in 'a::b'"]),
        ("kernel_1,,off", ["an empty term names nothing in 'kernel_1,,off'"]),
        ("kernel_1,", ["an empty term names nothing"]),
        ("!", ["'!' names nothing"]),
        ("tag:", ["'tag:' names nothing"]),
        ("kernel_[1]", ["'kernel_[1]' matches no job"]),
        ("\u212aernel_1", ["matches no job"]),
        ("off", ["the filter 'off' selects nothing: off is disabled until 2026-10-01: broken fan"]),
        ("metrics", ["the filter 'metrics' selects nothing: metrics runs only beside other jobs"]),
        (
            "kernel_1, !kernel*",
            ["the filter 'kernel_1, !kernel*' selects nothing: no job is left"],
        ),
        ("!all", ["selects nothing"]),
        ("!*gpu*, !kernel_1", ["selects nothing: no job is left"]),
        ('a"; curl x | sh; "', ["""'a"; curl x | sh; "' matches no job"""]),
        ("${{ secrets.X }}", ["'${{ secrets.X }}' matches no job"]),
        ("kernel_1\nall", ["the filter 'kernel_1\\nall' has the character U+000A"]),
        ("a\x00b", ["has the character U+0000"]),
        ("\u202eall", ["has the character U+202E"]),
        ("\ud800", ["has the character U+D800"]),
        ("a" * 100_000, ["the filter has 100,000 characters, at most 2,000: 'aaaa"]),
        ("*a" * 1000, ["matches no job"]),
    ],
)
def test_a_filter_that_names_nothing_is_refused_with_the_nearest_names(text: str, problems: list[str]) -> None:
    with pytest.raises(FilterError) as caught:
        select(text, WORKFLOW)
    assert len(caught.value.problems) == len(problems)
    for problem, expected in zip(caught.value.problems, problems, strict=True):
        assert expected in problem
        assert problem.isprintable()
        assert len(problem) < 400


def naive(text: str, jobs: dict[str, Any]) -> set[str] | None:
    """The rules again, written another way: sets of keys, globs as regular expressions; None for an error."""
    if not text.isprintable() or len(text) > 2000:
        return None
    everything = set(jobs)
    terms = [] if text.strip(" ") == "" else [term.strip(" ") for term in text.split(",")]
    wanted: set[str] = set()
    unwanted: set[str] = set()
    for term in terms:
        parsed = re.fullmatch(r"(!?) *(?:(tag|pool|suite) *: *)?([^:]+)", term, re.IGNORECASE)
        if not parsed or not term.isascii():
            return None
        negation, prefix, glob = parsed.groups()
        regex = "".join({"*": ".*", "?": "."}.get(char, re.escape(char)) for char in glob)
        if glob.lower() == "all" and not prefix:
            regex = ".*"
        found = set()
        for key, job in jobs.items():
            names = {
                "tag": job.tags, "pool": [job.pool], "suite": job.suites, "": [key, *job.aliases],
            }[(prefix or "").lower()]  # fmt: skip
            if any(re.fullmatch(regex, name, re.IGNORECASE) for name in names):
                found.add(key)
        if not found:
            return None
        if negation:
            unwanted |= found
        else:
            wanted |= found
    if all(term.startswith("!") for term in terms):
        wanted = everything
    wanted = {key for key in wanted - unwanted if jobs[key].enabled}
    always = {key for key in everything - unwanted if jobs[key].select == "always"}
    return wanted | always if wanted - always else None


PIECES = [
    *(
        "general-8-gpu",
        "b200",
        "h200",
        "KERNEL_1",
        "off",
        "metrics",
        "perf-8-gpu-b200",
        "attention",
        "mla",
        "1-gpu",
    ),
    *("tag:", "pool:", "suite:", "*", "?", "!", ",", ", ", " ", "-", "all", ":", "[", "]", "8"),
]


@given(st.lists(st.sampled_from(PIECES), max_size=8).map("".join))
@example("all,!off")
def test_a_second_implementation_agrees(text: str) -> None:
    expected = naive(text, WORKFLOW.jobs)
    try:
        selection = select(text, WORKFLOW)
    except FilterError:
        assert expected is None
    else:
        assert set(selection.selected) == expected
        assert list(selection.reasons) == list(WORKFLOW.jobs)
        assert list(selection.selected) == [key for key in WORKFLOW.jobs if key in selection.selected]


@given(st.text())
def test_any_text_selects_or_is_refused_in_printable_lines(text: str) -> None:
    problems: tuple[str, ...] = ()
    try:
        assert select(text, WORKFLOW).selected
    except FilterError as error:
        problems = error.problems
    assert all(problem.isprintable() for problem in problems)


def test_keys_that_contain_each_other_are_never_confused() -> None:
    assert picked("general-8-gpu") == [GENERAL]
    assert picked("general-8-gpu-h200") == [H200]
