"""Compacted topics that are followed on a real broker: in order and to the end, whatever is done to them meanwhile."""

from __future__ import annotations

import asyncio
import re
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest
from aiokafka import TopicPartition

from connect.core.errors import PermanentError, RetriableError
from connect.core.model import NewTopic
from connect.embedded.brokers import KafkaCluster
from connect.kafka import long_log
from connect.kafka.cluster import Cluster, ClusterMetadata
from connect.kafka.log import compacted_log
from connect.kafka.log.compacted_log import CompactedLog
from connect.kafka.log.compacted_topic import LogRecord, ensure_compacted_topic
from connect.kafka.log.offsets import LATEST, list_offsets
from connect.kafka.log.producer import OutRecord, PlainWriter, TransactionalWriter, partition_of
from connect.kafka.log.topic_admin import Admin
from connect.kafka.log.transactions import add_partitions, claim, end_transaction, init_producer_id
from tests.kit.clients import cluster_and_admin
from tests.kit.members import until

pytestmark = pytest.mark.integration


class Followed:
    def __init__(
        self,
        clients: tuple[Cluster, Admin],
        partitions: int = 1,
        *,
        read_committed: bool = False,
        only_last: bool = False,
    ) -> None:
        self.cluster, self.admin = clients
        self.topic = f"log-{uuid4()}"
        self.partitions = partitions
        self.seen: list[LogRecord] = []
        #: How many records had been seen each time that the log began anew.
        self.resets: list[int] = []
        how = {"read_committed": read_committed, "only_last": only_last}
        self.log = CompactedLog(self.cluster, self.topic, self.take, self.reset_log, **how)

    def take(self, record: LogRecord) -> None:
        if record.value == b"poison":
            raise ZeroDivisionError("not to be taken in")
        self.seen.append(record)

    def reset_log(self) -> None:
        self.resets.append(len(self.seen))

    @property
    def values(self) -> list[bytes]:
        return [record.value or b"" for record in self.seen]

    async def make(self) -> None:
        await ensure_compacted_topic(self.admin, NewTopic(self.topic, self.partitions, 1))
        # A plain write to partitions that do not all lead yet is repeated, and some of it is there twice.
        await until(self._leads, "all partitions lead")

    async def recreate(self) -> None:
        assert await self.admin.delete_topics([self.topic]) == {self.topic: None}
        await until(self._is_gone, "the topic is gone")
        await self.make()

    async def has_partitions(self, count: int) -> bool:
        return len((await self.cluster.topics({self.topic})).topics[self.topic].partitions) == count

    async def _leads(self) -> bool:
        try:
            return bool(await list_offsets(self.cluster, [(self.topic, at) for at in range(self.partitions)], LATEST))
        except RetriableError:
            return False

    async def _is_gone(self) -> bool:
        return self.topic not in await self.admin.describe_topics([self.topic])

    def records(self, *values: bytes | None, key: bytes = b"k") -> list[OutRecord]:
        return [OutRecord(self.topic, key, value) for value in values]

    async def others_write(self, *values: bytes | None) -> None:
        await PlainWriter(self.cluster).write(self.records(*values))


@asynccontextmanager
async def followed(us: KafkaCluster, *shape: Any, made: bool = True, **how: bool) -> AsyncIterator[Followed]:
    async with cluster_and_admin(us.bootstrap, "us") as clients:
        found = Followed(clients, *shape, **how)
        if made:
            await found.make()
        try:
            yield found
        finally:
            await found.log.stop()


@pytest.fixture
async def plain(us: KafkaCluster) -> AsyncIterator[Followed]:
    async with followed(us) as made:
        yield made


@pytest.fixture
async def committed(us: KafkaCluster) -> AsyncIterator[Followed]:
    async with followed(us, read_committed=True) as made:
        yield made


@pytest.fixture
async def last(us: KafkaCluster, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Followed]:
    """What is long is read by another process."""
    monkeypatch.setattr(long_log, "LONG_OFFSETS", 20)
    async with followed(us, 3, read_committed=True, only_last=True) as made:
        yield made


