"""Formats and parses dates with patterns of ``java.text.SimpleDateFormat`` such as ``yyyyMMdd``, in UTC and English.

Parsing is lenient, as in Java by default: the 32nd of January is the 1st of February, and text after the end of the
pattern is ignored. Dates before October 1582 are Gregorian here and Julian in Java.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

_MONTHS: Final = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
_DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_HALVES: Final = ("AM", "PM")
#: The first day and the numbers of weeks depend on the locale.
_LOCAL: Final = frozenset("YwW")
_NUMBER: Final = re.compile(r"-?[0-9]+")
_QUOTED: Final = re.compile(r"'((?:[^']|'')*+)'")
_ZONE: Final = re.compile(r"(?:UTC|GMT|Z)?(?:([+-])(\d{1,2}):?(\d{2})?)?", re.IGNORECASE)


class BadPattern(ValueError):
    """The pattern is invalid in Java, or depends on a locale."""


class NoDate(ValueError):
    """A text does not begin with a date in the pattern, or the date is outside the years 1 to 9999."""


@dataclass(frozen=True, slots=True)
class _Field:
    letter: str
    width: int


class SimpleDateFormat:
    """A compiled pattern. Raises BadPattern if the pattern is invalid in Java, or depends on a locale."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._parts = _compiled(pattern)

    def format(self, date: datetime) -> str:
        return "".join(
            part if isinstance(part, str) else _WRITERS[part.letter](date, part.width) for part in self._parts
        )

    def parse(self, text: str, century_start: int | None = None) -> datetime:
        """Parse the date at the start of ``text``, in UTC. ``century_start``: the earliest year of a two-digit year;
        None: 80 years ago. Raises NoDate if ``text`` does not begin with such a date."""
        start = datetime.now(UTC).year - 80 if century_start is None else century_start
        found: dict[str, int] = {}
        at = 0
        for index, part in enumerate(self._parts):
            if isinstance(part, str):
                if not text.startswith(part, at):
                    raise self._no_date(text)
                at += len(part)
                continue
            while text[at : at + 1] in (" ", "\t"):
                at += 1
            # A field directly before another field takes as many characters as it has letters.
            touches = index + 1 < len(self._parts) and isinstance(self._parts[index + 1], _Field)
            try:
                length, value = _read(part, text[at:], touches)
                if part.letter == "y" and part.width <= 2 and length == 2 and value >= 0:
                    value += start - start % 100
                    value += 100 if value < start else 0
            except NoDate:
                raise self._no_date(text) from None
            found["z" if part.letter in "ZX" else part.letter] = value
            at += length
        return self._date(found, text)

    def _date(self, found: Mapping[str, int], text: str) -> datetime:
        month = found.get("M", found.get("L", 1)) - 1
        year = found.get("y", 1970) + month // 12
        if found.get("G") == 0:
            raise self._no_date(text)
        hour = found.get("H", found.get("k", 0) % 24)
        if "h" in found or "K" in found:
            hour = found.get("h", found.get("K", 0)) % 12 + 12 * found.get("a", 0)
        try:
            first = datetime(year, 1 if "D" in found and "d" not in found else month % 12 + 1, 1, tzinfo=UTC)
            return first + timedelta(
                days=found.get("d", found.get("D", 1)) - 1,
                hours=hour,
                minutes=found.get("m", 0) - found.get("z", 0),
                seconds=found.get("s", 0),
                milliseconds=found.get("S", 0),
            )
        except (ValueError, OverflowError):
            raise self._no_date(text) from None

    def _no_date(self, text: str) -> NoDate:
        return NoDate(f"{text!r} is not a date in the format {self.pattern}")


