"""What another process leaves of a long log is worth the whole of it, and is read once for all who need it."""

from __future__ import annotations

import asyncio
import os
import random
import struct
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import READ_COMMITTED, READ_UNCOMMITTED, PartitionRecords
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from connect.core.errors import RetriableError
from connect.kafka import long_log
from connect.kafka.cluster import Cluster
from connect.kafka.log.compacted_topic import FetchedRecords, RecordsAsRead
from connect.kafka.log.long_log_reader import LastOfKeys
from connect.kafka.long_log import LongLogs, Row, Spans
from connect.kafka.security.connection_settings import ConnectionSettings
from connect.wire import batch as wire
from tests.kit.logs import control_batch
from tests.kit.members import until

SETTINGS = ConnectionSettings((("eu", 9092),), "task-0")


@dataclass(frozen=True)
class Log:
    """Of one partition: batches as a fetch returns them, and (producer, first offset, marker) of aborted ones."""

    batches: list[bytes]
    aborted: list[tuple[int, int, int]]


def a_log(chance: random.Random) -> Log:
    """Transactions that end either way or not at all, between and across each other; holes as a cleaner leaves them."""
    batches, aborted, offset = list[bytes](), list[tuple[int, int, int]](), 0
    open_since: dict[int, int] = {}
    for _ in range(chance.randrange(1, 25)):
        producer = chance.randrange(4)
        if producer in open_since and chance.random() < 0.4:
            commit = chance.random() < 0.5
            batches.append(control_batch(offset, producer, commit=commit))
            first = open_since.pop(producer)
            if not commit:
                aborted.append((producer, first, offset))
            offset += 1
            continue
        is_transactional = producer > 0
        count = chance.randrange(1, 9)
        if is_transactional:
            open_since.setdefault(producer, offset)
        kept = [at for at in range(offset, offset + count) if chance.random() < 0.8] or [offset]
        batches.append(a_batch(chance, offset, kept, offset + count - 1, producer if is_transactional else -1))
        offset += count + (chance.random() < 0.2) * 3  # whole batches were compacted away
    first_open = min(open_since.values(), default=offset)  # the last stable offset: nobody is given more
    stable = [one for one in batches if wire.read_header(one).base_offset < first_open]
    return Log(stable, [one for one in aborted if one[2] < first_open])


def a_batch(chance: random.Random, base: int, offsets: Sequence[int], last: int, producer: int) -> bytes:
    builder = DefaultRecordBatchBuilder(2, chance.choice((0, 4)), producer > 0, producer, 0, 0, 2**30)
    for at in offsets:
        key = None if chance.random() < 0.05 else b"key-%d" % chance.randrange(6)
        value = None if chance.random() < 0.2 else b"value %d" % at
        builder.append(at - base, 1000 + at, key, value, [("n", b"%d" % at)][: chance.randrange(2)])
    built = builder.build()
    struct.pack_into(">q", built, 0, base)
    struct.pack_into(">i", built, 23, last - base)
    struct.pack_into(">I", built, 17, wire.checksum(built))
    return bytes(built)


def fetched(log: Log, position: int, chance: random.Random, isolation: int, give: Any) -> Iterator[list[Any]]:
    """What a consumer is given of it, fetch by fetch."""
    while left := [one for one in log.batches if wire.read_header(one).last_offset >= position]:
        answer = left[: chance.randrange(1, 5)]
        end = wire.read_header(answer[-1]).last_offset + 1
        aborted = [(who, first) for who, first, marker in log.aborted if marker >= position and first < end]
        data = FetchedRecords(b"".join(answer))
        records = give(TopicPartition("t", 0), data, aborted, position, None, None, True, isolation)
        yield list(records)
        position = records.next_fetch_offset


