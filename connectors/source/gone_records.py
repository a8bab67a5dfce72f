"""Since when source topics are gone, kept on the target in the topic of the offset map: it survives restarts."""

from __future__ import annotations

import struct
from typing import Final

from connectors.positions import VERSION, Kind, Reader, check_version, front, text
from connectors.record_settings import RecordKind

_SINCE: Final = struct.Struct(">q")  # milliseconds since 1970


def encode_gone_key(connector: str, topic: str) -> bytes:
    return front(Kind.GONE) + text(connector) + text(topic)


def decode_gone_key(key: bytes) -> tuple[str, str]:
    """Connector and source topic. Raises UnknownFormat."""
    reader = Reader(key, len(front(Kind.GONE)))
    connector, topic = reader.text(), reader.text()
    reader.end()
    return connector, topic


def encode_gone(since_ms: int) -> bytes:
    return bytes((VERSION,)) + _SINCE.pack(since_ms)


def decode_gone(value: bytes) -> int:
    """Raises UnknownFormat."""
    check_version(value, "vanished topic")
    reader = Reader(value, 1)
    (since_ms,) = reader.fixed(_SINCE)
    reader.end()
    return since_ms


#: Milliseconds since 1970, by source topic.
GONE: Final[RecordKind[str, int]] = RecordKind(
    Kind.GONE, b"gone", encode_gone_key, decode_gone_key, encode_gone, decode_gone
)
