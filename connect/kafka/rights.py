"""What a cluster lets us do, as its brokers tell it (KIP-430), and which release they are of."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from kafka.protocol.admin import DescribeGroupsRequest
from kafka.protocol.broker_version_data import BrokerVersionData
from kafka.protocol.metadata import MetadataRequest

from connect.core.errors import RetriableError
from connect.kafka.cluster import Cluster, NotAuthorized
from connect.kafka.connection import UnsupportedVersion

#: Metadata told the rights on the cluster too until version 10, which every broker of today takes.
_METADATA_AT_MOST: Final = 10
_METADATA_AT_LEAST: Final = 8
_NOT_THERE: Final = 3
#: DescribeGroups up to here names groups that are not there as dead ones; later it is an error.
_GROUPS_AT_MOST: Final = 5
_GROUP_REFUSED: Final = 30


class Operation(IntEnum):
    """Kafka's ``AclOperation``: the number is the bit in what brokers answer."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


Operations = frozenset[Operation]
NO_RIGHT: Final[Operations] = frozenset()


@dataclass(frozen=True, slots=True)
class Allowed:
    """``topics``: None for one that is not there, as far as we may know; no operation for one that is hidden.
    ``release`` such as ``4.3``, the first that has all that the broker offers; empty where that says nothing."""

    cluster_id: str
    brokers: int
    release: str
    cluster: Operations
    topics: Mapping[str, Operations | None]


async def allowed(cluster: Cluster, topics: Collection[str]) -> Allowed:
    """Ask one broker. Where a cluster has no authorizer everything is allowed.

    Raises:
        ClusterUnreachable: No broker answers.
        SecurityError: One refuses us.
        UnsupportedVersion: It is older than Kafka 2.3 and cannot say.
    """
    connection = await cluster.any_connection()
    request = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in sorted(topics)],
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=True,
        include_topic_authorized_operations=True,
    )
    version = connection.version_of(request, _METADATA_AT_MOST)
    if version < _METADATA_AT_LEAST:
        raise UnsupportedVersion(f"cluster {cluster.name}: its brokers do not tell what they allow before Kafka 2.3")
    answer = await connection.call(request, version)
    return Allowed(
        answer.cluster_id or "",
        len(answer.brokers),
        release_of(connection.versions),
        _operations(answer.authorized_operations),
        {
            row.name: None if row.error_code == _NOT_THERE else _operations(row.authorized_operations)
            for row in answer.topics
        },
    )


async def group_rights(cluster: Cluster, group: str) -> Operations:
    """What we may do with a group, whether it is there or not; nothing where it is hidden. Raises as the cluster."""
    try:
        connection = await cluster.coordinator(group, "group")
    except NotAuthorized:
        return NO_RIGHT
    request = DescribeGroupsRequest(groups=[group], include_authorized_operations=True)
    answer = await connection.call(request, at_most=_GROUPS_AT_MOST)
    (row,) = answer.groups
    if row.error_code == _GROUP_REFUSED:
        return NO_RIGHT
    if row.error_code:
        cluster.forget_coordinator(group, "group", row.error_code)
        raise RetriableError(f"cluster {cluster.name} does not say what we may do with group {group} at the moment")
    return _operations(row.authorized_operations)


def release_of(versions: Mapping[int, tuple[int, int]]) -> str:
    """By the APIs that a broker offers; brokers do not say their release. Empty where they show none that is known."""
    try:
        found: tuple[int, ...] = BrokerVersionData(api_versions=dict(versions)).broker_version
    except (KeyError, ValueError, TypeError):
        return ""
    return ".".join(map(str, found))


def _operations(numbers: Collection[int] | None) -> Operations:
    """None is what a broker says that does not tell."""
    return frozenset(one for one in Operation if one in (numbers or ()))
