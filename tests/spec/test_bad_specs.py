"""Every mistake in a spec has its message, word for word, in `tests/data/bad_specs/NAME/expected.txt`.

A case holds `nightly.yml` and, where the fleet matters, `runners.yml`; the others share one.
"""

from __future__ import annotations

import shutil
from datetime import date
from pathlib import Path

import pytest

from ci.spec.loader import load
from ci.spec.problems import SpecError

CASES = Path(__file__).parents[1] / "data" / "bad_specs"
TODAY = date(2026, 9, 1)


def messages(case: Path, root: Path) -> str:
    """What a person is told about the specs of a case."""
    folder = root / "workflows"
    folder.mkdir()
    for source in (CASES / "runners.yml", *case.glob("*.yml")):
        shutil.copy(source, folder)
    with pytest.raises(SpecError) as caught:
        load(root, today=TODAY)
    return f"{caught.value}\n"


@pytest.mark.parametrize("case", sorted(path for path in CASES.iterdir() if path.is_dir()), ids=lambda c: c.name)
def test_the_message_is_exact(case: Path, tmp_path: Path) -> None:
    assert messages(case, tmp_path) == (case / "expected.txt").read_text(encoding="utf-8")
