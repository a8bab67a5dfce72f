"""Reads and writes the config topic and the status topic of a worker.

* Config topic: records in order, and writes that are read back (Kafka's ``KafkaConfigBackingStore``).
* Status topic: statuses of connectors and tasks, and a queue of statuses that this worker reports (Kafka's
  ``KafkaStatusBackingStore``). The queue keeps only the newest value per key, which bounds its length. A worker does
  not wait until its statuses are written, and shows only statuses that it has read back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, NamedTuple

from connect.core import status_and_offset_topics
from connect.core.config_topic import Record
from connect.core.errors import ConfigError, PermanentError, RetriableError, SecurityError
from connect.core.herder.events import ConfigRecord
from connect.core.model import NewTopic, Status, TaskId
from connect.core.status_and_offset_topics import Record as StatusRecord
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import Backoff, Scope, is_set_within
from connect.kafka.log.compacted_log import CompactedLog
from connect.kafka.log.compacted_topic import LogRecord, ensure_compacted_topic, partition_count, pass_over
from connect.kafka.log.producer import OutRecord, TransactionalWriter
from connect.kafka.log.topic_admin import Admin

#: Java's ``READ_WRITE_TOTAL_TIMEOUT_MS``.
_WRITE_TIMEOUT_S: Final = 30.0
#: Added to a write's timeout, so that its own error with the reason comes first.
_REASON_S: Final = 0.5
_START_TIMEOUT_S: Final = 60.0


class LeadershipLeaseOver(RetriableError):
    """A leader does not write because another worker may lead."""


class LeaderWriter(NamedTuple):
    """How a leader writes with exactly-once prepared or enabled: the next leader fences it."""

    cluster: Cluster
    transactional_id: str


class ConfigStore:
    """The config topic of a group. ``on_record`` gets every record in order, in the worker's loop, and must neither
    block nor raise; ``on_begin_anew`` is called before all are read again because the topic was recreated. ``leader``
    is None if no writes are transactional."""

    def __init__(
        self,
        cluster: Cluster,
        admin: Admin,
        topic: NewTopic,
        on_record: Callable[[ConfigRecord], None],
        on_reset: Callable[[], None],
        *,
        leader: LeaderWriter | None = None,
        read_committed: bool = False,
    ) -> None:
        self._cluster = cluster
        self._admin = admin
        self._topic = topic
        self._on_record = on_record
        self._leader = leader
        self._writer: TransactionalWriter | None = None
        self.followed = CompactedLog(cluster, topic.name, self._read, on_reset, read_committed=read_committed)

    async def start(self, timeout_s: float = _START_TIMEOUT_S) -> None:
        """Create or check the topic, read it to its end, and follow it from then on. Raises ConfigError if the topic is
        not compacted or has several partitions, SecurityError if authorization is missing, and RetriableError if the
        cluster did not answer in time."""
        topic = self._topic
        await ensure_compacted_topic(self._admin, replace(topic, partitions=1), timeout_s=timeout_s)
        partitions = await partition_count(self._cluster, topic.name, timeout_s=timeout_s)
        if partitions > 1:
            raise ConfigError(
                f"Topic '{topic.name}' supplied via the 'config.storage.topic' property is required to have a single "
                f"partition in order to guarantee consistency of connector configurations, but found {partitions} "
                "partitions; name another topic, or delete this one and let the worker create it",
                "config.storage.topic",
            )
        await self.followed.start(timeout_s)

    async def stop(self) -> None:
        self._writer = None
        await self.followed.stop()

    async def read_to_end(self, timeout_s: float) -> None:
        """Return once all records now in the topic have been read. Raises RetriableError after ``timeout_s``."""
        await self.followed.read_to_end(timeout_s)

    async def claim(self) -> None:
        """Become the topic's only transactional writer; do nothing if no writes are transactional. Raises SecurityError
        if authorization for the transactional id is missing, and RetriableError if the cluster did not answer in
        time."""
        if self._leader is None:
            return
        # A new writer each time, because a fenced writer cannot be used when this worker leads again.
        self._writer = None
        writer = TransactionalWriter(*self._leader, timeout_s=_WRITE_TIMEOUT_S)
        await writer.open()
        self._writer = writer

    async def write(
        self, steps: Sequence[Sequence[Record]], *, as_leader: bool = True, leased: Callable[[], bool] = lambda: True
    ) -> None:
        """Append the records of each step together, and read them back before the next step.

        Only one caller writes at a time. A leader with a transactional writer writes each step in a transaction, and
        first claims the topic if :meth:`claim` was not called or failed. A leader begins no step if ``leased`` is
        false: another worker may lead by then, and nothing fences plain writes.

        Raises:
            Superseded: Another leader has claimed the topic; every later write fails too, until :meth:`claim`.
            LeadershipLeaseOver: ``leased`` was false; a part may have been written.
            SecurityError: Authorization is missing; the message names it.
            RetriableError: Not all was written and read back within 30 s; a part may have been written.
        """
        try:
            async with asyncio.timeout(_WRITE_TIMEOUT_S + _REASON_S):
                for step in steps:
                    if as_leader and not leased():
                        raise LeadershipLeaseOver(
                            f"topic {self._topic.name} of cluster {self._cluster.name}: not written, because the group "
                            "did not answer this worker and another may lead. A part may have been written."
                        )
                    await self._append(step, as_leader)
                    await self.followed.read_to_end(_WRITE_TIMEOUT_S)
        except TimeoutError as error:
            raise RetriableError(
                f"topic {self._topic.name} of cluster {self._cluster.name}: a change was not written and read back "
                f"within {_WRITE_TIMEOUT_S:g} s. A part may have been written."
            ) from error

    async def _append(self, step: Sequence[Record], as_leader: bool) -> None:
        records = [OutRecord(self._topic.name, key.encode(), value) for key, value in step]
        if not as_leader or self._leader is None:
            await self.followed.write(records, _WRITE_TIMEOUT_S)
            return
        if self._writer is None:
            await self.claim()
        assert self._writer is not None
        await self._writer.write(records)

    def _read(self, record: LogRecord) -> None:
        key = None if record.key is None else record.key.decode(errors="replace")
        self._on_record(ConfigRecord(record.offset, key, record.value))


log = logging.getLogger(__name__)
_FLUSH_TIMEOUT_S: Final = 5.0
_CATCH_UP_TIMEOUT_S: Final = 5.0
_AT_ONCE: Final = 500
_RETRY_FIRST_MS: Final = 100
_RETRY_LAST_MS: Final = 5_000


@dataclass(slots=True)
class _Waiting:
    """A record to write, and its status. ``tried``: it was sent before, and not acknowledged."""

    record: StatusRecord
    work: str | TaskId | None = None
    status: Status | None = None
    safe: bool = False
    tried: bool = False


class StatusStore:
    """The status topic of a group; ``log`` is its content."""

    def __init__(self, cluster: Cluster, admin: Admin, topic: NewTopic) -> None:
        self.log = status_and_offset_topics.StatusLog()
        self._admin = admin
        self._topic = topic
        self.followed = CompactedLog(cluster, topic.name, self._read, self._reset_log)
        self._waiting: dict[str, _Waiting] = {}
        #: This worker's id in statuses.
        self._worker_id: str | None = None
        self._arrived = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._at_once = _AT_ONCE
        self._scope = Scope(f"statuses to {topic.name}")
        self._writing: asyncio.Task[None] | None = None
        self._backoff = Backoff(log, f"writing to {topic.name}", _RETRY_FIRST_MS, _RETRY_LAST_MS)

    async def start(self, timeout_s: float = _START_TIMEOUT_S) -> None:
        """Create or check the topic, read it to its end, follow it, and write queued statuses. Raises ConfigError if
        the topic is not compacted, SecurityError if authorization is missing, and RetriableError if the cluster did not
        answer in time."""
        topic = self._topic
        await ensure_compacted_topic(self._admin, topic, timeout_s=timeout_s)
        await self.followed.start(timeout_s)
        self._scope = Scope(f"statuses to {topic.name}")
        self._writing = self._scope.spawn(self._write_all(), f"statuses to {topic.name}")
        self._writing.add_done_callback(self._report)

    async def stop(self) -> None:
        """Write queued statuses within 5 s, then stop."""
        if self._writing is not None:
            if not await is_set_within(self._idle, _FLUSH_TIMEOUT_S):
                log.warning("%d statuses were not written to %s before the stop", len(self._waiting), self._topic.name)
            await self._scope.close()
            self._writing = None
        await self.followed.stop()

    def put(self, work: str | TaskId, status: Status, *, safe: bool = False) -> None:
        """Queue the status of a connector, by name, or task; writes are retried until they succeed. ``safe``: not
        written if a worker with a newer generation has written another status. This also applies to each retry of a
        failed write."""
        self._worker_id = status.worker_id
        self._put(_Waiting(status_and_offset_topics.status_record(work, status), work, status, safe))

    def topic_used(self, use: status_and_offset_topics.TopicUse) -> None:
        """Queue that a connector uses a topic, unless that is written or queued."""
        if not self.log.has_topic(use.connector, use.topic):
            record = status_and_offset_topics.topic_record(use)
            if record[0] not in self._waiting:
                self._put(_Waiting(record))

    def forget_topics(self, connector: str) -> None:
        for use in self.log.topics(connector):
            self._put(_Waiting(status_and_offset_topics.topic_removal(use.topic, connector)))

    def _put(self, waiting: _Waiting) -> None:
        self._waiting[waiting.record[0]] = waiting
        self._idle.clear()
        self._arrived.set()

    def _reset_log(self) -> None:
        """Clear ``log`` because the topic was recreated, and queue this worker's own statuses again."""
        for work, status in self.log.said_by(self._worker_id) if self._worker_id is not None else ():
            if status_and_offset_topics.status_key(work) not in self._waiting:
                self._put(_Waiting(status_and_offset_topics.status_record(work, status), work, status, safe=True))
        self.log.clear()

    def _read(self, record: LogRecord) -> None:
        key = None if record.key is None else record.key.decode(errors="replace")
        if (
            key is not None
            and record.value is None
            and (waiting := self._waiting.get(key)) is not None
            and waiting.tried
        ):
            # It was deleted; a retry would bring it back.
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
        # Meanwhile a newer status may have come, or a status that was sent before may have been deleted.
        batch = {key: waiting for key, waiting in batch.items() if self._waiting.get(key) is waiting}
        for key, waiting in batch.items():
            if self._is_outdated(waiting):
                del self._waiting[key]
            waiting.tried = True
        wanted = [waiting.record for key, waiting in batch.items() if key in self._waiting]
        try:
            await self.followed.write([OutRecord(self._topic.name, key.encode(), value) for key, value in wanted])
        except RetriableError as error:
            await self._backoff.after(error)
            return
        except PermanentError as error:
            if len(wanted) > 1 and not isinstance(error, SecurityError):
                # One record may be the cause, with a trace that is too large: write each separately.
                self._at_once = 1
                return
            log.error("%d statuses could not be written to %s: %s", len(wanted), self._topic.name, error)
        else:
            self._backoff.over()
        for key, waiting in batch.items():
            # A newer status may have come meanwhile.
            if self._waiting.get(key) is waiting:
                del self._waiting[key]

    async def _catch_up(self) -> bool:
        """Read what others have written, which a worker that was frozen has not read yet. Return whether it worked."""
        try:
            await self.followed.read_to_end(_CATCH_UP_TIMEOUT_S)
        except RetriableError as error:
            await self._backoff.after(error)
            return False
        return True

    def _is_outdated(self, waiting: _Waiting) -> bool:
        if waiting.work is None or waiting.status is None or not (waiting.safe or waiting.tried):
            return False
        return not status_and_offset_topics.may_write_safely(self.log.status(waiting.work), waiting.status)

    def _report(self, writing: asyncio.Task[None]) -> None:
        self._idle.set()
        if not writing.cancelled() and (error := writing.exception()) is not None:
            log.critical("statuses are no longer written; this is a bug, please report it", exc_info=error)
