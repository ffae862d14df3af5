"""The small parts that everything else rests on: lines, bounded logs, JUnit, counters, the manifest."""

from __future__ import annotations

import errno
import itertools
import multiprocessing
import os
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ci import journal
from ci.journal import Outcome, TestFinished
from ci.runner import environment, junit, kernel_log, oom
from ci.runner.gpu_facts import Facts
from ci.runner.gpus import HostReport
from ci.runner.inside.nightcap_inside.lines import Lines
from ci.runner.options import LOCKS, RunOptions
from ci.runner.output import BoundedLog
from ci.runner.record import Record

in_one_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)


def _append(path: str, letter: str) -> None:
    lines = Lines(Path(path), Path(path).with_suffix(".reserve"))
    for _ in range(100):
        lines.append(letter * 5000 + "\n")


def test_a_line_is_on_disk_before_the_next_thing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, synced = tmp_path / "journal.jsonl", []
    monkeypatch.setattr("os.fdatasync", lambda descriptor: synced.append(path.read_text()))
    lines = Lines(path, tmp_path / "reserve")
    for letter in "ab":
        lines.append(f"{letter}\n")
        assert synced[-1].endswith(f"{letter}\n")
    lines.close()
    assert synced == ["a\n", "a\nb\n"]


def test_on_a_full_disk_the_reserve_is_given_up_and_the_line_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, reserve, write = tmp_path / "journal.jsonl", tmp_path / "reserve", os.write
    reserve.write_bytes(b"x")

    def full(descriptor: int, data: bytes) -> int:
        if reserve.exists() and len(data) < 7:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[:3] if reserve.exists() else data)

    lines = Lines(path, reserve)
    monkeypatch.setattr("os.write", full)
    lines.append("abcdef\n")
    lines.append("ghi\n")
    lines.close()
    assert path.read_text() == "abc\nabcdef\nghi\n"


