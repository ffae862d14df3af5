"""Number partitioning: n sizes into m bins so that the fullest bin is as low as can be found (P||Cmax).

Each item has a home bin, and most stay there, so a small change of the sizes moves few items. Two starts
(items at home, longest first) are improved by moving and swapping items, then by dividing two bins anew with an
exact subset sum; a bounded exhaustive search follows. It stops at the lower bound. All is integer arithmetic,
bounded by counts of steps and never by a clock, so the same input always gives the same answer.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate, combinations
from math import gcd

# Bounds of the effort, of which `benchmarks/sharding.py` shows that they cost no optimum there.
_MOST_STEPS = 2_000
"""Improvements of one start."""
_MOST_PAIRED = 60
"""Items of a bin up to which pairs of them are exchanged too."""
_MOST_BITS = 20_000_000
"""Items times size of two bins up to which they are divided anew."""
_MOST_NODES = 10_000
"""Steps of the exhaustive search."""
_NEGLIGIBLE = 10_000
"""One such part above the lower bound is good enough to leave the rest in place."""


def lower_bound(sizes: Sequence[int], count: int) -> int:
    """No partition of `sizes`, in falling order, into `count` bins has a lower fullest bin."""
    if not sizes:
        return 0
    bound = max(sizes[0], -(-sum(sizes) // count))
    # Of the k * count + 1 largest, some bin holds k + 1, which are no smaller than the k + 1 last of them.
    for k in range(1, (len(sizes) - 1) // count + 1):
        bound = max(bound, sum(sizes[k * count - k : k * count + 1]))
    return bound


def partition(sizes: Sequence[int], count: int, homes: Sequence[int]) -> list[int]:
    """The bin, from 0, of each item; none is empty.

    `sizes` are positive, in falling order and at least `count` many; `homes` are the bins of choice.
    """
    unit = gcd(*sizes) or 1
    scaled = [size // unit for size in sizes]
    bound = lower_bound(scaled, count)
    bound += bound // _NEGLIGIBLE
    best: _Bins | None = None
    for start in (_from_homes, _longest_first):
        bins = _Bins(scaled, count, start(scaled, count, homes))
        _improve(bins, bound)
        if best is None or max(bins.loads) < max(best.loads):
            best = bins
        if max(best.loads) <= bound:
            break
    assert best is not None
    if max(best.loads) > bound and (places := _search(scaled, count, bound, max(best.loads))):
        best = _Bins(scaled, count, places)
    best.fill_empty()
    return best.places


_Sized = tuple[int, int]
"""An item: its size and its index."""


class _Bins:
    """A partition that changes: each bin's load, and its items as (size, index) in rising order."""

    def __init__(self, sizes: Sequence[int], count: int, places: Sequence[int]) -> None:
        self.sizes = sizes
        self.items: list[list[_Sized]] = [[] for _ in range(count)]
        for index in range(len(sizes) - 1, -1, -1):
            self.items[places[index]].append((sizes[index], index))
        for items in self.items:
            items.sort()
        self.loads = [sum(size for size, _ in items) for items in self.items]

    @property
    def places(self) -> list[int]:
        """The bin of each item."""
        places = [0] * len(self.sizes)
        for place, items in enumerate(self.items):
            for _, index in items:
                places[index] = place
        return places

    def move(self, item: _Sized, source: int, target: int) -> None:
        """Take an item from one bin to another."""
        del self.items[source][bisect_left(self.items[source], item)]
        insort(self.items[target], item)
        self.loads[source] -= item[0]
        self.loads[target] += item[0]

    def fill_empty(self) -> None:
        """Give every empty bin the smallest item of the bin that has most items."""
        for empty in (place for place, items in enumerate(self.items) if not items):
            source = max(range(len(self.items)), key=lambda place: (len(self.items[place]), -place))
            self.move(self.items[source][0], source, empty)


