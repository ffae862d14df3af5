"""The kernels compile for Hopper without a GPU, and into what they were written for.

Runs where Triton is installed, with or without a GPU (torch's builds for CPUs do not bring it).
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from gpu_tests.reference import sass, select

pytestmark = [
    pytest.mark.suite("attention-reference", gpus=0, est="30s"),
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None, reason="needs triton, which compiles for GPUs that are not here"
    ),
]

SHARED_BYTES = 227 * 1024
"""What one CTA of a Hopper GPU can have."""

MOST_SPILLS = {
    "Gluon": 8,
    "Gluon, runs": 48,
    "Gluon over fp8": 16,
    "Gluon over fp8, runs": 112,
    "Triton": 256,
    "Triton, runs": 440,
}
"""Local-memory instructions in a kernel. The Gluon kernels were written not to have any; with small pages, and on
the balanced grid, they keep a few numbers of their run there, outside of the loop over blocks. The MLA kernel over
fp8 has a block of keys in registers: on the balanced grid with a draft mask its scores do without some. The portable
tile of 64 MLA rows has an accumulator that leaves no register free.
"""


@pytest.fixture(scope="module")
def compiled() -> dict[str, Any]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "gpu_tests.reference.offline"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def _has_few_rows(launch: str) -> bool:
    """Whether it has up to 16 rows, for which MLA, and GQA over fp8, have kernels of their own."""
    if "4 tokens" in launch:
        return launch.startswith(("MLA 4 heads", "GQA 32 to 8 heads"))
    return launch.startswith(("MLA 16 heads", "MLA 4 heads")) or (launch.startswith("GQA") and "over fp8" in launch)


def test_the_installed_triton_is_one_that_the_gluon_kernel_was_run_with(compiled: dict[str, Any]) -> None:
    # Gluon is experimental, and its functions are renamed between minor versions. Run the suite on a Hopper GPU
    # with the new version, then name it in `select.GLUON_TRITON`.
    assert compiled["triton"].startswith(select.GLUON_TRITON)


def test_no_kernel_spills_more_than_its_bound_or_needs_more_memory_than_there_is(compiled: dict[str, Any]) -> None:
    for launch, kernels in compiled["launches"].items():
        for kernel in kernels:
            family = launch.split(" in ")[1].split(",")[0] + (", runs" if "runs" in launch else "")
            assert kernel["spills"] <= MOST_SPILLS[family], (launch, kernel)
            assert kernel["shared_bytes"] <= SHARED_BYTES, (launch, kernel)


def test_the_gluon_kernel_is_made_of_the_matrix_instructions_of_its_tile(compiled: dict[str, Any]) -> None:
    # 64 x 64 scores over 576 columns are 36 x m64n64k16; 64 x 512 outputs over 64 keys, in two warp groups of
    # 256 columns each, are 2 x 4 x m64n128k16 in the one program text. 64 x 64 scores over 128 columns are 8 x
    # m64n64k16, 64 x 128 outputs over 64 keys 4 x m64n128k16, or twice as many of half the width.
    # With up to 16 rows of MLA, 64 keys x 16 rows over 576 columns are 36 x m64n16k16, 512 columns x 16 rows over 64
    # keys 8 x 4.
    counts = {launch: kernels[0]["hgmma"] for launch, kernels in compiled["launches"].items() if "Gluon" in launch}
    assert {launch.split()[0] for launch in counts} == {"MLA", "GQA"}
    for launch, count in counts.items():
        mla = 36 + (8 * 4 if _has_few_rows(launch) else 8)
        assert count == (mla if launch.startswith("MLA") else 8 + 8 if "over fp8" in launch else 8 + 4), launch


def test_no_loop_overwrites_an_operand_that_was_loaded_in_front_of_it(compiled: dict[str, Any]) -> None:
    for launch, kernels in compiled["launches"].items():
        assert [kernel["stale_operands"] for kernel in kernels] == [0] * len(kernels), launch


def test_no_tile_is_given_back_while_it_may_still_be_read(compiled: dict[str, Any]) -> None:
    for launch, kernels in compiled["launches"].items():
        assert [kernel["unfinished_loads"] for kernel in kernels] == [0] * len(kernels), launch


def test_no_role_writes_to_registers_that_it_gave_away(compiled: dict[str, Any]) -> None:
    for launch, kernels in compiled["launches"].items():
        assert [kernel["registers_beyond"] for kernel in kernels] == [0] * len(kernels), launch


def test_each_role_keeps_its_place_in_a_run_from_piece_to_piece(compiled: dict[str, Any]) -> None:
    # The place in the line and that in the ring of tiles. Without runs there is one piece, and nothing to keep.
    launches = {name: of for name, of in compiled["launches"].items() if "Gluon" in name and "runs" in name}
    for launch, (kernel, _) in launches.items():
        written, compiled_to = kernel["carried"]
        gqa, fp8, few = launch.startswith("GQA"), "over fp8" in launch, _has_few_rows(launch)
        two_roles = (gqa and few) or (not fp8 and (gqa or few))
        assert compiled_to == written == [2] * (2 if two_roles else 3), launch


def test_mla_over_fp8_reads_all_keys_in_loads_of_16_bytes(compiled: dict[str, Any]) -> None:
    # Two keys a thread and panel: 9 panels of the first block of a piece, and 9 of each one that follows.
    launches = [(launch, kernels) for launch, kernels in compiled["launches"].items() if "over fp8" in launch]
    counts = {kernels[0]["wide_loads"] for launch, kernels in launches if launch.startswith("MLA 128")}
    assert counts == {2 * (9 + 9)}


def test_a_launch_is_followed_by_a_combine_unless_it_has_one_split(compiled: dict[str, Any]) -> None:
    for launch, kernels in compiled["launches"].items():
        assert len(kernels) == (1 if "one split" in launch else 2), launch


LOOP = """
  LDSM.16.M88.4 R88, [R23+UR9+0xc000] ;
