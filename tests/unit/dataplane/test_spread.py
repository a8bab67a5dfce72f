"""A partition whose records go to several of the target's, with brokers in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from connect.wire.records import Record
from connectors.dataplane.copier import PartitionCopier
from connectors.dataplane.handling import HandlerPlan, HandlerUnusable
from connectors.dataplane.plan import QUARANTINED, STOPPED, PartitionPlan, ProducerIdentity, TopicPartition
from connectors.dataplane.records_copier import Opened
from connectors.dataplane.spread import SpreadCopier, SpreadPart
from connectors.gaps import Gap, GapKind
from tests.kit.logs import TargetPartition, source_batch

SOURCE = TopicPartition("orders", 0)
PLAN = PartitionPlan(SOURCE, None, SOURCE, None, 0, -1, 0, 0, pipelined=False, spreads=True)
WRITER = ProducerIdentity(7, 0)


class Scene:
    """A reader, and two target partitions that get even and odd source offsets."""

    def __init__(self) -> None:
        self.waiting: list[Opened] = []
        self.copier = SpreadCopier(PLAN, WRITER, read_committed=False, submit=lambda _, part: self.waiting.append(part))
        self.logs = {TopicPartition("orders", index): TargetPartition() for index in range(2)}

    def read(self, *batches: bytes) -> None:
        self.copier.take(memoryview(bytearray(b"".join(batches))))

    def share_out(self, keep: Callable[[Record], bool] = lambda _: True) -> None:
        part = self.waiting.pop(0)
        if not self.copier.wants(part):
            return
        shares: dict[TopicPartition, list[Record]] = {}
        for record in filter(keep, part.records):
            target = TopicPartition("orders", record.offset % 2)
            if self.copier.part(target) is None:
                plan = replace(
                    PLAN,
                    target=target,
                    next_source_offset=self.copier.given_to,
                    last_source_epoch=self.copier.given_epoch,
                    spreads=False,
                )
                self.copier.enlist(SpreadPart(plan, WRITER, read_committed=False))
            shares.setdefault(target, []).append(record)
        self.copier.distribute(part, shares, ())

    def copy(self, index: int) -> None:
        """Send all that one target partition is to get, and acknowledge it."""
        writer = self.writer(index)
        while (outgoing := writer.next_batch()) is not None:
            error, base = self.logs[writer.plan.target].append(bytes(outgoing.batch))
            assert error == 0
            writer.acknowledged(outgoing, base)

    def writer(self, index: int) -> PartitionCopier:
        found = self.copier.part(TopicPartition("orders", index))
        assert found is not None
        return found

    def position(self) -> int:
        self.copier.report()
        return self.copier.next_source_offset

    def values(self, index: int) -> Sequence[bytes | None]:
        return [record.value for record in self.logs[TopicPartition("orders", index)].records()]


def test_the_position_is_that_of_the_slowest() -> None:
    scene = Scene()
    scene.read(source_batch(range(10)), source_batch(range(10, 20)))
    scene.share_out()
    scene.share_out()
    scene.copy(0)
    assert scene.position() == 0
    scene.copy(1)
    assert scene.position() == 20
    assert len(scene.values(0)) == len(scene.values(1)) == 10
    assert not scene.copier.has_unacknowledged


def test_what_one_partition_gets_nothing_of_is_passed_by_it() -> None:
    scene = Scene()
    scene.read(source_batch(range(10)), source_batch(range(10, 20)))
    scene.share_out()
    scene.copy(0)
    scene.copy(1)
    scene.share_out(lambda record: record.offset % 2 == 0)
    assert scene.position() == 10
    scene.copy(0)
    assert scene.position() == 20


def test_records_that_nobody_gets_move_the_position() -> None:
    scene = Scene()
    scene.read(source_batch(range(10)))
    scene.share_out(lambda _: False)
    assert scene.position() == 10
    assert scene.copier.parts == ()


def test_a_report_counts_what_was_acknowledged_and_names_topics() -> None:
    scene = Scene()
    scene.read(source_batch(range(10)))
    scene.share_out()
    scene.copy(0)
    scene.copy(1)
    report = scene.copier.report()
    assert report is not None
    assert (report.records, report.next_source_offset, report.topics) == (10, 10, ["orders"])
    assert scene.copier.buffered_bytes == 0


def test_a_clean_end_sends_what_was_shared_out_and_forgets_the_rest() -> None:
    scene = Scene()
    scene.read(source_batch(range(10)), source_batch(range(10, 20)), source_batch(range(20, 30)))
    scene.share_out()
    scene.share_out()
    scene.copy(0)
    scene.copier.discard_unsent()
    scene.share_out()
    assert scene.writer(1).has_unsent, "the other partition has not got its half"
    assert scene.position() == 0
    scene.copy(1)
    assert not scene.copier.has_unacknowledged
    assert scene.position() == 20
    assert len(scene.values(0)) == len(scene.values(1)) == 10


def test_a_record_that_became_several_is_passed_with_the_last_of_them() -> None:
    scene = Scene()
    scene.read(source_batch([0, 1], large=[0, 1]))
    part = scene.waiting.pop(0)
    target = TopicPartition("orders", 0)
    plan = replace(PLAN, target=target, spreads=False, max_message_bytes=1600)
    scene.copier.enlist(SpreadPart(plan, WRITER, read_committed=False))
    scene.copier.distribute(part, {target: [one for record in part.records for one in (record, record, record)]}, ())
    writer, seen = scene.writer(0), []
    while (outgoing := writer.next_batch()) is not None:
        error, base = scene.logs[target].append(bytes(outgoing.batch))
        assert error == 0
        writer.acknowledged(outgoing, base)
        seen.append(scene.position())
    assert seen == [0, 0, 1, 1, 1, 2], "a crash in between is to copy the record again"


def test_a_target_partition_that_joins_late_knows_of_which_epoch_it_goes_on() -> None:
    scene = Scene()
    scene.read(source_batch([0, 2, 4], leader_epoch=1), source_batch([5], leader_epoch=4))
    scene.share_out()
    scene.share_out()
    scene.copy(0)
    assert (scene.position(), scene.copier.last_source_epoch) == (5, 1)
    scene.copy(1)
    assert (scene.position(), scene.copier.last_source_epoch) == (6, 4)


def test_what_was_read_before_a_gap_is_shared_out_and_copied_before_it_stops_of_it() -> None:
    scene = Scene()
    scene.read(source_batch(range(10)))
    scene.copier.stop_reading("begins at offset 30 now", "source-gap", Gap(GapKind.SOURCE_GAP, 10, 29, go_on_at=30))
    scene.share_out()
    scene.copy(0)
    scene.copier.report()
    assert not scene.copier.stopped
    scene.copy(1)
    assert scene.position() == 10
    assert scene.copier.state == STOPPED


def test_a_record_that_cannot_be_sent_stops_it_in_its_place() -> None:
    scene = Scene()
    scene.read(source_batch(range(10)), source_batch(range(10, 20)))
    scene.share_out()
    scene.copier.stop_at("the record at offset 10 cannot be sent", "not-transformed")
    scene.share_out()
    scene.copy(0)
    scene.copy(1)
    assert scene.position() == 10
    assert scene.copier.state == QUARANTINED


def test_a_target_partition_that_refuses_for_good_stops_all() -> None:
    scene = Scene()
    scene.read(source_batch(range(10)))
    scene.share_out()
    scene.writer(1).quarantine("too large", "MESSAGE_TOO_LARGE")
    assert scene.position() == 0
    assert (scene.copier.state, scene.copier.stopped_reason) == (QUARANTINED, "too large")
    assert scene.writer(0).stopped


class Upper:
    """A message handler without arguments."""

    def handle(self, record: object) -> list[object]:
        return [record]


def test_a_handler_is_made_by_its_name() -> None:
    assert type(HandlerPlan(f"{__name__}:Upper").make()).__name__ == "Upper"


@pytest.mark.parametrize(
    ("reference", "args", "words"),
    [
        ("com.example.Handler", None, "cannot be imported"),
        (f"{__name__}:Missing", None, "write package.module:Class"),
        (f"{__name__}:Upper", "x", "cannot be made: TypeError"),
        (f"{__name__}:SOURCE", None, "cannot be made: TypeError"),
        ("pathlib:Path", None, "has no method handle"),
    ],
)
def test_what_is_no_handler_is_said(reference: str, args: str | None, words: str) -> None:
    with pytest.raises(HandlerUnusable, match=words):
        HandlerPlan(reference, args).make()
