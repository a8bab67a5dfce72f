"""Encode and decode how far a partition is copied, with all that an exact resume after a crash needs.

Positions, the chunks of the offset map and the ACLs that a flow created share one compacted topic on the target; the
second byte of a key is its kind. Numbers are big-endian. Both key and value begin with a version.

A position is a full record, written together with Java's offset record, and progress records until the next full one. A
progress record counts only behind a full record of the same producer, so a superseded writer cannot add one to its
successor's position, and a version that knows full records only still finds one that matches Java's.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import lru_cache
from operator import attrgetter
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from connect.core.errors import PermanentError, UnreadableRecord
from connectors.formats.types import OfPair, TopicPartition

T = TypeVar("T")

VERSION: Final = 1
#: First bytes and kinds of later versions; anything else was not written by Heliograph.
_LATER_VERSIONS: Final = range(VERSION + 1, 10)
_LATER_KINDS: Final = range(1, 32)
_FRONT: Final = struct.Struct(">bb")  # version, kind
_POSITION: Final = struct.Struct(">qiiqqhi")  # _NUMBERS
_NUMBERS: Final = (
    *("next_source_offset", "source_leader_epoch", "target_partition", "target_end"),
    *("producer_id", "producer_epoch", "next_sequence"),
)
_numbers_of: Final = attrgetter(*_NUMBERS)
_PROGRESS: Final = struct.Struct(">bqiqqhiqq")  # version, S, leader epoch, T, producer id, epoch, Q, last run
_RUN: Final = struct.Struct(">qq")  # first source offset, length
#: Header of a full record with the last run of the map, which version 1 of the value cannot hold.
_RUN_HEADER: Final = "heliograph.run"
#: Header of a full record that a successor rewrote unchanged before it takes the partition over: its store id.
_CLAIMANT_HEADER: Final = "heliograph.claimant"
_FLAGS: Final = struct.Struct(">B")
_HANDED_OVER: Final = 1
_ATOMIC: Final = 2
_LAST_OURS: Final = 4
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_NO_ID: Final = UUID(int=0)


class KeyKind(IntEnum):
    """The kind of a record of the topic."""

    POSITION = 1
    CHUNK = 2
    GAP = 3
    GONE = 4
    ACL = 5
    STATE = 6
    # 7 was used by an earlier version, for chunks next to the map. Such records are skipped.
    FAILOVER = 8
    PROGRESS = 9
    LIVE_OFFSETS = 10
    VERIFIED = 11
    LAST_VERIFICATION = 12


_KINDS: Final = {int(kind): kind for kind in KeyKind}  # because searching an enum for each record is slow


class UnknownFormat(UnreadableRecord):
    """A record was not written by Heliograph."""


class LaterFormat(PermanentError):
    """A later Heliograph wrote a record. Without it records would be copied twice, so the copy ends."""


class PositionKey(NamedTuple):
    """The key of a position. Topics are named, not identified, so that a recreated topic finds the old position."""

    connector: str
    source_topic: str
    source_partition: int

    @property
    def source(self) -> TopicPartition:
        return TopicPartition(self.source_topic, self.source_partition)


@dataclass(frozen=True, slots=True)
class Position(OfPair):
    """How far one partition is certainly copied.

    Args:
        source_topic_id: None if the brokers have no topic ids; likewise ``target_topic_id``.
        next_source_offset: Source offset of the first record not copied (S).
        source_leader_epoch: Leader epoch of the last batch copied, -1 if unknown; a fetch at S sends it as the last
            fetched epoch (KIP-320).
        target_end: Target offset behind the last record known to be ours (T).
        transactional_id: The id by which the writer can be fenced; empty if it had none.
        producer_id: The writer's, with ``producer_epoch``; -1 if nothing was written yet.
        next_sequence: The sequence of the first record not copied (Q), 0 to 2^31-1.
        is_handed_over: The writer ended with everything acknowledged: its successor has nothing to fence or prove.
        is_atomic: Stored in the transaction that wrote the records: once the writer is fenced, what it wrote behind T
            is aborted, so there is nothing to prove.
        is_last_ours: If Q is not 0, the record before T is the writer's, with the sequence before Q. False if an
            earlier version stored it, or if the writer returned to a target partition and has written nothing since.
    """

    source_topic: str
    source_partition: int
    source_topic_id: UUID | None
    next_source_offset: int
    source_leader_epoch: int
    target_topic: str
    target_partition: int
    target_topic_id: UUID | None
    target_end: int
    transactional_id: str
    producer_id: int
    producer_epoch: int
    next_sequence: int
    is_handed_over: bool = False
    is_atomic: bool = False
    is_last_ours: bool = False


class LastRun(NamedTuple):
    """The newest run of a partition's offset map; its chunk is not rewritten when only this run grows."""

    upstream: int
    length: int


