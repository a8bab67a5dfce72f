"""Exact resume against the model of a target: whatever arrived before the fence, nothing is lost or doubled."""

import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.wire import batch as wire
from connect.wire import records
from connectors.dataplane import resume
from connectors.dataplane.batches.fetched_batches import opened
from connectors.formats.types import ProducerIdAndEpoch, ResumeProof
from tests.kit import logs as kit
from tests.kit.logs import TargetPartition, control_batch, fetched, fetched_from, source_batch
from tests.kit.old import message

OLD = ProducerIdAndEpoch(7, 3)
NEW = ProducerIdAndEpoch(7, 5)


def copier(producer, position, end, sequence, pipelined):
    begin = kit.plan(next_source_offset=position, target_end=end, next_sequence=sequence, pipelined=pipelined)
    return kit.copier(begin, producer)


def scan(target, proof, end, log_start=0):
    scanning = resume.TargetScan(proof, end, log_start)
    scanning.take(target.fetch(scanning.start), scanning.start)
    return scanning


def source_scan(log, position, wanted):
    walking = resume.SourceScan(position, wanted)
    for part in opened(fetched_from(log, position), position, None):
        if walking.remaining:
            walking.take(part.records, part.following, part.leader_epoch)
    return walking


def agree(walking, scanning):
    return walking.fingerprint.equals(scanning.fingerprint, ignore_timestamps=scanning.has_own_timestamps)


def ours(first_sequence, count):
    return records_of(OLD, first_sequence, count)


def records_of(producer, first_sequence, count):
    return source_batch(range(count), producer=(producer.producer_id, producer.epoch, first_sequence))


def marker(epoch=OLD.epoch + 1, producer_id=OLD.producer_id):
    return control_batch(0, producer_id, commit=False, epoch=epoch)


FOREIGN = source_batch(range(3), producer=(99, 0, 0))


def target_of(*batches, begin=0):
    """A target log of these batches, one behind the other; a number leaves so many offsets out."""
    target = TargetPartition(end=begin)
    for batch in batches:
        if isinstance(batch, int):
            target.end += batch
        else:
            target._put(batch, wire.read_header(batch).last_offset_delta + 1)
    return target


@pytest.mark.parametrize(
    ("batches", "arrived"),
    [
        ((marker(),), 0),
        ((FOREIGN, marker()), 0),
        ((ours(5, 2), FOREIGN, ours(7, 4), marker()), 6),
        ((ours(5, 2), marker(), FOREIGN, marker(OLD.epoch + 3)), 2),  # fenced twice: nothing follows the first marker
        ((ours(5, 2), marker(0, producer_id=98), ours(7, 1), marker()), 3),
        ((ours(5, 2), marker(OLD.epoch), ours(7, 1), marker()), 3),  # its own marker of a transaction
    ],
)
def test_a_log_without_a_hole_tells_how_many_records_arrived(batches, arrived):
    found = scan(target_of(*batches), ResumeProof(OLD, 5, True), 0)
    assert (found.arrived, found.doubt, found.is_over) == (arrived, "", True)


@pytest.mark.parametrize(
    ("target", "at_most"),
    [
        (target_of(ours(5, 2), 4, marker()), 6),  # the cleaner took whole batches
        (target_of(4, marker()), 4),
        (target_of(FOREIGN, 2, FOREIGN, marker()), 2),
        (target_of(ours(8, 2), marker()), 2),  # an unclean leader accepted sequences behind a hole
        (target_of(ours(5, 2), ours(9, 3), marker()), 5),
        (target_of(source_batch([0, 1], producer=(7, 3, 5), last_offset=3), marker()), 4),
    ],
)
def test_a_log_with_a_hole_proves_nothing_and_bounds_how_many_may_appear_twice(target, at_most):
    found = scan(target, ResumeProof(OLD, 5, True), 0)
    assert found.doubt
    assert (found.arrived, found.is_over) == (at_most, True)


