"""Resume by counting: exact where the source still gives the same records, else from the stored position, announced."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from connect.core.errors import RetriableError
from connect.kafka.cluster import Cluster, LeaderEpochs, PartitionMetadata, TopicMetadata
from connect.kafka.log.offsets import LATEST
from connect.wire import batch as wire
from connect.wire import records
from connectors.control_link.protocol import PartitionPlan, SliceSettings
from connectors.dataplane import fetch_api, log_divergence, resume
from connectors.dataplane.batches import error_codes
from connectors.dataplane.batches.fetched_batches import CORRUPT_TRIES
from connectors.dataplane.resume import Resumed, Resumer
from connectors.formats.types import ProducerIdAndEpoch, ResumeProof
from connectors.transforms.smt_chain import Done
from tests.kit import logs, virtual_time
from tests.kit.answers import put
from tests.kit.logs import TargetPartition

WRITER = ProducerIdAndEpoch(7, 3)
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


LEADER_EPOCH = 6


class OneBroker:
    """What a :class:`Cluster` is asked for here; connections are known by its name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.leader_epochs = LeaderEpochs("cluster")
        self.leaders: Iterator[int | None] = iter([1])
        self._leader: int | None = 1

    async def metadata(self, _: object) -> SimpleNamespace:
        self._leader = leader = next(self.leaders, self._leader)
        return SimpleNamespace(leader=lambda *_: leader, leader_epoch=lambda *_: LEADER_EPOCH)

    async def connection(self, *_: object) -> str:
        return self.name


