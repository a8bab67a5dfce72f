"""Lists and describes groups, reads and changes their committed offsets, and bounds retries of requests.

* Committed offsets change only in groups without members.
* The coordinator of a group says which member reads which partition.
* Retries have a deadline, so that a request on a connection that went silent fails by then.
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
from connect.kafka.cluster import Cluster, NotAuthorized, error_name, refusal_of
from connect.kafka.connection import Connection
from connect.kafka.log.transactions import ProducerIdentity, check, until

_T = TypeVar("_T")

_OF_WHAT_IS_LEFT: Final = 0.95


class TimeLimit:
    """``timeout_s`` from now on."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._until_s = asyncio.get_running_loop().time() + timeout_s

    def of_call_ms(self, connection: Connection) -> int:
        """A little less than what is left: a call that is cut off from outside leaves its connection open, and whoever
        comes next meets it again. With little left it is not the connection's fault that no answer comes in time."""
        left_s = self._until_s - asyncio.get_running_loop().time()
        if left_s < self._timeout_s / 2:
            return connection.request_timeout_ms
        return min(connection.request_timeout_ms, int(left_s * _OF_WHAT_IS_LEFT * 1000))

    async def run(self, what: str, attempt: Callable[[], Awaitable[_T]], *, once: bool) -> _T:
        """As :func:`connect.kafka.log.transactions.until`; ``once``: a single time. Raises RetriableError."""
        if not once:
            return await until(self._timeout_s, what, attempt)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await attempt()
        except TimeoutError as error:
            raise RetriableError(f"{what}: no answer within {self._timeout_s:g} s") from error


Partition = tuple[str, int]

#: Later ones ask for several groups at a time, or by topic ids.
_OFFSET_FETCH_AT_MOST: Final = 7
#: Later ones refuse a group that nobody is in and that has no offsets.
_DESCRIBE_AT_MOST: Final = 5
_REFUSED: Final = frozenset({29, 30})  # topic, group: authorisation failed
_NO_SUCH_GROUP: Final = 69
#: UNSTABLE_OFFSET_COMMIT
_UNSTABLE: Final = 88
#: Later ones name topics by id.
COMMIT_AT_MOST: Final = 9
#: Later ones add the group to the transaction by themselves, which needs another EndTxn (KIP-890).
_TXN_COMMIT_AT_MOST: Final = 3
#: UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS, STALE_MEMBER_EPOCH: of whoever is no member, where there are members.
_IN_USE: Final = frozenset({25, 27, 113})
#: REQUEST_TIMED_OUT, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR: of the whole group.
_MAY_PASS: Final = frozenset({7, 14, 15, 16})
#: The right that is enough for requests that change nothing.
_LOOKING: Final = "DESCRIBE"
_TIMEOUT_S: Final = 30.0
#: Kafka's types of groups (KIP-848, KIP-932, KIP-1071), as ListGroups gives them from 3.8 on; all are classic before.
CLASSIC, CONSUMER, SHARE, STREAMS = "classic", "consumer", "share", "streams"
#: A group without members, whose offsets anybody may move.
EMPTY: Final = "Empty"
#: One whose last member just left, with nothing stored (Kafka ``ClassicGroupState``): as good as none.
_DEAD: Final = "Dead"


@dataclass(frozen=True, slots=True)
class GroupState:
    """``state`` in Kafka's words: Stable, Empty, Dead (there is none), ...; ``members`` are client ids and hosts."""

    state: str
    members: tuple[str, ...]


class GroupInUse(PermanentError):
    """Somebody is a member of the group: only members move it."""


class Committed(NamedTuple):
    """What a group has stored of a partition: the next record to read, and a text of its own."""

    offset: int
    metadata: str = ""


#: Committed for a partition it means that there is no offset: to brokers, consumers and tools -1 is none (Kafka
#: ``OffsetFetchResponse.INVALID_OFFSET``). A transaction can commit it, and cannot delete an offset.
NO_OFFSET: Final = Committed(-1)


