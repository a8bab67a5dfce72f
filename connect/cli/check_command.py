"""``heliograph check``: its arguments. What it does is loaded when it runs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from connect.cli.check_kind import Kind
from connect.cli.console import configure_logging, run_command


def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to look at.", show_default=False)],
    kind: Annotated[
        Kind | None, typer.Option(help="What it is for, where its content does not tell.", show_default=False)
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Look at the file alone, and ask no cluster.")] = False,
    secrets: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Secrets of a resource as Kubernetes mounts them: DIR/NAME/KEY.", show_default=False
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print what would come of a file, and change nothing: an mm2.properties, a worker's properties, a connector's
    JSON or properties, the two files of kafka-mirror-maker, a Strimzi resource.

    It says what each flow or connector would do, which clusters answer and of which release they are, which rights are
    missing, and which keys are refused, unknown or without effect, each with its line.

    Exit codes: 0 nothing is against it, 2 something is, 1 an error, or a cluster that could not be asked."""
    from connect.cli.check import EXIT_UNKNOWN, run_check

    configure_logging("CRITICAL")
    looked = partial(run_check, file, kind=kind, offline=offline, as_json=as_json, secrets=secrets)
    raise typer.Exit(run_command("heliograph", looked, EXIT_UNKNOWN))
