"""What the ranks published about one pass, compared: who differs, and where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_tests.parallel.report import Finding

Values = Mapping[str, Any]
"""Metadata by field: a number, a list (a value a row; one more: offsets) or a list of lists (a page table)."""


@dataclass(frozen=True)
class LiveRow:
    """A row that holds a request, and how many columns of a page table it uses."""

    row: int
    request: str
    columns: int


@dataclass(frozen=True)
class _Cell:
    """One number of the metadata, and how to read it."""

    field: str
    row: int | None
    column: int | None
    path: tuple[int, ...]

    def of(self, values: Values) -> Any:
        found = values.get(self.field)
        for index in self.path:
            found = found[index] if isinstance(found, list) and index < len(found) else None
        return found


def metadata_differences(
    published: Sequence[Values], truth: Values, rows: Sequence[LiveRow], where: str
) -> list[Finding]:
    """A finding for each number that is not the same on all ranks, on every rank that does not hold the true one.

    `truth` is the metadata of the same batch on a single rank: two ranks alone cannot tell which of them is wrong.
    Entries of a page table past a request's last page may hold anything.
    """
    names = {live.row: live.request for live in rows}
    findings = []
    for cell in _cells(truth, rows):
        seen = [cell.of(values) for values in published]
        if all(value == seen[0] for value in seen):
            continue
        right = cell.of(truth)
        for rank, value in enumerate(seen):
            if value != right:
                message = f"{cell.field} holds {value}, on a single rank {right}; all ranks: {seen}"
                request = None if cell.row is None else names.get(cell.row, "padding")
                findings.append(
                    Finding("metadata", rank, where, message, None, cell.field, cell.row, request, cell.column)
                )
    return findings


def _cells(truth: Values, rows: Sequence[LiveRow]) -> Iterator[_Cell]:
    lists = [len(value) for value in truth.values() if isinstance(value, list)]
    batch = min(lists, default=0)
    for name, value in truth.items():
        if not isinstance(value, list):
            yield _Cell(name, None, None, ())
        elif value and isinstance(value[0], list):
            for live in rows:
                yield from (_Cell(name, live.row, column, (live.row, column)) for column in range(live.columns))
        else:
            # Offsets have one element more than there are rows: element i + 1 is where row i ends.
            first = len(value) - batch
            yield from (_Cell(name, i - first if i >= first else None, None, (i,)) for i in range(len(value)))


def reduced_differences(published: Sequence[Sequence[Sequence[str]]], where: str) -> list[Finding]:
    """A finding for each rank that came out of an all-reduce with other bits than most ranks.

    `published[rank][step]` are the digests of what the rank holds afterwards, in order of segments and tokens.
    """
    findings = []
    for step, of_step in enumerate(zip(*published, strict=True)):
        usual, _ = Counter(tuple(digests) for digests in of_step).most_common(1)[0]
        for rank, digests in enumerate(of_step):
            others = [i for i, (a, b) in enumerate(zip(digests, usual, strict=True)) if a != b]
            if others:
                message = f"the all-reduce gave other bits than on rank {of_step.index(list(usual))}, tokens {others}"
                findings.append(Finding("reduced", rank, where, message, step=step))
    return findings
