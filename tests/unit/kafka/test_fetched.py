"""What aiokafka's consumers make of headers whose keys are no UTF-8."""

from __future__ import annotations

from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import READ_COMMITTED, PartitionRecords

from connect.kafka.fetched import FetchedRecords
from connect.wire import records
from connect.wire.plain_records import Headers
from tests.kit.logs import control_batch, source_batch

LATIN = "\udce9"


def consumed(data: bytes, position: int = 0) -> list:
    """What a consumer hands out of a fetch."""
    fetched = FetchedRecords(data)
    assert fetched.has_next() and fetched.size_in_bytes() == len(data)
    return list(PartitionRecords(TopicPartition("t", 0), fetched, [], position, None, None, True, READ_COMMITTED))


def test_a_consumer_goes_on_behind_such_a_key() -> None:
    pairs: list[Headers] = [[("n", b"0")], [(LATIN, b"1"), ("n", None)], []]
    made = [records.Record(offset, 5, b"k", b"v", headers) for offset, headers in enumerate(pairs)]
    odd = bytes(records.build(made, 4, -1, -1, -1))
    found = consumed(odd + source_batch([3, 5]) + control_batch(6, 9, commit=True) + source_batch([7])[:-1])
    assert [one.offset for one in found] == [0, 1, 2, 3, 5]
    assert [list(one.headers) for one in found[:3]] == pairs
    assert {(one.key, one.value, one.timestamp, one.timestamp_type) for one in found[:3]} == {(b"k", b"v", 5, 0)}
    assert [one.offset for one in consumed(odd, 1)] == [1, 2]
