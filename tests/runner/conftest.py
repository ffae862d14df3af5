from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runner import harness


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[harness.Bench]:
    """A repository to run tests of; whatever a run leaves alive is a failure of the test."""
    made = harness.bench(tmp_path, os.environ)
    yield made
    assert made.survivors() == []
