"""Unfenced: as whom and at which sequence a partition goes on, and when a proof may be believed."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from connect.core.errors import RetriableError
from connect.kafka.cluster import Cluster
from connect.kafka.transactions import TransactionalIdRefused
from connectors.dataplane.plan import PartitionPlan, ProducerIdentity, Proof, Run, TopicPartition
from connectors.dataplane.resumed import Resumed
from connectors.positions import Position
from connectors.source import second_line
from connectors.source.second_line import SecondLine, go_on, prove

SOURCE, TARGET = TopicPartition("orders", 0), TopicPartition("us.orders", 0)
WROTE = ProducerIdentity(7, 3)
FRESH = ProducerIdentity(9, 0)
Q = 2**31 - 10
POSITION = Position("orders", 0, None, 100, 0, "us.orders", 0, None, 50, "", *(7, 3), Q)
PLAN = PartitionPlan(SOURCE, None, TARGET, None, 100, 0, 50, 0, False, proof=Proof(WROTE, Q, None), producer=WROTE)


def resumed(surplus: int, *, verified: bool = True, found: int | None = None, fallback: str = "") -> Resumed:
    count = surplus if found is None else found
    runs: tuple[Run, ...] = ((100, 50, count),) if count else ()
    return Resumed(replace(PLAN, proof=None), runs, surplus, verified, fallback)


@pytest.mark.parametrize("surplus", [0, 4, 40])
def test_what_was_proven_goes_on_at_the_running_sequence(surplus: int) -> None:
    plan = go_on(resumed(surplus), POSITION, WROTE.epoch, FRESH, thinned=False, changes=False).plan
    assert (plan.producer, plan.next_sequence, plan.runs_on) == (WROTE, (Q + surplus) % 2**31, True)


@pytest.mark.parametrize(
    ("one", "thinned", "changes"),
    [
        (resumed(4, verified=False, found=0, fallback="a doubt"), False, False),
        (resumed(4, found=1), False, False),  # found by a search: the source has lost records since
        (resumed(4), True, False),
        (resumed(4), False, True),
    ],
    ids=["in doubt", "searched", "compacted", "refused for good"],
)
def test_where_a_sequence_may_stand_for_another_record_the_next_epoch_begins(
    one: Resumed, thinned: bool, changes: bool
) -> None:
    plan = go_on(one, POSITION, WROTE.epoch, FRESH, thinned=thinned, changes=changes).plan
    assert (plan.producer, plan.next_sequence, plan.runs_on) == (ProducerIdentity(7, 4), 0, False)
    # Of an id that a coordinator counts epochs for, the next epoch is not ours to take; nor is there one without end.
    for position in (replace(POSITION, transactional_id="mm2-0"), replace(POSITION, producer_epoch=32765)):
        plan = go_on(one, position, position.producer_epoch, FRESH, thinned=thinned, changes=changes).plan
        assert (plan.producer, plan.next_sequence) == (FRESH, 0)


def test_who_is_shut_out_already_is_not_gone_on_as() -> None:
    plan = go_on(resumed(4), POSITION, WROTE.epoch + 1, FRESH, thinned=False, changes=False).plan
    assert (plan.producer, plan.next_sequence) == (FRESH, 0)


class Target:
    """A leader whose last sequence moves on with each question, and a slice that sees what it saw before."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *surplus: int, epoch: int = WROTE.epoch) -> None:
        self._surplus = list(surplus)
        self._epoch = epoch
        self.hints: list[int | None] = []
        monkeypatch.setattr(second_line, "describe_producers", self.describe_producers)
        monkeypatch.setattr(second_line, "_AGAIN_S", 0)
        self.found: list[Resumed] = []

    async def resume(self, plans: Sequence[PartitionPlan]) -> list[Resumed]:
        (plan,) = plans
        assert plan.proof is not None
        self.hints.append(plan.proof.hint)
        return [self.found.pop(0)]

    async def describe_producers(self, _: object, partitions: Collection[TopicPartition]) -> dict[Any, Any]:
        last = (Q + self._surplus.pop(0) - 1) % 2**31
        return {TARGET: {WROTE.producer_id: (self._epoch, last)}}

    async def prove(self, *found: Resumed) -> tuple[list[Resumed], dict[TopicPartition, int]]:
        self.found = list(found)
        return await prove(cast(Cluster, None), self, [PLAN], {SOURCE: POSITION})


async def test_a_batch_that_arrived_since_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(monkeypatch, 6, 6)
    done, epochs = await target.prove(resumed(4), resumed(6))
    assert [one.surplus_records for one in done] == [6]
    assert epochs == {SOURCE: WROTE.epoch}
    assert target.hints == [None, (Q + 5) % 2**31]


async def test_a_tail_below_the_high_watermark_is_waited_for_and_then_doubted(monkeypatch: pytest.MonkeyPatch) -> None:
    doubt = resumed(4, verified=False, found=0, fallback="the leader knows of records that its log does not show")
    done, _ = await Target(monkeypatch, 4, 4).prove(doubt, resumed(4))
    assert done[0].verified
    monkeypatch.setattr(second_line, "_SETTLE_S", -1)
    done, _ = await Target(monkeypatch, 4).prove(doubt)
    assert done[0].fallback
    with pytest.raises(RetriableError, match=r"still arrive in us\.orders-0"):
        await Target(monkeypatch, 6).prove(resumed(4))


async def test_a_higher_epoch_at_the_leader_ends_the_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    _, epochs = await Target(monkeypatch, 1, epoch=WROTE.epoch + 1).prove(resumed(4))
    assert epochs == {SOURCE: WROTE.epoch + 1}


def test_it_is_said_once_and_names_the_grant(caplog: pytest.LogCaptureFixture) -> None:
    said = SecondLine("us->eu", "us-mm2-MirrorSourceConnector-")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            said.refused(TransactionalIdRefused("cluster eu does not let us use transactional id x"))
    (line,) = [record.getMessage() for record in caplog.records]
    assert "WRITE and DESCRIBE on transactional ids that begin with us-mm2-MirrorSourceConnector-" in line
