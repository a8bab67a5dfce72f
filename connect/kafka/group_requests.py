"""The requests of a member of a classic group, and what the coordinator's answers mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kafka.errors import for_code
from kafka.protocol.consumer.group import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest

from connect.core.errors import PermanentError, RetriableError
from connect.kafka.cluster import NotAuthorized, error_name

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
