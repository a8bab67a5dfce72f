"""A Connect group as its coordinator describes it: members, and what they sent and were sent, in bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kafka.protocol.admin import DescribeGroupsRequest
from kafka.protocol.consumer.group import LeaveGroupRequest

from connect.core.errors import RetriableError
from connect.kafka.cluster import Cluster
from tests.kit.clients import cluster_at


@dataclass(frozen=True, slots=True)
class Member:
    """``metadata`` is that of the protocol in use; ``assignment`` is empty while a round is under way."""

    client_id: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class Picture:
    """``state``: Stable, PreparingRebalance, ... ; ``members`` by member id."""

    state: str
    protocol_type: str
    protocol: str
    members: Mapping[str, Member]


async def describe(cluster: Cluster, group: str) -> Picture | None:
    """The group now; None while its coordinator is not ready."""
    try:
        connection = await cluster.coordinator(group, "group")
        answer = await connection.call(DescribeGroupsRequest(groups=[group]))
    except RetriableError:
        return None
    (found,) = answer.groups
    if found.error_code:
        cluster.forget_coordinator(group, "group", found.error_code)
        return None
    members = {
        member.member_id: Member(
            member.client_id, bytes(member.member_metadata or b""), bytes(member.member_assignment or b"")
        )
        for member in found.members
    }
    return Picture(found.group_state, found.protocol_type, found.protocol_data, members)


async def end_sessions(bootstrap: str, *groups: str) -> None:
    """Remove the members of groups whose worker was killed: a successor need not wait for the end of their sessions."""
    async with cluster_at(bootstrap) as cluster:
        for group in groups:
            picture = await describe(cluster, group)
            if picture is None or not picture.members:
                continue  # they have ended
            connection = await cluster.coordinator(group, "group")
            identity = LeaveGroupRequest.MemberIdentity
            members = [identity(member_id=one, group_instance_id=None, reason="killed") for one in picture.members]
            answer = await connection.call(LeaveGroupRequest(group_id=group, members=members))
            assert not answer.error_code, answer
