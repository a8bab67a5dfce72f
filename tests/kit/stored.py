"""What a flow has stored on its target: where source partitions would be read on, and the gaps that it has passed."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

from connect.core import status_and_offset_topics
from connect.kafka.log.compacted_topic import LogRecord, read_to_end
from connectors.formats.gap import GapRecord, unpack_gap
from connectors.formats.position import KeyKind, Reader, check_version, decode_kind, front
from connectors.internal_topics import read_stored_positions
from connectors.offset_map.runs_and_chunks import MapPair, MapRun, MapWriter
from tests.kit.clients import cluster_at

CONNECTOR = "MirrorSourceConnector"


async def stored_positions(bootstrap: str, alias: str, topics: Mapping[str, int]) -> dict[tuple[str, int], int]:
    """The next source offset of each stored partition: the position's, unless Java's was altered since."""
    state = status_and_offset_topics.SourceOffsets()
    async with cluster_at(bootstrap) as cluster:
        await read_to_end(
            cluster, f"mm2-offsets.{alias}.internal", lambda record: _apply_or_fail(state, record), read_committed=True
        )
        positions = await read_stored_positions(cluster, f"mm2-offset-map.{alias}.internal", CONNECTOR)
    stored = {
        (topic, index): state.mirrored_offset(CONNECTOR, alias, topic, index)
        for topic, partitions in topics.items()
        for index in range(partitions)
    }
    found = {partition: offset + 1 for partition, offset in stored.items() if offset is not None}
    ours = {
        one: stored_at.position for one, stored_at in positions.items() if not stored_at.was_altered(stored.get(one))
    }
    return found | {
        (topic, index): one.next_source_offset
        for (topic, index), one in ours.items()
        if one.next_source_offset and (topic, index) in stored
    }


def _apply_or_fail(state: status_and_offset_topics.SourceOffsets, record: LogRecord) -> None:
    passed_over = status_and_offset_topics.apply(state, record.key, record.value)
    assert not passed_over, passed_over


async def stored_gaps(bootstrap: str, alias: str) -> list[GapRecord]:
    """The gaps that the flow from ``alias`` has passed, in the order in which they were found."""
    found: list[GapRecord] = []

    def fold(record: LogRecord) -> None:
        if record.key is not None and record.value is not None and decode_kind(record.key) is KeyKind.GAP:
            found.append(decode_gap(record.key, record.value))

    async with cluster_at(bootstrap) as cluster:
        await read_to_end(cluster, f"mm2-offset-map.{alias}.internal", fold, read_committed=True)
    return sorted(found, key=lambda one: one.found_ms)


def decode_gap(key: bytes, value: bytes) -> GapRecord:
    """The record of a gap, of which the product writes only. Raises UnknownFormat."""
    check_version(value, "gap")
    found_ms = struct.Struct(">q")
    about = Reader(key, len(front(KeyKind.GAP))).whole(
        lambda reader: (reader.text(), reader.text(), reader.int32(), reader.fixed(found_ms)[0])
    )
    return GapRecord(*about, *Reader(value, 1).whole(lambda reader: (unpack_gap(reader), reader.text())))


def encode_chunk(runs: Iterable[MapRun]) -> bytes:
    """The value of a chunk of these runs, which fit into one."""
    writer = MapWriter(MapPair("t", None, 0, "t", None, 0))
    for run in runs:
        writer.append(run)
    ((_, value),) = writer.values()
    return value