class Site:
    """The source as it is now, and what a predecessor left at the target."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.source: list[bytes] = []
        self.target = TargetPartition(end=0)
        self._sequence = 0
        self.diverging: tuple[int, int] | None = None
        self.is_damaged = False
        self.source_start = self.target_start = 0
        #: Where the source begins after each of its next fetches.
        self.starts_later: list[int] = []
        #: Where the leader's log ends for its next fetches, before it shows all.
        self.shown: list[int] = []
        #: The same of the source's.
        self.source_shown: list[int] = []
        self.aborted: tuple[tuple[int, int], ...] = ()
        self.reads_committed = False
        #: What the next fetches of a side answer, instead of records.
        self.errors: dict[str, list[int]] = {}
        #: Whether each fetch brings one batch, and every second one fails, a minute later.
        self.is_flaky = False
        self.fetched: list[tuple[str, int]] = []
        #: Who leads the target, for each time that it is asked for.
        self.target_leaders: list[int | None] = []

        async def listed(cluster: OneBroker, _: object, timestamp_ms: int) -> int:
            if timestamp_ms == LATEST:
                return self.source_end if cluster.name == "source" else self.target.end
            return self.source_start if cluster.name == "source" else self.target_start

        put(monkeypatch, log_divergence, explain_topic=None)
        monkeypatch.setattr(resume, "list_offset", listed)
        monkeypatch.setattr(fetch_api, "fetch_one", self._fetch)
        monkeypatch.setattr(resume, "_RETRY_S", 0.0)

    @property
    def source_end(self) -> int:
        return wire.read_header(self.source[-1]).last_offset + 1 if self.source else 0

    def copied(self, rows: Sequence[Row], *, stamped: bool = False) -> None:
        """By the predecessor, which stored no position behind it."""
        begin = logs.plan(partition=3, next_source_offset=START, next_sequence=self._sequence)
        self._sequence += len(rows)
        copier = logs.copier(begin, WRITER)
        copier.take(memoryview(bytearray(source_batch(rows))))
        sent = copier.next_batch()
        self.target.append(bytes(sent.batch))
        if stamped:
            self.target.batches[-1] = stamped_by_the_target(self.target.batches[-1])

    async def resume(
        self, *, stage: Any = None, fenced: bool = True, read_committed: bool = False, awaits_marker: bool = True
    ) -> Resumed:
        if fenced:
            self.target.mark(WRITER.producer_id, WRITER.epoch + 1)
        source, target = (cast(Any, OneBroker(name)) for name in ("source", "target"))
        target.leaders = iter(self.target_leaders)
        self.reads_committed = read_committed
        settings = SliceSettings("us->eu", 0, {}, {}, read_committed=read_committed)
        return await Resumer(source, target, settings, stage).resume(left(awaits_marker=awaits_marker))

    async def _fetch(
        self, connection: str, _topic: object, _index: int, position: Any, limits: fetch_api.FetchLimits
    ) -> Any:
        assert position[1] == LEADER_EPOCH, "no former leader may answer"
        assert connection == "source" or position[2] == -1, "the target's epochs are not those of the source"
        is_committed = connection == "source" and self.reads_committed
        assert limits.isolation == (fetch_api.READ_COMMITTED if is_committed else fetch_api.READ_UNCOMMITTED)
        if errors := self.errors.get(connection):
            return SimpleNamespace(error_code=errors.pop(0))
        if self.diverging is not None and connection == "source" and position[2] >= 0:
            more = {"high_watermark": self.source_end, "diverging": self.diverging}
            return SimpleNamespace(error_code=0, records=memoryview(b""), **more)
        self.fetched.append((connection, position[0]))
        if self.is_flaky:
            await asyncio.sleep(60)
            if len(self.fetched) % 2:
                raise RetriableError("the connection was lost")
        if connection == "target":
            end = self.shown.pop(0) if self.shown else self.target.end
            found = self.target.fetch(position[0]) if position[0] < end else memoryview(b"")
            if self.is_flaky:
                found = memoryview(bytearray(found[: next(wire.extents(found))[1]]))
        elif position[0] < self.source_start:
            return SimpleNamespace(error_code=error_codes.OFFSET_OUT_OF_RANGE)
        else:
            end = self.source_shown.pop(0) if self.source_shown else self.source_end
            headers = ((batch, wire.read_header(batch)) for batch in self.source)
            wanted = [batch for batch, header in headers if position[0] <= header.last_offset < end]
            found = memoryview(bytearray(b"".join(wanted[:1] if self.is_flaky else wanted)))
            if self.is_damaged and found:
                found[-1] ^= 1
            if self.starts_later:
                found = memoryview(bytearray(wanted[0] if wanted else b""))
                self.source_start = self.starts_later.pop(0)
        ends = {"last_stable_offset": end if is_committed else -1, "high_watermark": end}
        return SimpleNamespace(error_code=0, records=found, aborted=self.aborted, diverging=None, **ends)


def left(*, awaits_marker: bool = True) -> PartitionPlan:
    proof = ResumeProof(WRITER, 0, awaits_marker)
    return logs.plan(partition=3, next_source_offset=START, last_source_epoch=0, proof=proof)


async def timed(work: Coroutine[Any, Any, Resumed]) -> tuple[Resumed, float]:
    clock = asyncio.get_running_loop().time
    began_s = clock()
    return await work, clock() - began_s


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(monkeypatch)


ROWS: list[Row] = [(offset, 1000 + offset, b"%d" % offset, b"v") for offset in range(START, START + 8)]


async def test_what_arrived_is_counted_off_and_gets_its_place_in_the_map(site: Site) -> None:
    site.copied(ROWS[:3])
    site.source = [source_batch(ROWS[:2]), source_batch(ROWS[2:])]
    found = await site.resume()
    assert (found.plan.next_source_offset, found.plan.target_end, found.plan.proof) == (8, 4, None)
    assert (found.runs, found.arrived, found.fallback, found.may_double) == (((5, 0, 3),), 3, "", 0)
    assert Resumed.from_wire(found.to_wire()) == found


async def test_where_nothing_arrived_the_source_is_not_asked(site: Site) -> None:
    site.source_start = START + 4
    found = await site.resume()
    assert (found.plan.next_source_offset, found.fallback) == (START, "")


async def test_a_target_that_stamps_its_records_is_compared_without_its_timestamps(site: Site) -> None:
    site.copied(ROWS[:3], stamped=True)
    site.source = [source_batch(ROWS)]
    assert (await site.resume()).plan.next_source_offset == 8


OTHERS = "the source now has other records than arrived"


def without(*offsets: int) -> list[bytes]:
    return [source_batch([row]) for row in ROWS if row[0] not in offsets]


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (without(6), OTHERS),  # compacted
        (without(5), OTHERS),
        (without(*range(6, 13)), "the source has 2 records fewer there than arrived"),  # truncated
        ([*without(*range(6, 13)), source_batch([(6, 1006, b"other", b"v"), *ROWS[2:]])], OTHERS),
        ([source_batch([(offset, 7, key, value) for offset, _, key, value in ROWS])], OTHERS),
    ],
)
async def test_a_changed_source_is_copied_from_the_stored_position(site: Site, source: list[bytes], why: str) -> None:
    site.copied(ROWS[:3])
    site.source = source
    found = await site.resume()
    assert (found.plan.next_source_offset, found.plan.last_source_epoch, found.runs) == (START, 0, ())
    assert found.fallback.startswith(why)
    assert (found.arrived, found.may_double) == (3, 3)
    assert Resumed.from_wire(found.to_wire()) == found


async def test_a_source_that_lost_its_beginning_proves_nothing_though_it_goes_on_alike(site: Site) -> None:
    """5 and 6 were copied. The source begins at 7, with records like these: they are not at the target."""
    alike = [(offset, 1000, b"k", b"v") for offset in range(5, 10)]
    site.copied(alike[:2])
    site.source, site.source_start = [source_batch(alike[2:])], 7
    found = await site.resume()
    assert found.plan.next_source_offset == START
    assert found.fallback == "the source has 2 records fewer there than arrived"


async def test_a_source_that_has_another_log_before_the_stored_offset_proves_nothing(site: Site) -> None:
    """Behind it the records may be the same. The copy continues at the stored offset, where it notices."""
    site.copied(ROWS[:3])
    site.source, site.diverging = [source_batch(ROWS)], (0, 3)
    found = await site.resume()
    assert (found.plan.next_source_offset, found.plan.last_source_epoch, found.may_double) == (START, 0, 3)


async def test_a_leader_of_the_source_that_does_not_show_all_of_its_log_is_read_again(site: Site) -> None:
    """One that was just elected does not know its end at first (KIP-207): what it shows is not all there is."""
    site.copied(ROWS[:3])
    site.source, site.source_shown = without(), [6, 6]
    found = await site.resume()
    assert (found.plan.next_source_offset, found.fallback, site.source_shown) == (8, "", [])


async def test_what_was_aborted_at_the_source_is_not_counted(site: Site) -> None:
    site.copied(ROWS[2:4])
    aborted = logs.source_batch([5], producer=(1, 0, 0), attributes=wire.TRANSACTIONAL)
    site.source = [aborted, logs.control_batch(6, 1, commit=False), *without(5, 6)]
    site.aborted = ((1, 5),)
    found = await site.resume(read_committed=True)
    assert (found.plan.next_source_offset, found.runs, found.fallback) == (9, ((7, 0, 2),), "")


async def test_a_marker_of_another_producer_is_not_the_end(site: Site) -> None:
    site.copied(ROWS[:1])
    site.target.mark(WRITER.producer_id + 1, WRITER.epoch + 1)
    site.copied(ROWS[1:3])
    site.source = [source_batch(ROWS)]
    found = await site.resume()
    assert (found.plan.next_source_offset, found.arrived, found.plan.target_end) == (8, 3, 5)


async def test_a_leader_of_an_epoch_before_the_stored_one_is_a_former_leader(site: Site) -> None:
    site.target.mark(WRITER.producer_id, WRITER.epoch + 1)
    source, target, topic_id = OneBroker("source"), OneBroker("target"), UUID(int=1)
    resumer = Resumer(cast(Cluster, source), cast(Cluster, target), SliceSettings("us->eu", 0, {}, {}))
    stored = replace(left(), source_topic_id=topic_id, last_source_epoch=5)
    await resumer.resume(stored)
    index, former = stored.source.partition, PartitionMetadata(1, 4, (), 0)
    known = source.leader_epochs.current(TopicMetadata(stored.source.topic, topic_id, 0, {index: former}))
    assert known.partitions[index].leader == -1


class Query:
    """A transformation as a query is one: ``keeps`` says which records are not dropped."""

    def __init__(self, keeps: Callable[[records.Record], bool]) -> None:
        self._keeps = keeps

    async def start(self, broken: object) -> None: ...

    async def stop(self) -> None: ...

    def submit(self, _: PartitionPlan, part: Sequence[records.Record], done: Done) -> None:
        done([record if self._keeps(record) else None for record in part])


async def test_transformed_records_are_counted_as_they_come_out(site: Site) -> None:
    """6, 8 and 10 were copied: a query that was changed since gives others."""
    site.copied(ROWS[1:6:2])
    site.source = [source_batch(ROWS)]
    found = await site.resume(stage=Query(lambda record: not record.offset % 2))
    assert (found.plan.next_source_offset, found.runs) == (11, ((6, 0, 1), (8, 1, 1), (10, 2, 1)))
    changed = await site.resume(stage=Query(lambda _: True))
    assert (changed.plan.next_source_offset, changed.may_double) == (START, 3)


async def test_a_leader_that_does_not_show_the_marker_yet_is_read_again(site: Site) -> None:
    """A stale leader's short log, taken for the end, would double what it does not show, unannounced (C3)."""
    site.copied(ROWS[:3])
    site.source = [source_batch(ROWS)]
    site.shown = [0, 0]
    assert (await site.resume()).plan.next_source_offset == 8
    assert site.shown == []