@dataclass(frozen=True, slots=True)
class GroupListing:
    """``kind`` is one of Kafka's types, ``protocol`` what its members speak ("consumer", "connect", "" for none yet),
    ``state`` in Kafka's words."""

    kind: str
    protocol: str
    state: str

    @property
    def has_offsets(self) -> bool:
        """Whether it is what Kafka's ``Admin.listConsumerGroups`` tells of."""
        return self.kind in (CLASSIC, CONSUMER) and self.protocol in ("", "consumer")

    @property
    def is_idle(self) -> bool:
        """Whether nobody is in it, so that anybody may move it."""
        return self.state in (EMPTY, _DEAD)


async def list_groups(cluster: Cluster) -> dict[str, GroupListing]:
    """Every group of a cluster that we may see, asked of every broker.

    Raises:
        RetriableError: a broker does not answer, or is still loading its groups, for half a minute.
    """

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
        line = f"cluster {cluster.name}: broker {node} does not list its groups: {error_name(answer.error_code)}"
        raise refusal_of(answer.error_code, line, changes=False)
    return {one.group_id: _listing(one) for one in answer.groups}


def _listing(one: Any) -> GroupListing:
    return GroupListing((one.group_type or CLASSIC).lower(), one.protocol_type, one.group_state or "")


async def committed_offsets(cluster: Cluster, group: str) -> dict[Partition, int]:
    """As :func:`committed`, the offsets alone."""
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
    """What ``group`` has stored, by partition. Empty for an unknown group. Topics that we may not DESCRIBE are left out
    without a word (Kafka ``KafkaApis.fetchAllOffsetsForGroup``): nobody can tell by the answer that they are missing.

    Args:
        partitions: Those to ask for; None for all that have an offset.
        stable: Wait for offsets that a producer has sent with a transaction that is not over (KIP-447). Where it is a
            partition's first, brokers tell of it only if they are asked for the partition.
        timeout_s: How long to try and to wait; None for half a minute.
        once: Ask a single time: what may pass raises as well.

    Raises:
        NotAuthorized: DESCRIBE on the group is missing.
        RetriableError: its coordinator does not answer, or a transaction is not over, within that time.
    """

    limit = TimeLimit(_TIMEOUT_S if timeout_s is None else timeout_s)

    async def attempt() -> dict[Partition, Committed]:
        one_of = OffsetFetchRequest.OffsetFetchRequestTopic
        named = [one_of(name=one, partition_indexes=indexes) for one, indexes in _by_topic(partitions or ()).items()]
        request = OffsetFetchRequest(group, None if partitions is None else named, require_stable=stable)
        connection = await cluster.coordinator(group, "group")
        answer = await connection.call(request, at_most=_OFFSET_FETCH_AT_MOST, timeout_ms=limit.of_call_ms(connection))
        if answer.error_code and answer.error_code != _NO_SUCH_GROUP:
            raise _refusal(cluster, f"tell the offsets of group {group}", group, answer.error_code)
        found: dict[Partition, Committed] = {}
        for topic in answer.topics:
            for row in topic.partitions:
                if row.error_code == _UNSTABLE:
                    raise RetriableError(
                        f"cluster {cluster.name}: a producer's transaction that is not over holds the offset of group "
                        f"{group} in {topic.name}-{row.partition_index}; end it, or wait for its timeout"
                    )
                if row.error_code:
                    raise _refusal(cluster, f"tell the offset of group {group} in {topic.name}", group, row.error_code)
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
    """Store offsets for a group that has no members, which is made where it is missing (``alterConsumerGroupOffsets``).

    Returns why, by partition, of those that were refused. ``timeout_s`` and ``once`` as in :func:`committed`: who moves
    a group by what was stored before tries once, for members may come, move on and go while this is tried again.

    Raises:
        GroupInUse: it has members; nothing was stored.
        NotAuthorized: READ on the group, or on a topic, is missing.
        RetriableError: its coordinator does not answer within that time. Some may be stored.
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
                    raise GroupInUse(f"group {group} has members on cluster {cluster.name}, which alone may move it")
                if row.error_code in _REFUSED | _MAY_PASS:
                    what = f"let group {group} be moved in {topic.name}"
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
    """Add offsets to an open transaction that the group was added to, once.

    They become visible when it is committed. Then a commit that was stored after them stays: brokers keep, of each
    partition, what lies last in their log of offsets (Kafka ``OffsetMetadataManager``). Brokers take these whether the
    group has members or not.

    Raises NotAuthorized, and as :func:`connect.kafka.log.transactions.check`.
    """
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
                    cluster, f"let group {group} be moved in {topic_row.name}", group, row.error_code, "READ"
                )
            cluster.forget_coordinator(group, "group", row.error_code)
            check(cluster, transactional_id, f"TxnOffsetCommit of group {group}", row.error_code)


async def listed_group(cluster: Cluster, group: str) -> GroupListing | None:
    """What the group's coordinator lists of it; None if there is no such group. Raises as :func:`list_groups`."""

    async def attempt() -> GroupListing | None:
        # A broker that coordinates the group no more does not say so here: its list lacks the group.
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
    """What a request that commits says of each topic, in the classes of that request."""
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
    """Raises as :func:`committed_offsets`."""
    found = await described_group(cluster, group)
    return GroupState(found.group_state, tuple(f"{one.client_id} at {one.client_host}" for one in found.members))


