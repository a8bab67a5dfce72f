"""What a group commits while it is moved by a transaction stays: the promise of brokers that a failover rests on."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer

from connect.embedded.brokers import KafkaCluster
from connect.kafka.cluster import Cluster
from connect.kafka.log.committed_offsets import NO_OFFSET, Committed, committed, listed_group, move
from connect.kafka.log.producer import OutRecord, TransactionalWriter
from connect.kafka.log.transactions import Superseded
from tests.kit.clients import cluster_at
from tests.kit.topics import make_topics

pytestmark = [pytest.mark.integration]


class Stage:
    def __init__(self, cluster: Cluster) -> None:
        name = uuid.uuid4().hex[:6]
        self.cluster = cluster
        self.topic, self.group, self.id = f"read-{name}", f"readers-{name}", f"mover-{name}"
        self.place = (self.topic, 0)

    def writer(self) -> TransactionalWriter:
        return TransactionalWriter(self.cluster, self.id, transaction_timeout_ms=10_000)

    async def move(self, writer: TransactionalWriter, offset: int, may_commit: Any) -> bool:
        return await self.change(writer, Committed(offset, "note"), may_commit)

    async def change(self, writer: TransactionalWriter, wanted: Committed, may_commit: Any) -> bool:
        records = [OutRecord(self.topic, b"journal", b"moved")]
        return await writer.write(records, may_commit, {self.group: {self.place: wanted}})

    async def commit(self, offset: int) -> None:
        assert not await move(self.cluster, self.group, {self.place: Committed(offset)})

    async def at(self) -> Committed | None:
        """Once no transaction is open."""
        return (await committed(self.cluster, self.group, [self.place], stable=True)).get(self.place)


@pytest.fixture
async def stage(eu: KafkaCluster) -> AsyncIterator[Stage]:
    async with cluster_at(eu.bootstrap) as cluster:
        made = Stage(cluster)
        await make_topics(eu.bootstrap, {made.topic: 1})
        yield made


async def yes(_: Any) -> bool:
    return True


async def test_a_group_is_moved_with_its_metadata_whether_it_is_there_or_not(stage: Stage) -> None:
    assert await listed_group(stage.cluster, stage.group) is None
    assert await stage.move(stage.writer(), 37, yes)
    assert await stage.at() == Committed(37, "note")
    found = await listed_group(stage.cluster, stage.group)
    assert found is not None and found.has_offsets and found.is_idle


@pytest.mark.parametrize("before", [None, 10])
async def test_what_is_committed_behind_the_transactions_offsets_stays(stage: Stage, before: int | None) -> None:
    """A batch job of the group joins, commits 300 and leaves while the operator's machine is suspended."""
    if before is not None:
        await stage.commit(before)

    async def suspended(_: Any) -> bool:
        await stage.commit(300)
        return True

    assert await stage.move(stage.writer(), 37, suspended)
    assert await stage.at() == Committed(300)


async def test_what_was_committed_before_is_seen_while_the_transaction_is_open(stage: Stage) -> None:
    await stage.commit(300)
    seen: list[Any] = []

    async def compare(_: Any) -> bool:
        seen.append((await committed(stage.cluster, stage.group, [stage.place]))[stage.place])
        return False

    assert not await stage.move(stage.writer(), 37, compare)
    assert (seen, await stage.at()) == ([Committed(300)], Committed(300))


async def test_a_writer_whose_id_was_taken_over_moves_nothing(stage: Stage) -> None:
    await stage.commit(10)
    first, second = stage.writer(), stage.writer()
    await first.open()

    async def taken_over(_: Any) -> bool:
        await second.open()
        return True

    with pytest.raises(Superseded):
        await stage.move(first, 37, taken_over)
    assert await stage.at() == Committed(10)
    assert await stage.move(second, 20, yes)
    assert await stage.at() == Committed(20, "note")


async def test_an_offset_is_taken_away_in_a_transaction_and_consumers_find_none(stage: Stage, eu: KafkaCluster) -> None:
    """What an undo rests on: -1 is no offset."""
    await stage.commit(2)
    writer = stage.writer()
    assert await stage.move(writer, 3, yes)
    assert await stage.change(writer, NO_OFFSET, yes)
    assert await stage.at() is None
    consumer = AIOKafkaConsumer(
        stage.topic, bootstrap_servers=eu.bootstrap, group_id=stage.group, auto_offset_reset="earliest"
    )
    async with consumer:
        assert (await consumer.getone()).offset == 0, "it begins by its auto.offset.reset"
    await stage.commit(1)
    assert await stage.at() == Committed(1)


async def test_a_newer_commit_is_not_taken_away(stage: Stage) -> None:
    async def suspended(_: Any) -> bool:
        await stage.commit(300)
        return True

    assert await stage.change(stage.writer(), NO_OFFSET, suspended)
    assert await stage.at() == Committed(300)
