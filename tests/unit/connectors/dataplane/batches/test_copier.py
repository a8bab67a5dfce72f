"""One partition's state machine against a model of a target's leader: lost answers, refusals, late requests."""

from __future__ import annotations

import pytest

from connect.wire import batch as wire
from connect.wire import records
from connectors.control_link.protocol import PartitionProgress
from connectors.dataplane.batches.error_codes import Refusal
from connectors.dataplane.batches.fetched_batches import CorruptBatch
from connectors.dataplane.batches.send_queue import AnotherWrites, TargetTruncated
from tests.kit import logs as kit
from tests.kit.logs import TargetPartition, control_batch, copy_all, fetched, held, plan, source_batch


def copier(read_committed=False, batch_bytes=0, **changes):
    """Without merging, if no size of merged batches is given."""
    return kit.copier(plan(**changes), read_committed=read_committed, batch_bytes=batch_bytes)


def threes(end):
    """Batches of three records each."""
    return fetched(*(source_batch(range(first, first + 3)) for first in range(0, end, 3)))


def plain(batches, position=0):
    """What a consumer of the source reads from ``position`` on, as the target should hold it."""
    return [
        (record.key, record.value, record.headers, record.timestamp_ms)
        for batch in batches
        for record in records.decode(batch, 2)
        if record.offset >= position
    ]


@pytest.mark.parametrize("codec", range(5))
def test_a_batch_of_any_codec_is_copied_with_its_payload_untouched(codec):
    batch = source_batch(range(10, 30), codec=codec, leader_epoch=4)
    machine, target = copier(next_source_offset=10), TargetPartition()
    machine.take(fetched(batch))
    copy_all(machine, target)
    assert target.batches[0][61:] == batch[61:]
    assert held(target) == plain([batch])
    report = machine.report()
    assert (report.next_source_offset, report.last_source_epoch, report.target_end) == (30, 4, 20)
    assert report.runs == [(10, 0, 20)]
    assert report.batches == {"as it is": 1}


def test_a_start_inside_a_batch_is_trimmed():
    batch = source_batch(range(10), codec=4)
    machine, target = copier(next_source_offset=6), TargetPartition(end=100)
    machine.target_end = 100
    machine.take(fetched(batch))
    copy_all(machine, target)
    assert held(target) == plain([batch], 6)
    assert machine.report().runs == [(6, 100, 4)]


def test_compacted_gaps_are_closed_and_mapped_exactly():
    batch = source_batch([5, 6, 9, 14], codec=1, attributes=wire.DELETE_HORIZON, last_offset=17)
    machine, target = copier(next_source_offset=5), TargetPartition()
    machine.take(fetched(batch, source_batch(range(18, 20))))
    copy_all(machine, target)
    report = machine.report()
    assert report.runs == [(5, 0, 2), (9, 2, 1), (14, 3, 1), (18, 4, 2)]
    assert report.next_source_offset == 20


def test_too_large_a_batch_is_split():
    batch = source_batch(range(64))
    machine, target = copier(max_message_bytes=600), TargetPartition()
    machine.take(fetched(batch))
    copy_all(machine, target)
    assert len(target.batches) > 1
    assert all(len(one) <= 600 for one in target.batches)
    assert held(target) == plain([batch])
    assert machine.report().runs == [(0, 0, 64)]


def transactions():
    """Producer 1 commits [0, 3), aborts [4, 6), commits [7, 9); producer 2 commits [9, 10)."""
    flag = wire.TRANSACTIONAL
    return [
        source_batch(range(3), producer=(1, 0, 0), attributes=flag),
        control_batch(3, 1, commit=True),
        source_batch(range(4, 6), producer=(1, 0, 3), attributes=flag),
        control_batch(6, 1, commit=False),
        source_batch(range(7, 9), producer=(1, 0, 5), attributes=flag),
        source_batch(range(9, 10), producer=(2, 0, 0), attributes=flag),
        control_batch(10, 1, commit=True),
        control_batch(11, 2, commit=True),
    ]


