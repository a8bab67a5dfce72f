"""The forms of the report of a verification: text of at most 80 columns, JSON, and one HTML page.

The page has no script and nothing from elsewhere; it holds the JSON form as data. The SHA-256 is that of the result as
JSON with sorted keys, without spaces and in ASCII. It is not a signature: compare it with the one that the run printed.
"""

from __future__ import annotations

import hashlib
import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from connect.core.errors import PermanentError
from connect.core.wording import bytes_text, counted, in_utc, printable
from connectors.verification import report

_SUM: Final = "sha256"
_COLUMNS: Final = 80
_NAME_COLUMNS: Final = 34
#: Most differences and topics in the text.
_MOST_IN_TEXT: Final = 20
#: Most rows of a table of the page; the JSON form has all.
_MOST_ROWS: Final = 500
_DATA: Final = re.compile(r'<script type="application/json" id="report">(.*?)</script>', re.DOTALL)
#: Of the plot of the rate, in units of its view box.
_WIDTH, _HEIGHT, _LEFT, _BELOW = 720, 200, 64, 24
_BAR_UNITS: Final = 1000

_STYLE: Final = """\
:root { color-scheme: light dark; --back: #fff; --fore: #1b1f24; --soft: #5b6470; --line: #d9dee4; --card: #f5f7f9;
  --good: #1a7f4b; --bad: #c0392b; --explained: #b7791f; --left: #a9b3bd; --accent: #2563a8; }
@media (prefers-color-scheme: dark) {
  :root { --back: #14181d; --fore: #e6e9ed; --soft: #9aa5b1; --line: #303841; --card: #1c2229;
    --good: #4cc38a; --bad: #ff7b6b; --explained: #e0b050; --left: #56616d; --accent: #6cb0f5; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 62rem; background: var(--back); color: var(--fore);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.35rem; margin: 0 0 .25rem; } h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
.verdict { border-left: 6px solid var(--good); padding: .5rem 1rem; background: var(--card); border-radius: 4px; }
.verdict.differs { border-color: var(--bad); } .verdict.part { border-color: var(--explained); }
.verdict p { margin: .2rem 0; } .soft { color: var(--soft); } .bad { color: var(--bad); font-weight: 600; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; color: var(--soft); font-size: .85rem; white-space: nowrap; }
th, td { padding: .35rem .75rem .35rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.n, th.n { text-align: right; white-space: nowrap; } td.text { overflow-wrap: anywhere; min-width: 12rem; }
code { font: .86rem/1.45 ui-monospace, "Cascadia Mono", Menlo, monospace; overflow-wrap: anywhere; }
td.bar { width: 34%; min-width: 8rem; } svg { display: block; width: 100%; }
svg.bar { height: .8rem; margin-top: .3rem; border-radius: 3px; background: var(--line); }
.equal { fill: var(--good); } .explained { fill: var(--explained); } .left { fill: var(--left); }
.area { fill: var(--accent); opacity: .2; } .rate { fill: none; stroke: var(--accent); stroke-width: 2; }
.axis { stroke: var(--line); } svg text { fill: var(--soft); font-size: 12px; }
.key span { display: inline-block; width: .8rem; height: .8rem; border-radius: 2px; margin: 0 .3rem 0 1rem; }
.key span:first-child { margin-left: 0; } summary { cursor: pointer; color: var(--accent); margin: .5rem 0; }
"""


def digest(result: report.VerificationResult) -> str:
    """Return the SHA-256 of a result, in hexadecimal."""
    return _digest(result.to_json())


def to_document(result: report.VerificationResult) -> dict[str, Any]:
    """Return the JSON form: the fields of the result, and its sum under ``sha256``."""
    return {**result.to_json(), _SUM: digest(result)}


def page(result: report.VerificationResult) -> str:
    """Return the HTML form, which holds the JSON form too."""
    return "\n".join(_page(result, json.dumps(to_document(result)), digest(result))) + "\n"


def read_report(text: str) -> report.VerificationResult:
    """Return the result in a report in JSON or HTML, once its sum is checked; of a page, what it shows is too. Raises
    PermanentError if it is not a report, its contents do not have the sum it states, or the page shows other data."""
    data = _DATA.search(text) if text.startswith("<!doctype html>") else None
    try:
        document = json.loads(text if data is None else data[1])
        stated = document.pop(_SUM)
        result = report.VerificationResult.from_json(document)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PermanentError(
            f"it is not a report of a verification in JSON or HTML, which alone can be checked ({error}); write one "
            "with heliograph verify --report verified.json"
        ) from error
    if stated != _digest(document):
        raise PermanentError(f"the report was changed: its contents have the SHA-256 {_digest(document)}, not {stated}")
    if data is not None and text != page(result):
        raise PermanentError(
            "the data of the page are unchanged, but the page is not what this version makes of them: it was "
            "changed, or written by another version"
        )
    return result


