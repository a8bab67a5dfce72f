"""``heliograph check FILE``, which checks a configuration file of any kind and changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rich.table import Table
from rich.text import Text

from connect.cli.check.connector_config import check_connector, in_properties, of_json, of_properties, of_values
from connect.cli.check.findings import CheckReport, FileKind, Level, kind_of_properties, kind_of_text, report_as_json
from connect.cli.check.properties_files import check_client, check_mirror, check_worker_file
from connect.cli.check.strimzi import check_strimzi
from connect.cli.console import EXIT_OK
from connect.cli.tables import console, new_table, printable, show_json
from connect.core.config.properties import MAX_FILE_BYTES, load_properties
from connect.core.errors import ConfigError

_STYLES: Final = {Level.ERROR: "bold red", Level.UNKNOWN: "bold red", Level.WARNING: "yellow", Level.NOTE: ""}
_WORDS: Final = {
    Level.ERROR: ("error", "errors"),
    Level.UNKNOWN: ("item not checked", "items not checked"),
    Level.WARNING: ("warning", "warnings"),
    Level.NOTE: ("note", "notes"),
}


def show_report(report: CheckReport) -> None:
    """Print the outcomes, the clusters, the findings, and the verdict as the last line."""
    out = console()
    out.print(f"{printable(report.file)}, for {report.runs_with}", markup=False, soft_wrap=True)
    for table in (_outcomes(report), _clusters(report), _findings(report)):
        if table.row_count:
            out.print(table)
    out.print(verdict(report), markup=False, soft_wrap=True)


def verdict(report: CheckReport) -> str:
    """Count the findings: ``mm2.properties: 1 error, 2 warnings``."""
    counts = {level: report.count(level) for level in Level}
    told = [f"{count} {_WORDS[level][count != 1]}" for level, count in counts.items() if count]
    return f"{printable(report.file)}: {', '.join(told) or 'no problems'}"


def _outcomes(report: CheckReport) -> Table:
    table = new_table("what", "would do")
    for one in report.outcomes:
        for at, sentence in enumerate(one.does):
            table.add_row(_text("" if at else one.what), _text(sentence))
    return table


def _clusters(report: CheckReport) -> Table:
    table = new_table("cluster", "addresses", "brokers", "Kafka", "cluster id")
    for one in report.clusters:
        if one.error:
            table.add_row(_text(one.name), _text(one.addresses), _text("no answer", _STYLES[Level.ERROR]), "", "")
            continue
        release = f"{one.release} or later" if one.release else "unknown"
        table.add_row(*map(_text, (one.name, one.addresses, str(one.brokers), release, one.cluster_id)))
    return table


def _findings(report: CheckReport) -> Table:
    table = new_table("line", "", "finding")
    for row in _rows(report):
        table.add_row(*row)
    return table


def _rows(report: CheckReport) -> Iterator[tuple[Text, Text, Text]]:
    for one in report.findings:
        line = "" if one.line is None else str(one.line)
        yield _text(line), _text(one.level, _STYLES[one.level]), _text(one.text)


def _text(text: str, style: str = "") -> Text:
    return Text(printable(text), style=style)


#: As of ``heliograph plan``, ``drift`` and ``takeover``.
EXIT_UNKNOWN: Final = 1
EXIT_PROBLEMS: Final = 2
_RUNS_WITH: Final = {
    FileKind.MIRROR: "connect-mirror-maker",
    FileKind.WORKER: "connect-distributed",
    FileKind.CONNECTOR: "heliograph connectors create, or POST /connectors",
    FileKind.CONSUMER: "kafka-mirror-maker --consumer.config",
    FileKind.PRODUCER: "kafka-mirror-maker --producer.config",
    FileKind.STRIMZI: "heliograph mirror -f",
}


def run_check(file: Path, *, kind: FileKind | None, offline: bool, as_json: bool, secrets: Path | None = None) -> int:
    """Print the report and return the exit code. ``secrets`` is the folder with a Strimzi resource's secrets.

    Raises:
        ConfigError: The file cannot be read or its kind is not known; ``secrets`` is not a folder, or is given for a
            file of another kind.
    """
    report = asyncio.run(checked(file, kind, offline=offline, secrets=secrets))
    if as_json:
        show_json(report_as_json(report))
    else:
        show_report(report)
    if report.count(Level.ERROR):
        return EXIT_PROBLEMS
    return EXIT_UNKNOWN if report.count(Level.UNKNOWN) else EXIT_OK


async def checked(file: Path, kind: FileKind | None, *, offline: bool, secrets: Path | None = None) -> CheckReport:
    """Check a file. Raises ConfigError as :func:`run_check` does."""
    text = _read_text(file)
    kind = kind or kind_of_text(text)
    name = str(file)
    if kind is FileKind.STRIMZI:
        return await check_strimzi(text, _report(name, kind), secrets=secrets, offline=offline)
    if secrets is not None:
        raise ConfigError("this is not a Strimzi resource. Leave --secrets out", "--secrets", name)
    if kind is FileKind.CONNECTOR and text.lstrip().startswith(("{", "[")):
        return await check_connector(of_json(text, name), _report(name, kind), offline=offline)
    props = load_properties(file)
    kind = kind or kind_of_properties(props, name)
    report = _report(name, kind)
    if kind is not FileKind.CONNECTOR:
        report = report.with_findings(of_values(in_properties(props)))
    match kind:
        case FileKind.MIRROR:
            return await check_mirror(props, report, offline=offline)
        case FileKind.WORKER:
            return await check_worker_file(props, report, offline=offline)
        case FileKind.CONSUMER | FileKind.PRODUCER:
            return await check_client(props, report, is_consumer=kind is FileKind.CONSUMER, offline=offline)
        case _:
            return await check_connector(of_properties(props, name), report, offline=offline)


def _report(file: str, kind: FileKind) -> CheckReport:
    return CheckReport(file, kind.value, _RUNS_WITH[kind])


def _read_text(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror or type(error).__name__}", file=str(file)) from None
    # A properties file may hold bytes that are not UTF-8; they are not refused here.
    return data.decode("utf-8", "replace").removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}")
