"""Sends the heartbeats of a group member, renews its lease, and measures its requests and rounds.

The lease thread sends the heartbeats, and their responses renew the lease. Metrics are those of Kafka's
``GroupCoordinatorMetrics``; times are wall clock milliseconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from connect.core.errors import PermanentError, RetriableError
from connect.core.metrics import Windowed
from connect.kafka import group_protocol as requests
from connect.kafka.cluster import Cluster, error_name
from connect.kafka.concurrency import Backoff, Scope, wall_ms
from connect.kafka.threads import LeaseLoop


@dataclass(slots=True)
class GroupMeters:
    """``rounds_ms``: from the start of a join to the assignment. ``failed_rounds``: attempts without a result."""

    heartbeat_ms: Windowed = field(default_factory=Windowed)
    join_ms: Windowed = field(default_factory=Windowed)
    sync_ms: Windowed = field(default_factory=Windowed)
    rounds_ms: Windowed = field(default_factory=Windowed)
    failed_rounds: Windowed = field(default_factory=Windowed)
    heartbeat_sent_ms: int | None = None
    round_ended_ms: int | None = None
    clock: Callable[[], int] = field(default=wall_ms, repr=False)

    def heartbeat_sent(self) -> None:
        self.heartbeat_sent_ms = self.clock()

    def took(self, meter: Windowed, took_s: float) -> None:
        meter.record(took_s * 1000, self.clock())

    def round_ended(self, took_s: float) -> None:
        self.round_ended_ms = self.clock()
        self.rounds_ms.record(took_s * 1000, self.round_ended_ms)

    def round_failed(self) -> None:
        self.failed_rounds.record(1, self.clock())


log = logging.getLogger(__name__)

#: The purpose of the connections of heartbeats, in their thread, and of LeaveGroup.
BEATING: Final = "group"
_NO_GENERATION: Final = -1
#: How often a thread that may not renew checks whether it may again.
_LOOK_S: Final = 0.25


class HeartbeatEvents(Protocol):
    """Events of the heartbeats; called in the loop, and must return soon."""

    def rebalance_begun(self) -> None:
        """A round has begun: the coordinator waits for this member's ``join``. Called once per generation."""

    def membership_lost(self, reason: str) -> None:
        """The coordinator has removed this member; no heartbeats until the next ``join``."""

    def lease_lost(self) -> None:
        """No heartbeat sent within ``lease_ms`` was answered. Heartbeats continue and may renew the lease."""

    def heartbeat_answered(self) -> None:
        """The coordinator still counts this member in."""


@dataclass(slots=True)
class MembershipState:
    """This member's state in the group: ``member`` "" and ``generation`` -1 while it does not belong to the group."""

    member: str = ""
    generation: int = _NO_GENERATION
    joining: bool = False
    rebalance_said: bool = False

    def is_of(self, member: str, generation: int) -> bool:
        """Return whether a response for this member and generation applies: never in a round, which may have ended
        unnoticed. The lease thread calls this too, so ``joining`` is checked first: it may change at any time."""
        return not self.joining and (self.member, self.generation) == (member, generation)

    def forget(self) -> None:
        self.member, self.generation, self.rebalance_said = "", _NO_GENERATION, False


@dataclass(eq=False)
class _Beats:
    """The heartbeats of one membership. Lives in the lease thread; the main loop only reads its public attributes.
    ``answered`` and ``refused`` are called in the main loop."""

    _heartbeat_loop: HeartbeatLoop
    _coordinator: requests.Coordinator
    _settings: requests.GroupSettings
    _membership: MembershipState
    _meters: GroupMeters
    _leases: LeaseLoop
    #: When the last answered request was sent to the coordinator.
    renewed_s: float = float("-inf")
    #: Whether the coordinator has removed this member; then the heartbeats have ended.
    is_lost: bool = False

    def __post_init__(self) -> None:
        self._name = f"heartbeats of {self._settings.client_id} in group {self._settings.group_id}"
        self.scope = Scope(self._name)

    def start(self) -> None:
        self.scope.spawn(self._guarded(), self._name)

    async def _guarded(self) -> None:
        try:
            await self._beat()
        except PermanentError as error:
            self._leases.post(self._heartbeat_loop.refused, self, str(error))
        except Exception as error:
            log.error("%s ended because of a bug", self._name, exc_info=error)
            self._leases.post(self._heartbeat_loop.refused, self, f"{self._name} ended because of a bug: {error!r}")

    async def _beat(self) -> None:
        clock = asyncio.get_running_loop().time
        interval_s = self._settings.heartbeat_interval_ms / 1000
        waiting = Backoff(log, self._name, self._settings.retry_backoff_ms, self._settings.retry_backoff_max_ms)
        await asyncio.sleep(interval_s)
        while not self.is_lost:
            if not self._leases.may_renew:
                await asyncio.sleep(_LOOK_S)
                continue
            sent_s = clock()
            try:
                await self._once(sent_s)
            except RetriableError as error:
                await waiting.after(error)
                continue
            waiting.over()
            await asyncio.sleep(max(0.0, sent_s + interval_s - clock()))

    async def _once(self, sent_s: float) -> None:
        member, generation = self._membership.member, self._membership.generation
        if generation == _NO_GENERATION:  # the main loop is about to end this, or to join again
            return
        request = requests.heartbeat(self._settings, member, generation)
        self._meters.heartbeat_sent()
        answer = await self._coordinator.call(request, BEATING, timeout_ms=self._coordinator.prompt_ms)
        code: int = answer.error_code
        if code not in requests.NOT_A_MEMBER and code != requests.REBALANCE_IN_PROGRESS:
            requests.check(self._settings, f"cluster {self._coordinator.name}", "Heartbeat", code)
        if code not in requests.NOT_A_MEMBER:
            self.renewed_s = sent_s
        else:
            self.is_lost = self._membership.is_of(member, generation)
        took_s = asyncio.get_running_loop().time() - sent_s
        self._leases.post(self._heartbeat_loop.answered, self, took_s, (member, generation), code)


