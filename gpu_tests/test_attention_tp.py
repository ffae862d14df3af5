"""Attention over several ranks, the all-reduce inside the captured graph.

NCCL and real CUDA graphs on 2, 4 and 8 ranks where there are as many GPUs; gloo and the emulation on 2 ranks
everywhere.  All cases of one team run in one launch.  Each right program must pass on every rank; of each faulty one
the suite must name the rank, and where it went wrong.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpu_tests.backends.protocol import Inputs
from gpu_tests.contract.scenario import WORLDS
from gpu_tests.contract.verify import load_factory
from gpu_tests.parallel.agreement import LiveRow, metadata_differences, reduced_differences
from gpu_tests.parallel.cases import CASES, FAULTS, Blame, Case
from gpu_tests.parallel.launch import DEFAULT_BACKEND, REPOSITORY, Team, run, supervise
from gpu_tests.parallel.report import CaseResult, Exit, Finding, RankReport, Stop, diagnose
from gpu_tests.parallel.split import CannotSplit, Share, next_inputs, output_projection, project
from gpu_tests.parallel.suite import launches, problem, teams

pytestmark = pytest.mark.suite("attention-tp", gpus=0, est="30s")

Results = Callable[[Team, str], CaseResult]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        pairs = [
            (team, case)
            for team in teams(metafunc.config.getoption("--driver"))
            for case in CASES.values()
            if team.device in case.devices
        ]
        metafunc.parametrize(("team", "case"), pairs, ids=[f"{team}-{case.name}" for team, case in pairs])


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest) -> Results:
    """`results(team, case)`: launches a team at its first case, with all of its cases that were selected."""
    backend = request.config.getoption("--backend") or DEFAULT_BACKEND
    try:
        load_factory(backend)
    except ValueError as error:
        raise pytest.UsageError(f"--backend {error}") from error
    selected = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    done: dict[tuple[Team, str], CaseResult] = {}

    def result(team: Team, case: str) -> CaseResult:
        if (team, case) not in done:
            gpus = torch.cuda.device_count()
            _say(
                request.config,
                f"attention-tp: {team.backend} on {team.size} ranks (NCCL wants 2 GPUs, torch sees {gpus})",
            )
            names = [p["case"].name for p in selected if p.get("team") == team and "case" in p]
            for cases in launches(team, names):
                done.update({(team, name): found for name, found in run(team, cases, backend).items()})
        return done[team, case]

    return result


def _say(config: pytest.Config, line: str) -> None:
    """A line in pytest's own output, past the capture."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    capture = config.pluginmanager.get_plugin("capturemanager")
    if reporter is not None and capture is not None:
        with capture.global_and_fixture_disabled():
            reporter.ensure_newline()
            reporter.write_line(line)


def test_a_right_program_passes_and_a_faulty_rank_is_named(
    team: Team, case: Case, results: Results, pytestconfig: pytest.Config
) -> None:
    result = results(team, case.name)
    if result.unsupported and not pytestconfig.getoption("--backend"):
        pytest.fail(f"our own backend must serve every world: {result.unsupported}")
    if result.unsupported:
        pytest.skip(f"the backend does not serve this world: {result.unsupported}")
    if wrong := problem(case, result, team.size):
        again = f"python -m gpu_tests.parallel --collectives {team.backend} --world-size {team.size} {case.name}"
        pytest.fail(f"{wrong}\n  again: {again}", pytrace=False)


# -- which teams run -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "gpus", "names"),
    [
        ("all", 0, ["gloo-2"]),
        ("all", 1, ["gloo-2"]),
        ("cuda", 1, ["gloo-2"]),
        ("all", 2, ["nccl-2", "gloo-2"]),
        ("cuda", 2, ["nccl-2"]),
        ("cpu", 8, ["gloo-2"]),
        ("cuda", 8, ["nccl-2", "nccl-4", "nccl-8"]),
    ],
)
def test_nccl_runs_on_as_many_ranks_as_there_are_gpus(wanted: str, gpus: int, names: list[str]) -> None:
    assert [str(team) for team in teams(wanted, gpus)] == names


def test_a_hang_has_its_gpus_for_itself() -> None:
    names = list(CASES)
    hangs = [case.name for case in FAULTS if case.hangs]
    assert len(launches(Team("gloo", 2), names)) == 1
    first, *alone = launches(Team("nccl", 2), names)
    assert [list(cases) for cases in alone] == [[name] for name in hangs]
    assert set(first) == set(names) - set(hangs)


def test_an_accused_innocent_rank_is_a_problem() -> None:
    case = replace(CASES["others-projection"], blame=Blame("partial"))
    right, innocent = Finding("partial", 1, "round 0", "wrong"), Finding("kv", 0, "round 0", "wrong")
    assert problem(case, CaseResult("c", (right,)), 2) == ""
    assert "innocent" in problem(case, CaseResult("c", (right, innocent)), 2)
    assert "is not among" in problem(case, CaseResult("c"), 2)


# -- what a rank owns ----------------------------------------------------------------------------------------------


