"""Sends the requests of a classic group's member to the coordinator, and interprets its answers.

The coordinator of a group is looked up when needed, and kept while it answers.
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

#: What members of a group of workers speak, and those of a group of consumers.
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
#: The coordinator does not count us in any more.
NOT_A_MEMBER: Final = frozenset({ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, _FENCED_INSTANCE_ID})
#: From version 9 on a leader may be told to assign nothing, which is for members of a fixed name (KIP-814).
_JOIN_AT_MOST: Final = 8
#: What brokers take of a reason (Java's ``JoinGroupRequest.maybeTruncateReason``).
_REASON_CHARACTERS: Final = 255


class GroupRefused(PermanentError):
    """The group's coordinator does not take us as we are."""


class RoundOver(RetriableError):
    """A round has ended without us: join again, at once."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """How a worker or a consumer is a member; the settings of the same names.

    ``client_id``: what the member id that the coordinator makes begins with. ``lease_ms``: for how long after the last
    heartbeat that was answered our work is surely our own; not above the session timeout. ``protocol_type``: what all
    members of the group speak.
    """

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
    """JoinGroup and the version that it has at most."""
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
    """SyncGroup; ``assignments`` are the leader's, and empty from anybody else."""
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
    """Raise what an error code of a group request means, if it is one.

    Raises:
        GroupRefused, NotAuthorized: nothing that passes.
        RoundOver: the group has gone on; what we are in it may have changed with that.
        RetriableError: the coordinator moves, loads or is not to be had.
    """
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
            "its members share no assignor with us, or are no consumers: set partition.assignment.strategy as they "
            "have it (range or roundrobin), or choose another group.id"
        )
    return _ADVICE[code].format(settings=settings)


_ADVICE: Final = {
    _INCONSISTENT_GROUP_PROTOCOL: (
        "its members share no protocol with us, or are not Connect workers: set connect.protocol as they have it, "
        "or choose another group.id"
    ),
    _INVALID_GROUP_ID: "choose another group.id",
    _INVALID_SESSION_TIMEOUT: (
        "session.timeout.ms={settings.session_timeout_ms} is not between the brokers' group.min.session.timeout.ms and "
        "group.max.session.timeout.ms; set it so that it is"
    ),
    _GROUP_MAX_SIZE_REACHED: (
        "it has as many members as the brokers' group.max.size allows: stop a worker, or raise group.max.size"
    ),
}


#: Look-ups, opening, heartbeats: a part of the session, so that a broker that is stuck does not cost all of it, but
#: enough for TLS and SASL.
_SHARE_OF_SESSION: Final = 5
_LEAST_MS: Final = 2_000


class Coordinator:
    """Sends a group's requests to whoever coordinates it, over one connection per purpose. Tries once."""

    def __init__(self, cluster: Cluster, settings: GroupSettings) -> None:
        self.name = cluster.name
        #: How long finding it, or an answer that it has at once, may take.
        self.prompt_ms = max(_LEAST_MS, settings.session_timeout_ms // _SHARE_OF_SESSION)
        self._cluster = cluster
        self._group_id = settings.group_id
        self._node: int | None = None
        self._asked: dict[str, int] = {}  # by purpose: whom the last request went to

    async def call(self, request: Any, purpose: str, *, timeout_ms: int, at_most: int | None = None) -> Any:
        """The answer, which has a code that the caller looks at.

        Raises:
            RetriableError: no coordinator, or no answer of it in time.
            SecurityError: no broker takes us.
        """
        try:
            connection = await self._connection(purpose)
            answer = await connection.call(request, at_most=at_most, timeout_ms=timeout_ms)
        except RetriableError:
            self._node = None
            raise
        if answer.error_code in NOT_THE_COORDINATOR:
            self._node = None
        return answer

    async def members(self, purpose: str) -> int:
        """How many members the group has now; raises as :meth:`call`."""
        connection = await self._connection(purpose)
        answer = await connection.call(DescribeGroupsRequest(groups=[self._group_id]), timeout_ms=self.prompt_ms)
        return sum(len(group.members) for group in answer.groups)

    async def has_moved(self, purpose: str) -> bool:
        """Whether another broker coordinates the group now than the one that was asked last; False if nobody says."""
        try:
            async with asyncio.timeout(self.prompt_ms / 1000):
                self._node = await self._find()
        except (RetriableError, TimeoutError):
            return False
        return self._node != self._asked.get(purpose)

    async def hang_up(self, purpose: str) -> None:
        """Close the connection of a purpose, if there is one."""
        node = self._asked.pop(purpose, None)
        if node is not None:
            await self._cluster.disconnect(node, purpose)

    async def _connection(self, purpose: str) -> Any:
        try:
            async with asyncio.timeout(self.prompt_ms / 1000):
                if self._node is None:
                    self._node = await self._find()
                if self._asked.get(purpose, self._node) != self._node:
                    await self.hang_up(purpose)
                node = self._asked[purpose] = self._node
                return await self._cluster.connection(node, purpose)
        except TimeoutError as error:
            raise RetriableError(
                f"cluster {self.name}: the coordinator of group {self._group_id} was not reached within "
                f"{self.prompt_ms / 1000:g} s"
            ) from error

    async def _find(self) -> int:
        # Time enough is left for the answer to be missed: only then is another broker asked the next time.
        return await self._cluster.find_coordinator(self._group_id, "group", timeout_ms=self.prompt_ms // 2)
