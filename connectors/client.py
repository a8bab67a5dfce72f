"""For programs that fail over by themselves: read what MirrorMaker 2 knows (Kafka ``connect-mirror-client``).

:class:`MirrorClient` is Java's ``MirrorClient`` with coroutines; the functions below it are Java's
``RemoteClusterUtils``, which block. Both take a client's properties for the cluster: ``bootstrap.servers`` and security
settings, optionally prefixed with ``admin.`` or ``consumer.``, and the ``replication.policy.*`` of the flows::

    async with MirrorClient({"bootstrap.servers": "eu-1:9092"}) as client:
        places = await client.remote_consumer_offsets("orders", "us", timeout_s=30)
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, Self, TypeVar

from connect.api.policy import ReplicationPolicy
from connect.core.errors import RetriableError
from connect.kafka.cluster import Cluster
from connect.kafka.log.compacted_topic import LogRecord, read_if_exists
from connect.kafka.security.connection_settings import connection_settings
from connectors.config.client_config import properties_with_prefix
from connectors.formats.mirror_records import Checkpoint
from connectors.formats.types import TopicPartition as TopicPartition
from connectors.policy import make_policy

log = logging.getLogger(__name__)

_CLIENT_ID = "heliograph-mirror-client"
_T = TypeVar("_T")


class OffsetAndMetadata(NamedTuple):
    """The next record to read, and the metadata that the group stored with it."""

    offset: int
    metadata: str


Offsets = dict[TopicPartition, OffsetAndMetadata]


class MirrorClient:
    """Queries one cluster. Every call raises :class:`~connect.core.errors.HeliographError`: a RetriableError if the
    cluster does not answer, a SecurityError if a right is missing. Raises ConfigError if a property is missing or
    invalid."""

    def __init__(self, props: Mapping[str, str]) -> None:
        self.replication_policy: ReplicationPolicy = make_policy(props)
        self._admin = _cluster(props, "admin.")
        self._consumer = _cluster(props, "consumer.")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect."""
        await self._admin.close()
        await self._consumer.close()

    async def replication_hops(self, upstream_alias: str) -> int:
        """Return the fewest flows between a cluster and this one, by mirrored heartbeats; -1 if none lead here."""
        policy = self.replication_policy
        found = [hops(policy, topic, upstream_alias) for topic in await self.heartbeat_topics()]
        return min((one for one in found if one > 0), default=-1)

    async def heartbeat_topics(self) -> set[str]:
        """Return the heartbeats topics here, this cluster's own and mirrored ones."""
        return {topic for topic in await self._topics() if self.replication_policy.is_heartbeats_topic(topic)}

    async def checkpoint_topics(self) -> set[str]:
        """Return the checkpoints topics here."""
        return {topic for topic in await self._topics() if self.replication_policy.is_checkpoints_topic(topic)}

    async def upstream_clusters(self) -> set[str]:
        """Return clusters whose heartbeats arrive here, over any number of flows."""
        topics = await self.heartbeat_topics()
        return {alias for topic in topics for alias in all_sources(self.replication_policy, topic)}

    async def remote_topics(self, source_alias: str | None = None) -> set[str]:
        """Return topics that were mirrored to here; with ``source_alias`` only those of flows from there."""
        policy = self.replication_policy
        return {
            topic
            for topic in await self._topics()
            if not policy.is_internal_topic(topic)
            and (source := policy.topic_source(topic)) is not None
            and source_alias in (None, source)
        }

    async def remote_consumer_offsets(self, group: str, remote_alias: str, timeout_s: float) -> Offsets:
        """Return where a group of the cluster ``remote_alias`` continues here, by its checkpoints. Raises
        RetriableError if reading takes longer than ``timeout_s``; Java then returns a part, by which a group could go
        back. Empty without checkpoints."""
        return (await self._checkpoints(lambda name: name == group, remote_alias, timeout_s)).get(group, {})

    async def remote_consumer_offsets_of(
        self, groups: re.Pattern[str], remote_alias: str, timeout_s: float
    ) -> dict[str, Offsets]:
        """Return the same for every group whose whole name matches (KIP-1239)."""
        return await self._checkpoints(lambda name: groups.fullmatch(name) is not None, remote_alias, timeout_s)

    async def _checkpoints(
        self, takes: Callable[[str], bool], remote_alias: str, timeout_s: float
    ) -> dict[str, Offsets]:
        topic = self.replication_policy.checkpoints_topic(remote_alias)
        found: dict[str, Offsets] = {}

        def take(record: LogRecord) -> None:
            one = Checkpoint.decode(record.key, record.value)
            if takes(one.group):
                place = TopicPartition(one.topic, one.partition)
                found.setdefault(one.group, {})[place] = OffsetAndMetadata(one.downstream_offset, one.metadata)

        try:
            async with asyncio.timeout(timeout_s):
                await read_if_exists(self._consumer, topic, take, partitions=[0], timeout_s=timeout_s)
        except TimeoutError:
            raise RetriableError(f"cluster {self._consumer.name}: no answer within {timeout_s:g} s") from None
        return found

    async def _topics(self) -> list[str]:
        return list((await self._admin.metadata(None)).topics)


