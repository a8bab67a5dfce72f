"""What the looks of one command keep of an offset map."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from connect.kafka.log.compacted_topic import LogRecord
from connectors.failover import offset_lookup
from connectors.failover.offset_lookup import Maps, TargetOffsets
from connectors.failover.snapshot import How, TargetOffset
from connectors.formats.position import Position, PositionKey, encode_position, encode_position_key
from connectors.offset_map import reader
from connectors.offset_map.runs_and_chunks import ChunkKey, MapPair, MapRun, encode_chunk_key
from tests.kit.stored import encode_chunk

CONNECTOR = "MirrorSourceConnector"
IDS = {"orders": UUID(int=1), "us.orders": UUID(int=2)}
FLOW: Any = SimpleNamespace(flow="us->eu", map_topic="map", name=CONNECTOR)
POSITION = Position("orders", 0, IDS["orders"], 200, 2, "us.orders", 0, IDS["us.orders"], 100, "txn", 77, 3, 8)


class Eu:
    name = "eu"

    async def metadata(self, names: set[str]) -> Any:
        there = {name: SimpleNamespace(topic_id=IDS[name], partitions={0: 1}) for name in names if name in IDS}
        return SimpleNamespace(topics=there)


class MapTopic:
    """Of one partition; counts what is read of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[LogRecord] = []
        self.read = self.fetched = 0
        monkeypatch.setattr(reader, "known_topic", self._known)
        monkeypatch.setattr(reader, "list_offsets", self._ends)
        monkeypatch.setattr(reader, "read_to_end", self._read_to_end)
        monkeypatch.setattr(reader.MapReader, "_value", self._value)

    def add(self, key: bytes, value: bytes) -> None:
        self.log.append(LogRecord(key, value, 0, len(self.log), 0))

    def add_chunk(self, *runs: MapRun) -> None:
        pair = MapPair("orders", IDS["orders"], 0, "us.orders", IDS["us.orders"], 0)
        self.add(encode_chunk_key(ChunkKey(pair, runs[0].upstream)), encode_chunk(list(runs)))

    async def _known(self, *_: object) -> Any:
        return SimpleNamespace(topic_id=UUID(int=3), partitions={0: 1})

    async def _ends(self, *_: object) -> Any:
        return {("map", 0): len(self.log)}

    async def _read_to_end(self, _: object, __: str, fold: Any, *, after: dict[int, int], **___: Any) -> None:
        for record in self.log[after.get(0, 0) :]:
            self.read += 1
            fold(record)

    async def _value(self, _: int, offset: int, __: bytes) -> bytes:
        self.fetched += 1
        value = self.log[offset].value
        assert value is not None
        return value


async def look(eu: Eu, maps: Maps) -> TargetOffset | None:
    site: Any = SimpleNamespace(flow=FLOW, back=FLOW, checkpoints=None, target=eu, maps=maps)
    found = TargetOffsets(site, None)
    await found.begin()
    return await found.by_checkpoint(("us.orders", 0), 110)


async def test_a_later_look_reads_only_what_was_added(monkeypatch: pytest.MonkeyPatch) -> None:
    topic, eu, maps = MapTopic(monkeypatch), Eu(), Maps()
    topic.add(encode_position_key(PositionKey(CONNECTOR, "orders", 0)), encode_position(POSITION))
    topic.add_chunk(MapRun(100, 0, 100))
    first = TargetOffset("us.orders", 0, 10, How.CHECKPOINT)
    for _ in range(2):
        assert await look(eu, maps) == first
    assert (topic.read, topic.fetched) == (2, 0), "what was read need not be fetched"
    assert await look(eu, Maps()) == first
    assert topic.read == 4, "another command knows nothing of it"


@pytest.mark.parametrize("kept_bytes", [0, 1 << 20])
async def test_a_rewritten_chunk_is_looked_at_again(monkeypatch: pytest.MonkeyPatch, kept_bytes: int) -> None:
    monkeypatch.setattr(offset_lookup, "_LIMITS", reader.MapLimits(max_kept_bytes=kept_bytes))
    topic, eu, maps = MapTopic(monkeypatch), Eu(), Maps()
    topic.add(encode_position_key(PositionKey(CONNECTOR, "orders", 0)), encode_position(POSITION))
    topic.add_chunk(MapRun(100, 0, 100))
    await look(eu, maps)
    topic.add_chunk(MapRun(100, 0, 5), MapRun(105, 50, 50))
    assert await look(eu, maps) == TargetOffset("us.orders", 0, 55, How.CHECKPOINT)
    assert (topic.read, topic.fetched) == (3, 0 if kept_bytes else 2)


async def test_a_map_that_was_not_read_for_long_is_read_from_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    """A suspended machine wakes up: a tombstone of a chunk may be gone."""
    now_ms = 10**12
    monkeypatch.setattr(reader, "wall_ms", lambda: now_ms)
    topic, eu, maps = MapTopic(monkeypatch), Eu(), Maps()
    topic.add(encode_position_key(PositionKey(CONNECTOR, "orders", 0)), encode_position(POSITION))
    topic.add_chunk(MapRun(100, 0, 100))
    for later_ms, read in ((0, 2), (60_000, 2), (3_600_000, 4)):
        now_ms += later_ms
        await look(eu, maps)
        assert topic.read == read


def test_each_flow_and_cluster_has_a_reader_of_its_own() -> None:
    us: Any = Eu()
    eu: Any = Eu()
    other: Any = SimpleNamespace(flow="eu->us", map_topic="other", name=CONNECTOR)
    maps = Maps()
    readers = [maps.of(us, FLOW), maps.of(eu, FLOW), maps.of(eu, other), maps.of(eu, other, must_be_seen=False)]
    assert len({id(one) for one in readers}) == len(readers)
    assert maps.of(eu, FLOW) is readers[1]
