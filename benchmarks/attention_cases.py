"""What `benchmarks.attention` measures, and what it aims at: data alone, without torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Literal


@dataclass(frozen=True)
class Case:
    """One shape of decode attention with a bf16 query.

    `kv_heads` 0 stands for MLA (latent 512, rope 64); `varied`: lengths from `q_len` to `length`. `kv_dtype`
    fp8 is e4m3 with a scale. `window` counts the keys left of the query's own that stay visible, -1: all.
    """

    heads: int
    kv_heads: int
    batch: int
    length: int
    page_size: int
    q_len: int
    varied: bool = False
    layout: Literal["HND", "NHD"] = "HND"
    kv_dtype: Literal["bf16", "fp8"] = "bf16"
    window: int = -1
    sinks: bool = False

    @staticmethod
    def of(record: dict[str, Any]) -> Case:
        """The case of a record of a results file; what older files do not say has its default."""
        known = {field.name for field in fields(Case)}
        return Case(**{name: value for name, value in record["case"].items() if name in known})

    @property
    def family(self) -> Literal["MLA", "GQA"]:
        return "MLA" if self.kv_heads == 0 else "GQA"

    @property
    def head_dim(self) -> int:
        return 576 if self.kv_heads == 0 else 128

    @property
    def head_dim_v(self) -> int:
        return 512 if self.kv_heads == 0 else 128

    @property
    def softmax_scale(self) -> float:
        return 1 / math.sqrt(192 if self.kv_heads == 0 else 128)

    @property
    def options(self) -> list[str]:
        """What the shape alone does not say, in words."""
        return [
            *(["fp8 KV"] if self.kv_dtype == "fp8" else []),
            *([f"window {self.window}"] if self.window >= 0 else []),
            *(["sinks"] if self.sinks else []),
        ]

    def __str__(self) -> str:
        """As `--cases` matches it and tables name it: `MLA 16 heads, B32, 8192 keys, page 64, q1, fp8 KV`."""
        heads = str(self.heads) if self.family == "MLA" else f"{self.heads}/{self.kv_heads}"
        keys = f"1 to {self.length}" if self.varied else str(self.length)
        layout = ["NHD"] if self.layout == "NHD" else []
        shape = [f"B{self.batch}", f"{keys} keys", f"page {self.page_size}", f"q{self.q_len}"]
        return ", ".join([f"{self.family} {heads} heads", *shape, *layout, *self.options])

    def keys_read(self, length: int) -> int:
        """Keys of a request of `length` tokens that at least one of its query tokens sees."""
        return length if self.window < 0 else min(length, self.window + self.q_len)

    def pairs(self, length: int) -> int:
        """Pairs of a query token and a key that it sees, of a request of `length` tokens."""
        seen = range(length - self.q_len + 1, length + 1)
        return sum(seen) if self.window < 0 else sum(min(keys, self.window + 1) for keys in seen)

    def kv_bytes(self, length: int) -> int:
        """Bytes of the visible keys and values of a request of `length` tokens, once."""
        row = self.head_dim if self.kv_heads == 0 else 2 * self.kv_heads * self.head_dim
        return self.keys_read(length) * row * (1 if self.kv_dtype == "fp8" else 2)

    def flop(self, length: int) -> int:
        """Multiplications and additions of both products over the visible keys of a request."""
        return 2 * self.pairs(length) * self.heads * (self.head_dim + self.head_dim_v)


@dataclass(frozen=True)
class Aim:
    """The fastest kernel of ours takes at most `ratio` of the time of `rival` in the same run ("FlashInfer": its
    fastest kernel), or reaches `of_floor`: one of the two is given.
    """

    case: Case
    ratio: float | None = None
    rival: str = "FlashInfer"
    of_floor: float | None = None


AIMS = [
    Aim(Case(16, 0, 32, 8192, 64, 1), ratio=80 / 83, rival="FlashInfer fa3"),
    Aim(Case(16, 0, 32, 8192, 64, 4), ratio=91 / 92, rival="FlashInfer fa3"),
    Aim(Case(128, 0, 32, 8192, 64, 1), ratio=135 / 140, rival="FlashInfer fa3"),
    Aim(Case(16, 0, 1, 32768, 64, 1), ratio=27 / 49, rival="FlashInfer fa3"),
    Aim(Case(16, 0, 64, 8192, 64, 1, varied=True), of_floor=0.75),
    Aim(Case(64, 8, 32, 8192, 32, 1), ratio=1.0),
    Aim(Case(64, 8, 32, 8192, 32, 4), ratio=246 / 293, rival="FlashInfer XQA"),
    Aim(Case(64, 8, 64, 8192, 32, 1, varied=True), of_floor=0.87),
]

CASES = [
    *(aim.case for aim in AIMS),
    Case(16, 0, 32, 8192, 64, 1, kv_dtype="fp8"),
    Case(16, 0, 32, 8192, 32, 1),
    Case(16, 0, 32, 8192, 16, 1),
    Case(64, 8, 32, 8192, 32, 1, kv_dtype="fp8"),
    Case(64, 8, 32, 8192, 32, 4, kv_dtype="fp8"),
    Case(64, 8, 32, 8192, 32, 1, window=1024, sinks=True),
    Case(64, 8, 64, 8192, 32, 4, varied=True),
    Case(128, 0, 1, 32768, 64, 1),
    Case(128, 0, 128, 4096, 64, 1),
    Case(16, 0, 128, 4096, 64, 1),
    Case(16, 0, 16, 2048, 64, 1),
    Case(128, 0, 16, 4096, 64, 4, varied=True),
    Case(64, 8, 1, 32768, 32, 1),
    Case(64, 8, 16, 2048, 32, 1),
    Case(64, 8, 128, 4096, 32, 1),
    Case(64, 8, 32, 8192, 16, 1, layout="NHD"),
]
"""In the order of their weight: a run that is cut short has the first ones. Those with an aim lead."""
