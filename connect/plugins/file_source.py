"""The file source, which sends each line of a file as a record (Java's ``FileStreamSourceConnector`` and ``-Task``).

An example for authors and tests. It fixes three bugs of Java: positions are bytes of the file, because Java counts
characters and resumes at a wrong position after non-ASCII text; lines that were read with a full batch are returned by
the next poll, without waiting until the file grows; the length of a line is limited.
"""

from __future__ import annotations

import logging
import os
import re
import select
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

from connect.api.connector import Props
from connect.api.plugins import KAFKA_VERSION
from connect.api.source import STRING, ExactlyOnceSupport, SourceConnector, SourceRecord, SourceTask
from connect.core.config.config_def import REQUIRED, ConfigDef, Importance, integer, text
from connect.core.config.validation import non_empty
from connect.core.errors import PermanentError

log = logging.getLogger(__name__)

FILENAME: Final = "filename"
POSITION: Final = "position"

_CONFIG: Final = ConfigDef.of(
    text("file", None, "Source filename. If not specified, the standard input will be used", Importance.HIGH),
    text("topic", REQUIRED, "The topic to publish data to", Importance.HIGH, non_empty),
    integer(
        "batch.size",
        2000,
        "The maximum number of records the source task can read from the file each time it is polled",
    ),
)
#: How long a poll waits for the file to be created or to grow.
_WAIT_S: Final = 1.0
_READ_BYTES: Final = 65_536
_STANDARD_INPUT: Final = 0
_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_LONGEST_LINE_BYTES: Final = 64 * 1024 * 1024


class FileStreamSourceConnector(SourceConnector):
    """``org.apache.kafka.connect.file.FileStreamSourceConnector``, with one task for one file."""

    _props: Props

    @classmethod
    def version(cls) -> str:
        return KAFKA_VERSION

    @classmethod
    def task_class(cls) -> str:
        return "org.apache.kafka.connect.file.FileStreamSourceTask"

    @classmethod
    def config_def(cls) -> ConfigDef:
        return _CONFIG

    async def start(self, props: Props) -> None:
        self._props = props
        log.info("Starting file source connector reading from %s", _filename(props) or "standard input")

    async def task_configs(self, max_tasks: int) -> Sequence[Props]:
        return [self._props]

    def make_task(self) -> FileStreamSourceTask:
        return FileStreamSourceTask()

    def exactly_once_support(self, props: Props) -> ExactlyOnceSupport:
        """Return SUPPORTED for a file, which can be read again from a position, unlike the standard input."""
        return ExactlyOnceSupport.UNSUPPORTED if _filename(props) is None else ExactlyOnceSupport.SUPPORTED

    async def alter_offsets(
        self, props: Props, offsets: Sequence[tuple[Mapping[str, Any], Mapping[str, Any] | None]]
    ) -> bool:
        if _filename(props) is None:
            raise PermanentError(
                "Offsets cannot be modified if the 'file' configuration is unspecified. "
                "This is because stdin is used for input and offsets are not tracked."
            )
        for partition, offset in offsets:
            # A tombstone is valid for any partition: it removes an entry that should not exist.
            if offset is not None:
                _check_position(offset)
                if FILENAME not in partition:
                    raise PermanentError(f"Partition objects should contain the key '{FILENAME}'")
        return True


