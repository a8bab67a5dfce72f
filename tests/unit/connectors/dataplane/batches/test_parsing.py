"""Fetched bytes of every magic: cut, checked, decided, and as batches of today at the other end."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.wire import batch as wire
from connect.wire import records
from connectors.dataplane import resume
from connectors.dataplane.batches.fetched_batches import CorruptBatch, cut, opened
from tests.kit import logs as kit
from tests.kit.logs import TargetPartition, control_batch, copy_all, fetched, plan, source_batch
from tests.kit.old import LOG_APPEND_TIME, message, wrapper

TIME_MS = 1_500_000_000_000


def copier(position=0, max_bytes=2**30, **settings):
    return kit.copier(plan(next_source_offset=position, max_message_bytes=max_bytes), **settings)


def copy(machine, *batches):
    target = TargetPartition()
    machine.take(fetched(*batches))
    copy_all(machine, target)
    return target


def plain(magic, offsets, time_ms=TIME_MS):
    return [message(magic, one, b"k%d" % one, b"v%d" % one, timestamp_ms=time_ms + one) for one in offsets]


def held(target):
    return [(one.key, one.value, one.timestamp_ms) for one in target.records()]


def expected(offsets, magic, time_ms=TIME_MS):
    return [(b"k%d" % one, b"v%d" % one, time_ms + one if magic else -1) for one in offsets]


@pytest.mark.parametrize("magic", [0, 1])
def test_old_records_come_together_in_one_batch_of_today(magic):
    machine = copier()
    target = copy(machine, *plain(magic, range(20)))
    assert len(target.batches) == 1
    assert held(target) == expected(range(20), magic)
    report = machine.report()
    assert (report.runs, report.next_source_offset, report.batches) == ([(0, 0, 20)], 20, {"old magic": 1})


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [1, 2, 3])
def test_a_compressed_set_keeps_its_codec_and_absolute_offsets(magic, codec):
    sets = [wrapper(magic, plain(magic, range(first, first + 5)), codec) for first in (40, 45)]
    machine = copier(position=40)
    target = copy(machine, *sets)
    assert held(target) == expected(range(40, 50), magic)
    assert machine.report().runs == [(40, 0, 10)]
    assert [wire.read_header(batch).codec for batch in target.batches] == [codec]


def test_offsets_inside_a_compacted_set_of_magic_1_are_counted_from_its_end():
    machine = copier(position=40)
    target = copy(machine, wrapper(1, plain(1, [40, 43, 47]), 1))
    assert held(target) == expected([40, 43, 47], 1)
    assert machine.report().runs == [(40, 0, 1), (43, 1, 1), (47, 2, 1)]


def test_append_time_of_magic_1_is_the_wrappers():
    wrapped = wrapper(1, plain(1, range(3)), 1, timestamp_ms=TIME_MS + 999, attributes=LOG_APPEND_TIME)
    single = message(1, 3, b"k", b"v", timestamp_ms=TIME_MS + 1001, attributes=LOG_APPEND_TIME)
    target = copy(copier(), wrapped, single)
    assert [one.timestamp_ms for one in target.records()] == [TIME_MS + 999] * 3 + [TIME_MS + 1001]
    assert not any(wire.read_header(batch).is_log_append_time for batch in target.batches)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("position", [0, 1, 6, 9])
def test_a_start_inside_an_old_set_copies_exactly_what_follows(magic, position):
    sets = [wrapper(magic, plain(magic, range(5)), 1), wrapper(magic, plain(magic, range(5, 10)), 2)]
    machine = copier(position=position)
    target = copy(machine, *sets[position // 5 :])
    assert held(target) == expected(range(position, 10), magic)
    source_scan = resume.SourceScan(position, 10 - position)
    for part in opened(fetched(*sets[position // 5 :]), position, None):
        source_scan.take(part.records, part.following, part.leader_epoch)
    assert (source_scan.remaining, source_scan.position) == (0, 10)
    copied = [one.offset for part in opened(fetched(*sets), position, None) for one in part.records]
    assert copied == [*range(position, 10)]


def test_magic_changes_within_a_log():
    log = [*plain(0, range(3)), *plain(1, range(3, 6)), source_batch(range(6, 9)), *plain(1, range(9, 11))]
    machine = copier()
    target = copy(machine, *log)
    assert [one.timestamp_ms for one in target.records()][:4] == [-1, -1, -1, TIME_MS + 3]
    report = machine.report()
    assert (report.runs, report.last_source_epoch, machine.last_fetched_epoch) == ([(0, 0, 11)], -1, -1)
    assert [wire.read_header(batch).record_count for batch in target.batches] == [6, 3, 2]


def test_the_codec_changes_within_a_log_of_old_records():
    log = [*plain(1, range(3)), wrapper(1, plain(1, range(3, 6)), 1), *plain(1, range(6, 8))]
    target = copy(copier(), *log)
    assert held(target) == expected(range(8), 1)
    assert [wire.read_header(batch).codec for batch in target.batches] == [0, 1, 0]


def test_old_records_are_split_where_the_target_takes_less():
    machine = copier(max_bytes=300)
    target = copy(machine, *plain(1, range(100)))
    assert held(target) == expected(range(100), 1)
    assert max(map(len, target.batches)) <= 300


def test_a_batch_of_today_ends_a_run_of_old_records_whatever_its_bytes_are():
    """Where an old message has its codec and checksum, this one has bytes that would be right for one."""
    batches = (bytearray(source_batch([1], timestamp_ms=at)) for at in range(99))
    batch = next(one for one in batches if not one[17] & wire.CODEC_MASK)
    struct.pack_into(">I", batch, 12, zlib.crc32(batch[16:]))
    assert [one.header is None for one in cut(fetched(*plain(1, [0]), bytes(batch)), 0, None, 2**30)] == [True, False]


@pytest.mark.parametrize(
    ("offsets", "attributes", "small_bytes", "runs"),
    [
        ([0, 1], 0, 0, [2]),
        ([0, 1], 0, -1, [None, None]),
        ([0, 1], wire.TRANSACTIONAL, 0, [None, None]),
        ([0, 2], 0, 0, [None, 1]),
    ],
)
def test_small_batches_that_go_as_they_are_come_together(offsets, attributes, small_bytes, runs):
    """``small_bytes``: the limit, less the size of each."""
    following = range(offsets[-1] + 1, offsets[-1] + 3)
    log = [source_batch(one, attributes=attributes) for one in (offsets, following)]
    limits = len(log[0]) + small_bytes, 2**20
    found = cut(fetched(*log), 0, None, 2**30, run_limits=lambda _: limits)
    assert [run and run.batches for *_, run in found] == runs


@pytest.mark.parametrize("magic", [0, 1])
def test_damage_to_an_old_record_is_seen_and_what_is_before_it_copied(magic):
    good, bad = plain(magic, range(2)), bytearray(plain(magic, [2])[0])
    bad[-1] ^= 1
    machine = copier()
    with pytest.raises(CorruptBatch, match="offset 2 "):
        machine.take(fetched(*good, bytes(bad)))
    assert (machine.fetch_offset, machine.next_batch().count) == (2, 2)


@given(st.lists(st.sampled_from([0, 1, 2]), min_size=1, max_size=8), st.integers(0, 30))
def test_an_answer_cut_off_anywhere_behind_its_first_batch_gives_its_whole_batches(magics, missing):
    log: list[bytes] = [source_batch([0])]
    for offset, magic in enumerate(magics, 1):
        log += [source_batch([offset])] if magic == 2 else plain(magic, [offset])
    whole = b"".join(log)
    kept = fetched(whole[: len(whole) - missing])
    cut_off = b"".join(bytes(batch) for batch, _, _, _ in cut(kept, 0, None, 2**30))
    assert whole.startswith(cut_off)
    complete = [one for index, one in enumerate(log) if len(b"".join(log[: index + 1])) <= len(kept)]
    assert cut_off == b"".join(complete)


@pytest.mark.parametrize("length", [-5, 0, 3, 5000])
def test_a_first_batch_that_is_not_whole_has_a_wrong_length(length):
    """Brokers send it whole or not at all, so to wait for the rest would be for ever."""
    damaged = bytearray(source_batch([7]))
    struct.pack_into(">i", damaged, 8, length)
    machine = copier(position=7)
    with pytest.raises(CorruptBatch, match="holds source offset 7, or follows it, has a wrong length"):
        machine.take(fetched(bytes(damaged)))
    assert machine.fetch_offset == 7
    machine.take(fetched())


@given(st.lists(st.sampled_from([-1, 0, 1000, TIME_MS]), min_size=1, max_size=6), st.integers(0, 4))
def test_no_timestamp_is_lost_or_lent_when_a_batch_is_built(times_ms, codec):
    given_records = [records.Record(i, time_ms, b"k", None, []) for i, time_ms in enumerate(times_ms)]
    built = records.build(given_records, codec, 1, 0, 5)
    header = wire.read_header(built)
    assert list(records.decode(built, 2)) == given_records
    assert (header.max_timestamp, header.codec, header.crc) == (max(times_ms), codec, wire.checksum(built))


@pytest.mark.parametrize(("codec", "level"), [(1, 1), (1, 9), (3, 1), (3, 17), (4, -5), (4, 19)])
def test_levels_of_compression_are_heeded(codec, level):
    part = [records.Record(i, 1, b"k", b"abc" * i, []) for i in range(200)]
    built = records.build(part, codec, 1, 0, 0, level)
    assert list(records.decode(built, 2)) == part


def test_transactions_that_reach_over_several_answers():
    """Producer 1 aborts over three fetches, producer 2 commits in between; each answer lists what is aborted in it."""
    flag = wire.TRANSACTIONAL
    log = [
        source_batch(range(2), producer=(1, 0, 0), attributes=flag),
        source_batch(range(2, 4), producer=(2, 0, 0), attributes=flag),
        source_batch(range(4, 6), producer=(1, 0, 2), attributes=flag),
        control_batch(6, 2, commit=True),
        source_batch(range(7, 9), producer=(1, 0, 4), attributes=flag),
        control_batch(9, 1, commit=False),
        source_batch(range(10, 12), producer=(1, 0, 6), attributes=flag),
        control_batch(12, 1, commit=True),
    ]
    machine, target = copier(read_committed=True), TargetPartition()
    for part, listed in ((log[:2], [(1, 0)]), (log[2:5], [(1, 0)]), (log[5:], [(1, 0)])):
        machine.take(fetched(*part), listed)
    copy_all(machine, target)
    assert [one.value for one in target.records()] == [b"value 2", b"value 3", b"value 10", b"value 11"]
    assert machine.next_source_offset == 13


def test_only_an_abort_marker_ends_what_is_aborted():
    flag = wire.TRANSACTIONAL
    aborted = [source_batch([at], producer=(1, 0, at), attributes=flag) for at in (0, 2)]
    log = [aborted[0], control_batch(1, 1, commit=True), aborted[1], control_batch(3, 1, commit=False)]
    assert [part.records for part in opened(fetched(*log), 0, [(1, 0)])] == [[]] * 4
