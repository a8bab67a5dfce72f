"""Who is fenced and who has to prove what, by what is stored of each partition."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, cast
from uuid import UUID

import pytest

from connect.kafka.cluster import Cluster, TopicMetadata
from connect.kafka.transactions import ProducerIdentity, TransactionalIdRefused
from connectors.dataplane import plan as planning
from connectors.dataplane.plan import TopicPartition
from connectors.positions import Position
from connectors.source import standing, takeover
from connectors.source.ledger import Entry, Ledger, Pair, position_of
from connectors.source.store import Start
from connectors.source.takeover import Clusters, Takeover, take_over

OWN, OTHER = "mm2-0", "mm2-1"
END = 70


class Target:
    """A coordinator and its partitions: who was fenced where, and how many were at it at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fenced: list[tuple[str, list[TopicPartition]]] = []
        self.at_once = self.most_at_once = 0
        self.refused: set[str] = set()
        self.clusters = Clusters(cast(Cluster, None), cast(Cluster, None))
        for name in ("fence", "init_producer_id", "new_producer_id", "describe_producers", "list_offsets"):
            monkeypatch.setattr(takeover, name, getattr(self, name))
        for name in ("known_topics", "list_offsets"):
            monkeypatch.setattr(standing, name, getattr(self, name))

    async def fence(self, _: object, transactional_id: str, partitions: Collection[TopicPartition]) -> ProducerIdentity:
        if transactional_id not in self.refused:
            self.fenced.append((transactional_id, list(partitions)))
        return await self.init_producer_id(_, transactional_id)

    async def new_producer_id(self, _: object) -> ProducerIdentity:
        return ProducerIdentity(6, 0)

    async def init_producer_id(self, _: object, transactional_id: str) -> ProducerIdentity:
        if transactional_id in self.refused:
            raise TransactionalIdRefused(f"grant WRITE and DESCRIBE on transactional id {transactional_id}")
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        return ProducerIdentity(5, 2)

    async def describe_producers(self, _: object, partitions: Collection[TopicPartition]) -> dict[Any, Any]:
        return {partition: {} for partition in partitions}

    async def list_offsets(self, _: object, partitions: Collection[TopicPartition], *__: object) -> dict[Any, int]:
        return dict.fromkeys(partitions, END)

    async def known_topics(self, _: object, names: Collection[str]) -> dict[str, TopicMetadata]:
        there = {"orders": UUID(int=1), "us.orders": UUID(int=2), "us_orders": UUID(int=9)}
        return {name: TopicMetadata(name, there[name], 0, {}) for name in names if name in there}

    async def take(self, transactional_id: str, starts: Mapping[TopicPartition, Start]) -> Takeover:
        entries = [Entry(pair(source)) for source in starts]
        return await take_over(self.clusters, transactional_id, entries, starts)


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Target:
    return Target(monkeypatch)


def pair(source: TopicPartition) -> Pair:
    return Pair(source, UUID(int=1), TopicPartition(f"us.{source.topic}", source.partition), UUID(int=2))


def stored(source: TopicPartition, transactional_id: str = OWN, *, clean: bool = False, **changes: Any) -> Start:
    there = pair(source)
    position = Position(
        source.topic, source.partition, there.source_topic_id, 100, 3, *there.target, there.target_topic_id, 50,
        transactional_id, 5, 1, 8, is_handed_over=clean,
    )  # fmt: skip
    return Start(replace(position, **changes), 99, False)


A, B, C = (TopicPartition("orders", index) for index in range(3))


@pytest.mark.parametrize("writer", [OWN, OTHER])
async def test_nobody_who_handed_over_is_fenced_whichever_task_it_was(target: Target, writer: str) -> None:
    found = await target.take(OWN, {A: stored(A, writer, clean=True), B: stored(B, OWN, clean=True)})
    assert target.fenced == []
    assert [(plan.next_source_offset, plan.target_end, plan.next_sequence) for plan in found.plans] == [
        (100, END, 0),
        (100, END, 0),
    ]
    assert not any(plan.pipelined or plan.proof for plan in found.plans)


