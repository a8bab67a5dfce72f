"""Exact resume over a source that was compacted since: nothing is skipped that was not copied."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from connect.core.errors import RetriableError
from connect.kafka.cluster import Cluster
from connect.kafka.offsets import LATEST, EpochEnd
from connect.wire import batch as wire
from connect.wire import records
from connectors.dataplane import codes, lost, reading, resuming
from connectors.dataplane.chain_stage import Stage
from connectors.dataplane.copier import PartitionCopier
from connectors.dataplane.outcomes import Done
from connectors.dataplane.plan import PartitionPlan, ProducerIdentity, Proof, SliceSettings
from connectors.dataplane.records_resume import RecordsResumer
from connectors.dataplane.resumed import Resumed
from connectors.dataplane.resuming import Resumer
from tests.kit.logs import TargetPartition
from tests.unit.dataplane.test_copier import plan

WRITER = ProducerIdentity(7, 3)
START = 5
#: (offset, timestamp in ms, key, value)
Row = tuple[int, int, bytes, bytes]


def source_batch(rows: Sequence[Row]) -> bytes:
    """A batch as the source hands it out; offsets without a gap."""
    batch = records.build([records.Record(*row, []) for row in rows], 0, -1, -1, -1)
    struct.pack_into(">q", batch, 0, rows[0][0])
    return bytes(batch)


def stamped_by_the_target(batch: bytes) -> bytes:
    """As a LogAppendTime target stores it."""
    stored = bytearray(batch)
    struct.pack_into(">h", stored, 21, struct.unpack_from(">h", stored, 21)[0] | 0x08)
    struct.pack_into(">qq", stored, 27, 555, 555)
    struct.pack_into(">I", stored, 17, wire.checksum(stored))
    return bytes(stored)


class OneBroker:
    """What a :class:`Cluster` is asked for here; connections are known by its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def metadata(self, _: object) -> SimpleNamespace:
        return SimpleNamespace(leader=lambda *_: 1)

    async def connection(self, *_: object) -> str:
        return self.name


