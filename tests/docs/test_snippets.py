"""The harness of the documents can fail: it tells a right output, excerpt and exit code from a wrong one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.docs.snippets import commands, fits, is_excerpt, run, snippets


@pytest.mark.parametrize(
    ("expected", "actual", "same"),
    [
        ("a\nb", "a\nb\n", True),
        ("a", "a  \n\n", True),
        ("a", "a\nb\n", False),
        ("", "", True),
        ("", "a\n", False),
        ("a\n...", "a\nb\nc\n", True),
        ("...\nc", "a\nb\nc\n", True),
        ("...\nd", "a\nb\nc\n", False),
        ("Plan ... of (1)", "Plan abc of (1)\n", True),
        ("Plan ... of (1)", "Plan abc of (2)\n", False),
        ("a.c", "abc\n", False),
    ],
)
def test_output_is_compared_line_by_line(expected: str, actual: str, same: bool) -> None:
    assert fits(expected, actual) is same


@pytest.mark.parametrize(
    ("snippet", "same"),
    [
        ("b:\n  c: 1", True),
        ("a:\n# ...\nd: 2", True),
        ("d: 2\n# ...\na:", False),
        ("b:\n    c: 1", False),
        ("c: 2", False),
    ],
)
def test_an_excerpt_stands_in_its_file(snippet: str, same: bool) -> None:
    assert is_excerpt(snippet, "a:\n  b:\n    c: 1\nd: 2\n") is same


TEXT = """\
## First
<!-- write: notes/a.txt -->
```text
it's $HOME
```
```console
$ cat notes/a.txt
it's $HOME
$ cd notes
```
<!-- exit code: 3 -->
```console
$ ls \\
  *.txt
a.txt
$ sh -c 'echo bad >&2; exit 3'
bad
```
## Second
```bash
ls
```
"""


def test_a_section_runs_as_one_session(tmp_path: Path) -> None:
    found = [one for one in snippets("a.md", TEXT) if one.runs]
    assert {one.section for one in found} == {"First"}
    ran = list(run(found, tmp_path, os.environ))
    assert [command.text for command, _, _ in ran] == [
        "cat notes/a.txt",
        "cd notes",
        "ls \\\n  *.txt",
        "sh -c 'echo bad >&2; exit 3'",
    ]
    assert all(fits(command.output, output) for command, output, _ in ran)
    assert [(code, command.exit_code) for command, _, code in ran] == [(0, 0), (0, 0), (0, 0), (3, 3)]


def test_a_section_whose_shell_ends_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"a\.md:1: bash ended here"):
        list(run(list(snippets("a.md", "```console\n$ exit 0\n$ ls\n```\n")), tmp_path, os.environ))


def test_what_cannot_be_read_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"a\.md:1: this fence never closes"):
        list(snippets("a.md", "```console\n$ ls\n"))
    with pytest.raises(ValueError, match=r"a\.md:1: a console block begins with a command"):
        list(commands(next(snippets("a.md", "```console\nls\n```\n"))))
