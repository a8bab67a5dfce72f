"""Lists and describes groups, reads and changes their committed offsets, and bounds retries of requests.

* Committed offsets change only in groups without members.
* The coordinator of a group reports which member reads which partition.
* Retries have a deadline, so that a request on a silent connection fails by then.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

from kafka.errors import KafkaError
from kafka.protocol.admin import DescribeGroupsRequest, ListGroupsRequest
from kafka.protocol.consumer.group import OffsetCommitRequest, OffsetFetchRequest
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment
from kafka.protocol.producer.transaction import TxnOffsetCommitRequest

from connect.core.errors import HeliographError, PermanentError, RetriableError
from connect.core.herder.membership import work_held
from connect.core.model import TaskId
from connect.kafka.cluster import Cluster, NotAuthorized, error_name, refusal_of
from connect.kafka.concurrency import until, within
from connect.kafka.connection import Connection
from connect.kafka.log.offsets import by_topic
from connect.kafka.log.transactions import ProducerIdentity, check

_T = TypeVar("_T")

_OF_WHAT_IS_LEFT: Final = 0.95


class TimeLimit:
    """A deadline ``timeout_s`` from its creation."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._until_s = asyncio.get_running_loop().time() + timeout_s

    def of_call_ms(self, connection: Connection) -> int:
        """Return a call timeout a little below the remaining time: a call that is cancelled from outside leaves its
        connection open for the next caller. With little time left, a missing response is not the connection's fault."""
        left_s = self._until_s - asyncio.get_running_loop().time()
        if left_s < self._timeout_s / 2:
            return connection.request_timeout_ms
        return min(connection.request_timeout_ms, int(left_s * _OF_WHAT_IS_LEFT * 1000))

    async def run(self, what: str, attempt: Callable[[], Awaitable[_T]], *, once: bool) -> _T:
        """Run ``attempt``, with retries as in :func:`~connect.kafka.concurrency.until` unless ``once``. Raises
        RetriableError."""
        if not once:
            return await until(self._timeout_s, what, attempt)
        async with within(self._timeout_s, f"{what}: no answer"):
            return await attempt()


Partition = tuple[str, int]

#: Later versions ask for several groups at a time, or use topic ids.
_OFFSET_FETCH_AT_MOST: Final = 7
#: Later versions return an error for a group without members and offsets.
_DESCRIBE_AT_MOST: Final = 5
_REFUSED: Final = frozenset({29, 30})  # topic, group: authorisation failed
_NO_SUCH_GROUP: Final = 69
#: UNSTABLE_OFFSET_COMMIT
_UNSTABLE: Final = 88
#: Later versions use topic ids.
COMMIT_AT_MOST: Final = 9
#: Later versions add the group to the transaction implicitly, which needs another EndTxn (KIP-890).
_TXN_COMMIT_AT_MOST: Final = 3
#: UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS, STALE_MEMBER_EPOCH: a group with members rejects commits of others.
_IN_USE: Final = frozenset({25, 27, 113})
#: REQUEST_TIMED_OUT, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR: for the whole group.
_MAY_PASS: Final = frozenset({7, 14, 15, 16})
#: The operation that is enough for requests that change nothing.
_LOOKING: Final = "DESCRIBE"
_TIMEOUT_S: Final = 30.0
#: Kafka's group types (KIP-848, KIP-932, KIP-1071), which ListGroups returns from 3.8; earlier all are classic.
CLASSIC, CONSUMER, SHARE, STREAMS = "classic", "consumer", "share", "streams"
#: A group without members, so that any client may commit its offsets.
EMPTY: Final = "Empty"
#: A group whose last member has just left, without offsets (Kafka ``ClassicGroupState``): treated as none.
_DEAD: Final = "Dead"


@dataclass(frozen=True, slots=True)
class GroupState:
    """``state`` is Kafka's name: Stable, Empty, Dead (no such group), ...; ``members`` are client ids and hosts."""

    state: str
    members: tuple[str, ...]


class GroupInUse(PermanentError):
    """The group has members, and only they can commit its offsets."""


class Committed(NamedTuple):
    """A committed offset: the next record to read, and the metadata string."""

    offset: int
    metadata: str = ""


