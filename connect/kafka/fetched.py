"""What aiokafka's consumers are given of a fetch, and what they give. They raise at headers whose keys are no UTF-8,
and open what is compressed without a bound.

Here such a key comes out as :mod:`connect.wire.header_keys` has it, and more than a batch may hold raises
:class:`connect.wire.opening.TooLarge`. All else is aiokafka's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from aiokafka import TopicPartition
from aiokafka.consumer import fetcher
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.memory_records import MemoryRecords

from connect.wire import batch as wire
from connect.wire import plain_records, records
from connect.wire.old_lz4 import messages_inside
from connect.wire.opening import opened_batch
from connect.wire.plain_records import Headers


class FetchedRecords:
    """In the place of aiokafka's ``MemoryRecords``."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._records = MemoryRecords(data)
        self._extents = wire.extents(data)

    def has_next(self) -> bool:
        return bool(self._records.has_next())

    def size_in_bytes(self) -> int:
        return int(self._records.size_in_bytes())

    def next_batch(self) -> Any:
        batch = self._records.next_batch()
        start, size, magic = next(self._extents)
        data = bytes(self._data[start : start + size])
        if magic >= 2:
            return _Batch(batch, data)
        messages_inside(data, magic)  # what is more than a message may hold does not come further
        return batch


class _Batch:
    def __init__(self, batch: Any, data: bytes) -> None:
        self._batch = batch
        self._data = data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __next__(self) -> Any:
        return next(self._batch)

    def __iter__(self) -> Iterator[Any]:
        given = 0
        try:
            for record in DefaultRecordBatch(opened_batch(self._data)):
                yield record
                given += 1
        except Exception as error:
            if not records.is_of_a_key(error):
                raise
            time_type = self._batch.timestamp_type
            for offset, time_ms, key, value, headers in islice(plain_records.read(self._data), given, None):
                yield _Fetched(offset, time_ms, time_type, key, value, headers)


class _Fetched(NamedTuple):
    """A record as aiokafka's consumer takes it."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    checksum: None = None


class RecordsAsRead(fetcher.PartitionRecords):  # type: ignore[misc]  # no marker for its types
    """In the place of aiokafka's ``PartitionRecords``."""

    def _consumer_record(self, _: TopicPartition, record: Any) -> Any:
        return record


def teach_consumers() -> None:
    """From now on every consumer of this process reads such records."""
    fetcher.MemoryRecords = FetchedRecords


def give_records_as_read() -> None:
    """From now on every consumer of this process gives what aiokafka reads: key, value, headers, offset and timestamp.
    To make a ConsumerRecord of them takes longer than to read them."""
    fetcher.PartitionRecords = RecordsAsRead
