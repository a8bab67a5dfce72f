"""Send records through Spark's JVM for ``transform.sql``: the two halves of a slice's job, and the rows between them.

    slice -> Arrow -> [JVM: transform.sql] -> Arrow -> second half -> Unix socket -> slice

The slice is the first half: its loop runs in a thread, while the job's own thread yields the slice's rows. The second
half is a Python worker of the same task that hands the rows back as they come. Spark holds rows back twice on the way:
until an Arrow batch is full, and until its buffers are full. So whenever no more records wait, rows without a record
follow, enough of them and one large enough to push everything before them through.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import shutil
import socket
import struct
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from connect.core.errors import RetriableError
from connect.wire.batch import NO_TIMESTAMP, bytes_of, is_text, key_of
from connect.wire.records import Headers, Record
from connectors.control_link.protocol import PartitionPlan
from connectors.formats.types import TopicPartition
from connectors.transforms.smt_chain import OTHERS_KEY, TOPIC_KEY, Done, Outcome, Untransformable, routes_message
from connectors.transforms.sql_query import KEY

_TIME: Final = pa.timestamp("us", tz="UTC")
_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
#: As ``connectors.spark.driver_process.STAGE_DDL``.
SCHEMA: Final = pa.schema(
    [
        ("__row", pa.int64()),
        ("__note", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", _TIME),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", _HEADERS),
    ]
)
#: Spark does not know later times; the record keeps its own.
_MOST_MS: Final = 2**63 // 1000 - 1
_OURS: Final = Untransformable("")
UNTRANSFORMABLE: Final = Untransformable("Spark cannot evaluate transform.sql for it")
_UNREADABLE_HEADER: Final = Untransformable(f"{KEY} gives it a header whose key is missing or not UTF-8")
#: No Java producer writes one, and log cleaners fail on it (Kafka ``ConnectUtils.checkAndConvertTimestamp``).
_NEGATIVE_TIME: Final = Untransformable(f"{KEY} gives it a time before 1970, which no record can have")
_LENGTH: Final = struct.Struct(">I")
_PADDING: Final = -1
_JOIN_S: Final = 10.0
#: Longest folder path, because the path of a Unix socket must be short.
_MOST_FOLDER: Final = 70


def rows_of(source: TopicPartition, part: Sequence[Record], first_row: int) -> pa.RecordBatch:
    count, times_ms = len(part), [record.timestamp_ms for record in part]
    return pa.RecordBatch.from_arrays(
        [
            pa.array(range(first_row, first_row + count), pa.int64()),
            pa.nulls(count, pa.binary()),
            pa.repeat(pa.scalar(source.topic, pa.string()), count),
            pa.repeat(pa.scalar(source.partition, pa.int32()), count),
            pa.array([record.offset for record in part], pa.int64()),
            pa.array([ms * 1000 if NO_TIMESTAMP < ms <= _MOST_MS else None for ms in times_ms], _TIME),
            pa.array([record.key for record in part], pa.binary()),
            pa.array([record.value for record in part], pa.binary()),
            _headers(part),
        ],
        schema=SCHEMA,
    )


def _headers(part: Sequence[Record]) -> pa.Array:
    """Return the headers, with keys as on the wire, because Spark's strings hold any bytes."""
    pairs = [pair for record in part for pair in record.headers]
    keys = pa.array([bytes_of(key) for key, _ in pairs], pa.binary()).view(pa.string())
    values = pa.array([value for _, value in pairs], pa.binary())
    begins = pa.array(accumulate((len(record.headers) for record in part), initial=0), pa.int32())
    return pa.ListArray.from_arrays(begins, pa.StructArray.from_arrays([keys, values], ["key", "value"]))


def _padding(notes: Sequence[bytes | None]) -> pa.RecordBatch:
    """Return rows without a record."""
    count = len(notes)
    own = [pa.array([_PADDING] * count, pa.int64()), pa.array(notes, pa.binary())]
    return pa.RecordBatch.from_arrays(
        [*own, *(pa.nulls(count, field.type) for field in list(SCHEMA)[2:])], schema=SCHEMA
    )