class Site:
    """The source as it is now, and what a predecessor left at the target."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, compacted: bool | None = True) -> None:
        self.source: list[bytes] = []
        self.target = TargetPartition(end=0)
        self.is_damaged = False
        self.source_start = self.target_start = 0
        #: Where the source begins after each of its next fetches.
        self.starts_later: list[int] = []
        self.asked: list[set[str]] = []
        #: Where the stored leader epoch ends in the source.
        self.epoch_end = 2**62
        self.has_epoch = True

        async def nothing(*_: object) -> None:
            return None

        async def listed(cluster: OneBroker, _: object, timestamp_ms: int) -> int:
            if timestamp_ms == LATEST:
                return self.source_end if cluster.name == "source" else self.target.end
            return self.source_start if cluster.name == "source" else self.target_start

        async def ends(_: object, epochs: dict[Any, int]) -> dict[Any, EpochEnd]:
            there = {one: epoch if self.has_epoch else epoch - 1 for one, epoch in epochs.items() if epoch >= 0}
            return {one: EpochEnd(epoch, self.epoch_end) for one, epoch in there.items()}

        async def compaction(_: object, topics: set[str]) -> dict[str, bool]:
            self.asked.append(topics)
            return {} if compacted is None else dict.fromkeys(topics, compacted)

        monkeypatch.setattr(lost, "explain_topic", nothing)
        monkeypatch.setattr(resuming, "list_offset", listed)
        monkeypatch.setattr(resuming, "epoch_ends", ends)
        monkeypatch.setattr(resuming, "compaction", compaction)
        monkeypatch.setattr(reading, "fetch_one", self._fetch)
        monkeypatch.setattr(resuming, "_RETRY_S", 0.0)

    @property
    def source_end(self) -> int:
        return wire.read_header(self.source[-1]).last_offset + 1 if self.source else 0

    def copied(self, rows: Sequence[Row], *, stamped: bool = False) -> None:
        """By the predecessor, which stored no position behind it."""
        copier = PartitionCopier(plan(next_source_offset=START), WRITER, read_committed=False)
        copier.take(memoryview(bytearray(source_batch(rows))))
        sent = copier.next_batch()
        assert sent is not None
        self.target.append(bytes(sent.batch))
        if stamped:
            self.target.batches[-1] = stamped_by_the_target(self.target.batches[-1])

    def resumer(self, *, skip_refused: bool = False, stage: Stage | None = None) -> Resumer:
        source: Any = OneBroker("source")
        target: Any = OneBroker("target")
        clusters: tuple[Cluster, Cluster] = (source, target)
        settings = SliceSettings("us->eu", 0, {}, {}, skip_refused=skip_refused)
        return Resumer(*clusters, settings) if stage is None else RecordsResumer(*clusters, settings, stage)

    async def resume(self, *, hint: int, skip_refused: bool = False) -> Resumed:
        return await self.resumer(skip_refused=skip_refused).resume(left(hint))

    async def _fetch(self, connection: str, _topic: object, _index: int, position: Any, _limits: object) -> Any:
        if connection == "target":
            found, end = self.target.fetch(position[0]), self.target.end
        elif position[0] < self.source_start:
            return SimpleNamespace(error_code=codes.OFFSET_OUT_OF_RANGE)
        else:
            wanted = [batch for batch in self.source if wire.read_header(batch).last_offset >= position[0]]
            found = memoryview(bytearray(b"".join(wanted)))
            if self.is_damaged and found:
                found[-1] ^= 1
            end = self.source_end
            if self.starts_later:
                found = memoryview(bytearray(wanted[0] if wanted else b""))
                self.source_start = self.starts_later.pop(0)
        return SimpleNamespace(error_code=0, records=found, aborted=(), last_stable_offset=end, high_watermark=end)


class Query:
    """A transformation as a query is one: ``keeps`` says which records are not dropped."""

    def __init__(self, keeps: Callable[[records.Record], bool]) -> None:
        self._keeps = keeps

    async def start(self, broken: object) -> None: ...

    async def stop(self) -> None: ...

    def submit(self, _: PartitionPlan, part: Sequence[records.Record], done: Done) -> None:
        done([record if self._keeps(record) else None for record in part])


def left(hint: int, partition: int = 0) -> PartitionPlan:
    before: PartitionPlan = plan(next_source_offset=START, target_end=0)
    source = before.source._replace(partition=partition)
    return replace(before, source=source, last_source_epoch=0, proof=Proof(WRITER, 0, hint))


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(monkeypatch)


@pytest.mark.parametrize("skip_refused", [False, True])
async def test_a_like_of_a_vanished_record_is_no_place(site: Site, skip_refused: bool) -> None:
    """K=up at 5 was copied and has vanished, since it was written again at 1000: 6 to 999 are not at the target.

    Unless the records from 6 on were left out or aborted, and what arrived is the one at 1000: as the target has its
    own time of it, nobody can tell, and it may come twice.
    """
    site.copied([(5, 1000, b"K", b"up")], stamped=True)
    site.source = [source_batch([(offset, offset, b"%d" % offset, b"v") for offset in range(6, 1000)])]
    site.source.append(source_batch([(1000, 9999, b"K", b"up")]))
    found = await site.resume(hint=0, skip_refused=skip_refused)
    assert found.plan.next_source_offset == START + 1
    assert (found.verified, found.may_double) == (False, 1)


async def test_what_is_given_since_a_setting_changed_is_met_and_what_comes_twice_counted(site: Site) -> None:
    """5, 9 and 10 were copied. 8, in a transaction that was aborted, was not, and is given now."""
    first, last = [(5, 1005, b"a", b"1")], [(9, 1009, b"b", b"2"), (10, 1010, b"c", b"3")]
    site.copied([*first, *last])
    site.source = [source_batch(first), source_batch([(8, 1008, b"x", b"aborted"), *last])]
    found = await site.resume(hint=2)
    assert (found.plan.next_source_offset, found.verified, found.may_double) == (8, False, 2)
    assert found.fallback == "what the source has is not what the target has"


async def test_a_source_that_does_not_tell_whether_it_is_compacted_is_trusted_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two values in turns; 5 to 8 of them were copied, and the source begins at 9: all of it may be new."""
    site = Site(monkeypatch, compacted=None)
    site.copied([(offset, 1000, b"k", b"up" if offset % 2 else b"down") for offset in range(5, 9)])
    site.source = [source_batch([(offset, 1000, b"k", b"up" if offset % 2 else b"down") for offset in range(9, 12)])]
    site.source_start = 9
    found = await site.resume(hint=3)
    assert (found.plan.next_source_offset, found.verified, found.runs) == (9, False, ())
    assert "does not tell whether it is compacted" in found.fallback


