"""What a check looks like on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.table import Table
from rich.text import Text

from connect.cli.check_report import Level, Report
from connect.cli.connectors_view import console, new_table, printable

_STYLES: Final = {Level.ERROR: "bold red", Level.UNKNOWN: "bold red", Level.WARNING: "yellow", Level.NOTE: ""}
_WORDS: Final = {
    Level.ERROR: ("error", "errors"),
    Level.UNKNOWN: ("thing that could not be looked at", "things that could not be looked at"),
    Level.WARNING: ("warning", "warnings"),
    Level.NOTE: ("note", "notes"),
}


def show_report(report: Report) -> None:
    """What would happen, the clusters, what is to be said of the file, and the verdict in the last line."""
    out = console()
    out.print(f"{printable(report.file)}, for {report.runs_with}", markup=False, soft_wrap=True)
    for table in (_outcomes(report), _clusters(report), _findings(report)):
        if table.row_count:
            out.print(table)
    out.print(verdict(report), markup=False, soft_wrap=True)


def verdict(report: Report) -> str:
    """``mm2.properties: 1 error, 2 warnings``."""
    counts = {level: report.count(level) for level in Level}
    told = [f"{count} {_WORDS[level][count != 1]}" for level, count in counts.items() if count]
    return f"{printable(report.file)}: {', '.join(told) or 'nothing to say against it'}"


def _outcomes(report: Report) -> Table:
    table = new_table("what", "would do")
    for one in report.outcomes:
        for at, sentence in enumerate(one.does):
            table.add_row(_text("" if at else one.what), _text(sentence))
    return table


def _clusters(report: Report) -> Table:
    table = new_table("cluster", "addresses", "brokers", "Kafka", "cluster id")
    for one in report.clusters:
        if one.error:
            table.add_row(_text(one.name), _text(one.addresses), _text("no answer", _STYLES[Level.ERROR]), "", "")
            continue
        release = f"{one.release} or later" if one.release else "not told"
        table.add_row(*map(_text, (one.name, one.addresses, str(one.brokers), release, one.cluster_id)))
    return table


def _findings(report: Report) -> Table:
    table = new_table("line", "", "what is to be said")
    for row in _rows(report):
        table.add_row(*row)
    return table


def _rows(report: Report) -> Iterator[tuple[Text, Text, Text]]:
    for one in report.findings:
        line = "" if one.line is None else str(one.line)
        yield _text(line), _text(one.level, _STYLES[one.level]), _text(one.text)


def _text(text: str, style: str = "") -> Text:
    return Text(printable(text), style=style)