def replication_hops(props: Mapping[str, str], upstream_alias: str) -> int:
    """See :meth:`MirrorClient.replication_hops`."""
    return _blocking(props, lambda client: client.replication_hops(upstream_alias))


def heartbeat_topics(props: Mapping[str, str]) -> set[str]:
    """See :meth:`MirrorClient.heartbeat_topics`."""
    return _blocking(props, MirrorClient.heartbeat_topics)


def checkpoint_topics(props: Mapping[str, str]) -> set[str]:
    """See :meth:`MirrorClient.checkpoint_topics`."""
    return _blocking(props, MirrorClient.checkpoint_topics)


def upstream_clusters(props: Mapping[str, str]) -> set[str]:
    """See :meth:`MirrorClient.upstream_clusters`."""
    return _blocking(props, MirrorClient.upstream_clusters)


def translate_offsets(props: Mapping[str, str], remote_alias: str, group: str, timeout_s: float) -> Offsets:
    """See :meth:`MirrorClient.remote_consumer_offsets`."""
    return _blocking(props, lambda client: client.remote_consumer_offsets(group, remote_alias, timeout_s))


def translate_offsets_of(
    props: Mapping[str, str], remote_alias: str, groups: re.Pattern[str], timeout_s: float
) -> dict[str, Offsets]:
    """See :meth:`MirrorClient.remote_consumer_offsets_of`."""
    return _blocking(props, lambda client: client.remote_consumer_offsets_of(groups, remote_alias, timeout_s))


def hops(policy: ReplicationPolicy, topic: str, upstream_alias: str) -> int:
    """Return how many flows a topic passed since ``upstream_alias``; -1 if it was never there."""
    for count, (source, _) in enumerate(_way(policy, topic), 1):
        if source == upstream_alias:
            return count
    return -1


def all_sources(policy: ReplicationPolicy, topic: str) -> list[str]:
    """Return the clusters that a topic passed, the nearest first."""
    return [source for source, _ in _way(policy, topic)]


def _way(policy: ReplicationPolicy, topic: str) -> list[tuple[str, str]]:
    """Return (cluster, name there), back to its origin; if a policy cannot detect cycles, stop where one begins."""
    way: list[tuple[str, str]] = []
    name: str | None = topic
    while name is not None and (source := policy.topic_source(name)) is not None:
        if source in (seen for seen, _ in way):
            break
        name = policy.upstream_topic(name)
        way.append((source, name or ""))
    return way


def _blocking(props: Mapping[str, str], ask: Callable[[MirrorClient], Awaitable[_T]]) -> _T:
    async def asked() -> _T:
        async with MirrorClient(props) as client:
            return await ask(client)

    return asyncio.run(asked())


def _cluster(props: Mapping[str, str], prefix: str) -> Cluster:
    own = {**props, **properties_with_prefix(props, prefix)}
    where = own.get("bootstrap.servers", "without bootstrap.servers")
    return Cluster(connection_settings(own, client_id=own.get("client.id", _CLIENT_ID), where=f"cluster {where}"))