async def test_one_record_that_a_cut_source_begins_with_may_have_been_sent_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """5 was copied. The source begins at 50, with one like it: 6 to 49 are not at the target."""
    site = Site(monkeypatch, compacted=False)
    site.copied([(5, 1000, b"a", b"1")])
    site.source = [source_batch([(50, 1000, b"a", b"1"), (51, 1001, b"b", b"2")])]
    site.source_start = 50
    found = await site.resume(hint=0)
    assert (found.plan.next_source_offset, found.may_double, found.may_be_there) == (6, 1, 1)
    assert found.fallback == "the source lost its beginning"


async def test_a_source_that_loses_more_each_time_it_is_read_proves_nothing(site: Site) -> None:
    """5 to 10 were copied. A fetch brings one batch, and the next finds the source cut behind it."""
    rows = [(offset, 1000 + offset, b"%d" % offset, b"v") for offset in range(5, 20)]
    site.copied(rows[:6])
    site.source = [source_batch([row]) for row in rows]
    site.source_start, site.starts_later = 5, [7, 9, 11]
    found = await site.resume(hint=5)
    assert (found.plan.next_source_offset, found.verified, found.may_double) == (11, False, 6)
    assert found.fallback == "the source lost more while it was read"


async def test_likes_of_one_key_get_no_place_in_the_map(site: Site) -> None:
    """up, down, up were copied, the last is left. Led back before it by the first, a reader would end with down."""
    site.copied([(5, 1000, b"k", b"up"), (6, 1000, b"k", b"down"), (7, 1000, b"k", b"up")])
    site.source = [source_batch([(7, 1000, b"k", b"up"), (8, 1001, b"z", b"new")])]
    found = await site.resume(hint=2)
    assert (found.plan.next_source_offset, found.runs) == (8, ())


async def test_how_many_come_twice_is_unknown_where_the_target_has_forgotten_who_wrote(site: Site) -> None:
    site.target.end, site.target_start = 40, 30
    forgotten = replace(left(0), proof=Proof(WRITER, 0, None))
    found = await site.resumer().resume(forgotten)
    assert (found.plan.next_source_offset, found.may_double) == (START, None)
    assert Resumed.from_wire(found.to_wire()) == found


async def test_a_count_that_ends_at_a_like_is_no_place(site: Site) -> None:
    """Of three copied all have vanished; the third of those behind is like the third: 8 and 9 are not at the target.

    That is so unless a setting was changed, and 10 was what arrived.
    """
    site.copied([(5, 998, b"a", b"1"), (6, 999, b"b", b"1"), (7, 1000, b"K", b"up")])
    site.source = [source_batch([(8, 2000, b"c", b"v"), (9, 2001, b"d", b"v"), (10, 1000, b"K", b"up")])]
    found = await site.resume(hint=2)
    assert (found.plan.next_source_offset, found.verified, found.may_double) == (START + 3, False, 3)


@pytest.mark.parametrize("is_compacted", [False, True])
async def test_a_source_that_lost_its_beginning_is_gone_on_with_behind_the_last(
    monkeypatch: pytest.MonkeyPatch, is_compacted: bool
) -> None:
    """5 to 8 were copied, and the source begins at 7 now: nothing is missing, and all of it is in the map."""
    site = Site(monkeypatch, compacted=is_compacted)
    rows = [(offset, 1000 + offset, b"%d" % offset, b"v") for offset in range(5, 12)]
    site.copied(rows[:4])
    site.source, site.source_start = [source_batch(rows[2:])], 7
    found = await site.resume(hint=3)
    assert (found.plan.next_source_offset, found.verified, found.fallback) == (9, True, "")
    assert found.runs == ((5, 0, 4),)


async def test_what_the_source_lost_behind_the_surplus_begins_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """5 to 8 were copied, and the source begins at 11 now: 9 and 10 are lost, and no more."""
    site = Site(monkeypatch, compacted=False)
    rows = [(offset, 1000 + offset, b"%d" % offset, b"v") for offset in range(5, 14)]
    site.copied(rows[:4])
    site.source, site.source_start = [source_batch(rows[6:])], 11
    found = await site.resume(hint=3)
    assert (found.plan.next_source_offset, found.verified) == (9, False)
    assert (found.may_double, found.may_be_there) == (0, 2)


async def test_a_source_that_still_has_all_of_it_is_gone_on_with_behind(site: Site) -> None:
    rows = [(5, 998, b"a", b"1"), (6, 999, b"b", b"1"), (7, 1000, b"c", b"1")]
    site.copied(rows)
    site.source = [source_batch(rows), source_batch([(10, 2000, b"d", b"v")])]
    found = await site.resume(hint=2)
    assert found.plan.next_source_offset == 8
    assert found.verified
    assert found.runs == ((5, 0, 3),)