def _digest(document: Mapping[str, Any]) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def to_text(result: report.VerificationResult, sha256: str) -> str:
    """Return the report, differences and explained ranges first; it ends with a line break."""
    return "\n".join(map(printable, _lines(result, sha256))) + "\n"


def _lines(result: report.VerificationResult, sha256: str) -> Iterator[str]:
    yield from _folded(report.headline(result))
    for sentence in report.limits(result):
        yield from _folded(sentence, "  ")
    if named := report.differences(result):
        yield from ("", "Differences")
        yield from _record_lines(named, result.differences_total)
    yield from _undecided_lines(result)
    yield from _explained_lines(result)
    yield from _topic_lines(result)
    yield ""
    yield f"Read {report.speed(result)}, from {in_utc(result.began_ms)}"
    yield f"SHA-256 {sha256}"


def _undecided_lines(result: report.VerificationResult) -> Iterator[str]:
    named = report.undecided(result)
    of_reason = attrgetter("undecided")
    for reason, some in groupby(sorted(named, key=of_reason), key=of_reason):
        yield from ("", *_folded(f"Undecided: {reason}"))
        yield from _record_lines(list(some))
    if result.undecided_total > len(named):
        yield f"  and {result.undecided_total - len(named):,} more, which are not named"


def _record_lines(named: Sequence[report.Difference], total: int | None = None) -> Iterator[str]:
    for one in named[:_MOST_IN_TEXT]:
        yield from _folded(f"{_place(one)}: {one.kind}", "  ")
        # Contents of records have no words to fold at.
        yield from (f"    {one.what[at : at + _COLUMNS - 4]}" for at in range(0, len(one.what), _COLUMNS - 4))
    if (left := (len(named) if total is None else total) - min(len(named), _MOST_IN_TEXT)) > 0:
        yield f"  and {left:,} more; the JSON and HTML reports name {len(named):,}"


def _place(one: report.Difference) -> str:
    sides = (("source", one.source_offset), ("target", one.target_offset))
    offsets = ", ".join(f"{side} {'-' if offset is None else f'{offset:,}'}" for side, offset in sides)
    return f"{one.topic}-{one.partition}, {offsets}"


def _explained_lines(result: report.VerificationResult) -> Iterator[str]:
    if found := report.explanations(result):
        yield from ("", "Explained, and no difference")
        rows = []
        for one in found:
            records = "-" if one.records < 0 else f"{one.records:,}"
            rows.append((one.reason.value, one.side, f"{one.ranges:,}", f"{one.offsets:,}", records))
        yield from _table_lines(("reason", "side", "ranges", "offsets", "records"), rows)


def _topic_lines(result: report.VerificationResult) -> Iterator[str]:
    found = report.coverage(result)
    yield from ("", "Topics")
    rows = [
        (
            one.topic,
            f"{one.records:,}",
            bytes_text(one.bytes),
            report.share(one.compared + one.explained, one.offsets),
            f"{one.differences:,}",
        )
        for one in found[:_MOST_IN_TEXT]
    ]
    yield from _table_lines(("topic", "records", "compared", "covered", "differ"), rows)
    if len(found) > _MOST_IN_TEXT:
        yield f"  and {len(found) - _MOST_IN_TEXT:,} more topics"