_NO_RUN: Final = LastRun(-1, 0)


@dataclass(frozen=True, slots=True)
class StoredPosition:
    """The newest position in a partition's records, and the newest full one, with which Java's offset was written.
    ``last_run``: None if the chunk in the map is complete. ``claimant``: the store id of the task that takes the
    partition over from the writer; empty if none does."""

    position: Position
    full: Position
    last_run: LastRun | None = None
    claimant: str = ""

    def was_altered(self, java_offset: int | None) -> bool:
        """Return whether an operator or a Java worker has overwritten Java's record since we wrote it."""
        return (-1 if java_offset is None else java_offset) != self.full.next_source_offset - 1


def encode_position_key(key: PositionKey, kind: KeyKind = KeyKind.POSITION) -> bytes:
    """Encode the key of a position; ``kind`` is POSITION or PROGRESS."""
    return front(kind) + text(key.connector) + text(key.source_topic) + _INT32.pack(key.source_partition)


def encode_position(position: Position) -> bytes:
    """Encode a full record's value; it does not repeat the key."""
    flags = position.is_handed_over * _HANDED_OVER | position.is_atomic * _ATOMIC | position.is_last_ours * _LAST_OURS
    return (
        bytes((VERSION,))
        + _POSITION.pack(*_numbers_of(position))
        + topic_id(position.source_topic_id)
        + topic_id(position.target_topic_id)
        + text(position.target_topic)
        + text(position.transactional_id)
        + bytes((flags,))
    )


def encode_run_header(last_run: LastRun) -> tuple[str, bytes]:
    return _RUN_HEADER, _RUN.pack(*last_run)


def encode_claimant_header(store_id: str) -> tuple[str, bytes]:
    return _CLAIMANT_HEADER, store_id.encode()


def encode_progress(position: Position, last_run: LastRun | None) -> bytes:
    """Encode the value of a progress record: what may differ from the full record before it (:func:`can_follow`)."""
    return _PROGRESS.pack(
        VERSION,
        position.next_source_offset,
        position.source_leader_epoch,
        position.target_end,
        position.producer_id,
        position.producer_epoch,
        position.next_sequence,
        *(last_run or _NO_RUN),
    )


def can_follow(position: Position, full: Position) -> bool:
    """Return whether a progress record behind ``full`` can express ``position``."""
    return position.next_source_offset >= full.next_source_offset and position == replace(
        full,
        next_source_offset=position.next_source_offset,
        source_leader_epoch=position.source_leader_epoch,
        target_end=position.target_end,
        next_sequence=position.next_sequence,
    )


def fold_position(
    known: StoredPosition | None,
    kind: KeyKind,
    key: PositionKey,
    value: bytes | None,
    headers: Iterable[tuple[str, bytes]],
) -> StoredPosition | None:
    """Apply the next POSITION or PROGRESS record of a partition. Raises UnknownFormat."""
    if kind is KeyKind.POSITION:
        if value is None:
            return None
        full, given = decode_position(key, value), dict(headers)
        run, claimant = given.get(_RUN_HEADER), given.get(_CLAIMANT_HEADER, b"")
        last_run = None if run is None else LastRun(*Reader(run, 0).fixed(_RUN))
        return StoredPosition(full, full, last_run, decode_text(claimant))
    if known is None or value is None:
        return known
    check_version(value, "progress")
    _, offset, leader_epoch, target_end, producer_id, producer_epoch, sequence, *run_ = Reader(value, 0).fixed(
        _PROGRESS
    )
    is_its_own = (producer_id, producer_epoch) == (known.full.producer_id, known.full.producer_epoch)
    # Because a request that was delayed in the network may arrive late.
    if not is_its_own or known.full.is_handed_over or offset <= known.position.next_source_offset:
        return known
    position = replace(
        known.full,
        next_source_offset=offset,
        source_leader_epoch=leader_epoch,
        target_end=target_end,
        next_sequence=sequence,
    )
    return StoredPosition(position, known.full, None if run_ == [*_NO_RUN] else LastRun(*run_), known.claimant)


