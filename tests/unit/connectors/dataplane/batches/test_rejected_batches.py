"""Batches that a target refuses for good: split, rid of the records at fault, or the end of the partition."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.wire import batch as wire
from connect.wire import records
from connectors.dataplane import resume
from connectors.dataplane.batches.error_codes import Refusal
from connectors.dataplane.batches.fetched_batches import opened
from connectors.dataplane.batches.sequencer import CopiesUnderWay
from connectors.formats.types import ProducerIdAndEpoch, ResumeProof
from tests.kit import logs as kit
from tests.kit.logs import FENCED, control_batch, fetched_from, held, plan, settle, source_batch
from tests.kit.picky import INVALID_RECORD, MESSAGE_TOO_LARGE, PickyTarget, is_data

FIRST_EPOCH = 3
PRODUCER_ID = 7
#: Below it the timestamps of source_batch are of long ago.
NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


def copier(epoch=FIRST_EPOCH, *, position=0, target_end=0, sequence=0, pipelined=False, skip=True, max_bytes=2**30):
    begin = plan(
        "t", next_source_offset=position, target_end=target_end, next_sequence=sequence, pipelined=pipelined,
        max_message_bytes=max_bytes,
    )  # fmt: skip
    return kit.copier(begin, ProducerIdAndEpoch(PRODUCER_ID, epoch), skip_refused=skip, batch_bytes=0)


def fenced(target, **changes):
    """A copier behind its own marker, so that many batches may be in flight from the beginning."""
    target.mark(PRODUCER_ID, FIRST_EPOCH)
    return copier(target_end=target.end, pipelined=True, **changes)


def send_all(machine):
    sent = []
    while (outgoing := machine.next_batch()) is not None:
        sent.append(outgoing)
    return sent


def answer(machine, target, outgoing):
    """What a leader says of one batch, taken as a slice takes it."""
    known = len(target.refusals)
    error, base = target.append(bytes(outgoing.batch))
    if not error:
        machine.acknowledged(outgoing, base)
    elif len(target.refusals) > known:
        machine.refused(outgoing, target.refusals[-1])
    else:
        machine.failed(outgoing, error)


def copy(machine, target):
    """Until nothing is left, every request answered; how many rounds of refusals it took."""
    rounds = 0
    while sent := send_all(machine):
        for outgoing in sent:
            answer(machine, target, outgoing)
        if machine.faulted:
            rounds += 1
            settle(machine, target, PRODUCER_ID)
            machine.split_or_skip()
            if machine.stopped:
                break
    return rounds


def takeable(log, target, since=0):
    """What the target should hold in the end, from a source offset on."""
    every = [record for batch in log if is_data(batch) for record in records.decode(batch, 2)]
    kept = [one for one in every if target.takes(one) and one.offset >= since]
    return [(one.key, one.value, one.headers, one.timestamp_ms) for one in kept]


def refused_offsets(log, target):
    every = [record for batch in log if is_data(batch) for record in records.decode(batch, 2)]
    return {one.offset for one in every if not target.takes(one)}


def skipped(report):
    return [offset for first, last, _ in report.skips for offset in range(first, last + 1)]


def test_with_the_size_learnt_the_next_batches_are_split_before_they_are_sent():
    log = [source_batch(range(start, start + 20), large=range(start, start + 20)) for start in (0, 20, 40)]
    target = PickyTarget(max_bytes=3000)
    machine = copier()
    machine.take(fetched_from(log[:1]))
    answer(machine, target, machine.next_batch())
    assert machine.is_refused_for_size
    machine.max_message_bytes = 3000
    settle(machine, target, PRODUCER_ID)
    machine.split_or_skip()
    machine.take(fetched_from(log[1:]))
    assert copy(machine, target) == 0
    assert held(target) == takeable(log, target)


@pytest.mark.parametrize("lists_records", [True, False])
@pytest.mark.parametrize("position", [0, 4, 9])
def test_one_record_too_large_is_left_out_and_counted_its_neighbours_are_copied(position, lists_records):
    log = [source_batch(range(10), large=[position], codec=1), source_batch(range(10, 14))]
    target = PickyTarget(max_bytes=900, lists_records=lists_records)
    machine = copier()
    machine.take(fetched_from(log))
    copy(machine, target)
    assert held(target) == takeable(log, target)
    assert len(held(target)) == 13
    report = machine.report()
    assert report.skips == [(position, position, MESSAGE_TOO_LARGE)]
    assert report.next_source_offset == 14
    assert report.next_sequence == 13


def test_a_batch_of_nothing_but_refused_records_lets_the_position_pass():
    log = [source_batch(range(5), null_keys=range(5)), source_batch(range(5, 9)), source_batch([9], null_keys=[9])]
    target = PickyTarget(compacted=True)
    machine = copier()
    machine.take(fetched_from(log))
    copy(machine, target)
    assert held(target) == takeable(log, target)
    report = machine.report()
    assert (report.next_source_offset, report.next_sequence) == (10, 4)
    assert skipped(report) == [0, 1, 2, 3, 4, 9]


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        (
            PickyTarget(compacted=True),
            (
                "target us.t-0 refuses the record at source offset 3 in the batch of source offsets 0 to 9: "
                "INVALID_RECORD (87); a compacted topic takes no record without a key: "
            ),
        ),
        (
            PickyTarget(compacted=True, lists_records=False),
            "target us.t-0 refuses the batch of source offsets 0 to 9: INVALID_RECORD (87); a compacted topic",
        ),
        (
            PickyTarget(oldest_ms=NOW_MS + 2),
            (
                "target us.t-0 refuses the record at source offset 0 and 1 others in the batch of source offsets 0 to "
                "9: INVALID_TIMESTAMP (32); raise message.timestamp.before.max.ms"
            ),
        ),
        (
            PickyTarget(max_bytes=900),
            (
                "target us.t-0 refuses the record at source offset 5 in the batch of source offset 5: "
                "MESSAGE_TOO_LARGE (10); raise max.message.bytes of topic us.t"
            ),
        ),
    ],
)
def test_without_tolerance_the_partition_is_quarantined_with_its_offsets_and_what_to_do(target, sentence):
    log = [source_batch(range(10), null_keys=[3], large=[5]), source_batch(range(10, 12))]
    target.refusals.clear()
    machine = copier(skip=False)
    machine.take(fetched_from(log))
    copy(machine, target)
    report = machine.report()
    assert report.state == "QUARANTINED"
    assert report.reason.startswith(sentence)
    assert "errors.tolerance = all" in report.reason
    assert report.next_source_offset <= 5
    assert held(target) == takeable(log, target)[: len(held(target))]
    assert machine.next_batch() is None


def test_while_a_copy_behind_it_may_still_arrive_a_refused_batch_is_not_taken_apart():
    """Renumbered, the last batch would bear the number of the late one, be taken for it, and be written nowhere."""
    log = [source_batch(range(2), null_keys=[0]), source_batch([2]), source_batch([3])]
    target = PickyTarget(compacted=True)
    machine = fenced(target)
    machine.take(fetched_from(log))
    first, second, third = send_all(machine)
    late = bytes(second.batch)
    answer(machine, target, first)
    machine.failed(second, None)
    machine.failed(third, None)
    settle(machine, target, PRODUCER_ID)
    with pytest.raises(CopiesUnderWay):
        machine.split_or_skip()
    target.mark(PRODUCER_ID, FIRST_EPOCH + 1)
    assert target.append(late)[0] == FENCED
    successor = copier(FIRST_EPOCH + 1, target_end=target.end, pipelined=True)
    successor.take(fetched_from(log))
    copy(successor, target)
    assert held(target) == takeable(log, target)


def test_a_clean_end_drops_what_would_be_sent_instead():
    log = [source_batch(range(10)), source_batch(range(10, 20), null_keys=[13]), source_batch(range(20, 22))]
    target = PickyTarget(compacted=True)
    machine = fenced(target)
    machine.take(fetched_from(log))
    sent = send_all(machine)
    machine.discard_unsent()
    for outgoing in sent:
        answer(machine, target, outgoing)
    settle(machine, target, PRODUCER_ID)
    machine.split_or_skip()
    assert not machine.has_unacknowledged and not machine.has_unsent
    assert (machine.next_source_offset, machine.next_sequence, machine.buffered_bytes) == (10, 10, 0)


def test_a_partition_that_ends_stops_once_its_last_batch_was_left_out():
    target = PickyTarget(compacted=True)
    machine = fenced(target)
    machine.take(fetched_from([source_batch([0], null_keys=[0])]))
    (only,) = send_all(machine)
    machine.stop_reading("the topic is gone", "source-deleted", None)
    answer(machine, target, only)
    settle(machine, target, PRODUCER_ID)
    assert not machine.stopped
    machine.split_or_skip()
    assert machine.stopped
    assert machine.next_source_offset == 1


def test_what_was_left_out_behind_a_waiting_batch_is_reported_with_it():
    target = PickyTarget(compacted=True)
    machine = fenced(target)
    machine.take(fetched_from([source_batch(range(3)), source_batch([3], null_keys=[3])]))
    first, second = send_all(machine)
    machine.failed(first, 19)
    machine.refused(second, Refusal(INVALID_RECORD, (0,)))
    settle(machine, target, PRODUCER_ID)
    machine.split_or_skip()
    copy(machine, target)
    report = machine.report()
    assert (report.skips, report.next_source_offset) == ([(3, 3, INVALID_RECORD)], 4)


def test_what_an_answer_lists_beyond_the_batch_is_not_believed():
    machine = copier(pipelined=True)
    machine.take(fetched_from([source_batch(range(4))]))
    machine.refused(machine.next_batch(), Refusal(INVALID_RECORD, (9,)))
    machine.settle({})
    machine.split_or_skip()
    assert [outgoing.count for outgoing in send_all(machine)] == [2, 2]


@st.composite
def poisoned_logs(draw):
    """Source batches with gaps and markers, in which some records are of a kind that a target may refuse."""
    offset, out = draw(st.integers(0, 5)), []
    for _ in range(draw(st.integers(1, 10))):
        if draw(st.integers(0, 5)) == 0:
            out.append(control_batch(offset, 9, commit=True))
            offset += 1
            continue
        steps = draw(st.lists(st.sampled_from([1, 1, 1, 2, 5]), min_size=1, max_size=8))
        offsets = [offset + sum(steps[:i]) for i in range(len(steps))]
        bad = st.lists(st.sampled_from(offsets), max_size=2)
        out.append(
            source_batch(
                offsets,
                codec=draw(st.integers(0, 4)),
                null_keys=draw(bad),
                large=draw(bad),
                timestamp_ms=NOW_MS - draw(st.sampled_from([0, 0, 10**9])),
            )
        )
        offset = offsets[-1] + 1 + draw(st.sampled_from([0, 0, 0, 3]))
    return out


targets = st.builds(
    PickyTarget,
    max_bytes=st.sampled_from([2**30, 900]),
    inflates=st.booleans(),
    compacted=st.booleans(),
    oldest_ms=st.sampled_from([-1, NOW_MS - 10**6]),
    lists_records=st.booleans(),
)


class Run:
    """Slices one after another over the same pair of logs, each with an epoch of its own; some end uncleanly."""

    def __init__(self, log, target, chance):
        self.log, self.target, self.chance = log, target, chance
        self.epoch = FIRST_EPOCH
        self.runs, self.skips, self.late = [], [], []
        self.rounds = 0
        #: What the target holds from before the copy went back to its stored position, and where it went back to.
        self.before_rewind, self.rewound_to = [], 0
        target.mark(PRODUCER_ID, self.epoch)
        self._begin(0, target.end)

    def _begin(self, position, end):
        self.machine = copier(self.epoch, position=position, target_end=end, pipelined=True)
        self.machine.take(fetched_from(self.log, position))
        self.store()

    def store(self):
        machine = self.machine
        self.stored = (machine.next_source_offset, machine.target_end, machine.next_sequence)
        if report := machine.report():
            self.runs += report.runs
            self.skips += report.skips

    def step(self):
        """A round of requests with their fates; whether there is more to do."""
        machine, chance, broken = self.machine, self.chance, False
        self.rounds += 1
        # Each fault costs what was learnt of the target, so in the end there must be fewer.
        fates = ["good"] * (6 + self.rounds) + ["refused", "lost answer", "cut"]
        sent = send_all(machine)
        if not sent and not machine.faulted:
            return False
        for outgoing in sent:
            self.arrive_late()
            fate = "cut" if broken else chance.choice(fates)
            broken = broken or fate == "cut"
            if fate == "good":
                answer(machine, self.target, outgoing)
            elif fate == "refused":
                machine.failed(outgoing, 19)
            else:
                if fate == "lost answer":
                    self.target.append(bytes(outgoing.batch))
                elif chance.random() < 0.4:
                    self.late.append(bytes(outgoing.batch))
                machine.failed(outgoing, None)
        if chance.random() < 0.3:
            self.store()
        if chance.random() < 1 / (10 + self.rounds):
            self.take_over()
        elif machine.faulted:
            self.recover()
        return True

    def recover(self):
        machine, target = self.machine, self.target
        self.arrive_late()
        settle(machine, target, PRODUCER_ID)
        if machine.is_refused_for_size and self.chance.random() < 0.5:
            machine.max_message_bytes = target.max_bytes
        try:
            machine.split_or_skip()
        except CopiesUnderWay:
            self.take_over()
        self.arrive_late()
        assert not machine.stopped

    def arrive_late(self):
        """Some of what lay in a stalled socket, in the order in which it was sent."""
        while self.late and self.chance.random() < 0.3:
            self.target.append(self.late.pop(0))

    def take_over(self):
        """As a worker does: fence, find the exact place, go on under a new epoch."""
        position, end, sequence = self.stored
        old = ProducerIdAndEpoch(PRODUCER_ID, self.epoch)
        self.epoch += 2
        self.target.mark(PRODUCER_ID, self.epoch)
        self.arrive_late()
        found = resumed(self.log, self.target, ResumeProof(old, sequence, True), position, end)
        if found is None:  # something was left out, which no count knows of
            self.before_rewind, self.rewound_to = held(self.target), position
            found = position, []
        self.runs += found[1]
        self._begin(found[0], self.target.end)


def resumed(log, target, proof, position, end):
    """The pure parts of resuming: (next source offset, runs), or None if nothing can be counted off."""
    scan = resume.TargetScan(proof, end, 0)
    scan.take(target.fetch(scan.start), scan.start)
    assert scan.is_over
    assert not scan.doubt
    if not scan.arrived:
        return position, []
    source_scan = resume.SourceScan(position, scan.arrived)
    for part in opened(fetched_from(log, position), position, None):
        if source_scan.remaining:
            source_scan.take(part.records, part.following, part.leader_epoch)
    if source_scan.remaining or not source_scan.fingerprint.equals(scan.fingerprint, ignore_timestamps=False):
        return None
    return source_scan.position, resume.pair_runs(source_scan.segments, scan.segments)


@given(poisoned_logs(), targets, st.integers(0, 2**32))
def test_whatever_is_refused_lost_or_late_the_good_records_arrive_once_and_in_order(log, target, seed):
    target.refusals.clear()
    target = PickyTarget(
        max_bytes=target.max_bytes,
        inflates=target.inflates,
        compacted=target.compacted,
        oldest_ms=target.oldest_ms,
        lists_records=target.lists_records,
    )
    run = Run(log, target, random.Random(seed))
    for _ in range(1000):
        if not run.step():
            break
    run.store()
    assert held(target) == run.before_rewind + takeable(log, target, since=run.rewound_to)
    assert run.machine.next_source_offset == wire.read_header(log[-1]).last_offset + 1
    assert run.machine.buffered_bytes == 0
    refused = refused_offsets(log, target)
    skipped = {offset for first, last, _ in run.skips for offset in range(first, last + 1)}
    assert skipped == refused
    by_offset = {record.offset: record.value for record in target.records()}
    mapped = {up + i: by_offset[down + i] for up, down, count in run.runs for i in range(count)}
    every = {record.offset: record.value for batch in log if is_data(batch) for record in records.decode(batch, 2)}
    assert mapped == {offset: value for offset, value in every.items() if offset not in refused}
