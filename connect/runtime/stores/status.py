"""The status topic: what is known of connectors and tasks, and a queue of what is to be said of ours (Kafka's
``KafkaStatusBackingStore``).

Of what waits to be written only the newest of a key is kept, so the queue is never longer than there are connectors,
tasks and topics in use. A worker does not wait for its statuses, and shows none before it has read it back.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from itertools import islice
from typing import Final

from connect.core.errors import PermanentError, RetriableError, SecurityError
from connect.core.model import NewTopic, Status, TaskId
from connect.core.statuslog import (
    Record,
    StatusLog,
    TopicUse,
    may_write_safely,
    status_key,
    status_record,
    topic_record,
    topic_removal,
)
from connect.kafka.admin import Admin
from connect.kafka.cluster import Cluster
from connect.kafka.compacted import CompactedLog
from connect.kafka.concurrency import Scope
from connect.kafka.patience import Patience
from connect.kafka.producer import OutRecord
from connect.kafka.topiclog import LogRecord, ensure_compacted_topic
from connect.kafka.unreadable import pass_over

log = logging.getLogger(__name__)

_START_TIMEOUT_S: Final = 60.0
_FLUSH_TIMEOUT_S: Final = 5.0
_CATCH_UP_TIMEOUT_S: Final = 5.0
_AT_ONCE: Final = 500
_RETRY_FIRST_MS: Final = 100
_RETRY_LAST_MS: Final = 5_000


@dataclass(slots=True)
class _Waiting:
    """A record to be written, and the status in it. ``tried``: it was sent before, and not acknowledged."""

    record: Record
    work: str | TaskId | None = None
    status: Status | None = None
    safe: bool = False
    tried: bool = False


class StatusStore:
    """The status topic of a group; ``log`` is what it says."""

    def __init__(self, cluster: Cluster, admin: Admin, topic: NewTopic) -> None:
        self.log = StatusLog()
        self._admin = admin
        self._topic = topic
        self._followed = CompactedLog(cluster, topic.name, self._read, self._begin_anew)
        self._waiting: dict[str, _Waiting] = {}
        #: Ours, as statuses have it.
        self._worker_id: str | None = None
        self._arrived = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._at_once = _AT_ONCE
        self._scope = Scope(f"statuses to {topic.name}")
        self._writing: asyncio.Task[None] | None = None
        self._patience = Patience(log, f"writing to {topic.name}", _RETRY_FIRST_MS, _RETRY_LAST_MS)

    async def start(self, timeout_s: float = _START_TIMEOUT_S) -> None:
        """Make or check the topic, read it to its end, follow it, and write what was put.

        Raises:
            ConfigError: the topic is not compacted.
            SecurityError: rights are missing; names them.
            RetriableError: the cluster did not answer in time.
        """
        topic = self._topic
        await ensure_compacted_topic(self._admin, topic, timeout_s=timeout_s)
        await self._followed.start(timeout_s)
        self._scope = Scope(f"statuses to {topic.name}")
        self._writing = self._scope.spawn(self._write_all(), f"statuses to {topic.name}")
        self._writing.add_done_callback(self._report)

    async def stop(self) -> None:
        """Write what still waits, within 5 s, and end."""
        if self._writing is not None:
            try:
                async with asyncio.timeout(_FLUSH_TIMEOUT_S):
                    await self._idle.wait()
            except TimeoutError:
                log.warning("%d statuses were not written to %s before the end", len(self._waiting), self._topic.name)
            await self._scope.close()
            self._writing = None
        await self._followed.stop()

    async def ended(self) -> Exception | None:
        """Wait until nothing is read any more, and return why; None after :meth:`stop`."""
        return await self._followed.ended()

    async def read_to_end(self, timeout_s: float) -> None:
        """Returns once ``log`` holds all that was in the topic at the call. Raises RetriableError where that takes
        longer than ``timeout_s``."""
        await self._followed.read_to_end(timeout_s)

    def put(self, work: str | TaskId, status: Status, *, safe: bool = False) -> None:
        """Say what a connector, by name, or a task does; written soon, and tried until it is.

        ``safe``: left out where somebody with a newer generation has said something else. That also holds for each
        repeat of a write that failed.
        """
        self._worker_id = status.worker_id
        self._put(_Waiting(status_record(work, status), work, status, safe))

    def topic_used(self, use: TopicUse) -> None:
        """Say that a connector uses a topic, unless that is known."""
        if not self.log.has_topic(use.connector, use.topic):
            self._put(_Waiting(topic_record(use)))

    def forget_topics(self, connector: str) -> None:
        """Forget all topics that a connector was known to use."""
        for use in self.log.topics(connector):
            self._put(_Waiting(topic_removal(use.topic, connector)))

    def _put(self, waiting: _Waiting) -> None:
        self._waiting[waiting.record[0]] = waiting
        self._idle.clear()
        self._arrived.set()

    def _begin_anew(self) -> None:
        """The topic is another one than before: what it said is forgotten, and each worker says its own once more."""
        for work, status in self.log.said_by(self._worker_id) if self._worker_id is not None else ():
            if status_key(work) not in self._waiting:
                self._put(_Waiting(status_record(work, status), work, status, safe=True))
        self.log.clear()

    def _read(self, record: LogRecord) -> None:
        key = None if record.key is None else record.key.decode(errors="replace")
        if (
            key is not None
            and record.value is None
            and (waiting := self._waiting.get(key)) is not None
            and waiting.tried
        ):
            # It is gone, and a repeat would bring it back.
            del self._waiting[key]
        why = self.log.apply(key, record.value)
        if why is not None:
            pass_over(f"topic {self._topic.name}", record.partition, record.offset, why)

    async def _write_all(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._waiting:
                await self._write_some()
            self._at_once = _AT_ONCE
            self._idle.set()

    async def _write_some(self) -> None:
        batch = dict(islice(self._waiting.items(), self._at_once))
        if any(waiting.safe for waiting in batch.values()) and not await self._catch_up():
            return
        # While others were read, a newer one may have come, or what was tried before may have been deleted.
        batch = {key: waiting for key, waiting in batch.items() if self._waiting.get(key) is waiting}
        for key, waiting in batch.items():
            if self._is_outdated(waiting):
                del self._waiting[key]
            waiting.tried = True
        wanted = [waiting.record for key, waiting in batch.items() if key in self._waiting]
        try:
            await self._followed.write([OutRecord(self._topic.name, key.encode(), value) for key, value in wanted])
        except RetriableError as error:
            await self._patience.after(error)
            return
        except PermanentError as error:
            if len(wanted) > 1 and not isinstance(error, SecurityError):
                # Perhaps one alone is at fault, with a trace that is too large: each for itself.
                self._at_once = 1
                return
            log.error("%d statuses are not written to %s: %s", len(wanted), self._topic.name, error)
        else:
            self._patience.over()
        for key, waiting in batch.items():
            # A newer one may have come meanwhile.
            if self._waiting.get(key) is waiting:
                del self._waiting[key]

    async def _catch_up(self) -> bool:
        """Read what others have said: whoever was frozen has yet to hear of it. Whether that went well."""
        try:
            await self._followed.read_to_end(_CATCH_UP_TIMEOUT_S)
        except RetriableError as error:
            await self._patience.after(error)
            return False
        return True

    def _is_outdated(self, waiting: _Waiting) -> bool:
        if waiting.work is None or waiting.status is None or not (waiting.safe or waiting.tried):
            return False
        return not may_write_safely(self.log.status(waiting.work), waiting.status)

    def _report(self, writing: asyncio.Task[None]) -> None:
        self._idle.set()
        if not writing.cancelled() and (error := writing.exception()) is not None:
            log.critical("statuses are written no longer; this is a defect, please report it", exc_info=error)
