"""Membership in a group of Connect workers or consumers: Kafka's classic group protocol.

Decides nothing: the caller says when to join, with which metadata, and what the leader assigns. Follows Kafka's
``AbstractCoordinator``, except that heartbeats have their own connection and continue while a JoinGroup waits: only
responses renew the lease on this member's work, and a round may take longer than a lease.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from connect.core.errors import HeliographError, RetriableError
from connect.kafka import group_protocol as requests
from connect.kafka.cluster import Cluster, error_name
from connect.kafka.concurrency import Backoff, Scope
from connect.kafka.group_heartbeat import BEATING, GroupMeters, HeartbeatEvents, HeartbeatLoop, MembershipState
from connect.kafka.group_protocol import MEMBER_ID_REQUIRED, UNKNOWN_MEMBER_ID, Coordinator, GroupSettings, RoundOver
from connect.kafka.threads import LeaseLoop

log = logging.getLogger(__name__)

#: The connection for requests that may wait long: the broker answers later requests only afterwards.
_JOINING: Final = "join"
#: Java's ``AbstractCoordinator.JOIN_GROUP_TIMEOUT_LAPSE``: how long a JoinGroup may exceed the rebalance timeout.
_LAPSE_MS: Final = 5_000
_LEAVE_WITHIN_S: Final = 5.0
#: A new member id and one or two restarted rounds are normal; after more in a row, pause.
_OVER_IN_A_ROW: Final = 4


class LeftGroup(RetriableError):
    """``leave`` or ``close`` was called while ``join`` was waiting."""


@dataclass(frozen=True, slots=True)
class Membership:
    """The result of a round for this member. ``leader`` is a member id, ``assignment`` the leader's bytes."""

    generation: int
    member: str
    leader: str
    protocol: str
    assignment: bytes


