"""Which GPUs are meant, and whether they are fit. Files hold what NVML, nvidia-smi and the kernel answer, by form."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.journal import UnitFinished
from ci.runner import gpu_care, gpus, host, kernel_log
from ci.runner.exit_codes import ExitCode
from ci.runner.gpu_facts import Facts, parse_smi, query
from ci.runner.gpus import HostReport, Need, NotAssignable, assigned, doctor, judge
from tests.runner.harness import Bench, unit

DATA = Path(__file__).parent / "data" / "gpus"


def facts(name: str) -> Facts:
    return Facts.model_validate_json((DATA / f"{name}.json").read_text())


def report(name: str, *, need: int = 1, visible: str | None = None, kernel: str = "") -> tuple[str, str]:
    """(status, problems) of a host in a file."""
    host = facts(name)
    lines = (DATA / f"{kernel}.txt").read_text().splitlines() if kernel else ()
    problems = judge(host, assigned(visible, host.gpus), Need(gpus=need, sm=90), lines)
    return problems[0].status if problems else "ok", "; ".join(problem.text for problem in problems)


@pytest.mark.parametrize(
    ("name", "need", "kernel", "status", "text"),
    [
        ("eight-healthy", 8, "", "ok", ""),
        ("seven-of-eight", 8, "", "bad", "7 of 8 GPUs"),
        ("one-lost", 8, "", "bad", "GPU 3 answers with an error: GPU is lost"),
        ("remap-pending", 1, "", "degraded", "GPU 0: a memory row waits for a reset to be remapped"),
        ("remap-failed", 1, "", "bad", "GPU 0: remapping a broken memory row failed"),
        ("throttled", 1, "", "degraded", "GPU 0 runs slower: hardware thermal slowdown (93 C)"),
        ("eight-healthy", 8, "kernel-xid-79", "bad", "GPU 0: fell off the bus (NVRM: Xid (PCI:0000:1b:00): 79"),
        ("eight-healthy", 8, "kernel-xid-45", "ok", ""),
        ("eight-healthy", 8, "kernel-xid-94", "degraded", "contained memory error"),
        ("eight-healthy", 8, "kernel-xid-79-of-a-neighbour", "ok", ""),
        ("no-driver", 1, "", "bad", "NVML: Driver Not Loaded"),
        ("driver-mismatch", 1, "", "bad", "Driver/library version mismatch"),
        ("foreign-known-pid", 1, "", "bad", "80.0 of 140 GiB in use, held by a foreign process: pid 4194303"),
        ("foreign-other-namespace", 1, "", "bad", "process that cannot be seen from here (another namespace)"),
    ],
)
def test_a_host_is_judged(name: str, need: int, kernel: str, status: str, text: str) -> None:
    found, texts = report(name, need=need, kernel=kernel)
    assert found == status
    assert text in texts


def test_the_answer_of_a_real_h200_reads_back_and_is_judged_fit() -> None:
    recorded = HostReport.model_validate_json((DATA / "h200-doctor.json").read_text())
    assert (recorded.status, recorded.problems, recorded.facts.source) == ("ok", (), "nvml")
    (gpu,) = recorded.assigned_gpus
    assert (gpu.name, gpu.sm, gpu.memory_used, gpu.mig) == ("NVIDIA H200", 90, 0, None)
    assert round((gpu.memory_total or 0) / 2**30) == 140
    assert judge(recorded.facts, assigned(recorded.assigned[0], recorded.facts.gpus), Need(gpus=1, sm=90)) == ()


def test_a_gpu_of_another_architecture_than_the_pool_says_is_bad() -> None:
    host = facts("eight-healthy")
    problems = judge(host, assigned("0", host.gpus), Need(gpus=1, sm=100))
    assert [problem.text for problem in problems] == ["GPU 0 (NVIDIA H200) is SM 90, the pool says 100"]


def test_only_assigned_gpus_are_judged() -> None:
    assert report("foreign-known-pid", visible="1") == ("ok", "")
    assert report("foreign-known-pid", visible="0")[0] == "bad"


def test_a_mig_device_is_judged_by_its_own_memory() -> None:
    assert report("mig", visible="MIG-aaaaaaaa-0000-5000-8000-000000000001") == ("ok", "")
    status, text = report("mig", visible="MIG-bbbbbbbb")
    assert status == "bad"
    assert "MIG-bbbbbbbb-0000-5000-8000-000000000002): 55.9 of 70 GiB in use" in text


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [0, 1, 2, 3, 4, 5, 6, 7]),
        ("", []),
        ("NoDevFiles", []),
        ("0,2", [0, 2]),
        ("2,0", [2, 0]),
        ("GPU-00000005", [5]),
    ],
)
def test_visible_devices_may_be_indices_or_uuids(visible: str | None, expected: list[int]) -> None:
    assert [gpu.index for gpu, _ in assigned(visible, facts("eight-healthy").gpus)] == expected


@pytest.mark.parametrize("visible", ["8", "GPU-ffff", "MIG-aaaa", "zero", "0,,1", "GPU-"])
def test_visible_devices_that_name_nothing_of_this_host_are_an_error(visible: str) -> None:
    with pytest.raises(NotAssignable, match=r"names (nothing|several GPUs) here; this host has 0 \(GPU-00000000"):
        assigned(visible, facts("eight-healthy").gpus)


def test_a_gpu_named_twice_is_an_error() -> None:
    with pytest.raises(NotAssignable, match="names a GPU twice"):
        assigned("0,1,GPU-00000000", facts("eight-healthy").gpus)


@given(st.text(max_size=20))
def test_any_visible_devices_are_assigned_or_refused(visible: str) -> None:
    host = facts("mig").gpus
    try:
        found = assigned(visible, host)
    except NotAssignable:
        return
    assert {gpu.index for gpu, _ in found} <= {0, 1}


def test_nvidia_smi_that_leaves_with_0_though_its_table_shows_errors_is_bad() -> None:
    host = parse_smi((DATA / "smi-err.csv").read_text())
    problems = judge(host, assigned(None, host.gpus), Need(gpus=2, sm=90))
    assert [problem.status for problem in problems] == ["bad"]
    assert "GPU 1 answers with an error: memory.used is [Unknown Error]" in problems[0].text
    assert judge(host, assigned("0", host.gpus), Need(gpus=1, sm=90)) == ()


def test_nvidia_smi_without_a_table_is_bad() -> None:
    host = parse_smi((DATA / "smi-lost.txt").read_text())
    assert judge(host, assigned(None, host.gpus), Need(gpus=1))[0].status == "bad"


@given(st.text(max_size=200))
def test_any_output_of_nvidia_smi_is_read(text: str) -> None:
    host = parse_smi(text)
    assert host.gpus or host.problem


def says(text: str, code: int = 0) -> tuple[str, ...]:
    """A command that prints a text."""
    return (sys.executable, "-c", f"import sys; print({text!r}); sys.exit({code})")


HANGS = ("sleep", "63")


def test_tools_that_hang_are_given_up_within_their_limits() -> None:
    host = query(probe=HANGS, smi=HANGS, seconds=0.2)
    assert host.problem == "NVML: no answer in 0.2 s; nvidia-smi: no answer in 0.2 s"


def test_nvidia_smi_answers_where_nvml_cannot() -> None:
    smi = says((DATA / "smi-healthy.csv").read_text())
    host = query(probe=says((DATA / "no-driver.json").read_text()), smi=smi)
    assert (host.source, host.problem, host.gpus[0].memory_total) == ("nvidia-smi", "", 143_771 * 2**20)


@pytest.mark.parametrize(
    ("smi", "problem"),
    [
        (("no-such-tool",), "no-such-tool: No such file or directory"),
        (says("driver too old", 9), "exit code 9: driver too old"),
    ],
)
def test_tools_that_fail_are_quoted(smi: tuple[str, ...], problem: str) -> None:
    host = query(probe=says("Traceback: no such symbol"), smi=smi)
    assert host.problem == f"NVML: Traceback: no such symbol; nvidia-smi: {problem}"


def test_the_doctor_on_a_host_without_gpus_is_content_unless_some_are_needed() -> None:
    none = Facts(problem="NVML: Driver Not Loaded")
    assert doctor(None, Need(), ask=lambda: none).status == "ok"
    assert doctor(None, Need(gpus=8), ask=lambda: none).status == "bad"
    assert "this host has no GPU" in doctor("0", Need(), ask=lambda: Facts()).texts


def test_the_kernels_log_is_read_from_a_moment_on(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text("6,1,5000000,-;early\n")
    assert kernel_log.lines(since=6.0, path=log) == []
    assert kernel_log.lines(since=5.0, path=log) == ["early"]
    assert kernel_log.lines(since=0.0, path=tmp_path / "none") == []


Hosts = Callable[..., None]


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Hosts:
    """Makes the doctor see hosts from files, one at each look; the last one stays."""

    def use(*names: str) -> None:
        left = [facts(name) for name in names]
        ask = lambda: left.pop(0) if len(left) > 1 else left[0]  # noqa: E731
        real = gpus.doctor
        monkeypatch.setattr(gpus, "doctor", lambda visible, need, since: real(visible, need, since=since, ask=ask))
        monkeypatch.setattr(gpu_care, "_POLL_SECONDS", 0.01)

    return use


def test_a_host_that_is_not_fit_runs_nothing_and_blames_no_test(bench: Bench, hosts: Hosts) -> None:
    hosts("seven-of-eight")
    name = bench.file("", "a.py")
    night = bench.run(unit(name, name, kind="script"), gpus=8, sm=90)
    assert (night.results, night.result.exit_code) == ({}, ExitCode.INFRA)
    assert night.notes == [f"host {os.uname().nodename} is not fit: 7 of 8 GPUs"]


def test_memory_that_a_driver_gives_back_late_is_waited_for(bench: Bench, hosts: Hosts) -> None:
    hosts("foreign-other-namespace", "foreign-other-namespace", "foreign-other-namespace", "eight-healthy")
    name = bench.file("", "a.py")
    night = bench.run(unit(name, name, kind="script"), gpus=1, sm=90, options={"gpu_wait": 5.0})
    assert night.result.exit_code is ExitCode.PASSED


def test_memory_that_stays_in_use_names_its_holder(bench: Bench, hosts: Hosts) -> None:
    hosts("foreign-known-pid")
    name = bench.file("", "a.py")
    night = bench.run(unit(name, name, kind="script"), gpus=1, sm=90, options={"gpu_wait": 0.05})
    assert night.result.exit_code is ExitCode.INFRA
    assert "pid 4194303 (another namespace)" in night.notes[0]


def test_a_gpu_lost_during_a_unit_is_the_hosts_fault_and_ends_the_shard(bench: Bench, hosts: Hosts) -> None:
    hosts("eight-healthy", "eight-healthy", "one-lost")
    first = bench.file("import os; os.abort()", "a.py")
    second = bench.file("", "b.py")
    units = [unit(name, name, kind="script") for name in (first, second)]
    night = bench.run(*units, gpus=8, sm=90)
    assert night.endings == ["infra"]
    assert [one.path for one in night.result.not_run] == ["b.py"]
    assert night.result.exit_code is ExitCode.INFRA


def test_memory_given_back_late_does_not_excuse_the_unit_that_held_it(bench: Bench, hosts: Hosts) -> None:
    hosts("eight-healthy", "eight-healthy", "foreign-other-namespace", "eight-healthy")
    name = bench.file("raise ValueError('wrong')", "a.py")
    night = bench.run(unit(name, name, kind="script"), gpus=1, sm=90, options={"gpu_wait": 5.0})
    assert [(event.ending, event.failure_class) for event in night.of(UnitFinished)] == [("completed", "exception")]
    assert night.result.exit_code is ExitCode.FAILED


def test_a_foreign_process_on_the_gpu_excuses_a_unit_and_it_runs_again(bench: Bench, hosts: Hosts) -> None:
    hosts("eight-healthy", "eight-healthy", "foreign-known-pid", "eight-healthy")
    source = """
        import os
        if not os.path.exists("again"):
            open("again", "w").close()
            raise RuntimeError("CUDA error: out of memory")
    """
    name = bench.file(source, "a.py")
    night = bench.run(unit(name, name, kind="script"), gpus=1, sm=90, options={"gpu_wait": 5.0})
    assert [(event.ending, event.failure_class) for event in night.of(UnitFinished)] == [
        ("infra", "gpu-busy"),
        ("completed", ""),
    ]
    assert night.result.units[0].counts == {"flaky": 1}


def test_two_runs_never_share_a_gpu(bench: Bench, hosts: Hosts) -> None:
    hosts("eight-healthy")
    taken = facts("eight-healthy").gpus[0].uuid
    name = bench.file("", "a.py")
    with host.gpu_locks([taken], bench.root / "locks", wait=0, owner="nightly/other 1-of-1"):
        night = bench.run(unit(name, name, kind="script"), gpus=1, sm=90, options={"lock_wait": 0.0})
    assert night.result.exit_code is ExitCode.INFRA
    assert f"GPU {taken} is taken by nightly/other 1-of-1" in night.notes[0]