async def test_survivors_tell_how_far_a_compacted_source_was_copied(site: Site) -> None:
    """5 to 9 were copied; 6 and 8 are left. All five are in the map, for there is no other place for them."""
    rows = [(offset, 1000 + offset, b"%d" % offset, b"v") for offset in range(5, 12)]
    site.copied(rows[:5])
    site.source = [source_batch([rows[1]]), source_batch([rows[3]]), source_batch(rows[5:])]
    found = await site.resume(hint=4)
    assert (found.plan.next_source_offset, found.verified, found.may_double) == (10, True, 0)
    assert found.runs == ((5, 0, 5),)


async def test_what_the_targets_cleaner_took_is_known_by_the_hole_it_left(site: Site) -> None:
    """5 to 8 were copied, k at 5 was replaced at 7: gone at the target, and not yet at the source."""
    rows = [(5, 1005, b"k", b"1"), (6, 1006, b"a", b"2"), (7, 1007, b"k", b"3"), (8, 1008, b"b", b"4")]
    behind = [(9, 1009, b"c", b"5")]
    site.copied(rows)
    site.target.batches[-1] = cleaned(site.target.batches[-1], (1, 2, 3))
    site.source = [source_batch([*rows, *behind])]
    found = await site.resume(hint=3)
    assert (found.plan.next_source_offset, found.verified, found.may_double) == (9, True, 0)
    assert found.runs == ((6, 1, 3),)


async def test_where_both_logs_were_compacted_what_may_come_twice_is_counted(site: Site) -> None:
    """8 may have been copied behind 7, and been dropped since as an old tombstone of the target."""
    rows = [(offset, 1000 + offset, b"%d" % offset, b"v") for offset in range(5, 9)]
    site.copied(rows[:4])
    site.target.batches[-1] = cleaned(site.target.batches[-1], (0, 2))
    site.source = [source_batch([rows[0]]), source_batch([rows[2]]), source_batch([(9, 2000, b"c", b"w")])]
    found = await site.resume(hint=3)
    assert (found.plan.next_source_offset, found.verified, found.may_double) == (9, False, 2)
    assert found.fallback


async def test_survivors_that_are_transformed_tell_it_too(site: Site) -> None:
    """6, 8 and 10 were copied, the odds are dropped; 6 has vanished, 12 is not at the target."""
    rows = [(offset, 1000 + offset, b"%d" % offset, b"v") for offset in range(5, 13)]
    site.copied(rows[1:6:2])
    site.source = [source_batch(rows[2:])]
    evens = site.resumer(stage=Query(lambda record: not record.offset % 2))
    found = await evens.resume(left(2))
    assert (found.plan.next_source_offset, found.verified, found.runs) == (11, True, ((8, 1, 1), (10, 2, 1)))
    site.source = [source_batch([rows[3], rows[4]]), source_batch(rows[7:])]
    found = await evens.resume(left(2))
    assert (found.plan.next_source_offset, found.may_double) == (12, 2)


async def test_a_cut_source_that_is_transformed_is_gone_on_with_behind_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """6, 8 and 10 were copied, the odds are dropped; the source begins at 8 now."""
    site = Site(monkeypatch, compacted=False)
    rows = [(offset, 1000 + offset, b"%d" % offset, b"v") for offset in range(5, 13)]
    site.copied(rows[1:6:2])
    site.source, site.source_start = [source_batch(rows[3:])], 8
    found = await site.resumer(stage=Query(lambda record: not record.offset % 2)).resume(left(2))
    assert (found.plan.next_source_offset, found.verified, found.runs) == (11, True, ((8, 1, 1), (10, 2, 1)))


@pytest.mark.parametrize("skip_refused", [False, True])
async def test_what_a_changed_query_leaves_to_others_no_more_is_not_passed_over(
    monkeypatch: pytest.MonkeyPatch, skip_refused: bool
) -> None:
    """Evens were copied, and odds were for another connector, which may be behind."""
    site = Site(monkeypatch, compacted=False)
    rows = [(offset, 1000 + offset, b"%d" % offset, b"v") for offset in range(5, 10)]
    site.copied(rows[1::2])
    site.source = [source_batch(rows)]
    same = site.resumer(skip_refused=skip_refused, stage=Query(lambda record: not record.offset % 2))
    found = await same.resume(left(1))
    assert (found.plan.next_source_offset, found.verified, found.left_out) == (9, True, 0)
    changed = site.resumer(skip_refused=skip_refused, stage=Query(lambda _: True))
    found = await changed.resume(left(1))
    assert (found.plan.next_source_offset, found.verified) == (START, False)
    assert found.fallback == "what the source gives now is more than what the target has"