def decode_kind(key: bytes | None) -> KeyKind | None:
    """Return the kind of a record's key; None for a kind that a later Heliograph added, which is skipped, because nodes
    of both may share a topic during an upgrade. Raises LaterFormat if the key has a later version, UnknownFormat if it
    is not Heliograph's."""
    if key is None or len(key) < _FRONT.size:
        raise UnknownFormat(f"offset map record with the key {key!r}: not one of Heliograph's")
    version, kind = _FRONT.unpack_from(key)
    if version in _LATER_VERSIONS and kind in _LATER_KINDS:
        raise _later(f"offset map record of kind {kind}", version)
    if version != VERSION:
        raise UnknownFormat(f"offset map record with the key {key[:80]!r}: not one of Heliograph's")
    return _KINDS.get(kind)


@lru_cache(maxsize=65_536)  # because an uncleaned topic repeats each key many times
def decode_position_key(key: bytes) -> PositionKey:
    return Reader(key, _FRONT.size).whole(lambda one: PositionKey(one.text(), one.text(), one.int32()))


def decode_position(key: PositionKey, value: bytes) -> Position:
    check_version(value, "position")
    reader = Reader(value, 1)
    numbers = dict(zip(_NUMBERS, reader.fixed(_POSITION), strict=True))
    source_id, target_id = reader.topic_id(), reader.topic_id()
    target_topic, transactional_id = reader.text(), reader.text()
    (flags,) = reader.fixed(_FLAGS)
    reader.end()
    return Position(
        source_topic=key.source_topic,
        source_partition=key.source_partition,
        source_topic_id=source_id,
        target_topic=target_topic,
        target_topic_id=target_id,
        transactional_id=transactional_id,
        **numbers,
        is_handed_over=bool(flags & _HANDED_OVER),
        is_atomic=bool(flags & _ATOMIC),
        is_last_ours=bool(flags & _LAST_OURS),
    )


def check_version(value: bytes, what: str) -> None:
    """Raise LaterFormat or UnknownFormat unless the value's first byte is the version known here."""
    if value and value[0] in _LATER_VERSIONS:
        raise _later(f"{what} in the offset map", value[0])
    if not value or value[0] != VERSION:
        raise UnknownFormat(f"{what} in the offset map of version {value[0] if value else 'none'}")


def _later(what: str, version: int) -> LaterFormat:
    return LaterFormat(
        f"{what} of version {version}: this Heliograph knows version {VERSION} only; run the version that wrote it, or "
        "a later one"
    )


def front(kind: KeyKind) -> bytes:
    return _FRONT.pack(VERSION, kind)


def topic_id(value: UUID | None) -> bytes:
    return (value or _NO_ID).bytes


def text(value: str) -> bytes:
    raw = value.encode()
    return _INT16.pack(len(raw)) + raw


def decode_text(raw: bytes) -> str:
    """Decode UTF-8. Raises UnknownFormat."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise UnknownFormat(f"offset map record holds a text that is not UTF-8: {error.reason}") from None


class Reader:
    """A reader that takes fields from a record, one after the other."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at

    def fixed(self, layout: struct.Struct) -> tuple[int, ...]:
        at, self._at = self._at, self._at + layout.size
        if self._at > len(self._data):
            raise UnknownFormat(f"offset map record of {len(self._data)} bytes is cut short")
        return layout.unpack_from(self._data, at)

    def int32(self) -> int:
        return self.fixed(_INT32)[0]

    def take(self, size: int) -> bytes:
        at, self._at = self._at, self._at + size
        if size < 0 or self._at > len(self._data):
            raise UnknownFormat(f"offset map record of {len(self._data)} bytes is cut short")
        return self._data[at : self._at]

    def text(self) -> str:
        return decode_text(self.take(self.fixed(_INT16)[0]))

    def topic_id(self) -> UUID | None:
        value = UUID(bytes=self.take(16))
        return None if value == _NO_ID else value

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise UnknownFormat("offset map record holds a number of more than 64 bits")

    def rest(self) -> bytes:
        return self.take(len(self._data) - self._at)

    def whole(self, take: Callable[[Reader], T]) -> T:
        """Return what ``take`` reads. Raises UnknownFormat if that is not all."""
        taken = take(self)
        self.end()
        return taken

    def end(self) -> None:
        if self._at != len(self._data):
            raise UnknownFormat(f"offset map record has {len(self._data) - self._at} bytes too many")


def map_partition_key(source_topic: str, source_partition: int) -> bytes:
    """Return the key that places a record in the map topic. All records about a source partition share a partition, so
    they keep their order, and a task reads only the partitions that hold its own."""
    return f"{source_topic}-{source_partition}".encode()
