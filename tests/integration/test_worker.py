"""Tasks of a worker on a real broker: records, offsets, topics, transactions, and what a fence does to them."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar
from uuid import uuid4

import pytest

from connect.api.connector import Props
from connect.api.source import Header, SourceConnector, SourceRecord, SourceTask
from connect.core.config.worker_config import WorkerConfig
from connect.core.model import NewTopic, State, TargetState, TaskId
from connect.kafka.cluster import Cluster
from connect.kafka.log.compacted_log import CompactedLog
from connect.kafka.log.compacted_topic import ensure_compacted_topic
from connect.kafka.log.topic_admin import Admin
from connect.kafka.log.transactions import init_producer_id
from connect.kafka.security.connection_settings import connection_settings
from connect.runtime.task.connector_offsets import OffsetTopic
from connect.runtime.task.record_delivery import ProducerFenced
from connect.runtime.task_builder import TaskSpec
from connect.runtime.worker import Worker
from tests.kit.brokers import KafkaCluster
from tests.kit.copies import read_all
from tests.kit.members import until
from tests.kit.topics import make_topics
from tests.kit.work import WORKER, Heard, TestConnector, plugins

pytestmark = pytest.mark.integration

STARTED, PAUSED = TargetState.STARTED, TargetState.PAUSED


class Counting(SourceTask):
    """Counts up to ``props["to"]``, three records a poll, from where its offset stands; with keys and headers."""

    async def start(self, props: Props) -> None:
        self._topic, self._to = props["topic"], int(props["to"])
        stored = await self.context.offset_reader.offset({"counter": "a"})
        self._next = 0 if stored is None else int(str(stored["n"])) + 1
        self.reported: list[Any] = []
        self.commits = 0

    async def poll(self) -> Sequence[SourceRecord] | None:
        if self._next >= self._to:
            await asyncio.sleep(0.02)
            return None
        numbers = range(self._next, min(self._next + 3, self._to))
        self._next = numbers.stop
        return [self._record(number) for number in numbers]

    async def commit_record(self, record: SourceRecord, metadata: object) -> None:
        self.reported.append(record.source_offset.get("n"))

    def _record(self, number: int) -> SourceRecord:
        headers = (Header("parity", "odd" if number % 2 else "even"),)
        return SourceRecord(
            {"counter": "a"}, {"n": number}, self._topic, str(number), key=f"k{number % 5}", headers=headers
        )


class CountingConnector(TestConnector):
    """Its tasks, newest last, are in ``made``."""

    made: ClassVar[list[Counting]] = []
    kind: ClassVar[type[Counting]] = Counting

    def make_task(self) -> SourceTask:
        self.made.append(self.kind())
        return self.made[-1]


def counting(kind: type[Counting] = Counting) -> type[CountingConnector]:
    class UnreplicatedRecords(CountingConnector):
        pass

    UnreplicatedRecords.made, UnreplicatedRecords.kind = [], kind
    return UnreplicatedRecords


class Stage:
    def __init__(self, cluster: KafkaCluster, config: WorkerConfig, connector: type[SourceConnector]) -> None:
        self.name = config.group_id
        self.bootstrap = cluster.bootstrap
        self.task = TaskId(self.name, 0)
        self.topic = f"{self.name}-records"
        self.heard = Heard()
        self.props = {"name": self.name, "connector.class": "Test"}
        self.offset_topic_name = config.offset_topic.name
        connection = connection_settings({"bootstrap.servers": cluster.bootstrap}, client_id="t", where="us")
        self.cluster = Cluster(connection)
        self.admin = Admin(connection)
        self._config = config
        self.offsets = OffsetTopic(self.offset_topic_name, self._log)
        self._connector = connector
        self._workers: list[Worker] = []
        self.worker = self.another_worker()

    def another_worker(self) -> Worker:
        """Takes the place of ``worker``; what runs on that goes on."""
        config = self._config
        self.worker = Worker(
            config, plugins(self._connector), self.heard, transformer=config.transformer, offsets=self.offsets
        )
        self._workers.append(self.worker)
        return self.worker

    async def close(self) -> None:
        for worker in self._workers:
            await worker.stop()

    def _log(self, on_record: Callable[..., None], on_reset: Callable[[], None]) -> CompactedLog:
        return CompactedLog(self.cluster, self.offset_topic_name, on_record, on_reset, read_committed=True)

    def start(self, to: int, target: TargetState = STARTED, **checks: Any) -> None:
        props = {"topic": self.topic, "to": str(to)}
        self.worker.start_task(TaskSpec(self.task, self.props, props, 1, **checks), target)

    async def stop(self) -> None:
        await self.worker.stop_work([self.name], [self.task])

    async def until_state(self, state: State) -> None:
        await until(lambda: self.heard.last(self.task) is state, f"{self.task} is {state}: {self.heard.states}")

    async def until_running(self) -> None:
        """The newest worker's task runs; of older ones nobody has said that they ended."""
        newest = self.worker.tasks[self.task]
        await until(lambda: newest.state is State.RUNNING, f"the newest task runs: {self.heard.traces}")

    async def until_polled(self, records: int) -> None:
        counters = self.worker.tasks[self.task].counters
        await until(lambda: counters.polled >= records, f"{records} records are polled: {self.heard.traces}")

    async def count(self, topic: str) -> int:
        return len(await read_all(self.bootstrap, topic))

    async def numbers(self) -> list[int]:
        """What is committed, sorted; for a moment less, as a coordinator answers before its markers are written."""
        return sorted(int(record.value) for record in await read_all(self.bootstrap, self.topic))

    async def written(self) -> list[int]:
        return sorted(int(record.value) for record in await read_all(self.bootstrap, self.topic, "read_uncommitted"))

    async def stored(self) -> Any:
        """The counter's offset as the worker's topic has it."""
        await self.offsets.read_to_end()
        found = self.offsets.of_connector(self.name)
        return next((offset["n"] for _, offset in found.values()), None)


