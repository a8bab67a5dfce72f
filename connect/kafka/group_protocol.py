"""Sends a classic group member's requests to the coordinator, and interprets the responses.

The coordinator of a group is looked up when needed, and cached while it responds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kafka.errors import for_code
from kafka.protocol.admin import DescribeGroupsRequest
from kafka.protocol.consumer.group import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest

from connect.core.errors import PermanentError, RetriableError
from connect.kafka.cluster import NOT_THE_COORDINATOR, Cluster, NotAuthorized, error_name
from connect.kafka.concurrency import within

#: The protocol types of groups of workers and of groups of consumers.
CONNECT: Final = "connect"
CONSUMER: Final = "consumer"

ILLEGAL_GENERATION: Final = 22
_INCONSISTENT_GROUP_PROTOCOL: Final = 23
_INVALID_GROUP_ID: Final = 24
UNKNOWN_MEMBER_ID: Final = 25
_INVALID_SESSION_TIMEOUT: Final = 26
REBALANCE_IN_PROGRESS: Final = 27
_GROUP_AUTHORIZATION_FAILED: Final = 30
MEMBER_ID_REQUIRED: Final = 79
_GROUP_MAX_SIZE_REACHED: Final = 81
_FENCED_INSTANCE_ID: Final = 82
#: The coordinator has removed this member.
NOT_A_MEMBER: Final = frozenset({ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, _FENCED_INSTANCE_ID})
#: From version 9 the coordinator may ask a leader to skip the assignment, for static members only (KIP-814).
_JOIN_AT_MOST: Final = 8
#: The length limit that brokers have for a reason (Java's ``JoinGroupRequest.maybeTruncateReason``).
_REASON_CHARACTERS: Final = 255


class GroupRefused(PermanentError):
    """The group's coordinator rejects this member with its current settings."""


class RoundOver(RetriableError):
    """A round has ended without this member: join again at once."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The settings of the same names that a member of a group has. ``client_id``: the prefix of the member id that the
    coordinator creates. ``lease_ms``: how long after the last answered heartbeat this member certainly keeps its work;
    at most the session timeout. ``protocol_type``: the type of all members of the group."""

    group_id: str
    client_id: str
    session_timeout_ms: int = 10_000
    rebalance_timeout_ms: int = 60_000
    heartbeat_interval_ms: int = 3_000
    lease_ms: int = 10_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    protocol_type: str = CONNECT


def join(settings: GroupSettings, member: str, protocols: Sequence[tuple[str, bytes]]) -> tuple[Any, int]:
    """Return a JoinGroup request and its highest version."""
    request = JoinGroupRequest(
        group_id=settings.group_id,
        session_timeout_ms=settings.session_timeout_ms,
        rebalance_timeout_ms=settings.rebalance_timeout_ms,
        member_id=member,
        group_instance_id=None,
        protocol_type=settings.protocol_type,
        protocols=[
            JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=metadata) for name, metadata in protocols
        ],
    )
    return request, _JOIN_AT_MOST


def sync(
    settings: GroupSettings, member: str, generation: int, protocol: str, assignments: Mapping[str, bytes]
) -> SyncGroupRequest:
    """Return a SyncGroup request; ``assignments`` is empty unless this member is the leader."""
    return SyncGroupRequest(
        group_id=settings.group_id,
        generation_id=generation,
        member_id=member,
        group_instance_id=None,
        protocol_type=settings.protocol_type,
        protocol_name=protocol,
        assignments=[
            SyncGroupRequest.SyncGroupRequestAssignment(member_id=each, assignment=assignment)
            for each, assignment in assignments.items()
        ],
    )


def heartbeat(settings: GroupSettings, member: str, generation: int) -> HeartbeatRequest:
    return HeartbeatRequest(
        group_id=settings.group_id, generation_id=generation, member_id=member, group_instance_id=None
    )


def leave(settings: GroupSettings, member: str, reason: str) -> LeaveGroupRequest:
    return LeaveGroupRequest(
        group_id=settings.group_id,
        members=[
            LeaveGroupRequest.MemberIdentity(
                member_id=member, group_instance_id=None, reason=reason[:_REASON_CHARACTERS]
            )
        ],
    )