@pytest.fixture
async def wide(us: KafkaCluster) -> AsyncIterator[Followed]:
    async with followed(us, 3) as made:
        yield made


async def test_what_was_there_and_what_comes(wide: Followed) -> None:
    """Those of a partition in order, and each where Java's producer would put it."""
    before = [OutRecord(wide.topic, b"key-%d" % (at % 7), b"%d" % at) for at in range(2_000)]
    await PlainWriter(wide.cluster).write(before)
    await wide.log.start()
    assert len(wide.seen) == len(before)
    later = [OutRecord(wide.topic, b"key-%d" % (at % 7), b"later %d" % at) for at in range(100)]
    for at in range(0, 100, 10):
        await wide.log.write(later[at : at + 10])
    await wide.log.write([OutRecord(wide.topic, b"key-0", None)])
    await wide.log.read_to_end()
    by_partition: dict[int, list[bytes | None]] = defaultdict(list)
    for out in [*before, *later, OutRecord(wide.topic, b"key-0", None)]:
        by_partition[partition_of(out.key, 3)].append(out.value)
    for partition in range(3):
        assert [each.value for each in wide.seen if each.partition == partition] == by_partition[partition]


async def test_of_what_was_there_the_last_of_each_key_comes_and_then_all(last: Followed) -> None:
    """A transaction that is open then is no reason to wait, and is not missed."""

    def folded() -> dict[bytes | None, bytes | None]:
        return {record.key: record.value for record in last.seen}

    before = [OutRecord(last.topic, b"key-%d" % (at % 7), b"%d" % at) for at in range(700)]
    await PlainWriter(last.cluster).write(before)
    is_open, may_commit = asyncio.Event(), asyncio.Event()

    async def wait(_: object) -> bool:
        is_open.set()
        await may_commit.wait()
        return True

    slow = TransactionalWriter(last.cluster, f"slow-{uuid4()}")
    writing = asyncio.create_task(slow.write(last.records(b"late", key=b"key-0"), wait))
    await is_open.wait()
    await last.log.start(committed_only=True)
    assert folded() == {out.key: out.value for out in before}
    assert len(last.seen) == 7
    may_commit.set()
    await writing
    await last.log.write([OutRecord(last.topic, b"key-%d" % (at % 7), b"later %d" % at) for at in range(1, 14)])
    await last.log.read_to_end()
    assert [record.value for record in last.seen if record.key == b"key-1"] == [b"694", b"later 1", b"later 8"]
    assert folded()[b"key-0"] == b"later 7"
    assert b"late" in last.values


async def test_a_log_that_was_recreated_is_not_taken_from_what_is_kept(last: Followed) -> None:
    await PlainWriter(last.cluster).write(last.records(*(b"%d" % at for at in range(100))))
    await last.log.start()
    assert last.values == [b"99"]
    await last.recreate()
    await PlainWriter(last.cluster).write(last.records(*(b"new %d" % at for at in range(200))))
    await until(lambda: last.resets, "it begins anew")
    await last.log.read_to_end()
    assert last.values[-1] == b"new 199"


async def test_a_recreation_that_no_fetch_shows_is_noticed(plain: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compacted_log, "_IDENTITY_S", 0.1)
    await plain.others_write(*(b"%d" % at for at in range(10)))
    await plain.log.start()
    partition = TopicPartition(plain.topic, 0)
    consumer = plain.log._consumer
    assert consumer is not None
    consumer.pause(partition)  # as one that fetches neither while the topic is deleted nor before it is written again
    await plain.recreate()
    await plain.others_write(*(b"new %d" % at for at in range(20)))
    consumer.resume(partition)
    await until(lambda: plain.values[-1] == b"new 19", "the new log is read")
    await until(lambda: plain.resets, "it begins anew")
    await until(lambda: plain.values[plain.resets[-1] :] == [b"new %d" % at for at in range(20)], "all of it is read")


