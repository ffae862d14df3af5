"""Which grid suits a batch: a rule for callers who know its lengths, or lengths like those of its replays.

On `split` the programs of a short request end early and those of the longest one last; on `balanced` all have the
same number of key blocks. With equal lengths `balanced` has no advantage, and costs more: runs begin inside of
requests, some programs go over from one to the next, and the second half has to find its parts. So the rule compares
how many blocks the busiest place on the GPU goes through, and lets `balanced` pay `BALANCED_COST`.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gpu_tests.reference.splits import choose_runs, choose_splits, tiles_of

Grid = Literal["split", "balanced"]

KEYS = 64
"""Keys of a block."""

BALANCED_COST = 1.06
"""Time of a block on the balanced grid, relative to one on the other. Measured with equal lengths on an H200: 1.01 to
1.09 in Gluon, and 1.21 for 128 requests of 128 heads, see docs/gpu-results.md.
"""


@dataclass(frozen=True)
class GridChoice:
    """A grid and the reason in words."""

    grid: Grid
    reason: str


def choose_grid(
    seq_lens: Sequence[int],
    *,
    num_heads: int,
    num_kv_heads: int,
    head_dim_v: int,
    max_q_len: int,
    max_seq_len: int,
    num_sms: int,
    window_left: int = -1,
) -> GridChoice:
    """The faster grid for requests of `seq_lens` keys (MLA: `num_kv_heads=1`), as the measured rule says.

    A host function: an engine calls it with the lengths that it captures a graph for, or that it expects at replay.
    Both grids are right for any lengths. `num_sms` is the GPU's number of multiprocessors. Raises ValueError with all
    that is wrong: a length below 0 or above `max_seq_len`, a number below 1, heads that are no multiple of KV heads.
    """
    given = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "head_dim_v": head_dim_v, "max_q_len": max_q_len}
    given |= {"max_seq_len": max_seq_len, "num_sms": num_sms}
    problems = [f"{name}: got {number}, must be 1 or more" for name, number in given.items() if number < 1]
    if num_kv_heads >= 1 and num_heads % num_kv_heads:
        problems.append(f"num_heads: got {num_heads}, must be a multiple of num_kv_heads = {num_kv_heads}")
    wrong = [length for length in seq_lens if not 0 <= length <= max_seq_len]
    if wrong:
        problems.append(f"seq_lens: got {wrong[0]}, must be from 0 to max_seq_len = {max_seq_len}")
    if problems:
        raise ValueError("; ".join(problems))
    if window_left >= 0:
        return GridChoice("split", "a window leaves every request about the same number of keys")
    heads = (num_heads, num_kv_heads, head_dim_v, max_q_len)
    splits = choose_splits(len(seq_lens), *heads, max_seq_len, num_sms) if seq_lens else 1
    tiles, places = tiles_of(*heads)
    blocks = [-(-length // KEYS) for length in seq_lens]
    split = _busiest(blocks, splits, tiles, places * num_sms)
    balanced = -(-sum(blocks) // choose_runs(*heads, num_sms)) * BALANCED_COST
    figures = f"{split} blocks of {KEYS} keys on the busiest place with splits, {balanced:.0f} on the balanced grid"
    return GridChoice("balanced" if balanced < split else "split", figures)


def _busiest(blocks: Sequence[int], splits: int, tiles: int, places: int) -> int:
    """Blocks that the busiest of `places` goes through when each takes the next program as soon as it is free, in the
    order of their launch.
    """
    loads = [0] * places
    for request in blocks:
        for _ in range(splits * tiles):
            heapq.heapreplace(loads, loads[0] + -(-request // splits))
    return max(loads)
