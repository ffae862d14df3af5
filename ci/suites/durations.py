"""How long each test file takes: `workflows/durations.json`, in the repository, so planning needs no network.

The file is for people: one line a test file, sorted, the same bytes for the same content. Times are seconds.

    {"suites": {SUITE: {POOL: {PATH: {"seconds": 83.2, "samples": [[WHEN, 83.2], ...]}}}}, "version": 1}

`samples` are the newest passed runs as [seconds since the epoch, duration]; `seconds` is the estimate that
comes of them. A line written by hand needs no samples. `Durations.seconds` says what it falls back to.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from ci.spec.loader import FOLDER
from ci.spec.models import format_duration
from ci.spec.problems import Problem, SpecError

KEPT_SAMPLES = 10
"""The newest samples that count for one file on one pool."""
QUANTILE = 0.6
"""Nearest-rank quantile of the samples: the second of three, the third of five. One outlier never decides."""
MOSTLY_SKIPPED = 0.5
"""A run that skipped a larger share of its tests says nothing about the time that the file needs."""
DEFAULT_SECONDS = 120.0
"""For a file of which nothing at all is known."""

Source = Literal["measured", "borrowed", "declared", "median", "default"]


@dataclass(frozen=True)
class Estimate:
    """A predicted time in seconds, where it comes from, and that in words."""

    seconds: float
    source: Source
    note: str


@dataclass(frozen=True)
class Run:
    """One finished run of a test file. `skipped_share` is from 0 to 1, `when` in seconds since the epoch."""

    suite: str
    pool: str
    path: str
    seconds: float
    passed: bool
    skipped_share: float
    when: int


class Key(NamedTuple):
    """A test file of a suite on a pool."""

    suite: str
    pool: str
    path: str


class Entry(BaseModel):
    """What is known of one key."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    seconds: FiniteFloat = Field(ge=0)
    samples: list[tuple[int, FiniteFloat]] = []


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    version: Literal[1]
    suites: dict[str, dict[str, dict[str, Entry]]]


@dataclass(frozen=True)
class Durations:
    """All measured times."""

    entries: Mapping[Key, Entry] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Durations:
        """The durations in a file, none without the file. Raises SpecError when it has another form."""
        try:
            suites = _File.model_validate_json(path.read_bytes()).suites
        except FileNotFoundError:
            return cls()
        except ValidationError as error:
            raise SpecError(_problem(path, one["loc"], one["msg"]) for one in error.errors()) from None
        return cls(
            {
                Key(suite, pool, test): entry
                for suite, pools in suites.items()
                for pool, tests in pools.items()
                for test, entry in tests.items()
            }
        )

    def dump(self) -> str:
        """The text of the file."""
        nested: dict[str, dict[str, dict[str, str]]] = defaultdict(lambda: defaultdict(dict))
        for key, entry in self.entries.items():
            nested[key.suite][key.pool][key.path] = json.dumps(entry.model_dump(exclude_defaults=True))
        suites = _block(
            {
                suite: _block({pool: _block(tests, 4) for pool, tests in pools.items()}, 3)
                for suite, pools in nested.items()
            },
            2,
        )
        return _block({"version": "1", "suites": suites}, 1) + "\n"

    def seconds(
        self,
        suite: str,
        pool: str,
        path: str,
        declared: float | None = None,
        *,
        others: Collection[float] = (),
    ) -> Estimate:
        """The time of one file of a suite on a pool: measured there, or the best that is known.

        In this order: measured on the pool; measured on another pool, times the ratio of the two; declared;
        the median of the suite's measured files, or else of `others`, the declared times of its other files;
        a default.
        """
        if measured := self.entries.get(Key(suite, pool, path)):
            return Estimate(measured.seconds, "measured", "measured")
        if borrowed := self._borrowed(suite, pool, path):
            return borrowed
        if declared is not None:
            return Estimate(declared, "declared", "declared")
        times = self._times.get(suite, {})
        known = times.get(pool) or [seconds for each in times.values() for seconds in each] or others
        if known:
            return Estimate(median(known), "median", f"median of suite {suite}")
        default = format_duration(DEFAULT_SECONDS)
        return Estimate(DEFAULT_SECONDS, "default", f"nothing is known of it, taken as {default}")

    def _borrowed(self, suite: str, pool: str, path: str) -> Estimate | None:
        """The time on the pool that has most files in common with `pool`, times the ratio of the two."""
        lenders = [other for other in self._pools if Key(suite, other, path) in self.entries]
        if not lenders:
            return None
        lender = max(lenders, key=lambda other: len(self._ratios.get((pool, other), ())))
        ratios = self._ratios.get((pool, lender), [])
        ratio = median(ratios) if ratios else 1.0
        basis = f"times {ratio:.2f}, from {len(ratios)} files" if ratios else "ratio unknown, taken as 1"
        seconds = self.entries[Key(suite, lender, path)].seconds * ratio
        return Estimate(seconds, "borrowed", f"borrowed from pool {lender}, {basis}")

    @cached_property
    def _pools(self) -> list[str]:
        return sorted({key.pool for key in self.entries})

    @cached_property
    def _times(self) -> dict[str, dict[str, list[float]]]:
        """All times of a suite on a pool."""
        times: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for key, entry in sorted(self.entries.items()):
            times[key.suite][key.pool].append(entry.seconds)
        return {suite: dict(pools) for suite, pools in times.items()}

    @cached_property
    def _ratios(self) -> dict[tuple[str, str], list[float]]:
        """By (pool, other): how much longer each file that both measured takes on `pool` than on `other`."""
        ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
        for key, entry in self.entries.items():
            for other in self._pools:
                there = self.entries.get(key._replace(pool=other))
                if other != key.pool and there is not None and there.seconds > 0:
                    ratios[key.pool, other].append(entry.seconds / there.seconds)
        return dict(ratios)


def updated(old: Durations, runs: Iterable[Run], *, known: Mapping[str, Collection[str]] | None = None) -> Durations:
    """`old` with what `runs` add; a run that is there already changes nothing.

    Only passed runs count that were not mostly skipped. `known` has the files of each suite that there are
    today: the times of others are dropped.
    """
    new: dict[Key, dict[int, float]] = defaultdict(dict)
    for run in runs:
        if run.passed and run.skipped_share <= MOSTLY_SKIPPED and 0 < run.seconds < math.inf:
            new[Key(run.suite, run.pool, run.path)][run.when] = round(run.seconds, 2)
    entries = dict(old.entries)
    for key, samples in new.items():
        before = entries[key].samples if key in entries else []
        kept = sorted((dict(before) | samples).items())[-KEPT_SAMPLES:]
        entries[key] = Entry(seconds=_quantile([seconds for _, seconds in kept]), samples=kept)
    if known is not None:
        entries = {key: entry for key, entry in entries.items() if key.path in known.get(key.suite, ())}
    return Durations(entries)


def _quantile(values: Sequence[float]) -> float:
    return sorted(values)[math.ceil(QUANTILE * len(values)) - 1]


def _block(members: Mapping[str, str], depth: int) -> str:
    """A JSON object of members that are JSON already, one a line."""
    lines = (f"{'  ' * depth}{json.dumps(name)}: {members[name]}" for name in sorted(members))
    return "{\n" + ",\n".join(lines) + f"\n{'  ' * (depth - 1)}}}" if members else "{}"


def _problem(path: Path, loc: tuple[int | str, ...], msg: str) -> Problem:
    fix = "correct it, or remove the file and write it anew with `nightcap durations update`"
    return Problem(f"{FOLDER}/{path.name}", 0, ".".join(map(str, loc)), msg, fix)
