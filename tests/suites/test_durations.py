"""Measured times: what counts, what stands in for a missing one, and the text of the file."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ci.spec.problems import SpecError
from ci.suites.durations import DEFAULT_SECONDS, KEPT_SAMPLES, Durations, Entry, Key, Run, updated


def run(seconds: float, when: int = 0, path: str = "a.py", pool: str = "h200", **changed: object) -> Run:
    values = {"suite": "s", "passed": True, "skipped_share": 0.0} | changed
    return Run(seconds=seconds, when=when, path=path, pool=pool, **values)  # type: ignore[arg-type]


def measured(**pools: dict[str, float]) -> Durations:
    return Durations(
        {
            Key("s", pool, path): Entry(seconds=seconds)
            for pool, files in pools.items()
            for path, seconds in files.items()
        }
    )


def test_one_outlier_among_three_runs_does_not_move_the_estimate() -> None:
    kept = updated(Durations(), [run(10, 1), run(900, 2), run(12, 3)])
    assert kept.seconds("s", "h200", "a.py", 300.0).seconds == 12
    assert kept.seconds("s", "h200", "a.py", 300.0).source == "measured"


def test_failed_mostly_skipped_and_impossible_runs_do_not_count() -> None:
    runs = [
        run(4, 1, skipped_share=1.0),
        run(5, 2, skipped_share=0.6),
        run(900, 3, passed=False),
        run(0, 4),
        run(float("nan"), 5),
        run(float("inf"), 6),
    ]
    assert updated(Durations(), runs) == Durations()
    assert updated(Durations(), [*runs, run(50, 7, skipped_share=0.5)]).entries[Key("s", "h200", "a.py")].seconds == 50


def test_only_the_newest_runs_count_and_the_order_of_the_runs_does_not() -> None:
    runs = [run(1000, when) for when in range(KEPT_SAMPLES)] + [run(10, 100 + when) for when in range(KEPT_SAMPLES)]
    kept = updated(Durations(), runs)
    assert kept.entries[Key("s", "h200", "a.py")].seconds == 10
    random.Random(0).shuffle(runs)
    half = updated(Durations(), runs[: len(runs) // 2])
    assert updated(half, runs[len(runs) // 2 :]).seconds("s", "h200", "a.py").seconds == 10


def test_reading_the_same_journals_twice_changes_nothing() -> None:
    runs = [run(10, 1), run(20, 2), run(30, 3)]
    once = updated(Durations(), runs)
    assert updated(once, runs) == once


def test_times_of_files_that_are_gone_are_dropped() -> None:
    old = updated(Durations(), [run(10), run(10, path="gone.py"), run(10, suite="gone")])
    assert set(updated(old, [], known={"s": ["a.py"]}).entries) == {Key("s", "h200", "a.py")}


def test_a_new_pool_borrows_the_time_of_the_pool_it_shares_most_files_with_and_says_so() -> None:
    known = measured(
        b200={"x.py": 50, "y.py": 30, "z.py": 10},
        h100={"x.py": 500, "new.py": 900},
        h200={"x.py": 100, "y.py": 60, "z.py": 20, "new.py": 80},
    )
    estimate = known.seconds("s", "b200", "new.py", 7.0)
    assert (estimate.seconds, estimate.source) == (40, "borrowed")
    assert estimate.note == "borrowed from pool h200, times 0.50, from 3 files"


def test_a_pool_without_any_measurement_borrows_as_it_is() -> None:
    estimate = measured(h200={"a.py": 80}).seconds("s", "b200", "a.py")
    assert (estimate.seconds, estimate.note) == (80, "borrowed from pool h200, ratio unknown, taken as 1")


@pytest.mark.parametrize(
    ("known", "declared", "others", "expected"),
    [
        (measured(h200={"b.py": 10}), 90.0, (), (90, "declared")),
        (measured(h200={"b.py": 10, "c.py": 30, "d.py": 500}), None, (7,), (30, "median")),
        (measured(b200={"b.py": 10}), None, (7,), (10, "median")),
        (Durations(), None, (5, 7, 60), (7, "median")),
        (Durations(), None, (), (DEFAULT_SECONDS, "default")),
    ],
)
def test_what_is_not_measured_is_declared_or_the_median_or_a_default_that_says_so(
    known: Durations, declared: float | None, others: tuple[float, ...], expected: tuple[float, str]
) -> None:
    estimate = known.seconds("s", "h200", "a.py", declared, others=others)
    assert (estimate.seconds, estimate.source) == expected
    assert estimate.note


def test_the_file_is_sorted_with_one_line_a_test_file() -> None:
    runs = [run(10.456, 5), run(11, 6), run(7, 1, path="B.py"), run(3, 2, pool="b200", suite="r")]
    assert updated(Durations(), runs).dump() == (
        "{\n"
        '  "suites": {\n'
        '    "r": {\n'
        '      "b200": {\n'
        '        "a.py": {"seconds": 3.0, "samples": [[2, 3.0]]}\n'
        "      }\n"
        "    },\n"
        '    "s": {\n'
        '      "h200": {\n'
        '        "B.py": {"seconds": 7.0, "samples": [[1, 7.0]]},\n'
        '        "a.py": {"seconds": 11.0, "samples": [[5, 10.46], [6, 11.0]]}\n'
        "      }\n"
        "    }\n"
        "  },\n"
        '  "version": 1\n'
        "}\n"
    )


names = st.text(min_size=1, max_size=8)
runs = st.builds(Run, names, names, names, st.floats(0.01, 1e6), st.booleans(), st.floats(0, 1), st.integers(0, 2**40))


@settings(deadline=None)
@given(st.lists(runs, max_size=20))
def test_the_file_reads_back_as_it_was_written(tmp_path_factory: pytest.TempPathFactory, runs: list[Run]) -> None:
    path = tmp_path_factory.mktemp("durations") / "durations.json"
    kept = updated(Durations(), runs)
    path.write_bytes(kept.dump().encode())
    assert Durations.load(path) == kept
    assert Durations.load(path).dump() == kept.dump()


def test_no_file_means_no_times_yet(tmp_path: Path) -> None:
    assert Durations.load(tmp_path / "durations.json") == Durations()


@pytest.mark.parametrize(
    ("text", "field", "message"),
    [
        ("{", "", "Invalid JSON"),
        ('{"version": 2, "suites": {}}', "version", "Input should be 1"),
        ('{"version": 1}', "suites", "Field required"),
        ('{"version": 1, "suites": {"s": {"p": {"a.py": 3}}}}', "suites.s.p.a.py", "an object"),
        (
            '{"version": 1, "suites": {"s": {"p": {"a.py": {"seconds": -1}}}}}',
            "suites.s.p.a.py.seconds",
            "greater",
        ),
        (
            '{"version": 1, "suites": {"s": {"p": {"a.py": {"seconds": NaN}}}}}',
            "suites.s.p.a.py.seconds",
            "finite",
        ),
    ],
)
def test_a_file_of_another_form_is_an_error_with_the_place(tmp_path: Path, text: str, field: str, message: str) -> None:
    (tmp_path / "durations.json").write_text(text)
    with pytest.raises(SpecError) as caught:
        Durations.load(tmp_path / "durations.json")
    (problem,) = caught.value.problems
    assert (problem.file, problem.field) == ("workflows/durations.json", field)
    assert message in problem.message
