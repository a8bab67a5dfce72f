"""Reads a log to its end and keeps the last record of each key: the process behind :mod:`connect.kafka.long_log`.

    in   {"settings": {...}, "alias": name, "topic": name, "spans": [[partition, first, end], ...],
          "read_committed": true, "file": 7}               once; the number of an open file
    out  {"read": records}                                 while records arrive
         {"ends": [[partition, offset], ...]}              the file is complete
         {"error": class, "text": ...}                     one of ``long_log.ERRORS``

The file has frames of rows, those of a partition in order. The process ends at the end of its standard input.
"""

from __future__ import annotations

import asyncio
import gc
import json
import marshal
import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, BinaryIO, Final

from aiokafka import TopicPartition

from connect.core.errors import HeliographError, RetriableError
from connect.kafka.cluster import Cluster
from connect.kafka.log.compacted_topic import drain, give_records_as_read, reader, reading
from connect.kafka.long_log import ERRORS, FRAME, Row
from connect.kafka.security.connection_settings import ConnectionSettings

_AT_ONCE: Final = 5_000
_REPORT_S: Final = 0.5
#: Limit on the records in memory; above it they are written, and their keys may come again.
_MOST_BYTES: Final = 64 << 20
#: The size of a record in memory without its key and value.
_RECORD_BYTES: Final = 300
#: Of a frame, which the worker's loop applies in one step.
_FRAME_RECORDS: Final = 200
_FRAME_BYTES: Final = 256 << 10
_OFFSET: Final = attrgetter("offset")


class LastOfKeys:
    """The last record of each key of each partition, written to ``file`` when they exceed a limit, and at the end."""

    def __init__(self, file: BinaryIO, most_bytes: int = _MOST_BYTES) -> None:
        self.read = 0
        self._file = file
        self._most_bytes = most_bytes
        self._last: dict[int, dict[bytes | None, Any]] = {}
        self._bytes = 0  # an upper bound: it includes records replaced since the last count

    def take(self, partition: TopicPartition, records: Sequence[Any]) -> None:
        last = self._last.setdefault(partition.partition, {})
        size = _RECORD_BYTES * len(records)
        for record in records:
            last[record.key] = record
            value = record.value
            if value is not None:
                size += len(value)
        self.read += len(records)
        self._bytes += size
        if self._bytes > self._most_bytes:
            self._bytes = sum(map(_size, self._held()))
            if self._bytes > self._most_bytes // 2:
                self.write()

    def write(self) -> None:
        for partition, last in self._last.items():
            for rows in _frames(partition, sorted(last.values(), key=_OFFSET)):
                data = marshal.dumps(rows)
                self._file.write(FRAME.pack(partition, len(data)) + data)
        self._last, self._bytes = {}, 0
        self._file.flush()

    def _held(self) -> Iterator[Any]:
        return (record for last in self._last.values() for record in last.values())


def _size(record: Any) -> int:
    return _RECORD_BYTES + len(record.value or b"")


def _frames(partition: int, records: Sequence[Any]) -> Iterator[list[Row]]:
    rows, size = list[Row](), 0
    for one in records:
        rows.append((one.key, one.value, partition, one.offset, one.timestamp, tuple(one.headers)))
        size += _size(one)
        if len(rows) == _FRAME_RECORDS or size > _FRAME_BYTES:
            yield rows
            rows, size = [], 0
    if rows:
        yield rows


def main() -> None:
    gc.disable()  # because scanning all records takes half the time, and this process ends soon
    # Libraries may print, but standard output is for messages to the parent.
    out = os.dup(1)
    os.dup2(2, 1)
    order = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, name="end of the parent", daemon=True).start()
    cluster = Cluster(ConnectionSettings.from_wire(order["settings"]), order["alias"])
    reported: dict[str, Any]
    try:
        with os.fdopen(order["file"], "wb") as file:
            kept = LastOfKeys(file)
            ends = asyncio.run(_read(cluster, order, kept, out))
            kept.write()
        reported = {"ends": list(ends.items())}
    except HeliographError as error:
        reported = {"error": next(name for name, one in ERRORS.items() if isinstance(error, one)), "text": str(error)}
    except Exception as error:
        traceback.print_exc()
        text = f"cluster {cluster.name}: topic {order['topic']} cannot be read by its reader process: {error!r}"
        reported = {"error": RetriableError.__name__, "text": text}
    _report(out, reported)
    os._exit(0)


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)


def _report(out: int, said: Mapping[str, Any]) -> None:
    os.write(out, json.dumps(said).encode() + b"\n")


async def _read(cluster: Cluster, order: Mapping[str, Any], kept: LastOfKeys, out: int) -> dict[int, int]:
    """Return how far each partition was read, possibly beyond the requested end."""
    give_records_as_read()
    topic, spans = order["topic"], {partition: (first, end) for partition, first, end in order["spans"]}
    reported_s = -math.inf

    def progressed() -> None:
        nonlocal reported_s
        if time.monotonic() - reported_s > _REPORT_S:
            reported_s = time.monotonic()
            _report(out, {"read": kept.read})

    with reading(cluster, topic):
        async with reader(cluster, read_committed=order["read_committed"], auto_offset_reset="earliest") as consumer:
            return await drain(consumer, topic, spans, kept.take, progressed, _AT_ONCE)


if __name__ == "__main__":
    main()
