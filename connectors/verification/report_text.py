"""The report of a verification as text of at most 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

from connect.core.wording import bytes_text, in_utc
from connectors.verification.report import (
    Difference,
    VerificationResult,
    coverage,
    differences,
    explanations,
    headline,
    limits,
    share,
    speed,
    undecided,
)

_COLUMNS: Final = 80
#: Most differences and topics that are shown.
_MOST: Final = 20
_NAME_COLUMNS: Final = 34


def to_text(result: VerificationResult, sha256: str) -> str:
    """Return the report, differences and explained ranges first; it ends with a line break."""
    return "\n".join(map(printable, _lines(result, sha256))) + "\n"


def printable(line: str) -> str:
    """Replace control characters, because contents of records may hold terminal commands."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in line)


def _lines(result: VerificationResult, sha256: str) -> Iterator[str]:
    yield from _folded(headline(result))
    for sentence in limits(result):
        yield from _folded(sentence, "  ")
    yield from _differences(result)
    yield from _undecided(result)
    yield from _explained(result)
    yield from _topics(result)
    yield ""
    yield f"Read {speed(result)}, from {in_utc(result.began_ms)}"
    yield f"SHA-256 {sha256}"


def _differences(result: VerificationResult) -> Iterator[str]:
    named = differences(result)
    if not named:
        return
    yield from ("", "Differences")
    yield from _records(named, result.differences_total)


def _undecided(result: VerificationResult) -> Iterator[str]:
    named = undecided(result)
    for reason, some in groupby(sorted(named, key=_reason), key=_reason):
        yield from ("", *_folded(f"Undecided: {reason}"))
        yield from _records(list(some))
    if result.undecided_total > len(named):
        yield f"  and {result.undecided_total - len(named):,} more, which are not named"


def _reason(one: Difference) -> str:
    return str(one.undecided)


def _records(named: Sequence[Difference], total: int | None = None) -> Iterator[str]:
    for one in named[:_MOST]:
        yield from _folded(f"{_place(one)}: {one.kind}", "  ")
        # Contents of records have no words to fold at.
        yield from (f"    {one.what[at : at + _COLUMNS - 4]}" for at in range(0, len(one.what), _COLUMNS - 4))
    if (left := (len(named) if total is None else total) - min(len(named), _MOST)) > 0:
        yield f"  and {left:,} more; the JSON and HTML reports name {len(named):,}"


def _place(one: Difference) -> str:
    sides = (("source", one.source_offset), ("target", one.target_offset))
    offsets = ", ".join(f"{side} {'-' if offset is None else f'{offset:,}'}" for side, offset in sides)
    return f"{one.topic}-{one.partition}, {offsets}"


def _explained(result: VerificationResult) -> Iterator[str]:
    found = explanations(result)
    if not found:
        return
    yield from ("", "Explained, and no difference")
    rows = [
        (
            one.reason.value,
            one.side,
            f"{one.ranges:,}",
            f"{one.offsets:,}",
            "-" if one.records < 0 else f"{one.records:,}",
        )
        for one in found
    ]
    yield from _table(("reason", "side", "ranges", "offsets", "records"), rows)


def _topics(result: VerificationResult) -> Iterator[str]:
    found = coverage(result)
    yield from ("", "Topics")
    rows = [
        (
            one.topic,
            f"{one.records:,}",
            bytes_text(one.bytes),
            share(one.compared + one.explained, one.offsets),
            f"{one.differences:,}",
        )
        for one in found[:_MOST]
    ]
    yield from _table(("topic", "records", "compared", "covered", "differ"), rows)
    if len(found) > _MOST:
        yield f"  and {len(found) - _MOST:,} more topics"


def _table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
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
