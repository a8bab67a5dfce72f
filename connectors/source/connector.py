"""MirrorSource's connector syncs remote topics with the source, assigns partitions and refuses old brokers. Its jobs
run in Java's order (Kafka ``MirrorSourceConnector.start``) on one :class:`Schedule`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from connect.api.source import SourceConnectorContext
from connect.core.errors import PermanentError
from connect.kafka.cluster import Cluster, TopicMetadata
from connect.kafka.connection import UnsupportedVersion
from connect.kafka.log.topic_admin import Admin
from connectors.config.connector_configs import MirrorSourceSettings
from connectors.connector_base import Schedule
from connectors.formats.types import TopicPartition
from connectors.source.offset_sync_writer import LOOK_EVERY_S, OffsetSyncsTopic
from connectors.topic_sync.acl_sync import AccessSync
from connectors.topic_sync.cluster_changes import AddPartitions, CreateTopic, Refusals, add_partitions, make_topics
from connectors.topic_sync.partition_assignment import (
    ASSIGNED_PARTITIONS,
    assign,
    assigned_before,
    encode_partitions,
    selected,
)
from connectors.topic_sync.remote_topics import ConfigSync, Naming, plan_topics
from connectors.topic_sync.topic_deletion import TopicDeletion


class BrokersTooOld(PermanentError):
    """A cluster lacks an API that an exact copy needs."""


@dataclass(frozen=True, slots=True)
class Needed:
    """A required API version, the first Kafka release that has it, and what brokers can do with it."""

    api: str
    api_key: int
    version: int
    release: str
    purpose: str


OF_SOURCE: Final = Needed("Fetch", 1, 12, "2.7", "report a truncated log to its readers")
OF_TARGET: Final = Needed("DescribeProducers", 61, 0, "2.8", "report what a lost writer has written")


def refuse_old_brokers(cluster: str, offered: Mapping[int, tuple[int, int]], needed: Needed) -> None:
    """Raise :class:`BrokersTooOld` unless ``offered`` (API key to lowest and highest version) has what is needed."""
    highest = offered.get(needed.api_key, (0, -1))[1]
    if highest < needed.version:
        has = f"offer {needed.api} up to version {highest}" if highest >= 0 else f"do not offer {needed.api}"
        raise BrokersTooOld(
            f"cluster {cluster}: its brokers are older than Apache Kafka {needed.release} ({has}), the first release "
            f"that can {needed.purpose}. Upgrade them to {needed.release} or later"
        )


async def refuse_old_clusters(source: Cluster, target: Cluster) -> None:
    """Raise :class:`BrokersTooOld`, or RetriableError if a cluster does not answer."""
    for cluster, needed in ((source, OF_SOURCE), (target, OF_TARGET)):
        refuse_old_brokers(cluster.name, (await cluster.any_connection()).versions, needed)


log = logging.getLogger(__name__)

#: Names of jobs, for log lines.
REFRESH: Final = "refresh topics"
OFFSET_SYNCS: Final = "create the offset-syncs topic"
CONFIGS: Final = "sync topic configs"
LOOK: Final = "poll the source for changes"
DELETIONS: Final = "delete topics that were deleted at the source"
SYNC_ACLS: Final = "sync topic ACLs"

_APPEAR_TIMEOUT_S: Final = 30.0
_LOOK_S: Final = 0.1
#: Polls between Java's intervals take at most this share of the time: after a slow one the next is delayed.
_LOOKS_SHARE: Final = 0.02
#: And so much per partition: a look costs about 10 us of CPU for each, and as much at the broker.
_LOOKS_APART_S: Final = 0.0015


class MirrorSourceConnector:
    """One flow's connector (Kafka ``MirrorSourceConnector``): finds topics, creates remote ones, makes task configs."""

    def __init__(
        self,
        settings: MirrorSourceSettings,
        props: Mapping[str, str],
        source: Cluster,
        target: Cluster,
        admin: Admin,
        access: AccessSync | None = None,
        offset_syncs: OffsetSyncsTopic | None = None,
    ) -> None:
        self._settings, self._props, self._source, self._target = settings, props, source, target
        self._admin, self._access = admin, access
        #: Partitions to copy, in order; None until the first refresh.
        self._partitions: list[TopicPartition] | None = None
        #: Selected partitions, in order; some cannot be copied yet.
        self._selected: list[TopicPartition] = []
        self._naming = Naming({})
        self._refusals = Refusals(settings.flow)
        #: Partition count by source topic, as of the last refresh.
        self._counts: dict[str, int] = {}
        #: Topics of these that the last poll did not find.
        self._missed: set[str] = set()
        #: Whether the target's metadata lacked some of what the last refresh created.
        self._is_late = False
        #: Existing remote topics, by source topic.
        self._remote: dict[str, str] = {}
        self._configs = ConfigSync(settings.flow, source, target, settings.property_filter)
        self._context: SourceConnectorContext | None = None
        self._look_again_s = 0.0
        self._schedule = Schedule(settings.flow, settings.admin_timeout_ms / 1000)
        self._schedule.add(REFRESH, self._refresh_again, settings.refresh_topics_interval_s)
        if offset_syncs is not None:
            self._schedule.add(OFFSET_SYNCS, offset_syncs.ensure, LOOK_EVERY_S, at_once=True)
        if (interval_s := settings.sync_topic_configs_interval_s) is not None:
            self._schedule.add(CONFIGS, self._sync_configs, interval_s, at_once=True)
        if access is not None:
            self._schedule.add(SYNC_ACLS, access.run, settings.access.interval_s, at_once=True)
        if settings.look_interval_ms and settings.refresh_topics_interval_s is not None:
            self._schedule.add(LOOK, self._look, settings.look_interval_ms / 1000)
        self._deletion: TopicDeletion | None = None
        if settings.topic_deletion_delay_ms is not None:
            delay_ms = settings.topic_deletion_delay_ms
            self._deletion = TopicDeletion(settings, delay_ms, source, target, admin)
            self._schedule.add(DELETIONS, self._deletion.run, self._deletion.interval_s, at_once=True)

    async def start(self, context: SourceConnectorContext) -> None:
        """Create missing remote topics, then start the jobs, each at its interval. Raises :class:`RetriableError` if a
        cluster does not answer, and :class:`PermanentError`, such as :class:`BrokersTooOld`. May be called again after
        an error."""
        self._context = context
        await refuse_old_clusters(self._source, self._target)
        await self._refresh()
        self._schedule.begin()

    def task_configs(self, max_tasks: int, present: Sequence[Mapping[str, str]] = ()) -> list[dict[str, str]]:
        """Return Java's task configs: the connector's props with ``task.assigned.partitions`` and ``task.index``.
        Partitions stay in their task of the ``present`` configs if possible. Before the first refresh, no partition is
        removed that ``topics`` still selects."""
        before = assigned_before(present)
        there = {partition for own in before for partition in own}
        if self._partitions is None:
            wanted = sorted(partition for partition in there if self._settings.should_mirror(partition.topic))
        else:
            copied = set(self._partitions)
            wanted = [partition for partition in self._selected if partition in copied or partition in there]
        return [
            {**self._props, ASSIGNED_PARTITIONS: encode_partitions(part), "task.index": str(index)}
            for index, part in enumerate(assign(wanted, max_tasks, before))
        ]

    async def stop(self) -> None:
        await self._schedule.stop()

    def _look_for_deleted(self, missing: Collection[str]) -> None:
        if self._deletion is not None:
            self._deletion.expect(missing)
            self._schedule.hurry(DELETIONS)

    async def _refresh_again(self) -> None:
        assert self._context is not None, "jobs start with the connector"
        before, counts = self._partitions, self._counts
        await self._refresh()
        if gone := counts.keys() - self._counts.keys():
            log.warning(
                "%s: no longer mirrored, because cluster %s does not have them or topics does not select them: %s",
                self._settings.flow,
                self._settings.source_alias,
                ", ".join(sorted(gone)),
            )
            self._look_for_deleted(gone)
        if self._partitions != before:
            self._context.request_task_reconfiguration()

    async def _refresh(self) -> None:
        """Read both clusters' topics, create what is missing, and set the partitions to copy."""
        before = set(self._partitions or ())
        flow, copied = self._settings.flow, frozenset(partition.topic for partition in before)
        plan = await plan_topics(self._settings, self._source, self._target, self._configs, copied, self._named)
        topics, naming, target = plan.topics, plan.naming, plan.target
        if not topics:
            log.warning("%s: no topic of cluster %s is selected by topics", flow, self._settings.source_alias)
        changes: list[CreateTopic | AddPartitions] = [
            *await make_topics(self._admin, plan.creations, self._refusals),
            *await add_partitions(self._admin, plan.growths, self._refusals),
        ]
        self._is_late = False
        if changes:
            target = await self._appeared(changes, naming)
            if self._access is not None:
                self._schedule.hurry(SYNC_ACLS)
        # Partitions that are copied already stay, even if their target has no leader now: the task waits for one.
        self._selected = plan.partitions
        self._partitions = [
            partition
            for partition in self._selected
            if partition in before or _has(target, naming.remote[partition.topic], partition.partition)
        ]
        self._counts = _counts(topics)
        self._remote = {topic: name for topic, name in naming.remote.items() if _has(target, name, 0)}

    def _named(self, naming: Naming) -> None:
        for topic, problem in naming.problems.items():
            if self._naming.problems.get(topic) != problem:
                log.error("%s: %s", self._settings.flow, problem)
        self._naming = naming

    async def _appeared(
        self, changes: Sequence[CreateTopic | AddPartitions], naming: Naming
    ) -> Mapping[str, TopicMetadata]:
        """Return metadata once it has the changes; those that do not appear in time are left to the next look."""
        deadline = asyncio.get_running_loop().time() + _APPEAR_TIMEOUT_S
        wanted = {
            change.topic: change.partitions if isinstance(change, CreateTopic) else change.want for change in changes
        }
        target: dict[str, TopicMetadata] = {}
        late = list(naming.remote.values())
        while True:
            target |= (await self._target.metadata(set(late))).topics
            late = [name for name, count in wanted.items() if not _has(target, name, count - 1)]
            if not late:
                return target
            if asyncio.get_running_loop().time() > deadline:
                log.warning("%s: the target's metadata does not have %s yet", self._settings.flow, ", ".join(late))
                self._is_late = True
                return target
            await asyncio.sleep(_LOOK_S)

    async def _sync_configs(self) -> None:
        assert self._context is not None, "jobs start with the connector"
        try:
            await self._configs.sync(self._remote, self._admin)
        except UnsupportedVersion as error:
            self._context.raise_error(error)
            raise

    async def _look(self) -> None:
        """Poll the source cheaply between Java's intervals, so that changes there are synced within seconds."""
        clock = asyncio.get_running_loop().time
        begin_s = clock()
        if begin_s < self._look_again_s:
            return
        topics = selected(self._settings.should_mirror, (await self._source.metadata(None)).topics)
        counts = _counts(topics)
        # Deleted topics wait for Java's interval: until then their tasks report what was copied of them.
        missed, self._missed = self._missed, self._counts.keys() - counts.keys()
        if self._missed - missed:
            self._look_for_deleted(self._missed)
        grown = any(count > self._counts.get(topic, 0) for topic, count in counts.items())
        if grown or self._is_late:
            self._schedule.hurry(REFRESH)
        elif self._settings.sync_topic_configs_interval_s is not None and (
            changed := await self._configs.look(self._remote)
        ):
            await self._configs.sync({topic: self._remote[topic] for topic in changed}, self._admin)
        apart_s = max((clock() - begin_s) / _LOOKS_SHARE, sum(counts.values()) * _LOOKS_APART_S)
        self._look_again_s = clock() + apart_s
        if self._access is not None:
            await self._access.look()


def _counts(topics: Sequence[TopicMetadata]) -> dict[str, int]:
    return {topic.name: len(topic.partitions) for topic in topics}


def _has(topics: Mapping[str, TopicMetadata], name: str, index: int) -> bool:
    topic = topics.get(name)
    partition = topic.partitions.get(index) if topic else None
    return partition is not None and partition.leader >= 0
