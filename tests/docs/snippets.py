"""The fenced blocks of a Markdown file, and how they run.

What a block is for stands in its language, and in HTML comments right before it:

- `console`: lines with `$ ` are commands, the lines below each are its output, exactly. A line `...` stands for any
  lines, `...` inside a line for any text. A command must succeed; `<!-- exit code: N -->` says otherwise.
- `<!-- write: PATH -->` or `<!-- append to: PATH -->`: the block goes to that file before the next command runs.
- `<!-- excerpt of: PATH -->`: the block stands in that file of the repository, line by line; `# ...` leaves lines out.
- `<!-- not run: REASON -->`: a `console` or `bash` block that a test machine cannot run.

All blocks of a section (down to the next `## `) run in one bash, in a fresh copy of the repository.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from textwrap import dedent

_FENCE = re.compile(r"```(\S*)\s*")
_NOTE = re.compile(r"<!-- (write|append to|excerpt of|not run|exit code): (.+) -->")
_MARK = "<<nightcap-docs>>"


@dataclass(frozen=True)
class Snippet:
    """One fenced block."""

    path: str
    line: int
    """Of the opening fence, from 1."""
    section: str
    language: str
    text: str
    notes: Mapping[str, str]

    @property
    def place(self) -> str:
        """`README.md:12`."""
        return f"{self.path}:{self.line}"

    @property
    def runs(self) -> bool:
        """True when it is part of its section's script."""
        return not self.notes.keys() & {"not run", "excerpt of"} and (self.language == "console" or self.writes)

    @property
    def writes(self) -> bool:
        """True when its text goes to a file."""
        return bool(self.notes.keys() & {"write", "append to"})


@dataclass(frozen=True)
class Command:
    """One command of a console block and what it should print."""

    snippet: Snippet
    text: str
    output: str
    exit_code: int


def snippets(path: str, text: str) -> Iterator[Snippet]:
    """The blocks of a Markdown file, in order. Raises ValueError for a fence that never closes."""
    section, notes, opened, body = "", dict[str, str](), None, list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        fence = _FENCE.fullmatch(line)
        if opened is not None and line.rstrip() == "```":
            yield Snippet(path, opened[0], section, opened[1], "".join(f"{one}\n" for one in body), notes)
            opened, notes, body = None, {}, []
        elif opened is not None:
            body.append(line)
        elif fence:
            opened = (number, fence[1])
        elif note := _NOTE.fullmatch(line):
            notes[note[1]] = note[2]
        elif line.startswith("## "):
            section, notes = line[3:].strip(), {}
        elif line.strip():
            notes = {}
    if opened is not None:
        raise ValueError(f"{path}:{opened[0]}: this fence never closes")


def commands(snippet: Snippet) -> Iterator[Command]:
    """The commands of a console block. Raises ValueError for output before the first command."""
    text, output = "", list[str]()
    exit_code = int(snippet.notes.get("exit code", "0"))
    for line in snippet.text.splitlines():
        if text.endswith("\\") and not output:
            text += f"\n{line}"
        elif line.startswith("$ "):
            if text:
                yield Command(snippet, text, "\n".join(output), 0)
            text, output = line[2:], []
        elif text:
            output.append(line)
        else:
            raise ValueError(f"{snippet.place}: a console block begins with a command")
    yield Command(snippet, text, "\n".join(output), exit_code)


def run(section: Sequence[Snippet], folder: Path, environment: Mapping[str, str]) -> Iterator[tuple[Command, str, int]]:
    """Run the blocks of one section in a copy of the repository: each command, what it printed and its exit code.

    A command after which bash ended by itself, or that took longer than two minutes, is an error of the whole section.
    """
    script, expected = ["exec 2>&1"], list[Command]()
    for snippet in section:
        if snippet.writes:
            script.append(_written(snippet))
            continue
        for command in commands(snippet):
            expected.append(command)
            script += [command.text, f"printf '\\n{_MARK}%s\\n' $?"]
    bash = ["bash", "--noprofile", "--norc", "-c", "\n".join(script)]
    done = subprocess.run(
        bash, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
    )
    parts = re.split(rf"\n{_MARK}(\d+)\n", done.stdout)
    outputs, codes = parts[:-1:2], parts[1::2]
    if len(outputs) != len(expected):
        raise AssertionError(f"{expected[len(outputs)].snippet.place}: bash ended here:\n{parts[-1]}{done.stderr}")
    yield from zip(expected, outputs, map(int, codes), strict=True)


def _written(snippet: Snippet) -> str:
    path = snippet.notes.get("write")
    target = shlex.quote(path or snippet.notes["append to"])
    redirect = f"{'>' if path else '>>'} {target} <<'{_MARK}'"
    return f'mkdir -p "$(dirname {target})" && cat {redirect}\n{snippet.text}{_MARK}'


def fits(expected: str, actual: str) -> bool:
    """True when the output is what the document shows, with its `...`."""
    patterns = []
    for line in expected.splitlines():
        if line.strip() == "...":
            patterns.append(r"(?:.*\n)*")
        else:
            patterns.append(".*".join(map(re.escape, line.rstrip().split("..."))) + r"\n")
    shown = "".join(f"{line.rstrip()}\n" for line in actual.strip("\n").splitlines())
    return re.fullmatch("".join(patterns), shown) is not None


def is_excerpt(snippet: str, whole: str) -> bool:
    """True when the parts of a snippet, between lines `# ...`, stand in the text in this order, at one indentation."""
    lines, start = whole.splitlines(), 0
    for left_out, part in groupby(snippet.splitlines(), lambda line: line.strip() == "# ..."):
        if left_out:
            continue
        wanted = dedent("\n".join(part)).splitlines()
        windows = range(start, len(lines) - len(wanted) + 1)
        found = next((at for at in windows if _at(lines, at, len(wanted)) == wanted), None)
        if found is None:
            return False
        start = found + len(wanted)
    return True


def _at(lines: Sequence[str], start: int, count: int) -> list[str]:
    return dedent("\n".join(lines[start : start + count])).splitlines()