async def eventually(found: Callable[[], Awaitable[Any]], wanted: object) -> None:
    async def is_so() -> bool:
        return bool(await found() == wanted)

    await until(is_so, f"it is {wanted}")


@asynccontextmanager
async def staged(
    cluster: KafkaCluster,
    connector: type[SourceConnector],
    worker: Mapping[str, str] | None = None,
    props: Mapping[str, str] | None = None,
    partitions: int = 2,
) -> AsyncIterator[Stage]:
    name = f"w{uuid4().hex[:8]}"
    own = {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": name,
        "offset.storage.topic": f"{name}-offsets",
        "offset.storage.partitions": "3",
        "offset.storage.replication.factor": "1",
        # However slow the machine is, what is stopped here ends by itself, with its offsets stored.
        "task.shutdown.graceful.timeout.ms": "60000",
        "offset.flush.timeout.ms": "60000",
    }
    stage = Stage(cluster, WorkerConfig.parse({**WORKER, **own, **(worker or {})}), connector)
    stage.props |= props or {}
    if partitions:
        await make_topics(cluster.bootstrap, {stage.topic: partitions})
    await ensure_compacted_topic(stage.admin, NewTopic(stage.offset_topic_name, 3, 1))
    await stage.offsets.start(60)
    try:
        yield stage
    finally:
        await stage.close()
        await stage.offsets.stop()
        await stage.admin.close()
        await stage.cluster.close()


OFTEN = {"offset.flush.interval.ms": "100"}
ONCE = {"exactly.once.source.support": "enabled"}


