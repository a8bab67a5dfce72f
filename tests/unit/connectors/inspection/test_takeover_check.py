"""What a check before a start says of partitions whose logs are no longer those that were copied."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from connect.core import status_and_offset_topics
from connect.kafka.cluster import PartitionMetadata, TopicMetadata
from connect.kafka.log.committed_offsets import GroupState
from connect.kafka.log.offsets import EARLIEST
from connectors.config.connector_configs import MirrorSourceSettings, source_settings
from connectors.formats.position import Position, StoredPosition
from connectors.formats.types import TopicPartition
from connectors.inspection import takeover_check
from connectors.inspection.takeover_check import PartitionStart, Stored, TakeoverCheck, check_takeover
from connectors.offset_map.reader import ChunkPlace
from connectors.offset_map.runs_and_chunks import MapPair, MapRun, RunList
from connectors.topic_sync import remote_topics

OF_SOURCE, OF_TARGET, ANOTHER = UUID(int=1), UUID(int=2), UUID("1c9bd204-0000-4000-8000-000000000000")
SOURCE, TARGET = TopicPartition("orders", 0), TopicPartition("us.orders", 0)
POSITION = Position(*SOURCE, OF_SOURCE, 500, 3, *TARGET, OF_TARGET, 450, "mm2-0", 5, 1, 8, True)


def settings(**policies: str) -> MirrorSourceSettings:
    props = {"name": "n", "connector.class": "x", "source.cluster.alias": "us", "target.cluster.alias": "eu"}
    own = {key.replace("_", "."): value for key, value in policies.items()}
    return source_settings({**props, "topics": "orders", **own}, {"offset.storage.topic": "offsets"})


def topic(name: str, topic_id: UUID) -> TopicMetadata:
    return TopicMetadata(name, topic_id, 0, {0: PartitionMetadata(0, 0, (0,), 0)})


class Cluster:
    def __init__(self, known: TopicMetadata, log: tuple[int, int]) -> None:
        self.topics, self.log = {known.name: known}, log

    async def metadata(self, _: object) -> SimpleNamespace:
        return SimpleNamespace(topics=self.topics, brokers=())


class Maps:
    """One run: 440 records, of the source's first 500 offsets."""

    runs_stored: Sequence[MapRun] = (MapRun(0, 0, 200), MapRun(260, 200, 240))

    def __init__(self, *_: object, connector: str, partitions: Collection[TopicPartition]) -> None:
        assert (connector, list(partitions)) == ("n", [SOURCE])

    async def follow(self) -> None: ...

    def chunks(self, pair: MapPair) -> list[ChunkPlace]:
        assert pair == MapPair.of(POSITION)
        places: list[Any] = [object()] if self.runs_stored else []
        return places

    async def runs(self, *_: object) -> RunList:
        return RunList(self.runs_stored)