#: Committed for a partition, it means no offset: brokers, consumers and tools treat -1 as none (Kafka
#: ``OffsetFetchResponse.INVALID_OFFSET``). A transaction can commit it, but cannot delete an offset.
NO_OFFSET: Final = Committed(-1)


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A listed group: ``kind`` is one of Kafka's types, ``protocol`` the protocol type ("consumer", "connect", "" for
    none yet), ``state`` Kafka's name."""

    kind: str
    protocol: str
    state: str

    @property
    def has_offsets(self) -> bool:
        """Whether Kafka's ``Admin.listConsumerGroups`` lists it."""
        return self.kind in (CLASSIC, CONSUMER) and self.protocol in ("", "consumer")

    @property
    def is_idle(self) -> bool:
        """Whether it has no members, so that any client may commit its offsets."""
        return self.state in (EMPTY, _DEAD)


async def list_groups(cluster: Cluster) -> dict[str, GroupListing]:
    """Return every group that this client may see, from all brokers. Raises RetriableError if a broker does not answer,
    or is still loading its groups, for half a minute."""

    async def attempt() -> dict[str, GroupListing]:
        brokers = (await cluster.metadata(frozenset())).brokers
        found: dict[str, GroupListing] = {}
        for listed in await asyncio.gather(*(_listed(cluster, node) for node in brokers)):
            found |= listed
        return found

    return await until(_TIMEOUT_S, f"asking cluster {cluster.name} for its groups", attempt)


async def _listed(cluster: Cluster, node: int) -> dict[str, GroupListing]:
    connection = await cluster.connection(node)
    answer = await connection.call(ListGroupsRequest(states_filter=[], types_filter=[]))
    if answer.error_code:
        line = f"cluster {cluster.name}: broker {node} cannot list its groups: {error_name(answer.error_code)}"
        raise refusal_of(answer.error_code, line, changes=False)
    return {one.group_id: _listing(one) for one in answer.groups}


def _listing(one: Any) -> GroupListing:
    return GroupListing((one.group_type or CLASSIC).lower(), one.protocol_type, one.group_state or "")


async def committed_offsets(cluster: Cluster, group: str) -> dict[Partition, int]:
    """Return the offsets of :func:`committed`, without metadata."""
    return {partition: stored.offset for partition, stored in (await committed(cluster, group)).items()}


async def committed(
    cluster: Cluster,
    group: str,
    partitions: Collection[Partition] | None = None,
    *,
    stable: bool = False,
    timeout_s: float | None = None,
    once: bool = False,
) -> dict[Partition, Committed]:
    """Return the committed offsets of ``group`` by partition; empty for an unknown group. Topics without DESCRIBE are
    silently left out (Kafka ``KafkaApis.fetchAllOffsetsForGroup``).

    Args:
        partitions: The partitions to ask for; None for all with an offset.
        stable: Wait for offsets that an open transaction has sent (KIP-447). For the first offset of a partition,
            brokers report it only if ``partitions`` names the partition.
        timeout_s: How long to try and to wait; None for half a minute.
        once: Do not retry: a retriable error is raised too.

    Raises:
        NotAuthorized: DESCRIBE on the group is missing.
        RetriableError: the coordinator does not answer, or a transaction stays open, within that time.
    """
    limit = TimeLimit(_TIMEOUT_S if timeout_s is None else timeout_s)

    async def attempt() -> dict[Partition, Committed]:
        one_of = OffsetFetchRequest.OffsetFetchRequestTopic
        named = [
            one_of(name=one, partition_indexes=indexes) for one, indexes in by_topic(sorted(partitions or ())).items()
        ]
        request = OffsetFetchRequest(group, None if partitions is None else named, require_stable=stable)
        connection = await cluster.coordinator(group, "group")
        answer = await connection.call(request, at_most=_OFFSET_FETCH_AT_MOST, timeout_ms=limit.of_call_ms(connection))
        if answer.error_code and answer.error_code != _NO_SUCH_GROUP:
            raise _refusal(cluster, f"fetch the offsets of group {group}", group, answer.error_code)
        found: dict[Partition, Committed] = {}
        for topic in answer.topics:
            for row in topic.partitions:
                if row.error_code == _UNSTABLE:
                    raise RetriableError(
                        f"cluster {cluster.name}: an open transaction holds the offset of group {group} in "
                        f"{topic.name}-{row.partition_index}; end it, or wait for its timeout"
                    )
                if row.error_code:
                    raise _refusal(cluster, f"fetch the offset of group {group} in {topic.name}", group, row.error_code)
                if row.committed_offset >= 0:
                    found[topic.name, row.partition_index] = Committed(row.committed_offset, row.metadata or "")
        return found

    what = f"asking cluster {cluster.name} for the offsets of group {group}"
    return await limit.run(what, attempt, once=once)