def test_read_committed_drops_aborted_data_and_markers():
    log = transactions()
    machine, target = copier(read_committed=True), TargetPartition()
    machine.take(fetched(*log), [(1, 4)])
    copy_all(machine, target)
    assert held(target) == plain([log[0], log[4], log[5]])
    report = machine.report()
    assert report.next_source_offset == 12
    assert report.runs == [(0, 0, 3), (7, 3, 3)]
    assert report.batches == {"as it is": 3, "control batch": 4, "aborted transaction": 1}


def test_read_uncommitted_copies_aborted_data_too():
    log = transactions()
    machine, target = copier(), TargetPartition()
    machine.take(fetched(*log), [(1, 4)])
    copy_all(machine, target)
    assert held(target) == plain([log[0], log[2], log[4], log[5]])


def test_a_dropped_batch_is_passed_with_the_last_batch_before_it_not_with_one_in_flight():
    machine = copier()
    machine.take(threes(3))
    in_flight = machine.next_batch()
    machine.take(fetched(source_batch(range(3, 6)), control_batch(6, 1, commit=True)))
    machine.acknowledged(in_flight, 0)
    assert machine.next_source_offset == 3
    machine.acknowledged(machine.next_batch(), 3)
    assert machine.next_source_offset == 7


def test_a_transaction_of_one_record_is_aborted_from_its_first_offset_on():
    log = [source_batch([0], producer=(1, 0, 0), attributes=wire.TRANSACTIONAL), control_batch(1, 1, commit=False)]
    machine = copier(read_committed=True)
    machine.take(fetched(*log), [(1, 0)])
    assert machine.next_batch() is None
    assert machine.report().batches == {"aborted transaction": 1, "control batch": 1}


def test_a_report_counts_what_happened_since_the_last():
    machine, target = copier(pipelined=True), TargetPartition()
    assert not machine.holds_up_end
    begin = machine.report()
    assert begin == PartitionProgress(machine.plan.source, 0, -1, 0, 0, -1, -1, -1, 0, 0, {})
    assert machine.report() is None
    early = source_batch(range(3, 5), timestamp_ms=1000, leader_epoch=2)
    machine.take(fetched(source_batch(range(3)), early, source_batch([5, 7])))
    copy_all(machine, target)
    size, latest_ms = sum(map(len, target.batches)), max(one.timestamp_ms for one in target.records())
    batches, runs = {"as it is": 2, "compacted gaps": 1}, [(0, 0, 6), (7, 6, 1)]
    report = PartitionProgress(machine.plan.source, 8, 0, 7, 7, -1, -1, latest_ms, 7, size, batches, runs)
    assert machine.report() == report
    assert machine.report() is None
    early = source_batch([8], timestamp_ms=1000)
    machine.take(fetched(early))
    copy_all(machine, target)
    again = machine.report()
    assert (again.records, again.bytes, again.timestamp_ms) == (1, len(early), latest_ms)
    assert (again.batches, again.runs) == ({"as it is": 1}, [(8, 7, 1)])


def test_a_wrong_checksum_is_never_copied():
    good, bad = source_batch(range(3)), bytearray(source_batch(range(3, 6)))
    bad[-1] ^= 1
    machine = copier()
    with pytest.raises(CorruptBatch):
        machine.take(fetched(good, bytes(bad)))
    assert machine.fetch_offset == 3
    assert machine.next_batch().count == 3
    assert machine.has_unsent is False


def test_one_batch_is_in_flight_until_the_leader_knows_the_producer():
    machine = copier()
    machine.take(threes(6))
    first = machine.next_batch()
    assert machine.next_batch() is None
    machine.acknowledged(first, 0)
    assert machine.next_batch() is not None


def test_a_leader_that_has_a_batch_of_the_producer_knows_it():
    machine = copier()
    machine.take(threes(9))
    machine.failed(machine.next_batch(), None)
    machine.settle({0: 0})
    assert machine.next_batch() is not None
    assert machine.next_batch() is not None


