"""``heliograph check FILE``: what would come of a configuration file, whatever it is for. Nothing is changed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from connect.cli.check_connector import check_connector, of_json, of_properties
from connect.cli.check_kind import Kind, kind_of_properties, kind_of_text
from connect.cli.check_mirror import check_mirror
from connect.cli.check_mirror_maker_1 import check_client
from connect.cli.check_report import Level, Report, report_as_json
from connect.cli.check_strimzi import check_strimzi
from connect.cli.check_values import in_properties, of_values
from connect.cli.check_view import show_report
from connect.cli.check_worker import check_worker_file
from connect.cli.connectors_view import show_json
from connect.cli.console import EXIT_OK
from connect.core.errors import ConfigError
from connect.core.properties import MAX_FILE_BYTES, load_properties

#: As of ``heliograph plan`` and its kin.
EXIT_UNKNOWN: Final = 1
EXIT_PROBLEMS: Final = 2
_RUNS_WITH: Final = {
    Kind.MIRROR: "connect-mirror-maker",
    Kind.WORKER: "connect-distributed",
    Kind.CONNECTOR: "heliograph connectors create, or POST /connectors",
    Kind.CONSUMER: "kafka-mirror-maker --consumer.config",
    Kind.PRODUCER: "kafka-mirror-maker --producer.config",
    Kind.STRIMZI: "heliograph mirror -f",
}


def run_check(file: Path, *, kind: Kind | None, offline: bool, as_json: bool, secrets: Path | None = None) -> int:
    """Print what is found; the exit code. ``secrets`` is the folder of a Strimzi resource's.

    Raises:
        ConfigError: The file cannot be read, or nothing in it tells what it is for; ``secrets`` is no folder, or given
            for a file of another kind.
    """
    report = asyncio.run(checked(file, kind, offline=offline, secrets=secrets))
    if as_json:
        show_json(report_as_json(report))
    else:
        show_report(report)
    if report.count(Level.ERROR):
        return EXIT_PROBLEMS
    return EXIT_UNKNOWN if report.count(Level.UNKNOWN) else EXIT_OK


async def checked(file: Path, kind: Kind | None, *, offline: bool, secrets: Path | None = None) -> Report:
    """What is found of a file; raises ConfigError as :func:`run_check`."""
    text = _text(file)
    kind = kind or kind_of_text(text)
    name = str(file)
    if kind is Kind.STRIMZI:
        return await check_strimzi(text, _report(name, kind), secrets=secrets, offline=offline)
    if secrets is not None:
        raise ConfigError("only a Strimzi resource has secrets in a folder, and this is none", "--secrets", name)
    if kind is Kind.CONNECTOR and text.lstrip().startswith(("{", "[")):
        return await check_connector(of_json(text, name), _report(name, kind), offline=offline)
    props = load_properties(file)
    kind = kind or kind_of_properties(props, name)
    report = _report(name, kind)
    if kind is not Kind.CONNECTOR:
        report = report.with_findings(of_values(in_properties(props)))
    match kind:
        case Kind.MIRROR:
            return await check_mirror(props, report, offline=offline)
        case Kind.WORKER:
            return await check_worker_file(props, report, offline=offline)
        case Kind.CONSUMER | Kind.PRODUCER:
            return await check_client(props, report, is_consumer=kind is Kind.CONSUMER, offline=offline)
        case _:
            return await check_connector(of_properties(props, name), report, offline=offline)


def _report(file: str, kind: Kind) -> Report:
    return Report(file, kind.value, _RUNS_WITH[kind])


def _text(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror or type(error).__name__}", file=str(file)) from None
    # What a properties file may hold beside UTF-8 is no reason to refuse it here.
    return data.decode("utf-8", "replace").removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}")
