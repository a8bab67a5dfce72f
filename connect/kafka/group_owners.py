"""Who of a group reads which partition, as its coordinator tells."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from kafka.errors import KafkaError
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment

from connect.kafka.cluster import Cluster
from connect.kafka.group_offsets import Partition, described_group

_CONSUMER: Final = "consumer"


async def owners(cluster: Cluster, group: str) -> dict[Partition, str]:
    """Client id and host of who has each partition. Empty where nobody is in the group, and of groups whose
    coordinator gives partitions out by itself (KIP-848), which this question does not show.

    Raises as :func:`connect.kafka.group_offsets.committed_offsets`.
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