def test_a_log_that_begins_behind_the_stored_end_proves_nothing():
    found = scan(target_of(FOREIGN, marker(), begin=7), ResumeProof(OLD, 5, True), 3, log_start=7)
    assert found.doubt
    assert found.arrived == 4


def test_a_log_that_does_not_show_the_marker_is_not_over():
    """A leader that is behind, right after the fence, would hide what arrived."""
    assert not scan(target_of(ours(5, 2)), ResumeProof(OLD, 5, True), 0).is_over


def test_a_log_whose_last_batches_are_gone_proves_nothing():
    found = scan(target_of(ours(0, 2)), ResumeProof(OLD, 0, False), 0)
    found.end_at(2)
    assert (found.arrived, found.doubt) == (2, "")
    found.end_at(5)
    assert found.doubt
    assert found.arrived == 5


def test_batches_of_a_lower_epoch_came_in_late():
    late = records_of(ProducerIdAndEpoch(OLD.producer_id, OLD.epoch - 1), 40, 3)
    found = scan(target_of(late, ours(0, 2)), ResumeProof(OLD, 0, False), 0)
    assert (found.arrived, found.late, found.doubt) == (2, 3, "")


def test_records_that_came_in_late_may_appear_twice() -> None:
    plan = kit.plan()
    late = records_of(ProducerIdAndEpoch(OLD.producer_id, OLD.epoch - 1), 40, 3)
    found = scan(target_of(late, ours(0, 2)), ResumeProof(OLD, 0, False), 0)
    assert resume.exact(plan, found, None).may_double == 3
    fallback = resume.fallback(plan, found, "why")
    assert (fallback.arrived, fallback.may_double) == (2, 5)


def test_a_target_with_an_old_message_format_proves_nothing() -> None:
    messages = [message(1, offset, b"k", b"v") for offset in range(2, 5)]
    found = resume.TargetScan(ResumeProof(OLD, 5, True), 3, 0)
    assert found.take(fetched(messages[0]), found.start) == 3
    assert found.doubt == "", "it is the record before the stored end"
    assert found.take(fetched(*messages[1:]), 3) == 5
    assert found.doubt == "the target keeps a message format without sequences"
    assert (found.end, found.arrived) == (5, 2)
    assert not resume.is_another_log(ResumeProof(OLD, 5, True), 3, fetched(messages[0]))


def test_a_raised_epoch_is_above_all_in_the_log():
    """As if it was fenced by a task that had the rights, and stored nothing; the leader would refuse a lower one."""
    plan = kit.plan(producer=ProducerIdAndEpoch(7, 4))
    found = scan(target_of(ours(0, 2), marker(), FOREIGN, marker(OLD.epoch + 3)), ResumeProof(OLD, 0, False), 0)
    found.end_at(7)
    assert (found.arrived, found.doubt, found.end) == (2, "", 7)
    assert resume.exact(plan, found, None).plan.producer == ProducerIdAndEpoch(7, OLD.epoch + 4)
    assert resume.fallback(plan, found, "why").plan.producer == ProducerIdAndEpoch(7, OLD.epoch + 4)
    assert resume.exact(replace(plan, producer=None), found, None).plan.producer is None


def test_sequences_wrap_around():
    start = 2**31 - 2
    assert scan(target_of(ours(start, 4), marker()), ResumeProof(OLD, start, True), 0).arrived == 4


