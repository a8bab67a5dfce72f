"""Offsets: which topic is asked, which is written first, and what a failed flush keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.api.convert import DataError
from connect.core.errors import PermanentError, RetriableError, SecurityError
from connect.kafka.log.producer import OutRecord
from connect.runtime.task import connector_offsets
from tests.kit.virtual_time import in_virtual_time
from tests.kit.work import MemoryLog, memory_topic

P0, P1 = {"p": 0}, {"p": 1}
K0, K1 = connector_offsets.encoded_key("c", P0), connector_offsets.encoded_key("c", P1)


class TwoTopics:
    """A connector with a topic of its own and the worker's."""

    def __init__(self) -> None:
        own, self.own = memory_topic("own")
        worker, self.worker = memory_topic("worker")
        self.offsets = connector_offsets.ConnectorOffsets("c", own, worker)


def written(log: MemoryLog) -> list[dict[bytes, bytes | None]]:
    return [{record.key: record.value for record in batch} for batch in log.writes]


@pytest.mark.parametrize("bad", [{1: "a"}, {"a": [1]}, {"a": {"b": 1}}, {"a": b"c"}, None, "text"])
def test_what_is_no_partition_is_refused(bad: Any) -> None:
    with pytest.raises(DataError):
        connector_offsets.encoded_key("c", bad)
    assert connector_offsets.encoded_offset(None) is None


@in_virtual_time
async def test_one_topic_is_read_to_its_end_before_an_answer() -> None:
    topic, log = memory_topic()
    offsets = connector_offsets.ConnectorOffsets("c", topic)
    assert await offsets.offset(P0) is None
    log.put(K0, b'{"n":1}')
    log.put(connector_offsets.encoded_key("other", P1), b'{"n":9}')
    assert await offsets.offsets([P0, P1]) == [{"n": 1}, None]
    assert await offsets.all() == [(P0, {"n": 1})]
    log.put(K0, None)
    assert await offsets.all() == []
    assert log.reads == 4
    assert offsets.primary.topic == "offsets"


@in_virtual_time
async def test_of_a_topic_made_anew_only_what_it_says_now_holds() -> None:
    topic, log = memory_topic()
    offsets = connector_offsets.ConnectorOffsets("c", topic)
    log.put(K0, b'{"n":1}')
    log.reset_log()
    log.put(connector_offsets.encoded_key("c", P1), b'{"n":2}')
    assert await offsets.all() == [(P1, {"n": 2})]
    assert await offsets.offset(P0) is None


@in_virtual_time
async def test_reading_waits_while_the_log_is_behind() -> None:
    topic, log = memory_topic()
    once = iter([RetriableError("a transaction is open")])

    async def read_to_end(timeout_s: float, *, committed_only: bool = False) -> None:
        for error in once:
            raise error

    log.read_to_end = read_to_end  # type: ignore[method-assign]
    assert await connector_offsets.ConnectorOffsets("c", topic).offset(P0) is None


@in_virtual_time
async def test_a_topic_of_its_own_wins_and_the_workers_fills_in() -> None:
    two = TwoTopics()
    two.worker.put(K0, b'{"n":1}')
    two.worker.put(K1, b'{"n":2}')
    two.own.put(K0, b'{"n":5}')
    assert await two.offsets.offsets([P0, P1]) == [{"n": 5}, {"n": 2}]
    assert sorted(await two.offsets.all(), key=str) == [(P0, {"n": 5}), (P1, {"n": 2})]


@in_virtual_time
async def test_offsets_go_to_the_own_topic_and_then_to_the_workers() -> None:
    two = TwoTopics()
    await two.offsets.store({K0: b"{}"})
    assert (written(two.own), written(two.worker)) == ([{K0: b"{}"}], [])
    two.offsets.stored({K0: b"{}"})
    await asyncio.sleep(1)
    assert written(two.worker) == [{K0: b"{}"}]
    await two.offsets.close()


@in_virtual_time
async def test_tombstones_go_to_the_workers_topic_first_and_must_get_there() -> None:
    two = TwoTopics()
    values = {K0: None, K1: b"{}"}
    two.worker.refusing = RetriableError("no")
    with pytest.raises(RetriableError):
        await two.offsets.store(values)
    assert written(two.own) == []
    two.worker.refusing = None
    await two.offsets.store(values)
    assert (written(two.worker), written(two.own)) == ([{K0: None}], [values])
    two.offsets.stored(values)
    await asyncio.sleep(1)
    assert written(two.worker)[1:] == [{K1: b"{}"}]


@in_virtual_time
async def test_what_the_workers_topic_refuses_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    two = TwoTopics()
    two.worker.refusing = RetriableError("away")
    two.offsets.stored({K0: b"{}"})
    await asyncio.sleep(1)
    two.worker.refusing = None
    two.offsets.stored({K1: b"{}"})
    await two.offsets.close(1)
    assert written(two.worker) == [{K1: b"{}"}]
    assert "could not be copied to the worker's topic worker: away" in caplog.text


