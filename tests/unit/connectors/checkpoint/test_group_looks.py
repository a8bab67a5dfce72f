"""A look at groups of the source: what it begins with, and what it finds of each."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from connect.core.errors import RetriableError
from connect.kafka.cluster import Cluster, TopicMetadata
from connect.kafka.log.committed_offsets import Committed, Partition
from connectors.checkpoint import group_checkpoints
from connectors.checkpoint.group_checkpoints import GroupLook
from connectors.checkpoint.offset_translation import TranslatedOffset
from connectors.formats.types import TopicPartition

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


async def test_a_look_keeps_which_topic_it_was_at(monkeypatch: pytest.MonkeyPatch) -> None:
    async def committed(*_: Any, **__: Any) -> dict[Partition, Committed]:
        return {("orders", 0): Committed(5), ("not mirrored", 0): Committed(7)}

    monkeypatch.setattr(group_checkpoints, "committed", committed)
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
async def test_checkpoints_that_cannot_be_seen_are_not_none(
    monkeypatch: pytest.MonkeyPatch, code: int, only_last: bool
) -> None:
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
async def test_what_was_read_stays_while_the_source_is_away(
    monkeypatch: pytest.MonkeyPatch, knows_before: bool
) -> None:
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
