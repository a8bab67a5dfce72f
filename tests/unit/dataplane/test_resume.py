"""Exact resume against the model of a target: whatever arrived before the fence, nothing is lost or doubled."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connect.wire import batch as wire
from connect.wire import records
from connectors.dataplane import resume
from connectors.dataplane.copier import PartitionCopier
from connectors.dataplane.plan import Compression, PartitionPlan, ProducerIdentity, Proof, TopicPartition
from tests.kit.logs import TargetPartition, control_batch, source_batch
from tests.unit.dataplane.test_copier import logs

OLD = ProducerIdentity(7, 3)
NEW = ProducerIdentity(7, 5)


def fetched(log, position=0):
    kept = [batch for batch in log if wire.read_header(batch).last_offset >= position]
    return memoryview(bytearray(b"".join(kept)))


def copier(producer, position, end, sequence, pipelined, codec=0):
    names = TopicPartition("t", 0), TopicPartition("us.t", 0)
    plan = PartitionPlan(names[0], None, names[1], None, position, -1, end, sequence, pipelined)
    return PartitionCopier(plan, producer, read_committed=False, compression=Compression(codec))


def scan(target, proof, end):
    scanning = resume.TargetScan(proof, end, 0)
    scanning.take(target.fetch(end), end)
    return scanning.surplus()


def walk(log, position, wanted):
    walking = resume.SourceWalk(position, wanted, read_committed=False, max_message_bytes=2**30)
    walking.take(fetched(log, position), ())
    return walking


def values(entries):
    return [(record.key, record.value) for record in entries]


@settings(max_examples=200, deadline=None)
@given(logs(), st.integers(0, 12), st.integers(0, 12), st.booleans(), st.booleans(), st.sampled_from([0, 4]))
def test_after_any_crash_the_copy_goes_on_exactly_there(log, stored_batches, sent_batches, recompressed, hinted, codec):
    target = TargetPartition()
    old = copier(OLD, 0, 0, 0, True, codec)
    target.mark(OLD.producer_id, OLD.epoch)
    old.target_end = target.end
    old.take(fetched(log))
    for _ in range(stored_batches):
        if (outgoing := old.next_batch()) is not None:
            old.acknowledged(outgoing, target.append(bytes(outgoing.batch))[1])
    stored = (old.next_source_offset, old.target_end, old.next_sequence)
    for _ in range(sent_batches):
        if (outgoing := old.next_batch()) is not None:
            target.append(bytes(outgoing.batch))
    known = target.last_sequence(OLD.producer_id)
    assert known is not None
    target.mark(NEW.producer_id, NEW.epoch)
    if recompressed:
        target.batches = [recompress(batch) for batch in target.batches]

    proof = Proof(OLD, stored[2], known[1] if hinted else None)
    surplus = scan(target, proof, stored[1])
    assert not surplus.doubt
    walking = walk(log, stored[0], surplus.records)
    assert walking.remaining == 0
    runs = []
    position = walking.position
    if surplus.records:
        last = resume.last_record(surplus.last_batch or b"")
        assert last is not None
        record, own_time = last
        assert resume.same_record(walking.last_record, record, own_time)
        runs = resume.pair_runs(walking.segments, surplus.segments)
    new = copier(NEW, position, target.end, 0, True)
    new.take(fetched(log, position))
    while (outgoing := new.next_batch()) is not None:
        error, base = target.append(bytes(outgoing.batch))
        assert error == 0
        new.acknowledged(outgoing, base)
    data = [batch for batch in log if not wire.read_header(batch).is_control]
    expected = [record for batch in data for record in records.decode(batch, 2)]
    assert values(target.records()) == values(expected)
    at = {record.offset: record.value for record in target.records()}
    source = {record.offset: record.value for record in expected}
    for up, down, count in runs:
        for i in range(count):
            assert at[down + i] == source[up + i]
    assert sum(count for _, _, count in runs) == surplus.records


def recompress(batch):
    """As a target with a compression.type of its own stores it: other codec and size, same producer and sequences."""
    header = wire.read_header(batch)
    if header.is_control:
        return batch
    built = records.build(
        list(records.decode(batch, 2)), 4, header.producer_id, header.producer_epoch, header.base_sequence
    )
    struct.pack_into(">q", built, 0, header.base_offset)
    return bytes(built)


def surplus_of(batches, proof, *, end=0, log_start=0):
    scanning = resume.TargetScan(proof, end, log_start)
    scanning.take(memoryview(bytearray(b"".join(batches))), end)
    return scanning.surplus()


def test_foreign_records_and_no_hint_are_a_doubt():
    foreign = source_batch(range(3), producer=(99, 0, 0))
    assert surplus_of([foreign], Proof(OLD, 5, None)).doubt
    assert not surplus_of([foreign], Proof(OLD, 5, 4)).doubt


def test_only_markers_behind_the_end_mean_that_nothing_arrived():
    marker = control_batch(0, OLD.producer_id, commit=False, epoch=4)
    surplus = surplus_of([marker], Proof(OLD, 5, None))
    assert (surplus.records, surplus.doubt) == (0, "")


def test_a_hint_that_the_log_does_not_show_is_a_doubt():
    assert surplus_of([], Proof(OLD, 5, 9)).doubt


def test_a_log_that_was_cut_behind_the_stored_end_is_a_doubt():
    assert surplus_of([], Proof(OLD, 5, None), end=3, log_start=7).doubt


def test_sequences_wrap_around():
    start = 2**31 - 2
    arrived = source_batch(range(4), producer=(OLD.producer_id, OLD.epoch, start))
    surplus = surplus_of([arrived], Proof(OLD, start, None))
    assert surplus.records == 4


def test_a_compacted_last_record_cannot_be_verified():
    batch = source_batch([0, 1], producer=(OLD.producer_id, OLD.epoch, 0), last_offset=3)
    surplus = surplus_of([batch], Proof(OLD, 0, None))
    assert resume.last_record(surplus.last_batch) is None


def test_the_search_finds_the_last_record_of_a_thinned_source():
    thinned = [source_batch([0, 4, 7], last_offset=9)]
    wanted = list(records.decode(thinned[0], 2))[1]
    search = resume.SourceSearch(wanted._replace(offset=55), 10, False)
    search.take(fetched(thinned), 0, None)
    assert search.found == 4
    missing = resume.SourceSearch(wanted._replace(key=b"other"), 10, False)
    missing.take(fetched(thinned), 0, None)
    assert missing.found is None


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
    old.take(fetched(log))
    while (outgoing := old.next_batch()) is not None:
        target.append(bytes(outgoing.batch))
    surplus = scan(target, Proof(OLD, 0, None), 0)
    assert (surplus.records, surplus.doubt) == (6, "")
    expected = list(records.decode(log[0], 2))
    assert [one.headers for one in target.records()[:4]] == [one.headers for one in expected]
    for wanted in (2, 3, 4):
        walking = walk(log, 5, wanted)
        last, _ = resume.last_record(bytes(records.build(expected[:wanted], 0, -1, -1, -1))) or (None, False)
        assert last is not None and walking.last_record is not None
        assert resume.same_record(walking.last_record, last, False)
        other = last._replace(headers=[("\ufffd", b"%d" % last.offset)])
        assert not resume.same_record(walking.last_record, other, False)
