"""Which remote topics to delete after their source topics (``topic.deletion.policy``), and since when these are
missing: a record on the target, which survives restarts. Pure.

A topic counts as gone only where its cluster says, when asked by name, that there is none; never because of a missing
right, an error, or a filter.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from connect.api.policy import ReplicationPolicy
from connect.core.errors import PermanentError
from connectors.changes import DeleteTopic
from connectors.positions import VERSION, Kind, Reader, check_version, front, text
from connectors.record_settings import RecordKind
from connectors.remote_names import RemoteNames


class Copy(NamedTuple):
    """A connector has copied ``topic`` of the source into ``remote``, as its stored positions say."""

    connector: str
    topic: str
    topic_id: UUID | None
    remote: str
    remote_id: UUID | None


@dataclass(frozen=True, slots=True)
class GonePlan:
    """Source topics that are newly gone, those that are no longer of interest (back, or without a remote topic), and
    what is to be deleted now or later."""

    newly: frozenset[str]
    settled: frozenset[str]
    deletions: tuple[DeleteTopic, ...]

    def due(self, now_ms: int) -> list[DeleteTopic]:
        return [change for change in self.deletions if change.due_ms <= now_ms]


def deletable(
    connector: str,
    names: RemoteNames,
    should_mirror: Callable[[str], bool],
    copies: Collection[Copy],
    source: Collection[str],
    target: Mapping[str, UUID | None],
) -> dict[str, str]:
    """Return remote topics by source topic, if the source does not list the source topic.

    ``connector`` has filled the remote topic and would fill it now, its id is still the same, and no topic that the
    source lists fills it or has records sent there.

    Args:
        copies: Of all connectors.
        source: The source's topics.
        target: The target's topics and their ids. Without ids a recreated topic looks like ours, so nothing is deleted.
    """
    ours = {
        copy
        for copy in copies
        if copy.connector == connector
        and copy.topic not in source
        and copy.remote_id is not None
        and target.get(copy.remote) == copy.remote_id
        and should_mirror(copy.topic)
        and not names.policy.is_heartbeats_topic(copy.topic)
        and copy.remote in _sent_to(names, copy.topic)[:1]
    }
    filled = {(copy.remote, copy.remote_id) for copy in copies if copy.topic in source}
    sent = {name for topic in source for name in _sent_to(names, topic)} if ours else set()
    return {
        copy.topic: copy.remote
        for copy in ours
        if copy.remote not in sent and filled.isdisjoint({(copy.remote, copy.remote_id), (copy.remote, None)})
    }


def is_copied_cluster(
    policy: ReplicationPolicy, copied: Iterable[tuple[str, UUID | None]], listed: Mapping[str, UUID | None]
) -> bool:
    """Whether the cluster that answers still has a topic that was copied, by its id.

    One that was rebuilt, or another one under the same address, has none, whatever its topics are called: the remote
    topics are then all that is left. Where nothing has ids (before Kafka 2.8) a name counts, but for heartbeats, which
    every mirror makes.

    Args:
        copied: Source topics and their ids, as the stored positions say.
        listed: The source's topics now.
    """
    if any(listed.values()):
        return any(topic_id is not None and listed.get(topic) == topic_id for topic, topic_id in copied)
    return any(topic in listed and not policy.is_heartbeats_topic(topic) for topic, _ in copied)


def _sent_to(names: RemoteNames, topic: str) -> tuple[str, ...]:
    try:
        return names.all_of(topic)
    except PermanentError:
        return ()


def plan_deletions(gone: Mapping[str, str], since_ms: Mapping[str, int], now_ms: int, delay_ms: int) -> GonePlan:
    """``gone``: remote topics by source topics that are gone now. ``since_ms``: what was known of them before."""
    newly = frozenset(gone.keys() - since_ms.keys())
    deletions = []
    for topic in sorted(gone):
        since = since_ms.get(topic, now_ms)
        deletions.append(DeleteTopic(gone[topic], topic, since, since + delay_ms))
    return GonePlan(newly, frozenset(since_ms.keys() - gone.keys()), tuple(deletions))


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
