"""Who is fenced and who has to prove what, by what is stored of each partition."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, cast
from uuid import UUID

import pytest

from connect.core.errors import RetriableError
from connect.kafka.cluster import Cluster, ClusterMetadata, PartitionMetadata, TopicMetadata
from connect.kafka.log.offsets import EARLIEST, LATEST
from connect.kafka.log.transactions import ProducerIdentity, TopicsRefused, TransactionalIdRefused
from connectors.formats import types as planning
from connectors.formats.gap import GapPolicy, OnTopicRecreated
from connectors.formats.position import Position
from connectors.formats.types import TopicPartition
from connectors.source.positions import gap_policy, position_checks, takeover
from connectors.source.positions.gap_policy import GapPasser
from connectors.source.positions.ledger import Ledger
from connectors.source.positions.partition_pairs import Clusters, Entry, PartitionPair, position_of
from connectors.source.positions.stored_positions import MissingRights, Start
from connectors.source.positions.takeover import Takeover, take_over
from connectors.topic_sync import partition_assignment
from tests.kit.answers import put

OWN, OTHER = "mm2-0", "mm2-1"
END = 70


class Target:
    """A coordinator and its partitions: who was fenced where, and how many were at it at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fenced: list[tuple[str, list[TopicPartition]]] = []
        self.name = "us"
        self.at_once = self.most_at_once = 0
        self.epoch = 1
        self.refused: set[str] = set()
        self.denied: set[TopicPartition] = set()
        self.entries: dict[TopicPartition, Entry] = {}
        self.leaderless: set[TopicPartition] = set()
        self.behind: set[TopicPartition] = set()
        self.clusters = Clusters(cast(Cluster, self), cast(Cluster, self))
        self.unreported: set[TopicPartition] = set()
        for name in ("min_insync_replicas", "unknown_ends", "known_topics", "list_offsets"):
            monkeypatch.setattr(position_checks, name, getattr(self, name))
        for name in ("fence", "init_producer_id", "new_producer_id", "list_offsets"):
            monkeypatch.setattr(takeover, name, getattr(self, name))

    async def metadata(self, names: Collection[str]) -> ClusterMetadata:
        """Of both clusters; ``behind`` have one replica of two in sync."""

        def of(partition: TopicPartition) -> PartitionMetadata:
            in_sync = (1,) if partition in self.behind else (1, 2)
            return PartitionMetadata(-1 if partition in self.leaderless else 1, 0, (1, 2), 0, in_sync)

        topics = {name: TopicMetadata(name, None, 3, {}) for name in names if name == "gone"}
        for name in set(names) - {"gone"}:
            topics[name] = TopicMetadata(name, None, 0, {at: of(TopicPartition(name, at)) for at in range(3)})
        return ClusterMetadata(None, 1, {}, topics)

    async def min_insync_replicas(self, _: object, topics: Collection[str]) -> dict[str, int]:
        return dict.fromkeys(topics, 2)

    async def unknown_ends(self, _: object, partitions: Collection[TopicPartition]) -> dict[TopicPartition, str]:
        return {one: f"{one}: OFFSET_NOT_AVAILABLE" for one in partitions if one in self.unreported}

    async def fence(
        self, _: object, transactional_id: str, partitions: Collection[TopicPartition], **__: int
    ) -> ProducerIdentity:
        if denied := self.denied.intersection(partitions):
            raise TopicsRefused("grant WRITE on topic us.orders", frozenset(denied))
        if transactional_id not in self.refused:
            self.fenced.append((transactional_id, list(partitions)))
        return await self.init_producer_id(_, transactional_id)

    async def new_producer_id(self, _: object) -> ProducerIdentity:
        return ProducerIdentity(6, 0)

    async def init_producer_id(self, _: object, transactional_id: str, **__: int) -> ProducerIdentity:
        if transactional_id in self.refused:
            raise TransactionalIdRefused(f"grant WRITE and DESCRIBE on transactional id {transactional_id}")
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        self.epoch += 1
        return ProducerIdentity(5, self.epoch)

    async def list_offsets(self, _: object, partitions: Collection[TopicPartition], *__: object) -> dict[Any, int]:
        return dict.fromkeys(partitions, END)

    async def known_topics(self, _: object, names: Collection[str]) -> dict[str, TopicMetadata]:
        there = {"orders": UUID(int=1), "us.orders": UUID(int=2), "us_orders": UUID(int=9)}
        return {name: TopicMetadata(name, there[name], 0, {}) for name in names if name in there}

    async def take(self, transactional_id: str, starts: Mapping[TopicPartition, Start]) -> Takeover:
        self.entries = {source: Entry(pair(source)) for source in starts}
        return await take_over(self.clusters, transactional_id, list(self.entries.values()), starts)


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Target:
    return Target(monkeypatch)


