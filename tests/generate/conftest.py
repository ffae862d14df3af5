"""Small repositories to generate from."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from ci.spec.loader import Specs, load

ROOT = Path(__file__).parents[2]
TODAY = date(2026, 12, 1)
RUNNERS = """\
repository: acme/engine
pools:
  cpu: {labels: [ubuntu-24.04], hosted: true, timeout: 2h}
  8-gpu-b200: {labels: [self-hosted, 8-gpu-b200], gpus: 8, sm: 100, timeout: 6h}
"""
NIGHTLY = """\
title: Nightly
template: nightly
triggers:
  schedule: {cron: "17 0 * * *"}
  dispatch: {}
jobs:
  attention: {pool: 8-gpu-b200, suites: [mla], timeout: 2h, file_timeout: 40m}
"""

Repository = Callable[..., tuple[Specs, Path]]


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """`repository(nightly=..., files={path: text})` writes specs and reads them."""

    def build(nightly: str = NIGHTLY, *, runners: str = RUNNERS, **files: str) -> tuple[Specs, Path]:
        (tmp_path / "workflows").mkdir(exist_ok=True)
        shutil.copy(ROOT / "workflows/actions.lock.yml", tmp_path / "workflows")
        for name, text in {"runners": runners, "nightly": nightly, **files}.items():
            (tmp_path / f"workflows/{name}.yml").write_text(text, encoding="utf-8")
        return load(tmp_path, today=TODAY), tmp_path

    return build
