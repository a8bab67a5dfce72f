"""Find out what differs between two short sequences of records, aligned by digests. What has no partner is kept until
its range is read: only then it is known whether it is missing, or at another place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, Final, NamedTuple

from connectors.verification.report import FIELDS

#: Most characters of a value in a message.
ABBREVIATED_CHARS: Final = 80
#: This many equal records in a row are not a coincidence: what is before them is decided.
SURE: Final = 8
_NO_TIMESTAMP: Final = -1
_LOG_APPEND_TIME: Final = 1


def timestamp_of(record: Any) -> int:
    """Return the timestamp in ms; magic 0 has none, for which magic 2 has -1."""
    return _NO_TIMESTAMP if record.timestamp is None else int(record.timestamp)


def has_own_time(record: Any) -> bool:
    """Whether the log set the timestamp (LogAppendTime)."""
    return bool(record.timestamp_type == _LOG_APPEND_TIME)


def equal_prefix(ours: Sequence[Any], theirs: Sequence[Any]) -> int:
    """Return how many records are equal from the beginning on, of two lists of aiokafka's records. A timestamp that the
    target's log has set does not count."""
    at = 0
    for mine, other in zip(ours, theirs, strict=False):
        if (
            mine.value != other.value
            or mine.key != other.key
            or (
                mine.timestamp != other.timestamp
                and not has_own_time(other)
                and timestamp_of(mine) != timestamp_of(other)
            )
            or mine.headers != other.headers
        ):
            return at
        at += 1
    return at


def digest_of(record: Any, is_timed: bool) -> int:
    """Return a digest that is valid in this process."""
    time_ms = timestamp_of(record) if is_timed else None
    return hash((record.key, record.value, tuple(record.headers), time_ms))


class Lone(NamedTuple):
    """A record without a partner. ``other_offset``: of the other log's next record that has one. ``other_after``: the
    offset behind its last one that has. ``block``: records with the same number lay between the same equal records.
    ``next_key``: of the next record that has a partner, None at the end."""

    record: Any
    other_offset: int
    other_after: int
    block: int
    next_key: bytes | None = None


@dataclass(frozen=True, slots=True)
class Alignment:
    """``taken``: how many records of each list are decided. ``ours`` and ``theirs``: lone records, each with its index,
    its block, counted from 0, and the other list's records between the same neighbours: the first, and the one behind
    the last."""

    taken: tuple[int, int]
    ours: list[tuple[int, int, int, int]]
    theirs: list[tuple[int, int, int, int]]
    blocks: int


def align(ours: Sequence[int], theirs: Sequence[int], *, is_all: bool, is_most: bool) -> Alignment | None:
    """Align two lists of digests up to the first :data:`SURE` equal ones in a row; as a whole if that ``is_all`` there
    is; up to the last equal ones if no more can be held (``is_most``), which may take none. None: more records are
    needed."""
    lone_ours: list[tuple[int, int, int, int]] = []
    lone_theirs: list[tuple[int, int, int, int]] = []
    mine = other = blocks = 0
    for first, second, length in SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks():
        if not length and not is_all:
            break  # what is behind the last equal records may have its partner further on
        if first > mine or second > other:
            lone_ours += [(index, blocks, other, second) for index in range(mine, first)]
            lone_theirs += [(index, blocks, mine, first) for index in range(other, second)]
            blocks += 1
        if length >= SURE and not is_all:
            return Alignment((first, second), lone_ours, lone_theirs, blocks)
        mine, other = first + length, second + length
    if is_all:
        return Alignment((mine, other), lone_ours, lone_theirs, blocks)
    return Alignment((mine, other), lone_ours, lone_theirs, blocks) if is_most else None


def nth_with_nth(count: int) -> Alignment:
    """Return the alignment of lists that have nothing in common: the nth records are each other's."""
    each = [(index, index, index, index + 1) for index in range(count)]
    return Alignment((count, count), each, list(each), count)


def alone(count: int) -> Alignment:
    """Return the alignment of the target's records with none of the source."""
    return Alignment((0, count), [], [(index, 0, 0, 0) for index in range(count)], 1)


def changed_fields(mine: Any, other: Any) -> tuple[str, ...]:
    """Return the fields in which two records differ, in the order of ``FIELDS``."""
    found = [name for name in FIELDS[:3] if getattr(mine, name) != getattr(other, name)]
    if timestamp_of(mine) != timestamp_of(other) and not has_own_time(other):
        found.append(FIELDS[3])
    return tuple(found)


def resemblance(mine: Any, other: Any) -> int:
    """Return how much speaks for two different records being one and its altered copy; 0 is nothing."""
    return (
        2 * (mine.key is not None and mine.key == other.key)
        + 2 * (mine.value is not None and mine.value == other.value)
        + (timestamp_of(mine) == timestamp_of(other) != _NO_TIMESTAMP)
    )


def paired(ours: Iterable[Lone], theirs: Iterable[Lone]) -> Iterator[tuple[Lone, Lone]]:
    """Yield pairs of lone records of one block that resemble each other, each record once and in order."""
    by_block: dict[int, list[Lone]] = {}
    for other in theirs:
        by_block.setdefault(other.block, []).append(other)
    for mine in ours:
        some = by_block.get(mine.block)
        if not some:
            continue
        near = some[:_MOST_COMPARED]
        best = max(range(len(near)), key=lambda at: (resemblance(mine.record, near[at].record), -at))
        if resemblance(mine.record, near[best].record):
            yield mine, some.pop(best)


#: Records of a block that a lone record is compared with.
_MOST_COMPARED: Final = 64


def describe_change(mine: Any, other: Any, fields: Sequence[str]) -> str:
    def shown(record: Any, name: str) -> str:
        if name == "timestamp":
            return f"{timestamp_of(record)}"
        return abbreviate(getattr(record, name))

    return "; ".join(f"{name}: {shown(mine, name)} against {shown(other, name)}" for name in fields)


def describe_record(record: Any) -> str:
    return f"key {abbreviate(record.key)}, value {abbreviate(record.value)}, timestamp {timestamp_of(record)}"


def abbreviate(value: object) -> str:
    """Format a value in at most ``ABBREVIATED_CHARS`` characters, bytes as text if they are printable UTF-8.

    >>> abbreviate(b'{"id":1}'), abbreviate(b"a" * 100)[-9:]
    ('\'{"id":1}\'', 'aa...100B')
    """
    if not isinstance(value, bytes):
        shown = repr(value)
        return shown if len(shown) <= ABBREVIATED_CHARS else shown[: ABBREVIATED_CHARS - 3] + "..."
    head = value[:ABBREVIATED_CHARS]
    text = head.decode("utf-8", errors="replace")
    shown = repr(text) if text.isprintable() and "\ufffd" not in text else repr(head)
    if len(head) == len(value) and len(shown) <= ABBREVIATED_CHARS:
        return shown
    tail = f"...{len(value)}B"
    return shown.rstrip("'\"")[: ABBREVIATED_CHARS - len(tail)] + tail
