"""Encode what members of a consumer group exchange, and assign partitions, with Java's bytes and Java's rules.

``ConsumerProtocol`` defines the bytes. aiokafka's assignors have the rules of ``RangeAssignor`` and
``RoundRobinAssignor``. So Java's consumers can be members of the same group and lead it.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Final

from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.errors import KafkaError
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from connect.core.errors import PermanentError
from connectors.formats.types import TopicPartition

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

Shares = dict[str, list[TopicPartition]]


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
    return bytes(
        ConsumerProtocolAssignment(assigned_partitions=rows, user_data=None).encode(version=_ASSIGNMENT_VERSION)
    )


def decode_assignment(data: bytes) -> list[TopicPartition]:
    """Decode what the leader assigned to us; empty if nothing. Raises UnreadableMember."""
    if not data:
        return []
    try:
        rows = ConsumerProtocolAssignment.decode(data).assigned_partitions
    except (KafkaError, ValueError, IndexError, struct.error) as error:
        raise UnreadableMember(f"the group's leader sent an unreadable assignment ({type(error).__name__})") from None
    return [TopicPartition(row.topic, index) for row in rows for index in row.partitions]


def assign(strategy: str, wanted: Mapping[str, Collection[str]], counts: Mapping[str, int]) -> Shares:
    """Assign partitions. ``wanted``: the topics of each member; ``counts``: the partitions of each existing topic."""
    known = SimpleNamespace(partitions_for_topic=lambda topic: range(counts.get(topic, 0)))
    # The range assignor would lose partitions of a topic that a member names twice.
    members = {member: SimpleNamespace(subscription=list(dict.fromkeys(topics))) for member, topics in wanted.items()}
    shares = _ASSIGNORS[strategy].assign(known, members)
    return {member: [TopicPartition(*one) for one in share.partitions()] for member, share in shares.items()}
