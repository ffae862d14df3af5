"""What a step may say to GitHub: outputs, the step summary, annotations.

Everything here is text in, text out, but for two writers that append to a file which GitHub names. Three
traps shape it. An output written as `name=value` ends at the first newline, and a heredoc with a guessable
delimiter lets a value write outputs of its own (CVE-2022-35954). A step summary one byte above 1 MiB is
dropped as a whole, whoever wrote the bytes before. Any printed line that starts with `::`, or holds `##[`, is
a command.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ci.gha.limits import ANNOTATIONS_PER_STEP, SUMMARY_BYTES

Level = Literal["error", "warning", "notice"]

_OUTPUT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_TITLE_CHARACTERS = 255
_MESSAGE_CHARACTERS = 4_000
"""A longer message hides the page it is shown on; the Checks API takes 64 KB and 255 characters of title."""


def output(name: str, value: str) -> str:
    """One output as GITHUB_OUTPUT wants it, for any value. Raises ValueError on a name that is none."""
    if not _OUTPUT_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of an output: letters, digits, - and _, no digit first")
    delimiter = _delimiter(value)
    return f"{name}<<{delimiter}\n{value}\n{delimiter}\n"


def write_outputs(path: Path, values: Mapping[str, str]) -> None:
    """Append outputs to the file that GITHUB_OUTPUT names. Raises ValueError on a bad name, writing none."""
    _append(path, "".join(output(name, value) for name, value in values.items()))


def summary_room(path: Path) -> int:
    """Bytes that may still be added to the file that GITHUB_STEP_SUMMARY names."""
    return max(0, SUMMARY_BYTES - (path.stat().st_size if path.exists() else 0))


def append_summary(path: Path, markdown: str) -> None:
    """Append to the step summary. Raises ValueError when GitHub would drop the whole summary for it."""
    size, room = len(markdown.encode(errors="replace")), summary_room(path)
    if size > room:
        raise ValueError(f"{size} bytes do not fit into the {room} that the step summary has left")
    _append(path, markdown)


@dataclass(frozen=True)
class Section:
    """A part of a summary that may be cut between its items: `head` opens it, `tail` closes its tags.

    Each item is whole by itself: it opens no tag that it does not close.
    """

    head: str
    items: Sequence[str] = ()
    tail: str = ""
    noun: str = "more"
    """What a cut leaves out, such as `more tests`."""


def fit(sections: Iterable[Section], budget: int, *, where: str) -> str:
    """The sections in their order, at most `budget` bytes of UTF-8, every one that is opened closed.

    A section is cut between items, with a line that counts what is left out and says `where` it is; a section
    of which not even the head fits is left out.
    """
    written: list[str] = []
    left = budget
    for section in sections:
        text = _cut(section, left, where)
        written.append(text)
        left -= len(text.encode())
    return "".join(written)


def _cut(section: Section, budget: int, where: str) -> str:
    def closing(count: int) -> str:
        more = f"\n*{count:,} {section.noun}: {where}.*\n" if count else ""
        return f"{section.tail}{more}"

    head = _utf8(section.head)
    items = [_utf8(item) for item in section.items]
    left = budget - len(head.encode()) - len(closing(len(items)).encode())
    if left < 0:
        return ""
    kept = 0
    for item in items:
        size = len(item.encode())
        if size > left:
            break
        left -= size
        kept += 1
    return head + "".join(items[:kept]) + closing(len(items) - kept)


@dataclass(frozen=True)
class Annotation:
    """A message that GitHub shows on the page of the run, at a line of a file when it has one."""

    level: Level
    title: str
    message: str
    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        """The workflow command, one line whatever the texts hold."""
        title = self.title[:_TITLE_CHARACTERS]
        fields = {"title": title, "file": self.file, "line": str(self.line) if self.line else ""}
        properties = ",".join(f"{name}={_property(value)}" for name, value in fields.items() if value)
        return f"::{self.level} {properties}::{_data(self.message[:_MESSAGE_CHARACTERS])}"


def shown(annotations: Iterable[Annotation], *, where: str) -> list[Annotation]:
    """The annotations that GitHub shows of a step: 10 a level, so at most 30 of the job's 50.

    GitHub cuts silently, so of more than 10 the first 9 stay and a tenth says how many there are and `where`.
    """
    given = list(annotations)
    total = Counter(one.level for one in given)
    seen: Counter[Level] = Counter()
    kept: list[Annotation] = []
    for one in given:
        seen[one.level] += 1
        most = ANNOTATIONS_PER_STEP
        if total[one.level] <= most or seen[one.level] < most:
            kept.append(one)
        elif seen[one.level] == most:
            rest = total[one.level] - most + 1
            kept.append(Annotation(one.level, f"{rest:,} more of this kind", where))
    return kept


def markdown_text(content: str) -> str:
    """Text inside a line or a table of Markdown: whatever could be markup is a character reference."""
    line = " ".join(content.split())
    return re.sub(r"[\\`*_{}\[\]<>#|~&!@$]", lambda found: f"&#{ord(found[0])};", line)


def inert(text: str) -> str:
    """Text of unknown origin, safe to print in a step: no line of it is a command to the runner.

    A line that starts with `::` after blanks gets a mark before it, and `##[` loses its shape.
    """
    lines = re.split(r"\r\n|\r|\n", text.replace("##[", "# #["))
    return "\n".join(f"| {line}" if line.lstrip().startswith("::") else line for line in lines)


def _delimiter(value: str) -> str:
    """A delimiter that the value cannot hold: its own hash. The same output is the same text, always."""
    return f"ghadelimiter_{hashlib.sha256(value.encode(errors='replace')).hexdigest()[:32]}"


def _append(path: Path, text: str) -> None:
    with path.open("ab") as file:  # binary: no platform's newlines
        file.write(text.encode(errors="replace"))


def _utf8(text: str) -> str:
    """The text with what UTF-8 cannot hold (a lone surrogate of a file's name) as `?`."""
    return text.encode(errors="replace").decode()


def _data(text: str) -> str:
    return _utf8(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