def test_an_offset_given_twice_means_that_the_target_was_truncated():
    machine = copier(pipelined=True)
    machine.take(threes(6))
    first, second = machine.next_batch(), machine.next_batch()
    machine.acknowledged(first, 0)
    with pytest.raises(TargetTruncated):
        machine.acknowledged(second, 1)


def test_a_leader_that_knows_less_than_it_acknowledged_was_truncated():
    machine = copier(pipelined=True)
    machine.take(threes(6))
    machine.acknowledged(machine.next_batch(), 0)
    machine.failed(machine.next_batch(), None)
    with pytest.raises(TargetTruncated):
        machine.appended_unknown(1)
    with pytest.raises(TargetTruncated):
        machine.appended_unknown(None)


def test_only_batches_at_offsets_that_are_not_known_are_looked_for():
    machine = copier(pipelined=True)
    machine.take(threes(9))
    first, second, third = (machine.next_batch() for _ in range(3))
    machine.failed(first, None)
    machine.acknowledged(second, 3)
    machine.failed(third, None)
    assert machine.appended_unknown(8) == [first, third]
    assert machine.appended_unknown(5) == [first]


def test_a_leader_whose_last_sequence_is_ahead_has_batches_of_another():
    """Of two sequences, the one less than half a cycle behind the other is the earlier."""
    machine = copier(pipelined=True)
    machine.take(threes(3))
    machine.failed(machine.next_batch(), None)
    with pytest.raises(AnotherWrites):
        machine.appended_unknown(2**30 - 1)
    with pytest.raises(TargetTruncated):
        machine.appended_unknown(2**30)


def test_a_clean_end_forgets_only_what_was_never_sent():
    machine = copier(pipelined=True)
    machine.take(threes(9))
    first, second = machine.next_batch(), machine.next_batch()
    machine.discard_unsent()
    assert machine.buffered_bytes == len(first.batch) + len(second.batch)
    machine.acknowledged(first, 0)
    assert machine.has_unacknowledged
    assert not machine.has_unsent
    assert machine.next_source_offset == 3


def test_a_faulted_partition_gives_back_what_no_copy_of_can_arrive():
    machine = copier(pipelined=True)
    machine.take(fetched(*(source_batch(range(first, first + 3), leader_epoch=first) for first in range(0, 15, 3))))
    doubtful, refused = machine.next_batch(), machine.next_batch()
    machine.failed(doubtful, 20)
    machine.give_back(4)
    assert machine.fetch_offset == 12, "it keeps four"
    machine.give_back(0)
    assert machine.fetch_offset == 6, "the second batch has no answer yet"
    machine.failed(refused, 19)
    machine.give_back(0)
    assert (machine.fetch_offset, machine.last_fetched_epoch, machine.gave_back) == (3, 0, True)
    assert machine.held_bytes == len(doubtful.batch)
    machine.settle({0: 40})
    assert (machine.next_source_offset, machine.held_bytes, machine.gave_back) == (3, 0, False)
    machine.take(fetched(source_batch(range(3, 9))))
    again = machine.next_batch()
    assert (again.base_sequence, again.count) == (3, 6)


def test_what_was_refused_for_good_is_not_given_back():
    """Read again, it would be sent as it was, and refused again."""
    machine = copier(pipelined=True)
    machine.take(threes(6))
    machine.refused(machine.next_batch(), Refusal(87))
    machine.give_back(0)
    assert (machine.fetch_offset, machine.has_refused) == (3, False)
    machine.settle({})
    assert machine.has_refused


def test_a_partition_whose_source_is_gone_stops_behind_what_was_read_and_gives_nothing_back():
    empty, machine = copier(), copier()
    machine.take(threes(3))
    for one in (empty, machine):
        one.stop_reading("the topic is gone", "source-deleted", None)
    machine.give_back(0)
    assert (empty.stopped, machine.stopped) == (True, False)
    assert (machine.has_unsent, machine.fetch_offset) == (True, 3)


