"""Run a generated workflow on this machine: act in host mode, on a copy of the tree, with the installed nightcap.

What differs from GitHub is said once, here. Steps run as this user on this machine, whatever `runs-on` says. Artifacts
go to a folder through stand-ins for the two artifact actions. `NIGHTCAP_BIN` tells the shared step that the machine is
ready, so neither the fleet's install command nor a pool's set-up commands run. act ignores `timeout-minutes` of a job.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ci.gha.yaml_reader import read
from ci.spec.models import Fleet

_ARTIFACT_ACTIONS = ("actions/upload-artifact", "actions/download-artifact")
_ACTIONS = Path(__file__).parent / "local_actions"
_CONTROL = ("ubuntu-latest", "ubuntu-24.04", "ubuntu-22.04")


@dataclass(frozen=True)
class Line:
    """One line that act printed."""

    job: str
    text: str
    result: str = ""
    """`success` or `failure` in the line that ends a job."""


@dataclass(frozen=True)
class LocalRun:
    """What a local run left."""

    artifacts: Path
    results: Mapping[str, str]
    """Job -> success or failure, for each job that started. A matrix leg has its own entry, as act names it."""
    exit_code: int


class ActMissing(Exception):
    """act is not installed."""


def run(
    root: Path,
    workflow: str,
    fleet: Fleet,
    event: str,
    inputs: Mapping[str, str],
    *,
    scratch: Path,
    env: Mapping[str, str] | None = None,
    on_line: Callable[[Line], None] = lambda line: None,
) -> LocalRun:
    """Run `.github/workflows/WORKFLOW.yml` of the tree at `root`; `scratch` holds the copy and the artifacts.

    Raises ActMissing when there is no act, OSError when the tree is in no git repository or cannot be copied.
    """
    act = shutil.which("act", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if act is None:
        raise ActMissing("act is needed to run a workflow on this machine: pip install 'nightcap[dev]'")
    tree, artifacts = scratch / "tree", scratch / "artifacts"
    copy_tree(root, tree)
    artifacts.mkdir(parents=True, exist_ok=True)
    command = [act, event, "-W", f".github/workflows/{workflow}.yml", "--json", "--no-cache-server"]
    command += ["--action-offline-mode", "--pull=false", "--action-cache-path", str(scratch / "cache")]
    for label in sorted({*_CONTROL, *fleet.control, *(one for pool in fleet.pools.values() for one in pool.labels)}):
        command += ["-P", f"{label}=-self-hosted"]
    for name, value in inputs.items():
        command += ["--input", f"{name}={value}"]
    for name, value in {**_environment(artifacts), **(env or {})}.items():
        command += ["--env", f"{name}={value}"]
    for name in _ARTIFACT_ACTIONS:
        command += ["--local-repository", f"{name}@{_locked(tree, name)}={_ACTIONS / name.rpartition('/')[2]}"]
    results: dict[str, str] = {}
    with subprocess.Popen(command, cwd=tree, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in _lines(process.stdout):
            if line.result:
                results[line.job] = line.result
            on_line(line)
    return LocalRun(artifacts, results, process.returncode)


def copy_tree(root: Path, target: Path) -> None:
    """Copy what git would see of a tree, uncommitted changes included, into a fresh repository of one commit."""
    git = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    found = subprocess.run(git, check=False, capture_output=True)
    if found.returncode != 0:
        raise OSError(f"{root} is not in a git repository: git init makes one")
    listed = found.stdout.decode(errors="surrogateescape")
    for name in filter(None, listed.split("\0")):
        source, copy = root / name, target / name
        if source.is_file() or source.is_symlink():  # not what was deleted and not yet committed
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy, follow_symlinks=False)
    identity = ["-c", "user.name=nightcap", "-c", "user.email=nightcap@localhost", "-c", "commit.gpgsign=false"]
    for arguments in (["init", "-q", "-b", "main"], ["add", "-A"], [*identity, "commit", "-q", "-m", "copy"]):
        subprocess.run(["git", "-C", str(target), *arguments], check=True, capture_output=True)


def _environment(artifacts: Path) -> dict[str, str]:
    binaries = str(Path(sys.executable).parent)
    return {"NIGHTCAP_BIN": binaries, "NIGHTCAP_LOCAL_ARTIFACTS": str(artifacts)}


def _locked(tree: Path, action: str) -> str:
    lock = read((tree / "workflows/actions.lock.yml").read_text(encoding="utf-8"), "workflows/actions.lock.yml")
    return str(lock.value[action]["sha"])


def _lines(stream: Iterator[str]) -> Iterator[Line]:
    for text in stream:
        try:
            entry = json.loads(text)
        except json.JSONDecodeError:
            yield Line("", text.rstrip())
            continue
        yield Line(
            str(entry.get("job", "")).strip(), str(entry.get("msg", "")).rstrip(), str(entry.get("jobResult", ""))
        )