@pytest.mark.parametrize(
    ("last", "next_sequence", "another"),
    [
        (ours(3, 2), 5, False),
        (ours(2**31 - 2, 2), 0, False),
        (FOREIGN, 0, False),  # it may have been there before
        (FOREIGN, 5, True),  # the log was cut, and another producer has written since
        (marker(0, producer_id=98), 5, True),
        (marker(OLD.epoch - 1), 0, False),
        (marker(OLD.epoch), 0, False),
        (ours(3, 1), 5, True),
        (ours(3, 2), 0, True),
        (marker(), 5, True),
        (marker(), 0, True),
        (records_of(ProducerIdAndEpoch(OLD.producer_id, OLD.epoch - 1), 3, 2), 5, True),
    ],
)
def test_the_record_before_the_stored_end_must_be_the_one_that_was_acknowledged(last, next_sequence, another):
    target = target_of(last, marker())
    end = wire.read_header(last).last_offset_delta + 1
    proof = ResumeProof(OLD, next_sequence, True, is_last_ours=True)
    assert scan(target, proof, end).is_another_log is another
    assert resume.is_another_log(proof, end, target.fetch(end - 1)) is another


def test_a_record_of_another_producer_proves_nothing_against_a_writer_that_has_come_back():
    """Its sequences continued from before, and it had written nothing there since."""
    assert not scan(target_of(FOREIGN, marker()), ResumeProof(OLD, 5, True), 3).is_another_log


def test_a_last_record_that_was_compacted_away_proves_nothing_against_its_log():
    target, proof = target_of(FOREIGN, 1, ours(5, 1), marker()), ResumeProof(OLD, 5, True, is_last_ours=True)
    found = scan(target, proof, 4)
    assert (found.is_another_log, found.arrived, found.doubt) == (False, 1, "")
    assert not resume.is_another_log(proof, 4, target.fetch(3))
    assert not resume.is_another_log(proof, 4, target.fetch(99))


@pytest.mark.parametrize("batch", [ours(3, 4), FOREIGN])
def test_a_batch_that_reaches_over_the_stored_end_is_of_another_log(batch):
    assert scan(target_of(batch, marker()), ResumeProof(OLD, 5, True), 2).is_another_log


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.data())
def test_runs_pair_every_record_in_order(source_counts, data):
    total = sum(source_counts)
    cuts = sorted(data.draw(st.sets(st.integers(1, total), max_size=6)) | {total})
    target_counts = [b - a for a, b in zip([0, *cuts], cuts, strict=False)]
    source = [(100 * i, count) for i, count in enumerate(source_counts)]
    target = [(1000 + 50 * i, count) for i, count in enumerate(target_counts)]
    ups = [start + k for start, count in source for k in range(count)]
    downs = [start + k for start, count in target for k in range(count)]
    runs = resume.pair_runs(source, target)
    assert [(up + k, down + k) for up, down, count in runs for k in range(count)] == list(zip(ups, downs, strict=True))


def with_odd_key(batch: bytes, offset: int) -> bytes:
    """A batch in which the header of the record at ``offset`` has a key that is no UTF-8."""
    odd = bytearray(batch)
    odd[odd.index(b"\x02n%c%d" % (len(str(offset)) * 2, offset)) + 1] = 0xE9
    struct.pack_into(">I", odd, 17, wire.checksum(odd))
    return bytes(odd)


@pytest.mark.parametrize(("odd", "attributes"), [(6, 0), (7, 0), (7, wire.LOG_APPEND_TIME)])
def test_a_header_whose_key_is_no_text_proves_what_arrived_too(odd: int, attributes: int) -> None:
    log = [with_odd_key(source_batch(range(5, 9), attributes=attributes), odd), source_batch([9, 12], last_offset=14)]
    target = TargetPartition()
    old = copier(OLD, 5, 0, 0, True)
    old.take(fetched_from(log))
    while (outgoing := old.next_batch()) is not None:
        target.append(bytes(outgoing.batch))
    target.mark(OLD.producer_id, OLD.epoch + 1)
    found = scan(target, ResumeProof(OLD, 0, True), 0)
    assert (found.arrived, found.doubt) == (6, "")
    expected = list(records.decode(log[0], 2))
    assert [one.headers for one in target.records()[:4]] == [one.headers for one in expected]
    assert agree(source_scan(log, 5, 6), found)
    other = [with_odd_key(log[0], odd + 1 if odd == 6 else odd - 1), log[1]]
    assert not agree(source_scan(other, 5, 6), found)
