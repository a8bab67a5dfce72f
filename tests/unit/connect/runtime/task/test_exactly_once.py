"""Exactly-once: what stands between begin and commit, and what does not."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from connect.api.source import RecordMetadata, SourceRecord
from connect.core.errors import PermanentError, RetriableError
from connect.core.model import TaskId
from connect.kafka.threads import PluginThread
from connect.runtime.plugins.plugin_errors import SecretMask
from connect.runtime.task.connector_offsets import ConnectorOffsets
from connect.runtime.task.delivery_guarantees import ExactlyOnceDelivery
from connect.runtime.task.record_delivery import OutgoingRecord, ProducerFenced, SendFailed, TaskCallbacks
from connect.runtime.task.source_config import Boundaries, ConnectorBoundaries, Ending, IntervalBoundaries
from connect.runtime.task.task_control import ClaimChecks, Interrupted, TaskCounters
from tests.kit.virtual_time import in_virtual_time
from tests.kit.work import Heard, ObedientProducer, QuietTask, memory_topic, record

TASK = TaskId("c", 0)


class LagReports(QuietTask):
    """Writes what it hears into the producer's log."""

    def __init__(self, log: list[str]) -> None:
        self._log = log

    async def commit_record(self, record: SourceRecord, metadata: RecordMetadata | None) -> None:
        self._log.append(f"{'left out' if metadata is None else 'told'} {record.value}")

    async def commit(self) -> None:
        self._log.append("told commit")


class Bench:
    """A delivery on its own; records arrive at once unless the test says otherwise."""

    def __init__(self, boundaries: Boundaries | None = None) -> None:
        self.producer = ObedientProducer(acks_at_once=True)
        self.log = self.producer.log
        self.counters = TaskCounters()
        self.stopping = False
        topic, self.offset_log = memory_topic()
        self.delivery = ExactlyOnceDelivery(
            TASK,
            self.producer,
            ConnectorOffsets("c", topic),
            TaskCallbacks(TASK, LagReports(self.log), SecretMask(), PluginThread("task")),
            partial(Heard().topic_used, task=TASK),
            boundaries or Boundaries(),
            self.counters,
            ClaimChecks(
                before=lambda: self._checked("before"),
                after=lambda: self._checked("after"),
                is_stopping=lambda: self.stopping,
            ),
        )

    @property
    def unreported(self) -> list[str]:
        """What the producer did."""
        return [line for line in self.log if not line.startswith("told")]

    async def _checked(self, what: str) -> None:
        self.log.append(what)

    async def send(self, *records: SourceRecord) -> None:
        for one in records:
            await self.delivery.send(one, OutgoingRecord(one.topic, None, str(one.value).encode()))


def steps(text: str) -> list[str]:
    return text.split(" / ")


def entered(boundaries: Boundaries | None = None) -> Bench:
    bench = Bench(boundaries)
    bench.delivery.enter()
    return bench


@in_virtual_time
async def test_predecessors_are_fenced_before_the_id_is_claimed_and_ownership_is_checked_after() -> None:
    bench = Bench()
    await bench.delivery.start()
    assert bench.log == ["before", "start", "after"]
    late = Bench()
    late.stopping = True
    with pytest.raises(Interrupted):
        await late.delivery.start()
    assert late.log == ["before"]


@in_virtual_time
async def test_poll_puts_a_batch_and_its_offsets_into_one_transaction() -> None:
    bench = entered()
    await bench.send(record(1), record(2))
    await bench.delivery.dropped(record(3))
    await bench.delivery.batch_done()
    assert bench.log[:5] == steps('begin / send t v1 / send t v2 / send offsets {"n":2} / commit')
    assert bench.log[5:] == steps("told v1 / told v2 / left out v3 / told commit")
    assert bench.offset_log.writes == []  # that would be outside of the transaction
    assert (bench.counters.transaction_records.recorded, bench.counters.transaction_records.total) == (1, 2)


@in_virtual_time
async def test_without_records_there_is_no_transaction() -> None:
    bench = entered()
    await bench.delivery.batch_done()
    await bench.delivery.finish(failed=False)
    assert bench.log == ["told commit", "told commit"]


@in_virtual_time
async def test_nothing_is_committed_before_all_has_arrived() -> None:
    bench = entered()
    bench.producer.acks_at_once = False
    await bench.send(record(1))
    committing = asyncio.create_task(bench.delivery.batch_done())
    await asyncio.sleep(1)
    bench.producer.ack()
    await asyncio.sleep(1)
    assert "commit" not in bench.log
    bench.producer.ack()
    await committing
    assert bench.log[-3:] == ["commit", "told v1", "told commit"]


@pytest.mark.parametrize("which", [0, 1])
@in_virtual_time
async def test_a_transaction_in_which_anything_failed_is_never_committed(which: int) -> None:
    bench = entered()
    bench.producer.acks_at_once = False
    await bench.send(record(1))
    committing = asyncio.create_task(bench.delivery.batch_done())
    await asyncio.sleep(1)
    bench.producer.fail(PermanentError("too large"), which)
    bench.producer.ack()
    with pytest.raises(SendFailed, match="Failed to flush offsets and/or records for task c-0") as raised:
        await committing
    assert str(raised.value.__cause__) == "too large"
    await bench.delivery.finish(failed=True)
    assert "commit" not in bench.log
    assert bench.counters.commits_well.last == 0


