"""Versions of plugins and ranges of them, as KIP-891 writes them (Maven's ``VersionRange``)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Final

_PART: Final = re.compile(r"\d+|[a-z]+")
#: What comes before a release, and what after it; any other word comes last.
_BEFORE: Final = (("alpha", "a"), ("beta", "b"), ("milestone", "m"), ("rc", "cr"), ("snapshot",))
_WORDS: Final = {word: place - len(_BEFORE) for place, words in enumerate(_BEFORE) for word in words}
_RELEASE: Final = frozenset({"ga", "final", "release"})
_SET: Final = re.compile(r"[\[(][^\])]*[\])]")


class InvalidRange(ValueError):
    """A range is malformed; the text is Maven's sentence."""


_Key = tuple[tuple[int, ...], tuple[tuple[int, int, str], ...]]


def version_key(version: str) -> _Key:
    """What versions are ordered by: ``1.10`` is above ``1.9``, ``2.0`` equals ``2``, ``2.0-rc1`` is below it."""
    parts = [part for part in _PART.findall(version.lower()) if part not in _RELEASE]
    numbers = list(map(int, takewhile(str.isdigit, parts)))
    rest = parts[len(numbers) :]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    words = [(1, int(part), "") if part.isdigit() else (0, _WORDS.get(part, 1), part) for part in rest]
    # Behind the last word stands the release itself: above its candidates, below its patches.
    return tuple(numbers), (*words, (0, 0, ""))


@dataclass(frozen=True, slots=True)
class _Interval:
    low: _Key | None
    high: _Key | None
    with_low: bool
    with_high: bool

    def __contains__(self, key: _Key) -> bool:
        if self.low is not None and (key < self.low or (key == self.low and not self.with_low)):
            return False
        return self.high is None or key < self.high or (key == self.high and self.with_high)


@dataclass(frozen=True, slots=True)
class VersionRange:
    """One range or several; ``str`` gives it as Java prints it."""

    text: str
    _intervals: tuple[_Interval, ...]

    def newest(self, versions: Iterable[str]) -> str | None:
        """The highest of ``versions`` that lies in the range."""
        fitting = [each for each in versions if any(version_key(each) in interval for interval in self._intervals)]
        return max(fitting, key=version_key, default=None)

    def __str__(self) -> str:
        return self.text


def parse_range(text: str) -> VersionRange | None:
    """The range in a ``*.plugin.version``: ``[1.0,2.0)``, several with commas between, a bare version for itself alone;
    None for the latest there is.

    Raises:
        InvalidRange: It is malformed.
    """
    text = text.strip()
    if text in ("", "latest"):
        return None
    if text[0] not in "[(":
        text = f"[{text},{text}]"
    intervals: list[_Interval] = []
    rest = text
    while rest.startswith(("[", "(")):
        match = _SET.match(rest)
        if match is None:
            raise InvalidRange(f"Unbounded range: {text}")
        intervals.append(_interval(match.group()))
        rest = rest[match.end() :].strip().removeprefix(",").strip()
    if rest:
        raise InvalidRange(f"Only fully-qualified sets allowed in multiple set scenario: {text}")
    for before, after in pairwise(intervals):
        if before.high is None or after.low is None or after.low < before.high:
            raise InvalidRange(f"Ranges overlap: {text}")
    return VersionRange(text, tuple(intervals))


def _interval(text: str) -> _Interval:
    with_low, with_high = text[0] == "[", text[-1] == "]"
    low, comma, high = (each.strip() for each in text[1:-1].partition(","))
    if not comma:
        if not (with_low and with_high):
            raise InvalidRange(f"Single version must be surrounded by []: {text}")
        high = low
    lower, upper = (version_key(low) if low else None), (version_key(high) if high else None)
    empty = lower == upper and not (with_low and with_high)
    if lower is not None and upper is not None and (upper < lower or empty):
        raise InvalidRange(f"Range defies version ordering: {text}")
    return _Interval(lower, upper, with_low, with_high)