@pytest.mark.parametrize(("lost", "fallback"), [(0, ""), (2, "the target has lost records behind the stored position")])
async def test_without_a_fence_the_target_is_read_to_its_end(site: Site, lost: int, fallback: str) -> None:
    site.copied(ROWS[:3])
    site.target.end += lost
    site.source = [source_batch(ROWS)]
    found = await site.resume(fenced=False, awaits_marker=False)
    assert (found.fallback, found.arrived) == (fallback, 3 + lost)
    assert site.fetched == ([("target", 0), ("source", 5)] if not lost else [("target", 0), ("target", 3)])


def test_a_leader_that_shows_nothing_more_is_given_time(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resume, "_RETRY_S", 0.25)
    site.copied(ROWS[:3])
    site.source, site.source_shown = without(), [6, 6, 6]
    found, seconds = virtual_time.run(timed(site.resume()))
    assert found.plan.next_source_offset == 8
    assert seconds == pytest.approx(0.5)


async def test_a_log_that_never_shows_the_marker_waits_for_later(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resume, "_PATIENCE_S", 0.02)
    site.copied(ROWS[:3])
    site.source = [source_batch(ROWS)]
    found = await site.resume(fenced=False)
    assert found.later == "us.orders-3 does not show the marker of its fence yet"
    assert found.plan.proof is not None
    assert Resumed.from_wire(found.to_wire()) == found


