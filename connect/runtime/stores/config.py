"""The config topic: its records in order, and writes that are read back (Kafka's ``KafkaConfigBackingStore``)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from connect.core.configlog import Record
from connect.core.errors import ConfigError, RetriableError
from connect.core.events import ConfigRecord
from connect.core.model import NewTopic
from connect.kafka.admin import Admin
from connect.kafka.cluster import Cluster
from connect.kafka.compacted import CompactedLog
from connect.kafka.producer import OutRecord, TransactionalWriter
from connect.kafka.topiclog import LogRecord, ensure_compacted_topic, partition_count

#: Java's ``READ_WRITE_TOTAL_TIMEOUT_MS``.
_WRITE_TIMEOUT_S: Final = 30.0
#: What is written with waits as long, and has this time to say what for.
_REASON_S: Final = 0.5
_START_TIMEOUT_S: Final = 60.0


class LeaseOver(RetriableError):
    """A leader that may not be one any more does not write."""


class LeaderWriter(NamedTuple):
    """How a leader writes where exactly-once is prepared or enabled: who leads next shuts it out."""

    cluster: Cluster
    transactional_id: str


class ConfigStore:
    """The config topic of a group.

    Args:
        on_record: Handed every record in order, in the worker's loop; must neither block nor raise.
        on_begin_anew: Called before all records are handed over once more, since the topic is another one than before.
        leader: None where everybody writes plainly.
        read_committed: Whether records of transactions that were not committed are left out.
    """

    def __init__(
        self,
        cluster: Cluster,
        admin: Admin,
        topic: NewTopic,
        on_record: Callable[[ConfigRecord], None],
        on_begin_anew: Callable[[], None],
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
        self._log = CompactedLog(cluster, topic.name, self._read, on_begin_anew, read_committed=read_committed)

    async def start(self, timeout_s: float = _START_TIMEOUT_S) -> None:
        """Make or check the topic, read it to its end, and follow it from then on.

        Raises:
            ConfigError: the topic is not compacted, or has several partitions.
            SecurityError: rights are missing; names them.
            RetriableError: the cluster did not answer in time.
        """
        topic = self._topic
        await ensure_compacted_topic(self._admin, replace(topic, partitions=1), timeout_s=timeout_s)
        partitions = await partition_count(self._cluster, topic.name, timeout_s=timeout_s)
        if partitions > 1:
            raise ConfigError(
                f"Topic '{topic.name}' supplied via the 'config.storage.topic' property is required to have a single "
                f"partition in order to guarantee consistency of connector configurations, but found {partitions} "
                "partitions; name another topic, or delete this one and let the worker make it",
                "config.storage.topic",
            )
        await self._log.start(timeout_s)

    async def stop(self) -> None:
        self._writer = None
        await self._log.stop()

    async def ended(self) -> Exception | None:
        """Wait until nothing is read any more, and return why; None after :meth:`stop`."""
        return await self._log.ended()

    async def read_to_end(self, timeout_s: float) -> None:
        """Returns once all that was in the topic at the call has been handed on.

        Raises:
            RetriableError: not within ``timeout_s``.
        """
        await self._log.read_to_end(timeout_s)

    async def claim(self) -> None:
        """Become the topic's only transactional writer; nothing to do where everybody writes plainly.

        Raises:
            SecurityError: rights for the transactional id are missing; names them.
            RetriableError: the cluster did not answer in time.
        """
        if self._leader is None:
            return
        # A new one each time: an identity that was shut out must not be in the way of leading again.
        self._writer = None
        writer = TransactionalWriter(*self._leader, timeout_s=_WRITE_TIMEOUT_S)
        await writer.open()
        self._writer = writer

    async def write(
        self, steps: Sequence[Sequence[Record]], *, as_leader: bool = True, leased: Callable[[], bool] = lambda: True
    ) -> None:
        """Append each step's records at once, and read them back before the next.

        Callers write one after the other. What a leader writes is a transaction a step where there is a leader's
        writer, which claims the topic first where :meth:`claim` has not been called, or has failed. No step of a
        leader's is begun where ``leased`` is false: another worker may lead by then, and nothing fences plain writes.

        Raises:
            Superseded: another leader has claimed the topic; so will every later write until :meth:`claim`.
            LeaseOver: ``leased`` was false; perhaps some was written.
            SecurityError: rights are missing; names them.
            RetriableError: not all was written and read back within 30 s; perhaps some was.
        """
        try:
            async with asyncio.timeout(_WRITE_TIMEOUT_S + _REASON_S):
                for step in steps:
                    if as_leader and not leased():
                        raise LeaseOver(
                            f"topic {self._topic.name} of cluster {self._cluster.name}: the group has not answered "
                            "this worker for so long that another one may lead; perhaps a part was written"
                        )
                    await self._append(step, as_leader)
                    await self._log.read_to_end(_WRITE_TIMEOUT_S)
        except TimeoutError as error:
            raise RetriableError(
                f"topic {self._topic.name} of cluster {self._cluster.name}: a change was not written and read back "
                f"within {_WRITE_TIMEOUT_S:g} s; perhaps a part of it was written"
            ) from error

    async def _append(self, step: Sequence[Record], as_leader: bool) -> None:
        records = [OutRecord(self._topic.name, key.encode(), value) for key, value in step]
        if not as_leader or self._leader is None:
            await self._log.write(records, _WRITE_TIMEOUT_S)
            return
        if self._writer is None:
            await self.claim()
        assert self._writer is not None
        await self._writer.write(records)

    def _read(self, record: LogRecord) -> None:
        key = None if record.key is None else record.key.decode(errors="replace")
        self._on_record(ConfigRecord(record.offset, key, record.value))
