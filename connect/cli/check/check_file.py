"""``heliograph check FILE``, which checks a configuration file of any kind and changes nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from rich.text import Text

from connect.cli.check import findings
from connect.cli.check.connector_config import check_connector, in_properties, of_json, of_properties, of_values
from connect.cli.check.findings import CheckFinding, CheckReport, FileKind, Level, SeenCluster
from connect.cli.check.properties_files import check_client, check_mirror, check_worker_file
from connect.cli.check.strimzi import check_strimzi
from connect.cli.console import exit_code
from connect.cli.tables import ERROR, show, show_json, table, text
from connect.core.config.properties import MAX_FILE_BYTES, load_properties
from connect.core.errors import ConfigError
from connect.core.wording import printable

_STYLES: Final = {Level.ERROR: ERROR, Level.UNKNOWN: ERROR, Level.WARNING: "yellow", Level.NOTE: ""}
_WORDS: Final = {
    Level.ERROR: ("error", "errors"),
    Level.UNKNOWN: ("item not checked", "items not checked"),
    Level.WARNING: ("warning", "warnings"),
    Level.NOTE: ("note", "notes"),
}


def show_report(report: CheckReport) -> None:
    show(f"{report.file}, for {report.runs_with}")
    outcomes = (("" if at else one.what, does) for one in report.outcomes for at, does in enumerate(one.does))
    show(table(("what", "would do"), outcomes))
    show(table(("cluster", "addresses", "brokers", "Kafka", "cluster id"), map(_cluster, report.clusters)))
    rows = ((str(one.line or ""), text(one.level, _STYLES[one.level]), one.text) for one in report.findings)
    show(table(("line", "", "finding"), rows))
    show(verdict(report))


def verdict(report: CheckReport) -> str:
    """Count the findings: ``mm2.properties: 1 error, 2 warnings``."""
    counts = {level: report.count(level) for level in Level}
    reported = [f"{count} {_WORDS[level][count != 1]}" for level, count in counts.items() if count]
    return f"{printable(report.file)}: {', '.join(reported) or 'no problems'}"


def _cluster(one: SeenCluster) -> tuple[str | Text, ...]:
    if one.error:
        return one.name, one.addresses, text("no answer", ERROR)
    release = f"{one.release} or later" if one.release else "unknown"
    return one.name, one.addresses, str(one.brokers), release, one.cluster_id


_RUNS_WITH: Final = {
    FileKind.MIRROR: "connect-mirror-maker",
    FileKind.WORKER: "connect-distributed",
    FileKind.CONNECTOR: "heliograph connectors create, or POST /connectors",
    FileKind.CONSUMER: "kafka-mirror-maker --consumer.config",
    FileKind.PRODUCER: "kafka-mirror-maker --producer.config",
    FileKind.STRIMZI: "heliograph mirror -f",
}


def run_check(file: Path, *, kind: FileKind | None, offline: bool, as_json: bool, secrets: Path | None = None) -> int:
    """Print the report and return the exit code. ``secrets`` is the folder with a Strimzi resource's secrets. Raises
    ConfigError if the file cannot be read or its kind is not known, or if ``secrets`` is not a folder, or is given for
    a file of another kind."""
    report = asyncio.run(checked(file, kind, offline=offline, secrets=secrets))
    if as_json:
        show_json(findings.report_as_json(report))
    else:
        show_report(report)
    errors = report.count(Level.ERROR) > 0
    return exit_code(unknown=not errors and report.count(Level.UNKNOWN) > 0, found=errors)


async def checked(file: Path, kind: FileKind | None, *, offline: bool, secrets: Path | None = None) -> CheckReport:
    """Check a file. Raises ConfigError as :func:`run_check` does."""
    text = _read_text(file)
    kind = kind or findings.kind_of_text(text)
    name = str(file)
    if kind is FileKind.STRIMZI:
        return await check_strimzi(text, _report(name, kind), secrets=secrets, offline=offline)
    if secrets is not None:
        raise ConfigError("this is not a Strimzi resource. Leave --secrets out", "--secrets", name)
    if kind is FileKind.CONNECTOR and text.lstrip().startswith(("{", "[")):
        return await check_connector(of_json(text, name), _report(name, kind), offline=offline)
    props = load_properties(file)
    kind = kind or findings.kind_of_properties(props, name)
    report = _report(name, kind).with_findings(
        CheckFinding(Level.WARNING, f"{key} is also on line {line}, where it has no effect", key, props.line(key))
        for key, line in props.replaced.items()
    )
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
