"""What members of a consumer group tell each other, and who gets what: Java's bytes and Java's rules. Pure.

``ConsumerProtocol`` gives the bytes, ``RangeAssignor`` and ``RoundRobinAssignor`` the rules, so that Java's consumers
may be members of the same group and lead it.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from kafka.errors import KafkaError
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from connect.core.errors import PermanentError
from connectors.formats.types import TopicPartition

RANGE: Final = "range"
ROUND_ROBIN: Final = "roundrobin"
#: Of ``partition.assignment.strategy``, by Java's class and by the names of the consumers before.
STRATEGIES: Final[Mapping[str, str]] = {
    "org.apache.kafka.clients.consumer.RangeAssignor": RANGE,
    "org.apache.kafka.clients.consumer.RoundRobinAssignor": ROUND_ROBIN,
    "range": RANGE,
    "roundrobin": ROUND_ROBIN,
}
#: That of Java's consumers of 0.10 and later, which every reader of a later one understands.
_SUBSCRIPTION_VERSION: Final = 1
_ASSIGNMENT_VERSION: Final = 1

Shares = dict[str, list[TopicPartition]]


class UnreadableMember(PermanentError):
    """A member of the group says of itself what is no consumer's."""


def encode_subscription(topics: Collection[str]) -> bytes:
    """What a member wants: these topics. It owns nothing while it says so, for it has stopped before it joins."""
    said = ConsumerProtocolSubscription(topics=sorted(topics), user_data=None, owned_partitions=[])
    return bytes(said.encode(version=_SUBSCRIPTION_VERSION))


def decode_subscription(member: str, data: bytes) -> list[str]:
    """The topics that a member wants. Raises UnreadableMember."""
    try:
        return list(ConsumerProtocolSubscription.decode(data).topics)
    except (KafkaError, ValueError, IndexError, struct.error) as error:
        raise UnreadableMember(
            f"member {member} of the group does not say what it reads as a consumer does ({type(error).__name__}); "
            "choose another group.id"
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
    """What the leader gave us; nothing where it gave nothing. Raises UnreadableMember."""
    if not data:
        return []
    try:
        rows = ConsumerProtocolAssignment.decode(data).assigned_partitions
    except (KafkaError, ValueError, IndexError, struct.error) as error:
        raise UnreadableMember(f"the group's leader gives out what is no assignment ({type(error).__name__})") from None
    return [TopicPartition(row.topic, index) for row in rows for index in row.partitions]


def assign(strategy: str, wanted: Mapping[str, Collection[str]], counts: Mapping[str, int]) -> Shares:
    """Who gets what. ``wanted``: the topics of each member; ``counts``: the partitions of each topic that there is."""
    return (_round_robin if strategy == ROUND_ROBIN else _range)(wanted, counts)


def _range(wanted: Mapping[str, Collection[str]], counts: Mapping[str, int]) -> Shares:
    """Of each topic a stretch, the first members' longer by one (``RangeAssignor``)."""
    shares: Shares = {member: [] for member in wanted}
    for topic in sorted({topic for topics in wanted.values() for topic in topics}):
        members = sorted(member for member, topics in wanted.items() if topic in topics)
        least, more = divmod(counts.get(topic, 0), len(members))
        at = 0
        for rank, member in enumerate(members):
            size = least + (rank < more)
            shares[member] += [TopicPartition(topic, index) for index in range(at, at + size)]
            at += size
    return shares


def _round_robin(wanted: Mapping[str, Collection[str]], counts: Mapping[str, int]) -> Shares:
    """All partitions one after the other to those who want them (``RoundRobinAssignor``)."""
    shares: Shares = {member: [] for member in wanted}
    members: Sequence[str] = sorted(wanted)
    turn = 0
    for topic in sorted({topic for topics in wanted.values() for topic in topics}):
        for index in range(counts.get(topic, 0)):
            while topic not in wanted[members[turn % len(members)]]:
                turn += 1
            shares[members[turn % len(members)]].append(TopicPartition(topic, index))
            turn += 1
    return shares
