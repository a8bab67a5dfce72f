"""Long logs, read by a process of their own, which keeps the last record of each key: the loop applies what is left.

What was read is kept in a file for a while, for those who read the same log next: at a worker's start its tasks and its
watch read the same positions. See decision 26.
"""

from __future__ import annotations

import asyncio
import json
import logging
import marshal
import os
import struct
import sys
import tempfile
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from connect.core.errors import (
    ClusterUnreachable,
    HeliographError,
    PermanentError,
    RetriableError,
    SecurityError,
)
from connect.kafka.security.connection_settings import ConnectionSettings

if TYPE_CHECKING:
    from connect.kafka.cluster import Cluster

log = logging.getLogger(__name__)

#: Of a log, beyond which another process is worth its start: as many take the loop a third of a second.
LONG_OFFSETS: Final = 50_000
#: What lies before the records of a frame: their partition, and how many bytes they are.
FRAME: Final = struct.Struct(">iI")
#: By their names in what the process says; the first that an error is.
ERRORS: Final[Mapping[str, type[HeliographError]]] = {
    one.__name__: one for one in (SecurityError, PermanentError, ClusterUnreachable, RetriableError)
}
_READER: Final = "connect.kafka.log.long_log_reader"
#: The readers of a start come within a minute, and who looks at tasks that rest comes every minute.
_KEPT_S: Final = 120.0
#: Of one log, each behind the one before. Once the first is gone, all are read again as one.
_MOST_PIECES: Final = 8
_MOST_LINE_BYTES: Final = 1 << 20

#: Key, value, partition, offset, timestamp in milliseconds, headers.
Row = tuple[bytes | None, bytes | None, int, int, int, tuple[tuple[str, bytes], ...]]
#: Of partitions: the first offset to read, and the end.
Spans = Mapping[int, tuple[int, int]]


class LongLogs:
    """Of one client of a cluster, or of all that a worker lends to its mirrors. Forgets what has not been read for two
    minutes, and all when it is closed."""

    def __init__(self) -> None:
        self._shelves: list[_Shelf] = []

    async def read(
        self,
        cluster: Cluster,
        topic: str,
        spans: Spans,
        hand_over: Callable[[Row], None],
        read_committed: bool,
        progressed: Callable[[], None],
    ) -> dict[int, int]:
        """Hand over the last record of each key in ``spans``, each partition in order, until a short rest is left.
        Return from which offset on that is still to be read, by partition.

        Some keys may come more than once, as in a log that a cleaner is behind with. ``progressed`` is called while
        something comes.

        Raises:
            RetriableError: the process ended before its work did, or the cluster did not answer it.
            SecurityError, PermanentError: as :func:`connect.kafka.log.compacted_topic.read_to_end`.
        """
        at = {partition: first for partition, (first, _) in spans.items()}
        if _left(spans, at) <= LONG_OFFSETS:
            return at
        async with self._shelf(cluster.settings, topic, read_committed, progressed) as shelf:
            known = await _look(cluster, topic)
            for piece in list(shelf.pieces):
                await piece.hand_over(at, known, hand_over, progressed)
            if _left(spans, at) > LONG_OFFSETS:
                rest = {one: (at[one], end) for one, (_, end) in spans.items() if at[one] < end}
                order = _Order(cluster, topic, rest, read_committed)
                file, ends = await _read(order, shelf.progressed)
                piece = _Piece(file, {one: (first, ends[one]) for one, (first, _) in rest.items()}, known)
                if known is not None and known == await _look(cluster, topic):
                    shelf.pieces.append(piece)
                await piece.hand_over(at, known, hand_over, progressed)
        return at

    def close(self) -> None:
        """Forget everything."""
        while self._shelves:
            self._forget(self._shelves[-1])

    @asynccontextmanager
    async def _shelf(
        self, settings: ConnectionSettings, topic: str, read_committed: bool, progressed: Callable[[], None]
    ) -> AsyncIterator[_Shelf]:
        """Where a log is kept, for one reader at a time; those who wait have the progress of the one who reads."""
        of = (replace(settings, client_id=""), topic, read_committed)
        shelf = next((one for one in self._shelves if one.of == of), None)
        if shelf is None:
            shelf = _Shelf(of)
            self._shelves.append(shelf)
        if shelf.forgetting is not None:
            shelf.forgetting.cancel()
        shelf.readers.append(progressed)
        try:
            async with shelf.turn:
                yield shelf
        finally:
            shelf.readers.remove(progressed)
            if not shelf.readers:
                shelf.forgetting = asyncio.get_running_loop().call_later(_KEPT_S, self._forget, shelf)

    def _forget(self, shelf: _Shelf) -> None:
        if shelf.forgetting is not None:
            shelf.forgetting.cancel()
        if shelf in self._shelves:
            self._shelves.remove(shelf)


class _LogVersion(NamedTuple):
    """What a topic is: as long as all of this is the same, no leader has cut what was read of it."""

    topic_id: UUID
    leader_epochs: tuple[tuple[int, int], ...]


