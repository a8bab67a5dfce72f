"""A late batch of a predecessor that could not be fenced: the same batch again, or seen as not ours."""

from __future__ import annotations

import pytest

from connect.wire.batch import read_header
from connectors.control_link.protocol import PartitionPlan
from connectors.dataplane.batches.copier import PartitionCopier
from connectors.dataplane.batches.send_queue import AnotherWrites
from connectors.formats.types import ProducerIdAndEpoch, TopicPartition
from tests.kit.logs import OUT_OF_ORDER, TargetPartition, fetched, source_batch

WROTE = ProducerIdAndEpoch(7, 3)
FIRST_SEQUENCE = 2**31 - 4
BATCHES = [source_batch(range(first, first + 4)) for first in (100, 104)]


def successor() -> PartitionCopier:
    """At the first of both batches, under its predecessor's id."""
    source, target = TopicPartition("orders", 0), TopicPartition("us.orders", 0)
    plan = PartitionPlan(source, None, target, None, 100, 0, 10, FIRST_SEQUENCE, False, producer=WROTE)
    return PartitionCopier(plan, ProducerIdAndEpoch(9, 0), read_committed=False, batch_bytes=0)


def sent_by(copier: PartitionCopier, *batches: bytes) -> list[bytes]:
    """What it produces of source batches, were everything acknowledged."""
    copier.take(fetched(*batches))
    copier.pipelined = True
    sent = []
    while (outgoing := copier.next_batch()) is not None:
        sent.append(bytes(outgoing.batch))
    return sent


def target() -> TargetPartition:
    """With ten records of the predecessor."""
    known = TargetPartition()
    partition = TopicPartition("orders", 0)
    before = PartitionPlan(partition, None, partition, None, 90, 0, 0, FIRST_SEQUENCE - 10, False)
    (batch,) = sent_by(PartitionCopier(before, WROTE, read_committed=False), source_batch(range(90, 100)))
    assert known.append(batch) == (0, 0)
    return known


def test_it_writes_under_the_plans_producer_and_not_the_slices() -> None:
    stamped = source_batch(range(104, 106), attributes=0x08)
    copied, rebuilt = (read_header(memoryview(batch)) for batch in sent_by(successor(), BATCHES[0], stamped))
    assert (copied.producer_id, copied.producer_epoch, copied.base_sequence) == (
        WROTE.producer_id,
        WROTE.epoch,
        FIRST_SEQUENCE,
    )
    assert (rebuilt.producer_id, rebuilt.producer_epoch, rebuilt.base_sequence) == (WROTE.producer_id, WROTE.epoch, 0)


def test_the_same_batch_that_arrived_before_counts_as_ours() -> None:
    log, late = target(), sent_by(successor(), *BATCHES)
    copier = successor()
    copier.take(fetched(*BATCHES))
    assert log.append(late[0]) == (0, 10)
    outgoing = copier.next_batch()
    assert outgoing is not None
    error, base = log.append(bytes(outgoing.batch))
    assert (error, base) == (0, 10), "recognised as a repetition"
    copier.acknowledged(outgoing, base)
    assert (copier.next_source_offset, copier.target_end, copier.next_sequence) == (104, 14, 0)


@pytest.mark.parametrize("arrived", [(range(100, 107),), (range(100, 103),), (range(100, 104), range(104, 107))])
def test_other_batches_that_arrived_before_are_not_taken_for_ours(arrived: tuple[range, ...]) -> None:
    log = target()
    for batch in sent_by(successor(), *(source_batch(offsets) for offsets in arrived)):
        assert log.append(batch)[0] == 0
    copier = successor()
    copier.take(fetched(*BATCHES))
    for _ in BATCHES:
        outgoing = copier.next_batch()
        assert outgoing is not None
        error, base = log.append(bytes(outgoing.batch))
        if error:
            assert error == OUT_OF_ORDER
            copier.failed(outgoing, error)
            break
        copier.acknowledged(outgoing, base)
    known = log.last_sequence(WROTE.producer_id)
    assert known is not None
    with pytest.raises(AnotherWrites, match=r"us\.orders-0 has batches of our producer id that we did not send"):
        copier.appended_unknown(known[1])
