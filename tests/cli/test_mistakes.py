"""A user's mistake is one clear message and exit code 2, never a traceback; a reader who leaves is never success."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cli.conftest import Nightcap

NIGHTCAP = str(Path(sys.executable).parent / "nightcap")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("bogus",), "no such command 'bogus'"),
        (("plann",), "did you mean 'plan'?"),
        (("plan", "--bogus"), "No such option"),
        (("plan", "--event", "cron"), "'schedule', 'workflow_dispatch'"),
        (("plan", "--workflow", "nigthly"), "did you mean 'nightly'?"),
        (("plan", "--filter", "kernls"), "did you mean 'kernels'"),
        (("plan", "--filter", "ünïcode"), "'ünïcode' matches no job"),
        (("plan", "--filter", 'a"; curl x | sh; "'), "matches no job"),
        (("plan", "--filter", "!*"), "1 problem"),
        (("plan", "--filter", "x" * 100_000), "the filter has 100,000 characters"),
        (("plan", "--input", "steps"), "'steps' is not NAME=VALUE"),
        (("plan", "--input", "stepps=1"), "did you mean 'steps'?"),
        (("plan", "--input", "steps=many"), "steps"),
        (("--today", "tomorrow", "plan"), "write it as 2026-12-31"),
        (("--today", "2026-13-01", "plan"), "write it as 2026-12-31"),
        (("-C", "nowhere", "plan"), "'nowhere' does not exist"),
        (("-C", "workflows/nightly.yml", "plan"), "is a file"),
        (("-C", "tests", "plan"), "run `nightcap init` to write first specs"),
        (("run", "kernls"), "did you mean 'kernels'?"),
        (("run", "xyz"), "no job 'xyz' in nightly. there are kernels, report"),
        (("run", "kernels", "--shard", "9/9"), "job kernels has 1 shard, not 9"),
        (("run", "kernels", "--shard", "first"), "write it as 2/4"),
        (("run", "kernels", "--plan", "nowhere.json"), "'nowhere.json' does not exist"),
        (("run", "kernels", "--plan", "tests/test_kernels.py"), "is no plan of this version"),
        (("gate", "nowhere.json", "tests"), "'nowhere.json' does not exist"),
        (("gate", "tests/test_kernels.py", "tests"), "is no plan of this version"),
        (("gate", "tests/test_kernels.py", "tests", "--needs", "nowhere"), "No such file"),
        (("gate", "/dev/null", "tests"), "/dev/null is no plan of this version"),
        (("shards", "kernels", "--target", ""), "write it as 90s, 40m, 2h or 1h30m"),
        (("durations", "update", "tests"), "no journal.jsonl below tests: nothing to take times from"),
        (("local",), "is not in a git repository"),
        (("local", "--event", "push"), "no trigger for push: --event may be schedule, workflow_dispatch"),
        (("step", "plan"), "people use `nightcap plan`"),
        (("step", "run"), "people use `nightcap run`"),
    ],
)  # fmt: skip
def test_a_wrong_call_says_what_is_allowed(
    engine: Path, nightcap: Nightcap, arguments: tuple[str, ...], said: str
) -> None:
    found = nightcap(*arguments)
    assert found.code == 2
    assert said in found.err
    assert found.out == ""


@pytest.mark.parametrize(
    ("path", "content", "said"),
    [
        ("workflows/nightly.yml", b"title: [\n", "workflows/nightly.yml:"),
        ("workflows/nightly.yml", b"\xff\xfe", "is not UTF-8"),
        ("workflows/runners.yml", b"", "workflows/runners.yml"),
        ("workflows/actions.lock.yml", b"\xff", "workflows/actions.lock.yml: is not UTF-8"),
        ("workflows/actions.lock.yml", b"actions/checkout: {sha: v6}\n", "needs `sha`"),
        ("workflows/actions.lock.yml", b": : :", "workflows/actions.lock.yml:1"),
        ("tests/test_kernels.py", b"# suite kernels\ndef test(:\n", "tests/test_kernels.py:2: is not valid Python"),
        ("templates/nightly.yml.j2", b"\n<%= nothing %>\n", "templates/nightly.yml.j2:2: 'nothing' is undefined"),
        ("templates/nightly.yml.j2", b"\n\n<% if %>\n", "templates/nightly.yml.j2:3: "),
        ("templates/nightly.yml.j2", b"<%= workflow.nothing %>", "has no attribute 'nothing'"),
        ("templates/nightly.yml.j2", b"<%= workflow | yaml %>", "templates/nightly.yml.j2:1: "),
        ("templates/nightly.yml.j2", b"\xff", "templates/nightly.yml.j2: "),
        ("templates/nightly.yml.j2", b'<%= action("a/b") %>', "a/b: this action is used by a template but not locked"),
        ("templates/action.yml.j2", b"<%= workflow %>", "templates/action.yml.j2:1: 'workflow' is undefined"),
    ],
)
def test_a_wrong_file_is_named(engine: Path, nightcap: Nightcap, path: str, content: bytes, said: str) -> None:
    (engine / path).parent.mkdir(exist_ok=True)
    (engine / path).write_bytes(content)
    found = nightcap("generate")
    assert found.code == 2
    assert said in found.err
    assert not (engine / ".github").exists(), "nothing is written when anything is wrong"


def test_broken_durations_are_named_with_their_folder(engine: Path, nightcap: Nightcap) -> None:
    (engine / "workflows/durations.json").write_text("{")
    found = nightcap("plan")
    assert found.code == 2
    assert "  workflows/durations.json: Invalid JSON" in found.err


def test_an_event_that_github_never_starts_the_workflow_on_is_noted(engine: Path, nightcap: Nightcap) -> None:
    found = nightcap("plan", "--event", "push")
    assert (found.code, found.err) == (
        0,
        "note: GitHub does not start nightly on push, only on schedule, workflow_dispatch\n",
    )
    assert nightcap("plan", "--event", "schedule").err == nightcap("plan").err == ""


def test_a_plan_may_come_through_a_pipe(engine: Path, nightcap: Nightcap) -> None:
    """As in `nightcap gate <(nightcap plan --json) results`."""
    plan = nightcap("plan", "--json", "--filter", "kernels").out
    assert nightcap("run", "kernels", "--results", "results").code == 0
    read, write = os.pipe()
    os.write(write, plan.encode())
    os.close(write)
    found = nightcap("gate", f"/dev/fd/{read}", "results")
    os.close(read)
    assert f"plan {json.loads(plan)['hash']}" in found.out


def test_a_plan_of_another_repository_is_told_by_its_workflow(engine: Path, nightcap: Nightcap) -> None:
    Path("plan.json").write_text(nightcap("plan", "--json").out)
    (engine / "workflows/nightly.yml").rename(engine / "workflows/weekly.yml")
    found = nightcap("run", "kernels", "--plan", "plan.json")
    assert found.code == 2
    assert "no workflow 'nightly' in workflows/: there are weekly" in found.err


def test_a_folder_in_the_way_is_named(engine: Path, nightcap: Nightcap) -> None:
    (engine / ".github/workflows/nightly.yml").mkdir(parents=True)
    found = nightcap("generate")
    assert found.code == 2
    assert "nightly.yml: Is a directory" in found.err


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=40))
def test_any_filter_selects_or_is_explained(engine: Path, nightcap: Nightcap, text: str) -> None:
    found = nightcap("plan", f"--filter={text}")
    assert found.code in (0, 2)
    assert found.code == 0 or "problem" in found.err


def test_a_reader_that_leaves_is_not_success(engine: Path) -> None:
    """`nightcap gate ... | head` with pipefail would be green otherwise."""
    for command in (["plan", "--json"], ["plan"], ["list"]):
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run([NIGHTCAP, *command], stdout=write, stderr=subprocess.PIPE, text=True)
        os.close(write)
        assert (done.returncode, done.stderr) == (141, "")


def test_a_full_disk_is_named(engine: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([NIGHTCAP, "plan", "--json"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr == "Error: No space left on device\n"


def test_colours_are_for_terminals_and_not_for_pipes(engine: Path) -> None:
    piped = subprocess.run([NIGHTCAP, "plan"], capture_output=True, text=True, check=True)
    assert "\x1b" not in piped.stdout
    shown = _on_a_terminal([NIGHTCAP, "plan"])
    assert "\x1b[1;32mruns" in shown
    assert "\x1b[1;32m" not in _on_a_terminal([NIGHTCAP, "plan"], NO_COLOR="1")


def test_a_narrow_terminal_folds_a_table_and_cuts_nothing(engine: Path) -> None:
    shown = _on_a_terminal([NIGHTCAP, "list"], NO_COLOR="1", COLUMNS="44")
    lines = re.sub("\x1b\\[[0-9;]*m", "", shown).splitlines()
    assert "…" not in shown
    assert max(map(len, lines[1:])) == 44
    assert "".join(line[:5].strip() for line in lines[lines.index("─" * 44) + 1 :]).startswith("kerne")


def _on_a_terminal(command: list[str], **environment: str) -> str:
    """What a command prints when its output is a terminal."""
    master, slave = os.openpty()
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", **environment}
    if "NO_COLOR" not in environment:
        env.pop("NO_COLOR", None)
    done = subprocess.run(command, stdout=slave, stderr=slave, env=env, check=True)
    os.close(slave)
    text = b""
    try:
        while chunk := os.read(master, 65536):
            text += chunk
    except OSError:  # Linux reports the closed other side as EIO
        assert done.returncode == 0
    os.close(master)
    return text.decode()
