"""Copying by key with a source and a target in memory: what arrives where, in which order, what a position covers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import aiokafka.errors
import pytest
from aiokafka import TopicPartition as Library

from connect.api.message_handler import MirroredRecord
from connect.kafka.cluster import Cluster, ClusterMetadata, PartitionMetadata, TopicMetadata
from connect.kafka.log.aiokafka_producer import BuiltBatch
from connect.kafka.log.producer import partition_of
from connect.kafka.security.connection_settings import connection_settings
from connect.wire import batch as wire
from connect.wire import records as wire_records
from connect.wire.records import Record
from connectors.control_link.protocol import PartitionPlan, PartitionProgress, SliceSettings
from connectors.dataplane import by_key_copier, by_key_producer, log_divergence
from connectors.dataplane.batches import error_codes
from connectors.dataplane.by_key_copier import ByKey, KeyedPartition
from connectors.dataplane.slice import LeaseOver
from connectors.formats.types import QUARANTINED, RUNNING, STOPPED, TopicPartition
from tests.kit import logs as kit
from tests.kit.members import until

WITHIN_S = 30.0
RECORDS = 400
TO = connection_settings({"bootstrap.servers": "b:9092"}, client_id="c", where="test").to_wire()


def key_of(number: int) -> bytes | None:
    return None if number % 11 == 0 else b"key-%d" % (number % 37)


class Log:
    """The source: topic ``orders``, whose records carry their offset as value. Gives a few at a time."""

    name = "source"

    def __init__(self, partitions: int, records: int = RECORDS) -> None:
        self.ends = dict.fromkeys(range(partitions), records)
        self.starts = dict.fromkeys(self.ends, 0)
        self.positions: dict[int, int] = {}
        self.chance = random.Random(1)

    def assign(self, _: Sequence[Library]) -> None: ...

    def seek(self, partition: Library, offset: int) -> None:
        self.positions[partition.partition] = offset

    def highwater(self, partition: Library) -> int:
        return self.ends[partition.partition]

    async def position(self, partition: Library) -> int:
        return self.positions[partition.partition]

    async def getmany(self, partition: Library, **_: object) -> dict[Library, list[Any]]:
        await asyncio.sleep(0.001)
        index = partition.partition
        first = self.positions[index]
        if first < self.starts[index]:
            raise aiokafka.errors.OffsetOutOfRangeError({partition: first})
        behind = min(first + self.chance.randint(1, 80), self.ends[index])
        self.positions[index] = behind
        return {partition: [self.record(index, offset) for offset in range(first, behind)]} if behind > first else {}

    def record(self, index: int, offset: int) -> Any:
        return SimpleNamespace(
            topic="orders", partition=index, offset=offset, timestamp=1_000 + offset, key=key_of(offset),
            value=b"%d" % offset, headers=(("from", b"%d" % index), ("\udce9", None)),
        )  # fmt: skip


class Target:
    """A cluster with topics of some partitions. ``refuses`` gives the code for a batch; ``silent`` gives no answers."""

    def __init__(self, **counts: int) -> None:
        self.counts = counts
        self.logs: dict[TopicPartition, list[Record]] = {}
        self.next_sequences: dict[tuple[int, TopicPartition], int] = {}
        self.refuses: Callable[[TopicPartition, Sequence[Record]], int] = lambda *_: 0
        self.silent = False
        self.producers = 0
        self.asked: list[str] = []
        self.errors: dict[str, int] = {}
        self.chance = random.Random(2)

    async def metadata(self, names: set[str]) -> ClusterMetadata:
        (name,) = names
        self.asked.append(name)
        code = self.errors.get(name, 0 if name in self.counts else error_codes.UNKNOWN_TOPIC_OR_PARTITION)
        parts = {index: PartitionMetadata(1, 0, (1,), 0) for index in range(0 if code else self.counts[name])}
        return ClusterMetadata(None, -1, {}, {name: TopicMetadata(name, None, code, parts)})

    def append(self, producer: int, target: TopicPartition, batch: wire.Buffer) -> int:
        header = wire.read_header(batch)
        records = list(wire_records.decode(batch, 2))
        if code := self.refuses(target, records):
            return code
        expected = self.next_sequences.get((producer, target), header.base_sequence)
        if header.base_sequence != expected:
            return error_codes.OUT_OF_ORDER_SEQUENCE
        self.next_sequences[producer, target] = expected + len(records)
        self.logs.setdefault(target, []).extend(records)
        return 0


class Producer:
    """aiokafka's, as far as it is used; like it, it counts a sequence on for a batch that is refused."""

    def __init__(self, target: Target, check: Callable[[], None]) -> None:
        target.producers += 1
        self._check = check
        self._id = target.producers
        self._target = target
        self._sequences: dict[TopicPartition, int] = {}
        self._locks: dict[TopicPartition, asyncio.Lock] = {}
        self._sending: set[asyncio.Task[None]] = set()

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def send_batch(self, batch: BuiltBatch, topic: str, *, partition: int) -> asyncio.Future[None]:
        sending = asyncio.create_task(self._delivered(batch, TopicPartition(topic, partition)), name="send")
        self._sending.add(sending)
        sending.add_done_callback(self._sending.discard)
        return sending

    async def cut_off(self) -> None:
        """Some of what is in flight has arrived, and some never will."""
        for sending in list(self._sending):
            if self._target.chance.random() < 0.5:
                await asyncio.wait([sending])
            sending.cancel()

    async def _delivered(self, batch: BuiltBatch, to: TopicPartition) -> None:
        async with self._locks.setdefault(to, asyncio.Lock()):
            while self._target.silent:  # noqa: ASYNC110 - a test changes it
                await asyncio.sleep(0.001)
            await asyncio.sleep(self._target.chance.random() * 0.003)
            sequence = self._sequences.get(to, 0)
            self._sequences[to] = sequence + batch.record_count()
            batch._set_producer_state(self._id, 0, sequence)
            self._check()
            if code := self._target.append(self._id, to, memoryview(batch._build())):
                raise aiokafka.errors.for_code(code)()