async def test_others_records_come_soon(plain: Followed) -> None:
    await plain.log.start()
    took_s: list[float] = []
    while len(took_s) < 20 or (min(took_s) >= 0.1 and len(took_s) < 200):  # a busy machine is not always slow
        at = len(took_s)
        await plain.others_write(b"%d" % at)
        written_s = time.monotonic()
        await until(lambda at=at: len(plain.seen) == at + 1, "the record is there")  # type: ignore[misc]
        took_s.append(time.monotonic() - written_s)
    assert min(took_s) < 0.1, "none waits for the tail to look up"


async def test_an_empty_log_is_read_and_read_again(plain: Followed) -> None:
    await plain.log.start()
    await plain.log.read_to_end()
    assert plain.seen == []


async def test_an_open_transaction_is_waited_for(committed: Followed) -> None:
    await committed.log.start()
    written, may_commit = asyncio.Event(), asyncio.Event()

    async def commit_later(*arguments: object, **_: object) -> None:
        written.set()
        await may_commit.wait()
        await end_transaction(*arguments, commit=True)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("connect.kafka.log.transactions.end_transaction", commit_later)
        slow = TransactionalWriter(committed.cluster, f"slow-{uuid4()}")
        writing = asyncio.create_task(slow.write(committed.records(b"late")))
        await written.wait()
        await committed.others_write(b"behind it")
        with pytest.raises(RetriableError, match=r"to its end within 0\.6 s; a transaction may be open"):
            await committed.log.read_to_end(0.6)
        assert committed.seen == []
        await committed.log.read_to_end(30, committed_only=True)
        assert committed.seen == []
        await committed.log.stop()
        await committed.log.start(30, committed_only=True)
        reading = asyncio.create_task(committed.log.read_to_end())
        may_commit.set()
        await writing
        await reading
    assert committed.values == [b"late", b"behind it"]


async def test_what_was_aborted_is_not_handed_over(committed: Followed) -> None:
    """The log then ends in a marker, which is no record."""
    await committed.log.start()
    transactional_id = f"aborted-{uuid4()}"
    cut = TransactionalWriter(committed.cluster, transactional_id)

    async def fail(*_: object, **__: object) -> None:
        raise PermanentError("the leader is gone")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("connect.kafka.log.transactions.end_transaction", fail)
        with pytest.raises(PermanentError):
            await cut.write(committed.records(b"never"))
    await claim(committed.cluster, transactional_id)  # by the next one, which aborts it
    await committed.log.read_to_end()
    assert committed.seen == []
    await committed.others_write(b"next")
    await committed.log.read_to_end()
    assert committed.values == [b"next"]


async def test_markers_at_the_end_are_no_reason_to_wait(plain: Followed) -> None:
    await plain.log.start()
    took_s: list[float] = []
    while not took_s or (min(took_s) >= 0.9 and len(took_s) < 200):  # a busy machine is not always slow
        transactional_id = f"aborted-{uuid4()}"
        who = await init_producer_id(plain.cluster, transactional_id)
        await add_partitions(plain.cluster, transactional_id, who, [(plain.topic, 0)])
        await end_transaction(plain.cluster, transactional_id, who, commit=False)
        await claim(plain.cluster, transactional_id)  # which returns when the marker is there
        begun_s = time.monotonic()
        await plain.log.read_to_end()
        took_s.append(time.monotonic() - begun_s)
    assert min(took_s) < 0.9, "not only when the tail next looks up"


async def test_read_to_end_has_handed_over_what_was_written_before(plain: Followed) -> None:
    await plain.log.start()
    for at in range(50):
        await plain.log.write(plain.records(b"%d" % at))
        await plain.log.read_to_end()
        assert len(plain.seen) == at + 1


async def test_it_goes_on_where_it_was_stopped(plain: Followed) -> None:
    await plain.log.start()
    await plain.log.write(plain.records(b"1", b"2"))
    await plain.log.read_to_end()
    await plain.log.stop()
    await plain.others_write(b"3")
    await plain.log.start()
    assert plain.values == [b"1", b"2", b"3"]