def _elsewhere(plan: PartitionPlan, topic: bytes | None) -> Untransformable | None:
    """Return the outcome of a record that a query sends to ``topic`` (None: the source's): ``_OURS`` if this connector
    copies there, None if another one does."""
    # Bytes that are not UTF-8 become a name that no topic can have.
    asked = plan.source.topic if topic is None else topic.decode(errors="replace")
    ours, *others = plan.ways.asked or (plan.source.topic,)
    if asked == ours:
        return _OURS
    if asked in others:
        return None
    return Untransformable(
        f"{KEY} sends it to {routes_message(asked)}, which neither {TOPIC_KEY} nor {OTHERS_KEY} stands for", stops=True
    )


def outcome_by(plan: PartitionPlan, record: Record, row: dict[str, Any]) -> Record | Untransformable | None:
    """Return the outcome of a record, given the columns that a query changed."""
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
    """Return the headers that a query gives a record; None if a key is missing, or neither UTF-8 nor the record's."""
    found = []
    for header in given:
        if header is None or header["key"] is None:
            return None
        key = key_of(header["key"])
        if not is_text(key) and all(key != own for own, _ in record.headers):
            return None
        found.append((key, header["value"]))
    return found


def _scratch() -> str | None:
    """Return Spark's scratch folder, which Spark deletes even if a killed process leaves files in it."""
    folder = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
    return folder if folder and Path(folder).is_dir() and len(folder) < _MOST_FOLDER else None


class StageBroken(RetriableError):
    """The second half ended: Spark has ended the job."""


