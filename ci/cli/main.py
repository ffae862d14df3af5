"""Entry point of `nightcap`. Commands are imported when they are called, so that `--help` starts at once."""

from __future__ import annotations

import importlib
import os
import sys
from datetime import date
from pathlib import Path

import click

from ci import __version__

COMMANDS = {
    "init": "Write a first spec and a fleet file that pass all checks.",
    "list": "Jobs with their pools, suites and tags.",
    "generate": "Write .github/workflows from the specs, or check that it is up to date.",
    "plan": "What would run on an event with a filter, and why.",
    "suites": "Suites with their files and needs, and what is wrong with them.",
    "where": "Where a test runs: suite, jobs, pools, shard, and the command to run just that.",
    "shards": "Who runs what in a job, and whether another shard would help.",
    "durations": "Refresh the measured times from journals.",
    "run": "Run a job, or one shard of it, on this machine.",
    "gate": "The night's verdict from a plan and the journals.",
    "local": "Run the generated workflow on this machine.",
    "doctor": "The state of this host's GPUs.",
    "step": "One step inside the generated workflow.",
}
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_BROKEN_PIPE = 141
"""128 + SIGPIPE, as of any command whose reader went away. Never 0: `nightcap gate | head` may not turn green."""


class ReaderLeft(Exception):
    """Nobody reads standard output any more. A BrokenPipeError itself would end in click with 1, which means failed."""


class LazyGroup(click.Group):
    """A group whose commands live in `ci.cli.NAME` and whose help needs none of them."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ReaderLeft from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"ci.cli.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        from ci.spec.problems import did_you_mean

        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"no such command {args[0]!r}. {did_you_mean(args[0], COMMANDS)}".rstrip())
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 all is well, 1 something failed or is out of date, 2 the specs or the call are wrong; "
    "`run` and `gate` say more in their own help.",
)
@click.option(
    "-C",
    "--root",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=Path(),
    help="Repository to work in.  [default: this folder]",
)
@click.option("--today", metavar="YYYY-MM-DD", help="Judge expiry dates as of this day.  [default: today]")
@click.version_option(__version__, prog_name="nightcap")
@click.pass_context
def cli(ctx: click.Context, root: Path, today: str | None) -> None:
    """Nightly GPU CI that cannot lie: specs become workflows, and every planned test has exactly one result.

    \b
    Example:
      nightcap plan --event workflow_dispatch --filter "8-gpu-*, !perf*"
    """
    from ci.cli.project import Project

    try:
        day = date.fromisoformat(today) if today else date.today()
    except ValueError:
        raise click.BadParameter(f"{today!r} is no date: write it as 2026-12-31", param_hint="--today") from None
    ctx.obj = Project(root.resolve(), day)


def main() -> None:
    """Run the command line; a user's mistake is printed, never shown as a traceback."""
    from ci.spec.problems import FilterError, SpecError

    try:
        cli(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(EXIT_USAGE)
    except (SpecError, FilterError) as error:
        click.echo(f"{len(error.problems)} problem{'s' * (len(error.problems) != 1)}:", err=True)
        for problem in error.problems:
            click.echo(f"  {problem}", err=True)
        sys.exit(EXIT_USAGE)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except ReaderLeft:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_BROKEN_PIPE)
    except OSError as error:
        if error.strerror is None:
            raise
        click.echo("Error: " + ": ".join(str(part) for part in (error.filename, error.strerror) if part), err=True)
        sys.exit(EXIT_USAGE)
