"""Encode and decode the records that MirrorMaker 2 writes about itself, in Java's bytes.

Kafka's ``Heartbeat``, ``Checkpoint``, ``OffsetSync``: big-endian numbers, strings after a length of two bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, Self

from connect.core.errors import UnreadableRecord

_VERSION: Final = 0
_LONGEST: Final = 0x7FFF
_SHORT: Final = struct.Struct(">h")
_INT: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")
_TWO_LONGS: Final = struct.Struct(">qq")


class MalformedRecord(UnreadableRecord):
    """Bytes do not form a record of this kind, or a field does not fit into one."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A flow was alive at ``timestamp_ms``."""

    source_alias: str
    target_alias: str
    timestamp_ms: int

    def key(self) -> bytes:
        return _string(self.source_alias) + _string(self.target_alias)

    def value(self) -> bytes:
        return _SHORT.pack(_VERSION) + _LONG.pack(self.timestamp_ms)

    @classmethod
    def decode(cls, key: bytes | None, value: bytes | None) -> Self:
        """Raises MalformedRecord."""
        names, body = _FieldReader(key), _FieldReader(value)
        body.version()
        return cls(names.string(), names.string(), body.number(_LONG))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A group's ``upstream_offset`` at the source is ``downstream_offset`` in the remote topic."""

    group: str
    topic: str
    partition: int
    upstream_offset: int
    downstream_offset: int
    metadata: str = ""

    def key(self) -> bytes:
        return _string(self.group) + _string(self.topic) + _INT.pack(self.partition)

    def value(self) -> bytes:
        offsets = _TWO_LONGS.pack(self.upstream_offset, self.downstream_offset)
        return _SHORT.pack(_VERSION) + offsets + _string(self.metadata)

    @classmethod
    def decode(cls, key: bytes | None, value: bytes | None) -> Self:
        """Raises MalformedRecord."""
        names, body = _FieldReader(key), _FieldReader(value)
        body.version()
        return cls(
            names.string(), names.string(), names.number(_INT), body.number(_LONG), body.number(_LONG), body.string()
        )


@dataclass(frozen=True, slots=True)
class OffsetSync:
    """The record at ``upstream_offset`` of a source partition has ``downstream_offset`` in its copy."""

    topic: str
    partition: int
    upstream_offset: int
    downstream_offset: int

    def key(self) -> bytes:
        return _string(self.topic) + _INT.pack(self.partition)

    def value(self) -> bytes:
        return _TWO_LONGS.pack(self.upstream_offset, self.downstream_offset)

    @classmethod
    def decode(cls, key: bytes | None, value: bytes | None) -> Self:
        """Raises MalformedRecord."""
        names, body = _FieldReader(key), _FieldReader(value)
        return cls(names.string(), names.number(_INT), body.number(_LONG), body.number(_LONG))


def _string(text: str) -> bytes:
    data = text.encode()
    if len(data) > _LONGEST:
        raise MalformedRecord(f"{text[:40]!r}... is longer than the {_LONGEST} bytes that such a record can hold")
    return _SHORT.pack(len(data)) + data


class _FieldReader:
    """A reader of consecutive fields. Bytes after the last one are ignored, as in Java."""

    def __init__(self, data: bytes | None) -> None:
        if data is None:
            raise MalformedRecord("the record has no key or no value")
        self._data = data
        self._at = 0

    def version(self) -> None:
        version = self.number(_SHORT)
        if version != _VERSION:
            raise MalformedRecord(f"the record has version {version}, and only {_VERSION} is known")

    def number(self, form: struct.Struct) -> int:
        return int(form.unpack(self._take(form.size))[0])

    def string(self) -> str:
        try:
            return self._take(self.number(_SHORT)).decode()
        except UnicodeDecodeError as error:
            raise MalformedRecord(f"a string of the record is not UTF-8: {error.reason}") from None

    def _take(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size] if size >= 0 else b""
        if len(taken) != size:
            raise MalformedRecord(f"the record ends within a field: {self._data[:80]!r}")
        self._at += size
        return taken