def _compiled(pattern: str) -> tuple[str | _Field, ...]:
    parts: list[str | _Field] = []
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "'":
            literal, at = _quoted(pattern, at)
        elif char.isascii() and char.isalpha():
            width = len(pattern) - at - len(pattern[at:].lstrip(char))
            if char in _LOCAL:
                raise BadPattern(f"pattern character '{char}' depends on a locale, which is not supported")
            if char not in _WRITERS:
                raise BadPattern(f"Illegal pattern character '{char}'")
            parts.append(_Field(char, width))
            at += width
            continue
        else:
            literal, at = char, at + 1
        if parts and isinstance(parts[-1], str):
            parts[-1] += literal
        elif literal:
            parts.append(literal)
    return tuple(parts)


def _quoted(pattern: str, at: int) -> tuple[str, int]:
    """Return the text from the quote at ``at`` to the next single quote, and the index after it; two quotes are one."""
    if pattern.startswith("''", at):
        return "'", at + 2
    if (quoted := _QUOTED.match(pattern, at)) is None:
        raise BadPattern("Unterminated quote")
    return quoted[1].replace("''", "'"), quoted.end()


def _padded(value: Callable[[datetime], int]) -> Callable[[datetime, int], str]:
    return lambda date, width: str(value(date)).zfill(width)


def _name(names: tuple[str, ...], index: int, width: int) -> str:
    return names[index] if width >= 4 else names[index][:3]


def _month(date: datetime, width: int) -> str:
    return _name(_MONTHS, date.month - 1, width) if width >= 3 else str(date.month).zfill(width)


#: Formatters of a date's fields by letter, given the date and the number of letters.
_WRITERS: Final[Mapping[str, Callable[[datetime, int], str]]] = {
    "G": lambda _date, _width: "AD",
    "y": lambda date, width: f"{date.year % 100:02}" if width == 2 else str(date.year).zfill(width),
    "M": _month,
    "L": _month,
    "d": _padded(lambda date: date.day),
    "D": _padded(lambda date: date.timetuple().tm_yday),
    "F": _padded(lambda date: (date.day - 1) // 7 + 1),
    "u": _padded(lambda date: date.isoweekday()),
    "E": lambda date, width: _name(_DAYS, date.weekday(), width),
    "a": lambda date, _width: _HALVES[date.hour // 12],
    "H": _padded(lambda date: date.hour),
    "k": _padded(lambda date: date.hour or 24),
    "K": _padded(lambda date: date.hour % 12),
    "h": _padded(lambda date: date.hour % 12 or 12),
    "m": _padded(lambda date: date.minute),
    "s": _padded(lambda date: date.second),
    "S": _padded(lambda date: date.microsecond // 1000),
    "z": lambda _date, width: "Coordinated Universal Time" if width >= 4 else "UTC",
    "Z": lambda _date, _width: "+0000",
    "X": lambda _date, _width: "Z",
}


def _read(field: _Field, text: str, touches: bool) -> tuple[int, int]:
    """Return the length of the field in ``text`` and its value; a zone's value is in minutes east."""
    match field.letter:
        case "M" | "L" if field.width >= 3:
            length, index = _longest(_MONTHS, text)
            return length, index + 1
        case "E":
            length, index = _longest(_DAYS, text)
            return length, index
        case "a":
            return _longest(_HALVES, text)
        case "G":
            return _longest(("BC", "AD"), text)
        case "z" | "Z" | "X":
            return _zone(text)
        case _:
            if touches and len(text) < field.width:
                raise NoDate
            number = _NUMBER.match(text[: field.width] if touches else text)
            if number is None:
                raise NoDate
            return len(number.group()), int(number.group())


def _longest(names: tuple[str, ...], text: str) -> tuple[int, int]:
    """Return length and index of the name, full or abbreviated to three letters, at the start of ``text``."""
    lower = text.lower()
    for length in (None, 3):
        for index, name in enumerate(names):
            if lower.startswith(name[:length].lower()):
                return len(name[:length]), index
    raise NoDate


def _zone(text: str) -> tuple[int, int]:
    match = _ZONE.match(text)
    if match is None or not match.group():
        raise NoDate
    sign, hours, minutes = match.groups()
    east = int(hours or 0) * 60 + int(minutes or 0)
    return len(match.group()), -east if sign == "-" else east
