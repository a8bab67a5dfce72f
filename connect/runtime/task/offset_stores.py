"""Opens the offsets of connectors, and follows the offset topics of their own (``offsets.storage.topic``).

Like Kafka's ``Worker.offsetStoreForRegularSourceTask``. A worker follows a connector's own topic once for the connector
and all its tasks, while one of them uses it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, NamedTuple

from connect.api.source import RecordMetadata
from connect.core.config.worker_config import WorkerConfig
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import settle
from connect.kafka.log.compacted_log import CompactedLog
from connect.kafka.log.compacted_topic import LogRecord, ensure_compacted_topic
from connect.kafka.log.producer import PlainWriter
from connect.kafka.log.topic_admin import Admin
from connect.kafka.security.connection_settings import ConnectionSettings, open_stores, parse_bootstrap
from connect.runtime.task import client_configs
from connect.runtime.task.connector_offsets import ConnectorOffsets, OffsetTopic, Values
from connect.runtime.task.record_delivery import OutgoingRecord, RecordProducer
from connect.runtime.task.source_config import source_settings

_READ_TIMEOUT_S: Final = 120.0
_CLOSE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class _Place:
    """A topic, and the connection of each kind of client to its cluster."""

    topic: str
    consumer: ConnectionSettings
    producer: ConnectionSettings
    admin: ConnectionSettings


class _Open(NamedTuple):
    """A followed topic, and what closes it."""

    topic: OffsetTopic
    closing: AsyncExitStack


@dataclass(eq=False, slots=True)
class _Followed:
    """A followed topic and the number of its users, those that wait for it included."""

    place: _Place
    users: int = 0
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    open: _Open | None = None


class OffsetStores:
    """The offsets of connectors on one worker; the owner of ``worker_topic`` follows it."""

    def __init__(self, config: WorkerConfig, worker_topic: OffsetTopic) -> None:
        self._config = config
        self._worker_topic = worker_topic
        self._followed: list[_Followed] = []

    async def open(self, connector: str, props: Mapping[str, str]) -> ConnectorOffsets:
        """Open the offsets of a connector with resolved ``props``; the caller closes them. Raises ConfigError if a
        setting is wrong, or the topic's cleanup policy is not just compact, SecurityError if authentication failed or
        authorization is missing, and RetriableError if the topic could not be created or read in time."""
        await open_stores(props)  # for all clients of the connector
        topic = self._own_topic(props)
        if topic is None:
            return ConnectorOffsets(connector, self._worker_topic)
        connection = partial(client_configs.client_connection, self._config, props)
        place = _Place(
            topic, connection("consumer", connector), connection("producer", connector), connection("admin", connector)
        )
        followed = next((each for each in self._followed if each.place == place), None)
        if followed is None:
            followed = _Followed(place)
            self._followed.append(followed)
        followed.users += 1
        try:
            # One lock per topic, because a cluster that does not answer must not block users of others.
            async with followed.opening:
                if followed.open is None:
                    followed.open = await self._follow(place)
        except BaseException:
            await self._release(followed)
            raise
        return ConnectorOffsets(connector, followed.open.topic, self._worker_topic, partial(self._release, followed))

    @asynccontextmanager
    async def opened(
        self, connector: str, props: Mapping[str, str], for_writing: bool
    ) -> AsyncIterator[ConnectorOffsets]:
        """Open the offsets of a connector as a context, for REST. Under exactly-once they are written in a transaction
        of the connector's task 0, which fences that task. Raises ConfigError, SecurityError or RetriableError."""
        offsets = await self.open(connector, props)
        try:
            if not (for_writing and self._config.exactly_once_enabled):
                yield offsets
                return
            transactional_id = client_configs.task_transactional_id(self._config.group_id, connector, 0)
            producer = RecordProducer(
                client_configs.producer_settings(self._config, props, f"{connector}-0", transactional_id)
            )
            try:
                await producer.start()
                offsets.written_by(partial(_write_transaction, producer))
                yield offsets
            finally:
                await producer.close(_CLOSE_S)
        finally:
            await offsets.close(_CLOSE_S)

    def _own_topic(self, props: Mapping[str, str]) -> str | None:
        """Return the connector's topic if it is not the worker's, on whichever cluster."""
        worker_name = self._config.offset_topic.name
        named = source_settings(props).offsets_topic
        if named is None and not self._config.exactly_once_enabled:
            return None
        # A transaction cannot span clusters: under exactly-once the offsets are on the cluster of the records.
        topic = named or worker_name
        return None if topic == worker_name and self._is_workers_cluster(props) else topic

    def _is_workers_cluster(self, props: Mapping[str, str]) -> bool:
        theirs = client_configs.client_props(self._config, props, "producer").get("bootstrap.servers")
        ours = self._config.client_props("admin").get("bootstrap.servers")
        return set(parse_bootstrap(theirs, "producer")) == set(parse_bootstrap(ours, "worker"))

    async def _follow(self, place: _Place) -> _Open:
        async with AsyncExitStack() as closing:
            admin = Admin(place.admin)
            closing.push_async_callback(admin.close)
            await ensure_compacted_topic(admin, replace(self._config.offset_topic, name=place.topic))
            reading, writing = Cluster(place.consumer), Cluster(place.producer)
            closing.push_async_callback(reading.close)
            closing.push_async_callback(writing.close)

            def opened(on_record: Callable[[LogRecord], None], on_reset: Callable[[], None]) -> CompactedLog:
                return CompactedLog(reading, place.topic, on_record, on_reset, read_committed=True, only_last=True)

            topic = OffsetTopic(place.topic, opened, PlainWriter(writing).write)
            await topic.start(_READ_TIMEOUT_S)
            closing.push_async_callback(topic.stop)
            return _Open(topic, closing.pop_all())

    async def _release(self, followed: _Followed) -> None:
        followed.users -= 1
        if followed.users == 0:
            self._followed.remove(followed)
            if followed.open is not None:
                await followed.open.closing.aclose()


async def _write_transaction(producer: RecordProducer, topic: str, values: Values) -> None:
    outcomes: list[asyncio.Future[RecordMetadata | None]] = []
    await producer.begin()
    for key, value in values.items():
        outcome: asyncio.Future[RecordMetadata | None] = asyncio.get_running_loop().create_future()
        outcomes.append(outcome)
        await producer.send(OutgoingRecord(topic, key, value), partial(settle, outcome))
    await asyncio.gather(*outcomes)
    await producer.end(commit=True)
