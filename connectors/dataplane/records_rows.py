"""Records as rows: what Spark is given of them, and what becomes of one by a row that comes back. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa

from connect.wire.header_keys import bytes_of, is_text, key_of
from connect.wire.plain_records import Headers
from connect.wire.records import NO_TIMESTAMP, Record
from connectors.dataplane.plan import PartitionPlan, TopicPartition
from connectors.transforms.smt_chain import Unfit
from connectors.transforms.sql_query import KEY
from connectors.transforms.topic_routes import OTHERS_KEY, TOPIC_KEY, told

_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
#: As ``connectors.spark.query_frame.STAGE_DDL``.
SCHEMA: Final = pa.schema(
    [
        ("__row", pa.int64()),
        ("__note", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", _HEADERS),
    ]
)
#: Times beyond these are none that Spark knows; a record keeps its own all the same.
_MOST_MS: Final = 2**63 // 1000 - 1
_OURS: Final = Unfit("")
UNFIT: Final = Unfit("Spark cannot evaluate transform.sql for it")
_UNREADABLE_HEADER: Final = Unfit(f"{KEY} gives it a header whose key is none, or no UTF-8")
#: No Java producer writes one, and log cleaners fail at it (Kafka ``ConnectUtils.checkAndConvertTimestamp``).
_NEGATIVE_TIME: Final = Unfit(f"{KEY} gives it a time before 1970, which no record can have")


def rows_of(source: TopicPartition, part: Sequence[Record], first_row: int) -> pa.RecordBatch:
    count = len(part)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(range(first_row, first_row + count), pa.int64()),
            pa.nulls(count, pa.binary()),
            pa.repeat(pa.scalar(source.topic, pa.string()), count),
            pa.repeat(pa.scalar(source.partition, pa.int32()), count),
            pa.array([record.offset for record in part], pa.int64()),
            pa.array([_microseconds(record.timestamp_ms) for record in part], SCHEMA.field("timestamp").type),
            pa.array([record.key for record in part], pa.binary()),
            pa.array([record.value for record in part], pa.binary()),
            _headers(part),
        ],
        schema=SCHEMA,
    )


def _headers(part: Sequence[Record]) -> pa.Array:
    """Keys as they are on the wire: Spark's strings hold any bytes too."""
    pairs = [pair for record in part for pair in record.headers]
    keys = pa.array([bytes_of(key) for key, _ in pairs], pa.binary()).view(pa.string())
    values = pa.array([value for _, value in pairs], pa.binary())
    begins = pa.array(accumulate((len(record.headers) for record in part), initial=0), pa.int32())
    return pa.ListArray.from_arrays(begins, pa.StructArray.from_arrays([keys, values], ["key", "value"]))


def notes_of(row: int, notes: Sequence[bytes | None]) -> pa.RecordBatch:
    count = len(notes)
    own = [pa.array([row] * count, pa.int64()), pa.array(notes, pa.binary())]
    return pa.RecordBatch.from_arrays(
        [*own, *(pa.nulls(count, field.type) for field in list(SCHEMA)[2:])], schema=SCHEMA
    )


def _microseconds(timestamp_ms: int) -> int | None:
    return timestamp_ms * 1000 if NO_TIMESTAMP < timestamp_ms <= _MOST_MS else None


def _elsewhere(plan: PartitionPlan, topic: bytes | None) -> Unfit | None:
    """What becomes of a record that a query sends to ``topic``, None for that of its source; ``_OURS`` where that is
    ours."""
    # What is no UTF-8 becomes what is no topic's name.
    asked = plan.source.topic if topic is None else topic.decode(errors="replace")
    ours, *others = plan.ways.asked or (plan.source.topic,)
    if asked == ours:
        return _OURS
    if asked in others:
        return None
    return Unfit(f"{KEY} sends it to {told(asked)}, which neither {TOPIC_KEY} nor {OTHERS_KEY} stands for", stops=True)


def outcome_by(plan: PartitionPlan, record: Record, row: dict[str, Any]) -> Record | Unfit | None:
    """What becomes of a record by the columns that a query has changed."""
    if "topic" in row and (elsewhere := _elsewhere(plan, row["topic"])) is not _OURS:
        return elsewhere
    changes: dict[str, Any] = {}
    for name, value in row.items():
        if name == "timestamp":
            if value is None:
                continue
            if value < NO_TIMESTAMP:
                return _NEGATIVE_TIME
            changes["timestamp_ms"] = value
        elif name == "headers":
            headers = _headers_of(record, value or [])
            if headers is None:
                return _UNREADABLE_HEADER
            changes["headers"] = headers
        elif name != "topic":
            changes[name] = value
    return record._replace(**changes)


def _headers_of(record: Record, given: Sequence[dict[str, Any] | None]) -> Headers | None:
    """Headers that a query gives a record; None where one has no key, or one that is no UTF-8 and not the record's own
    as it is."""
    found = []
    for header in given:
        if header is None or header["key"] is None:
            return None
        key = key_of(header["key"])
        if not is_text(key) and all(key != own for own, _ in record.headers):
            return None
        found.append((key, header["value"]))
    return found
