"""The ``heliograph`` command. Each subcommand imports what it needs when it runs, so that this module loads fast."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer

from connect.cli.console import EXIT_OK, run_command
from connect.cli.dev import dev

PROGRAM: Final = "heliograph"

app = typer.Typer(
    name=PROGRAM,
    help="Kafka Connect's distributed worker and MirrorMaker 2 in Python, with the copying done on Apache Spark.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.command()
def demo(
    records: Annotated[
        int | None,
        typer.Option(min=1, help="Write this many records, wait until they are mirrored, compare, exit 0 if equal."),
    ] = None,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Folder that keeps mm2.properties and the log.", show_default=False)
    ] = None,
    rate: Annotated[
        int | None, typer.Option(min=1, help="Records a second to write; with --records as fast as possible.")
    ] = None,
) -> None:
    """Mirror sample orders between two Kafka clusters on this machine, and show it."""
    from connect.cli.demo import demo as run_demo

    raise typer.Exit(run_demo(records=records, directory=directory, rate=rate))


app.command()(dev)


@app.command()
def warm() -> None:
    """Record the classes that Spark loads, once for this Java and Spark, so that every later start takes less time."""
    from connect.cli.warm import warm as record

    raise typer.Exit(record())


@app.command(add_help_option=False, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def mirror(
    arguments: Annotated[list[str] | None, typer.Argument(metavar="mm2.properties [--clusters ALIAS ...]")] = None,
) -> None:
    """Mirror every enabled flow of a file until stopped: connect-mirror-maker under another name."""
    from connect.cli.mirror_maker import run_with_arguments

    raise typer.Exit(run_with_arguments(f"{PROGRAM} mirror", arguments or []))


def main() -> NoReturn:
    """Entry point of the ``heliograph`` command."""
    sys.exit(run_command(PROGRAM, _invoke))


def _invoke() -> int:
    app(prog_name=PROGRAM)
    return EXIT_OK