async def handed_over(piece: long_log._Piece, at: dict[int, int]) -> list[Row]:
    rows: list[Row] = []
    await piece.hand_over(at, None, rows.append, lambda: None)
    return rows


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from((READ_COMMITTED, READ_UNCOMMITTED)))
def test_the_last_records_fold_to_what_all_records_fold_to(chance: random.Random, isolation: int) -> None:
    logs = {partition: a_log(chance) for partition in range(chance.randrange(1, 4))}
    firsts = {partition: chance.choice((0, 0, 7)) for partition in logs}
    whole: dict[int, list[Row]] = {}
    answers: dict[int, list[list[Any]]] = {}
    for partition, log in logs.items():
        records = [
            one for answer in fetched(log, firsts[partition], chance, isolation, PartitionRecords) for one in answer
        ]
        whole[partition] = [(one.key, one.value, partition, one.offset, one.timestamp, one.headers) for one in records]
        answers[partition] = list(fetched(log, firsts[partition], chance, isolation, RecordsAsRead))
    with tempfile.TemporaryFile() as file:
        kept = LastOfKeys(file, most_bytes=chance.choice((1, 3000, 1 << 20)))
        while left := [partition for partition in answers if answers[partition]]:
            partition = chance.choice(left)
            kept.take(TopicPartition("t", partition), answers[partition].pop(0))
        kept.write()
        piece = long_log._Piece(os.dup(file.fileno()), {one: (firsts[one], 1000) for one in logs}, None)
    asked = {one: chance.choice((firsts[one], firsts[one] + 5)) for one in logs if chance.random() < 0.8}
    at = dict(asked)
    rows = asyncio.run(handed_over(piece, at))
    assert at == dict.fromkeys(asked, 1000)
    assert {row[2] for row in rows} <= asked.keys()
    for partition, first in asked.items():
        mine = [row for row in rows if row[2] == partition]
        should = [row for row in whole[partition] if row[3] >= first]
        assert {row[0]: row for row in mine} == {row[0]: row for row in should}
        assert [row[3] for row in mine] == sorted({row[3] for row in mine}), "in order, and none twice"
        assert all(row in should for row in mine)


def test_what_is_held_is_bounded_and_a_frame_is_small() -> None:
    """A thousand keys of a kilobyte, three times: more than may be held is written, and the keys come again."""
    with tempfile.TemporaryFile() as file:
        kept = LastOfKeys(file, most_bytes=500_000)
        for at in range(3_000):
            one = SimpleNamespace(key=b"%d" % (at % 1000), value=bytes(1000), offset=at, timestamp=0, headers=[])
            kept.take(TopicPartition("t", 0), [one])
            held = sum(map(len, kept._last.values()))
            assert held * 1000 <= 500_000
        kept.write()
        piece = long_log._Piece(os.dup(file.fileno()), {0: (0, 3_000)}, None)
    place, offsets = 0, list[int]()
    while (found := piece._frame(place, {0})) is not None:
        rows, place = found
        assert len(rows) <= 200
        offsets += [row[3] for row in rows]
    assert offsets == sorted(set(offsets))
    assert offsets[-1] == 2_999


# -- read once --------------------------------------------------------------------------------------------------------