class Flow:
    """``orders-0`` is copied up to offset 499, where the remote partition ended at 450."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.source = Cluster(topic("orders", OF_SOURCE), (0, 900))
        self.target = Cluster(topic("us.orders", OF_TARGET), (0, 450))
        self.stored = 499
        self.position = POSITION
        #: once positions are read
        self.target_then: tuple[int, int] | None = None
        self.stored_then: int | None = None

        class NoConfigs:
            def __init__(self, *_: object) -> None: ...

            async def of_source(self, _: object) -> dict[str, Any]:
                return {}

        monkeypatch.setattr(takeover_check, "ConfigSync", NoConfigs)
        monkeypatch.setattr(takeover_check, "MapReader", Maps)
        monkeypatch.setattr(takeover_check, "list_offsets", self._offsets)
        monkeypatch.setattr(takeover_check, "read_stored_positions", self._stored_positions)
        monkeypatch.setattr(remote_topics, "read_positions", self._positions)
        monkeypatch.setattr(takeover_check, "read_stored", self._read)
        monkeypatch.setattr(takeover_check, "group_state", self._group)

    async def _offsets(self, of: Cluster, partitions: Collection[Any], which: int) -> dict[Any, int]:
        return dict.fromkeys(partitions, of.log[0 if which == EARLIEST else 1])

    async def _positions(self, *_: object) -> dict[TopicPartition, Position]:
        self.target.log = self.target_then or self.target.log
        return {SOURCE: self.position}

    async def _stored_positions(self, *_: object) -> dict[TopicPartition, StoredPosition]:
        positions = await self._positions()
        self.stored = self.stored_then or self.stored
        return {one: StoredPosition(position, position) for one, position in positions.items()}

    async def _read(self, of: MirrorSourceSettings, _: object) -> Stored:
        state = status_and_offset_topics.SourceOffsets()
        key = status_and_offset_topics.mirror_key(of.name, of.source_alias, *SOURCE)
        status_and_offset_topics.apply(state, key, status_and_offset_topics.mirror_value(self.stored))
        return Stored(state, set())

    async def _group(self, *_: object) -> GroupState:
        return GroupState("Empty", ())

    async def check(self, **policies: str) -> tuple[TakeoverCheck, PartitionStart]:
        clusters = SimpleNamespace(source=self.source, target=self.target)
        parts: Any = SimpleNamespace(clusters=clusters, store=self.target)
        found = await check_takeover(settings(**policies), parts, "group", 0)
        (part,) = found.partitions
        return found, part


@pytest.fixture
def flow(monkeypatch: pytest.MonkeyPatch) -> Flow:
    return Flow(monkeypatch)


async def test_logs_that_are_those_that_were_copied(flow: Flow) -> None:
    found, part = await flow.check()
    assert (found.obstacles, found.notes) == ([], [])
    assert (part.begins_at, part.because, part.stops) == (500, "position", False)


@pytest.mark.parametrize("side", ["source", "target"])
async def test_a_topic_made_again_stops_a_run(flow: Flow, side: str) -> None:
    cluster, name = (flow.source, "orders") if side == "source" else (flow.target, "us.orders")
    cluster.topics[name] = topic(name, ANOTHER)
    found, part = await flow.check()
    before = OF_SOURCE if side == "source" else OF_TARGET
    happened = f"orders-0: {side} topic {name} was recreated (topic id {ANOTHER}, previously {before})"
    assert found.obstacles == [f"{happened}; a run stops there (on.topic.recreated=fail)"]
    assert part.stops
    assert [one.state for one in part.met] == [f"{side}-recreated"]


@pytest.mark.parametrize("side", ["source", "target"])
async def test_a_topic_made_again_is_copied_from_its_beginning_under_restart(flow: Flow, side: str) -> None:
    cluster, name = (flow.source, "orders") if side == "source" else (flow.target, "us.orders")
    cluster.topics[name] = topic(name, ANOTHER)
    flow.source.log = (10, 900)
    found, part = await flow.check(on_topic_recreated="restart")
    assert found.obstacles == []
    assert found.notes[0].endswith("; a run continues at source offset 10 (on.topic.recreated=restart)")
    assert (part.begins_at, part.because, part.stops, part.lost) == (10, "restart", False, 0)


@pytest.mark.parametrize(("policy", "stops"), [("fail", True), ("restart", False)])
async def test_a_remote_topic_that_is_gone_is_one_made_again(flow: Flow, policy: str, *, stops: bool) -> None:
    flow.target.topics.clear()
    found, part = await flow.check(on_topic_recreated=policy)
    (reported,) = found.obstacles if stops else found.notes
    assert reported.startswith("orders-0: target topic us.orders does not exist any more; ")
    assert (part.stops, part.because) == (stops, "position" if stops else "restart")


async def test_a_commit_between_the_two_readings_is_told_as_one(flow: Flow) -> None:
    """Else it would look like an altered offset."""
    flow.stored_then = 520
    found, part = await flow.check()
    assert part.because != "position" and found.obstacles == ["a mirror still writes: stored offset of orders-0"]


async def test_an_altered_offset_asks_nothing(flow: Flow) -> None:
    flow.stored = 99
    flow.source.topics["orders"] = topic("orders", ANOTHER)
    flow.target.topics.clear()
    found, part = await flow.check()
    assert (found.obstacles, part.begins_at, part.because) == ([], 100, "stored-offset")


async def test_what_the_source_lost_is_in_the_way_unless_it_may_be_skipped(flow: Flow) -> None:
    flow.source.log = (600, 900)
    found, part = await flow.check()
    happened = "orders-0: 100 offsets from 500 are no longer on the source"
    assert found.obstacles == [f"{happened}; a run stops there (on.source.gap=fail)"]
    assert part.stops
    found, part = await flow.check(on_source_gap="skip")
    assert found.obstacles == []
    assert found.notes == [f"{happened}; a run continues at source offset 600 (on.source.gap=skip)"]
    assert (part.stops, part.lost, part.lag) == (False, 100, 300)


async def test_a_source_that_ends_before_the_position(flow: Flow) -> None:
    flow.source.log = (0, 300)
    happened = "orders-0: the source ends at 300, before the next offset to copy, 500; "
    assert (await flow.check())[0].obstacles == [f"{happened}a run stops there (on.source.gap=fail)"]
    found, _ = await flow.check(on_source_gap="skip")
    assert found.notes == [f"{happened}a run continues at source offset 300 (on.source.gap=skip)"]


async def test_a_truncated_target_is_copied_to_again_from_where_the_map_tells(flow: Flow) -> None:
    flow.target.log = (0, 240)
    found, part = await flow.check()
    assert found.obstacles == []
    (reported,) = found.notes
    truncated = "orders-0: target us.orders-0 was truncated: it had acknowledged offsets up to 449, and ends"
    assert reported.startswith(truncated)
    assert reported.endswith("are missing there; a run copies them again from source offset 300")
    assert (part.begins_at, part.because, part.target_end) == (300, "offset-map", 240)


async def test_of_what_a_truncated_target_lacks_the_source_may_have_lost_some(flow: Flow) -> None:
    flow.target.log, flow.source.log = (0, 240), (400, 900)
    found, part = await flow.check()
    happened = "orders-0: 100 offsets from 300 are no longer on the source"
    assert found.obstacles == [f"{happened}; a run stops there (on.source.gap=fail)"]
    assert [one.state for one in part.met] == ["target-truncated", "source-gap"]


async def test_a_truncated_target_without_a_map_stops_a_run(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Maps, "runs_stored", ())
    flow.target.log = (0, 240)
    found, part = await flow.check()
    (reported,) = found.obstacles
    assert reported.endswith("; a run stops there, because the offset map lacks them")
    assert part.stops


async def test_a_position_in_another_remote_topic_says_nothing_of_this_one(flow: Flow) -> None:
    flow.position = replace(POSITION, target_topic="us_orders")
    flow.target.log = (0, 0)
    found, part = await flow.check()
    assert (found.obstacles, found.notes, part.begins_at) == ([], [], 500)


async def test_a_target_that_grows_meanwhile_is_not_truncated(flow: Flow) -> None:
    flow.target.log, flow.target_then = (0, 440), (0, 450)
    found, part = await flow.check()
    assert (found.moving, part.met) == (("remote partition us.orders-0",), ())
