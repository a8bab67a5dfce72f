"""The two halves of a job whose records are transformed, with a few lines in the place of Spark's JVM between them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

from connect.core.errors import RetriableError
from connect.wire.batch import NO_TIMESTAMP
from connect.wire.records import Record
from connectors.control_link.protocol import PartitionPlan
from connectors.dataplane.smt_stage import outcome_of
from connectors.dataplane.sql_stage import RecordStage, StageBroken, first_half, second_half
from connectors.formats.types import Ways
from connectors.transforms.smt_chain import Outcome, Untransformable
from tests.kit.logs import plan

PLAN = plan()
Half = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def records(*values: bytes | None) -> list[Record]:
    return [Record(offset, 1000 + offset, b"k", value, [("h", None)]) for offset, value in enumerate(values)]


def evaluated(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """SELECT upper(value) AS value FROM records WHERE value <> 'drop', which raises at 'bad'."""
    for batch in batches:
        values = batch.column("value").to_pylist()
        unfit = [value == b"bad" for value in values]
        keep = [None if bad else value != b"drop" for bad, value in zip(unfit, values, strict=True)]
        raised = pa.array([value and value.upper() for value in values], pa.binary())
        own = {name: batch.column(name) for name in ("__row", "__note")}
        yield pa.RecordBatch.from_pydict(own | {"__unfit": pa.array(unfit), "__keep": pa.array(keep), "value": raised})


def through(*calls: list[Record], asked: PartitionPlan = PLAN, spark: Half = evaluated) -> list[Outcome]:
    """What becomes of these, given one call after the other without waiting."""
    found: list[Outcome] = []

    async def run(stage: RecordStage) -> None:
        await stage.start(lambda error: pytest.fail(str(error)))
        found.extend(await asyncio.gather(*(outcome_of(stage, asked, call) for call in calls)))
        await stage.stop()

    second_half(spark(first_half(2, run)))
    return found


def test_each_record_is_matched_with_its_row() -> None:
    one, two = records(b"a", b"drop", b"bad", None, b"e"), records(b"f")
    first, none, second = through(one, [], two)
    assert first[0] == one[0]._replace(value=b"A")
    assert first[1] is None
    assert isinstance(first[2], Untransformable)
    assert first[3:] == [one[3], one[4]._replace(value=b"E")]
    assert none == []
    assert second == [two[0]._replace(value=b"F")]


def test_a_query_sends_records_to_us_to_others_or_nowhere() -> None:
    def sent(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in evaluated(batches):
            topics = [value and value.lower() for value in batch.column("value").to_pylist()]
            yield batch.append_column("topic", pa.array(topics, pa.binary()))

    ways = replace(PLAN, ways=Ways("us.errors", asked=("errors", "orders")))
    one = records(b"errors", b"orders", None, b"audit", b"drop", b"bad")
    (found,) = through(one, asked=ways, spark=sent)
    assert found[:3] == [one[0]._replace(value=b"ERRORS"), None, None]
    neither = "transform.sql sends it to audit, which neither transform.topic nor transform.other.topics stands for"
    assert isinstance(found[3], Untransformable) and found[3] == Untransformable(neither, True)
    assert found[4] is None and isinstance(found[5], Untransformable) and not found[5].stops
    long, no_text = through(records(b"a" * 250, b"\xff"), asked=ways, spark=sent)[0]
    reason = found[3].reason.replace("to audit", "to an invalid topic name")
    assert long == no_text == Untransformable(reason, True)
    (usual,) = through(one[:3], spark=sent)
    assert isinstance(usual[0], Untransformable) and usual[1:] == [one[1]._replace(value=b"ORDERS"), one[2]]


def test_headers_whose_keys_are_no_text_are_of_one_record_alone() -> None:
    def keyed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in evaluated(batches):
            values = batch.column("value").to_pylist()
            headers = [[None if value == b"NULL" else {"key": value, "value": b"v"}] for value in values]
            type_ = pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())]))
            yield batch.append_column("headers", pa.array(headers, type_))

    one = records(b"a", b"\xff", None, b"null", b"b")
    (found,) = through(one, spark=keyed)
    assert found[0] == one[0]._replace(value=b"A", headers=[("A", b"v")])
    unfit = Untransformable("transform.sql gives it a header whose key is missing or not UTF-8")
    assert found[1:4] == [unfit] * 3
    assert isinstance(found[4], Record)


def test_keys_of_headers_that_are_no_text_stay_as_they_are() -> None:
    def turned(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """SELECT upper(value) AS value, reverse(headers) AS headers FROM records, keys cast to bytes."""
        type_ = pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())]))
        for batch in batches:
            column = batch.column("headers")
            flat = column.flatten()
            keys = flat.field("key").view(pa.binary()).to_pylist()
            pairs = zip(keys, flat.field("value").to_pylist(), strict=True)
            lengths = [length or 0 for length in column.value_lengths().to_pylist()]
            rows = [[dict(zip(("key", "value"), next(pairs), strict=True)) for _ in range(n)][::-1] for n in lengths]
            for one in evaluated([batch]):
                yield one.append_column("headers", pa.array(rows, type_))

    one = [Record(0, 1, b"k", b"V", [("\udce9", b"1"), ("n", None)]), Record(1, 1, b"k", b"V", [])]
    assert through(one) == [one]
    assert through(one, spark=turned) == [[one[0]._replace(headers=one[0].headers[::-1]), one[1]]]


def test_times_that_spark_does_not_know_are_kept() -> None:
    times = NO_TIMESTAMP, 2**62
    odd = [record._replace(timestamp_ms=time_ms) for record, time_ms in zip(records(b"A", b"B"), times, strict=True)]
    assert through(odd) == [odd]


def test_no_record_gets_a_time_that_no_producer_writes() -> None:
    def timed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in evaluated(batches):
            times = [None if value == b"LEFT" else int(value or 0) for value in batch.column("value").to_pylist()]
            yield batch.append_column("timestamp", pa.array(times, pa.int64()))

    before = [record._replace(timestamp_ms=NO_TIMESTAMP) for record in records(b"-2", b"left", b"-1", b"0", b"5")]
    before.append(Record(5, -7, b"k", b"left", []))
    (found,) = through(before, spark=timed)
    assert found[0] == Untransformable("transform.sql gives it a time before 1970, which no record can have")
    times = [record.timestamp_ms for record in found if isinstance(record, Record)]
    assert times == [NO_TIMESTAMP, NO_TIMESTAMP, 0, 5, -7]


def test_a_job_that_spark_ends_is_told() -> None:
    reported: list[BaseException] = []

    async def run(stage: RecordStage) -> None:
        ended = asyncio.Event()

        def broken(error: BaseException) -> None:
            reported.append(error)
            ended.set()

        await stage.start(broken)
        stage.submit(PLAN, records(b"a"), lambda outcome: None)
        await ended.wait()
        await stage.stop()
        raise RetriableError("the slice is over")

    def killed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in evaluated(batches):
            if batch.column("value").to_pylist()[0] == b"A":
                raise OSError("the executor is gone")
            yield batch

    first = first_half(2, run)
    with pytest.raises(OSError, match="executor"):
        second_half(killed(first))
    with pytest.raises(RetriableError, match="the slice is over"):
        list(first)
    assert isinstance(reported[0], StageBroken)