async def move(
    cluster: Cluster,
    group: str,
    offsets: Mapping[Partition, Committed],
    *,
    timeout_s: float | None = None,
    once: bool = False,
) -> dict[Partition, str]:
    """Commit offsets for a group without members; create it if it is missing (``alterConsumerGroupOffsets``).

    Returns by partition why it was rejected. ``timeout_s`` and ``once`` are as in :func:`committed`. If ``offsets``
    depend on committed ones, use ``once``, because members may join, commit and leave between two attempts.

    Raises:
        GroupInUse: the group has members; nothing was committed.
        NotAuthorized: READ on the group or a topic is missing.
        RetriableError: the coordinator does not answer within that time; some offsets may be committed.
    """
    limit = TimeLimit(_TIMEOUT_S if timeout_s is None else timeout_s)

    async def attempt() -> dict[Partition, str]:
        request = commit_request(group, offsets)
        connection = await cluster.coordinator(group, "group")
        answer = await connection.call(request, at_most=COMMIT_AT_MOST, timeout_ms=limit.of_call_ms(connection))
        refused: dict[Partition, str] = {}
        for topic in answer.topics:
            for row in topic.partitions:
                if row.error_code in _IN_USE:
                    raise GroupInUse(f"group {group} has members on cluster {cluster.name}; only they may move it")
                if row.error_code in _REFUSED | _MAY_PASS:
                    what = f"commit offsets of group {group} in {topic.name}"
                    raise _refusal(cluster, what, group, row.error_code, "READ")
                if row.error_code:
                    refused[topic.name, row.partition_index] = error_name(row.error_code)
        return refused

    return await limit.run(f"moving group {group} on cluster {cluster.name}", attempt, once=once)


async def commit_in_transaction(
    cluster: Cluster,
    transactional_id: str,
    identity: ProducerIdentity,
    group: str,
    offsets: Mapping[Partition, Committed],
) -> None:
    """Add offsets to an open transaction that includes the group, once. They take effect when the transaction is
    committed. A commit that was stored after them then wins, because brokers keep the last entry per partition in their
    offsets log (Kafka ``OffsetMetadataManager``). Brokers accept these offsets whether the group has members or not.
    Raises NotAuthorized and the errors of :func:`connect.kafka.log.transactions.check`."""
    topic_of = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    request = TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=group,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        generation_id=-1,
        member_id="",
        group_instance_id=None,
        topics=_rows(topic_of, topic_of.TxnOffsetCommitRequestPartition, dict(sorted(offsets.items()))),
    )
    connection = await cluster.coordinator(group, "group")
    answer = await connection.call(request, at_most=_TXN_COMMIT_AT_MOST)
    for topic_row in answer.topics:
        for row in topic_row.partitions:
            if row.error_code in _REFUSED:
                raise _refusal(
                    cluster, f"commit offsets of group {group} in {topic_row.name}", group, row.error_code, "READ"
                )
            cluster.forget_coordinator(group, "group", row.error_code)
            check(cluster, transactional_id, f"TxnOffsetCommit of group {group}", row.error_code)


async def listed_group(cluster: Cluster, group: str) -> GroupListing | None:
    """Return the coordinator's listing of the group; None if there is none. Raises RetriableError, NotAuthorized."""

    async def attempt() -> GroupListing | None:
        # A former coordinator does not report an error here: its list lacks the group.
        connection = await cluster.connection(await cluster.find_coordinator(group, "group"), "group")
        answer = await connection.call(ListGroupsRequest(states_filter=[], types_filter=[]))
        if answer.error_code:
            raise _refusal(cluster, f"list group {group}", group, answer.error_code)
        return next((_listing(one) for one in answer.groups if one.group_id == group), None)

    return await until(_TIMEOUT_S, f"asking cluster {cluster.name} for group {group}", attempt)