def test_lines_of_two_processes_never_mix(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    spawn = multiprocessing.get_context("spawn")
    writers = [spawn.Process(target=_append, args=(str(path), letter)) for letter in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(30)
    assert sorted(path.read_text().splitlines()) == ["a" * 5000] * 100 + ["b" * 5000] * 100


def test_a_half_written_line_of_a_killed_writer_spoils_only_itself(tmp_path: Path) -> None:
    record = Record(tmp_path / "journal.jsonl", tmp_path / "reserve")
    record.note("info", "one")
    with (tmp_path / "journal.jsonl").open("a") as killed:
        killed.write('{"event":"note","at":1,"lev')
    assert [event.message for event in record.news()] == ["one"]  # type: ignore[union-attr]
    record.note("info", "two")
    assert [event.message for event in record.news()] == ["two"]  # type: ignore[union-attr]
    record.close()
    read = journal.read(tmp_path / "journal.jsonl")
    assert (len(read.events), read.unreadable) == (2, 1)


def test_a_new_run_does_not_read_what_a_process_of_a_killed_one_still_writes(tmp_path: Path) -> None:
    old = Record(tmp_path / "journal.jsonl", tmp_path / "reserve")
    new = Record(tmp_path / "journal.jsonl", tmp_path / "reserve")
    old.note("info", "old")
    new.note("info", "new")
    assert [event.message for event in new.events] == ["new"]  # type: ignore[union-attr]


@in_one_folder
@given(chunks=st.lists(st.binary(max_size=30), max_size=20), limit=st.integers(2, 100).map(lambda n: 2 * n))
def test_a_log_holds_its_beginning_and_its_end(tmp_path: Path, chunks: list[bytes], limit: int) -> None:
    log = BoundedLog(tmp_path / "log", limit)
    for chunk in chunks:
        log.write(chunk)
    log.close()
    said, kept, half = b"".join(chunks), (tmp_path / "log").read_bytes(), limit // 2
    if len(said) <= limit:
        assert kept == said
    else:
        note = f"\n[nightcap: {len(said) - limit} bytes of output left out here]\n".encode()
        assert kept == said[:half] + note + said[-half:]


OUTCOMES: tuple[Outcome, ...] = ("passed", "failed", "skipped", "timed-out", "crashed")


@in_one_folder
@given(st.lists(st.tuples(st.text(), st.sampled_from(OUTCOMES), st.text()), max_size=5, unique_by=lambda one: one[0]))
def test_any_journal_is_written_as_junit_that_reads_back(
    tmp_path: Path, results: list[tuple[str, Outcome, str]]
) -> None:
    events = [
        TestFinished(at=0, unit="u", suite="s", attempt=1, test=test, outcome=outcome, seconds=1, message=message)
        for test, outcome, message in results
    ]
    junit.write(events, tmp_path / "junit.xml")
    root = ET.parse(tmp_path / "junit.xml").getroot()
    cases = list(root.iter("testcase"))
    assert [next((child.tag for child in case), "passed") for case in cases] == [
        {"failed": "failure", "timed-out": "error", "crashed": "error"}.get(outcome, outcome)
        for _, outcome, _ in results
    ]
    assert root.get("tests") == str(len(results))
    assert junit.read(tmp_path / "junit.xml") is not None


@pytest.mark.parametrize("text", ["", "<html/>", "<testsuite>", "not xml"])
def test_what_is_no_junit_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.xml").write_text(text)
    assert junit.read(tmp_path / "x.xml") is None
    assert junit.read(tmp_path / "none.xml") is None


def test_a_test_that_junit_names_twice_has_its_worst_result(tmp_path: Path) -> None:
    case = '<testcase classname="k" name="a" time="1,000.5">{}</testcase>'
    for order in itertools.permutations(("", "<failure message='no'/>", "<skipped/>")):
        (tmp_path / "x.xml").write_text(f"<testsuite>{''.join(map(case.format, order))}</testsuite>")
        results = junit.read(tmp_path / "x.xml")
        assert results is not None
        assert [(result.test, result.outcome, result.seconds) for result in results] == [("k::a", "failed", 1000.5)]


@pytest.mark.parametrize(
    ("membership", "file", "text"),
    [
        ("0::/job\n", "job/memory.events", "low 0\noom 4\noom_kill 3\n"),
        ("0::/../host-view\n", "memory.events", "oom_kill 3\n"),
        ("4:memory:/job\n0::/\n", "memory/job/memory.oom_control", "under_oom 0\noom_kill 3\n"),
    ],
)
def test_kills_for_memory_are_counted_by_either_kind_of_cgroup(
    tmp_path: Path, membership: str, file: str, text: str
) -> None:
    (tmp_path / "cgroup").write_text(membership)
    path = tmp_path / "mount" / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert oom.kills(tmp_path / "cgroup", tmp_path / "mount") == 3
    assert oom.kills(tmp_path / "none", tmp_path / "mount") is None


def test_the_manifest_names_versions_and_gpus_without_importing_torch(tmp_path: Path) -> None:
    version = tmp_path / "version"
    version.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22)\n"
    )
    assert environment.driver(version) == "580.95.05"
    assert environment.driver(tmp_path / "none") == ""
    data = Path(__file__).parent / "data" / "gpus" / "eight-healthy.json"
    facts = Facts.model_validate_json(data.read_text())
    report = HostReport(status="ok", host="h", facts=facts, assigned=(facts.gpus[2].uuid,), problems=(), seconds=0.1)
    found = environment.manifest(tmp_path, {"NIGHTCAP_IMAGE": "sha256:ab"}, report)
    assert found["image"] == "sha256:ab"
    assert found["gpus"] == "NVIDIA H200"
    assert found["gpu_uuids"] == facts.gpus[2].uuid
    assert len(found["packages"]) == 16
    assert "commit" not in found  # no repository here


def test_options_read_the_attempt_and_the_locks_from_the_environment(tmp_path: Path) -> None:
    given = {"root": tmp_path, "results": tmp_path / "r", "plan_hash": "h", "workflow": "w"}
    options = RunOptions.from_environment({"GITHUB_RUN_ATTEMPT": "3", "NIGHTCAP_LOCKS": "/locks"}, **given)
    assert (options.run_attempt, options.locks) == (3, Path("/locks"))
    assert RunOptions.from_environment({}, **given).locks.name in (LOCKS.name, "nightcap-locks")
    for wrong in ("0", "-1", "two", "²"):
        with pytest.raises(ValueError, match="must be a whole number from 1"):
            RunOptions.from_environment({"GITHUB_RUN_ATTEMPT": wrong}, **given)


@pytest.mark.parametrize(
    ("signal", "counters", "said"),
    [
        ("SIGKILL", (None, None), "out of memory: the kernel ended process 7 (python)"),
        ("SIGSEGV", (None, None), ""),  # a neighbour's process, while ours crashed by itself
        ("SIGSEGV", (3, 3), ""),
        ("", (3, 4), "out of memory: the kernel ended a process of this cgroup (oom_kill)"),
    ],
)
def test_the_kernels_log_counts_only_for_a_unit_that_was_killed(
    monkeypatch: pytest.MonkeyPatch, signal: str, counters: tuple[int | None, int | None], said: str
) -> None:
    kills = iter(counters)
    monkeypatch.setattr(oom, "kills", lambda: next(kills))
    monkeypatch.setattr(kernel_log, "lines", lambda since: ["Out of memory: Killed process 7 (python)"])
    assert oom.Watch().evidence(signal) == said
