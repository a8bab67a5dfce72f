"""The record-by-record comparison against real brokers: every codec, transactions, and each kind of difference."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from unittest.mock import AsyncMock, MagicMock

import pytest
from aiokafka import AIOKafkaProducer

from connect.core.errors import ClusterUnreachable, PermanentError, RetriableError
from connect.embedded.brokers import KafkaCluster
from connect.kafka.cluster import Cluster
from connect.kafka.security.connection_settings import ConnectionSettings
from connectors.control_link.protocol import PartitionPlan
from connectors.formats.types import TopicPartition
from connectors.verification import log_reader
from connectors.verification.direct import compare_topics
from connectors.verification.log_reader import LogReader, is_abort
from connectors.verification.ranges import RangePlan
from connectors.verification.task import VerificationTask
from tests.kit.clients import settings_of
from tests.kit.direct import Broker
from tests.kit.pipe import Direction
from tests.kit.proxy import FaultProxy
from tests.kit.topics import make_topics

pytestmark = pytest.mark.integration

#: Older timestamps would let retention take the records away while they are compared.
NOW_MS = int(time.time() * 1000)
CODECS = (None, "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True)
class Rec:
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True)
class Sides:
    source: ConnectionSettings
    target: ConnectionSettings


@pytest.fixture
def sides(us: KafkaCluster, eu: KafkaCluster) -> Sides:
    return Sides(settings_of(us.bootstrap), settings_of(eu.bootstrap))


@pytest.fixture
async def new_topic(sides: Sides) -> Callable[..., Awaitable[str]]:
    async def make(partitions: int = 1, target_partitions: int | None = None) -> str:
        name = f"verify-{uuid.uuid4().hex[:8]}"
        for where, count in ((sides.source, partitions), (sides.target, target_partitions or partitions)):
            await make_topics(",".join(f"{host}:{port}" for host, port in where.bootstrap), {name: count})
        return name

    return make


def records(end: int, start: int = 0) -> list[Rec]:
    return [Rec(b"k%d" % i, b"value of %d" % i, NOW_MS + i, (("n", b"%d" % i),)) for i in range(start, end)]


@asynccontextmanager
async def producing(where: ConnectionSettings, **options: object):
    async with AIOKafkaProducer(**where.aiokafka_arguments(), **options) as producer:
        yield producer


async def write(
    where: ConnectionSettings, topic: str, each: Iterable[Rec], partition: int = 0, codec: str | None = None
) -> None:
    async with producing(where, compression_type=codec) as producer:
        await send(producer, topic, each, partition)


async def send(producer: AIOKafkaProducer, topic: str, each: Iterable[Rec], partition: int = 0) -> None:
    for record in each:
        await producer.send(
            topic,
            value=record.value,
            key=record.key,
            partition=partition,
            timestamp_ms=record.timestamp_ms,
            headers=list(record.headers),
        )
    await producer.flush()


async def test_equal_topics_of_every_codec_are_equal(sides: Sides, new_topic: Callable[..., Awaitable[str]]) -> None:
    topics = [await new_topic(partitions=2) for _ in CODECS]
    for topic, codec, other in zip(topics, CODECS, reversed(CODECS), strict=True):
        for partition in range(2):
            await write(sides.source, topic, records(300 + partition), partition, codec)
            await write(sides.target, topic, records(300 + partition), partition, other)
    report = await compare_topics(sides.source, sides.target, {topic: topic for topic in topics})
    assert report.difference is None
    assert report.records == 5 * (300 + 301)


@pytest.mark.parametrize(
    ("copied", "equal", "words"),
    [
        ([*records(3), replace(records(4)[3], value=b"other"), *records(10, 4)], 9, "changed: value: "),
        ([*records(3), replace(records(4)[3], key=None), *records(10, 4)], 9, "changed: key: "),
        ([replace(records(1)[0], headers=()), *records(10, 1)], 9, "changed: headers: "),
        ([*records(9), replace(records(10)[9], timestamp_ms=5)], 9, "changed: timestamp: "),
        (records(9), 9, "{topic}-0 at offset 9: missing: "),
        (records(11), 10, "{topic}-0 at offset 10: extra: "),
        ([*records(5), *records(10, 4)], 10, "{topic}-0 at offset 4 and {topic}-0 at offset 5: doubled: "),
        ([*records(4), *records(6, 5), *records(5, 4), *records(10, 6)], 9, ": order: "),
    ],
)
async def test_the_first_difference_is_found(
    copied: Sequence[Rec], equal: int, words: str, sides: Sides, new_topic: Callable[..., Awaitable[str]]
) -> None:
    topic = await new_topic()
    await write(sides.source, topic, records(10))
    await write(sides.target, topic, copied)
    report = await compare_topics(sides.source, sides.target, {topic: topic})
    assert report.difference is not None and words.format(topic=topic) in report.difference
    assert report.records == equal


async def test_aborted_records_of_a_committed_view_are_no_difference(
    sides: Sides, new_topic: Callable[..., Awaitable[str]]
) -> None:
    """The source ends in an aborted transaction, the target in its marker: no record comes for either."""
    topic = await new_topic()
    async with producing(sides.source, transactional_id=f"{topic}-t") as producer:
        async with producer.transaction():
            await send(producer, topic, records(5))
        await producer.begin_transaction()
        await send(producer, topic, records(107, 100))
        await producer.abort_transaction()
    await write(sides.target, topic, records(5))
    committed = await compare_topics(sides.source, sides.target, {topic: topic})
    assert (committed.difference, committed.records) == (None, 5)


async def test_what_cannot_be_compared_is_said(sides: Sides, new_topic: Callable[..., Awaitable[str]]) -> None:
    with pytest.raises(PermanentError, match=r"topic nowhere-to-be-found does not exist at 127\.0\.0\.1:"):
        await compare_topics(sides.source, sides.target, {"nowhere-to-be-found": "nowhere-to-be-found"})
    narrow = await new_topic(partitions=3, target_partitions=2)
    with pytest.raises(PermanentError, match=r"has 3 partitions, its copy .* only 2"):
        await compare_topics(sides.source, sides.target, {narrow: narrow})
    with pytest.raises(ClusterUnreachable, match=r"127\.0\.0\.1:1\b"):
        await compare_topics(sides.source, settings_of("127.0.0.1:1"), {narrow: narrow})


async def test_logs_whose_batches_are_cut_differently_are_equal(
    sides: Sides, new_topic: Callable[..., Awaitable[str]]
) -> None:
    topic = await new_topic(partitions=2)
    many = records(30_000)
    for partition in range(2):
        await write(sides.source, topic, many, partition, "zstd")
        await write(sides.target, topic, many, partition)
    report = await compare_topics(sides.source, sides.target, {topic: topic})
    assert (report.difference, report.records) == (None, 60_000)


async def test_a_whole_log_has_its_abort_markers(sides: Sides, new_topic: Callable[..., Awaitable[str]]) -> None:
    """They are what is left of a transaction whose records a cleaner has removed."""
    topic = await new_topic()
    async with producing(sides.source, transactional_id=topic) as producer:
        for end in (producer.abort_transaction, producer.commit_transaction):
            await producer.begin_transaction()
            await send(producer, topic, records(2))
            await end()
    cluster = Cluster(sides.source)
    found = []
    for is_committed, is_whole in ((True, False), (False, False), (True, True)):
        reader = LogReader(cluster, TopicPartition(topic, 0), 0, 6, is_committed=is_committed, fetch_bytes=1 << 20)
        reader.is_whole = is_whole
        batches = []
        while (batch := await reader.next()) is not None:
            batches.append((batch.first, batch.is_control and is_abort(batch, "a log")))
        found.append(batches)
        await reader.aclose()
    await cluster.close()
    assert found == [[(3, False)], [(0, False), (3, False)], [(0, False), (2, True), (3, False), (5, False)]]


async def test_a_log_that_begins_inside_a_batch_has_all_of_it(
    sides: Sides, us: KafkaCluster, new_topic: Callable[..., Awaitable[str]]
) -> None:
    """Else the records before that batch would count as missing, because it hides where the deletion ends."""
    topic = await new_topic()
    for some in (records(3), records(10, 3)):
        async with producing(sides.source, linger_ms=1000) as producer:
            await send(producer, topic, some)
    await asyncio.to_thread(Broker(us, 0).delete_records, topic, 5)
    cluster = Cluster(sides.source)
    for begin, deleted in ((0, [(0, 3)]), (3, [])):
        reader = LogReader(cluster, TopicPartition(topic, 0), begin, 10, is_committed=True, fetch_bytes=1 << 20)
        batch = await reader.next()
        assert batch is not None
        assert (batch.first, reader.deleted) == (3, deleted)
        await reader.aclose()
    await cluster.close()


@pytest.mark.parametrize("is_compacted", [False, True])
async def test_a_source_that_accepts_and_never_answers_is_named(
    sides: Sides, us: KafkaCluster, monkeypatch: pytest.MonkeyPatch, is_compacted: bool
) -> None:
    """By its alias, with the partition, in the first fetch and where a compacted log is read to its end."""
    monkeypatch.setattr(log_reader, "_STALLED_S", 0.5)
    host, _, port = us.bootstrap.partition(":")
    with FaultProxy.start(host, int(port)) as proxy:
        proxy.hold(Direction.REQUESTS, new_too=True)
        silent = settings_of("{}:{}".format(*proxy.address), request_timeout_ms="200")
        link = MagicMock(close=AsyncMock())
        task = VerificationTask(link, None)
        try:
            aliases = {"source": "us", "target": "eu"}
            of_both = {"source": silent.to_wire(), "target": sides.target.to_wire(), "aliases": aliases}
            limits = {"is_committed": True, "fetch_bytes": 1024, "bytes_s": 0, "chain": None}
            await task._configure({**of_both, **limits})
            plan = RangePlan("t", 0, "us.t", 0, 5, 9, 0, 0, due=9, is_last=True)
            if is_compacted:
                await task._opener(plan)("source", 5, 9).extend()
            else:
                await task._verify(
                    {
                        "plan": plan.to_wire(),
                        "partition": PartitionPlan(plan.source, None, plan.target, None, 5, -1, 0, 0, False).to_wire(),
                    }
                )
            said = link.send.call_args.args[0]["error"]
        except RetriableError as error:
            said = str(error)
        finally:
            await task.aclose()
    what, place = "its end" if is_compacted else "offset 5", r"cluster us \(127\.0\.0\.1:\d+\)"
    why = rf"{place}: .* did not answer.*; check that the cluster's brokers answer, then run this again"
    assert re.fullmatch(rf"{place}: t-0: {what} could not be read for 0\.5 s: {why}", said), said
