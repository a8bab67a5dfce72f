"""At-least-once: offsets follow acknowledgements, in order, and errors are not lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.api.source import RecordMetadata, SourceRecord
from connect.core.errors import PermanentError, RetriableError
from connect.core.model import TaskId
from connect.kafka.threads import PluginThread
from connect.runtime.plugins.plugin_errors import SecretMask
from connect.runtime.task.connector_offsets import ConnectorOffsets
from connect.runtime.task.delivery_guarantees import AtLeastOnceDelivery, Submitted, SubmittedRecords
from connect.runtime.task.record_conversion import ErrorHandler, ErrorSettings
from connect.runtime.task.record_delivery import BatchRefused, OutgoingRecord, SendFailed, TaskCallbacks
from connect.runtime.task.task_control import TaskCounters
from tests.kit.virtual_time import in_virtual_time
from tests.kit.work import Heard, ObedientProducer, QuietTask, memory_topic, record

TASK = TaskId("c", 0)


class Quiet(QuietTask):
    """Hears only of commits."""

    def __init__(self) -> None:
        self.commits = 0

    async def commit(self) -> None:
        self.commits += 1


class Curious(Quiet):
    """Hears of every record, and takes its time."""

    def __init__(self) -> None:
        super().__init__()
        self.reported: list[tuple[SourceRecord, RecordMetadata | None]] = []

    async def commit_record(self, record: SourceRecord, metadata: RecordMetadata | None) -> None:
        await asyncio.sleep(0.01)
        self.reported.append((record, metadata))


class Bench:
    """A delivery on its own; flushes every second and gives up after half of one."""

    def __init__(self, task: Quiet | None = None, errors: ErrorSettings | None = None) -> None:
        self.task = task or Quiet()
        self.producer = ObedientProducer()
        self.topic, self.log = memory_topic()
        self.counters = TaskCounters()
        self.heard = Heard()
        handler = ErrorHandler(TASK, errors or ErrorSettings(), self.counters, SecretMask(), asyncio.Event())
        self.delivery = AtLeastOnceDelivery(
            TASK,
            self.producer,
            ConnectorOffsets("c", self.topic),
            TaskCallbacks(TASK, self.task, SecretMask(), PluginThread("task")),
            partial(self.heard.topic_used, task=TASK),
            handler,
            self.counters,
            flush_interval_ms=1000,
            flush_timeout_ms=500,
        )

    async def send(self, *records: SourceRecord) -> None:
        for one in records:
            await self.delivery.send(one, OutgoingRecord(one.topic, None, str(one.value).encode()))

    def stored(self) -> dict[int, int]:
        """The last stored number of each source partition."""
        found = {}
        for batch in self.log.writes:
            for written in batch:
                assert written.value is not None
                found[json.loads(written.key)[1]["p"]] = json.loads(written.value)["n"]
        return found


@asynccontextmanager
async def entered(task: Quiet | None = None, **errors: bool) -> AsyncIterator[Bench]:
    bench = Bench(task, ErrorSettings(**errors))
    bench.delivery.enter()
    yield bench
    await bench.delivery.close(0)


@in_virtual_time
async def test_offsets_are_stored_up_to_the_first_record_that_is_missing() -> None:
    bench = Bench()
    await bench.delivery.start()
    bench.delivery.enter()
    assert bench.producer.log == []
    await bench.send(record(1), record(2), record(3), record(7, partition=1))
    assert bench.producer.log.count("start") == 1
    bench.producer.ack(1)
    bench.producer.ack(2)
    await asyncio.sleep(1.1)
    assert bench.stored() == {1: 7}
    bench.producer.ack()
    await asyncio.sleep(1)
    assert bench.stored() == {0: 2, 1: 7}
    bench.producer.ack()
    await bench.delivery.finish(failed=False)
    assert bench.stored() == {0: 3, 1: 7}
    assert bench.counters.written == 4
    assert set(bench.heard.topics) == {("t", TASK)}
    await bench.delivery.close(3)
    assert bench.producer.closed_with_s == 3


@in_virtual_time
async def test_the_end_does_not_wait_for_ever() -> None:
    async with entered() as bench:
        await bench.send(record(1))
        await bench.delivery.finish(failed=False)
        assert asyncio.get_running_loop().time() == pytest.approx(0.5)
        assert bench.stored() == {}


@in_virtual_time
async def test_the_task_hears_of_commits_also_where_nothing_was_stored() -> None:
    async with entered() as bench:
        bench.delivery.enter()
        await asyncio.sleep(3.5)
        assert bench.task.commits == 3
        assert bench.log.writes == []
        await bench.delivery.close(0)
        await asyncio.sleep(5)
        assert bench.task.commits == 3


@in_virtual_time
async def test_a_record_counts_once_the_task_has_heard_of_it() -> None:
    task = Curious()
    async with entered(task) as bench:
        first, second, third = record(1), record(2), record(3)
        await bench.send(first, second)
        bench.producer.ack(1)
        bench.producer.ack(0)
        await bench.delivery.dropped(third)
        await bench.delivery.finish(failed=False)
        assert [(one, metadata is None) for one, metadata in task.reported[:2]].count((third, True)) == 1
        assert {id(one) for one, _ in task.reported} == {id(first), id(second), id(third)}
        assert bench.stored() == {0: 2}


@in_virtual_time
async def test_a_send_that_fails_for_good_fails_the_next_send_and_poll() -> None:
    async with entered() as bench:
        await bench.send(record(1), record(2))
        bench.producer.fail(PermanentError("too large"))
        bench.producer.ack()
        with pytest.raises(SendFailed, match="from producer send callback") as raised:
            bench.delivery.before_poll()
        assert str(raised.value.__cause__) == "too large"
        with pytest.raises(SendFailed):
            await bench.send(record(3))
        began_s = asyncio.get_running_loop().time()
        await bench.delivery.finish(failed=True)
        # What has failed is not waited for, and stays in the way of what was sent after it.
        assert asyncio.get_running_loop().time() - began_s < 0.5
        assert bench.stored() == {}


@in_virtual_time
async def test_a_tolerated_failure_is_passed_over() -> None:
    task = Curious()
    async with entered(task, tolerates_all=True) as bench:
        await bench.send(record(1), record(2))
        bench.producer.fail(PermanentError("too large"))
        bench.producer.ack()
        await bench.delivery.finish(failed=False)
        assert bench.stored() == {0: 2}
        assert [metadata is None for _, metadata in task.reported] == [True, False]
        assert (bench.counters.skipped, bench.counters.written) == (1, 1)


@in_virtual_time
async def test_what_would_be_taken_alone_is_not_passed_over() -> None:
    async with entered(Curious(), tolerates_all=True) as bench:
        await bench.send(record(1))
        bench.producer.fail(BatchRefused("lower batch.size"))
        with pytest.raises(SendFailed):
            bench.delivery.before_poll()
        await bench.delivery.finish(failed=True)
        assert bench.stored() == {}


@in_virtual_time
async def test_what_the_producer_does_not_take_is_not_waited_for() -> None:
    async with entered() as bench:
        await bench.send(record(1))
        bench.producer.refusing.extend([RetriableError("no metadata"), PermanentError("never")])
        with pytest.raises(RetriableError):
            await bench.send(record(2))
        with pytest.raises(SendFailed, match="trying to send"):
            await bench.send(record(2))
        await bench.send(record(2))
        bench.producer.ack()
        bench.producer.ack()
        await bench.delivery.finish(failed=False)
        assert bench.stored() == {0: 2}


@pytest.mark.parametrize("slow", [True, False])
@in_virtual_time
async def test_a_flush_that_fails_is_made_up_for(slow: bool) -> None:
    async with entered() as bench:
        bench.log.refusing = RetriableError("away")
        bench.log.slow_s = 0.8 if slow else 0
        await bench.send(record(1), record(1, partition=1))
        bench.producer.ack()
        bench.producer.ack()
        await asyncio.sleep(2)
        assert bench.counters.commits_well.last == 0
        assert bench.task.commits == 0
        await bench.send(record(2))
        bench.producer.ack()
        bench.log.refusing, bench.log.slow_s = None, 0
        await asyncio.sleep(2)
        assert bench.stored() == {0: 2, 1: 1}
        assert bench.task.commits == 2


@in_virtual_time
async def test_records_under_way_are_bounded() -> None:
    async with entered() as bench:
        sending = asyncio.create_task(bench.send(*(record(number) for number in range(10_050))))
        await asyncio.sleep(0.01)
        assert len(bench.producer.under_way) == 10_000
        for _ in range(60):
            bench.producer.ack()
        await asyncio.sleep(0.01)
        assert sending.done()


@pytest.mark.parametrize("error", [asyncio.CancelledError(), SystemExit(1)], ids=repr)
@in_virtual_time
async def test_a_task_that_cannot_hear_of_a_record_does_not_hold_up_the_others(error: BaseException) -> None:
    class Broken(Curious):
        async def commit_record(self, record: SourceRecord, metadata: RecordMetadata | None) -> None:
            if not self.reported:
                self.reported.append((record, metadata))
                raise error
            await super().commit_record(record, metadata)

    task = Broken()
    async with entered(task) as bench:
        await bench.send(record(1), record(2))
        bench.producer.ack()
        bench.producer.ack()
        await bench.delivery.finish(failed=False)
        assert len(task.reported) == 2
        assert bench.stored() == {0: 2}


@in_virtual_time
async def test_a_callback_that_does_not_heed_being_cancelled_does_not_keep_the_producer() -> None:
    class Deaf(Curious):
        async def commit_record(self, record: SourceRecord, metadata: RecordMetadata | None) -> None:
            self.reported.append((record, metadata))
            for _ in range(3):
                try:
                    await asyncio.sleep(100)
                except asyncio.CancelledError:
                    continue

    task = Deaf()
    bench = Bench(task)
    bench.delivery.enter()
    await bench.send(record(1), record(2))
    bench.producer.ack()
    bench.producer.ack()
    await asyncio.sleep(0.1)
    closing = asyncio.create_task(bench.delivery.close(0))
    await asyncio.sleep(0.1)
    assert bench.producer.closed_with_s == 0
    await closing
    await bench.delivery.finish(failed=False)
    # Neither told of more, nor anything stored.
    assert len(task.reported) == 1
    assert bench.log.writes == []


# -- which offsets may be stored, against a model that looks at all records at once -----------------------------------

_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(0, 1)),
        st.tuples(st.just("ack"), st.integers(0, 30)),
        st.tuples(st.just("drop"), st.just(0)),
    ),
    min_size=5,
    max_size=60,
)


@given(_STEPS, st.integers(1, 3))
def test_an_offset_is_committable_once_it_and_all_before_it_are_acknowledged(
    steps: list[tuple[str, int]], taken_every: int
) -> None:
    records = SubmittedRecords()
    everything: list[Submitted] = []
    stored: dict[bytes, int] = {}
    for place, (what, number) in enumerate(steps):
        if what == "submit":
            everything.append(records.submit(b"%d" % number, {"n": len(everything)}))
        elif what == "ack" and everything:
            records.ack(everything[number % len(everything)])
        elif what == "drop" and everything and not everything[-1].acked:
            records.drop(everything.pop())
        if place % taken_every == 0:
            committable = records.committable()
            stored.update({key: int(str(offset["n"])) for key, offset in committable.items()})
            assert stored == _wanted(everything)
        assert records.unacked == sum(not each.acked for each in everything)


def _wanted(everything: list[Submitted]) -> dict[bytes, int]:
    wanted: dict[bytes, int] = {}
    blocked: set[bytes] = set()
    for number, one in enumerate(everything):
        if not one.acked:
            blocked.add(one.key)
        if one.key not in blocked:
            wanted[one.key] = number
    return wanted
