"""How tables reach a person: colours on a terminal alone, and no column cut when piped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDE = 200
STYLES = {
    "runs": "bold green",
    "passed": "green",
    "written": "yellow",
    "removed": "red",
    "failed": "bold red",
    "not selected": "dim",
    "unchanged": "dim",
    "disabled": "yellow",
    "empty": "yellow",
}


class PipeConsole(Console):
    """A console whose reader may stop reading, as `head` does; rich would end with 1, which means failed here."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console(*, stderr: bool = False) -> Console:
    """A console that fits a terminal and is wide where nobody resizes it."""
    found = PipeConsole(stderr=stderr, highlight=False)
    return found if found.is_terminal else PipeConsole(stderr=stderr, highlight=False, width=WIDE)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    """Print rows under their columns; words with a meaning get their colour."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in row))
    console().print(table)