async def described_group(cluster: Cluster, group: str) -> Any:
    """The group of DescribeGroups' answer. Raises as :func:`committed_offsets`."""

    async def attempt() -> Any:
        connection = await cluster.coordinator(group, "group")
        answer = await connection.call(DescribeGroupsRequest(groups=[group]), at_most=_DESCRIBE_AT_MOST)
        (found,) = answer.groups
        if found.error_code:
            raise _refusal(cluster, f"tell the members of group {group}", group, found.error_code)
        return found

    return await until(_TIMEOUT_S, f"asking cluster {cluster.name} for the members of group {group}", attempt)


def _by_topic(partitions: Collection[Partition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        topics.setdefault(topic, []).append(index)
    return topics


def _refusal(cluster: Cluster, what: str, group: str, code: int, right: str = _LOOKING) -> HeliographError:
    cluster.forget_coordinator(group, "group", code)
    line = f"cluster {cluster.name} does not {what}: {error_name(code)}"
    if code in _REFUSED:
        return NotAuthorized(f"{line}; grant {right} on group {group} and on its topics")
    return refusal_of(code, line, changes=right != _LOOKING)


_CONSUMER: Final = "consumer"


async def owners(cluster: Cluster, group: str) -> dict[Partition, str]:
    """Client id and host of who has each partition. Empty where nobody is in the group, and of groups whose
    coordinator gives partitions out by itself (KIP-848), which this question does not show.

    Raises as :func:`connect.kafka.log.committed_offsets.committed_offsets`.
    """
    found = await described_group(cluster, group)
    if found.protocol_type != _CONSUMER:
        return {}
    return {
        partition: f"{member.client_id}{member.client_host}"
        for member in found.members
        for partition in _assigned(member.member_assignment)
    }


def _assigned(assignment: bytes) -> Iterator[Partition]:
    """What a member was given (``ConsumerPartitionAssignor``'s bytes); nothing of one that joins just now."""
    if not assignment:
        return
    try:
        decoded = ConsumerProtocolAssignment.decode(assignment)
    except (KafkaError, ValueError, IndexError, struct.error):
        return  # a client's own format: its members are known, not what they read
    for topic in decoded.assigned_partitions or ():  # null on the wire, where none are
        for index in topic.partitions or ():
            yield topic.topic, index