async def _look(cluster: Cluster, topic: str) -> _LogVersion | None:
    """None where brokers are too old to tell, or do not tell now."""
    try:
        known = (await cluster.topics({topic})).topics[topic]
    except RetriableError:
        return None
    epochs = tuple(sorted((index, one.leader_epoch) for index, one in known.partitions.items()))
    if known.topic_id is None or any(epoch < 0 for _, epoch in epochs):
        return None
    return _LogVersion(known.topic_id, epochs)


@dataclass(eq=False, slots=True)
class _Shelf:
    """What is kept of one log, as one client may read it."""

    of: tuple[ConnectionSettings, str, bool]
    pieces: deque[_Piece] = field(default_factory=lambda: deque(maxlen=_MOST_PIECES))
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    readers: list[Callable[[], None]] = field(default_factory=list)
    forgetting: asyncio.TimerHandle | None = None

    def progressed(self) -> None:
        for progressed in self.readers:
            progressed()


class _Piece:
    """The last record of each key in ``spans``, in a file without a name, which is gone with the piece."""

    def __init__(self, file: int, spans: Spans, log: _LogVersion | None) -> None:
        self._file = file
        self._spans = spans
        self._log = log
        weakref.finalize(self, os.close, file)

    async def hand_over(
        self,
        at: dict[int, int],
        log: _LogVersion | None,
        hand_over: Callable[[Row], None],
        progressed: Callable[[], None],
    ) -> None:
        """What there is of ``log`` from the offsets ``at`` on, which are moved behind it."""
        if log != self._log:
            return
        wanted = {one for one, (first, end) in self._spans.items() if first <= at.get(one, -1) < end}
        place = 0
        while (found := await asyncio.to_thread(self._frame, place, wanted)) is not None:
            rows, place = found
            for row in rows:
                if row[3] >= at[row[2]]:
                    hand_over(row)
            progressed()
        at.update((one, self._spans[one][1]) for one in wanted)

    def _frame(self, place: int, wanted: Collection[int]) -> tuple[list[Row], int] | None:
        """The next rows of partitions that are wanted, and the place behind them."""
        while header := os.pread(self._file, FRAME.size, place):
            partition, size = FRAME.unpack(header)
            place += FRAME.size
            if partition in wanted:
                rows: list[Row] = marshal.loads(os.pread(self._file, size, place))
                return rows, place + size
            place += size
        return None


class _Order(NamedTuple):
    """What the process is to read."""

    cluster: Cluster
    topic: str
    spans: Spans
    read_committed: bool

    @property
    def where(self) -> str:
        return f"cluster {self.cluster.name}: topic {self.topic}"

    def line(self, file: int) -> bytes:
        """For its standard input, with the secrets that it needs."""
        told = {
            "settings": self.cluster.settings.to_wire(),
            "alias": self.cluster.alias,
            "topic": self.topic,
            "spans": [(partition, first, end) for partition, (first, end) in self.spans.items()],
            "read_committed": self.read_committed,
            "file": file,
        }
        return json.dumps(told).encode() + b"\n"


async def _read(order: _Order, progressed: Callable[[], None]) -> tuple[int, dict[int, int]]:
    """A file that the process has filled, and where each partition ends in it. Raises as :meth:`LongLogs.read`."""
    began_s = time.monotonic()
    try:
        with tempfile.TemporaryFile(prefix="heliograph-", buffering=0) as file:
            async with _process(order, file.fileno()) as process:
                ends = await _ends(order, process, progressed)
            offsets = sum(end - first for first, end in order.spans.values())
            log.info("%s: %d offsets read in %.1f s", order.where, offsets, time.monotonic() - began_s)
            return os.dup(file.fileno()), ends
    except OSError as error:
        raise RetriableError(f"{order.where} is long, and no process can be started to read it: {error}") from error


@asynccontextmanager
async def _process(order: _Order, file: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """It ends with the context, and with ours: it sees the end of its standard input."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        _READER,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        pass_fds=(file,),
        limit=_MOST_LINE_BYTES,
        # A terminal's Ctrl-C is the worker's to answer.
        start_new_session=True,
    )
    try:
        assert process.stdin is not None
        process.stdin.write(order.line(file))
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def _ends(order: _Order, process: asyncio.subprocess.Process, progressed: Callable[[], None]) -> dict[int, int]:
    """What it says at its end."""
    assert process.stdout is not None
    async for line in process.stdout:
        told: dict[str, Any] = json.loads(line)
        if "ends" in told:
            return dict(map(tuple, told["ends"]))
        if "error" in told:
            raise ERRORS[told["error"]](told["text"])
        progressed()
    code = await process.wait()
    raise RetriableError(
        f"{order.where} could not be read to its end: the process that reads it ended with code {code}"
    )


def _left(spans: Spans, at: Mapping[int, int]) -> int:
    return sum(max(0, end - at[partition]) for partition, (_, end) in spans.items())