@dataclass(eq=False)
class HeartbeatLoop:
    """Heartbeats from ``start`` while ``membership`` has a generation, or until ``stop``. The lease runs from the time
    when an answered request was sent: the coordinator cannot have given the session less time. The lease thread sends
    heartbeats over its own connections, so they renew the lease even while the main loop is busy; everything else
    happens in the main loop."""

    _cluster: Cluster
    _settings: requests.GroupSettings
    _events: HeartbeatEvents
    _membership: MembershipState
    _meters: GroupMeters
    _leases: LeaseLoop
    _beats: _Beats | None = field(default=None, init=False)
    _renewed_s: float = field(default=float("-inf"), init=False)
    _answered_s: float = field(default=float("-inf"), init=False)
    _lease: asyncio.TimerHandle | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._coordinator = requests.Coordinator(self._cluster, self._settings)
        self._name = f"heartbeats of {self._settings.client_id} in group {self._settings.group_id}"

    @property
    def holds(self) -> bool:
        """Whether the lease runs, by the clock and the coordinator's responses. A blocked main loop need not have
        processed these yet. The lease thread calls this too."""
        return asyncio.get_running_loop().time() < self._ends_s

    @property
    def answered_s(self) -> float:
        """When the last answered request was sent, in the loop's time; survives the membership."""
        return max(self._answered_s, self._beats.renewed_s if self._beats is not None else self._answered_s)

    @property
    def _ends_s(self) -> float:
        beats, renewed_s = self._beats, self._renewed_s
        if beats is not None:
            renewed_s = float("-inf") if beats.is_lost else max(renewed_s, beats.renewed_s)
        return renewed_s + self._settings.lease_ms / 1000

    def start(self) -> None:
        """Start heartbeats unless they run. They end by themselves once this member was removed; a join that began
        before that was known finds out, and makes it a member again."""
        if self._beats is None or self._beats.is_lost:
            self._beats = _Beats(self, self._coordinator, self._settings, self._membership, self._meters, self._leases)
            self._leases.call(self._beats.start)

    async def stop(self) -> None:
        beats = self._beats
        self._end_lease()
        if beats is not None:
            await self._leases.run(beats.scope.close())

    async def close(self) -> None:
        """Close the connections of heartbeats; call ``stop`` first."""
        await self._leases.run(self._cluster.close())

    def joined(self) -> None:
        self._answered_s = asyncio.get_running_loop().time()

    def renew(self, sent_s: float) -> None:
        """Record that the coordinator has answered, as to a member, a request sent at ``sent_s`` of the loop's time."""
        self._answered_s = max(self._answered_s, sent_s)
        self._renewed_s = max(self._renewed_s, sent_s)
        self._watch_lease()

    def lose(self, reason: str, *, known: bool = False) -> None:
        """End the membership; ``known``: the member id can still be used."""
        member = self._membership.member
        self._membership.forget()
        if known:
            self._membership.member = member
        if self._beats is not None:
            self._leases.call(self._beats.scope.cancel)
        self._end_lease()
        self._events.membership_lost(reason)

    # -- calls from the lease thread, in the main loop ---------------------------------------------------

    def answered(self, beats: _Beats, took_s: float, sent_as: tuple[str, int], code: int) -> None:
        if beats is not self._beats:
            return
        self._meters.took(self._meters.heartbeat_ms, took_s)
        is_ours = self._membership.is_of(*sent_as)
        if code in requests.NOT_A_MEMBER:
            if is_ours:
                self.lose(f"{self._name}: {error_name(code)}", known=code != requests.UNKNOWN_MEMBER_ID)
            return
        self._watch_lease()
        self._events.heartbeat_answered()
        if code and is_ours and not self._membership.rebalance_said:
            self._membership.rebalance_said = True
            self._events.rebalance_begun()

    def refused(self, beats: _Beats, reason: str) -> None:
        if beats is self._beats:
            self.lose(reason)

    def _watch_lease(self) -> None:
        if self._lease is None and self.holds:
            self._lease = asyncio.get_running_loop().call_at(self._ends_s, self._lease_over)

    def _lease_over(self) -> None:
        """End the lease unless it was renewed since the timer was set: the thread may be ahead of the main loop."""
        self._lease = None
        self._watch_lease()
        if self._lease is None:
            self._events.lease_lost()

    def _end_lease(self) -> None:
        self._answered_s = self.answered_s
        self._beats = None
        self._renewed_s = float("-inf")
        if self._lease is not None:
            self._lease.cancel()
            self._lease = None
