"""Divide the test files of a job into shards that end at about the same time.

Input: items (a test file or another thing that one process runs) with their predicted seconds, and a count or
a target. Output: shards, each with its items and its predicted time. The same items give the same shards in
whatever order they come, no shard is empty, and a small change of the times moves few items (`ci.suites.partition`
says how). A shard takes `per_shard` seconds to start (checkout, installation), an item `per_item` (a process).
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from ci.spec.models import format_duration
from ci.suites.partition import lower_bound, partition

_UNITS = 1000
"""Times are divided in whole milliseconds."""
_AS_FAST = 1.001
"""Two predicted times closer than this are the same to a person."""


@dataclass(frozen=True)
class Item:
    """What cannot be divided further. `seconds` is its predicted time without start-up."""

    id: str
    seconds: float

    def __post_init__(self) -> None:
        if not 0 <= self.seconds < math.inf:
            raise ValueError(f"{self.id}: {self.seconds} is no number of seconds")


@dataclass(frozen=True)
class Shard:
    """One part of a job; `index` counts from 1, `seconds` is its predicted time with all start-up."""

    index: int
    count: int
    items: tuple[Item, ...]
    seconds: float

    @property
    def id(self) -> str:
        """`2-of-4`: made from the count, so no list of ids can disagree with it (sglang#27352)."""
        return f"{self.index}-of-{self.count}"


@dataclass(frozen=True)
class Analysis:
    """What a person asks of a division: is it even, what bounds it, and would another shard help?"""

    shards: tuple[Shard, ...]
    longest: Item
    lower_bound: float
    """No division into this many shards ends sooner."""
    as_fast: int
    """The smallest count of shards that ends as soon."""
    faster: tuple[int, float] | None
    """The next count that ends sooner, with its predicted time; None when no count does."""

    @property
    def seconds(self) -> float:
        """Predicted time of the slowest shard."""
        return max(shard.seconds for shard in self.shards)

    @property
    def imbalance(self) -> float:
        """Slowest shard over the mean: 1 is even."""
        return self.seconds * len(self.shards) / sum(shard.seconds for shard in self.shards)

    @property
    def advice(self) -> str:
        """Whether more shards would help, in one sentence."""
        fewer = f"; {self.as_fast} would be as fast" if self.as_fast < len(self.shards) else ""
        if self.faster is not None:
            count, seconds = self.faster
            gain = 100 * (1 - seconds / self.seconds)
            return f"{count} shards would take {format_duration(seconds)}, {gain:.0f} % less{fewer}"
        longest = f"{self.longest.id} ({format_duration(self.longest.seconds)})"
        return f"more shards cannot help: {longest} decides{fewer}"


def assign(items: Sequence[Item], count: int, *, per_item: float = 0.0, per_shard: float = 0.0) -> tuple[Shard, ...]:
    """Divide `items` into `count` shards, or into as many as there are items if these are fewer.

    Raises ValueError for a count below 1, or two items with one id.
    """
    if count < 1:
        raise ValueError(f"{count} is no number of shards")
    if len({item.id for item in items}) < len(items):
        raise ValueError("two items have the same id")
    count = min(count, len(items))
    ordered = sorted(items, key=lambda item: (-item.seconds, item.id))
    homes = [_home(item, count) for item in ordered]
    places = partition(_sizes(ordered, per_item), count, homes) if ordered else []
    parts: list[list[Item]] = [[] for _ in range(count)]
    for item, place in zip(ordered, places, strict=True):
        parts[place].append(item)
    return tuple(
        Shard(
            index=index,
            count=count,
            items=tuple(sorted(part, key=lambda item: item.id)),
            seconds=per_shard + math.fsum(item.seconds + per_item for item in part),
        )
        for index, part in enumerate(parts, 1)
    )


def count_for(items: Sequence[Item], target: float, most: int, *, per_item: float = 0.0, per_shard: float = 0.0) -> int:
    """The smallest count, up to `most`, of shards that each take at most `target` seconds.

    When no count reaches the target, the smallest that is as fast as `most` shards. No items need 0 shards.
    """
    if not items:
        return 0

    def seconds(count: int) -> float:
        return max(shard.seconds for shard in assign(items, count, per_item=per_item, per_shard=per_shard))

    goal = max(target, seconds(most) * _AS_FAST)
    work = math.fsum(item.seconds + per_item for item in items)
    least = math.ceil(work / (goal - per_shard) - 1e-9) if work else 1
    counts = range(max(1, least), min(most, len(items)))
    return counts.start + bisect_left(counts, True, key=lambda count: seconds(count) <= goal)


def analyse(items: Sequence[Item], count: int, *, per_item: float = 0.0, per_shard: float = 0.0) -> Analysis:
    """Divide `items` and judge the division. Raises ValueError as `assign` does, and for no items."""
    if not items:
        raise ValueError("there is nothing to divide")
    shards = assign(items, count, per_item=per_item, per_shard=per_shard)
    slowest = max(shard.seconds for shard in shards)
    longest = min(items, key=lambda item: (-item.seconds, item.id))
    faster = None
    if slowest > (per_shard + per_item + longest.seconds) * _AS_FAST:
        more = count_for(items, slowest / _AS_FAST, len(items), per_item=per_item, per_shard=per_shard)
        divided = assign(items, more, per_item=per_item, per_shard=per_shard)
        faster = (more, max(shard.seconds for shard in divided))
    sizes = sorted(_sizes(items, per_item), reverse=True)
    return Analysis(
        shards=shards,
        longest=longest,
        lower_bound=per_shard + lower_bound(sizes, len(shards)) / _UNITS,
        as_fast=count_for(items, slowest, len(shards), per_item=per_item, per_shard=per_shard),
        faster=faster,
    )


def _sizes(items: Sequence[Item], per_item: float) -> list[int]:
    return [max(1, round((item.seconds + per_item) * _UNITS)) for item in items]


def _home(item: Item, count: int) -> int:
    """The shard that an item goes to unless the balance asks for another: it depends on nothing but its id."""
    return int.from_bytes(hashlib.blake2b(item.id.encode(), digest_size=8).digest()) % count