class Scene:
    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, target: Target, *, partitions: int = 3, handler: Any = None, **more: Any
    ) -> None:
        self.source, self.target = Log(partitions), target
        self.failures: list[BaseException] = []
        self.is_over = False
        self.positions = dict.fromkeys(range(partitions), 0)
        self.states: dict[int, PartitionProgress] = {}
        self.copying: list[KeyedPartition] = []
        self._settings = SliceSettings("a->b", 0, {}, TO, by_key=True, **more)
        self._handler = handler

        @asynccontextmanager
        async def reader(*_: object, **__: object) -> AsyncIterator[Log]:
            yield self.source

        monkeypatch.setattr(by_key_copier, "reader", reader)
        monkeypatch.setattr(by_key_copier, "check_reads", lambda *_: None)
        monkeypatch.setattr(by_key_producer, "make_producer", lambda *args, **_: Producer(target, args[2]))
        monkeypatch.setattr(by_key_producer, "cut_off", Producer.cut_off)
        monkeypatch.setattr(by_key_producer, "_APPEAR_S", 0.05)
        monkeypatch.setattr(by_key_producer, "_RETRY_S", 0.001)
        monkeypatch.setattr(log_divergence, "_ASK_AGAIN_S", 0.001)

    @asynccontextmanager
    async def copies(self) -> AsyncIterator[None]:
        """A slice that goes on from the positions that were reported."""
        clusters = cast(Cluster, self.source), cast(Cluster, self.target)
        copy = ByKey(clusters, self._settings, lambda: None, self.check_lease, self.failures.append)
        await copy.open()
        copy._handler = self._handler
        self.copying = copy.start([plan(index, offset) for index, offset in self.positions.items()])
        try:
            yield
        finally:
            self.report()
            await copy.stop()

    def check_lease(self) -> None:
        if self.is_over:
            raise LeaseOver

    def report(self) -> None:
        for partition in self.copying:
            if (progress := partition.report()) is not None:
                index = progress.source.partition
                assert progress.next_source_offset >= self.positions[index], "a position never goes back"
                self.positions[index] = progress.next_source_offset
                self.states[index] = progress

    def is_done(self) -> bool:
        self.report()
        assert not self.failures, self.failures
        ends, states = self.source.ends, self.states
        return all(self.positions[index] == end or states[index].state != RUNNING for index, end in ends.items())

    async def run(self) -> None:
        async with self.copies():
            await until(self.is_done, "all is copied", WITHIN_S)

    def arrived(self, index: int) -> list[int]:
        """Offsets of a source partition's records, by target partition and then in their order there."""
        every = [record for log in self.target.logs.values() for record in log]
        return [int(record.value or b"") for record in every if is_from(record, index)]