class GroupEvents(HeartbeatEvents, Protocol):
    """Events of a member; called in the loop, and all except ``assign`` must return soon."""

    async def assign(self, protocol: str, leader: str, members: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Return the assignments of this round by member id, because the coordinator has elected this member leader.
        Called within ``join``; ``members`` is their metadata in the chosen ``protocol``. An error ends ``join``."""


class GroupMember:
    """A worker's membership in its group, not joined at first. Has its own connections, under the client id of the
    settings; ``leases`` sends its heartbeats."""

    def __init__(self, cluster: Cluster, settings: GroupSettings, events: GroupEvents, leases: LeaseLoop) -> None:
        self._settings = settings
        self._events = events
        self._name = f"{settings.client_id} in group {settings.group_id}"
        self._cluster = cluster.seen_by(settings.client_id)
        self._coordinator = Coordinator(self._cluster, settings)
        self._membership = MembershipState()
        self.meters = GroupMeters()
        beating = cluster.seen_by(settings.client_id)  # because connections belong to one loop
        self._heartbeat_loop = HeartbeatLoop(beating, settings, events, self._membership, self.meters, leases)
        self._scope = Scope(self._name)
        self._joining: asyncio.Task[Membership] | None = None

    @property
    def member_id(self) -> str:
        """The member id from the coordinator, "" if there is none."""
        return self._membership.member

    @property
    def generation(self) -> int:
        """The newest generation that this member belongs to, -1 for none."""
        return self._membership.generation

    @property
    def holds(self) -> bool:
        """Whether this member may work on its assignment: the lease that the coordinator's responses renew runs. Can
        be read in the main loop and in the lease thread."""
        return self._heartbeat_loop.holds

    @property
    def silent_s(self) -> float:
        """Seconds since the coordinator last answered, minus the time that a first join may wait for other members."""
        membership = self._membership
        is_outside = membership.joining and membership.generation < 0  # then there are no heartbeats to answer
        allowed_s = self._settings.rebalance_timeout_ms / 1000 if is_outside else 0.0
        return asyncio.get_running_loop().time() - self._heartbeat_loop.answered_s - allowed_s

    async def join(self, protocols: Sequence[tuple[str, bytes]]) -> Membership:
        """Take part in a round, the first one or another; return when it has ended, however long that takes, and with a
        running lease. ``protocols``: name and metadata of each supported protocol, preferred first. One call at a time.
        It may be cancelled: a round that waits for this member then waits for the next ``join``, or for ``leave``.
        Raises GroupRefused if the group or its coordinator rejects this member, SecurityError if an ACL is missing, or
        no broker accepts this client, and LeftGroup if ``leave`` or ``close`` was called in the meantime."""
        if self._joining is not None:
            raise RuntimeError(f"{self._name}: join was called while another join is running")
        self._scope = Scope(self._name)
        joining = self._joining = self._scope.spawn(self._rounds(tuple(protocols)), f"join of {self._name}")
        self._membership.joining = True
        try:
            return await joining
        except asyncio.CancelledError:
            if self._joining is not joining:  # by _stop(), not by the caller
                raise LeftGroup(f"{self._name} left while it joined") from None
            raise
        finally:
            # Not earlier, and immediately before the caller runs: no event of the next round may overtake this one.
            if self._joining is joining:
                self._joining = None
                self._membership.joining = False

    async def members(self) -> Sequence[bytes]:
        """Return the metadata of each member of the group, empty bytes during a rebalance. Raises RetriableError or
        SecurityError."""
        return await self._coordinator.members(BEATING)

    async def leave(self, reason: str) -> None:
        """Leave the group, so that the others need not wait for the session to expire; ends a running ``join``. Best
        effort, within a few seconds: failures are logged. A later ``join`` creates a new member."""
        await self._stop()
        member = self._membership.member
        self._membership.forget()
        if not member:
            return
        try:
            async with asyncio.timeout(_LEAVE_WITHIN_S):
                request = requests.leave(self._settings, member, reason)
                answer = await self._coordinator.call(request, BEATING, timeout_ms=self._coordinator.prompt_ms)
        except (HeliographError, TimeoutError) as error:
            said = error if str(error) else f"no answer within {_LEAVE_WITHIN_S:g} s"
            log.warning("%s cannot leave the group, its session will expire: %s", self._name, said)
            return
        codes = [answer.error_code, *(row.error_code for row in answer.members)]
        for code in filter(None, codes):
            log.warning("%s cannot leave the group: %s", self._name, error_name(code))

    async def close(self) -> None:
        """Stop everything and close the connections, without leaving the group: that is ``leave``."""
        await self._stop()
        self._membership.forget()
        await self._heartbeat_loop.close()
        await self._cluster.close()

    async def _stop(self) -> None:
        if self._joining is not None:
            self._joining = None
            self._membership.joining = False
            await self._scope.close()
        await self._heartbeat_loop.stop()

    async def _rounds(self, protocols: Sequence[tuple[str, bytes]]) -> Membership:
        """Repeat rounds until one ends with this member in it."""
        settings = self._settings
        waiting = Backoff(log, self._name, settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        over_in_a_row = 0
        began_s = asyncio.get_running_loop().time()
        try:
            while True:
                try:
                    made = await self._round(protocols)
                    self.meters.round_ended(asyncio.get_running_loop().time() - began_s)
                    return made
                except RoundOver as over:
                    self.meters.round_failed()
                    over_in_a_row += 1
                    log.debug("%s: %s; joining again", self._name, over)
                    if over_in_a_row > _OVER_IN_A_ROW:
                        await waiting.after(over)
                except RetriableError as error:
                    self.meters.round_failed()
                    await waiting.after(error)
        finally:
            # Its waiting request would delay the next one, and hours may pass between two joins.
            await self._coordinator.hang_up(_JOINING)

    async def _round(self, protocols: Sequence[tuple[str, bytes]]) -> Membership:
        joined = await self._join_group(protocols)
        members = {row.member_id: bytes(row.metadata) for row in joined.members}
        assignments: Mapping[str, bytes] = {}
        if joined.leader == joined.member_id:
            assignments = await self._events.assign(joined.protocol_name, joined.leader, members)
        assignment = await self._sync_group(joined, assignments)
        return Membership(joined.generation_id, joined.member_id, joined.leader, joined.protocol_name, assignment)

    async def _join_group(self, protocols: Sequence[tuple[str, bytes]]) -> Any:
        membership = self._membership
        sent_s = asyncio.get_running_loop().time()
        answer = await self._ask(*requests.join(self._settings, membership.member, protocols))
        if answer.error_code == MEMBER_ID_REQUIRED:
            membership.member = answer.member_id
        self._check("JoinGroup", answer.error_code)
        self.meters.took(self.meters.join_ms, asyncio.get_running_loop().time() - sent_s)
        self._heartbeat_loop.joined()
        membership.member, membership.generation, membership.rebalance_said = (
            answer.member_id,
            answer.generation_id,
            False,
        )
        self._heartbeat_loop.start()  # the session runs from now on, also while the leader assigns
        return answer

    async def _sync_group(self, joined: Any, assignments: Mapping[str, bytes]) -> bytes:
        sent_s = asyncio.get_running_loop().time()
        request = requests.sync(
            self._settings, joined.member_id, joined.generation_id, joined.protocol_name, assignments
        )
        answer = await self._ask(request)
        self._check("SyncGroup", answer.error_code)
        self.meters.took(self.meters.sync_ms, asyncio.get_running_loop().time() - sent_s)
        self._heartbeat_loop.renew(sent_s)
        if not self._heartbeat_loop.holds:
            raise RoundOver(f"{self._name}: SyncGroup was answered after the lease had expired")
        return bytes(answer.assignment)

    def _check(self, api: str, code: int) -> None:
        if code == UNKNOWN_MEMBER_ID:
            had_part = self._membership.generation >= 0
            reason = f"{self._name}: {api}: {error_name(code)}"
            if had_part:
                self._heartbeat_loop.lose(reason)
            self._membership.forget()
        requests.check(self._settings, f"cluster {self._coordinator.name}", api, code)

    async def _ask(self, request: Any, at_most: int | None = None) -> Any:
        """Return the response to a request that may wait for other members, while its broker is the coordinator: a
        broker that hangs or is unreachable does not report that it no longer is."""
        timeout_ms = max(self._cluster.settings.request_timeout_ms, self._settings.rebalance_timeout_ms + _LAPSE_MS)
        call = self._coordinator.call(request, _JOINING, timeout_ms=timeout_ms, at_most=at_most)
        async with Scope(self._name) as scope:
            asking = scope.spawn(call, f"{request.name} of {self._name}")
            while True:
                await asyncio.wait({asking}, timeout=self._settings.session_timeout_ms / 1000)
                if asking.done():
                    return asking.result()
                if await self._coordinator.has_moved(_JOINING):
                    raise RetriableError(f"cluster {self._coordinator.name}: the group has another coordinator now")