def pair(source: TopicPartition) -> PartitionPair:
    return PartitionPair(source, UUID(int=1), TopicPartition(f"us.{source.topic}", source.partition), UUID(int=2))


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
    begins = [(plan.next_source_offset, plan.target_end, plan.next_sequence) for plan in found.plans]
    assert begins == [(100, END, 0), (100, END, 0)]
    assert not any(plan.pipelined or plan.proof for plan in found.plans)


async def test_only_what_was_not_handed_over_is_fenced_and_proves_its_place(target: Target) -> None:
    starts = {A: stored(A), B: stored(B, OTHER), C: stored(C, clean=True)}
    plans = {plan.source: plan for plan in (await target.take(OWN, starts)).plans}
    assert target.fenced == [(OTHER, [pair(B).target]), (OWN, [pair(A).target])]
    assert [source for source, plan in plans.items() if plan.proof] == [A, B]
    assert [source for source, plan in plans.items() if plan.pipelined] == [A], "only there our own marker stands"


async def test_where_the_stored_offset_was_altered_the_writer_is_fenced_and_nothing_is_counted(target: Target) -> None:
    altered = replace(stored(A), moved=True, committed_source_offset=20)
    (plan,) = (await target.take(OWN, {A: altered})).plans
    assert target.fenced == [(OWN, [pair(A).target])]
    assert (plan.proof, plan.next_source_offset, plan.target_end, plan.pipelined) == (None, 21, END, True)


async def test_tasks_fence_one_after_the_other(target: Target) -> None:
    await asyncio.gather(target.take(OWN, {A: stored(A, OTHER)}), target.take(OTHER, {B: stored(B, OWN)}))
    assert len(target.fenced) == 2
    assert target.most_at_once == 1