def check(settings: GroupSettings, where: str, api: str, code: int) -> None:
    """Raise the error for the code of a group response, if it is one: GroupRefused or NotAuthorized for a permanent
    error, RoundOver if the round has ended, possibly with a change to this membership, RetriableError if the
    coordinator is moving, loading or unavailable."""
    if not code:
        return
    what = f"{where}: {api} of group {settings.group_id}: {error_name(code)}"
    if code == _GROUP_AUTHORIZATION_FAILED:
        raise NotAuthorized(f"{what}; grant READ on group {settings.group_id}")
    if code in _ADVICE:
        raise GroupRefused(f"{what}; {_advice(settings, code)}")
    if code in NOT_A_MEMBER or code in (REBALANCE_IN_PROGRESS, MEMBER_ID_REQUIRED):
        raise RoundOver(what)
    raise (RetriableError if for_code(code).retriable else GroupRefused)(what)


def _advice(settings: GroupSettings, code: int) -> str:
    if code == _INCONSISTENT_GROUP_PROTOCOL and settings.protocol_type == CONSUMER:
        return (
            "its members share no assignor with this one, or are not consumers: set partition.assignment.strategy to "
            "one of theirs (range or roundrobin), or choose another group.id"
        )
    return _ADVICE[code].format(settings=settings)


_ADVICE: Final = {
    _INCONSISTENT_GROUP_PROTOCOL: (
        "its members share no protocol with this one, or are not Connect workers: set connect.protocol to theirs, "
        "or choose another group.id"
    ),
    _INVALID_GROUP_ID: "choose another group.id",
    _INVALID_SESSION_TIMEOUT: (
        "session.timeout.ms={settings.session_timeout_ms} is not between the brokers' group.min.session.timeout.ms and "
        "group.max.session.timeout.ms; change it to a value in this range"
    ),
    _GROUP_MAX_SIZE_REACHED: (
        "it already has group.max.size members: stop a worker, or raise the brokers' group.max.size"
    ),
}


#: Lookups, connecting and heartbeats get a part of the session timeout, so that a broker that hangs does not use all of
#: it, but enough for TLS and SASL.
_SHARE_OF_SESSION: Final = 5
_LEAST_MS: Final = 2_000


class Coordinator:
    """Sends a group's requests to its coordinator, over one connection per purpose, without retries."""

    def __init__(self, cluster: Cluster, settings: GroupSettings) -> None:
        self.name = cluster.name
        #: Limit on finding the coordinator, and on a response that it has ready.
        self.prompt_ms = max(_LEAST_MS, settings.session_timeout_ms // _SHARE_OF_SESSION)
        self._cluster = cluster
        self._group_id = settings.group_id
        self._node: int | None = None
        self._asked: dict[str, int] = {}  # by purpose: the node of the last request

    async def call(self, request: Any, purpose: str, *, timeout_ms: int, at_most: int | None = None) -> Any:
        """Return the response; the caller checks its error code. Raises RetriableError if no coordinator was found, or
        it did not answer in time, and SecurityError if no broker accepts this client."""
        try:
            connection = await self._connection(purpose)
            answer = await connection.call(request, at_most=at_most, timeout_ms=timeout_ms)
        except RetriableError:
            self._node = None
            raise
        if answer.error_code in NOT_THE_COORDINATOR:
            self._node = None
        return answer

    async def members(self, purpose: str) -> list[bytes]:
        """Return the metadata of each member, empty bytes during a rebalance."""
        connection = await self._connection(purpose)
        answer = await connection.call(DescribeGroupsRequest(groups=[self._group_id]), timeout_ms=self.prompt_ms)
        return [bytes(member.member_metadata or b"") for group in answer.groups for member in group.members]

    async def has_moved(self, purpose: str) -> bool:
        """Return whether the coordinator is another broker than the one asked last; False if no broker answers."""
        try:
            async with asyncio.timeout(self.prompt_ms / 1000):
                self._node = await self._find()
        except (RetriableError, TimeoutError):
            return False
        return self._node != self._asked.get(purpose)

    async def hang_up(self, purpose: str) -> None:
        node = self._asked.pop(purpose, None)
        if node is not None:
            await self._cluster.disconnect(node, purpose)

    async def _connection(self, purpose: str) -> Any:
        what = f"cluster {self.name}: the coordinator of group {self._group_id}"
        async with within(self.prompt_ms / 1000, f"{what} was not reachable"):
            if self._node is None:
                self._node = await self._find()
            if self._asked.get(purpose, self._node) != self._node:
                await self.hang_up(purpose)
            node = self._asked[purpose] = self._node
            return await self._cluster.connection(node, purpose)

    async def _find(self) -> int:
        # Half of the time, so that a missing answer is noticed: only then is another broker asked the next time.
        return await self._cluster.find_coordinator(self._group_id, "group", timeout_ms=self.prompt_ms // 2)
