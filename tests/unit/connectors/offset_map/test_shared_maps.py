"""All checkpoint tasks of a worker share one reader of a flow's offset map."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from connect.kafka.cluster import Cluster
from connect.kafka.log.compacted_topic import LogRecord
from connect.kafka.security.connection_settings import ConnectionSettings
from connectors.checkpoint.connector import SharedMaps
from connectors.formats.types import TopicPartition
from connectors.offset_map.reader import MapReader
from connectors.offset_map.runs_and_chunks import ChunkKey, MapPair, MapRun, encode_chunk_key
from tests.kit.stored import encode_chunk

SETTINGS = ConnectionSettings((("eu", 9092),), "task-0")


async def test_tasks_share_a_reader_whose_connections_close_with_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Cluster] = []

    async def close(self: Cluster) -> None:
        closed.append(self)

    monkeypatch.setattr(Cluster, "close", close)
    maps = SharedMaps()
    first = maps.join(SETTINGS, "eu", "map")
    assert maps.join(replace(SETTINGS, client_id="task-1"), "eu", "map") is first
    assert maps.join(SETTINGS, "eu", "other") is not first
    assert maps.join(replace(SETTINGS, username="ann"), "eu", "map") is not first, "whose rights may be others"
    await maps.leave(first)
    assert not closed
    await maps.leave(first)
    assert len(closed) == 1
    assert maps.join(SETTINGS, "eu", "map") is not first


def test_pairs_are_found_by_either_end_without_looking_at_the_others() -> None:
    reader = MapReader(Cluster(SETTINGS, "eu"), "map")
    reader._partition_count = 1
    pairs = [MapPair(f"t{at}", UUID(int=1), 0, f"us.t{at % 3}", UUID(int=2), 0) for at in range(9)]
    for at, pair in enumerate(pairs):
        chunk = encode_chunk([MapRun(5, 5, 3)])
        reader._fold(LogRecord(encode_chunk_key(ChunkKey(pair, 5)), chunk, 0, at, 0))
    assert set(reader.pairs_to(TopicPartition("us.t1", 0))) == {pairs[1], pairs[4], pairs[7]}
    assert reader.pairs(TopicPartition("t4", 0)) == [pairs[4]]
    reader._fold(LogRecord(encode_chunk_key(ChunkKey(pairs[4], 5)), None, 0, 9, 0))
    assert set(reader.pairs_to(TopicPartition("us.t1", 0))) == {pairs[1], pairs[7]}
    assert reader.pairs(TopicPartition("t4", 0)) == []