async def test_records_arrive_in_javas_form_and_offsets_follow(us: KafkaCluster) -> None:
    connector = counting()
    async with staged(us, connector, OFTEN) as stage:
        stage.start(20)
        await stage.until_state(State.RUNNING)
        await until(lambda: len(connector.made[-1].reported) == 20, "all records are acknowledged")
        await eventually(stage.stored, 19)
        records = await read_all(us.bootstrap, stage.topic)
        assert sorted(int(each.value) for each in records) == list(range(20))
        by_partition: dict[int, list[int]] = {}
        for each in records:
            by_partition.setdefault(each.partition, []).append(int(each.value))
            assert each.key == b"k%d" % (int(each.value) % 5)
            assert each.headers == (("parity", b"odd" if int(each.value) % 2 else b"even"),)
        assert all(numbers == sorted(numbers) for numbers in by_partition.values())
        assert sorted(connector.made[-1].reported) == list(range(20))
        assert set(stage.heard.topics) == {(stage.topic, stage.task)}
        (stored, *_) = await read_all(us.bootstrap, stage.offset_topic_name)
        assert stored.key == f'["{stage.name}",{{"counter":"a"}}]'.encode()
        assert json.loads(stored.value).keys() == {"n"}


async def test_a_task_goes_on_where_its_predecessor_stopped(us: KafkaCluster) -> None:
    async with staged(us, counting()) as stage:
        for to in (7, 15):
            stage.start(to)
            await stage.until_polled(to - (await stage.stored() or -1) - 1)
            await stage.stop()
            assert await stage.numbers() == list(range(to))
            assert await stage.stored() == to - 1
        assert stage.heard.of(stage.task) == [State.RUNNING, State.UNASSIGNED] * 2


async def test_what_a_task_may_write(us: KafkaCluster) -> None:
    at_ms = int(time.time() * 1000) - 60_000  # an older one would fall to retention

    class Odd(Counting):
        async def poll(self) -> Sequence[SourceRecord] | None:
            if self._next:
                await asyncio.sleep(0.02)
                return None
            self._next = 1
            return [
                SourceRecord(
                    {}, {}, self._topic, None, headers=(Header("none", None),), partition=1, timestamp_ms=at_ms
                ),
                SourceRecord({}, {}, self._topic, None, partition=1),
                SourceRecord({}, {}, self._topic, "x" * 100_000, partition=1),
                SourceRecord({}, {}, self._topic, "there is no such partition", partition=7),
            ]

    async with staged(us, counting(Odd)) as stage:
        stage.start(1)
        await stage.until_state(State.FAILED)
        assert "has no partition 7, it has 2" in (stage.heard.traces[stage.task] or "")
        await eventually(lambda: stage.count(stage.topic), 3)
        nothing, again, large = await read_all(us.bootstrap, stage.topic)
        assert (nothing.key, nothing.value) == (None, None)
        assert (nothing.timestamp, nothing.headers) == (at_ms, (("none", None),))
        assert (again.value, again.partition, len(large.value)) == (None, 1, 100_000)


async def test_a_record_that_is_too_large_fails_the_task_or_is_left_out(us: KafkaCluster) -> None:
    class Large(Counting):
        def _record(self, number: int) -> SourceRecord:
            return SourceRecord({"counter": "a"}, {"n": number}, self._topic, "9" * (3_000_000 if number == 1 else 5))

    for tolerance in ("none", "all"):
        # Java's producer would refuse it; this one lets it pass, so that the broker does.
        own = {"errors.tolerance": tolerance, "producer.override.max.request.size": "10000000"}
        async with staged(us, counting(Large), OFTEN, own) as stage:
            stage.start(3)
            if tolerance == "none":
                await stage.until_state(State.FAILED)
                assert "too large" in (stage.heard.traces[stage.task] or "")
                assert await stage.stored() in (None, 0)
            else:
                await eventually(stage.stored, 2)
                assert await stage.numbers() == [99999, 99999]
                assert stage.worker.tasks[stage.task].counters.skipped == 1


async def test_topics_are_made_as_their_group_says(us: KafkaCluster) -> None:
    groups = {
        "topic.creation.groups": "mine",
        "topic.creation.default.partitions": "1",
        "topic.creation.default.replication.factor": "1",
        "topic.creation.mine.include": "w.*-records",
        "topic.creation.mine.partitions": "3",
        "topic.creation.mine.max.message.bytes": "7777",
    }
    async with staged(us, counting(), props=groups, partitions=0) as stage:
        stage.start(3)
        await stage.until_polled(3)
        await stage.stop()
        assert await stage.numbers() == [0, 1, 2]
        described = await stage.admin.describe_topics([stage.topic])
        assert len(described[stage.topic].partitions) == 3
        configs = await stage.admin.describe_topic_configs([stage.topic])
        assert configs[stage.topic]["max.message.bytes"] == "7777"


