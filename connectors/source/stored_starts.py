"""Where the partitions of a flow stand, as it is stored: read by who runs nothing of the flow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from connect.core import offsetlog
from connect.kafka.cluster import Cluster
from connectors.dataplane.plan import TopicPartition
from connectors.positions import StoredPosition
from connectors.settings import MirrorSourceSettings
from connectors.source.store import Start, read_offsets, start_of


class Stored(NamedTuple):
    """Source offsets in Java's records, and the keys of those that were written plainly."""

    offsets: offsetlog.SourceOffsets
    plain: set[bytes]


async def read_stored(settings: MirrorSourceSettings, store: Cluster) -> Stored:
    """What the topic of source offsets says; nothing where it is not there. Errors as those of the cluster."""
    topic = settings.offsets_topic
    known = (await store.metadata({topic})).topics.get(topic)
    if known is None or not known.partitions:
        return Stored(offsetlog.SourceOffsets(), set())
    return Stored(*await read_offsets(store, topic))


def offsets_of(
    settings: MirrorSourceSettings, stored: Stored, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int | None]:
    """Of the last record copied, by source partition."""
    return {one: stored.offsets.mirrored_offset(settings.name, settings.source_alias, *one) for one in partitions}


def starts_of(
    settings: MirrorSourceSettings,
    stored: Stored,
    positions: Mapping[TopicPartition, StoredPosition],
    partitions: Iterable[TopicPartition],
) -> dict[TopicPartition, Start]:
    """What a task would find of each partition."""
    return {
        one: start_of(positions.get(one), offset, plainly=_java_key(settings, one) in stored.plain)
        for one, offset in offsets_of(settings, stored, partitions).items()
    }


def _java_key(settings: MirrorSourceSettings, partition: TopicPartition) -> bytes:
    return offsetlog.mirror_key(settings.name, settings.source_alias, *partition)