@in_virtual_time
async def test_a_fenced_producer_is_worded_as_a_transaction_that_took_too_long() -> None:
    bench = entered()
    bench.producer.acks_at_once = False
    await bench.send(record(1))
    bench.producer.fail(ProducerFenced("epoch"))
    bench.producer.acks_at_once = True
    with pytest.raises(SendFailed, match="before its producer transaction expired"):
        await bench.delivery.batch_done()
    bench.producer.refusing.append(ProducerFenced("epoch"))
    with pytest.raises(SendFailed, match="before its producer transaction expired"):
        await bench.send(record(2))


@in_virtual_time
async def test_an_interval_spans_batches() -> None:
    bench = Bench(IntervalBoundaries(1000))
    await asyncio.sleep(5)
    bench.delivery.enter()
    for number in range(5):
        await asyncio.sleep(0.3)
        await bench.send(record(number))
        await bench.delivery.batch_done()
    assert bench.log.count("commit") == 1
    assert bench.log.index("commit") == 6  # begin, four records, their offset
    await bench.delivery.finish(failed=False)
    assert bench.log.count("commit") == 2


@in_virtual_time
async def test_the_connector_commits_on_a_record() -> None:
    bench = entered(said := ConnectorBoundaries())
    first, second, third = record(1), record(2), record(3)
    said.commit_transaction(second)
    await bench.send(first, second, third)
    await bench.delivery.batch_done()
    await bench.delivery.finish(failed=False)
    assert bench.unreported == steps(
        'begin / send t v1 / send t v2 / send offsets {"n":2} / commit / begin / send t v3'
    )


@pytest.mark.parametrize("of_record", [True, False])
@in_virtual_time
async def test_an_abort_drops_the_records_and_stores_their_offsets(of_record: bool) -> None:
    bench = entered(said := ConnectorBoundaries())
    one, two = record(1), record(2)
    said.abort_transaction(two if of_record else None)
    await bench.send(one, two)
    await bench.delivery.batch_done()
    assert bench.unreported == steps('begin / send t v1 / send t v2 / abort / begin / send offsets {"n":2} / commit')


@in_virtual_time
async def test_what_could_not_be_sent_is_nothing_to_a_transaction_that_is_aborted() -> None:
    bench = entered(said := ConnectorBoundaries())
    bench.producer.acks_at_once = False
    said.abort_transaction(None)
    await bench.send(record(1), record(2))
    ending = asyncio.create_task(bench.delivery.batch_done())
    await asyncio.sleep(1)
    assert bench.log[-1] == "abort", "what fails late is waited for"
    bench.producer.acks_at_once = True
    bench.producer.fail(PermanentError("too large"))
    bench.producer.ack()
    await ending
    assert bench.unreported[-3:] == steps('begin / send offsets {"n":2} / commit')


@in_virtual_time
async def test_what_is_not_taken_may_be_sent_again() -> None:
    bench = entered()
    bench.producer.refusing.append(RetriableError("no metadata"))
    with pytest.raises(RetriableError):
        await bench.send(record(1))
    await bench.send(record(1))
    bench.producer.refusing.append(RetriableError("no metadata"))
    await bench.delivery.batch_done()
    assert bench.log[:4] == ["begin", "send t v1", 'send offsets {"n":1}', "commit"]


@in_virtual_time
async def test_a_pause_commits_and_an_abort_of_nothing_is_passed_over() -> None:
    bench = entered(IntervalBoundaries(60_000))
    await bench.send(record(1))
    await bench.delivery.batch_done()
    assert "commit" not in bench.log
    await bench.delivery.pause()
    assert "commit" in bench.log
    nothing = entered(said := ConnectorBoundaries())
    said.abort_transaction()
    await nothing.delivery.batch_done()
    assert nothing.log == ["told commit"]


@in_virtual_time
async def test_a_task_may_not_write_to_its_own_offsets_topic() -> None:
    bench = entered()
    with pytest.raises(PermanentError, match="may not produce to their own offsets topics"):
        await bench.send(record(1, topic="offsets"))
    assert bench.log == []


@in_virtual_time
async def test_a_task_that_failed_commits_nothing_more() -> None:
    bench = entered()
    await bench.send(record(1))
    await bench.delivery.finish(failed=True)
    await bench.delivery.close(7)
    assert bench.log == ["begin", "send t v1"]
    assert bench.producer.closed_with_s == 7


def test_the_connector_says_it_for_a_record_and_not_for_one_that_is_equal() -> None:
    said = ConnectorBoundaries()
    first, second = record(1), record(1)
    assert first == second
    said.abort_transaction(second)
    assert said.after_record(first) is Ending.NONE
    assert said.after_record(second) is Ending.ABORT
    assert said.after_record(second) is Ending.NONE


@pytest.mark.parametrize("of_record", [True, False])
def test_both_at_once_is_an_error_of_the_task(of_record: bool) -> None:
    said = ConnectorBoundaries()
    one = record(1)
    said.commit_transaction(one if of_record else None)
    said.abort_transaction(one if of_record else None)
    with pytest.raises(PermanentError, match="commit and to abort"):
        said.after_record(one) if of_record else said.after_batch(0)