async def test_a_target_truncated_meanwhile_is_noticed(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its new end, stored, would hide what it lost."""

    put(monkeypatch, takeover, list_offsets={pair(A).target: 49})
    with pytest.raises(RetriableError, match=r"us\.orders-0 was truncated while it was taken over"):
        await target.take(OWN, {A: stored(A, clean=True)})


async def test_under_another_name_the_target_has_nothing_to_prove(target: Target) -> None:
    starts = {A: stored(A, target_topic="us_orders", target_topic_id=UUID(int=9))}
    (plan,) = (await target.take(OWN, starts)).plans
    assert target.fenced == [(OWN, [TopicPartition("us_orders", 0)])], "its writer is fenced where it wrote"
    assert (plan.proof, plan.next_source_offset, plan.target_end, plan.pipelined) == (None, 100, END, False)


async def test_a_topic_made_anew_is_refused(target: Target) -> None:
    found = await target.take(OWN, {A: stored(A, target_topic_id=UUID(int=9)), B: stored(B)})
    assert [plan.source for plan in found.plans] == [B]


@pytest.mark.parametrize("policy", OnTopicRecreated)
async def test_what_a_policy_lets_go_on_is_begun_by_the_next_attempt_where_one_fails(
    target: Target, monkeypatch: pytest.MonkeyPatch, policy: OnTopicRecreated
) -> None:
    ledger, starts = Ledger([pair(A), pair(B)]), {A: stored(A, clean=True, source_topic_id=UUID(int=9)), B: stored(B)}
    ledger.entries[A].pair = replace(pair(A), source_topic_id=UUID(int=9))  # it was paired before
    passer = GapPasser("us->eu", GapPolicy(on_topic_recreated=policy), lambda _: (), 1234)
    answers = iter([False, True])

    async def list_offsets(_: object, partitions: Collection[TopicPartition], *__: object) -> dict[Any, int]:
        seen.append([entry.state for entry in ledger.entries.values()])
        if not next(answers):
            raise RetriableError("orders-0 has no leader")
        return dict.fromkeys(partitions, 3)

    seen: list[list[str]] = []
    monkeypatch.setattr(gap_policy, "list_offsets", list_offsets)
    goes_on = policy is not OnTopicRecreated.FAIL
    if goes_on:
        with pytest.raises(RetriableError):
            await take_over(target.clusters, OWN, ledger.going(), starts, passer=passer)
    found = await take_over(target.clusters, OWN, ledger.going(), starts, passer=passer)
    assert {plan.source: plan.next_source_offset for plan in found.plans} == ({A: 3} if goes_on else {}) | {B: 100}
    assert {plan.source_topic_id for plan in found.plans} == {pair(B).source_topic_id}
    assert seen == ([["healing", "starting"]] * 2 if goes_on else []), "nobody takes it for stopped meanwhile"


async def test_a_running_sequence_does_not_say_that_the_leader_knows_us(target: Target) -> None:
    """After a day of silence it has forgotten, and would take a second batch without the first."""
    ledger = Ledger([pair(A), pair(B)])
    found = await target.take(OWN, {A: stored(A), B: stored(B)})
    for plan in found.plans:
        ledger.begin(plan.source, replace(position_of(plan, OWN, found.producer), next_sequence=8))
    assert [plan.pipelined for plan in ledger.plans()] == [False, False]
    assert [plan.pipelined for plan in ledger.plans([A])] == [True, False]


def unfenced(found: Takeover) -> dict[TopicPartition, planning.ProducerIdAndEpoch]:
    """The producers with an epoch that we raised ourselves, by source partition."""
    raised = {plan.source: plan.producer for plan in found.plans if plan.proof and not plan.proof.is_fenced}
    assert all(found.writer_of(plan) == ("", plan.producer) for plan in found.plans if plan.source in raised)
    assert all(not plan.pipelined and plan.next_sequence == 0 for plan in found.plans if plan.source in raised)
    return {source: producer for source, producer in raised.items() if producer is not None}


async def test_the_epoch_of_a_writer_that_cannot_be_fenced_is_raised(target: Target) -> None:
    """Its first batch travels alone; where the writer had handed over a new id does."""
    target.refused = {OWN, OTHER}
    starts = {A: stored(A), B: stored(B, ""), C: stored(C, "", clean=True)}
    found = await target.take(OWN, starts)
    assert target.fenced == []
    assert (found.transactional_id, found.producer) == ("", planning.ProducerIdAndEpoch(6, 0))
    assert unfenced(found) == {A: planning.ProducerIdAndEpoch(5, 2), B: planning.ProducerIdAndEpoch(5, 2)}
    (last,) = (plan for plan in found.plans if plan.source == C)
    assert (last.proof, last.producer, last.next_sequence) == (None, None, 0)


async def test_when_rights_come_back_a_writer_that_handed_over_is_left_behind(target: Target) -> None:
    found = await target.take(OWN, {A: stored(A, ""), B: stored(B, "", clean=True)})
    assert set(unfenced(found)) == {A}, "no transactional id stands behind it"
    (other,) = (plan for plan in found.plans if plan.source == B)
    assert unfenced(found) == {A: planning.ProducerIdAndEpoch(5, 2)}
    # Its coordinator knows nothing of the epoch that we raise, and would give it out once more.
    assert found.writer_of(other) == (OWN, planning.ProducerIdAndEpoch(5, 3))


async def test_markers_of_another_producer_id_fence_nothing(target: Target) -> None:
    """As after a week in which brokers forgot the transactional id."""
    found = await target.take(OWN, {A: stored(A), B: stored(B, producer_id=4), C: stored(C, OTHER, producer_id=3)})
    assert unfenced(found) == {B: planning.ProducerIdAndEpoch(4, 2), C: planning.ProducerIdAndEpoch(3, 2)}
    assert [plan.source for plan in found.plans if plan.pipelined] == [A]


async def test_an_epoch_is_not_raised_beyond_the_last(target: Target) -> None:
    found = await target.take(OWN, {A: stored(A, "", producer_id=4, producer_epoch=32765)})
    assert found.plans[0].producer is None
    assert found.unfenced == {A: pair(A).target}, "so what it writes late is announced"
    assert found.writer_of(found.plans[0]) == (OWN, planning.ProducerIdAndEpoch(5, 2))


@pytest.mark.parametrize("writer", [OWN, OTHER])
async def test_a_partition_that_cannot_be_marked_waits_and_the_others_go_on(target: Target, writer: str) -> None:
    """In one transaction with theirs its marker would hold them all up."""
    target.leaderless, target.behind = {pair(A).target}, {pair(B).target}
    found = await target.take(OWN, {A: stored(A, writer), B: stored(B, writer), C: stored(C, writer)})
    assert target.fenced == [(writer, [pair(C).target])]
    assert [plan.source for plan in found.plans] == [C]
    assert {source: entry.reason for source, entry in target.entries.items() if entry.is_waiting} == {
        A: "target us.orders-0 has no leader",
        B: "target us.orders-1 has 1 of the 2 in-sync replicas that a write there needs",
    }


async def test_nothing_waits_for_what_its_takeover_does_not_ask(target: Target) -> None:
    """Behind a clean end no marker is written and the source is not read."""
    target.leaderless, target.behind = {A}, {pair(B).target}
    found = await target.take(OWN, {A: stored(A, clean=True), B: stored(B, clean=True)})
    assert [plan.source for plan in found.plans] == [A, B]


async def test_what_has_no_leader_waits_where_its_takeover_asks_it(target: Target) -> None:
    target.leaderless = {A, B, pair(C).target}
    with pytest.raises(RetriableError, match="source orders-0 has no leader; source orders-1 has no leader; target us"):
        await target.take(OWN, {A: stored(A), B: Start(None, None, False), C: stored(C, clean=True)})


async def test_where_a_predecessor_wrote_to_another_topic_its_marker_is_waited_for(target: Target) -> None:
    target.behind = {TopicPartition("us_orders", 0)}
    starts = {A: stored(A, target_topic="us_orders", target_topic_id=UUID(int=9)), B: stored(B)}
    assert [plan.source for plan in (await target.take(OWN, starts)).plans] == [B]
    assert target.fenced == [(OWN, [pair(B).target])]


async def test_where_a_predecessor_wrote_to_a_topic_that_is_gone_no_marker_is_waited_for(target: Target) -> None:
    found = await target.take(OWN, {A: stored(A, target_topic="gone"), B: stored(B)})
    assert [plan.source for plan in found.plans] == [B, A]
    assert target.fenced == [(OWN, [pair(B).target])]


async def test_whose_leader_does_not_know_its_end_yet_waits_alone(target: Target) -> None:
    target.unreported = {pair(A).target}
    found = await target.take(OWN, {A: stored(A, clean=True), B: stored(B)})
    assert [plan.source for plan in found.plans] == [B]
    assert target.entries[A].reason == "target us.orders-0: OFFSET_NOT_AVAILABLE"


async def test_where_all_would_wait_the_takeover_is_tried_again(target: Target) -> None:
    target.leaderless = {pair(A).target, pair(B).target}
    with pytest.raises(RetriableError, match=r"us\.orders-0 has no leader; target us\.orders-1 has no leader"):
        await target.take(OWN, {A: stored(A), B: stored(B)})
    assert target.fenced == []


@pytest.mark.parametrize("reset_to", [EARLIEST, LATEST])
async def test_it_is_told_where_what_is_there_already_is_left_out(
    target: Target, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, reset_to: int
) -> None:
    async def list_offsets(_: object, partitions: Collection[TopicPartition], at: int, *__: int) -> dict[Any, int]:
        return dict.fromkeys(partitions, 9 if at == LATEST else 2)

    monkeypatch.setattr(partition_assignment, "list_offsets", list_offsets)
    starts = {A: Start(None, None, False), B: stored(B, clean=True)}
    found = await take_over(target.clusters, OWN, [Entry(pair(A)), Entry(pair(B))], starts, reset_to=reset_to)
    assert {plan.source: plan.next_source_offset for plan in found.plans} == {A: 9 if reset_to == LATEST else 2, B: 100}
    assert ("skips these records: orders-0 at offset 9; with earliest" in caplog.text) is (reset_to == LATEST)


@pytest.mark.parametrize("writer", [OWN, OTHER])
async def test_without_the_right_to_write_a_partition_alone_is_quarantined(target: Target, writer: str) -> None:
    target.denied = {pair(A).target}
    found = await target.take(OWN, {A: stored(A, writer), B: stored(B, writer)})
    assert target.fenced == [(writer, [pair(B).target])]
    assert [plan.source for plan in found.plans] == [B]
    assert target.entries[A].state == "QUARANTINED"
    assert "grant WRITE on topic us.orders" in target.entries[A].reason


def test_it_is_announced_once_that_rights_are_missing_and_which(caplog: pytest.LogCaptureFixture) -> None:
    rights = MissingRights("us->eu", "us-mm2-MirrorSourceConnector-")
    for _ in range(2):
        rights.announce(TransactionalIdRefused("cluster eu does not let us use transactional id x"))
    (line,) = caplog.messages
    assert "WRITE and DESCRIBE on transactional ids that begin with us-mm2-MirrorSourceConnector-" in line