def test_one_batch_is_in_flight_while_the_leader_lacks_replicas():
    machine = copier(pipelined=True)
    machine.take(threes(9))
    machine.failed(machine.next_batch(), 19)
    machine.settle({})
    probe = machine.next_batch()
    assert machine.next_batch() is None
    machine.acknowledged(probe, 0)
    assert machine.next_batch() is not None
    assert machine.next_batch() is not None


def test_a_stopped_partition_holds_nothing_that_is_not_under_way():
    machine, target = copier(), TargetPartition()
    machine.take(fetched(*(source_batch([offset]) for offset in range(6))))
    first = machine.next_batch()
    machine.acknowledged(first, target.append(bytes(first.batch))[1])
    under_way, answered = machine.next_batch(), machine.next_batch()
    assert machine.holds_up_end
    machine.quarantine("no right", "29")
    assert not machine.has_unsent
    assert not machine.holds_up_end
    assert machine.buffered_bytes == len(under_way.batch) + len(answered.batch)
    assert machine.has_unacknowledged, "a successor must fence"
    machine.acknowledged(answered, target.append(bytes(answered.batch))[1])
    machine.failed(under_way, 29)
    assert machine.buffered_bytes == 0
    assert machine.has_unacknowledged
    assert machine.next_source_offset == 1


@pytest.mark.parametrize("answers_before", [1, 2, 3])
def test_what_was_answered_before_its_partition_was_stopped_is_let_go_of_too(answers_before):
    machine = copier(pipelined=True)
    machine.take(fetched(*(source_batch([offset]) for offset in range(5))))
    sent = [machine.next_batch() for _ in range(3)]
    for outgoing in sent[:answers_before]:
        machine.failed(outgoing, 3)
    machine.quarantine("its topic was deleted", "3")
    for outgoing in sent[answers_before:]:
        assert machine.buffered_bytes
        machine.failed(outgoing, 3)
    assert machine.held_bytes == 0
    assert machine.has_unacknowledged


def test_a_partition_whose_target_was_cut_holds_nothing():
    machine, target = copier(pipelined=True, target_end=5), TargetPartition()
    machine.take(fetched(*(source_batch([offset]) for offset in range(3))))
    sent = [machine.next_batch() for _ in range(2)]
    with pytest.raises(TargetTruncated):
        machine.acknowledged(sent[0], target.append(bytes(sent[0].batch))[1])
    machine.stop("cut")
    with pytest.raises(TargetTruncated):
        machine.acknowledged(sent[1], target.append(bytes(sent[1].batch))[1])
    assert machine.held_bytes == 0


def test_what_was_sent_and_waits_to_be_sent_again_is_remembered_by_a_stopped_partition():
    machine = copier(pipelined=True)
    machine.take(fetched(source_batch([0]), source_batch([1])))
    machine.failed(machine.next_batch(), None)
    machine.settle({})
    machine.stop("gone")
    assert machine.has_unacknowledged
    assert machine.buffered_bytes == 0


def test_after_a_silence_one_batch_is_in_flight_until_its_answer():
    """Its leader may have forgotten the producer, and would take the second without the first."""
    machine, target = copier(pipelined=True), TargetPartition()
    machine.take(fetched(source_batch([0])))
    copy_all(machine, target)
    machine.reset_pipelining_if_idle()
    assert machine.pipelined, "it wrote since"
    machine.reset_pipelining_if_idle()
    machine.take(fetched(source_batch([1]), source_batch([2])))
    first = machine.next_batch()
    assert machine.next_batch() is None
    machine.acknowledged(first, target.append(bytes(first.batch))[1])
    assert machine.next_batch() is not None


def test_what_is_under_way_is_no_silence():
    machine = copier(pipelined=True)
    machine.take(fetched(source_batch([0]), source_batch([1])))
    machine.next_batch()
    for _ in range(2):
        machine.reset_pipelining_if_idle()
    assert machine.next_batch() is not None
