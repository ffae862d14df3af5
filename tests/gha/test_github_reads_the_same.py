"""GitHub's own YAML library reads what we write, and reads plain scalars as we do."""

from __future__ import annotations

import json
import math
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ci.gha.yaml_reader import resolve
from ci.gha.yaml_writer import block, scalar

HERE = Path(__file__).parent
ANY = "-+.0123456789abcdefxoetzTZ_:~yno <>{}[]#&*!|'\"%@`,?\\\n\r\t é\u2028\x85\ufeff\U0001f600\x00$g/(="
NUMBER_LIKE = "-+.0123456789abcdefxoeEINFinfnaNtruelTRUE_~"
LINES = ("echo a", "  b", "", "# c", "d ", "\te", "f\r", "- g: h", "${{ i }}", "j\x85k", "é")


def read_with_github(texts: list[str]) -> list[Any]:
    if not (HERE.parent / "engine" / "node_modules").is_dir():
        pytest.fail("GitHub's engine is not installed: run `make test`, or `npm ci` in tests/engine")
    command = ["node", str(HERE / "read_with_github.mjs")]
    done = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    values: list[Any] = json.loads(done.stdout)
    return values


def texts(alphabet: str, longest: int, count: int) -> list[str]:
    """The same texts on every run."""
    dice = random.Random(f"{alphabet}{longest}")
    return ["".join(dice.choices(alphabet, k=dice.randint(1, longest))) for _ in range(count)]


def test_any_text_survives() -> None:
    written = ["", *texts(ANY, 8, 5000)]
    documents = [f"a: {scalar(text)}\nb: {scalar([text, {text: text}])}\n" for text in written]
    expected = [{"a": text, "b": [text, {text: text}]} for text in written]
    assert read_with_github(documents) == expected


def test_any_run_text_survives() -> None:
    dice = random.Random("lines")
    written = ["\n".join(dice.choices(LINES, k=dice.randint(1, 6))) for _ in range(2000)]
    written += [f"{text}\n" for text in written]
    documents = [f"jobs:\n  run: {block(text, 4)}\n  end: 1\n" for text in written]
    expected = [{"jobs": {"run": text, "end": {"number": "1"}}} for text in written]
    assert read_with_github(documents) == expected


def test_plain_scalars_are_read_alike() -> None:
    plain = texts(NUMBER_LIKE, 6, 10_000)
    for text, value in zip(plain, read_with_github(plain), strict=True):
        ours = resolve(text)
        if isinstance(value, dict) and "number" in value:
            theirs = float(value["number"].replace("Infinity", "inf"))
            assert type(ours) in (int, float), text
            assert float(ours) == theirs or (math.isnan(ours) and math.isnan(theirs)), text
        elif not isinstance(value, dict | list):
            assert ours == value, text
            assert type(ours) is type(value), text