def plan(index: int, offset: int) -> PartitionPlan:
    source = TopicPartition("orders", index)
    return kit.plan(partition=index, target=source, next_source_offset=offset, target_end=-1)


def is_from(record: Record, index: int) -> bool:
    return record.headers[0] == ("from", b"%d" % index)


def of(target: TopicPartition, records: Sequence[Record]) -> int:
    """Refuses records of source partition 1 whose value ends in 7."""
    is_refused = any(is_from(one, 1) and (one.value or b"").endswith(b"7") for one in records)
    return error_codes.INVALID_RECORD if is_refused else 0


async def test_each_record_arrives_once_at_its_keys_partition_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, Target(orders=2))
    await scene.run()
    for index in scene.source.ends:
        assert sorted(scene.arrived(index)) == list(range(RECORDS))
    for target, log in scene.target.logs.items():
        for index in scene.source.ends:
            numbers = [int(one.value or b"") for one in log if is_from(one, index)]
            assert numbers == sorted(numbers)
        assert all(record.key is None or partition_of(record.key, 2) == target.partition for record in log)
        one = log[0]
        assert one.timestamp_ms == 1_000 + int(one.value or b"")
        assert one.headers[1] == ("\udce9", None), "keys of headers that are not UTF-8 are kept"
    assert len({target for target, log in scene.target.logs.items() if any(one.key is None for one in log)}) == 2


async def test_a_position_covers_acknowledged_records_only(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, Target(orders=2))
    scene.target.silent = True
    async with scene.copies():
        await until(lambda: all(one.holds_up_end for one in scene.copying), "all wait for answers", WITHIN_S)
        scene.report()
        assert set(scene.positions.values()) == {0}
        for one in scene.copying:
            one.discard_unsent()
        scene.target.silent = False
        await until(lambda: not any(one.holds_up_end for one in scene.copying), "it is drained", WITHIN_S)
        scene.report()
        assert all(0 < position <= 80 for position in scene.positions.values()), "no other round began"
    for index, position in scene.positions.items():
        assert sorted(scene.arrived(index)) == list(range(position))