def commit_request(
    group: str, offsets: Mapping[Partition, Committed], generation: int = -1, member: str = ""
) -> OffsetCommitRequest:
    """Return the request that stores offsets as a member of a group, or for a group without members."""
    topic_of = OffsetCommitRequest.OffsetCommitRequestTopic
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member,
        group_instance_id=None,
        topics=_rows(topic_of, topic_of.OffsetCommitRequestPartition, offsets),
    )


def _rows(topic_of: Any, partition_of: Any, offsets: Mapping[Partition, Committed]) -> list[Any]:
    topics: dict[str, list[tuple[int, Committed]]] = {}
    for (topic, partition), stored in offsets.items():
        topics.setdefault(topic, []).append((partition, stored))
    return [
        topic_of(
            name=topic,
            partitions=[
                partition_of(
                    partition_index=partition,
                    committed_offset=stored.offset,
                    committed_leader_epoch=-1,
                    committed_metadata=stored.metadata,
                )
                for partition, stored in rows
            ],
        )
        for topic, rows in topics.items()
    ]


async def group_state(cluster: Cluster, group: str) -> GroupState:
    """Return the group's state and members. Raises the errors of :func:`committed_offsets`."""
    found = await described_group(cluster, group)
    return GroupState(found.group_state, tuple(f"{one.client_id} at {one.client_host}" for one in found.members))


@dataclass(frozen=True, slots=True)
class WorkHeld:
    """How many members a group of Connect workers has, and the tasks that they hold."""

    members: int
    tasks: frozenset[TaskId]


async def work_of(cluster: Cluster, group: str) -> WorkHeld | None:
    """Return what the members of a group of Connect workers hold; None if that is not known, for instance while the
    group rebalances or without the right to describe it. Raises RetriableError."""
    try:
        found = await described_group(cluster, group)
        if found.group_state not in ("Stable", "Empty", "Dead"):
            return None
        held = [work_held(one.member_metadata, one.member_assignment) for one in found.members]
    except PermanentError:
        return None
    return WorkHeld(len(held), frozenset(task for one in held for task in one.tasks))


async def described_group(cluster: Cluster, group: str) -> Any:
    """Return the group as DescribeGroups describes it. Raises the errors of :func:`committed_offsets`."""

    async def attempt() -> Any:
        connection = await cluster.coordinator(group, "group")
        answer = await connection.call(DescribeGroupsRequest(groups=[group]), at_most=_DESCRIBE_AT_MOST)
        (found,) = answer.groups
        if found.error_code:
            raise _refusal(cluster, f"describe group {group}", group, found.error_code)
        return found

    return await until(_TIMEOUT_S, f"asking cluster {cluster.name} for the members of group {group}", attempt)


def _refusal(cluster: Cluster, what: str, group: str, code: int, right: str = _LOOKING) -> HeliographError:
    cluster.forget_coordinator(group, "group", code)
    line = f"cluster {cluster.name}: cannot {what}: {error_name(code)}"
    if code in _REFUSED:
        return NotAuthorized(f"{line}; grant {right} on group {group} and on its topics")
    return refusal_of(code, line, changes=right != _LOOKING)


async def owners(cluster: Cluster, group: str) -> dict[Partition, str]:
    """Return the client id and host of each partition's owner. Empty for a group without members, and for groups with a
    server-side assignment (KIP-848), which DescribeGroups does not show. Raises the errors of
    :func:`committed_offsets`."""
    found = await described_group(cluster, group)
    if found.protocol_type != CONSUMER:
        return {}
    return {
        partition: f"{member.client_id}{member.client_host}"
        for member in found.members
        for partition in _assigned(member.member_assignment)
    }


def _assigned(assignment: bytes) -> Iterator[Partition]:
    """Yield a member's partitions (``ConsumerPartitionAssignor``'s bytes); none for a member that is just joining."""
    if not assignment:
        return
    try:
        decoded = ConsumerProtocolAssignment.decode(assignment)
    except (KafkaError, ValueError, IndexError, struct.error):
        return  # the client's own format: its members are known, their partitions are not
    for topic in decoded.assigned_partitions or ():  # null on the wire if there are none
        for index in topic.partitions or ():
            yield topic.topic, index