async def test_where_records_are_transformed_offsets_are_not_counted_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target compacted some of the surplus: its number says nothing of what another query left to others."""
    site = Site(monkeypatch, compacted=False)
    rows = [(offset, 1000 + offset, b"%d" % offset, b"v") for offset in range(5, 10)]
    site.copied(rows[:2])
    site.source = [source_batch(rows)]
    of_four = replace(left(1), proof=Proof(WRITER, wire.SEQUENCE_MODULUS - 2, 1))
    assert (await site.resumer().resume(of_four)).plan.next_source_offset == START + 4
    found = await site.resumer(stage=Query(lambda _: True)).resume(of_four)
    assert (found.plan.next_source_offset, found.verified) == (START, False)
    assert found.fallback


async def test_a_source_damaged_where_it_is_read_stops_its_partition_only(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(monkeypatch, compacted=False)
    rows = [(5, 998, b"a", b"1"), (6, 999, b"b", b"1")]
    site.copied(rows)
    site.source, site.is_damaged = [source_batch(rows)], True
    found = await site.resume(hint=1)
    assert "the checksum of the batch at source offset 5 is wrong" in found.refusal
    assert found.plan.proof is not None


@pytest.mark.parametrize("side", ["source", "target"])
async def test_a_payload_that_does_not_open_stops_its_partition_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    """Its checksum is right: whoever wrote it wrote it so. The other partitions of the slice go on."""
    site = Site(monkeypatch, compacted=False)
    rows = [(5, 998, b"a", b"1"), (6, 999, b"b", b"1")]
    site.copied(rows)
    site.source = [source_batch(rows)]
    log = site.source if side == "source" else site.target.batches
    log[-1] = spoilt(log[-1])
    found = await site.resume(hint=1)
    assert found.refusal.startswith(f"{side} ")
    assert " cannot be opened: " in found.refusal
    assert found.plan.proof is not None


async def test_a_log_that_stays_unreadable_is_left_to_a_later_takeover(
    monkeypatch: pytest.MonkeyPatch, site: Site
) -> None:
    async def no_leader(*_: object) -> None:
        raise RetriableError("us.t-0 has no leader now")

    monkeypatch.setattr(resuming, "list_offset", no_leader)
    monkeypatch.setattr(resuming, "_PATIENCE_S", 0.02)
    found = await site.resume(hint=1)
    assert (found.later, found.refusal) == ("us.t-0 has no leader now", "")
    assert Resumed.from_wire(found.to_wire()) == found
    assert found.plan.proof is not None


async def test_whether_a_topic_may_be_compacted_is_asked_once_for_all_its_partitions(site: Site) -> None:
    rows = [(5, 998, b"a", b"1")]
    site.copied(rows)
    site.source = [source_batch(rows)]
    resumer = site.resumer()
    await asyncio.gather(*(resumer.resume(left(0, partition)) for partition in range(5)))
    assert len(site.asked) == 1


def cleaned(batch: bytes, kept: Collection[int]) -> bytes:
    """As the target's cleaner leaves it: fewer records, and the offsets and sequences of all."""
    header = wire.read_header(batch)
    producer = (header.producer_id, header.producer_epoch, header.base_sequence)
    builder = DefaultRecordBatchBuilder(2, 0, 0, *producer, 2**20)
    for record in records.decode(batch, 2):
        if (at := record.offset - header.base_offset) in kept:
            builder.append(at, record.timestamp_ms, record.key, record.value, record.headers)
    built = builder.build()
    struct.pack_into(">q", built, 0, header.base_offset)
    struct.pack_into(">i", built, 23, header.last_offset_delta)
    struct.pack_into(">I", built, 17, wire.checksum(built))
    return bytes(built)


def spoilt(batch: bytes) -> bytes:
    """One byte too few for its last record, with a checksum over it."""
    spoilt = bytearray(batch[:-1])
    struct.pack_into(">i", spoilt, 8, len(spoilt) - 12)
    struct.pack_into(">I", spoilt, 17, wire.checksum(spoilt))
    return bytes(spoilt)
