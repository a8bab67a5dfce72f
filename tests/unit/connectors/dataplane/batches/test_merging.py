"""Which waiting batches are sent as one, and what becomes of those that cannot be read."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from connect.wire import batch as wire
from connect.wire import records
from connect.wire.merge import MOST_OPENED_BYTES
from connectors.dataplane.batches.copier import PartitionCopier
from connectors.dataplane.batches.error_codes import Refusal
from connectors.dataplane.batches.outgoing_batches import Outgoing
from connectors.dataplane.batches.sequencer import CopiesUnderWay
from connectors.formats.types import NO_COMPRESSION, Compression
from tests.kit import logs as kit
from tests.kit.logs import TargetPartition, copy_all, fetched, plan, source_batch

#: What one batch less is worth where waiting costs more than any merging, in seconds.
MUCH_S = 1.0
WORTH = 1 << 16
GZIP, ZSTD = Compression(1), Compression(4, 19)


def copier(batch_bytes: int = WORTH, max_message_bytes: int = WORTH, **given: Any) -> Any:
    begin = plan(pipelined=True, max_message_bytes=max_message_bytes)
    return kit.copier(begin, batch_bytes=batch_bytes, **given)


def large(first: int, count: int = 3, **given: Any) -> bytes:
    """A batch of records of a kilobyte, which waits by itself."""
    offsets = range(first, first + count)
    return source_batch(offsets, large=offsets, **given)


def sent(machine: PartitionCopier, target: TargetPartition, saved_s: float = MUCH_S) -> list[int]:
    """Send all, every answer good; returns how many records each batch had."""
    return copy_all(machine, target, saved_s)


def offsets_of(target: TargetPartition) -> list[int]:
    return [int(record.key or b"-1") for record in target.records()]


def counted(machine: PartitionCopier) -> dict[str, int]:
    report = machine.report()
    assert report is not None
    return report.batches


def test_what_waits_goes_out_as_one_batch_that_says_where_each_record_came_from() -> None:
    machine, target = copier(), TargetPartition()
    machine.take(fetched(large(0), large(3), large(10)))
    assert sent(machine, target) == [9]
    assert offsets_of(target) == [*range(6), *range(10, 13)]
    report = machine.report()
    assert report.runs == [(0, 0, 6), (10, 6, 3)]
    assert (report.next_source_offset, report.next_sequence, report.target_end) == (13, 9, 9)
    assert report.batches == {"merged with others": 3}
    assert machine.buffered_bytes == 0


def test_what_does_not_wait_is_copied_as_it_is() -> None:
    machine, target = copier(), TargetPartition()
    for first in range(0, 9, 3):
        batch = large(first)
        machine.take(fetched(batch))
        assert sent(machine, target) == [3]
        assert target.batches[-1][wire.HEADER_BYTES :] == batch[wire.HEADER_BYTES :]
    assert counted(machine) == {"as it is": 3}


def test_merging_that_costs_more_than_it_saves_is_left() -> None:
    machine, target = copier(), TargetPartition()
    machine.take(fetched(large(0), large(3), large(6)))
    assert sent(machine, target, saved_s=0.0) == [3, 3, 3]


def test_small_batches_that_came_together_are_one_whatever_it_saves() -> None:
    machine, target = copier(), TargetPartition()
    machine.take(fetched(*(source_batch([offset]) for offset in range(20))))
    assert sent(machine, target, saved_s=0.0) == [20]
    assert offsets_of(target) == list(range(20))
    assert counted(machine) == {"merged with others": 20}


def test_batches_that_fit_twice_in_a_piece_travel_together() -> None:
    pytest.importorskip("connect.wire._rebase")
    machine, target = copier(1 << 20, 1 << 20), TargetPartition()
    machine.take(fetched(*(large(first, 15) for first in range(0, 120, 15))))
    assert [outgoing.count for outgoing in machine._queue] == [60, 60]
    machine.take(fetched(large(120, 40), large(160, 40)))
    assert [outgoing.count for outgoing in machine._queue] == [60, 60, 40, 40]
    assert sent(machine, target) == [200]
    assert offsets_of(target) == list(range(200))


def test_two_small_batches_that_came_together_count_as_merged() -> None:
    machine, target = copier(compression=ZSTD), TargetPartition()
    machine.take(fetched(source_batch([0]), source_batch([1])))
    assert sent(machine, target) == [2]
    assert counted(machine) == {"merged with others": 2}


def test_a_batch_that_is_merged_with_a_rebuilt_one_counts_as_merged() -> None:
    machine, target = copier(), TargetPartition()
    machine.take(fetched(large(0), source_batch([3, 5])))
    assert sent(machine, target) == [5]
    assert counted(machine) == {"merged with others": 1, "compacted gaps": 1}


def test_what_is_left_of_one_answer_is_sent_with_the_beginning_of_the_next() -> None:
    machine, target = copier(1 << 20, 1 << 20), TargetPartition()
    first, second = ([large(offset, 1) for offset in range(at, at + 1500)] for at in (0, 1500))
    machine.take(fetched(*first))
    machine.take(fetched(*second))
    counts = sent(machine, target)
    assert sum(counts) == 3000 and offsets_of(target) == list(range(3000))
    assert min(counts[:-1]) > 900, "a request between two full ones has little in it"


@pytest.mark.parametrize("others", [{"codec": 4}, {"leader_epoch": 1}])
def test_batches_of_another_codec_or_leader_epoch_stay_apart(others: dict[str, int]) -> None:
    machine, target = copier(), TargetPartition()
    machine.take(fetched(large(0), large(3, **others), large(6, **others)))
    assert sent(machine, target) == [3, 6]
    assert offsets_of(target) == list(range(9))
    assert [wire.read_header(batch).codec for batch in target.batches] == [0, others.get("codec", 0)]


@pytest.mark.parametrize("bound", ["batch_bytes", "max_message_bytes"])
def test_a_merged_batch_is_no_larger_than_it_or_its_target_allows(bound: str) -> None:
    size = len(large(0))
    machine, target = copier(**{bound: 3 * size}), TargetPartition()
    machine.take(fetched(*(large(first) for first in range(0, 15, 3))))
    assert sent(machine, target) == [6, 6, 3]
    assert all(len(batch) <= 3 * size for batch in target.batches)


def test_a_batch_that_fills_more_than_half_is_never_opened() -> None:
    big = large(3, 9)
    machine, target = copier(batch_bytes=len(big) + 5000), TargetPartition()
    machine.take(fetched(large(0), big, large(12)))
    assert sent(machine, target) == [3, 9, 3]
    assert target.batches[1][wire.HEADER_BYTES :] == big[wire.HEADER_BYTES :]


def test_without_a_size_nothing_is_merged() -> None:
    machine, target = copier(batch_bytes=0), TargetPartition()
    machine.take(fetched(*(source_batch([offset]) for offset in range(3)), large(3), large(6)))
    assert sent(machine, target) == [1, 1, 1, 3, 3]


@pytest.mark.parametrize("compression", [NO_COMPRESSION, ZSTD])
def test_what_was_sent_is_sent_again_as_it_was_and_only_what_is_behind_it_is_merged(compression: Compression) -> None:
    machine, target = copier(compression=compression), TargetPartition()
    machine.take(fetched(large(0)))
    first = machine.next_batch(MUCH_S)
    before = bytes(first.batch)
    machine.take(fetched(large(3), large(6)))
    machine.failed(first, None)
    machine.settle({})
    assert sent(machine, target) == [3, 6]
    assert target.batches[0] == before


@pytest.mark.parametrize(
    "batches", [[source_batch([one]) for one in range(20)], [large(one) for one in range(0, 21, 3)]]
)
def test_what_comes_uncompressed_is_compressed_as_the_one_batch_that_is_sent(batches: list[bytes]) -> None:
    """Whatever it saves: by itself each would have to be compressed too."""
    machine, target = copier(compression=ZSTD), TargetPartition()
    machine.take(fetched(*batches))
    (count,) = sent(machine, target, saved_s=0.0)
    assert offsets_of(target) == list(range(count))
    built = records.build(list(target.records()), ZSTD.codec, 7, 0, 0, ZSTD.level)
    assert target.batches == [bytes(built)]
    report = machine.report()
    assert (report.runs, report.next_sequence, report.bytes) == ([(0, 0, count)], count, len(built))
    assert report.batches == {"merged with others": len(batches)}
    assert machine.buffered_bytes == 0


@pytest.mark.parametrize("batch_bytes", [0, WORTH])
def test_one_that_waits_with_no_other_is_compressed_alone(batch_bytes: int) -> None:
    machine, target = copier(batch_bytes, compression=ZSTD), TargetPartition()
    for first in (0, 3):
        machine.take(fetched(large(first)))
        assert sent(machine, target) == [3]
    assert [wire.read_header(batch).codec for batch in target.batches] == [4, 4]
    assert counted(machine) == {"compressed with the producer's codec": 2}


@pytest.mark.parametrize("codec", [1, 4])
def test_what_came_compressed_keeps_its_bytes_where_the_producer_has_a_codec(codec: int) -> None:
    machine, target = copier(compression=ZSTD), TargetPartition()
    came = large(3, codec=codec)
    machine.take(fetched(large(0), came, large(6)))
    assert sent(machine, target, saved_s=0.0) == [3, 3, 3]
    assert target.batches[1][wire.HEADER_BYTES :] == came[wire.HEADER_BYTES :]
    assert [wire.read_header(batch).codec for batch in target.batches] == [4, codec, 4]


def test_what_was_rebuilt_is_compressed_with_what_it_is_sent_with() -> None:
    machine, target = copier(compression=ZSTD), TargetPartition()
    machine.take(fetched(large(0), source_batch([3, 5]), source_batch([6], attributes=wire.LOG_APPEND_TIME), large(7)))
    assert sent(machine, target, saved_s=0.0) == [9]
    assert offsets_of(target) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert wire.read_header(target.batches[0]).codec == 4


def test_what_is_larger_than_the_target_takes_is_split_only_if_it_is_so_when_compressed() -> None:
    whole = source_batch(range(300))
    machine, target = copier(max_message_bytes=len(whole) // 2, compression=ZSTD), TargetPartition()
    machine.take(fetched(whole, large(300, 20)))
    counts = sent(machine, target)
    assert counts[0] == 300
    assert sum(counts) == 320
    assert len(counts) > 2
    assert max(map(len, target.batches)) <= len(whole) // 2
    assert {wire.read_header(batch).codec for batch in target.batches} == {4}


def test_what_a_codec_would_make_too_large_is_sent_as_it_is() -> None:
    batch = source_batch([0], large=[0])
    compressed = records.build(list(records.decode(batch, 2)), GZIP.codec, 7, 0, 0)
    assert len(compressed) > len(batch)
    for most_bytes, wanted in ((len(compressed) - 1, batch), (len(compressed), compressed)):
        machine, target = copier(max_message_bytes=most_bytes, compression=GZIP), TargetPartition()
        machine.take(fetched(batch))
        assert sent(machine, target) == [1]
        assert target.batches[0][wire.HEADER_BYTES :] == wanted[wire.HEADER_BYTES :]
        (reason,) = counted(machine)
        assert (reason == "as it is") == (wanted is batch)


def test_what_cannot_be_read_is_not_compressed() -> None:
    machine, target = copier(compression=ZSTD), TargetPartition()
    bad = damaged(large(3))
    machine.take(fetched(large(0)))
    assert sent(machine, target) == [3]
    machine.take(fetched(bad))
    assert sent(machine, target) == [3]
    assert target.batches[1][wire.HEADER_BYTES :] == bad[wire.HEADER_BYTES :]


class Open:
    """A transaction that takes whatever is sent."""

    def admits(self, _: object) -> bool:
        return True

    def sends(self, _: object) -> None: ...


def test_a_compressed_batch_keeps_the_other_marks() -> None:
    machine = copier(compression=ZSTD, transaction=Open())
    machine.take(fetched(large(0), large(3)))
    outgoing = machine.next_batch()
    assert wire.read_header(outgoing.batch).attributes == wire.TRANSACTIONAL | 4


def test_a_refused_record_is_left_out_of_a_compressed_batch_which_keeps_codec_and_level() -> None:
    machine, target = copier(skip_refused=True, compression=ZSTD), TargetPartition()
    machine.take(fetched(large(0), large(3)))
    merged = machine.next_batch()
    machine.take(fetched(large(6)))
    refused_once(machine, merged, 87, 4)
    assert sent(machine, target) == [5, 3]
    assert offsets_of(target) == [0, 1, 2, 3, 5, 6, 7, 8]
    first = list(target.records())[:5]
    assert target.batches[0] == bytes(records.build(first, 4, 7, 0, 0, ZSTD.level))
    assert wire.read_header(target.batches[1]).codec == 4


def damaged(batch: bytes) -> bytes:
    """Its checksum is right, and its records end nowhere."""
    out = bytearray(batch)
    out[wire.HEADER_BYTES] ^= 0x7E
    struct.pack_into(">I", out, 17, wire.checksum(out))
    return bytes(out)


def test_what_is_too_large_to_be_opened_at_once_is_merged_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small batch may open to many MiB; what one merging costs is not paid for each of them."""
    machine, target = copier(), TargetPartition()
    value = b"v" * (MOST_OPENED_BYTES // 8)
    for offset in range(12):
        batch = bytearray(records.build([records.Record(0, 1_000, b"%d" % offset, value, [])], 4, 1, 1, 1))
        struct.pack_into(">q", batch, 0, offset)
        machine.take(fetched(bytes(batch)))
    opened: list[bytes] = []
    opener = records.open_payload

    def noted(payload: bytes, *more: Any) -> bytes:
        opened.append(payload)
        return opener(payload, *more)

    monkeypatch.setattr(records, "open_payload", noted)
    assert sent(machine, target) == [1, 6, 5]
    assert len(opened) == 3, "a merging opens its batches at once; those of the first are too much"
    assert offsets_of(target) == list(range(12))


def test_batches_whose_records_cannot_be_read_go_out_one_by_one_as_they_are() -> None:
    machine, target = copier(), TargetPartition()
    small = [source_batch([0]), damaged(source_batch([1])), source_batch([2])]
    machine.take(fetched(*small, damaged(large(3)), large(6)))
    assert sent(machine, target) == [1, 1, 1, 3, 3]
    assert [batch[wire.HEADER_BYTES :] for batch in target.batches[:3]] == [one[wire.HEADER_BYTES :] for one in small]
    report = machine.report()
    assert (report.next_source_offset, report.next_sequence) == (9, 9)
    assert report.batches == {"as it is": 5}


def refused_once(machine: PartitionCopier, outgoing: Outgoing, code: int, *records: int) -> None:
    machine.refused(outgoing, Refusal(code, records))
    machine.settle({})
    machine.split_or_skip()


def test_what_was_taken_apart_for_its_size_is_not_merged_again() -> None:
    machine, target = copier(), TargetPartition()
    machine.take(fetched(large(0), large(3)))
    merged = machine.next_batch(MUCH_S)
    assert merged.count == 6
    refused_once(machine, merged, 10)
    assert sent(machine, target) == [3, 3]
    assert offsets_of(target) == list(range(6))


@pytest.mark.parametrize(("batches", "merged_later"), [(1, True), (2, False)])
def test_only_a_merged_batch_that_is_refused_for_its_size_lowers_the_limit(batches: int, merged_later: bool) -> None:
    machine, target = copier(), TargetPartition()
    machine.take(fetched(*(large(3 * number) for number in range(batches))))
    refused = machine.next_batch(MUCH_S)
    assert refused.count == 3 * batches
    refused_once(machine, refused, 10)
    sent(machine, target)
    machine.take(fetched(large(10), large(13)))
    assert sent(machine, target) == ([6] if merged_later else [3, 3])


def test_one_record_that_is_refused_is_left_out_of_a_merged_batch() -> None:
    machine, target = copier(skip_refused=True), TargetPartition()
    machine.take(fetched(large(0), large(3)))
    merged = machine.next_batch(MUCH_S)
    refused_once(machine, merged, 87, 4)
    assert sent(machine, target) == [5]
    assert offsets_of(target) == [0, 1, 2, 3, 5]
    report = machine.report()
    assert report.skips == [(4, 4, 87)]
    assert report.next_source_offset == 6


def test_a_refused_merged_batch_of_which_a_copy_is_under_way_is_not_taken_apart() -> None:
    machine = copier()
    machine.take(fetched(large(0)))
    first = machine.next_batch(MUCH_S)
    machine.take(fetched(large(3), large(6)))
    second = machine.next_batch(MUCH_S)
    machine.refused(first, Refusal(10))
    machine.failed(second, None)
    machine.settle({})
    with pytest.raises(CopiesUnderWay):
        machine.split_or_skip()


def test_what_is_before_a_refused_record_is_copied_before_the_partition_stops() -> None:
    """As far as it would have been without merging: who goes on behind the record must lose none before it."""
    machine, target = copier(), TargetPartition()
    machine.take(fetched(*(large(first) for first in range(0, 24, 3))))
    while not machine.stopped:
        outgoing = machine.next_batch(MUCH_S)
        first, count = outgoing.segments[0]
        if first <= 16 < first + count:
            refused_once(machine, outgoing, 87)
        else:
            machine.acknowledged(outgoing, target.append(bytes(outgoing.batch))[1])
    assert offsets_of(target) == list(range(15))
    report = machine.report()
    assert report.state == "QUARANTINED"
    assert report.next_source_offset == 15


def test_a_merged_batch_with_gaps_keeps_its_offsets_when_it_cannot_be_merged_again() -> None:
    machine, target = copier(), TargetPartition()
    machine.take(fetched(large(0)))
    first = machine.next_batch(MUCH_S)
    machine.take(fetched(large(3), large(100)))
    second = machine.next_batch(MUCH_S)
    machine.refused(first, Refusal(10))
    machine.failed(second, 45)
    machine.settle({})
    machine.split_or_skip()
    machine.take(fetched(damaged(large(103))))
    sent(machine, target)
    report = machine.report()
    assert [run for run in report.runs if run[0] >= 100] == [(100, 6, 6)]
    assert report.next_source_offset == 106


def test_a_target_that_takes_less_than_is_known_is_given_smaller_ones_from_then_on() -> None:
    size = len(large(0))
    machine, target = copier(), TargetPartition()
    machine.take(fetched(*(large(first) for first in range(0, 24, 3))))
    merged = machine.next_batch(MUCH_S)
    refused_once(machine, merged, 10)
    sent(machine, target)
    machine.take(fetched(*(large(first) for first in range(24, 48, 3))))
    sent(machine, target)
    assert max(map(len, target.batches)) <= 4 * size
    assert offsets_of(target) == list(range(48))


def test_small_compressed_batches_are_merged_only_where_it_is_worth_it() -> None:
    for saved_s, counts in ((0.0, [1] * 9), (MUCH_S, [9])):
        machine, target = copier(), TargetPartition()
        machine.take(fetched(*(source_batch([offset], codec=1) for offset in range(9))))
        assert sent(machine, target, saved_s) == counts


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
@pytest.mark.parametrize(("saved_s", "waiting"), [(MUCH_S, [19]), (0.0, [1] * 19)])
def test_small_compressed_batches_travel_together_if_worth_it(codec: int, saved_s: float, waiting: list[int]) -> None:
    machine, target = copier(), TargetPartition()
    machine.take(fetched(source_batch([0], codec=codec)))
    assert sent(machine, target, saved_s) == [1]
    machine.take(fetched(*(source_batch([offset], codec=codec) for offset in range(1, 20))))
    assert [outgoing.count for outgoing in machine._queue] == waiting
    assert sent(machine, target, saved_s) == waiting
    assert offsets_of(target) == list(range(20))
    assert wire.read_header(target.batches[-1]).codec == codec


def test_compressed_batches_that_travel_together_and_cannot_be_read_go_out_as_they_are() -> None:
    machine, target = copier(), TargetPartition()
    machine.take(fetched(source_batch([0], codec=4)))
    assert sent(machine, target) == [1]
    small = [source_batch([offset], codec=4) for offset in range(1, 4)]
    small[1] = damaged(small[1])
    machine.take(fetched(*small))
    assert [outgoing.count for outgoing in machine._queue] == [3]
    assert sent(machine, target) == [1, 1, 1]
    assert [batch[wire.HEADER_BYTES :] for batch in target.batches[1:]] == [one[wire.HEADER_BYTES :] for one in small]


def test_how_long_others_wait_for_merging_is_bounded() -> None:
    machine, target = copier(), TargetPartition()
    machine._merging._costs_s[0] = 0.001
    machine.take(fetched(*(large(first) for first in range(0, 24, 3))))
    assert sent(machine, target) == [15, 9]


def test_how_long_others_wait_for_compressing_is_bounded() -> None:
    small = [source_batch([offset]) for offset in range(50)]
    machine, target = copier(compression=ZSTD), TargetPartition()
    machine._merging._costs_s[0] = 0.015 / (20.5 * (len(small[-1]) + 8))
    machine.take(fetched(*small))
    assert [outgoing.count for outgoing in machine._queue] == [20, 20, 10]
    assert max(sent(machine, target)) <= 20
    assert offsets_of(target) == list(range(50))


def test_an_estimate_of_the_cost_that_stops_all_merging_is_tried_again() -> None:
    machine, target = copier(), TargetPartition()
    machine._merging._costs_s[0] = 0.001
    for first in range(0, 30_000, 6):
        machine.take(fetched(large(first), large(first + 3)))
        if len(sent(machine, target, saved_s=0.0005)) == 1:
            break
    else:
        pytest.fail("nothing was merged again")


def test_skips_and_what_was_passed_over_stay_with_the_merged_batch() -> None:
    machine, target = copier(), TargetPartition()
    stamped = source_batch([6, 9], attributes=wire.LOG_APPEND_TIME, last_offset=11)
    machine.take(fetched(large(0), large(3), stamped))
    assert sent(machine, target) == [8]
    report = machine.report()
    assert report.runs == [(0, 0, 7), (9, 7, 1)]
    assert report.next_source_offset == 12
    times_ms = [record.timestamp_ms for record in target.records()]
    assert times_ms[-2:] == [record.timestamp_ms for record in records.decode(stamped, 2)]
