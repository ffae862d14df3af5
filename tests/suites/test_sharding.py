"""Sharding: every item once, even, the same in any order, and advice that is true."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ci.suites.sharding import Item, Shard, analyse, assign, count_for

items = st.lists(st.builds(Item, st.text(max_size=6), st.floats(0, 4000)), unique_by=lambda item: item.id, max_size=25)
counts = st.integers(1, 12)
steady = settings(max_examples=50, deadline=None, derandomize=True)


def slowest(shards: tuple[Shard, ...]) -> float:
    return max(shard.seconds for shard in shards)


def longest_first(items: list[Item], count: int) -> list[list[Item]]:
    """The plain algorithm that ours is measured against."""
    parts: list[list[Item]] = [[] for _ in range(count)]
    for item in sorted(items, key=lambda item: (-item.seconds, item.id)):
        min(parts, key=total).append(item)
    return parts


def total(items: list[Item]) -> float:
    return sum(item.seconds for item in items)


def best_of_all(seconds: list[float], count: int) -> float:
    def time(places: tuple[int, ...]) -> float:
        return max(sum(s for s, place in zip(seconds, places, strict=True) if place == one) for one in range(count))

    return min(time(places) for places in itertools.product(range(count), repeat=len(seconds)))


def make(*seconds: float) -> list[Item]:
    return [Item(f"test_{index}.py", one) for index, one in enumerate(seconds)]


@steady
@given(items, counts, st.randoms(use_true_random=False))
def test_every_item_is_in_exactly_one_shard_whatever_the_order_and_no_shard_is_empty(
    items: list[Item], count: int, random: random.Random
) -> None:
    shards = assign(items, count)
    assert sorted(item.id for shard in shards for item in shard.items) == sorted(item.id for item in items)
    assert all(shard.items for shard in shards)
    assert len(shards) == min(count, len(items))
    shuffled = list(items)
    random.shuffle(shuffled)
    assert assign(shuffled, count) == shards


@steady
@given(items.filter(bool), counts, st.floats(0, 30), st.floats(0, 300))
def test_the_slowest_shard_is_never_slower_than_longest_first_nor_below_the_bound(
    items: list[Item], count: int, per_item: float, per_shard: float
) -> None:
    analysis = analyse(items, count, per_item=per_item, per_shard=per_shard)
    loaded = [Item(item.id, item.seconds + per_item) for item in items]
    plain = per_shard + max(map(total, longest_first(loaded, len(analysis.shards))))
    rounding = 0.001 * len(items)
    assert analysis.lower_bound - rounding <= analysis.seconds <= plain * 1.0001 + rounding


@steady
@given(st.lists(st.integers(1, 60), min_size=1, max_size=7), st.integers(2, 3))
def test_few_items_are_divided_as_well_as_trying_everything(seconds: list[int], count: int) -> None:
    shards = assign(make(*seconds), count)
    assert slowest(shards) == best_of_all([float(one) for one in seconds], count)


def test_a_division_that_longest_first_misses_is_found() -> None:
    items = make(5, 5, 4, 4, 3, 3, 3)
    assert max(map(total, longest_first(items, 3))) == 11
    assert slowest(assign(items, 3)) == 9


def test_five_items_asked_for_eight_shards_are_five_shards() -> None:
    shards = assign(make(5, 4, 3, 2, 1), 8)
    assert sorted(shard.id for shard in shards) == ["1-of-5", "2-of-5", "3-of-5", "4-of-5", "5-of-5"]


def test_measured_times_even_out_what_equal_declared_times_leave_uneven() -> None:
    shards = assign(make(2100, 1300, 300, 300, 900, 800), 3)
    assert slowest(shards) == 2100
    assert analyse(make(2100, 1300, 300, 300, 900, 800), 3).imbalance < 1.11


def test_start_up_of_shards_and_items_is_in_the_predicted_times() -> None:
    (only,) = assign(make(10, 20), 1, per_item=3, per_shard=60)
    assert only.seconds == 96
    many_short = make(100, *[1] * 50)
    assert max(len(shard.items) for shard in assign(many_short, 2)) == 50
    assert max(len(shard.items) for shard in assign(many_short, 2, per_item=10)) < 35, "the start-up counts too"


def test_a_new_file_and_a_changed_time_move_few_of_the_others() -> None:
    def moved(before: list[list[Item]], after: list[list[Item]]) -> int:
        place = {item.id: index for index, part in enumerate(before) for item in part}
        return sum(place.get(item.id, index) != index for index, part in enumerate(after) for item in part)

    def ours(items: list[Item], count: int) -> list[list[Item]]:
        return [list(shard.items) for shard in assign(items, count)]

    draw = random.Random(7)
    moves, plain = 0, 0
    for _ in range(10):
        before = [Item(f"tests/test_{index}.py", draw.lognormvariate(4, 1)) for index in range(200)]
        after = [Item("tests/test_new.py", 60), Item(before[0].id, before[0].seconds * 1.1), *before[1:]]
        moves += moved(ours(before, 8), ours(after, 8))
        plain += moved(longest_first(before, 8), longest_first(after, 8))
    assert moves < plain / 2
    assert moves / 10 / 200 < 0.35


@pytest.mark.parametrize(
    ("seconds", "target", "most", "expected"),
    [
        ([600] * 6, 1200, 8, 3),
        ([600] * 6, 1199, 8, 6),
        ([600] * 6, 100, 4, 3),
        ([3000, 100, 100, 100], 600, 8, 2),
        ([10], 600, 8, 1),
        ([0, 0], 600, 8, 1),
        ([0, 0], 0, 8, 1),
        ([], 600, 8, 0),
    ],
)
def test_the_count_for_a_target_is_the_smallest_that_reaches_it_or_is_as_fast_as_most(
    seconds: list[float], target: float, most: int, expected: int
) -> None:
    assert count_for(make(*seconds), target, most) == expected


@steady
@given(items.filter(bool), st.floats(1, 5000), counts, st.floats(0, 100))
def test_the_count_for_a_target_reaches_it_whenever_the_most_shards_do(
    items: list[Item], target: float, most: int, per_shard: float
) -> None:
    count = count_for(items, target, most, per_shard=per_shard)
    assert 1 <= count <= min(most, len(items))
    reached = slowest(assign(items, most, per_shard=per_shard))
    assert slowest(assign(items, count, per_shard=per_shard)) <= max(target, reached * 1.001) + 1e-9


@pytest.mark.parametrize(
    ("seconds", "count", "advice"),
    [
        ([2400, 60, 60, 60], 3, "more shards cannot help: test_0.py (40m) decides; 2 would be as fast"),
        ([2400, 60, 60, 60], 2, "more shards cannot help: test_0.py (40m) decides"),
        ([600] * 4, 2, "4 shards would take 10m, 50 % less"),
        ([600] * 4, 3, "4 shards would take 10m, 50 % less; 2 would be as fast"),
    ],
)
def test_the_advice_names_the_file_that_decides_and_the_count_that_is_as_fast(
    seconds: list[float], count: int, advice: str
) -> None:
    assert analyse(make(*seconds), count).advice == advice


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_an_impossible_time_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="no number of seconds"):
        Item("a", seconds)


def test_two_items_with_one_id_and_a_count_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match="same id"):
        assign([Item("a", 1), Item("a", 2)], 2)
    with pytest.raises(ValueError, match="no number of shards"):
        assign(make(1), 0)
