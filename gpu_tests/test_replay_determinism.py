"""Thousands of replays of one graph have the same bits: a race between the parts of a kernel shows in few of them.

A graph is captured on some lengths and replayed on others, changed in place, over outputs and a workspace of NaN: a
part that is read before it is written is then not the right one by luck.  Every replay is compared on the device; the
host reads the number of those that differ once.  On the CPU the emulation runs the same code on few replays.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product

import pytest
import torch
from torch import Tensor

from gpu_tests.graphs import CpuGraphDriver, CudaGraphDriver, GraphDriver, opaque
from gpu_tests.reference.trial import GLUON, HOPPER, Kernel, Launch, Shape, assert_accepted

pytestmark = pytest.mark.suite("attention-reference", gpus=0, est="30s")

ON_GPU = torch.cuda.is_available()
CAPTURES, REPLAYS = 3, 1500

TRITON = Kernel("triton", "cuda", (torch.bfloat16,))
TORCH = Kernel("torch", "cpu", (torch.bfloat16,))

VARIED = tuple(i * 211 % 2999 for i in range(1, 25))
OTHERS = tuple(i * 577 % 2999 for i in range(1, 25))
"""Lengths of 24 requests at capture and at replay: enough for every SM, and no two alike."""

SHORT = tuple(i * 37 % 501 for i in range(90))
OTHER_SHORT = tuple(i * 91 % 400 for i in range(90))
"""Many short ones: programs go from request to request all the time."""


def shape(heads: int, kv_heads: int, q_len: int, page_size: int, grid: str, lengths: str, fp8: bool) -> Shape:
    capture, replay = (SHORT, OTHER_SHORT) if lengths == "short" else (VARIED, OTHERS)
    cache = {"kv_dtype": torch.float8_e4m3fn, "scales": (0.5, 1.75)} if fp8 else {}
    return Shape(heads, kv_heads, page_size, q_len, capture, replay, grid=grid, **cache)  # type: ignore[arg-type]


def case(kernel: Kernel, of: Shape) -> object:
    family = f"mla{of.heads}" if of.mla else f"gqa{of.heads}x{of.kv_heads}"
    cache = "" if of.kv_dtype is None else "-fp8"
    fits, needs = (HOPPER, "a Hopper GPU (sm_90)") if kernel is GLUON else (ON_GPU, "a GPU")
    return pytest.param(
        kernel,
        of,
        id=f"{kernel.backend}-{family}-q{of.q_len}-{of.grid}-{len(of.lengths)}{cache}",
        marks=pytest.mark.skipif(not fits, reason=f"needs {needs}"),
    )


CASES = [
    case(kernel, shape(*sizes, grid, lengths, fp8))
    for grid, lengths, fp8 in product(("split", "balanced"), ("varied", "short"), (False, True))
    for kernel, *sizes in [
        (GLUON, 16, 0, 1, 64),
        (GLUON, 16, 0, 4, 64),
        (GLUON, 128, 0, 1, 64),
        (GLUON, 64, 8, 1, 32),
        (GLUON, 64, 8, 4, 32),
        (TRITON, 16, 0, 1, 64),
        (TRITON, 64, 8, 4, 32),
    ]
    if kernel is GLUON or (lengths, fp8) == ("varied", False)
]


def bits(t: Tensor) -> Tensor:
    return t.view({2: torch.int16, 4: torch.int32}[t.element_size()])


def differing(replay: Callable[[], None], launch: Launch, expected: tuple[Tensor, Tensor], times: int) -> int:
    """In how many of `times` replays any bit of the output or the LSE differs from `expected`."""
    count = torch.zeros((), dtype=torch.int64, device=launch.out.device)
    for _ in range(times):
        for buffer in (launch.out, launch.lse, launch.workspace):
            buffer.fill_(math.nan)
        replay()
        wrong = [(bits(got) != bits(want)).any() for got, want in zip((launch.out, launch.lse), expected, strict=True)]
        count += wrong[0] | wrong[1]
    return int(count)


def demand_equal_replays(launch: Launch, driver: GraphDriver, captures: int, replays: int) -> None:
    """Fail if a replay of any of the captures differs from an eager launch, or if that is not what the oracle says."""
    launch.fill(launch.shape.replay_lengths, seed=1)
    expected = launch.run()
    assert_accepted(launch, expected)
    for capture in range(captures):
        launch.fill(launch.shape.lengths, seed=0)
        launch.run()  # compiles what these lengths need: that cannot happen inside a capture
        graph = driver.capture(launch.launch, warmup=0)
        launch.fill(launch.shape.replay_lengths, seed=1)
        count = differing(graph.replay, launch, expected, replays)
        assert count == 0, f"capture {capture}: {count} of {replays} replays differ from an eager launch"


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "of"), CASES)
def test_every_replay_has_the_bits_of_an_eager_launch(kernel: Kernel, of: Shape) -> None:
    demand_equal_replays(Launch(kernel, of, torch.bfloat16), CudaGraphDriver(poison=False), CAPTURES, REPLAYS)


SMALL = Shape(4, 2, 16, 2, (40, 3, 17), (5, 33, 16), head_dim=16)


@dataclass
class Disturbed(Launch):
    """A launch after which `disturb(out, lse)` runs as part of the kernel, in the launches numbered `bad` alone."""

    bad: tuple[int, ...] = ()
    disturb: Callable[[Tensor, Tensor], None] = lambda out, lse: None
    launches: int = field(default=0, init=False)

    def launch(self, **options: object) -> None:
        @opaque
        def after(out: Tensor, lse: Tensor) -> None:
            if self.launches in self.bad:
                self.disturb(out, lse)
            self.launches += 1

        super().launch(**options)
        after(self.out, self.lse)


def one_bit(out: Tensor, lse: Tensor) -> None:
    bits(out)[1, 2, 3] ^= 1


def one_bit_of_the_lse(out: Tensor, lse: Tensor) -> None:
    bits(lse)[0, 0] ^= 1


def one_row_unwritten(out: Tensor, lse: Tensor) -> None:
    out[0, 0] = math.nan


def test_replays_on_the_emulation_have_the_bits_of_an_eager_launch() -> None:
    demand_equal_replays(Launch(TORCH, SMALL, torch.bfloat16), CpuGraphDriver(), captures=2, replays=5)


@pytest.mark.parametrize("disturb", [one_bit, one_bit_of_the_lse, one_row_unwritten])
def test_one_replay_that_differs_is_counted(disturb: Callable[[Tensor, Tensor], None]) -> None:
    # Two eager launches and the capture come first: 3 and 6 are the first and the fourth replay.
    launch = Disturbed(TORCH, SMALL, torch.bfloat16, bad=(3, 6), disturb=disturb)
    with pytest.raises(AssertionError, match="capture 0: 2 of 5 replays differ"):
        demand_equal_replays(launch, CpuGraphDriver(), captures=1, replays=5)
