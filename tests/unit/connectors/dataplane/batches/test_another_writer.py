"""A late batch of a predecessor that could not be fenced: the same batch again, or seen as not ours."""

from __future__ import annotations

from typing import Any

import pytest

from connect.wire.batch import read_header
from connectors.dataplane.batches.copier import PartitionCopier
from connectors.dataplane.batches.send_queue import AnotherWrites
from connectors.formats.types import ProducerIdAndEpoch
from tests.kit.logs import OUT_OF_ORDER, TargetPartition, copier, fetched, plan, source_batch

WROTE = ProducerIdAndEpoch(7, 3)
FIRST_SEQUENCE = 2**31 - 4
BATCHES = [source_batch(range(first, first + 4)) for first in (100, 104)]


def successor() -> Any:
    """At the first of both batches, under its predecessor's id."""
    begin = plan(next_source_offset=100, target_end=10, next_sequence=FIRST_SEQUENCE, producer=WROTE)
    return copier(begin, ProducerIdAndEpoch(9, 0), batch_bytes=0)


def sent_by(machine: PartitionCopier, *batches: bytes) -> list[bytes]:
    """What it produces of source batches, were everything acknowledged."""
    machine.take(fetched(*batches))
    machine.pipelined = True
    sent = []
    while (outgoing := machine.next_batch()) is not None:
        sent.append(bytes(outgoing.batch))
    return sent


def target() -> TargetPartition:
    """With ten records of the predecessor."""
    known = TargetPartition()
    before = plan(next_source_offset=90, next_sequence=FIRST_SEQUENCE - 10)
    (batch,) = sent_by(copier(before, WROTE), source_batch(range(90, 100)))
    assert known.append(batch) == (0, 0)
    return known


def test_it_writes_under_the_plans_producer_and_not_the_slices() -> None:
    stamped = source_batch(range(104, 106), attributes=0x08)
    copied, rebuilt = (read_header(memoryview(batch)) for batch in sent_by(successor(), BATCHES[0], stamped))
    copied_by = (copied.producer_id, copied.producer_epoch, copied.base_sequence)
    assert copied_by == (WROTE.producer_id, WROTE.epoch, FIRST_SEQUENCE)
    assert (rebuilt.producer_id, rebuilt.producer_epoch, rebuilt.base_sequence) == (WROTE.producer_id, WROTE.epoch, 0)


def test_the_same_batch_that_arrived_before_counts_as_ours() -> None:
    log, late = target(), sent_by(successor(), *BATCHES)
    machine = successor()
    machine.take(fetched(*BATCHES))
    assert log.append(late[0]) == (0, 10)
    outgoing = machine.next_batch()
    error, base = log.append(bytes(outgoing.batch))
    assert (error, base) == (0, 10), "recognised as a repetition"
    machine.acknowledged(outgoing, base)
    assert (machine.next_source_offset, machine.target_end, machine.next_sequence) == (104, 14, 0)


@pytest.mark.parametrize("arrived", [(range(100, 107),), (range(100, 103),), (range(100, 104), range(104, 107))])
def test_other_batches_that_arrived_before_are_not_taken_for_ours(arrived: tuple[range, ...]) -> None:
    log = target()
    for batch in sent_by(successor(), *(source_batch(offsets) for offsets in arrived)):
        assert log.append(batch)[0] == 0
    machine = successor()
    machine.take(fetched(*BATCHES))
    for _ in BATCHES:
        outgoing = machine.next_batch()
        error, base = log.append(bytes(outgoing.batch))
        if error:
            assert error == OUT_OF_ORDER
            machine.failed(outgoing, error)
            break
        machine.acknowledged(outgoing, base)
    known = log.last_sequence(WROTE.producer_id)
    assert known is not None
    with pytest.raises(AnotherWrites, match=r"us\.orders-0 has batches of our producer id that we did not send"):
        machine.appended_unknown(known[1])
