"""What is looked up of groups of the source, and which of their checkpoints are stale whatever crashes (D2)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from connect.core.errors import RetriableError, UnreadableRecord
from connect.kafka.cluster import Cluster, TopicMetadata
from connect.kafka.log.committed_offsets import CLASSIC, Committed, GroupListing, Partition
from connect.kafka.log.producer import OutRecord, PlainWriter
from connectors.checkpoint import group_checkpoints
from connectors.checkpoint.group_checkpoints import LIVE_OFFSETS, GroupFinder, GroupLook, Live, LiveOffsets
from connectors.checkpoint.offset_translation import TranslatedOffset
from connectors.failover.group_offsets import why_not_live
from connectors.formats.mirror_records import Checkpoint
from connectors.formats.position import KeyKind, decode_kind
from connectors.formats.types import TopicPartition
from tests.kit.answers import put

SETTINGS: Any = SimpleNamespace(
    flow="us->eu",
    checkpoints_topic="us.checkpoints.internal",
    offset_syncs_topic="mm2-offset-syncs.eu.internal",
    map_topic="mm2-offset-map.us.internal",
    topic_filter=SimpleNamespace(should_replicate_topic=lambda topic: topic == "orders"),
)
ID = UUID(int=7)
SOURCE_ID = UUID(int=99)


class Translator:
    """To the same offset of the remote topic."""

    def __init__(self, *_: Any) -> None: ...

    async def follow(self) -> None: ...

    def target_id(self, topic: str) -> UUID:
        assert topic == "us.orders"
        return ID

    def source_id(self, topic: str) -> UUID:
        assert topic == "orders"
        return SOURCE_ID

    async def translate(self, source: TopicPartition, offset: int) -> list[TranslatedOffset]:
        return [TranslatedOffset(TopicPartition(f"us.{source.topic}", source.partition), offset, by_map=True)]


class Target:
    name = "eu"

    async def metadata(self, _: Any) -> Any:
        return SimpleNamespace(topics={})


def look_at(*groups: str) -> GroupLook:
    cluster: Any = Target()
    return GroupLook(SETTINGS, groups, cluster, cluster, cluster)


async def test_groups_of_which_some_topics_are_mirrored(monkeypatch: pytest.MonkeyPatch) -> None:
    """``testFindConsumerGroupsInCommonScenarios``: the filter of groups and that of topics both count."""
    topics = {"g1": ["t1", "orders"], "g2": ["orders", "t3"], "g3": ["t3"], "g4": ["orders"], "g5": []}

    async def committed(_: object, group: str) -> dict[Partition, Committed]:
        return {(topic, 0): Committed(0) for topic in topics[group]}

    put(monkeypatch, group_checkpoints, list_groups=dict.fromkeys(topics, GroupListing(CLASSIC, "consumer", "Empty")))
    monkeypatch.setattr(group_checkpoints, "committed_offsets", committed)
    group_filter = SimpleNamespace(should_replicate_group=lambda name: name != "g4")
    settings: Any = SimpleNamespace(**vars(SETTINGS), group_filter=group_filter)
    assert await GroupFinder(settings, cast(Cluster, None)).find() == ["g1", "g2"]


async def test_a_look_keeps_which_topic_it_was_at(monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, group_checkpoints, committed={("orders", 0): Committed(5), ("not mirrored", 0): Committed(7)})
    monkeypatch.setattr(group_checkpoints, "Translator", Translator)
    look = look_at("g")
    await look.begin()
    (found,) = await look.newer("g")
    assert (found.topic, found.downstream_offset) == ("us.orders", 5)
    assert look.checkpoints.topic_ids("g") == {"us.orders": ID}
    assert look.live == {"g": {TopicPartition("us.orders", 0): SOURCE_ID}}


async def test_groups_are_asked_for_side_by_side_and_translated_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look-up may read on in the map, and there is one map for all."""
    asked: set[str] = set()
    all_asked = asyncio.Event()
    at_once = [0]

    async def committed(_: Any, group: str, *, timeout_s: float) -> dict[Partition, Committed]:
        assert timeout_s <= 5
        asked.add(group)
        if len(asked) == 16:
            all_asked.set()
        await all_asked.wait()
        return {("orders", 0): Committed(5)}

    class Slow(Translator):
        async def translate(self, source: TopicPartition, offset: int) -> list[TranslatedOffset]:
            at_once[0] += 1
            assert at_once[0] == 1
            await asyncio.sleep(0)
            at_once[0] -= 1
            return await super().translate(source, offset)

    monkeypatch.setattr(group_checkpoints, "committed", committed)
    monkeypatch.setattr(group_checkpoints, "Translator", Slow)
    groups = [f"g{number}" for number in range(40)]
    look = look_at(*groups)
    await look.begin()
    found = await asyncio.gather(*map(look.newer, groups))
    assert [one.group for (one,) in found] == groups


@pytest.mark.parametrize(("code", "only_last"), [(3, False), (29, True)])
async def test_hidden_checkpoints_are_not_none(monkeypatch: pytest.MonkeyPatch, code: int, only_last: bool) -> None:
    """By older offset syncs a group might be sent back behind one that was written."""
    given: list[bool] = []

    class Unseen(Target):
        async def metadata(self, topics: set[str]) -> Any:
            return SimpleNamespace(topics={name: TopicMetadata(name, None, code, {}) for name in topics})

        async def topics(self, names: set[str]) -> Any:
            unseen: Any = self
            return await Cluster.topics(unseen, names)

    def syncs(*_: Any, only_last: bool) -> None:
        given.append(only_last)

    monkeypatch.setattr(group_checkpoints, "OffsetSyncReader", syncs)
    monkeypatch.setattr(group_checkpoints, "Translator", Translator)
    cluster: Any = Unseen()
    await GroupLook(SETTINGS, ["g"], cluster, cluster, cluster).begin()
    assert given == [only_last]


