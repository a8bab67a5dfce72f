"""The options of ``heliograph verify``, without what it needs to run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from connect.cli.options_and_help import AnyMirrorFile, AsJson, OneFlow, finish


def verify(
    file: AnyMirrorFile = None,
    flow: OneFlow = None,
    topics: Annotated[
        list[str] | None, typer.Option(metavar="TOPIC", help="Only these source topics, by name or pattern.")
    ] = None,
    begin: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="From this time on, as 2026-11-20T11:00Z.")
    ] = None,
    to: Annotated[str | None, typer.Option(metavar="TIME", help="Only records before this time.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Compare what earlier runs have verified too.")] = False,
    rate: Annotated[
        int, typer.Option(min=0, metavar="BYTES", help="Limit of source bytes read a second; 0: unlimited.")
    ] = 0,
    memory: Annotated[int, typer.Option(min=1, metavar="MB", help="Memory for the records of each task.")] = 64,
    tasks: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Spark tasks at once. Default: one a core.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report to a .txt, .json or .html file.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Verify what is copied meanwhile too, until Ctrl-C.")] = False,
    as_json: AsJson = False,
    check_report: Annotated[
        Path | None,
        typer.Option(
            "--check", metavar="REPORT", help="Only check the SHA-256 of a .json or .html report, and what it shows."
        ),
    ] = None,
) -> None:
    """Compare what a flow has copied with its source, record by record, in a Spark job of its own.

    It continues where the last run ended. Progress is printed to standard error, with --json as JSON lines.

    Exit codes: 0 equal (undecided records do not count), 2 differences, 1 an error, or no difference and partitions
    that could not be compared."""
    from connect.cli.commands import verify as command

    if check_report is not None:
        finish(command.check_report, check_report)
    arguments = command.VerifyArguments(
        file, flow, tuple(topics or ()), begin, to, full, rate, memory, tasks, report, watch, as_json
    )
    finish(command.run_verify, arguments)
