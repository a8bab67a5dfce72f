"""MirrorSource's connector: keeps remote topics in step with the source's and hands partitions to tasks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from connect.api.connector import ConnectorContext
from connect.core.errors import HeliographError
from connect.kafka.admin import Admin, NewTopic, TopicExists
from connect.kafka.cluster import Cluster, TopicMetadata
from connectors.dataplane.plan import TopicPartition
from connectors.settings import MirrorSourceSettings
from connectors.source.brokers import OF_SOURCE, OF_TARGET, refuse_old_brokers
from connectors.source.topology import Changes, assign, encode_partitions, missing, selected

log = logging.getLogger(__name__)

_APPEAR_TIMEOUT_S: Final = 30.0
_LOOK_S: Final = 0.1


class MirrorSourceConnector:
    """One flow's connector (Kafka ``MirrorSourceConnector``): discovery, creation, task configs."""

    def __init__(
        self,
        settings: MirrorSourceSettings,
        props: Mapping[str, str],
        source: Cluster,
        target: Cluster,
        admin: Admin,
    ) -> None:
        self._settings = settings
        self._props = props
        self._source = source
        self._target = target
        self._admin = admin
        self._partitions: list[TopicPartition] = []
        self._refreshing: asyncio.Task[None] | None = None

    async def start(self, context: ConnectorContext) -> None:
        """Create what is missing at the target, then look again at every interval.

        Raises :class:`RetriableError` where a cluster does not answer, and what refuses for good;
        :class:`BrokersTooOld` is among it.
        """
        for cluster, needed in ((self._source, OF_SOURCE), (self._target, OF_TARGET)):
            refuse_old_brokers(cluster.name, (await cluster.any_connection()).versions, needed)
        await self._refresh()
        interval_s = self._settings.refresh_topics_interval_s
        if interval_s is not None:
            self._refreshing = asyncio.create_task(
                self._refresh_forever(context, interval_s), name=f"refresh topics {self._settings.flow}"
            )

    def task_configs(self, max_tasks: int) -> list[dict[str, str]]:
        """Java's: the connector's props with ``task.assigned.partitions`` and ``task.index``."""
        return [
            {**self._props, "task.assigned.partitions": encode_partitions(part), "task.index": str(index)}
            for index, part in enumerate(assign(self._partitions, max_tasks))
        ]

    async def stop(self) -> None:
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)

    async def _refresh_forever(self, context: ConnectorContext, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            before = self._partitions
            try:
                await self._refresh()
            except HeliographError as error:
                log.warning("%s: topics could not be refreshed: %s", self._settings.flow, error)
            except Exception as error:
                log.error("%s: topics could not be refreshed", self._settings.flow, exc_info=error)
            if self._partitions != before:
                context.request_task_reconfiguration()

    async def _refresh(self) -> None:
        """Look at both clusters, make what is missing, and set the partitions to copy."""
        settings = self._settings
        topics = selected(settings.should_mirror, (await self._source.metadata(None)).topics)
        remote = {settings.remote_topic(topic.name) for topic in topics}
        target: Mapping[str, TopicMetadata] = (await self._target.metadata(remote)).topics if remote else {}
        changes = missing(settings.remote_topic, topics, target)
        if changes:
            await self._make(changes)
            target = await self._appeared(changes, remote)
        # What is copied already stays, whether its target has a leader at this moment or not: the task waits for one.
        before = set(self._partitions)
        self._partitions = [
            TopicPartition(topic.name, index)
            for topic in topics
            for index in sorted(topic.partitions)
            if (topic.name, index) in before or _has(target, settings.remote_topic(topic.name), index)
        ]
        if not topics:
            log.warning("%s: no topic of cluster %s is selected by topics", settings.flow, settings.source_alias)

    async def _make(self, changes: Changes) -> None:
        factor = self._settings.replication_factor
        made = await self._admin.create_topics(NewTopic(name, count, factor) for name, count in changes.create)
        grown = await self._admin.create_partitions(dict(changes.grow))
        counts = dict((*changes.create, *changes.grow))
        for name, error in (*made.items(), *grown.items()):
            if error is None:
                log.info("%s: %s now has %d partitions", self._settings.flow, name, counts[name])
            elif not isinstance(error, TopicExists):
                # As Java: said, and tried again at the next refresh; the other topics go on.
                log.error("%s: %s", self._settings.flow, error)

    async def _appeared(self, changes: Changes, remote: set[str]) -> Mapping[str, TopicMetadata]:
        """Metadata once brokers tell of what was made; what does not appear in time is left to the next refresh."""
        deadline = asyncio.get_running_loop().time() + _APPEAR_TIMEOUT_S
        while True:
            target = (await self._target.metadata(remote)).topics
            wanted = [(name, count) for name, count in (*changes.create, *changes.grow)]
            if all(_has(target, name, count - 1) for name, count in wanted):
                return target
            if asyncio.get_running_loop().time() > deadline:
                late = ", ".join(name for name, count in wanted if not _has(target, name, count - 1))
                log.warning("%s: the target does not show %s yet", self._settings.flow, late)
                return target
            await asyncio.sleep(_LOOK_S)


def _has(topics: Mapping[str, TopicMetadata], name: str, index: int) -> bool:
    topic = topics.get(name)
    partition = topic.partitions.get(index) if topic else None
    return partition is not None and partition.leader >= 0
