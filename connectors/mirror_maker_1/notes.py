"""What a consumer group's committed offset carries beside it, so that a copy goes on exactly. Pure.

Kafka lets whoever commits an offset store a text with it (``OffsetCommit``'s metadata, 4096 characters by default).
Ours is the position of the copy: who wrote to the target, up to where. Whoever has the partition next, in this process
or another, fences that writer and finds its exact end. Another tool that moves the group writes no such text, and what
it wrote then counts alone.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from connect.core.errors import PermanentError
from connectors.dataplane.plan import TopicPartition
from connectors.gaps import GapKind
from connectors.positions import Position, PositionKey, decode_position, encode_position

_PAIR: Final = "heliograph:position:"
_SPREAD: Final = "heliograph:spread:"
_HANDED_OVER: Final = "done"
_BUSY: Final = "busy"
#: States that outlive a process: by key nothing tells again that the target lacks what it had acknowledged.
STOPS: Final = frozenset(
    kind.label for kind in (GapKind.TARGET_TRUNCATED, GapKind.TARGET_RECREATED, GapKind.TARGET_DELETED)
)


@dataclass(frozen=True, slots=True)
class Spread:
    """Who sent a partition's records to several of the target's: under which transactional id (empty for none) and
    which producer id (-1 unknown), and to which topics. ``is_handed_over``: nothing of it can arrive any more.

    ``source_topic_id`` and ``source_epoch`` (the leader epoch of what is before the offset, -1 unknown) say of which
    log the offset is; ``stopped_of``, one of ``STOPS`` or empty, why nobody may go on from there.
    """

    transactional_id: str
    topics: tuple[str, ...]
    is_handed_over: bool
    source_topic_id: UUID | None = None
    source_epoch: int = -1
    producer_id: int = -1
    stopped_of: str = ""


Note = Position | Spread


def encode_pair(position: Position) -> str:
    return _PAIR + base64.b64encode(encode_position(position)).decode()


def encode_spread(spread: Spread) -> str:
    state = spread.stopped_of or (_HANDED_OVER if spread.is_handed_over else _BUSY)
    topic_id = spread.source_topic_id.hex if spread.source_topic_id is not None else ""
    # What may hold a colon goes last.
    log = f"{topic_id}:{spread.source_epoch}:{spread.producer_id}"
    return f"{_SPREAD}{state}:{','.join(spread.topics)}:{log}:{spread.transactional_id}"


def decode(partition: TopicPartition, text: str) -> Note | None:
    """What stands beside a committed offset; None where it is not ours, or of a version that nobody here knows."""
    if text.startswith(_PAIR):
        key = PositionKey("", partition.topic, partition.partition)
        try:
            return decode_position(key, base64.b64decode(text.removeprefix(_PAIR), validate=True))
        except (PermanentError, binascii.Error, UnicodeDecodeError):
            return None
    if text.startswith(_SPREAD):
        try:
            return _spread(text.removeprefix(_SPREAD))
        except ValueError:
            return None
    return None


def _spread(text: str) -> Spread | None:
    """Raises ValueError where it is not what ``encode_spread`` writes."""
    state, topics, topic_id, epoch, producer_id, transactional_id = text.split(":", 5)
    if state not in (_HANDED_OVER, _BUSY, *STOPS):
        return None
    return Spread(
        transactional_id,
        tuple(filter(None, topics.split(","))),
        state == _HANDED_OVER,
        UUID(topic_id) if topic_id else None,
        int(epoch),
        int(producer_id),
        state if state in STOPS else "",
    )
