"""Positions as every MirrorMaker stores them, Java's and ours: read from the topic of source offsets by who runs no
worker."""

from __future__ import annotations

from collections.abc import Callable

from connect.core import offsetlog
from connect.kafka.cluster import Cluster
from connect.kafka.known_topic import known_topic
from connect.kafka.topiclog import LogRecord, read_to_end
from connectors.dataplane.plan import TopicPartition
from connectors.positions import Kind, Position, decode_kind, decode_position, decode_position_key


async def read_stored_offsets(store: Cluster, topic: str) -> offsetlog.SourceOffsets:
    """What ``topic`` says; nothing where it is not there. Raises as :func:`connect.kafka.topiclog.read_to_end`, and
    NotAuthorized where DESCRIBE on it is missing."""
    state = offsetlog.SourceOffsets()
    if await known_topic(store, topic) is None:
        return state

    def fold(record: LogRecord) -> None:
        offsetlog.apply(state, record.key, record.value)

    await read_to_end(store, topic, fold, read_committed=True)
    return state


async def read_positions(store: Cluster, topic: str, connector: str) -> dict[TopicPartition, Position]:
    """Our own positions of a connector, by source partition; none where ``topic`` is not there. Raises as above."""
    found = await _read_positions(store, topic, lambda one: one == connector)
    return {partition: position for (_, partition), position in found.items()}


async def read_all_positions(store: Cluster, topic: str) -> dict[tuple[str, TopicPartition], Position]:
    """The same of all connectors, by connector and source partition."""
    return await _read_positions(store, topic, lambda _: True)


async def _read_positions(
    store: Cluster, topic: str, wanted: Callable[[str], bool]
) -> dict[tuple[str, TopicPartition], Position]:
    found: dict[tuple[str, TopicPartition], Position] = {}
    if await known_topic(store, topic) is None:
        return found

    def fold(record: LogRecord) -> None:
        if decode_kind(record.key) is not Kind.POSITION:
            return
        assert record.key is not None
        key = decode_position_key(record.key)
        if not wanted(key.connector):
            return
        of = key.connector, TopicPartition(key.source_topic, key.source_partition)
        if record.value is None:
            found.pop(of, None)
        else:
            found[of] = decode_position(key, record.value)

    await read_to_end(store, topic, fold, read_committed=True)
    return found
