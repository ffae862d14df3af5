"""How many parts the keys are split into: a function of shapes alone, so that a graph may freeze it."""

from __future__ import annotations

MIN_KEYS_PER_SPLIT = 128
MAX_SPLITS = 256
ROWS_PER_TILE = 64
LARGEST_GPU = 160
"""Streaming multiprocessors of the largest GPU that a workspace is sized for."""


def choose_splits(
    batch_size: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim_v: int,
    max_q_len: int,
    max_seq_len: int,
    num_sms: int,
) -> int:
    """As many splits as fill the GPU once, none shorter than `MIN_KEYS_PER_SPLIT`."""
    tiles, tiles_per_sm = tiles_of(num_heads, num_kv_heads, head_dim_v, max_q_len)
    wanted = max(1, tiles_per_sm * num_sms // (batch_size * tiles))
    return min(wanted, -(-max_seq_len // MIN_KEYS_PER_SPLIT), MAX_SPLITS)


def choose_runs(num_heads: int, num_kv_heads: int, head_dim_v: int, max_q_len: int, num_sms: int) -> int:
    """As many equal runs over the whole batch as fill the GPU once (see `balanced`)."""
    tiles, tiles_per_sm = tiles_of(num_heads, num_kv_heads, head_dim_v, max_q_len)
    return max(1, tiles_per_sm * num_sms // tiles)


def tiles_of(num_heads: int, num_kv_heads: int, head_dim_v: int, max_q_len: int) -> tuple[int, int]:
    """Tiles of a request, and how many of them run on an SM: an MLA tile fills its shared memory."""
    rows = num_heads // num_kv_heads * max_q_len
    return num_kv_heads * -(-rows // ROWS_PER_TILE), 1 if head_dim_v > 256 else 2


def count_parts(batch_size: int, rows: int, num_splits: int, balanced: bool) -> int:
    """Partial results of a launch with `rows` query rows (tokens x heads) a request: one a row and split, or
    one a row and slot of a balanced grid (see `balanced`).
    """
    return rows * (batch_size + num_splits - 1 if balanced else batch_size * num_splits)


def partial_bytes(num_parts: int, head_dim_v: int) -> int:
    """Bytes of the partial results: one fp32 vector and one fp32 LSE each."""
    return 4 * num_parts * (head_dim_v + 1)
