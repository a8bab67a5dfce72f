"""What a member exchanges with its consumer group at the source: subscriptions, assignments, and committed offsets.

``ConsumerProtocol`` defines the bytes. aiokafka's assignors have the rules of ``RangeAssignor`` and
``RoundRobinAssignor``. So Java's consumers can be members of the same group and lead it.

The group's offsets store positions too, with a metadata text, instead of internal topics. Kafka lets a consumer store
a text with an offset (``OffsetCommit``'s metadata, 4096 characters by default). A partition copied to that of the same
number stores the copy's position, from which the next copier continues exactly. A partition copied by key stores the
id of its source topic. Another tool that moves the group writes no such text, and then only its offset counts.
"""

from __future__ import annotations

import base64
import binascii
import logging
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Final
from uuid import UUID

from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.errors import KafkaError, for_code
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from connect.core.errors import PermanentError, RetriableError
from connect.kafka.cluster import Cluster, NotAuthorized, error_name
from connect.kafka.log.committed_offsets import COMMIT_AT_MOST, Committed, Partition, commit_request, committed
from connectors.formats.position import Position, PositionKey, decode_position, encode_position
from connectors.formats.types import TopicPartition
from connectors.offset_map.runs_and_chunks import MapRun
from connectors.source.positions.stored_positions import Commit, Start

RANGE: Final = "range"
ROUND_ROBIN: Final = "roundrobin"
#: Values of ``partition.assignment.strategy``: Java's classes, and the names in older consumers.
STRATEGIES: Final[Mapping[str, str]] = {
    "org.apache.kafka.clients.consumer.RangeAssignor": RANGE,
    "org.apache.kafka.clients.consumer.RoundRobinAssignor": ROUND_ROBIN,
    "range": RANGE,
    "roundrobin": ROUND_ROBIN,
}
_ASSIGNORS: Final = {RANGE: RangePartitionAssignor, ROUND_ROBIN: RoundRobinPartitionAssignor}
#: That of Java's consumers since 0.10, which readers of later versions understand.
_SUBSCRIPTION_VERSION: Final = 1
_ASSIGNMENT_VERSION: Final = 1
#: What the texts with offsets begin with.
_PAIR: Final = "heliograph:position:"
_BY_KEY: Final = "heliograph:by-key:"


class UnreadableMember(PermanentError):
    """A member of the group sends data that is not a consumer's."""


def encode_subscription(topics: Collection[str]) -> bytes:
    """Encode the topics that a member wants. It reports no owned partitions, because it stops before it joins."""
    said = ConsumerProtocolSubscription(topics=sorted(topics), user_data=None, owned_partitions=[])
    return bytes(said.encode(version=_SUBSCRIPTION_VERSION))


def decode_subscription(member: str, data: bytes) -> list[str]:
    """Decode the topics that a member wants. Raises UnreadableMember."""
    try:
        return list(ConsumerProtocolSubscription.decode(data).topics)
    except (KafkaError, ValueError, IndexError, struct.error) as error:
        raise UnreadableMember(
            f"member {member} of the group does not send a consumer's subscription ({type(error).__name__}). "
            "Choose another group.id"
        ) from None


def encode_assignment(partitions: Collection[TopicPartition]) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        by_topic.setdefault(topic, []).append(index)
    row = ConsumerProtocolAssignment.TopicPartition
    rows = [row(topic=topic, partitions=indexes) for topic, indexes in by_topic.items()]
    assignment = ConsumerProtocolAssignment(assigned_partitions=rows, user_data=None)
    return bytes(assignment.encode(version=_ASSIGNMENT_VERSION))


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """Decode what the leader assigned to us; empty if nothing. Raises UnreadableMember."""
    if not data:
        return []
    try:
        rows = ConsumerProtocolAssignment.decode(data).assigned_partitions
    except (KafkaError, ValueError, IndexError, struct.error) as error:
        raise UnreadableMember(f"the group's leader sent an unreadable assignment ({type(error).__name__})") from None
    return [TopicPartition(row.topic, index) for row in rows for index in row.partitions]


def assign(
    strategy: str, wanted: Mapping[str, Collection[str]], counts: Mapping[str, int]
) -> dict[str, list[TopicPartition]]:
    """Assign partitions. ``wanted``: the topics of each member; ``counts``: the partitions of each existing topic."""
    known = SimpleNamespace(partitions_for_topic=lambda topic: range(counts.get(topic, 0)))
    # The range assignor would lose partitions of a topic that a member names twice.
    members = {member: SimpleNamespace(subscription=list(dict.fromkeys(topics))) for member, topics in wanted.items()}
    shares = _ASSIGNORS[strategy].assign(known, members)
    return {member: [TopicPartition(*one) for one in share.partitions()] for member, share in shares.items()}


def encode_pair(position: Position) -> str:
    return _PAIR + base64.b64encode(encode_position(position)).decode()


def encode_by_key(source_topic_id: UUID | None) -> str:
    return _BY_KEY + (source_topic_id.hex if source_topic_id is not None else "")