async def test_offsets_in_a_topic_of_their_own_and_in_the_workers(us: KafkaCluster) -> None:
    own = f"own-{uuid4().hex[:8]}"
    async with staged(us, counting(), props={"offsets.storage.topic": own}) as stage:
        stage.start(4)
        await stage.until_polled(4)
        await stage.stop()
        (last,) = {record.key: record.value for record in await read_all(us.bootstrap, own)}.values()
        assert (last, await stage.stored()) == (b'{"n":3}', 3)
        async with stage.worker.stores.opened(stage.name, {**stage.props}, True) as offsets:
            assert await offsets.all() == [({"counter": "a"}, {"n": 3})]
            await offsets.store({f'["{stage.name}",{{"counter":"a"}}]'.encode(): None})
            assert await offsets.all() == []
        assert await stage.stored() is None
        stage.start(5)
        await stage.until_polled(5)
        await stage.stop()
        assert await stage.numbers() == sorted([*range(4), *range(5)])


async def test_a_transaction_holds_records_and_offsets(us: KafkaCluster) -> None:
    async with staged(us, counting(), ONCE, {"transaction.boundary": "interval"}) as stage:
        stage.start(7)
        await stage.until_polled(7)
        await eventually(stage.written, list(range(7)))
        assert await stage.numbers() == []
        stage.worker.set_target(stage.name, PAUSED)
        await stage.until_state(State.PAUSED)
        await eventually(stage.stored, 6)
        await eventually(stage.numbers, list(range(7)))
        stage.worker.set_target(stage.name, STARTED)
        await stage.until_state(State.RUNNING)
        await stage.stop()
        stage.start(9)
        await stage.until_polled(2)
        await stage.stop()
        await eventually(stage.numbers, list(range(9)))
        assert await stage.stored() == 8


async def test_what_a_killed_task_left_open_is_written_anew_and_once(us: KafkaCluster) -> None:
    async with staged(us, counting(), ONCE, {"transaction.boundary": "interval"}) as stage:
        stage.start(7)
        await stage.until_polled(7)
        await eventually(stage.written, list(range(7)))
        stage.worker.tasks[stage.task].abandon()
        stage.another_worker()
        checks: list[str] = []

        async def check() -> None:
            checks.append("checked")

        stage.start(8, before=check, after=check)
        await stage.until_polled(8)
        await stage.stop()
        await eventually(stage.numbers, list(range(8)))
        assert await stage.stored() == 7
        assert sorted(await stage.written()) == sorted([*range(7), *range(8)])
        assert checks == ["checked", "checked"]


async def test_without_transactions_nothing_is_lost_when_a_task_is_killed(us: KafkaCluster) -> None:
    async with staged(us, counting(), {"offset.flush.interval.ms": "20"}) as stage:
        for _ in range(4):
            stage.start(300)
            await stage.until_polled(random.randrange(1, 60))
            stage.worker.tasks[stage.task].abandon()
            stage.another_worker()
        stage.start(300)
        await eventually(stage.stored, 299)
        await stage.stop()
        assert set(await stage.numbers()) == set(range(300))


@pytest.mark.parametrize("boundary", ["poll", "interval"])
@pytest.mark.parametrize("end", ["killed", "a zombie"])
async def test_however_often_a_task_is_taken_over_each_record_is_there_once(
    us: KafkaCluster, boundary: str, end: str
) -> None:
    class Slow(Counting):
        """Has only so much to give by now, or a zombie leaves nothing to its successor that takes long to start."""

        by_now: ClassVar[int] = 0

        async def poll(self) -> Sequence[SourceRecord] | None:
            await asyncio.sleep(0.003)
            self._to = self.by_now
            return await super().poll()

    own = {"transaction.boundary": boundary, "transaction.boundary.interval.ms": "30"}
    async with staged(us, counting(Slow), ONCE, own) as stage:
        rounds = 5
        for number in range(rounds):
            stage.start(100)
            await stage.until_running()
            Slow.by_now += 20
            await stage.until_polled(random.randrange(1, 20))
            if number == rounds - 1:
                break
            if end == "killed":
                stage.worker.tasks[stage.task].abandon()
            stage.another_worker()
        await eventually(stage.stored, 99)
        await stage.stop()
        await eventually(stage.numbers, list(range(100)))