class Target:
    """A topic of two partitions, in which each offset has a record of a key of its own; ``reads`` are those of the
    other process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.end = 1000
        self.topic_id: UUID | None = UUID(int=1)
        self.epoch = 3
        self.reads: list[dict[int, tuple[int, int]]] = []
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.ticks: list[Callable[[], None]] = []
        self.logs = LongLogs()
        monkeypatch.setattr(long_log, "LONG_OFFSETS", 100)
        monkeypatch.setattr(long_log, "_read", self._read)

    def cluster(self, client: ConnectionSettings = SETTINGS) -> Cluster:
        return cast(Cluster, SimpleNamespace(settings=client, name="eu", alias="eu", topics=self._topics))

    async def _topics(self, _: object) -> Any:
        partitions = {index: SimpleNamespace(leader_epoch=self.epoch) for index in (0, 1)}
        return SimpleNamespace(topics={"map": SimpleNamespace(topic_id=self.topic_id, partitions=partitions)})

    async def _read(self, order: long_log._Order, progressed: Callable[[], None]) -> tuple[int, dict[int, int]]:
        self.reads.append(dict(order.spans))
        self.ticks.append(progressed)
        await self.may_end.wait()
        with tempfile.TemporaryFile() as file:
            kept = LastOfKeys(file)
            for partition, (first, end) in order.spans.items():
                made = [
                    SimpleNamespace(key=b"%d" % at, value=b"v", offset=at, timestamp=0, headers=[])
                    for at in range(first, end)
                ]
                kept.take(TopicPartition("map", partition), made)
            kept.write()
            return os.dup(file.fileno()), {partition: end for partition, (_, end) in order.spans.items()}

    async def read(
        self, spans: Spans | None = None, client: ConnectionSettings = SETTINGS, tick: Callable[[], None] = lambda: None
    ) -> tuple[list[tuple[int, int]], dict[int, int]]:
        """(partition, offset) of what was handed over, and where to go on."""
        rows: list[Row] = []
        spans = spans or {0: (0, self.end), 1: (0, self.end)}
        at = await self.logs.read(self.cluster(client), "map", spans, rows.append, True, tick)
        return [(row[2], row[3]) for row in rows], at


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    target = Target(monkeypatch)
    yield target
    target.logs.close()


ALL = [(partition, offset) for partition in (0, 1) for offset in range(1000)]


async def test_what_is_short_is_left_to_the_reader(target: Target) -> None:
    spans = {0: (950, 1000), 1: (950, 1000)}
    assert await target.read(spans) == ([], {0: 950, 1: 950})
    assert not target.reads


async def test_a_log_is_read_once_for_all_who_come_at_the_same_time(target: Target) -> None:
    target.may_end.clear()
    readers = [asyncio.ensure_future(target.read(client=replace(SETTINGS, client_id=f"task-{n}"))) for n in range(3)]
    await asyncio.sleep(0)
    target.may_end.set()
    assert [await one for one in readers] == [(ALL, {0: 1000, 1: 1000})] * 3
    assert len(target.reads) == 1
    assert await target.read(client=replace(SETTINGS, username="ann")) == (ALL, {0: 1000, 1: 1000})
    assert len(target.reads) == 2, "whose rights may be others"


async def test_only_what_was_added_is_read_later(target: Target) -> None:
    await target.read()
    target.end = 1020
    assert await target.read() == (ALL, {0: 1000, 1: 1000}), "a short rest is the reader's"
    target.end = 1200
    found, at = await target.read()
    assert (sorted(found), at) == ([(one, at) for one in (0, 1) for at in range(1200)], {0: 1200, 1: 1200})
    assert target.reads == [{0: (0, 1000), 1: (0, 1000)}, {0: (1000, 1200), 1: (1000, 1200)}]


async def test_what_is_kept_of_a_log_that_grows_is_bounded(target: Target) -> None:
    for target.end in range(300, 1500, 110):
        found, at = await target.read()
        assert (len(found), at) == (2 * target.end, {0: target.end, 1: target.end})
        assert len(target.logs._shelves[0].pieces) <= 8
    assert [reads[0][0] for reads in target.reads].count(0) == 2


async def test_who_has_read_a_part_gets_what_is_behind_it(target: Target) -> None:
    await target.read()
    assert await target.read({1: (600, 1000)}) == ([(1, at) for at in range(600, 1000)], {1: 1000})
    assert len(target.reads) == 1


async def test_partitions_that_were_not_read_are_added(target: Target) -> None:
    await target.read({0: (0, 1000)})
    assert await target.read() == (ALL, {0: 1000, 1: 1000})
    assert target.reads == [{0: (0, 1000)}, {1: (0, 1000)}]


@pytest.mark.parametrize("change", ["topic_id", "epoch"])
async def test_a_log_that_may_be_another_one_is_read_again(target: Target, change: str) -> None:
    await target.read()
    setattr(target, change, {"topic_id": UUID(int=2), "epoch": 4}[change])
    assert await target.read() == (ALL, {0: 1000, 1: 1000})
    assert len(target.reads) == 2


async def test_a_leader_that_changed_meanwhile_leaves_nothing_to_keep(target: Target) -> None:
    target.may_end.clear()
    reader = asyncio.ensure_future(target.read())
    await until(lambda: target.reads, "it is read")
    target.epoch = 4
    target.may_end.set()
    assert await reader == (ALL, {0: 1000, 1: 1000})
    await target.read()
    assert len(target.reads) == 2


async def test_nothing_is_kept_where_brokers_know_no_topic_ids(target: Target) -> None:
    target.topic_id = None
    for _ in range(2):
        assert await target.read() == (ALL, {0: 1000, 1: 1000})
    assert len(target.reads) == 2


async def test_who_waits_sees_the_progress_of_the_one_who_reads(target: Target) -> None:
    target.may_end.clear()
    ticked: list[str] = []
    readers = [asyncio.ensure_future(target.read(tick=lambda who=who: ticked.append(who))) for who in ("a", "b")]  # type: ignore[misc]
    await until(lambda: target.reads and len(target.logs._shelves[0].readers) == 2, "one reads and one waits")
    target.ticks[0]()
    assert ticked == ["a", "b"]
    readers[0].cancel()
    await until(lambda: len(target.reads) == 2, "the other one reads itself now")
    target.may_end.set()
    assert await readers[1] == (ALL, {0: 1000, 1: 1000})


async def test_one_that_fails_leaves_the_next_to_try(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: object) -> None:
        raise RetriableError("ended with code -9")

    with monkeypatch.context() as patch:
        patch.setattr(long_log, "_read", fails)
        with pytest.raises(RetriableError, match="code -9"):
            await target.read()
    assert await target.read() == (ALL, {0: 1000, 1: 1000})


async def test_what_nobody_reads_is_forgotten(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_log, "_KEPT_S", 0.05)
    await target.read()
    [kept] = [weakref.ref(piece) for shelf in target.logs._shelves for piece in shelf.pieces]
    await until(lambda: not target.logs._shelves, "it is forgotten")
    target.ticks.clear()
    assert kept() is None, "and its file is closed"


def test_the_other_process_has_no_secrets_in_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("US_PASSWORD", "hush")
    monkeypatch.setenv("KRB5CCNAME", "FILE:/cache")
    found = long_log.environment()
    assert {"PATH", "KRB5CCNAME"} <= set(found)
    assert "hush" not in found.values()