def test_a_link_that_breaks_again_and_again_is_waited_for_as_long_as_more_is_read(site: Site) -> None:
    """What was read is kept, so that each try goes on where the one before ended."""
    for row in ROWS:
        site.copied([row])
    site.source, site.is_flaky = without(), True
    found = virtual_time.run(site.resume())
    assert (found.plan.next_source_offset, found.arrived, found.later) == (13, 8, "")
    assert site.fetched[1::2] == [("target", at) for at in range(9)] + [("source", at) for at in range(5, 13)]


@pytest.mark.parametrize(("leaders", "at"), [([1], 1), ([1, 1, 2], 0), ([1, 1, None, 1], 1)])
def test_a_new_leader_of_the_target_is_read_from_the_beginning(site: Site, leaders: list[int | None], at: int) -> None:
    """It may have lost what the one before showed."""
    site.copied(ROWS[:1])
    site.source, site.is_flaky, site.target_leaders = [source_batch(ROWS)], True, leaders
    assert virtual_time.run(site.resume()).plan.next_source_offset == 6
    assert site.fetched[:4] == [("target", 0), ("target", 0), ("target", 1), ("target", at)]


@pytest.mark.parametrize("side", ["source", "target"])
async def test_a_log_that_may_not_be_read_stops_its_partition(site: Site, side: str) -> None:
    site.copied(ROWS[:3])
    site.source, site.errors = [source_batch(ROWS)], {side: [error_codes.TOPIC_AUTHORIZATION_FAILED]}
    found = await site.resume()
    assert found.refusal.startswith(f"{side} ")
    assert found.refusal.endswith(", then start the flow again")
    assert found.plan.proof is not None


