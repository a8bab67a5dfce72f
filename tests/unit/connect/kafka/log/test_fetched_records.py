"""What aiokafka's consumers make of headers whose keys are no UTF-8."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer import fetcher
from aiokafka.consumer.fetcher import READ_COMMITTED, PartitionRecords
from aiokafka.structs import ConsumerRecord

from connect.kafka.log import compacted_topic
from connect.kafka.log.compacted_topic import FetchedRecords, NamedRecords, RecordsAsRead, give_records_as_read
from connect.wire import records
from connect.wire.records import Headers
from tests.kit.logs import batch_of, bomb_batch, bomb_message, control_batch, source_batch

LATIN = "\udce9"


def consumed(data: bytes, position: int = 0, made_by: Any = PartitionRecords) -> list:
    """What a consumer hands out of a fetch."""
    fetched = FetchedRecords(data)
    assert fetched.has_next() and fetched.size_in_bytes() == len(data)
    return list(made_by(TopicPartition("t", 0), fetched, [], position, None, None, True, READ_COMMITTED))


def test_a_consumer_goes_on_behind_such_a_key() -> None:
    pairs: list[Headers] = [[("n", b"0")], [(LATIN, b"1"), ("n", None)], []]
    made = [records.Record(offset, 5, b"k", b"v", headers) for offset, headers in enumerate(pairs)]
    odd = bytes(records.build(made, 4, -1, -1, -1))
    found = consumed(odd + source_batch([3, 5]) + control_batch(6, 9, commit=True) + source_batch([7])[:-1])
    assert [one.offset for one in found] == [0, 1, 2, 3, 5]
    assert [list(one.headers) for one in found[:3]] == pairs
    assert {(one.key, one.value, one.timestamp, one.timestamp_type) for one in found[:3]} == {(b"k", b"v", 5, 0)}
    assert [one.offset for one in consumed(odd, 1)] == [1, 2]
    as_read = consumed(odd, made_by=RecordsAsRead)
    assert [(one.offset, one.key, one.value, one.timestamp, list(one.headers)) for one in as_read] == [
        (at, b"k", b"v", 5, headers) for at, headers in enumerate(pairs)
    ]


@pytest.mark.parametrize(
    "hostile",
    [bomb_batch(3), bomb_message(3), batch_of(3, b"\xff" * 90), batch_of(3, b"")],
    ids=["bomb", "bomb of magic 1", "no records", "nothing"],
)
def test_a_batch_that_cannot_be_read_is_named_once_and_skipped(
    hostile: bytes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compacted_topic, "_named", {})
    is_old = hostile[16] < 2  # aiokafka reads an answer by the magic of its first batch
    data = hostile if is_old else source_batch([2]) + hostile + source_batch([4])
    for _ in range(2):
        assert [one.offset for one in consumed(data, made_by=NamedRecords)] == ([] if is_old else [2, 4])
    [said] = [record.getMessage() for record in caplog.records]
    assert said.startswith("topic t, partition 0, offset 3 is skipped: its batch cannot be read: ")


def test_consumers_can_be_had_without_their_own_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher, "PartitionRecords", PartitionRecords)  # as it is again afterwards
    give_records_as_read()
    [made] = consumed(source_batch([3]), made_by=fetcher.PartitionRecords)
    assert not isinstance(made, ConsumerRecord)
    assert (made.offset, made.key, list(made.headers)) == (3, b"3", [("n", b"3")])