@in_virtual_time
async def test_what_many_store_at_once_is_written_together() -> None:
    topic, log = memory_topic()
    log.slow_s = 1.0
    keys = [connector_offsets.encoded_key(f"c{number}", P0) for number in range(500)]
    impatient = asyncio.create_task(topic.write({K1: b"{}"}))
    waiting = [asyncio.create_task(topic.write({key: b"{}"})) for key in keys]
    await asyncio.sleep(0.5)
    impatient.cancel()
    await asyncio.gather(*waiting)
    assert asyncio.get_running_loop().time() < 2.5
    assert sorted(record.key for batch in log.writes for record in batch) == sorted([K1, *keys])
    assert len(log.writes) <= 2

    log.refusing = RetriableError("away")
    outcomes = await asyncio.gather(*(topic.write({key: b"{}"}) for key in keys[:3]), return_exceptions=True)
    assert [str(outcome) for outcome in outcomes] == ["away"] * 3
    log.refusing = None
    await topic.write({K0: None})

    late = [asyncio.create_task(topic.write({K0: b"{}"}))]
    await asyncio.sleep(0.3)
    late.append(asyncio.create_task(topic.write({K1: b"{}"})))
    await asyncio.sleep(0.3)
    await topic.stop()
    await asyncio.wait(late)
    assert [type(each.exception()) for each in late] == [RetriableError] * 2


def refusing(error: Exception, key: bytes) -> tuple[connector_offsets.OffsetTopic, list[int]]:
    """A topic that never takes a write with ``key`` in it, and how many records each attempt had."""
    attempts: list[int] = []

    async def write(records: Iterable[OutRecord]) -> None:
        wanted = list(records)
        attempts.append(len(wanted))
        await asyncio.sleep(0.1)
        if key in [record.key for record in wanted]:
            raise error

    return connector_offsets.OffsetTopic("offsets", cast(Any, MemoryLog), write), attempts


@in_virtual_time
async def test_one_offset_that_can_never_be_written_is_in_nobody_elses_way() -> None:
    topic, attempts = refusing(PermanentError("too large"), K1)
    keys = [K0, K1, *(connector_offsets.encoded_key(f"c{number}", P0) for number in range(200))]
    outcomes = await asyncio.gather(*(topic.write({key: b"{}"}) for key in keys), return_exceptions=True)
    assert [str(outcome) for outcome in outcomes if outcome is not None] == ["too large"]
    assert str(outcomes[1]) == "too large"
    assert len(attempts) < 20


@in_virtual_time
async def test_a_topic_that_nobody_may_write_is_asked_once() -> None:
    topic, attempts = refusing(SecurityError("no rights"), K1)
    outcomes = await asyncio.gather(*(topic.write({key: b"{}"}) for key in (K0, K1)), return_exceptions=True)
    assert [str(outcome) for outcome in outcomes] == ["no rights"] * 2
    assert attempts == [2]


@in_virtual_time
async def test_what_nobody_waits_for_any_more_is_not_written() -> None:
    topic, log = memory_topic()
    log.slow_s = 1.0
    first = asyncio.create_task(topic.write({K0: b"{}"}))
    await asyncio.sleep(0.1)
    late, patient = asyncio.create_task(topic.write({K1: b"1"})), asyncio.create_task(topic.write({K0: b"2"}))
    await asyncio.sleep(0.1)
    late.cancel()
    await asyncio.gather(first, patient)
    assert written(log) == [{K0: b"{}"}, {K0: b"2"}]
    alone = asyncio.create_task(topic.write({K1: b"3"}))
    again = asyncio.create_task(topic.write({K1: b"4"}))
    await asyncio.sleep(0)
    alone.cancel()
    again.cancel()
    await asyncio.sleep(5)
    assert written(log)[2:] == []


@in_virtual_time
async def test_what_nobody_waits_for_any_more_is_left_out_of_the_next_attempt() -> None:
    class Retrying(MemoryLog):
        """As the real one: tries again by itself."""

        async def write(self, records: Iterable[OutRecord]) -> None:
            while self.refusing is not None:
                assert list(records)
                await asyncio.sleep(1)
            await super().write(records)

    logs: list[Retrying] = []

    def opened(*callbacks: Any) -> Retrying:
        logs.append(Retrying(*callbacks))
        return logs[0]

    topic = connector_offsets.OffsetTopic("offsets", cast(Any, opened))
    logs[0].refusing = RetriableError("no leader")
    late, patient = asyncio.create_task(topic.write({K1: b"1"})), asyncio.create_task(topic.write({K0: b"2"}))
    await asyncio.sleep(2.5)
    late.cancel()
    logs[0].refusing = None
    await patient
    assert written(logs[0]) == [{K0: b"2"}]


def test_a_malformed_offset_is_refused_when_it_is_to_be_stored() -> None:
    pending = connector_offsets.PendingOffsets()
    bad: Any = {"a": [1]}
    pending.put(K0, bad)
    with pytest.raises(DataError, match="primitive types"):
        pending.begin_flush()


@given(
    st.lists(st.tuples(st.sampled_from(["put", "begin", "flushed", "cancel"]), st.integers(0, 3), st.integers(0, 9)))
)
def test_a_flush_that_fails_loses_nothing_and_brings_back_nothing_old(steps: list[tuple[str, int, int]]) -> None:
    pending = connector_offsets.PendingOffsets()
    newest: dict[bytes, int] = {}  # not stored yet
    flushing: dict[bytes, int] | None = None
    for what, key, value in steps:
        name = b"%d" % key
        if what == "put":
            pending.put(name, {"n": value})
            newest[name] = value
        elif what == "begin" and flushing is None:
            values = pending.begin_flush()
            assert values == {each: connector_offsets.encoded_offset({"n": number}) for each, number in newest.items()}
            flushing, newest = (newest, {}) if values else (None, newest)
        elif what == "flushed":
            pending.flushed()
            flushing = None
        elif what == "cancel":
            pending.cancel_flush()
            newest = {**(flushing or {}), **newest}
            flushing = None