@given(ranks=st.integers(1, 8), heads=st.integers(1, 6), kv=st.sampled_from([1, 2, 4, 8, 3]), mla=st.booleans())
def test_every_query_head_has_one_owner_who_keeps_its_kv_head(ranks: int, heads: int, kv: int, mla: bool) -> None:
    spec = replace(WORLDS["mla-target" if mla else "mha-target"], num_q_heads=heads * ranks * kv, num_kv_heads=kv)
    try:
        shares = [Share.of("heads", spec, rank, ranks) for rank in range(ranks)]
    except CannotSplit:
        assert not mla
        assert kv % ranks
        assert ranks % kv
        return
    owned = [head for share in shares for head in range(spec.num_q_heads)[share.heads]]
    assert owned == list(range(spec.num_q_heads))
    kv_heads = 1 if mla else kv
    for share in shares:
        needed = {head // (spec.num_q_heads // kv_heads) for head in range(spec.num_q_heads)[share.heads]}
        assert needed == set(range(kv_heads)[share.kv_heads])


def test_heads_that_cannot_be_shared_out_are_refused() -> None:
    spec = replace(WORLDS["mla-target"], num_q_heads=4)
    with pytest.raises(CannotSplit, match="4 query heads over 3 ranks"):
        Share.of("heads", spec, 0, 3)


def test_the_products_of_all_ranks_add_up_to_the_whole() -> None:
    spec = WORLDS["mha-target"]
    weight = output_projection(spec, 24, torch.device("cpu")).double()
    attention = torch.randn(5, spec.num_q_heads, spec.head_dim, dtype=torch.float64)
    shares = [Share.of("heads", spec, rank, 2) for rank in range(2)]
    parts = [project(attention[:, share.heads], weight[share.heads]) for share in shares]
    torch.testing.assert_close(sum(parts), torch.einsum("thd,hdn->tn", attention, weight))


# -- agreement -----------------------------------------------------------------------------------------------------

TRUTH = {
    "seq_lens_k": [20, 40, 1],
    "block_kv_indices": [[7, 3, -1], [5, 9, 8], [0, 0, 0]],
    "cu_seqlens_q": [0, 4, 8, 12],
    "max_seq_len_q": 4,
}
ROWS = [LiveRow(0, "request 11", 2), LiveRow(1, "request 12", 3)]
LIVE_CELLS = [
    *(("seq_lens_k", (row,), row, None) for row in range(3)),
    *(("block_kv_indices", (live.row, column), live.row, column) for live in ROWS for column in range(live.columns)),
    ("cu_seqlens_q", (0,), None, None),
    *(("cu_seqlens_q", (row + 1,), row, None) for row in range(3)),
    ("max_seq_len_q", (), None, None),
]


def _changed(values: dict[str, object], field: str, path: tuple[int, ...]) -> dict[str, object]:
    """A copy with another number in one place."""
    copy = {name: [list(v) if isinstance(v, list) else v for v in x] if isinstance(x, list) else x
            for name, x in values.items()}  # fmt: skip
    if not path:
        return {**copy, field: 99}
    target = copy[field]
    for index in path[:-1]:
        target = target[index]  # type: ignore[index]
    target[path[-1]] = 99  # type: ignore[index]
    return copy


@given(cell=st.sampled_from(LIVE_CELLS), rank=st.integers(0, 2))
def test_one_diverging_number_names_rank_field_row_request_and_column(
    cell: tuple[str, tuple[int, ...], int | None, int | None], rank: int
) -> None:
    field, path, row, column = cell
    published = [_changed(TRUTH, field, path) if r == rank else TRUTH for r in range(3)]
    (finding,) = metadata_differences(published, TRUTH, ROWS, "round 0")
    assert (finding.rank, finding.field, finding.row, finding.column) == (rank, field, row, column)
    assert finding.request == (None if row is None else ["request 11", "request 12", "padding"][row])


def test_entries_past_the_last_page_may_differ() -> None:
    other = _changed(TRUTH, "block_kv_indices", (0, 2))
    assert metadata_differences([TRUTH, other], TRUTH, ROWS, "round 0") == []


def test_a_shorter_tensor_on_one_rank_is_a_difference() -> None:
    shorter = {**TRUTH, "seq_lens_k": [20, 40]}
    (finding,) = metadata_differences([TRUTH, shorter], TRUTH, ROWS, "round 0")
    assert (finding.rank, finding.row) == (1, 2)


def test_the_rank_with_other_bits_than_most_is_named() -> None:
    (finding,) = reduced_differences([[["a", "b"]], [["a", "b"]], [["a", "c"]]], "round 0")
    assert (finding.rank, finding.step) == (2, 0)
    assert "tokens [1]" in finding.message


def test_a_draft_goes_on_from_what_the_layer_returned() -> None:
    given_ = Inputs(torch.zeros(2, 1, 4), torch.ones(2, 3, 4), None)
    after = next_inputs(given_, torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert after.k[1, 2].tolist() == [1.75, 2.0, 1.0, 1.0]
    assert torch.equal(given_.k, torch.ones(2, 3, 4))


# -- what a hang means ---------------------------------------------------------------------------------------------


def _stopped(
    rank: int, entered: tuple[int, ...], left: tuple[int, ...], index: int = 7, waited: str = "x"
) -> RankReport:
    return RankReport("c", rank, 1.0, stop=Stop(index, f"round {index}", waited, 4.0, entered, left))


ENDED = {rank: Exit(0) for rank in range(2)}


def test_a_rank_that_skipped_one_step_of_many_is_named_with_that_step() -> None:
    """The others' all-reduce of step 1 was paired with its step 2, so that they hang one step too late."""
    reports = {0: _stopped(0, (0, 1, 2), (0, 1)), 1: _stopped(1, (0, 2), (0, 2))}
    (finding,) = diagnose("c", reports, ENDED).findings
    assert (finding.check, finding.rank, finding.step, finding.where) == ("hang", 1, 1, "round 7")


def test_the_earliest_phase_is_the_cause() -> None:
    reports = {0: _stopped(0, (0,), (), index=3), 1: _stopped(1, (), (), index=4)}
    (finding,) = diagnose("c", reports, ENDED).findings
    assert finding.where == "round 3"


def test_a_rank_that_crashed_is_the_cause_not_those_that_waited_for_it() -> None:
    crashed = RankReport("c", 1, 1.0, stop=Stop(7, "round 7", "nothing", 4.0, (), (), "KeyError: 'page'"))
    (finding,) = diagnose("c", {0: _stopped(0, (0,), ()), 1: crashed}, ENDED).findings
    assert (finding.check, finding.rank) == ("stopped", 1)
    assert "KeyError" in finding.message


def test_a_hang_that_nobody_is_to_blame_for_shows_who_waited_for_what() -> None:
    reports = {rank: _stopped(rank, (0,), (), waited="the all-reduce of step 0") for rank in range(2)}
    findings = diagnose("c", reports, ENDED).findings
    assert [f.rank for f in findings] == [0, 1]
    assert all("waited 4 s for the all-reduce of step 0" in f.message for f in findings)


def test_a_sum_that_is_wrong_because_of_another_ranks_part_is_not_this_ranks_fault() -> None:
    part = Finding("partial", 1, "round 0", "wrong", step=0, row=2)
    total, other = (Finding("output", 0, "round 0", "wrong", step=0, row=row) for row in (2, 3))
    reports = {0: RankReport("c", 0, 1.0, (total, other)), 1: RankReport("c", 1, 1.0, (part,))}
    assert diagnose("c", reports, ENDED).findings == (other, part)


def test_a_report_survives_json() -> None:
    report = replace(_stopped(0, (0, 1), (0,)), findings=(Finding("kv", 0, "round 0", "wrong", row=1),))
    assert RankReport.from_json(report.to_json()) == report


# -- ranks as processes --------------------------------------------------------------------------------------------


def _python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_rank_that_never_ends_is_killed_and_named(tmp_path: Path) -> None:
    start = time.monotonic()
    exits = supervise([_python("pass"), _python("import time; time.sleep(60)")], tmp_path, limit_s=1, grace_s=1)
    assert time.monotonic() - start < 30
    assert (exits[0].code, exits[1].code) == (0, None)
    (finding,) = diagnose("c", {0: RankReport("c", 0, 1.0)}, exits).findings
    assert (finding.check, finding.rank) == ("lost", 1)
    assert "did not end within 1 s" in finding.message


def test_a_rank_that_dies_is_named_with_its_last_phase_and_words(tmp_path: Path) -> None:
    (tmp_path / "rank1.jsonl").write_text('{"phase": "mla-draft: round 3"}\n{"phase": "torn')
    dies = _python("import os, sys; print('out of memory', flush=True); os.kill(os.getpid(), 9)")
    exits = supervise([_python("import time; time.sleep(60)"), dies], tmp_path, limit_s=60, grace_s=0.2)
    lost = {f.rank: f for f in diagnose("c", {}, exits).findings}
    assert lost[1].where == "mla-draft: round 3"
    assert "exit code -9" in lost[1].message
    assert "out of memory" in lost[1].message


def test_no_rank_outlives_its_parent(tmp_path: Path) -> None:
    rank = f"""
from gpu_tests.parallel.launch import end_with_parent
end_with_parent()
import os, pathlib, time
pathlib.Path({str(tmp_path)!r}, "new").write_text(str(os.getpid()))
pathlib.Path({str(tmp_path)!r}, "new").rename(pathlib.Path({str(tmp_path)!r}, "pid"))
time.sleep(60)
"""
    parent = f"""
import pathlib
from gpu_tests.parallel.launch import supervise
supervise([{_python(rank)!r}], pathlib.Path({str(tmp_path)!r}), 60, 1)
"""
    process = subprocess.Popen(_python(parent), env={**os.environ, "PYTHONPATH": str(REPOSITORY)})
    try:
        _wait_until((tmp_path / "pid").exists)
    finally:
        process.kill()
        process.wait()
    pid = int((tmp_path / "pid").read_text())
    _wait_until(lambda: not _runs(pid))


def _wait_until(condition: Callable[[], bool], limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
