"""Encodes Produce requests and decodes Produce and Fetch responses: the two messages of the copy path.

All other messages use the library's codec. A profile showed that with the library the copy costs two to three times the
CPU per byte, nearly all of it for copies of record bytes. Only flexible versions are supported (Produce 9-13, Fetch
12-18), so brokers of older releases are refused. Schemas: Apache Kafka's ``ProduceRequest.json``,
``ProduceResponse.json`` and ``FetchResponse.json``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

PRODUCE_TOPIC_IDS_FROM: Final = 13
FETCH_TOPIC_IDS_FROM: Final = 13

_PRODUCE_FRONT: Final = struct.Struct(">hi")  # acks, timeout
_FETCH_FRONT: Final = struct.Struct(">ihi")  # throttle, error, session id
_FETCH_PARTITION: Final = struct.Struct(">ihqqq")  # index, error, high watermark, last stable, log start
_PRODUCE_PARTITION: Final = struct.Struct(">ihqqq")  # index, error, base offset, append time, log start
_INT32: Final = struct.Struct(">i")
_ABORTED: Final = struct.Struct(">qq")
_EPOCH_END: Final = struct.Struct(">iq")
_LEADER: Final = struct.Struct(">ii")
_ACKS_ALL: Final = -1
_MOST_SHIFT: Final = 28

#: What follows the fixed fields of a produced partition: message, record errors, leader hint.
_Trailer = tuple[str | None, tuple[tuple[int, str | None], ...], tuple[int, int] | None]
_NO_TRAILER: Final[_Trailer] = (None, (), None)


class FetchedPartition(NamedTuple):
    """A partition of a Fetch response; ``records`` is a view of the response's own bytes, empty without records."""

    topic: bytes
    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...]
    preferred_read_replica: int
    records: memoryview
    diverging: tuple[int, int] | None
    leader: tuple[int, int] | None


class FetchAnswer(NamedTuple):
    throttle_time_ms: int
    error_code: int
    session_id: int
    partitions: list[FetchedPartition]


class ProducedPartition(NamedTuple):
    """A partition of a Produce response. ``leader`` is (node, epoch) if the broker hints at a new leader.
    ``record_errors``: (index in the batch, text) of rejected records; from version 8, and for few errors only."""

    topic: bytes
    partition: int
    error_code: int
    base_offset: int
    log_append_time_ms: int
    log_start_offset: int
    message: str | None
    record_errors: tuple[tuple[int, str | None], ...]
    leader: tuple[int, int] | None

    @property
    def text(self) -> str:
        """The broker's message, or else its text for the first rejected record that has one."""
        return self.message or next((text for _, text in self.record_errors if text), "")


class ProduceAnswer(NamedTuple):
    throttle_time_ms: int
    partitions: list[ProducedPartition]


def topic_name_key(name: str) -> bytes:
    """Return a topic's key in versions without topic ids: its name as a compact string."""
    return compact_string(name)


def compact_string(text: str) -> bytes:
    raw = text.encode()
    return uvarint(len(raw) + 1) + raw


def uvarint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class MalformedAnswer(ValueError):
    """Bytes are not the answer of a broker."""


