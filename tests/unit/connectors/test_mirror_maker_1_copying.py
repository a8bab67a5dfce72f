"""What a member of MirrorMaker 1 copies in one generation, with the clusters and the tasks in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from connect.kafka.cluster import Cluster, PartitionMetadata, TopicMetadata
from connectors.dataplane.plan import TopicPartition
from connectors.mirror_maker_1 import copying
from connectors.mirror_maker_1.copying import Copying
from connectors.mirror_maker_1.group_store import GroupOffsets
from connectors.mirror_maker_1.lent import Lent, SendFailed
from connectors.positions import Position
from connectors.source import gap_policy
from connectors.source.gap_policy import GapPasser
from connectors.source.ledger import Ledger, Pair
from connectors.source.progress import PartitionView
from connectors.source.store import Start
from connectors.source.takeover import Clusters, take_over

ONE = TopicPartition("orders", 0)
OLD, NEW, THERE = (UUID(int=number) for number in (1, 2, 3))
WITHIN_S = 30.0


def topic(name: str, partitions: int = 1, topic_id: UUID | None = None) -> TopicMetadata:
    return TopicMetadata(name, topic_id, 0, {one: PartitionMetadata(1, 0, (1,), 0) for one in range(partitions)})


class Brokers:
    """Of one cluster."""

    name = "source"

    def __init__(self, *topics: TopicMetadata) -> None:
        self.known = {one.name: one for one in topics}

    async def metadata(self, names: Collection[str] | None) -> Any:
        found = {name: one for name, one in self.known.items() if names is None or name in names}
        return SimpleNamespace(topics=found)

    @property
    def cluster(self) -> Cluster:
        return cast(Cluster, self)


class Copied:
    """A task that shows the entries of a ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def run(self) -> None: ...

    def stop(self) -> None: ...

    def view(self, now_ms: int) -> list[PartitionView]:
        return [entry.view(now_ms) for entry in self._ledger.entries.values()]


def a_copying(clusters: Clusters, partitions: Sequence[TopicPartition] = (ONE,)) -> Copying:
    options = SimpleNamespace(aborts=True, handler=None)
    lent = SimpleNamespace(name="stream 0", clusters=clusters, settings=SimpleNamespace(options=options))
    return Copying(cast(Lent, lent), cast(GroupOffsets, None), partitions)


@pytest.mark.parametrize("is_source", [True, False])
async def test_a_topic_that_was_made_anew_ends_nothing_while_its_beginning_is_looked_for(
    monkeypatch: pytest.MonkeyPatch, is_source: bool
) -> None:
    clusters = Clusters(
        Brokers(topic("orders", topic_id=NEW if is_source else OLD)).cluster,
        Brokers(topic("orders", topic_id=THERE if is_source else NEW)).cluster,
    )
    ledger = Ledger([Pair(ONE, NEW, ONE, THERE)])
    position = Position(*ONE, OLD, 100, 0, *ONE, THERE, 100, "id", 7, 0, 5, is_handed_over=True)
    asked = asyncio.Event()

    async def list_offsets(*_: object) -> dict[TopicPartition, int]:
        asked.set()
        await asyncio.Event().wait()
        return {}

    monkeypatch.setattr(gap_policy, "list_offsets", list_offsets)
    monkeypatch.setattr(copying, "_LOOK_S", 0)
    here = a_copying(clusters)
    here._tasks[0] = Copied(ledger)
    passer = GapPasser("source->target", copying._GAPS, lambda _: (), 0)
    starts = {ONE: Start(position, 99, False)}
    watching = asyncio.create_task(here._watch(), name="watch")
    taking = asyncio.create_task(take_over(clusters, "id", ledger.going(), starts, passer=passer), name="take over")
    await asyncio.wait_for(asked.wait(), WITHIN_S)
    for _ in range(10):
        await asyncio.sleep(0)
    has_ended = watching.done()
    for one in (watching, taking):
        one.cancel()
    await asyncio.gather(watching, taking, return_exceptions=True)
    assert not has_ended
    ledger.entries[ONE].stop("it was cut")
    with pytest.raises(SendFailed, match="orders-0 cannot be copied on"):
        await asyncio.wait_for(here._watch(), WITHIN_S)