class FileStreamSourceTask(SourceTask):
    """A task that reads a file from its stored position, or the standard input."""

    def __init__(self) -> None:
        self._filename: str | None = None
        self._topic = ""
        self._batch_size = 1
        self._file: int | None = None
        self._lines = _Lines(0)
        self._missing = False

    def start(self, props: Props) -> None:
        values = _CONFIG.parse(props)
        self._filename = _filename(props)
        self._topic = values.string("topic")
        self._batch_size = max(values.integer("batch.size"), 1)

    def poll(self) -> Sequence[SourceRecord] | None:
        if self._file is None and not self._open():
            time.sleep(_WAIT_S)
            return None
        ready = self._lines.ready
        while len(ready) < self._batch_size and self._read():
            pass
        if not ready:
            time.sleep(_WAIT_S)
            return None
        # As in Java, the timestamp is the time at which the line was read.
        now_ms = time.time_ns() // 1_000_000
        return [self._record(*ready.popleft(), now_ms) for _ in range(min(len(ready), self._batch_size))]

    def stop(self) -> None:
        if self._file is not None and self._filename is not None:
            os.close(self._file)
        self._file = None

    def _open(self) -> bool:
        """Open the file at its stored position; return whether it exists."""
        if self._filename is None:
            self._file = _STANDARD_INPUT
            return True
        if self._open_file(self._filename, self._stored_position()):
            return True
        if not self._missing:
            log.warning("Couldn't find file %s, waiting for it to be created", self._filename)
        self._missing = True
        return False

    def _open_file(self, filename: str, position: int) -> bool:
        try:
            # Nonblocking, because a pipe may have no writer yet.
            self._file = os.open(filename, os.O_RDONLY | os.O_NONBLOCK)
            if position:
                os.lseek(self._file, position, os.SEEK_SET)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise PermanentError(f"file {filename} cannot be read: {error.strerror}") from error
        self._lines = _Lines(position)
        return True

    def _stored_position(self) -> int:
        offset = self.context.wait_for(self.context.offset_reader.offset({FILENAME: self._filename}))
        position = None if offset is None else offset.get(POSITION)
        if position is None:
            return 0
        if not isinstance(position, int) or isinstance(position, bool) or position < 0:
            raise PermanentError(
                f"Offset position is the incorrect type: {position!r} is stored for file {self._filename}; "
                "alter or reset the connector's offsets"
            )
        return position

    def _read(self) -> bool:
        """Read a block; return whether there was data."""
        assert self._file is not None
        waiting = select.poll()
        try:
            waiting.register(self._file, select.POLLIN)
            data = os.read(self._file, _READ_BYTES) if waiting.poll(0) else b""
        except BlockingIOError:
            return False
        except OSError as error:
            raise PermanentError(f"{self._name()} cannot be read: {error.strerror}") from error
        self._lines.feed(data)
        if self._lines.unfinished_bytes > _LONGEST_LINE_BYTES:
            raise PermanentError(
                f"{self._name()} has a line of more than {_LONGEST_LINE_BYTES} bytes at position "
                f"{self._lines.position}; it is not a text file"
            )
        return bool(data)

    def _record(self, line: str, position: int, now_ms: int) -> SourceRecord:
        return SourceRecord(
            source_partition={FILENAME: self._filename},
            source_offset={POSITION: None if self._filename is None else position},
            topic=self._topic,
            value=line,
            value_schema=STRING,
            timestamp_ms=now_ms,
        )

    def _name(self) -> str:
        return "the standard input" if self._filename is None else f"file {self._filename}"


class _Lines:
    r"""A splitter of bytes into lines at ``\n``, ``\r\n`` and ``\r``. ``ready`` holds complete lines, each with the
    position after it; ``position`` is the start of the next line."""

    def __init__(self, position: int) -> None:
        self.position = position
        self.ready: deque[tuple[str, int]] = deque()
        self._data = bytearray()
        #: The index up to which no line ends.
        self._searched = 0

    @property
    def unfinished_bytes(self) -> int:
        return len(self._data)

    def feed(self, data: bytes) -> None:
        self._data += data
        start = 0
        while (found := _LINE_END.search(self._data, self._searched)) is not None:
            # The next byte may be the line feed that belongs to this carriage return.
            if found[0] == b"\r" and found.end() == len(self._data):
                self._searched = found.start()
                break
            self.position += found.end() - start
            self.ready.append((self._data[start : found.start()].decode(errors="replace"), self.position))
            start = self._searched = found.end()
        else:
            self._searched = len(self._data)
        del self._data[:start]
        self._searched -= start


def _filename(props: Props) -> str | None:
    """Return the file to read; None: the standard input."""
    value = _CONFIG.parse(props)["file"]
    return value if isinstance(value, str) and value else None


def _check_position(offset: Mapping[str, Any]) -> None:
    if POSITION not in offset:
        raise PermanentError(f"Offset objects should either be null or contain the key '{POSITION}'")
    position = offset[POSITION]
    if not isinstance(position, int) or isinstance(position, bool):
        raise PermanentError(f"The value for the '{POSITION}' key in the offset is expected to be a Long value")
    if position < 0:
        raise PermanentError(f"The value for the '{POSITION}' key in the offset should be a non-negative value")