@pytest.mark.parametrize("knows_before", [True, False])
async def test_what_was_read_stays_without_the_source(monkeypatch: pytest.MonkeyPatch, knows_before: bool) -> None:
    """The map of a flow may be long. Checkpoints that could not be read are tried again."""
    reads = {"checkpoints": 0, "map": 0, "syncs": 0}
    maps: list[Any] = []

    async def read_checkpoints(_: GroupLook) -> bool:
        reads["checkpoints"] += 1
        return knows_before

    def made(what: str) -> Any:
        reads[what] += 1
        return SimpleNamespace(in_use=asyncio.Lock())

    class Away(Translator):
        def __init__(self, *parts: Any) -> None:
            maps.append(parts[3])

        async def follow(self) -> None:
            if len(tries) < 4:
                raise RetriableError("cluster us: no broker answers")

    monkeypatch.setattr(GroupLook, "_read_checkpoints", read_checkpoints)
    monkeypatch.setattr(group_checkpoints, "MapReader", lambda *_, **__: made("map"))
    monkeypatch.setattr(group_checkpoints, "OffsetSyncReader", lambda *_, **__: made("syncs"))
    monkeypatch.setattr(group_checkpoints, "Translator", Away)
    look, tries = look_at("g"), [0]
    while len(tries) < 4:
        with pytest.raises(RetriableError):
            await look.begin()
        tries.append(0)
    await look.begin()
    again = 1 if knows_before else 4
    assert reads == {"checkpoints": again, "map": 1, "syncs": again} and all(one is maps[0] for one in maps)


OLD, NEW = UUID(int=1), UUID(int=2)
ORDERS, MAIL = TopicPartition("us.orders", 0), TopicPartition("us.mail", 3)
BILLING = Checkpoint("billing", "us.orders", 0, 1000, 1000, "")


@pytest.mark.parametrize(
    ("live", "now", "words"),
    [
        (None, NEW, ""),  # an earlier version has written the checkpoint
        ({ORDERS: OLD}, OLD, ""),
        ({ORDERS: None}, NEW, ""),
        ({ORDERS: OLD}, None, ""),
        ({}, OLD, "had no offset there, because"),
        ({MAIL: OLD}, OLD, "had no offset there, because"),
        ({ORDERS: OLD}, NEW, "the topic has been recreated since"),
    ],
)
def test_a_checkpoint_of_what_the_group_lost_is_stale(live: Live | None, now: UUID | None, words: str) -> None:
    why = why_not_live(BILLING, live, now)
    assert words in why and bool(why) == bool(words)


def test_records_are_read_as_they_were_written() -> None:
    live = {ORDERS: OLD, TopicPartition("us.orders", 7): OLD, MAIL: None}
    assert LIVE_OFFSETS.decode_value(LIVE_OFFSETS.encode_value(live)) == live
    assert LIVE_OFFSETS.decode_value(LIVE_OFFSETS.encode_value({})) == {}
    key = LIVE_OFFSETS.encode_key("us->eu", "billing")
    assert (decode_kind(key), LIVE_OFFSETS.decode_key(key)) == (KeyKind.LIVE_OFFSETS, ("us->eu", "billing"))
    with pytest.raises(UnreadableRecord):
        LIVE_OFFSETS.decode_value(LIVE_OFFSETS.encode_value({})[:1] + b"[1]")


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What is stored by group; under "error" what a write raises."""
    stored: dict[str, Any] = {}

    async def write(_: Any, records: Iterable[OutRecord]) -> None:
        if "error" in stored:
            raise stored["error"]
        for one in records:
            assert one.value is not None
            stored[LIVE_OFFSETS.decode_key(one.key)[1]] = LIVE_OFFSETS.decode_value(one.value)

    put(monkeypatch, group_checkpoints, known_topic=SimpleNamespace(topic_id=None))
    put(monkeypatch, group_checkpoints, read_live={})
    monkeypatch.setattr(PlainWriter, "write", write)
    return stored


async def test_what_is_new_waits_for_its_checkpoint_and_what_is_gone_does_not(topic: dict[str, Any]) -> None:
    target: Any = None
    live = LiveOffsets(target, "map", "us->eu")
    live.look("billing", {ORDERS: OLD, MAIL: OLD}, 2)
    await live.store()
    assert not live.written("billing")
    await live.store()
    assert topic == {}, "of a group of which nothing is stored nothing counts as stale"
    assert live.written("billing")
    await live.store()
    assert topic["billing"] == {ORDERS: OLD, MAIL: OLD}
    live.look("billing", {ORDERS: NEW}, 1)
    await live.store()
    assert topic["billing"] == {ORDERS: OLD}, "that of the recreated topic is not written yet"
    live.written("billing")
    await live.store()
    assert topic["billing"] == {ORDERS: NEW}


async def test_what_cannot_be_stored_comes_again(topic: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    target: Any = None
    live = LiveOffsets(target, "map", "us->eu")
    topic["error"] = RetriableError("no leader")
    live.look("billing", {ORDERS: OLD}, 0)
    for _ in range(3):
        await live.store()
    said = "us->eu: which checkpoints are stale cannot be stored: no leader"
    assert [record.getMessage() for record in caplog.records] == [said]
    del topic["error"]
    await live.store()
    assert topic["billing"] == {ORDERS: OLD}