def _table_lines(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """The first column to the left, numbers to the right; a name that is too long gets a line of its own."""
    cells = [columns, *rows]
    first = min(max(len(row[0]) for row in cells), _NAME_COLUMNS)
    widths = [max(len(row[at]) for row in cells) for at in range(1, len(columns))]
    for row in cells:
        rest = "".join(f"  {cell:>{width}}" for cell, width in zip(row[1:], widths, strict=True))
        if len(row[0]) > first:
            yield from _folded(row[0], "  ")
            yield f"  {'':{first}}{rest}"
        else:
            yield f"  {row[0]:{first}}{rest}"


def _folded(sentence: str, indent: str = "") -> list[str]:
    return textwrap.wrap(sentence, _COLUMNS, initial_indent=indent, subsequent_indent=f"{indent}  ") or [indent]


def _page(result: report.VerificationResult, document: str, sha256: str) -> Iterator[str]:
    title = escape(f"heliograph verify {result.flow}")
    yield '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield """<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">"""
    yield f"<title>{title}</title>\n<style>\n{_STYLE}</style></head><body>"
    yield f'<h1>{title}</h1><p class="soft">{in_utc(result.began_ms)} to {in_utc(result.ended_ms)}</p>'
    yield from _verdict(result)
    yield from _differences(result)
    yield from _undecided(result)
    yield from _explained(result)
    yield from _coverage(report.coverage(result))
    yield from _rates(list(report.rates(result)))
    yield from _settings(result)
    yield "<h2>SHA-256</h2>"
    yield f"<p><code>{sha256}</code></p>"
    yield '<p class="soft">Of the data in this page. <code>heliograph verify --check FILE</code> computes it again and '
    yield "compares what the page shows with its data.</p>"
    # A "<" in a topic's name or a record could end the element.
    data = document.replace("<", "\\u003c")
    yield f'<script type="application/json" id="report">{data}</script></body></html>'


def _verdict(result: report.VerificationResult) -> Iterator[str]:
    restricted = report.limits(result)
    kind = " differs" if not result.is_equal else " part" if restricted or result.undecided_total else ""
    yield f'<div class="verdict{kind}"><p><strong>{escape(report.headline(result))}</strong></p>'
    yield from (f"<p>{escape(sentence)}</p>" for sentence in restricted[:_MOST_ROWS])
    yield f'<p class="soft">This run read {report.speed(result)}.</p></div>'


def _differences(result: report.VerificationResult) -> Iterator[str]:
    yield "<h2>Differences</h2>"
    if named := report.differences(result):
        yield from _records(("kind", "what"), named, result.differences_total)
    else:
        yield "<p>None.</p>"


def _undecided(result: report.VerificationResult) -> Iterator[str]:
    if named := report.undecided(result):
        yield "<h2>Undecided</h2><p>They look like differences, and no log says any more whether they are.</p>"
        yield from _records(("looks", "what", "why no log decides it"), named, result.undecided_total)


def _records(columns: Sequence[str], named: Sequence[report.Difference], total: int) -> Iterator[str]:
    yield from _table(("partition", "source offset#", "target offset#", *columns), map(_difference, named[:_MOST_ROWS]))
    if total > (shown := min(len(named), _MOST_ROWS)):
        yield f'<p class="soft">{total - shown:,} more; the result names {len(named):,}.</p>'


def _difference(one: report.Difference) -> tuple[str, ...]:
    place = _text(f"{one.topic}-{one.partition}"), _number(one.source_offset), _number(one.target_offset)
    kind = f"<td>{one.kind}</td>" if one.undecided else f'<td class="bad">{one.kind}</td>'
    cells = (*place, kind, _code(one.what))
    return (*cells, _text(one.undecided)) if one.undecided else cells


def _explained(result: report.VerificationResult) -> Iterator[str]:
    yield "<h2>Explained, and no difference</h2>"
    found, rows = report.explanations(result), report.ranges(result)
    if not found:
        yield "<p>Nothing had to be explained.</p>"
        return
    summed = (
        (
            _text(one.reason),
            f"<td>{one.side}</td>",
            _number(one.ranges),
            _number(one.offsets),
            _number(None if one.records < 0 else one.records),
        )
        for one in found
    )
    yield from _table(("reason", "side", "ranges#", "offsets#", "records#"), summed)
    yield f"<details><summary>{counted(min(len(rows), _MOST_ROWS), 'range')}</summary>"
    yield from _table(("partition", "side", "first#", "last#", "reason"), map(_range, rows[:_MOST_ROWS]))
    if len(rows) > _MOST_ROWS:
        yield f'<p class="soft">{len(rows) - _MOST_ROWS:,} more in the JSON report.</p>'
    yield "</details>"


def _range(one: report.ExplainedRange) -> tuple[str, ...]:
    place, reason = f"{one.topic}-{one.partition}", f"{one.reason}: {one.detail}" if one.detail else one.reason
    return _text(place), f"<td>{escape(one.side)}</td>", _number(one.first), _number(one.last), _text(reason)


def _coverage(found: Sequence[report.TopicCoverage]) -> Iterator[str]:
    yield "<h2>Coverage</h2>"
    yield '<p class="key soft"><span style="background: var(--good)"></span>compared'
    yield '<span style="background: var(--explained)"></span>explained'
    yield '<span style="background: var(--left)"></span>not compared yet, of the offsets that were copied</p>'
    columns = ("topic", "", "covered#", "records#", "compared#", "as bytes#", "differ#")
    yield from _table(columns, map(_topic, found[:_MOST_ROWS]))
    if len(found) > _MOST_ROWS:
        yield f'<p class="soft">{len(found) - _MOST_ROWS:,} more topics in the JSON report.</p>'
    yield '<p class="soft">"As bytes": the share whose batches are equal byte by byte, which are not decoded.</p>'


def _topic(one: report.TopicCoverage) -> tuple[str, ...]:
    return (
        _text(one.topic),
        f'<td class="bar">{_bar(one)}</td>',
        f'<td class="n">{escape(report.share(one.compared + one.explained, one.offsets))}</td>',
        _number(one.records),
        f'<td class="n">{bytes_text(one.bytes)}</td>',
        f'<td class="n">{escape(report.share(one.same_bytes, one.bytes))}</td>',
        f'<td class="n{" bad" if one.differences else ""}">{one.differences:,}</td>',
    )


def _bar(one: report.TopicCoverage) -> str:
    parts, start = [], 0
    for kind, offsets in (("equal", one.compared), ("explained", one.explained), ("left", one.left)):
        width = _BAR_UNITS * offsets // one.offsets if one.offsets else 0
        parts.append(f'<rect class="{kind}" x="{start}" width="{width}" height="10"/>')
        start += width
    words = f"{one.compared:,} offsets compared, {one.explained:,} explained, {one.left:,} not compared yet"
    box = f'viewBox="0 0 {_BAR_UNITS} 10" preserveAspectRatio="none"'
    return f'<svg class="bar" {box} role="img" aria-label="{words}">{"".join(parts)}</svg>'


def _rates(found: Sequence[tuple[float, float]]) -> Iterator[str]:
    yield "<h2>Source bytes read, MB/s</h2>"
    if len(found) < 2:
        yield '<p class="soft">The run was too short to plot.</p>'
        return
    end_s, top = found[-1][0], max(0.1, *(rate for _, rate in found))
    floor = _HEIGHT - _BELOW

    def at(second: float, rate: float) -> str:
        x = _LEFT + (_WIDTH - _LEFT - 8) * second / end_s
        return f"{x:.1f},{12 + (floor - 12) * (1 - rate / top):.1f}"

    points = " ".join([at(0, found[0][1]), *(at(*one) for one in found)])
    yield f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="MB/s over {end_s:.0f} s, at most {top:.1f}">'
    for rate in (0.0, top / 2, top):
        y = 12 + (floor - 12) * (1 - rate / top)
        yield f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH}" y1="{y:.0f}" y2="{y:.0f}"/>'
        yield f'<text x="{_LEFT - 8}" y="{y + 4:.0f}" text-anchor="end">{rate:.3g}</text>'
    yield f'<polygon class="area" points="{at(0, 0)} {points} {at(end_s, 0)}"/>'
    yield f'<polyline class="rate" points="{points}"/>'
    yield f'<text x="{_LEFT}" y="{_HEIGHT - 6}">0 s</text>'
    yield f'<text x="{_WIDTH}" y="{_HEIGHT - 6}" text-anchor="end">{end_s:.0f} s</text></svg>'


def _settings(result: report.VerificationResult) -> Iterator[str]:
    if result.settings:
        yield "<h2>Settings</h2>"
        rows = ((_text(name), _code(str(value))) for name, value in sorted(result.settings.items()))
        yield from _table(("setting", "value"), rows)


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """A column that ends in ``#`` holds numbers."""
    head = (f'<th class="n">{column[:-1]}</th>' if column.endswith("#") else f"<th>{column}</th>" for column in columns)
    yield f'<div class="wide"><table><thead><tr>{"".join(head)}</tr></thead><tbody>'
    yield from (f"<tr>{''.join(row)}</tr>" for row in rows)
    yield "</tbody></table></div>"


def _text(value: str) -> str:
    return f'<td class="text">{escape(value)}</td>'


def _code(value: str) -> str:
    return f'<td class="text"><code>{escape(value)}</code></td>'


def _number(value: int | None) -> str:
    return f'<td class="n">{"-" if value is None else f"{value:,}"}</td>'