def _from_homes(sizes: Sequence[int], count: int, homes: Sequence[int]) -> list[int]:
    """Every item at home while there is room below the mean; the others where there is most room."""
    loads = [0] * count
    room = -(-sum(sizes) // count)
    places = []
    for size, home in zip(sizes, homes, strict=True):
        place = home if loads[home] + size <= room else loads.index(min(loads))
        loads[place] += size
        places.append(place)
    return places


def _longest_first(sizes: Sequence[int], count: int, homes: Sequence[int]) -> list[int]:
    """Longest processing time first (Graham 1969): the next largest item goes to the bin that is lowest."""
    bins = [(0, place) for place in range(count)]
    places = []
    for size in sizes:
        load, place = heapq.heappop(bins)
        places.append(place)
        heapq.heappush(bins, (load + size, place))
    return places


def _improve(bins: _Bins, bound: int) -> None:
    """Lower the fullest bin until it is at the bound or no step helps; steps that move few items come first."""
    steps = (partial(_exchange, most=1), partial(_exchange, most=2), _divide_anew)
    for _ in range(_MOST_STEPS):
        high = max(range(len(bins.loads)), key=lambda place: (bins.loads[place], -place))
        if bins.loads[high] <= bound:
            return
        others = [place for place in range(len(bins.loads)) if place != high]
        lows = sorted(others, key=lambda place: (bins.loads[place], place))
        if not any(step(bins, high, low) for step in steps for low in lows):
            return


def _exchange(bins: _Bins, high: int, low: int, most: int) -> bool:
    """Exchange up to `most` items of a bin for up to `most` of a lower one, so that the higher load becomes lowest.

    False when no exchange lowers it.
    """
    gap = bins.loads[high] - bins.loads[low]
    given, taken = _choices(bins.items[high], most), _choices(bins.items[low], most)
    best, least = None, gap
    for size, items in given:
        # The partner that makes the difference closest to half the gap stands beside this place.
        near = bisect_left(taken, size - gap // 2, key=lambda choice: choice[0])
        for partner_size, partner in taken[max(near - 1, 0) : near + 1]:
            off = abs(2 * (size - partner_size) - gap)
            if off < least:
                best, least = (items, partner), off
        if least <= 1:
            break
    if best is None:
        return False
    for item in best[0]:
        bins.move(item, high, low)
    for item in best[1]:
        bins.move(item, low, high)
    return True


def _choices(items: list[_Sized], most: int) -> list[tuple[int, tuple[_Sized, ...]]]:
    """Every choice of up to `most` items with its size, in rising order; single items alone where there are many."""
    if len(items) > _MOST_PAIRED:
        most = 1
    chosen = [(), *((item,) for item in items), *(combinations(items, 2) if most > 1 else ())]
    return sorted(((sum(size for size, _ in choice), choice) for choice in chosen), key=lambda one: one[0])


def _divide_anew(bins: _Bins, high: int, low: int) -> bool:
    """Divide the items of two bins as evenly as possible; False when that does not lower the higher one."""
    items = sorted(bins.items[high] + bins.items[low])
    total = bins.loads[high] + bins.loads[low]
    if total * len(items) > _MOST_BITS:
        return False
    # Bit s of sums[k] says that some of the first k items add up to s.
    sums = [1]
    for size, _ in items:
        sums.append(sums[-1] | sums[-1] << size)
    upper_half = sums[-1] >> (total + 1) // 2
    target = (total + 1) // 2 + (upper_half & -upper_half).bit_length() - 1
    if target >= bins.loads[high]:
        return False
    for k in range(len(items), 0, -1):
        size, index = items[k - 1]
        place = low
        if not sums[k - 1] >> target & 1:
            target -= size
            place = high
        current = high if (size, index) in bins.items[high] else low
        if place != current:
            bins.move((size, index), current, place)
    return True


def _search(sizes: Sequence[int], count: int, bound: int, known: int) -> list[int] | None:
    """A partition lower than `known`, the lowest that a bounded search finds; None when it finds none."""
    search = _Search(sizes, _MOST_NODES)
    best = None
    while known > bound and (bins := search.fill(list(range(len(sizes))), count, known - 1)):
        best = [0] * len(sizes)
        for place, indices in enumerate(bins):
            for index in indices:
                best[index] = place
        known = max(sum(sizes[index] for index in indices) for indices in bins)
    return best


class _Search:
    """Bin completion: fill one bin after the other, each around the largest item that is left."""

    def __init__(self, sizes: Sequence[int], nodes: int) -> None:
        self.sizes = sizes
        self.nodes = nodes

    def fill(self, left: list[int], count: int, room: int) -> list[list[int]] | None:
        """Bins for the items `left` (indices in falling order of size), none fuller than `room`, or None."""
        total = sum(self.sizes[index] for index in left)
        if total <= room:
            return [left] + [[]] * (count - 1)
        if count == 1 or total > count * room:
            return None
        least = total - (count - 1) * room
        for chosen in self._completions(left, least, room):
            taken = set(chosen)
            rest = self.fill([index for index in left if index not in taken], count - 1, room)
            if rest is not None:
                return [chosen, *rest]
        return None

    def _completions(self, left: list[int], least: int, room: int) -> Iterator[list[int]]:
        """Every choice of items with the first of `left`, of `least` to `room` in all, large items first."""
        sizes = [self.sizes[index] for index in left]
        after = [*accumulate(reversed(sizes), initial=0)][::-1]  # after[k]: all from k on
        chosen = [0]
        load, k = sizes[0], 1
        while self.nodes > 0:
            self.nodes -= 1
            while k < len(sizes) and load + sizes[k] > room:
                k += 1
            if k < len(sizes) and load + after[k] >= least:
                chosen.append(k)
                load += sizes[k]
                k += 1
                continue
            if k == len(sizes) and load >= least:
                yield [left[j] for j in chosen]
            # Leave out the last item chosen, and with it all of its size: they would give the same again.
            if len(chosen) == 1:
                return
            k = chosen.pop()
            load -= sizes[k]
            size = sizes[k]
            while k < len(sizes) and sizes[k] == size:
                k += 1
