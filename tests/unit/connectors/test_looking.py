"""A look at groups of the source: what it begins with, and what it finds of each."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from connect.kafka.group_offsets import Committed, Partition
from connectors.checkpoint import looking
from connectors.checkpoint.looking import GroupLook
from connectors.checkpoint.translating import Translated
from connectors.dataplane.plan import TopicPartition

SETTINGS: Any = SimpleNamespace(
    flow="us->eu",
    checkpoints_topic="us.checkpoints.internal",
    offset_syncs_topic="mm2-offset-syncs.eu.internal",
    map_topic="mm2-offset-map.us.internal",
    topic_filter=SimpleNamespace(should_replicate_topic=lambda topic: topic == "orders"),
)
ID = UUID(int=7)


class Translator:
    """To the same offset of the remote topic."""

    def __init__(self, *_: Any) -> None: ...

    async def follow(self) -> None: ...

    def target_id(self, topic: str) -> UUID:
        assert topic == "us.orders"
        return ID

    async def translate(self, source: TopicPartition, offset: int) -> list[Translated]:
        return [Translated(TopicPartition(f"us.{source.topic}", source.partition), offset, by_map=True)]


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

    monkeypatch.setattr(looking, "committed", committed)
    monkeypatch.setattr(looking, "Translator", Translator)
    look = look_at("g")
    await look.begin()
    (found,) = await look.newer("g")
    assert (found.topic, found.downstream_offset) == ("us.orders", 5)
    assert look.checkpoints.topic_ids("g") == {"us.orders": ID}
