"""The text that is stored beside the offsets of a consumer group. Pure.

Kafka lets a consumer store a text with an offset (``OffsetCommit``'s metadata, 4096 characters by default). A partition
that is copied to the one of its number stores the position of the copy, from which its next copier goes on exactly. One
that is copied by key stores the id of its source topic. Another tool that moves the group writes no such text, and its
offset counts alone.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final
from uuid import UUID

from connect.core.errors import PermanentError
from connectors.dataplane.plan import TopicPartition
from connectors.positions import Position, PositionKey, decode_position, encode_position

_PAIR: Final = "heliograph:position:"
_BY_KEY: Final = "heliograph:by-key:"


def encode_pair(position: Position) -> str:
    return _PAIR + base64.b64encode(encode_position(position)).decode()


def encode_by_key(source_topic_id: UUID | None) -> str:
    return _BY_KEY + (source_topic_id.hex if source_topic_id is not None else "")


def decode_pair(partition: TopicPartition, text: str) -> Position | None:
    """Return the position beside a committed offset; None if there is none, or one of an unknown version."""
    if not text.startswith(_PAIR):
        return None
    key = PositionKey("", partition.topic, partition.partition)
    try:
        return decode_position(key, base64.b64decode(text.removeprefix(_PAIR), validate=True))
    except (PermanentError, binascii.Error, UnicodeDecodeError):
        return None


def topic_id_of(partition: TopicPartition, text: str) -> UUID | None:
    """Return the id that the source topic had when the offset was committed; None if the text does not say."""
    if text.startswith(_BY_KEY):
        try:
            return UUID(text.removeprefix(_BY_KEY))
        except ValueError:
            return None
    position = decode_pair(partition, text)
    return position.source_topic_id if position is not None else None