.L_x_1:
  {weights_first}
  HGMMA.64x64x16.F32.BF16 R24, R88, gdesc[UR4], RZ, !UPT ;
  FMUL R{scaled}, R24, UR22 ;
  @!P1 STS.128 [R88+UR5], R40 ;
  @P0 BRA `(.L_x_1) ;
"""


@pytest.mark.parametrize(
    ("weights_first", "scaled", "stale"),
    [("NOP ;", 90, 1), ("NOP ;", 92, 0), ("F2FP.BF16.F32.PACK_AB R90, R89, R91 ;", 90, 0)],
    ids=["overwritten behind its use", "untouched", "made anew in each turn"],
)
def test_a_stale_operand_is_one_that_is_written_behind_its_use_alone(
    weights_first: str, scaled: int, stale: int
) -> None:
    assert sass.stale_operands(LOOP.format(weights_first=weights_first, scaled=scaled)) == stale


MEET = "BAR.SYNC.DEFER_BLOCKING 0x2, 0x80 ;"
GIVE_BACK = "@!P1 SYNCS.ARRIVE.TRANS64.A1T0 RZ, [R46+UR6+0x18120], RZ ;"
CONVERT = "F2FP.F16.E4M3.UNPACK_B R36, R39.H1 ;"
FENCE = "MEMBAR.ALL.CTA ;\nFENCE.VIEW.ASYNC.S ;"


@pytest.mark.parametrize(
    ("behind_the_load", "unfinished"),
    [
        ([MEET, GIVE_BACK, CONVERT], 1),
        ([MEET, CONVERT, GIVE_BACK], 1),
        ([GIVE_BACK, CONVERT], 1),
        ([CONVERT, MEET, GIVE_BACK], 0),
        ([FENCE, MEET, GIVE_BACK], 0),
        ([MEET, CONVERT, MEET, GIVE_BACK], 0),
        ([MEET, "@!P3 SYNCS.ARRIVE.TRANS64 RZ, [UR27+0x18100], R13 ;", CONVERT], 0),
    ],
    ids=[
        "used behind the arrival", "used by the warp that arrives alone", "a role of one warp",
        "used in front", "fenced", "used before the warps meet again", "bytes are expected",
    ],
)  # fmt: skip
def test_a_load_is_unfinished_until_all_warps_have_used_it_or_have_a_fence(
    behind_the_load: list[str], unfinished: int
) -> None:
    lines = ["LDS.64 R10, [R16+UR6] ;", "F2FP.F16.E4M3.UNPACK_B R8, R10 ;", "LDS.64 R38, [R16+UR6+0x1800] ;"]
    assert sass.unfinished_loads("\n".join([*lines, *behind_the_load])) == unfinished


@pytest.mark.parametrize(("last", "beyond"), [(52, 0), (53, 1)])
def test_registers_beyond_are_counted_against_the_role_that_writes_them(last: int, beyond: int) -> None:
    roles = f"""
  USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0x38 ;
  LDS.128 R{last}, [R16+UR6] ;
  USETMAXREG.DEALLOC.CTAPOOL 0x18 ;
  S2R R23, SR_TID.X ;
  USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0xa0 ;
  HGMMA.64x64x16.F32 R128, gdesc[UR8], RZ, !UPT ;
"""
    assert sass.registers_beyond(roles) == beyond


def test_a_loop_that_lost_its_values_carries_none() -> None:
    from gpu_tests.reference.offline import carried

    source = (
        "%done_0:2 = scf.for %turn = %0 to %1 step %2 iter_args(%start_1 = %start, %done_2 = %done) -> (i32, i32) {"
    )
    assert carried(source) == [2]
    assert carried("scf.for %turn = %c0_i32 to %arg47 step %c1_i32_90  : i32 {") == [0]
    assert carried("scf.for %done = %c0_i32 to %arg47 step %c1_i32_90  : i32 {") == []