def read_uvarint(buffer: memoryview, position: int) -> tuple[int, int]:
    """Return the value, of at most 32 bits, and the position after it. Raises MalformedAnswer for more than five bytes,
    and IndexError at the end of the buffer."""
    byte = buffer[position]
    if byte < 0x80:
        return byte, position + 1
    value, shift = byte & 0x7F, 7
    while shift <= _MOST_SHIFT:
        position += 1
        byte = buffer[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
        shift += 7
    raise MalformedAnswer("a number has more than 32 bits")


#: For a request outside transactions.
NO_TRANSACTIONAL_ID: Final = b"\x00"


def encode_produce(
    timeout_ms: int,
    topics: Sequence[tuple[bytes, Sequence[tuple[int, memoryview]]]],
    transactional_id: bytes = NO_TRANSACTIONAL_ID,
) -> list[bytes | memoryview]:
    """Return the body of an acks=all ProduceRequest as buffers, without copying batches. ``topics``: (topic key,
    [(partition, batch)]). From version 13 the key is the 16 bytes of the topic id, before it is :func:`topic_name_key`.
    Pass one batch per partition and each partition once, because a broker keeps only the last. ``transactional_id`` is
    a compact string."""
    out: list[bytes | memoryview] = []
    pending = transactional_id + _PRODUCE_FRONT.pack(_ACKS_ALL, timeout_ms) + uvarint(len(topics) + 1)
    for key, partitions in topics:
        pending += key + uvarint(len(partitions) + 1)
        for index, batch in partitions:
            out.append(pending + _INT32.pack(index) + uvarint(len(batch) + 1))
            out.append(batch)
            pending = b"\x00"
        pending += b"\x00"
    out.append(pending + b"\x00")
    return out


def decode_produce(body: memoryview, version: int) -> ProduceAnswer:
    """Decode a ProduceResponse of version 9 or later. Raises MalformedAnswer."""
    try:
        return _produced(body, version)
    except (IndexError, struct.error) as error:
        raise MalformedAnswer(f"the answer of {len(body)} bytes to a produce is cut short") from error


def _produced(body: memoryview, version: int) -> ProduceAnswer:
    count, at = read_uvarint(body, 0)
    partitions: list[ProducedPartition] = []
    for _ in range(count - 1):
        topic, at = _topic_key(body, at, version >= PRODUCE_TOPIC_IDS_FROM)
        inner, at = read_uvarint(body, at)
        for _ in range(inner - 1):
            index, error, base, appended, log_start = _PRODUCE_PARTITION.unpack_from(body, at)
            at += 30
            message, faults, leader = _NO_TRAILER
            if bytes(body[at : at + 3]) == b"\x01\x00\x00":  # no record errors, no message, no tags
                at += 3
            else:
                (message, faults, leader), at = _produce_trailer(body, at)
            partitions.append(
                ProducedPartition(topic, index, error, base, appended, log_start, message, faults, leader)
            )
        _, at = read_tags(body, at)
    return ProduceAnswer(_INT32.unpack_from(body, at)[0], partitions)


def decode_fetch(body: memoryview, version: int) -> FetchAnswer:
    """Decode a FetchResponse of version 12 or later, without copying record bytes. Raises MalformedAnswer."""
    try:
        return _fetched(body, version)
    except (IndexError, struct.error) as error:
        raise MalformedAnswer(f"the answer of {len(body)} bytes to a fetch is cut short") from error


def _fetched(body: memoryview, version: int) -> FetchAnswer:
    throttle, error, session = _FETCH_FRONT.unpack_from(body, 0)
    count, at = read_uvarint(body, 10)
    partitions: list[FetchedPartition] = []
    for _ in range(count - 1):
        topic, at = _topic_key(body, at, version >= FETCH_TOPIC_IDS_FROM)
        inner, at = read_uvarint(body, at)
        for _ in range(inner - 1):
            fetched, at = _fetched_partition(body, at, topic)
            partitions.append(fetched)
        _, at = read_tags(body, at)
    return FetchAnswer(throttle, error, session, partitions)


def _fetched_partition(body: memoryview, at: int, topic: bytes) -> tuple[FetchedPartition, int]:
    index, error, high, stable, start = _FETCH_PARTITION.unpack_from(body, at)
    at += 30
    count, at = read_uvarint(body, at)
    aborted = []
    for _ in range(count - 1):
        aborted.append(_ABORTED.unpack_from(body, at))
        _, at = read_tags(body, at + 16)
    replica = _INT32.unpack_from(body, at)[0]
    length, at = read_uvarint(body, at + 4)
    records = body[at : at + max(length - 1, 0)]
    at += len(records)
    diverging = leader = None
    if body[at]:
        diverging, leader, at = _fetch_tags(body, at)
    else:
        at += 1
    fetched = FetchedPartition(
        topic, index, error, high, stable, start, tuple(aborted), replica, records, diverging, leader
    )
    return fetched, at


def _topic_key(body: memoryview, at: int, by_id: bool) -> tuple[bytes, int]:
    if by_id:
        return bytes(body[at : at + 16]), at + 16
    length, behind = read_uvarint(body, at)
    end = behind + length - 1
    return bytes(body[at:end]), end


def _produce_trailer(body: memoryview, at: int) -> tuple[_Trailer, int]:
    """Return message, record errors and leader hint, and the position after the partition."""
    count, at = read_uvarint(body, at)
    faults: list[tuple[int, str | None]] = []
    for _ in range(count - 1):
        index = _INT32.unpack_from(body, at)[0]
        text, at = _nullable_text(body, at + 4)
        faults.append((index, text))
        _, at = read_tags(body, at)
    message, at = _nullable_text(body, at)
    tags, at = read_tags(body, at)
    return (message, tuple(faults), _LEADER.unpack_from(body, tags[0]) if 0 in tags else None), at


def _fetch_tags(body: memoryview, at: int) -> tuple[tuple[int, int] | None, tuple[int, int] | None, int]:
    tags, at = read_tags(body, at)
    diverging = _EPOCH_END.unpack_from(body, tags[0]) if 0 in tags else None
    return diverging, _LEADER.unpack_from(body, tags[1]) if 1 in tags else None, at


def _nullable_text(body: memoryview, at: int) -> tuple[str | None, int]:
    length, at = read_uvarint(body, at)
    if length == 0:
        return None, at
    end = at + length - 1
    return str(body[at:end], "utf-8", "replace"), end


def read_tags(body: memoryview, at: int) -> tuple[dict[int, int], int]:
    """Return the positions of the tagged fields (KIP-482) at ``at``, by tag, and the position after them. Errors
    as :func:`read_uvarint`."""
    count, at = read_uvarint(body, at)
    found: dict[int, int] = {}
    for _ in range(count):
        tag, at = read_uvarint(body, at)
        size, at = read_uvarint(body, at)
        found[tag] = at
        at += size
    return found, at