class RecordStage:
    """The first half: it takes records in the slice's loop, and gives them to Spark in the job's thread."""

    def __init__(self, arrow_rows: int) -> None:
        self._arrow_rows = arrow_rows
        self._buffer_bytes = int(os.environ.get("SPARK_BUFFER_SIZE", "65536"))
        self._folder = Path(tempfile.mkdtemp(prefix="heliograph-records-", dir=_scratch()))
        self._outgoing: queue.SimpleQueue[pa.RecordBatch | None] = queue.SimpleQueue()
        self._waiting: deque[tuple[PartitionPlan, Sequence[Record], Outcome, Done]] = deque()
        self._row = 0
        self._server: asyncio.Server | None = None
        self._reading: asyncio.Task[None] | None = None
        self._back: asyncio.StreamWriter | None = None
        self._broken: Callable[[BaseException], None] | None = None
        self._connected = asyncio.Event()

    # -- in the job's thread ----------------------------------------------------------------------

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows for Spark until the slice ends."""
        while (batch := self._outgoing.get()) is not None:
            yield batch
            if self._outgoing.empty():
                yield from self._push()

    def _push(self) -> Iterator[pa.RecordBatch]:
        # A note of a buffer's size pushes the batch through the JVM; one more pushes it out of this process.
        note = str(self._folder / "s").encode().ljust(self._buffer_bytes + 1, b"\0")
        yield _padding([note] + [None] * self._arrow_rows)
        yield _padding([note])

    def abandon(self) -> None:
        self._outgoing.put(None)
        shutil.rmtree(self._folder, ignore_errors=True)

    # -- in the slice's loop ----------------------------------------------------------------------

    async def start(self, broken: Callable[[BaseException], None]) -> None:
        """Wait for the second half; ``broken`` is called with the error when it ends."""
        self._broken = broken
        self._server = await asyncio.start_unix_server(self._accept, str(self._folder / "s"))
        self._outgoing.put(_padding([None]))
        await self._connected.wait()

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        self._broken = None
        if self._back is not None and self._reading is not None:
            self._back.close()  # ends its reader; asyncio would report a cancelled one as an error
            await asyncio.gather(self._reading, return_exceptions=True)

    def submit(self, plan: PartitionPlan, part: Sequence[Record], done: Done) -> None:
        """Transform records; ``done`` is called with the outcome, in the order of the calls."""
        self._waiting.append((plan, part, [], done))
        if part:
            self._outgoing.put(rows_of(plan.source, part, self._row))
            self._row += len(part)
        self._settle()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reading, self._back = asyncio.current_task(), writer
        self._connected.set()
        try:
            while True:
                (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
                self._take(_unpacked(await reader.readexactly(length)))
        except (asyncio.IncompleteReadError, ConnectionError):
            self._report_broken(StageBroken("Spark ended the job that evaluates transform.sql; its log says why"))
        except Exception as error:
            self._report_broken(error)
        finally:
            writer.close()

    def _report_broken(self, error: BaseException) -> None:
        if self._broken is not None:
            self._broken(error)

    def _take(self, batch: pa.RecordBatch) -> None:
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names if not name.startswith("__")}
        unfit = batch.column("__unfit").to_pylist()
        for index, keep in enumerate(batch.column("__keep").to_pylist()):
            plan, part, outcome, _ = self._waiting[0]
            if unfit[index]:
                outcome.append(UNTRANSFORMABLE)
            else:
                row = {name: values[index] for name, values in columns.items()}
                outcome.append(outcome_by(plan, part[len(outcome)], row) if keep else None)
            self._settle()

    def _settle(self) -> None:
        while self._waiting and len(self._waiting[0][2]) == len(self._waiting[0][1]):
            _, _, outcome, done = self._waiting.popleft()
            done(outcome)


def first_half(arrow_rows: int, run: Callable[[RecordStage], Coroutine[Any, Any, None]]) -> Iterator[pa.RecordBatch]:
    """Run a slice in its own thread; yield its rows for Spark, and raise what it raised."""
    pa.array([0])  # before anything waits for this process, because pyarrow may load pandas for a first array
    stage = RecordStage(arrow_rows)
    raised: list[BaseException] = []

    def work() -> None:
        try:
            asyncio.run(run(stage))
        except BaseException as error:
            raised.append(error)
        stage.abandon()

    thread = threading.Thread(target=work, name="slice", daemon=True)
    thread.start()
    try:
        yield from stage.batches()
    finally:
        # If Spark closes this half, the second has ended too; the slice learns that from its socket.
        stage.abandon()
        thread.join(_JOIN_S)
    if raised:
        raise raised[0]


def second_half(batches: Iterable[pa.RecordBatch]) -> None:
    """Hand transformed rows back to the slice, in order."""
    held: list[pa.RecordBatch] = []
    with contextlib.ExitStack() as closing:
        back: socket.socket | None = None
        for batch in batches:
            rows, notes = batch.column("__row").to_pylist(), batch.column("__note")
            if back is None and (path := _path(rows, notes)):
                back = closing.enter_context(socket.socket(socket.AF_UNIX))
                back.connect(path)
            kept = _only_records(batch, rows)
            if kept.num_rows:
                held.append(kept)
            if back is not None:
                for one in held:
                    data = _packed(one)
                    back.sendall(_LENGTH.pack(len(data)) + data)
                held = []


def _path(rows: Sequence[int], notes: pa.Array) -> str:
    at = next((index for index, row in enumerate(rows) if row == _PADDING and notes[index].is_valid), None)
    return "" if at is None else str(notes[at].as_py().rstrip(b"\0").decode())


def _only_records(batch: pa.RecordBatch, rows: Sequence[int]) -> pa.RecordBatch:
    wanted = [name for name in batch.schema.names if name not in ("__row", "__note")]
    return batch.filter(pa.array([row >= 0 for row in rows], pa.bool_())).select(wanted)


def _packed(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _unpacked(data: bytes) -> pa.RecordBatch:
    return pa.ipc.open_stream(data).read_next_batch()
