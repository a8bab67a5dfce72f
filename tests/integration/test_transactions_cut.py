"""An exactly-once commit cut at each of its steps, on a real broker: records and position are there, or neither is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from connect.core.errors import PermanentError
from connect.embedded.brokers import KafkaCluster
from connect.kafka.log import transactions
from connect.kafka.log.offsets import LATEST, list_offset
from connect.kafka.log.producer import OutRecord, waiting_out
from connect.kafka.log.shared_transactions import SharedTransactions
from connect.kafka.log.transactions import Superseded, init_producer_id
from connectors.formats.gap import Gap, GapKind
from connectors.formats.position import KeyKind, decode_kind
from connectors.formats.types import TopicPartition
from connectors.source.positions.position_store import MirrorPositionStore
from connectors.source.positions.stored_positions import Commit, PassedGap
from tests.integration.test_kafka_transactions import spend_epochs
from tests.integration.test_store import ORDERS, POSITION, Site
from tests.kit.clients import cluster_and_admin
from tests.kit.copies import read_all
from tests.kit.members import until
from tests.kit.topics import make_topics

pytestmark = pytest.mark.integration


class Killed(Exception):
    """What ends a task in the middle of a step."""


class Task:
    """What fills a transaction (as the slice does) and stores where it stands (as the task does), under one id."""

    def __init__(self, site: Site, topic: str, transactional_id: str, timeout_ms: int = 60_000) -> None:
        self.topic = topic
        self.shared = SharedTransactions(site.cluster, transactional_id, transaction_timeout_ms=timeout_ms)
        self.store = MirrorPositionStore(site.cluster, site.admin, site.settings, shared=self.shared)
        self.copied = 0

    async def start(self) -> None:
        position = (await self.store.load([ORDERS]))[ORDERS].position
        self.copied = position.next_source_offset if position else 0

    async def fill(self) -> None:
        # Tried again while the markers of the transaction before are under way.
        sent = await waiting_out(partial(self.shared._produce, [OutRecord(self.topic, b"k", b"%d" % self.copied)]))
        for partition, count in sent.items():
            self.shared._sequences[partition] = self.shared._sequences.get(partition, 0) + count
        self.copied += 1

    async def commit(self) -> None:
        position = replace(POSITION, next_source_offset=self.copied, is_atomic=True)
        gap = Gap(GapKind.SOURCE_GAP, first=self.copied, last=self.copied, go_on_at=self.copied)
        run = self.copied - 1, self.copied - 1, 1
        await self.store.commit([Commit(position, [run], PassedGap(self.copied, gap))])


@pytest.fixture
async def site(eu: KafkaCluster) -> AsyncIterator[Site]:
    async with cluster_and_admin(eu.bootstrap, "eu") as clients:
        yield Site(*clients)


async def _after(step: Callable[..., Awaitable[Any]], *arguments: Any, **named: Any) -> Any:
    await step(*arguments, **named)
    raise Killed


async def _before(_: Callable[..., Awaitable[Any]], *__: Any, **___: Any) -> Any:
    raise Killed


#: Where it is killed: the step, whether it was done, and whether the transaction is committed all the same.
CUTS = {
    "nothing is written": ("fill", _before, False),
    "records are written": ("fill", _after, False),
    "positions are not": ("_produce", _before, False),
    "positions are written": ("_produce", _after, False),
    "the end is not sent": ("commit_transaction", _before, False),
    "the answer is lost": ("commit_transaction", _after, True),
}


@pytest.mark.parametrize("cut", CUTS)
async def test_records_and_position_are_there_or_neither(
    site: Site, eu: KafkaCluster, monkeypatch: pytest.MonkeyPatch, cut: str
) -> None:
    topic, transactional_id = f"cut-{uuid4().hex[:8]}", f"cut-{uuid4()}"
    await make_topics(eu.bootstrap, {topic: 1})
    killed = Task(site, topic, transactional_id)
    await killed.start()
    await killed.fill()
    await killed.commit()
    name, how, is_committed = CUTS[cut]
    with monkeypatch.context() as patch:
        owner: Any = transactions if name == "commit_transaction" else killed if name == "fill" else killed.shared
        step = getattr(owner, name)

        async def strike(*arguments: Any, **named: Any) -> Any:
            return await how(step, *arguments, **named)

        if name == "fill":
            patch.setattr(owner, name, strike)
            with pytest.raises(Killed):
                await killed.fill()
        else:
            await killed.fill()
            patch.setattr(owner, name, strike)
            with pytest.raises(Killed):
                await killed.commit()
    successor = Task(site, topic, transactional_id)
    await successor.start()
    there = [record.value for record in await read_all(eu.bootstrap, topic)]
    assert successor.copied == len(there) == 1 + is_committed
    with pytest.raises(Superseded):
        await killed.commit()
    await successor.fill()
    await successor.commit()
    await until_read(eu, topic, [b"%d" % at for at in range(len(there) + 1)])
    assert (await site.runs())[-1].upstream_end == len(there) + 1
    records = [
        record for record in await site.records(site.settings.map_topic) if decode_kind(record.key) is KeyKind.GAP
    ]
    assert len(records) == len(there) + 1, "a gap is told of with the position behind it, or not at all"


async def until_read(eu: KafkaCluster, topic: str, values: list[bytes]) -> None:
    """A commit is answered a moment before its markers are written, and its records can be read behind these."""

    async def are_there() -> bool:
        return len(await read_all(eu.bootstrap, topic)) >= len(values)

    await until(are_there, f"{topic} has {len(values)} committed records")
    assert [record.value for record in await read_all(eu.bootstrap, topic)] == values


async def test_what_the_cluster_has_aborted_by_itself_is_copied_again(site: Site, eu: KafkaCluster) -> None:
    """As where a worker was frozen for longer than ``transaction.timeout.ms`` with records in a transaction."""
    topic, transactional_id = f"frozen-{uuid4().hex[:8]}", f"frozen-{uuid4()}"
    await make_topics(eu.bootstrap, {topic: 1})
    # Longer than the cluster, or this, may stand still between two steps of what is to be committed.
    task = Task(site, topic, transactional_id, timeout_ms=6_000)
    await task.start()
    await task.fill()
    await task.commit()
    await task.fill()
    # A record and a marker each.
    await until(partial(_ends_at, site, topic, 4), "the open transaction is aborted")
    with pytest.raises(Superseded):
        await task.commit()
    await task.start()
    assert task.copied == 1
    await task.fill()
    await task.commit()
    await until_read(eu, topic, [b"0", b"1"])
    assert (await site.runs())[-1].upstream_end == 2


async def _ends_at(site: Site, topic: str, offset: int) -> bool:
    return await list_offset(site.cluster, TopicPartition(topic, 0), LATEST) == offset


async def test_a_time_out_that_the_cluster_does_not_allow_is_said(site: Site) -> None:
    task = Task(site, "frozen", f"frozen-{uuid4()}", timeout_ms=100_000_000)
    with pytest.raises(PermanentError, match=r"transaction\.timeout\.ms=100000000; lower it"):
        await task.start()


@pytest.mark.long
async def test_a_commit_at_which_epochs_run_out_goes_on_as_another_producer(site: Site, eu: KafkaCluster) -> None:
    """EndTxn raises the epoch with every transaction, and hands out another producer id behind 32766."""
    topic, transactional_id = f"spent-{uuid4().hex[:8]}", f"spent-{uuid4()}"
    await make_topics(eu.bootstrap, {topic: 1})
    await init_producer_id(site.cluster, transactional_id)
    await spend_epochs(site.cluster, transactional_id, 32_700)
    task = Task(site, topic, transactional_id)
    await task.start()
    ids: set[int] = set()
    while len(ids) < 2 or task.shared.identity.epoch < 3:
        assert task.copied < 100
        ids.add(task.shared.identity.producer_id)
        await task.fill()
        await task.commit()
    await until_read(eu, topic, [b"%d" % at for at in range(task.copied)])
    successor = Task(site, topic, transactional_id)
    await successor.start()
    assert successor.copied == task.copied