def decode_pair(partition: TopicPartition, text: str) -> Position | None:
    """Return the position stored with an offset; None if there is none, or one of an unknown version."""
    if not text.startswith(_PAIR):
        return None
    key = PositionKey("", partition.topic, partition.partition)
    try:
        return decode_position(key, base64.b64decode(text.removeprefix(_PAIR), validate=True))
    except (PermanentError, binascii.Error, UnicodeDecodeError):
        return None


def topic_id_of(partition: TopicPartition, text: str) -> UUID | None:
    """Return the id that the source topic had when the offset was committed; None if the text does not say."""
    if text.startswith(_BY_KEY):
        try:
            return UUID(text.removeprefix(_BY_KEY))
        except ValueError:
            return None
    position = decode_pair(partition, text)
    return position.source_topic_id if position is not None else None


log = logging.getLogger(__name__)

_TOO_LARGE: Final = 12
#: TOPIC_AUTHORIZATION_FAILED, GROUP_AUTHORIZATION_FAILED
_REFUSED: Final = frozenset({29, 30})
#: ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS: the group continues without this commit.
_NOT_NOW: Final = frozenset({22, 25, 27})

#: Returns the member's present generation and id.
Membership = Callable[[], tuple[int, str]]


class GroupOffsets:
    """The offsets that one member stores in its group."""

    def __init__(self, cluster: Cluster, group_id: str, membership: Membership) -> None:
        self._cluster, self._group_id, self._membership = cluster, group_id, membership
        self._short: set[TopicPartition] = set()

    async def read(self) -> dict[TopicPartition, Committed]:
        """Read the group's offsets. Errors are those of :func:`connect.kafka.log.committed_offsets.committed`."""
        found = await committed(self._cluster, self._group_id)
        return {TopicPartition(*partition): stored for partition, stored in found.items()}

    async def write(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        """Store offsets as this member. Raises RetriableError if the coordinator does not answer, or the group has
        continued without us, and NotAuthorized if READ on the group or on a topic is missing."""
        generation, member = self._membership()
        if member == "":
            raise RetriableError(f"this process is not a member of group {self._group_id} now")
        refused = await self._commit(offsets, generation, member)
        if too_large := {one for one, code in refused.items() if code == _TOO_LARGE} - self._short:
            self._short |= too_large
            self._report_too_large(too_large)
            again = await self._commit({one: offsets[one] for one in too_large}, generation, member)
            refused = {one: code for one, code in refused.items() if one not in too_large} | again
        for code in set(refused.values()):
            self._cluster.forget_coordinator(self._group_id, "group", code)
            what = f"cluster {self._cluster.name}: committing offsets of group {self._group_id}: {error_name(code)}"
            if code in _REFUSED:
                raise NotAuthorized(f"{what}; grant READ on group {self._group_id} and on its topics")
            raise (RetriableError if code in _NOT_NOW or for_code(code).retriable else PermanentError)(what)

    def _report_too_large(self, too_large: Collection[TopicPartition]) -> None:
        log.warning(
            "cluster %s does not accept our metadata with the offsets of %s, because it is too long "
            "(offset.metadata.max.bytes): offsets are stored without it, so after a crash the last records are copied "
            "again, and a lost process is not fenced before",
            self._cluster.name,
            ", ".join(map(str, sorted(too_large))),
        )

    async def _commit(
        self, offsets: Mapping[TopicPartition, Committed], generation: int, member: str
    ) -> dict[TopicPartition, int]:
        """Return the error codes of offsets that were not stored."""
        alone: dict[Partition, Committed] = {
            one: stored._replace(metadata="") if one in self._short else stored for one, stored in offsets.items()
        }
        request = commit_request(self._group_id, alone, generation, member)
        answer = await (await self._cluster.coordinator(self._group_id, "group")).call(request, at_most=COMMIT_AT_MOST)
        return {
            TopicPartition(topic.name, one.partition_index): one.error_code
            for topic in answer.topics
            for one in topic.partitions
            if one.error_code
        }


class GroupPositionStore:
    """A ``PositionStore`` for MirrorSource's task. It keeps no map: topics keep their names, and the group's offsets
    need no translation."""

    def __init__(self, offsets: GroupOffsets) -> None:
        self._offsets = offsets

    async def load(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Start]:
        stored = await self._offsets.read()
        return {partition: start_of(partition, stored.get(partition)) for partition in partitions}

    async def load_more(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Start]:
        return await self.load(partitions)

    async def fence_predecessors(self, starts: Mapping[TopicPartition, Start]) -> Mapping[TopicPartition, Start]:
        return starts  # the group's generation fences

    async def commit(self, commits: Sequence[Commit]) -> None:
        stored = [commit.position for commit in commits]
        await self._offsets.write({one.source: Committed(one.next_source_offset, encode_pair(one)) for one in stored})

    def runs_of(self, position: Position) -> list[MapRun]:
        return []


def start_of(partition: TopicPartition, stored: Committed | None) -> Start:
    """Return where a partition continues. An offset without a position, or with that of another offset, was stored by
    another tool and counts alone."""
    if stored is None:
        return Start(None, None, False)
    note = decode_pair(partition, stored.metadata)
    if note is None:
        return Start(None, stored.offset - 1, False)
    return Start(note, stored.offset - 1, note.next_source_offset != stored.offset)