async def test_a_fenced_task_fails_and_commits_nothing(us: KafkaCluster) -> None:
    async with staged(us, counting(), ONCE, {"transaction.boundary": "interval"}) as stage:
        stage.start(7)
        await stage.until_polled(7)
        await eventually(stage.written, list(range(7)))
        await init_producer_id(stage.cluster, f"{stage.name}-{stage.name}-0")
        stage.worker.set_target(stage.name, PAUSED)
        await stage.until_state(State.FAILED)
        assert "before its producer transaction expired" in (stage.heard.traces[stage.task] or "")
        assert (await stage.numbers(), await stage.stored()) == ([], None)


async def test_the_connector_aborts(us: KafkaCluster) -> None:
    class Picky(Counting):
        """Wants nothing of the second batch, and each other batch by itself."""

        async def poll(self) -> Sequence[SourceRecord] | None:
            records = await super().poll()
            transactions = self.context.transaction_context
            assert transactions is not None
            if records and int(records[0].value) == 3:
                transactions.abort_transaction(records[-1])
            elif records:
                transactions.commit_transaction()
            return records

    async with staged(us, counting(Picky), ONCE, {"transaction.boundary": "connector"}) as stage:
        stage.start(9)
        await stage.until_polled(9)
        await eventually(stage.stored, 8)
        await stage.stop()
        await eventually(stage.numbers, [0, 1, 2, 6, 7, 8])


async def test_offsets_are_altered_in_a_transaction_that_shuts_out_task_0(us: KafkaCluster) -> None:
    async with staged(us, counting(), ONCE) as stage:
        key = f'["{stage.name}",{{"counter":"a"}}]'.encode()
        async with stage.worker.stores.opened(stage.name, stage.props, True) as offsets:
            await offsets.store({key: b'{"n":4}'})
            assert await offsets.all() == [({"counter": "a"}, {"n": 4})]
        async with stage.worker.stores.opened(stage.name, stage.props, True) as offsets:
            await init_producer_id(stage.cluster, f"{stage.name}-{stage.name}-0")
            with pytest.raises(ProducerFenced):
                await offsets.store({key: b'{"n":0}'})
        stage.start(7)
        await stage.until_polled(2)
        await stage.stop()
        await eventually(stage.numbers, [5, 6])
        async with stage.worker.stores.opened(stage.name, stage.props, False) as offsets:
            assert await offsets.all() == [({"counter": "a"}, {"n": 6})]


@pytest.mark.slow
async def test_records_outlive_many_time_outs_of_requests() -> None:
    class Gated(Counting):
        """Has three records, and more once the gate is open."""

        gate: ClassVar[asyncio.Event]

        async def poll(self) -> Sequence[SourceRecord] | None:
            if self._next >= 3:
                await self.gate.wait()
            return await super().poll()

    impatient = {"producer.override.request.timeout.ms": "400", "producer.override.retry.backoff.ms": "50"}
    with KafkaCluster.start("alone") as alone:
        for changes in (OFTEN, ONCE):
            Gated.gate = asyncio.Event()
            async with staged(alone, counting(Gated), changes, impatient) as stage:
                stage.start(9)
                await eventually(stage.stored, 2)
                alone.freeze(0)
                try:
                    Gated.gate.set()
                    await asyncio.sleep(1.6)  # four time-outs of a request
                finally:
                    alone.thaw(0)
                await eventually(stage.stored, 8)

                async def different() -> set[int]:
                    return set(await stage.numbers())

                await eventually(different, set(range(9)))
                assert stage.heard.of(stage.task) == [State.RUNNING]
