"""A partition whose records are transformed, with the transformation in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from connect.wire import batch as wire
from connect.wire.records import Record
from connectors.control_link.protocol import PartitionPlan, TransactionTerms
from connectors.dataplane.batches import error_codes
from connectors.dataplane.batches.copier import UNTRANSFORMABLE, Transform
from connectors.dataplane.batches.error_codes import Refusal
from connectors.dataplane.batches.transaction import SliceTransaction
from connectors.formats.gap import Gap, GapKind
from connectors.formats.types import QUARANTINED, STOPPED, ProducerIdAndEpoch
from connectors.transforms.smt_chain import Outcome, Untransformable
from tests.kit import logs as kit
from tests.kit.logs import TargetPartition, control_batch, fetched, source_batch

GAP = Gap(GapKind.SOURCE_GAP, 20, 29, go_on_at=30)


class Stage:
    """What was given to it and has not come back."""

    def __init__(self, *, skips: bool = False) -> None:
        self.waiting: list[tuple[Sequence[Record], Callable[[Outcome], None]]] = []
        #: how much was held whenever it was told of something
        self.held: list[int] = []
        transform = Transform(self.submit, lambda copier: self.held.append(copier.held_bytes))
        self.copier = kit.copier(skip_refused=skips, transform=transform)

    def submit(self, _: PartitionPlan, part: Sequence[Record], done: Callable[[Outcome], None]) -> None:
        self.waiting.append((part, done))

    def read(self, *batches: bytes) -> None:
        self.copier.take(fetched(*batches))

    def give_back(self, *, drops: bool = False, instead: dict[int, Record | Untransformable] | None = None) -> None:
        part, done = self.waiting.pop(0)
        done([None] * len(part) if drops else [(instead or {}).get(record.offset, record) for record in part])

    def copy(self, target: TargetPartition) -> None:
        outgoing = self.copier.next_batch()
        error, base = target.append(bytes(outgoing.batch))
        assert error == 0
        self.copier.acknowledged(outgoing, base)


def test_what_was_read_before_a_gap_is_copied_before_it_stops_of_it() -> None:
    stage, target = Stage(), TargetPartition()
    stage.read(source_batch(range(10)), source_batch(range(10, 20)))
    stage.give_back()
    stage.copier.stop_reading("begins at offset 30 now", "source-gap", GAP)
    stage.copy(target)
    assert not stage.copier.gap, "a batch is still being transformed"
    stage.give_back()
    stage.copy(target)
    assert stage.copier.state == STOPPED
    assert stage.copier.gap == GAP
    assert stage.copier.next_source_offset == 20
    assert len(list(target.records())) == 20


def test_it_stops_also_where_the_last_records_are_dropped() -> None:
    stage = Stage()
    stage.read(source_batch(range(10)), control_batch(10, 5, commit=True))
    stage.copier.stop_reading("begins at offset 30 now", "source-gap", GAP)
    stage.give_back(drops=True)
    assert not stage.copier.stopped
    stage.give_back()
    assert stage.copier.stopped
    report = stage.copier.report()
    assert (report.next_source_offset, report.dropped, report.changed) == (11, 10, 0)
    assert report.batches == {"transformed": 1, "control batch": 1}


def test_a_record_that_no_transformation_takes_stops_its_partition_in_its_place() -> None:
    stage, target = Stage(), TargetPartition()
    stage.read(*(source_batch(range(first, first + 10)) for first in range(0, 40, 10)))
    stage.give_back()
    stage.give_back(instead={14: Untransformable("mask: no struct")})
    assert not stage.copier.is_read
    stage.give_back()
    stage.copy(target)
    assert stage.copier.state != QUARANTINED, "what was read before it is copied first"
    stage.copy(target)
    assert (stage.copier.state, stage.copier.stopped_error) == (QUARANTINED, UNTRANSFORMABLE)
    assert stage.copier.stopped_reason == (
        "source orders-0: the record at offset 14 cannot be transformed: mask: no struct; "
        "errors.tolerance = all leaves such records out"
    )
    stage.give_back()
    assert stage.copier.next_source_offset == 14
    assert len(list(target.records())) == 14
    assert not stage.copier.has_unsent


def test_where_errors_are_tolerated_it_is_left_out_and_counted() -> None:
    stage, target = Stage(skips=True), TargetPartition()
    stage.read(source_batch(range(10)))
    masked = stage.waiting[0][0][5]._replace(value=b"***")
    stage.give_back(instead={**dict.fromkeys((3, 4, 9), Untransformable("mask: no struct")), 5: masked})
    stage.copy(target)
    report = stage.copier.report()
    assert report.skips == [(3, 4, error_codes.NOT_TRANSFORMED), (9, 9, error_codes.NOT_TRANSFORMED)]
    assert report.next_source_offset == 10
    assert report.runs == [(0, 0, 3), (5, 3, 4)]
    assert (report.dropped, report.changed) == (0, 1)


def test_an_outcome_that_lacks_a_record_is_an_error_not_a_dropped_record() -> None:
    stage = Stage()
    stage.read(source_batch(range(10)))
    part, done = stage.waiting.pop()
    with pytest.raises(ValueError, match="shorter"):
        done(list(part[:9]))
    assert (stage.copier.next_source_offset, stage.copier.has_unsent) == (0, False)


def test_what_would_go_elsewhere_is_never_left_out() -> None:
    stage = Stage(skips=True)
    stage.read(source_batch(range(10)))
    stage.give_back(instead={0: Untransformable("a transform sends it to other", stops=True)})
    assert stage.copier.state == QUARANTINED
    assert stage.copier.next_source_offset == 0


def test_under_exactly_once_what_is_transformed_later_belongs_to_a_later_transaction() -> None:
    reported: list = []
    terms = TransactionTerms("id", 2, 0, 500)
    filling = SliceTransaction(terms, send=reported.append, collect=list, offer=lambda _: None)
    stage = Stage()
    copier = kit.copier(transaction=filling, transform=Transform(stage.submit, lambda _: None))
    stage.copier = copier
    filling.add([copier])
    stage.read(source_batch(range(10)), source_batch(range(10, 20)))
    stage.give_back()
    first = copier.next_batch()
    copier.acknowledged(first, 0)
    assert copier.is_settled and copier.next_source_offset == 10
    filling.finish()
    stage.give_back()
    assert copier.next_batch() is None, "the transaction is over"
    filling.begin(ProducerIdAndEpoch(7, 1), restarts=True)
    outgoing = copier.next_batch()
    header = wire.read_header(outgoing.batch)
    assert (header.producer_epoch, header.base_sequence, header.is_transactional) == (1, 0, True)
    assert wire.checksum(outgoing.batch) == header.crc


def test_what_was_opened_counts_with_the_memory_that_it_takes() -> None:
    stage = Stage()
    batch = source_batch(range(500), codec=1)
    stage.read(batch)
    copier = stage.copier
    assert copier.buffered_bytes == len(batch)
    contents = sum(len(f"{offset}value {offset}n{offset}") for offset in range(500))
    assert copier.held_bytes == len(batch) + 500 * 300 + contents > 5 * len(batch)
    stage.give_back(drops=True)
    assert copier.held_bytes == 0


@pytest.mark.parametrize("end", ["unfit", "stop", "leave"])
def test_room_is_told_of_also_where_nothing_more_is_sent(end: str) -> None:
    """Who reads may wait for it, and no answer of the target comes."""
    stage = Stage()
    stage.read(*(source_batch(range(first, first + 5)) for first in range(0, 20, 5)))
    if end == "stop":
        stage.copier.stop("gone")
    elif end == "leave":
        stage.copier.discard_unsent()
    stage.give_back(instead={0: Untransformable("mask: no struct")} if end == "unfit" else None)
    while stage.waiting:
        stage.give_back()
    assert stage.held[-1] == 0


def test_what_is_held_is_counted_exactly_also_where_a_batch_is_mended() -> None:
    stage, target = Stage(skips=True), TargetPartition()
    stage.read(*(source_batch(range(first, first + 5)) for first in range(0, 30, 5)))
    stage.give_back()
    outgoing = stage.copier.next_batch()
    stage.copier.refused(outgoing, Refusal(error_codes.INVALID_RECORD, (1,), "no key"))
    stage.copier.settle({})
    stage.copier.split_or_skip()
    while stage.waiting:
        stage.give_back()
    while stage.copier.has_unsent:
        stage.copy(target)
    assert stage.copier.next_source_offset == 30
    assert (stage.copier.buffered_bytes, stage.copier.held_bytes) == (0, 0)
