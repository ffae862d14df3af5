"""The manifest of a run's environment, for the head of the journal: what to compare first when a night turns
red.

Cheap on purpose: versions come from installed metadata and from files; nothing big is imported.
"""

from __future__ import annotations

import hashlib
import platform
import re
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from ci.runner.gpus import HostReport

_DRIVER = Path("/proc/driver/nvidia/version")
_DRIVER_VERSION = re.compile(r"Kernel Module\s+(?:for \S+\s+)?(\d+\.[\d.]+)")
_GIT_SECONDS = 5.0


def manifest(root: Path, env: Mapping[str, str], report: HostReport | None) -> dict[str, str]:
    """Names and versions as text; what cannot be known is left out. GPUs are those assigned to this run."""
    packages = _packages()
    found = {
        "commit": _commit(root),
        "image": env.get("NIGHTCAP_IMAGE", ""),
        "runner": env.get("RUNNER_NAME", ""),
        "run_id": env.get("GITHUB_RUN_ID", ""),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": packages.get("torch", ""),
        "packages": _hash(packages),
        "nvidia_driver": driver(),
        **(_gpus(report) if report else {}),
    }
    return {name: value for name, value in found.items() if value}


def _gpus(report: HostReport) -> dict[str, str]:
    mine = report.assigned_gpus
    return {
        "cuda_driver": report.facts.cuda,
        "gpus": ", ".join(gpu.name for gpu in mine),
        "gpu_uuids": ", ".join(report.assigned),
        "gpu_sm_clocks": ", ".join(f"{gpu.sm_clock} MHz" for gpu in mine if gpu.sm_clock is not None),
    }


def driver(path: Path = _DRIVER) -> str:
    """Version of the loaded NVIDIA kernel module; empty without one."""
    try:
        match = _DRIVER_VERSION.search(path.read_text())
    except OSError:
        return ""
    return match[1] if match else ""


def _commit(root: Path) -> str:
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _packages() -> dict[str, str]:
    return {dist.metadata["Name"].lower(): dist.version for dist in metadata.distributions() if dist.metadata["Name"]}


def _hash(packages: Mapping[str, str]) -> str:
    """A hash of what `pip freeze` would say: equal for equal sets of versions."""
    text = "\n".join(f"{name}=={version}" for name, version in sorted(packages.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
