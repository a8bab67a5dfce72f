"""Records inside a batch, through aiokafka's record classes: for the few batches that must be opened."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatch

from connect.wire import batch as wire

Headers = list[tuple[str, bytes | None]]


class Record(NamedTuple):
    """One record with its offset and timestamp (ms) as a consumer of the log sees them."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def decode(batch: wire.Buffer, magic: int) -> Iterator[Record]:
    """The records of one batch of any magic, with absolute offsets.

    With LogAppendTime every record carries the batch's max timestamp, as consumers see it.
    """
    reader = DefaultRecordBatch(bytes(batch)) if magic >= 2 else LegacyRecordBatch(bytes(batch), magic)
    for record in reader:
        timestamp = -1 if record.timestamp is None else record.timestamp
        yield Record(record.offset, timestamp, record.key, record.value, list(record.headers))


def build(
    records: Iterable[Record], codec: int, producer_id: int, producer_epoch: int, base_sequence: int
) -> bytearray:
    """A magic 2 CreateTime batch of ``records`` with base offset 0 and dense offset deltas.

    Gaps between the records' own offsets are not kept: a broker refuses them in a produced batch.
    """
    builder = DefaultRecordBatchBuilder(2, codec, 0, producer_id, producer_epoch, base_sequence, 2**31 - 1)
    for delta, record in enumerate(records):
        builder.append(delta, record.timestamp_ms, record.key, record.value, record.headers)
    built: bytearray = builder.build()
    return built
