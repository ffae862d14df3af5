"""Calls in a child process: results, errors, deaths and limits each come back as what they are."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Any

import pytest

from gpu_tests.contract.isolated import ContextLost, Isolated, NoAnswer
from gpu_tests.contract.scenario import Scenario
from gpu_tests.contract.verify import isolated_verdict, judge_on
from gpu_tests.graphs import CpuGraphDriver

pytestmark = pytest.mark.suite("attention-contract", gpus=0, est="15s")

HERE = "gpu_tests.test_contract_isolated"
ASSERT = "IndexKernel.cu:93: operator(): block: [0,0,0], thread: [0,0,0] Assertion `index out of bounds` failed."


def pid_and(number: int) -> list[int]:
    print("what a call prints is no answer")
    return [os.getpid(), number]


def fail() -> None:
    raise ValueError("seven is too many")


def abort_after_a_device_assert() -> None:
    print(ASSERT, flush=True)
    os.write(2, b"terminate called: CUDA error: device-side assert triggered\n")
    os.abort()


def vanish() -> None:
    os._exit(3)


def sleep() -> None:
    time.sleep(60)


def test_one_child_answers_call_after_call_and_survives_an_exception() -> None:
    with Isolated() as process:
        child, number = process.call(f"{HERE}:pid_and", 5)
        assert child != os.getpid()
        assert number == 5
        with pytest.raises(NoAnswer, match="ValueError: seven is too many"):
            process.call(f"{HERE}:fail")
        assert process.call(f"{HERE}:pid_and", 6) == [child, 6]


def test_a_child_that_died_says_why_and_is_replaced() -> None:
    with Isolated() as process:
        first, _ = process.call(f"{HERE}:pid_and", 1)
        with pytest.raises(ContextLost) as lost:
            process.call(f"{HERE}:abort_after_a_device_assert")
        assert str(lost.value) == ASSERT
        second, _ = process.call(f"{HERE}:pid_and", 2)
        assert second != first
        with pytest.raises(NoAnswer, match="the process ended with status 3"):
            process.call(f"{HERE}:vanish")


def test_a_call_that_hangs_ends_at_the_limit() -> None:
    with Isolated(limit_s=0.5) as process, pytest.raises(NoAnswer, match="no answer within"):
        process.call(f"{HERE}:sleep")


def test_a_scenario_is_judged_alike_in_a_process_of_its_own(isolated: Isolated) -> None:
    here, there = CpuGraphDriver(), CpuGraphDriver()
    there.capabilities = replace(there.capabilities, fatal_faults=True)
    path = "gpu_tests.faults.seeds:CaptureUnfilledLengths"
    fails, other_family = Scenario("mha-draft"), Scenario("mla-target")
    found = judge_on(there, path, isolated)(fails)
    assert found.headline == "kernel_lengths"
    assert found == judge_on(here, path, isolated)(fails)
    assert judge_on(there, path, isolated)(other_family).not_supported == "MhaBackend serves MHA, GQA and MQA"


def test_a_lost_context_is_a_failed_replay_with_the_reason_of_cuda() -> None:
    class Lost(Isolated):
        def call(self, function: str, *args: Any) -> Any:
            raise ContextLost(ASSERT)

    found = isolated_verdict(Lost(), Scenario("mha-target"), "engine:make", "cuda")
    assert found.headline == "replay"
    assert ASSERT in found.report
    assert "python -m gpu_tests.contract 'mha-target#0' --backend engine:make --driver cuda" in found.report
