"""How many parts the keys of a request are split into: a function of shapes alone, so that a graph may freeze
it.
"""

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
    rows = num_heads // num_kv_heads * max_q_len
    tiles = batch_size * num_kv_heads * -(-rows // ROWS_PER_TILE)
    tiles_per_sm = 1 if head_dim_v > 256 else 2  # an MLA tile fills the shared memory of an SM
    wanted = max(1, tiles_per_sm * num_sms // tiles)
    return min(wanted, -(-max_seq_len // MIN_KEYS_PER_SPLIT), MAX_SPLITS)


def partial_bytes(rows: int, num_splits: int, head_dim_v: int) -> int:
    """Bytes of the partial results: per row and split one fp32 vector and one fp32 LSE."""
    return 4 * rows * num_splits * (head_dim_v + 1)