async def test_without_a_lease_nothing_is_sent_that_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a freeze: a successor may have sent the same, and what is behind it."""
    scene = Scene(monkeypatch, Target(orders=2))
    scene.target.silent = True
    async with scene.copies():
        await until(lambda: all(one.holds_up_end for one in scene.copying), "all wait", WITHIN_S)
        scene.is_over, scene.target.silent = True, False
        await until(lambda: len(scene.failures) == 3, "all have failed", WITHIN_S)
    assert not scene.target.logs
    assert all(isinstance(error, LeaseOver) for error in scene.failures)
    assert set(scene.positions.values()) == {0}


async def test_after_a_crash_all_arrives_and_the_last_copies_are_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, Target(orders=2))
    for _ in range(5):
        async with scene.copies():
            await asyncio.sleep(0.02)
    await scene.run()
    for index in scene.source.ends:
        assert set(scene.arrived(index)) == set(range(RECORDS))
        for log in scene.target.logs.values():
            numbers = [int(one.value or b"") for one in log if is_from(one, index) and one.key is not None]
            last = list(dict.fromkeys(reversed(numbers)))
            assert last == sorted(last, reverse=True)


@pytest.mark.parametrize("skips", [True, False])
async def test_a_refused_record_is_skipped_or_stops_its_partition(monkeypatch: pytest.MonkeyPatch, skips: bool) -> None:
    scene = Scene(monkeypatch, Target(orders=2), skip_refused=skips)
    scene.target.refuses = of
    await scene.run()
    for index in (0, 2):
        assert sorted(scene.arrived(index)) == list(range(RECORDS)), "others are neither lost nor doubled"
    arrived = sorted(scene.arrived(1))
    if skips:
        assert arrived == [number for number in range(RECORDS) if number % 10 != 7]
    else:
        stopped = scene.states[1]
        assert (stopped.state, stopped.next_source_offset) == (QUARANTINED, 7)
        assert "source offset 7: INVALID_RECORD" in stopped.reason
        assert arrived[:7] == list(range(7)) and 7 not in arrived


async def test_batches_that_are_too_large_are_halved_and_stay_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, Target(orders=2), partitions=1)
    scene.target.refuses = lambda _, records: error_codes.MESSAGE_TOO_LARGE if len(records) > 5 else 0
    await scene.run()
    assert sorted(scene.arrived(0)) == list(range(RECORDS))
    assert scene.target.producers < 20, "what was learned is kept"


async def test_what_the_source_no_longer_has_stops_a_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, Target(orders=2), partitions=2)
    scene.source.starts[1] = 10
    await scene.run()
    assert scene.states[1].state == STOPPED and "OffsetOutOfRange" in scene.states[1].reason
    assert sorted(scene.arrived(0)) == list(range(RECORDS))


class To:
    """Sends each record to these topics."""

    def __init__(self, *topics: str, partition: int | None = 0) -> None:
        self.topics = topics
        self.partition = partition

    def handle(self, record: MirroredRecord) -> list[MirroredRecord]:
        return [record._replace(topic=topic, partition=self.partition) for topic in self.topics]


async def test_a_handler_says_where_records_go(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, Target(here=2, there=1), handler=To("here", "there"))
    await scene.run()
    counts = {str(target): len(log) for target, log in scene.target.logs.items()}
    assert counts == {"here-0": 3 * RECORDS, "there-0": 3 * RECORDS}


async def test_nothing_of_a_record_is_sent_if_a_part_of_it_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch, Target(there=2), handler=To("there", "gone"), partitions=1, skip_refused=True)
    await scene.run()
    assert not scene.target.logs
    assert sum(last - first + 1 for first, last, _ in scene.states[0].skips) > 0


@pytest.mark.parametrize(
    ("handler", "errors", "words"),
    [
        (To("gone"), {}, "there is no target topic gone; create it"),
        (To("secret"), {"secret": error_codes.TOPIC_AUTHORIZATION_FAILED}, "grant it"),
        (To("orders", partition=2), {}, "has no partition 2"),
    ],
)
async def test_a_record_without_a_destination_stops_its_partition(
    monkeypatch: pytest.MonkeyPatch, handler: To, errors: dict[str, int], words: str
) -> None:
    target = Target(orders=2)
    target.errors = errors
    scene = Scene(monkeypatch, target, handler=handler, partitions=1)
    await scene.run()
    assert (scene.states[0].state, scene.states[0].next_source_offset) == (QUARANTINED, 0)
    assert "the record at offset 0 cannot be sent" in scene.states[0].reason
    assert words in scene.states[0].reason


async def test_a_topic_without_a_leader_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(young=2)
    target.errors["young"] = 5  # LEADER_NOT_AVAILABLE
    scene = Scene(monkeypatch, target, handler=To("young"), partitions=1)
    async with scene.copies():
        await until(lambda: len(target.asked) > 20, "it is asked for again", WITHIN_S)
        del target.errors["young"]
        await until(scene.is_done, "all is copied", WITHIN_S)
    assert len(scene.arrived(0)) == RECORDS
