"""Forcing a kernel behind the contract: it is the one that runs, or the world is said not to be its own.

Also what the contract compares bit for bit on a balanced grid, shown with a kernel in PyTorch that cuts its keys as
that grid does.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from gpu_tests.backends import default_backend
from gpu_tests.backends.example_backend import MyBackend
from gpu_tests.backends.protocol import Backend, Batch, Inputs, World
from gpu_tests.contract.__main__ import main
from gpu_tests.contract.checks import judge
from gpu_tests.contract.drive import run
from gpu_tests.contract.isolated import Isolated
from gpu_tests.contract.kernels import KernelChoice, NotApplicable, demand_fit
from gpu_tests.contract.scenario import WORLDS, Scenario
from gpu_tests.contract.truth import make_world
from gpu_tests.contract.verify import Verdict, isolated_verdict, verdict
from gpu_tests.faults.staged_kernel import Launch, StagedKernel
from gpu_tests.graphs import CpuGraphDriver
from gpu_tests.reference import select, torch_decode

pytestmark = pytest.mark.suite("attention-contract", gpus=0, est="15s")

CPU = CpuGraphDriver()
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def judged(text: str, kernel: str, grid: str = "split", factory: Any = default_backend) -> Verdict:
    return verdict(Scenario.parse(text), factory, CPU, kernel=KernelChoice(kernel, grid))


@pytest.mark.parametrize("world", ["mla-target", "mha-window", "mla-extend-packed", "mha-tree"])
def test_the_contract_holds_with_the_pytorch_kernel_forced(world: str) -> None:
    assert judged(world, "torch").report == f"{world}#0: holds"
    assert judged(f"{world}+everything", "torch").headline is None


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton, in which the kernels are written")
@pytest.mark.parametrize(
    ("scenario", "grid"),
    [
        ("mla-target+everything", "split"),
        ("mha-draft", "balanced"),
        *(
            pytest.param(scenario, grid, marks=pytest.mark.slow)
            for scenario in ("mla-target", "mla-extend-packed", "mla-fp8", "mha-target+everything")
            for grid in ("split", "balanced")
        ),
        pytest.param("mha-window", "split", marks=pytest.mark.slow),
    ],
)
def test_the_contract_holds_with_the_gluon_kernels_on_the_emulation(scenario: str, grid: str) -> None:
    from gpu_tests.reference.gluon_interpreter import interpreted

    with interpreted() as kernels:
        assert judged(scenario, "gluon", grid).report == f"{scenario}#0: holds"
    assert sum(kernel.programs for kernel in kernels) > 0


@pytest.mark.slow
@pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1, and a NumPy below 2.4 for Triton's interpreter")
@pytest.mark.parametrize("grid", ["split", "balanced"])
@pytest.mark.parametrize("scenario", ["mha-draft", "mla-extend-packed+everything"])
def test_the_contract_holds_with_the_triton_kernel_on_the_emulation(scenario: str, grid: str) -> None:
    assert judged(scenario, "triton", grid).report == f"{scenario}#0: holds"


@pytest.mark.parametrize(
    ("world", "kernel", "grid", "reason"),
    [
        ("mla-target", "gluon", "split", "query: got device cpu, must be Hopper"),
        ("mla-target", "torch", "balanced", "has no balanced grid"),
        ("mla-target", "auto", "balanced", "has no balanced grid"),
        ("mha-window", "triton", "balanced", "must be split with a window"),
        ("mla-target", "triton", "split", "query: got device cpu, must be on a GPU in Triton"),
    ],
)
def test_a_kernel_that_cannot_run_a_world_says_why(
    world: str, kernel: str, grid: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1" if "window" in world else "0")
    found = judged(world, kernel, grid)
    assert reason in found.not_applicable
    assert found.not_applicable.startswith(f"kernel {kernel}, grid {grid}: ")
    assert found == Verdict(not_applicable=found.not_applicable)


def test_the_pytorch_kernel_has_no_place_in_a_cuda_graph() -> None:
    world = make_world(replace(WORLDS["mla-target"], kernel="torch"), CPU.device)
    with pytest.raises(NotApplicable, match="reads its metadata on the host"):
        demand_fit(replace(world, device=torch.device("cuda")), CPU.to_host)


def test_the_forced_kernel_is_the_one_that_runs_whatever_an_engine_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_world(replace(WORLDS["mha-target"], kernel="torch"), CPU.device)
    launches = []
    real = torch_decode.paged_decode_torch
    monkeypatch.setattr(torch_decode, "paged_decode_torch", lambda *args: (launches.append(1), real(*args)))
    pages, lengths = torch.zeros(1, 6, dtype=torch.int32), torch.ones(1, dtype=torch.int32)
    workspace = torch.zeros(1 << 16, dtype=torch.uint8)
    arguments = (torch.zeros(1, 4, 16), world.kv.kv_cache(), workspace, pages, lengths, 96)
    world.kernels.decode(*arguments, kv_layout="NHD", backend="gluon")
    assert launches == [1]
    # Without a kernel in the world the engine's own choice goes through.
    free = make_world(WORLDS["mha-target"], CPU.device)
    with pytest.raises(ValueError, match="Gluon"):
        free.kernels.decode(*arguments, kv_layout="NHD", backend="gluon")


def test_worlds_have_the_heads_of_a_model_when_gluon_is_forced_and_stay_what_they_are() -> None:
    spec = WORLDS["mla-extend-packed"]
    adapted = KernelChoice("gluon").adapt(spec)
    assert (adapted.kv_lora_rank, adapted.qk_rope_head_dim, adapted.dtype) == (512, 64, "bfloat16")
    assert (adapted.modes, adapted.runner, adapted.num_draft_tokens) == (spec.modes, spec.runner, spec.num_draft_tokens)
    assert KernelChoice("gluon").adapt(WORLDS["mha-long"]) == replace(
        WORLDS["mha-long"], kernel="gluon", dtype="bfloat16", num_q_heads=16, num_kv_heads=2, head_dim=128
    )
    assert KernelChoice("gluon").adapt(WORLDS["mla-deepseek-128"]).num_q_heads == 128
    assert KernelChoice("triton").adapt(spec) == replace(spec, kernel="triton")


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton, whose kernels are asked")
@pytest.mark.parametrize("grid", ["split", "balanced"])
def test_on_hopper_gluon_runs_every_world_but_those_that_it_names(grid: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "capability_of", lambda device: (9, 0))
    monkeypatch.setattr(select, "triton_version", lambda: "3.6.0")
    for kernel in ("gluon_mla", "gluon_gqa"):  # what they ask for is in front of the launch
        module = importlib.import_module(f"gpu_tests.reference.{kernel}")
        monkeypatch.setattr(module, "paged_decode", lambda out, *_: out.zero_())
    left_out = {}
    for name, spec in WORLDS.items():
        try:
            demand_fit(make_world(KernelChoice("gluon", grid).adapt(spec), CPU.device), CPU.to_host)
        except NotApplicable as reason:
            left_out[name] = str(reason)
    expected = {"mha-window": "must be split with a window"} if grid == "balanced" else {}
    assert left_out.keys() == expected.keys()
    assert all(why in left_out[name] for name, why in expected.items())


def test_a_backend_that_calls_no_kernel_of_the_plug_cannot_be_forced() -> None:
    class Own(MyBackend):
        def forward(self, step: int, inputs: Inputs, batch: Batch) -> Tensor:
            return inputs.q * 1.0

    assert "launches no kernel of world.kernels" in judged("mha-target", "torch", factory=Own).not_applicable


def test_the_command_says_what_does_not_apply_and_fails_if_nothing_did(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mha-target", "--kernel", "gluon"]) == 1
    printed = capsys.readouterr()
    assert printed.out.startswith("mha-target#0: not applicable: kernel gluon, grid split: ")
    assert "nothing was tested" in printed.err
    assert main(["mha-target", "mla-target", "--kernel", "torch"]) == 0


@pytest.mark.parametrize(
    ("words", "messages"),
    [
        (
            "mla-targt mha-target+evrything mla=target --kernel tritn --grid even --driver cuda --backend nowhere:make",
            [
                "no world 'mla-targt': did you mean 'mla-target'?",
                "no perturbation 'evrything': did you mean 'everything'?",
                "'mla=target' is not WORLD",
                "--kernel 'tritn': did you mean 'triton'? it is one of auto, gluon, triton, torch",
                "--grid 'even': it is one of split, balanced",
                "--driver 'cuda': it needs a GPU, and torch sees none",
                "--backend 'nowhere:make': No module named 'nowhere'",
            ],
        ),
        ("mla-target --driver abacus", ["--driver 'abacus': it is one of cpu, cuda"]),
        ("--kernel tritn", ["no SCENARIO is given", "--kernel 'tritn'"]),
        ("--kernel torch", ["no SCENARIO is given, so nothing would be tested; see --list"]),
        ("--list --grid even", ["--grid 'even'"]),
    ],
)
def test_a_wrong_call_names_all_that_is_wrong_and_tests_nothing(
    words: str, messages: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    printed = capsys.readouterr()
    assert ended.value.code == 2
    assert printed.out == ""
    assert [message for message in messages if message not in printed.err] == []


def test_the_worlds_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    printed = capsys.readouterr().out
    assert all(f"  {world}\n" in printed for world in WORLDS)


def test_a_report_reproduces_with_the_kernel_and_in_a_process_of_its_own_as_well(isolated: Isolated) -> None:
    path, kernel = "gpu_tests.faults.seeds:CaptureUnfilledLengths", KernelChoice("torch")
    found = isolated_verdict(isolated, Scenario("mha-draft"), path, "cpu", kernel)
    assert found.headline == "kernel_lengths"
    assert found.report.endswith(f"mha-draft#0' --backend {path} --kernel torch --driver cpu")
    gluon = isolated_verdict(isolated, Scenario("mha-draft"), path, "cpu", KernelChoice("gluon", "balanced"))
    assert gluon.not_applicable.startswith("kernel gluon, grid balanced: ")


class CutByAllLengths(StagedKernel):
    """Two parts as a balanced grid makes them: where the keys of a request are cut follows from the lengths of all."""

    def attend(self, scores: Tensor, visible: Tensor, values: Tensor, at: Launch) -> Tensor:
        left = (at.key < 3 + self.cut(at) % 17)[:, None]
        outs, lses = zip(*(self.partial(scores, visible & part, values, at) for part in (left, ~left)), strict=True)
        return self.merge(torch.stack(outs), torch.stack(lses), at)

    def cut(self, at: Launch) -> Tensor:
        return at.length.sum()


class CutByContents(CutByAllLengths):
    """What other requests contain decides: no grid may do that."""

    def cut(self, at: Launch) -> Tensor:
        return at.query.abs().sum().long()


def test_the_lengths_that_a_kernel_saw_are_those_of_each_replay() -> None:
    evidence = run(Scenario.parse("mha-draft+ragged_lengths"), default_backend, CPU)
    for record in evidence.replays:
        seen = [call["seq_lens"].tolist() for call in record.replay.calls]
        assert seen == [[row.end + step for row in record.replay.rows] for step in range(3)]


@pytest.mark.parametrize(
    ("kernel", "scenario", "grid", "check"),
    [
        (CutByAllLengths, "mha-target+ragged_lengths", "split", "neighbours"),
        (CutByAllLengths, "mha-target+ragged_lengths+twins", "balanced", None),
        (CutByContents, "mha-target", "split", "neighbours"),
        (CutByContents, "mha-target", "balanced", "neighbours"),
    ],
)
def test_bits_may_depend_on_other_lengths_on_a_balanced_grid_and_on_nothing_else(
    kernel: type[StagedKernel], scenario: str, grid: str, check: str | None
) -> None:
    def factory(world: World) -> Backend:
        return default_backend(replace(world, kernels=world.kernels.with_kernels(kernel().mha, kernel().mla)))

    evidence = run(Scenario.parse(scenario), factory, CPU)
    divided = replace(evidence.scenario, adapt=lambda spec: replace(spec, grid=grid))
    checks = {finding.check for finding in judge(replace(evidence, scenario=divided))}
    assert checks == ({check} if check else set())
