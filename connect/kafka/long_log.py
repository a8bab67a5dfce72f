"""Reads long logs in another process, which keeps the last record of each key; the event loop applies the result.

The result stays in a file for a while for the next readers of the log: at a worker's start its tasks and its watch read
the same positions. See decision 26.
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
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from connect.core.errors import ClusterUnreachable, HeliographError, PermanentError, RetriableError, SecurityError
from connect.kafka.security.connection_settings import ConnectionSettings

if TYPE_CHECKING:
    from connect.kafka.cluster import Cluster

log = logging.getLogger(__name__)

#: Offsets of a log beyond which another process is worth its start: this many take the loop a third of a second.
LONG_OFFSETS: Final = 50_000
#: The header of a frame: the partition and the size in bytes of the records that follow.
FRAME: Final = struct.Struct(">iI")
#: By the names that the process prints. An error is reported as the first class that it belongs to.
ERRORS: Final[Mapping[str, type[HeliographError]]] = {
    one.__name__: one for one in (SecurityError, PermanentError, ClusterUnreachable, RetriableError)
}
_READER: Final = "connect.kafka.log.long_log_reader"
#: The readers at a start follow each other within a minute; the check of resting tasks comes every minute.
_KEPT_S: Final = 120.0
#: Pieces of one log, each after the one before. Once the first is dropped, all are read again as one.
_MOST_PIECES: Final = 8
#: Beginnings of the names of variables that the other process gets.
_NEEDED: Final = (
    *("PATH", "HOME", "LANG", "LC_", "TZ", "TMPDIR", "XDG_", "PYTHON", "VIRTUAL_ENV", "LD_", "SSL_CERT_"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "KRB5", "AWS_", "GOOGLE_"),
)
_MOST_LINE_BYTES: Final = 1 << 20

#: Key, value, partition, offset, timestamp in milliseconds, headers.
Row = tuple[bytes | None, bytes | None, int, int, int, tuple[tuple[str, bytes], ...]]
#: By partition: the first offset to read, and the end.
Spans = Mapping[int, tuple[int, int]]


class LongLogs:
    """Long logs read by one client of a cluster, or for all mirrors of a worker. Drops what was not read for two
    minutes, and everything when it is closed."""

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
        """Pass the last record of each key in ``spans`` to ``hand_over``, each partition in order, up to a short rest.
        Return the offset where that rest starts, by partition. Some keys may come more than once, as in a log that is
        not fully compacted. ``progressed`` is called while records arrive. Raises RetriableError if the process ended
        early, or the cluster did not answer it, and SecurityError or PermanentError as
        :func:`connect.kafka.log.compacted_topic.read_to_end`."""
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
        while self._shelves:
            self._forget(self._shelves[-1])

    @asynccontextmanager
    async def _shelf(
        self, settings: ConnectionSettings, topic: str, read_committed: bool, progressed: Callable[[], None]
    ) -> AsyncIterator[_Shelf]:
        """Lock the kept results of a log for one reader at a time; waiting readers share the progress of the active
        one."""
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
    """The identity of a topic: while it stays the same, no leader has truncated the log that was read."""

    topic_id: UUID
    leader_epochs: tuple[tuple[int, int], ...]


async def _look(cluster: Cluster, topic: str) -> _LogVersion | None:
    """Return the current version; None if brokers are too old to send it or do not answer now."""
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
    """The kept results of one log, as one client may read it."""

    of: tuple[ConnectionSettings, str, bool]
    pieces: deque[_Piece] = field(default_factory=lambda: deque(maxlen=_MOST_PIECES))
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    readers: list[Callable[[], None]] = field(default_factory=list)
    forgetting: asyncio.TimerHandle | None = None

    def progressed(self) -> None:
        for progressed in self.readers:
            progressed()


class _Piece:
    """The last record of each key in ``spans``, in an unnamed file that is deleted with the piece."""

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
        """Pass on the records of ``log`` from the offsets ``at``, and advance these offsets."""
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
        """Return the next rows of the ``wanted`` partitions and the position after them; None at the end."""
        while header := os.pread(self._file, FRAME.size, place):
            partition, size = FRAME.unpack(header)
            place += FRAME.size
            if partition in wanted:
                rows: list[Row] = marshal.loads(os.pread(self._file, size, place))
                return rows, place + size
            place += size
        return None


class _Order(NamedTuple):
    cluster: Cluster
    topic: str
    spans: Spans
    read_committed: bool

    @property
    def where(self) -> str:
        return f"cluster {self.cluster.name}: topic {self.topic}"

    def line(self, file: int) -> bytes:
        """Return the line for its standard input, which includes the secrets that it needs."""
        reported = {
            "settings": self.cluster.settings.to_wire(),
            "alias": self.cluster.alias,
            "topic": self.topic,
            "spans": [(partition, first, end) for partition, (first, end) in self.spans.items()],
            "read_committed": self.read_committed,
            "file": file,
        }
        return json.dumps(reported).encode() + b"\n"


async def _read(order: _Order, progressed: Callable[[], None]) -> tuple[int, dict[int, int]]:
    """Return a file that the process has filled, and the end of each partition. Raises the errors of
    :meth:`LongLogs.read`."""
    began_s = time.monotonic()
    try:
        with tempfile.TemporaryFile(prefix="heliograph-", buffering=0) as file:
            async with _process(order, file.fileno()) as process:
                ends = await _ends(order, process, progressed)
            offsets = sum(end - first for first, end in order.spans.values())
            log.info("%s: %d offsets read in %.1f s", order.where, offsets, time.monotonic() - began_s)
            return os.dup(file.fileno()), ends
    except OSError as error:
        raise RetriableError(f"{order.where} is long, and the process to read it cannot start: {error}") from error


def environment() -> dict[str, str]:
    """Return the environment of the process: what Python and connections need, without the secrets of configs."""
    return {name: value for name, value in os.environ.items() if name.upper().startswith(_NEEDED)}


@asynccontextmanager
async def _process(order: _Order, file: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the process until the context or this process ends: it stops at the end of its standard input."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        _READER,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        pass_fds=(file,),
        limit=_MOST_LINE_BYTES,
        env=environment(),
        # Ctrl-C in a terminal is for the worker to handle.
        start_new_session=True,
    )
    try:
        assert process.stdin is not None
        process.stdin.write(order.line(file))
        yield process
    finally:
        # This ends the process. Process.kill may reap it before asyncio does, which would log a warning.
        if process.stdin is not None:
            process.stdin.close()
        await process.communicate()


async def _ends(order: _Order, process: asyncio.subprocess.Process, progressed: Callable[[], None]) -> dict[int, int]:
    """Return the end offsets that the process prints last; raise the error that it prints."""
    assert process.stdout is not None
    async for line in process.stdout:
        reported: dict[str, Any] = json.loads(line)
        if "ends" in reported:
            return dict(map(tuple, reported["ends"]))
        if "error" in reported:
            raise ERRORS[reported["error"]](reported["text"])
        progressed()
    code = await process.wait()
    raise RetriableError(
        f"{order.where} could not be read to its end: the process that reads it exited with code {code}"
    )


def _left(spans: Spans, at: Mapping[int, int]) -> int:
    return sum(max(0, end - at[partition]) for partition, (_, end) in spans.items())