async def test_a_topic_made_anew_is_read_from_its_beginning(plain: Followed, caplog: pytest.LogCaptureFixture) -> None:
    """Also where it has more records than before when it is looked at, so that no offset is out of its range."""
    await plain.others_write(b"1", b"2")
    await plain.log.start()
    await plain.log.stop()
    await plain.recreate()
    await plain.others_write(b"3", b"4", b"5")
    await plain.log.start()
    assert plain.values == [b"1", b"2", b"3", b"4", b"5"]
    assert plain.resets == [2]
    assert "was recreated: reading it from the beginning" in caplog.text


async def test_an_end_that_is_gone_is_noticed_by_itself(plain: Followed, caplog: pytest.LogCaptureFixture) -> None:
    await plain.log.start()
    await plain.log.write(plain.records(*(b"%d" % at for at in range(10))))
    await plain.log.read_to_end()
    await plain.recreate()
    await plain.others_write(b"anew")
    await until(lambda: plain.values[-1] == b"anew", "the new topic's record is there")
    assert f"topic {plain.topic}" in caplog.text
    assert plain.values.count(b"anew") == 1
    assert plain.resets
    assert set(plain.resets) == {10}


async def test_more_partitions_are_read_as_well(plain: Followed) -> None:
    await plain.log.start()
    await plain.log.write(plain.records(b"1"))
    assert await plain.admin.create_partitions({plain.topic: 3}) == {plain.topic: None}
    await until(lambda: plain.has_partitions(3), "there are three partitions")
    for key in range(10):
        await plain.log.write(plain.records(b"2", key=b"%d" % key))
    await plain.log.read_to_end()
    assert sorted(plain.values) == [b"1"] + [b"2"] * 10  # those of before not again


async def test_what_cannot_be_taken_in_ends_it(plain: Followed) -> None:
    await plain.log.start()
    ended = asyncio.create_task(plain.log.ended())
    await plain.others_write(b"good", b"poison", b"more")
    assert isinstance(await ended, ZeroDivisionError)
    assert isinstance(plain.log.failure, ZeroDivisionError)
    with pytest.raises(PermanentError, match=r"a record could not be applied: ZeroDivisionError"):
        await plain.log.read_to_end()
    assert plain.values == [b"good"]


async def test_a_topic_that_is_not_there(us: KafkaCluster) -> None:
    async with followed(us, made=False) as plain:
        said = ""
        while "UNKNOWN_TOPIC" not in said:  # a busy machine may not get as far as asking
            with pytest.raises(RetriableError, match=r"could not be read to its end within 0\.5 s; ") as refused:
                await plain.log.start(0.5)
            said = str(refused.value)
        assert re.search(r"has no topic log-.* at the moment: UNKNOWN_TOPIC", said)
        assert await plain.log.ended() is None
        await plain.make()
        await plain.others_write(b"1")
        await plain.log.start()
        assert plain.values == [b"1"]


async def test_stopping_leaves_nothing_behind(plain: Followed) -> None:
    tasks = asyncio.all_tasks()
    await plain.log.start()
    await plain.log.stop()
    await plain.log.stop()
    await until(lambda: not [task for task in asyncio.all_tasks() - tasks if "tail" in task.get_name()], "no tail")


async def test_a_plain_writer_asks_for_leaders_once_and_again_if_one_has_gone(
    plain: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offset syncs are written up to ten times a second."""
    asked = 0
    topics = Cluster.topics

    async def counted(self: Cluster, names: Collection[str]) -> ClusterMetadata:
        nonlocal asked
        asked += 1
        return await topics(self, names)

    monkeypatch.setattr(Cluster, "topics", counted)
    writer = PlainWriter(plain.cluster)
    for value in (b"1", b"2", b"3"):
        await writer.write(plain.records(value))
    assert asked == 1
    (at_leader,) = writer._known.values()
    rows = at_leader[0].topics[plain.topic].partitions
    rows[0] = rows[0]._replace(leader=99)
    await writer.write(plain.records(b"4"))
    assert asked == 2
    await plain.log.start()
    assert plain.values == [b"1", b"2", b"3", b"4"]