async def test_only_what_was_not_handed_over_is_fenced_and_proves_its_place(target: Target) -> None:
    starts = {A: stored(A), B: stored(B, OTHER), C: stored(C, clean=True)}
    plans = {plan.source: plan for plan in (await target.take(OWN, starts)).plans}
    assert target.fenced == [(OTHER, [pair(B).target]), (OWN, [pair(A).target])]
    assert [source for source, plan in plans.items() if plan.proof] == [A, B]
    assert [source for source, plan in plans.items() if plan.pipelined] == [A], "only there our own marker stands"


async def test_tasks_fence_one_after_the_other(target: Target) -> None:
    await asyncio.gather(
        target.take(OWN, {A: stored(A, OTHER)}),
        target.take(OTHER, {B: stored(B, OWN)}),
    )
    assert len(target.fenced) == 2
    assert target.most_at_once == 1


async def test_under_another_name_the_target_has_nothing_to_prove(target: Target) -> None:
    starts = {A: stored(A, target_topic="us_orders", target_topic_id=UUID(int=9))}
    (plan,) = (await target.take(OWN, starts)).plans
    assert target.fenced == [(OWN, [TopicPartition("us_orders", 0)])], "its writer is fenced where it wrote"
    assert (plan.proof, plan.next_source_offset, plan.target_end, plan.pipelined) == (None, 100, END, False)


async def test_a_topic_made_anew_is_refused(target: Target) -> None:
    found = await target.take(OWN, {A: stored(A, target_topic_id=UUID(int=9)), B: stored(B)})
    assert [plan.source for plan in found.plans] == [B]


async def test_a_running_sequence_does_not_say_that_the_leader_knows_us(target: Target) -> None:
    """After a day of silence it has forgotten, and would take a second batch without the first."""
    ledger = Ledger([pair(A), pair(B)])
    found = await target.take(OWN, {A: stored(A), B: stored(B)})
    for plan in found.plans:
        ledger.begin(plan.source, replace(position_of(plan, OWN, found.producer), next_sequence=8))
    assert [plan.pipelined for plan in ledger.plans()] == [False, False]
    assert [plan.pipelined for plan in ledger.plans([A])] == [True, False]


async def test_who_cannot_be_fenced_is_gone_on_as(target: Target) -> None:
    """Proof and running sequence for an unclean one, the running sequence for one that handed over, a new id else."""
    target.refused = {OWN, OTHER}
    starts = {A: stored(A), B: stored(B, ""), C: stored(C, "", clean=True)}
    found = await target.take(OWN, starts)
    plans = {plan.source: plan for plan in found.plans}
    assert target.fenced == []
    assert (found.transactional_id, found.producer) == ("", planning.ProducerIdentity(6, 0))
    assert set(found.unfenced) == {A, B}
    assert [source for source, plan in plans.items() if plan.proof] == [A, B]
    assert (plans[C].producer, plans[C].next_sequence) == (planning.ProducerIdentity(5, 1), 8)
    assert found.writer_of(plans[C]) == ("", planning.ProducerIdentity(5, 1))
    assert not any(plan.pipelined for plan in found.plans)


async def test_when_rights_come_back_who_handed_over_is_left_behind(target: Target) -> None:
    found = await target.take(OWN, {A: stored(A, ""), B: stored(B, "", clean=True)})
    plans = {plan.source: plan for plan in found.plans}
    assert set(found.unfenced) == {A}, "nobody can fence an id without a transactional id behind it"
    assert (plans[B].producer, plans[B].next_sequence) == (None, 0)
    assert found.writer_of(plans[B]) == (OWN, planning.ProducerIdentity(5, 2))


async def test_markers_of_another_producer_id_fence_nothing(target: Target) -> None:
    """As after a week in which brokers forgot the transactional id."""
    found = await target.take(OWN, {A: stored(A), B: stored(B, producer_id=4), C: stored(C, OTHER, producer_id=3)})
    assert set(found.unfenced) == {B, C}
    assert [plan.source for plan in found.plans if plan.pipelined] == [A]
