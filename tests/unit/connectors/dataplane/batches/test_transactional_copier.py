"""A slice's half of exactly-once: what goes out when, under whom, and what the worker hears of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from connect.wire import batch as wire
from connectors.control_link.protocol import TransactionTerms
from connectors.dataplane.batches import error_codes
from connectors.dataplane.batches.copier import PartitionCopier
from connectors.dataplane.batches.outgoing_batches import Outgoing
from connectors.dataplane.batches.send_queue import TargetTruncated
from connectors.dataplane.batches.transaction import SliceTransaction, TransactionLost
from connectors.formats.types import QUARANTINED, ProducerIdAndEpoch, TopicPartition
from tests.kit import logs as kit
from tests.kit.logs import plan, source_batch

FIRST, SECOND = ProducerIdAndEpoch(7, 3), ProducerIdAndEpoch(7, 4)
#: No test lasts as long as the pauses between transactions may.
NEVER_MS = 3_600_000


class Stand:
    """Copiers of one partition each and their transactions, without sockets."""

    def __init__(
        self, partitions: int = 1, *, version: int = 2, spacing_ms: int = 0, length_ms: int = NEVER_MS
    ) -> None:
        self.said: list[dict[str, Any]] = []
        self.offered: list[PartitionCopier] = []
        terms = TransactionTerms("group-mirror-0", version, spacing_ms, length_ms)
        self.filling = SliceTransaction(terms, send=self.said.append, collect=self._collect, offer=self._offer)
        self.copiers = []
        for pair in (TopicPartition("t", index) for index in range(partitions)):
            begin = plan(source=pair, target=pair, pipelined=True)
            self.copiers.append(kit.copier(begin, FIRST, transaction=self.filling))
        self.filling.add(self.copiers)
        self._target_end = 0

    def _collect(self) -> list[Any]:
        return [list(copier.plan.source) for copier in self.copiers if copier.report() is not None]

    def _offer(self, copiers: Any) -> None:
        self.offered += copiers

    def drained(self) -> list[dict[str, Any]]:
        return [message for message in self.said if message["type"] == "drained"]

    def acknowledge(self, copier: PartitionCopier, outgoing: Outgoing) -> None:
        base, self._target_end = self._target_end, self._target_end + outgoing.count
        copier.acknowledged(outgoing, base)
        self.filling.answered()


def fetched(first: int, count: int = 3) -> memoryview:
    return memoryview(bytearray(source_batch(range(first, first + count))))


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.001)


def test_batches_are_transactional_and_stay_shallow() -> None:
    stand = Stand()
    (copier,) = stand.copiers
    original = source_batch(range(3))
    copier.take(fetched(0))
    outgoing = copier.next_batch()
    header = wire.read_header(outgoing.batch)
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, 0)
    assert bytes(outgoing.batch[wire.HEADER_BYTES :]) == bytes(original[wire.HEADER_BYTES :])
    assert wire.checksum(outgoing.batch) == header.crc


async def test_what_waited_goes_out_as_the_next_transaction_with_sequences_from_0() -> None:
    stand = Stand()
    (copier,) = stand.copiers
    running = asyncio.create_task(stand.filling.run())
    copier.take(fetched(0))
    first = copier.next_batch()
    stand.filling._terms = TransactionTerms("group-mirror-0", 2, 0, 0)  # it has lasted long enough
    await until(lambda: not stand.filling.admits(copier))
    copier.take(fetched(3))
    assert copier.next_batch() is None, "nothing goes out for the first time while a transaction is ended"
    assert not stand.drained()
    stand.acknowledge(copier, first)
    await until(stand.drained)
    assert copier.next_batch() is None
    stand.filling.begin(SECOND, restarts=True)
    assert stand.offered == [copier]
    second = copier.next_batch()
    header = wire.read_header(second.batch)
    assert (header.producer_epoch, header.base_sequence, header.is_transactional) == (4, 0, True)
    assert wire.checksum(second.batch) == header.crc
    stand.acknowledge(copier, second)
    assert (copier.next_source_offset, copier.next_sequence) == (6, 3)
    running.cancel()


def test_sequences_run_on_where_the_epoch_stays() -> None:
    stand = Stand(version=1)
    (copier,) = stand.copiers
    stand.filling.enlisted([TopicPartition("t", 0)])
    copier.take(fetched(0))
    first = copier.next_batch()
    stand.acknowledge(copier, first)
    stand.filling.begin(FIRST, restarts=False)
    stand.filling.enlisted([TopicPartition("t", 0)])
    copier.take(fetched(3))
    second = copier.next_batch()
    assert wire.read_header(second.batch).base_sequence == 3


async def test_a_partition_is_enlisted_before_its_first_batch() -> None:
    stand = Stand(2, version=1)
    for copier in stand.copiers:
        copier.take(fetched(0))
        assert copier.next_batch() is None
    await asyncio.sleep(0)
    (asked,) = stand.said
    assert asked["type"] == "enlist"
    assert sorted(asked["partitions"]) == [["t", 0], ["t", 1]]
    stand.filling.enlisted([TopicPartition("t", 1)])
    assert [copier.next_batch() is None for copier in stand.copiers] == [True, False]


async def test_a_partition_without_the_right_to_write_stops_alone() -> None:
    stand = Stand(3, version=1)
    refused, other, late = stand.copiers
    for copier in (refused, other):
        copier.take(fetched(0))
        assert copier.next_batch() is None
    await asyncio.sleep(0)
    late.take(fetched(0))
    assert late.next_batch() is None
    stand.filling.enlisted([other.plan.target], [refused.plan.target])
    assert (refused.state, refused.stopped_error) == (QUARANTINED, "TOPIC_AUTHORIZATION_FAILED (29)")
    assert refused.stopped_reason == (
        "target t-0 refuses to be part of a transaction: TOPIC_AUTHORIZATION_FAILED (29); grant WRITE on topic t, then "
        "start the flow again"
    )
    assert stand.said[1:] == [{"type": "enlist", "partitions": [["t", 2]]}], "it asked while an answer was due"
    assert other.next_batch() is not None
    stand.filling.begin(FIRST, restarts=False)
    assert refused.next_batch() is None
    await asyncio.sleep(0)
    assert len(stand.said) == 2, "what is stopped asks for nothing more"


async def test_a_partition_with_nothing_to_send_stays_out_of_the_transaction() -> None:
    stand = Stand(version=1)
    (copier,) = stand.copiers
    assert copier.next_batch() is None
    await asyncio.sleep(0)
    assert stand.said == []


async def test_a_transaction_ends_when_the_source_has_no_more() -> None:
    stand = Stand()
    (copier,) = stand.copiers
    running = asyncio.create_task(stand.filling.run())
    copier.take(fetched(0))
    copier.take(fetched(3))
    first, second = copier.next_batch(), copier.next_batch()
    stand.acknowledge(copier, first)
    await asyncio.sleep(0.05)
    assert not stand.drained()
    stand.acknowledge(copier, second)
    await until(stand.drained)
    assert stand.drained() == [{"type": "drained", "partitions": [["t", 0]]}]
    running.cancel()


async def test_a_refused_batch_is_sent_again_before_the_transaction_ends() -> None:
    stand = Stand(length_ms=0)
    (copier,) = stand.copiers
    running = asyncio.create_task(stand.filling.run())
    copier.take(fetched(0))
    sent = copier.next_batch()
    await until(lambda: not stand.filling.admits(copier))
    copier.failed(sent, error_codes.REQUEST_TIMED_OUT)
    stand.filling.answered()
    await asyncio.sleep(0.02)
    assert not stand.drained(), "a commit would succeed without it"
    copier.settle({})
    before = bytes(sent.batch)
    again = copier.next_batch()
    assert again is sent
    assert bytes(again.batch) == before
    stand.acknowledge(copier, again)
    await until(stand.drained)
    running.cancel()


@pytest.mark.parametrize(
    ("code", "is_lost"), [(error_codes.TOPIC_AUTHORIZATION_FAILED, False), (error_codes.UNKNOWN_SERVER_ERROR, True)]
)
async def test_only_a_transaction_with_batches_of_a_stopped_partition_is_lost(code: int, is_lost: bool) -> None:
    stand = Stand(2, length_ms=0)
    stopped, other = stand.copiers
    running = asyncio.create_task(stand.filling.run())
    for copier in stand.copiers:
        copier.take(fetched(0))
    refused, fine = stopped.next_batch(), other.next_batch()
    stopped.failed(refused, code)
    stopped.quarantine("the target refuses it", "refused")
    stand.acknowledge(other, fine)
    if is_lost:
        with pytest.raises(TransactionLost):
            await asyncio.wait_for(running, 60)
        assert [message["type"] for message in stand.said] == ["progress"], "the successor knows what stopped"
    else:
        await until(stand.drained)
        assert stopped.next_source_offset == 0
        running.cancel()


def test_a_clean_end_waits_for_what_a_stopped_partition_has_under_way() -> None:
    stand = Stand()
    (copier,) = stand.copiers
    copier.take(fetched(0))
    outgoing = copier.next_batch()
    copier.stop("its source is damaged further on", "source-corrupt")
    assert copier.holds_up_end, "the batch may still join the transaction"
    stand.acknowledge(copier, outgoing)
    assert not copier.holds_up_end


async def test_the_last_transaction_is_told_at_a_clean_end() -> None:
    stand = Stand()
    (copier,) = stand.copiers
    stand.filling.finish()
    assert not stand.drained(), "an empty transaction is left out"
    copier.take(fetched(0))
    outgoing = copier.next_batch()
    stand.acknowledge(copier, outgoing)
    assert not stand.filling.is_idle
    stand.filling.finish()
    assert len(stand.drained()) == 1
    stand.filling.finish()
    assert len(stand.drained()) == 1


def test_another_producer_id_is_unknown_to_its_leader() -> None:
    stand = Stand()
    (copier,) = stand.copiers
    copier.begin(SECOND, restarts=True)
    assert copier.pipelined
    copier.begin(ProducerIdAndEpoch(8, 0), restarts=True)
    copier.take(fetched(0))
    copier.take(fetched(3))
    assert copier.next_batch() is not None
    assert copier.next_batch() is None, "one batch until its leader knows the id"


def test_a_leader_may_forget_the_producer_until_the_first_batch_of_a_transaction_is_acknowledged() -> None:
    """Sequences begin again with each transaction, whatever the plan began with."""
    stand, pair = Stand(partitions=0), TopicPartition("t", 0)
    begin = plan(source=pair, target=pair, pipelined=True, next_sequence=5)
    copier = kit.copier(begin, FIRST, transaction=stand.filling)
    stand.filling.add([copier])
    copier.begin(SECOND, restarts=True)
    copier.take(fetched(0))
    first = copier.next_batch()
    assert copier.appended_unknown(None) == []
    stand.acknowledge(copier, first)
    with pytest.raises(TargetTruncated, match="does not know the producer id"):
        copier.appended_unknown(None)