@pytest.mark.parametrize(("side", "error"), [("source", 6), ("target", 6), ("target", error_codes.OFFSET_OUT_OF_RANGE)])
async def test_other_errors_are_retried(site: Site, side: str, error: int) -> None:
    site.copied(ROWS[:3])
    site.source, site.errors = [source_batch(ROWS)], {side: [error]}
    assert (await site.resume()).plan.next_source_offset == 8


def test_a_log_that_cannot_be_read_is_left_to_a_later_takeover_after_half_a_minute(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resume, "_RETRY_S", 0.25)
    site.copied(ROWS[:3])
    site.source, site.errors = [source_batch(ROWS)], {"source": [6] * 1000}
    found, seconds = virtual_time.run(timed(site.resume()))
    assert found.later
    # The first try had read the target.
    assert seconds == pytest.approx(30.25)
    assert len([one for one in caplog.records if "cannot be resumed now" in one.getMessage()]) == 1


@pytest.mark.parametrize("errors", [0, 1])
async def test_a_source_damaged_where_it_is_read_stops_its_partition_only(site: Site, errors: int) -> None:
    rows = [(5, 998, b"a", b"1"), (6, 999, b"b", b"1")]
    site.copied(rows)
    site.source, site.is_damaged, site.errors = [source_batch(rows)], True, {"source": [6] * errors}
    found = await site.resume()
    assert "the checksum of the batch at source offset 5 is wrong" in found.refusal
    assert found.plan.proof is not None
    assert site.fetched.count(("source", 5)) == CORRUPT_TRIES


@pytest.mark.parametrize("side", ["source", "target"])
async def test_a_payload_that_does_not_open_stops_its_partition_with_a_sentence(site: Site, side: str) -> None:
    """Its checksum is right: whoever wrote it wrote it so. The other partitions of the slice go on."""
    rows = [(5, 998, b"a", b"1"), (6, 999, b"b", b"1")]
    site.copied(rows)
    site.source = [source_batch(rows)]
    log = site.source if side == "source" else site.target.batches
    log[-1] = spoilt(log[-1])
    found = await site.resume()
    assert found.refusal.startswith(f"{side} ")
    assert " cannot be decoded: " in found.refusal
    assert found.plan.proof is not None


def spoilt(batch: bytes) -> bytes:
    """One byte too few for its last record, with a checksum over it."""
    spoilt = bytearray(batch[:-1])
    struct.pack_into(">i", spoilt, 8, len(spoilt) - 12)
    struct.pack_into(">I", spoilt, 17, wire.checksum(spoilt))
    return bytes(spoilt)
