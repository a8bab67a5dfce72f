"""The heartbeats of a member, and the lease that their answers renew."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Final, Protocol

from connect.core.errors import PermanentError, RetriableError
from connect.kafka import group_requests as requests
from connect.kafka.cluster import error_name
from connect.kafka.concurrency import Scope
from connect.kafka.group_coordinator import Coordinator
from connect.kafka.group_meters import GroupMeters
from connect.kafka.group_requests import NOT_A_MEMBER, REBALANCE_IN_PROGRESS, UNKNOWN_MEMBER_ID, GroupSettings
from connect.kafka.patience import Patience

log = logging.getLogger(__name__)

#: The connection that heartbeats and LeaveGroup have.
BEATING: Final = "group"
_NO_GENERATION: Final = -1


class HeartEvents(Protocol):
    """What heartbeats tell; called in the loop, and to return soon."""

    def rebalance_begun(self) -> None:
        """A round has begun: the coordinator waits for our ``join``. Said once per generation."""

    def membership_lost(self, reason: str) -> None:
        """The coordinator does not count us in any more; no heartbeats until the next ``join``."""

    def lease_lost(self) -> None:
        """No heartbeat that was sent within ``lease_ms`` was answered. Heartbeats go on, and may renew it."""

    def heartbeat_answered(self) -> None:
        """The coordinator counts us in."""


@dataclass(slots=True)
class Standing:
    """What we are in the group: ``member`` "" and ``generation`` -1 where we are nothing (yet)."""

    member: str = ""
    generation: int = _NO_GENERATION
    joining: bool = False
    rebalance_said: bool = False

    def forget(self) -> None:
        self.member, self.generation, self.rebalance_said = "", _NO_GENERATION, False


class Heart:
    """Beats in a task of its own from ``start`` on while ``standing`` has a generation, or until ``stop``.

    The time of the lease runs from when a request that was answered had been sent: the coordinator cannot have given
    our session less than that.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        settings: GroupSettings,
        events: HeartEvents,
        standing: Standing,
        meters: GroupMeters,
    ) -> None:
        self._coordinator = coordinator
        self._settings = settings
        self._events = events
        self._standing = standing
        self._meters = meters
        self._name = f"heartbeats of {settings.client_id} in group {settings.group_id}"
        self._scope = Scope(self._name)
        self._beating: asyncio.Task[None] | None = None
        self._renewed_s = float("-inf")
        #: When the coordinator was asked what it has answered last, in the loop's time; it outlives the membership.
        self.answered_s = float("-inf")
        self._lease: asyncio.TimerHandle | None = None

    @property
    def holds(self) -> bool:
        """Whether our lease runs, by the clock: the loop may have stood still at its end."""
        return asyncio.get_running_loop().time() < self._renewed_s + self._settings.lease_ms / 1000

    def start(self) -> None:
        """Beat, if that is not done already."""
        if self._beating is None or self._beating.done():
            self._scope = Scope(self._name)
            self._beating = self._scope.spawn(self._beat(), self._name)
            self._beating.add_done_callback(self._ended)

    async def stop(self) -> None:
        """No more heartbeats and no lease."""
        self._end_lease()
        await self._scope.close()

    def renew(self, sent_s: float) -> None:
        """The coordinator has answered, as to a member, what was sent at ``sent_s`` of the loop's clock."""
        self.answered_s = max(self.answered_s, sent_s)
        if sent_s <= self._renewed_s:
            return
        self._renewed_s = sent_s
        if self._lease is not None:
            self._lease.cancel()
        loop = asyncio.get_running_loop()
        self._lease = loop.call_at(sent_s + self._settings.lease_ms / 1000, self._lease_over)

    def lose(self, reason: str, *, known: bool = False) -> None:
        """We are no member any more; ``known``: our member id may still be taken."""
        member = self._standing.member
        self._standing.forget()
        if known:
            self._standing.member = member
        self._end_lease()
        self._events.membership_lost(reason)

    async def _beat(self) -> None:
        clock = asyncio.get_running_loop().time
        interval_s = self._settings.heartbeat_interval_ms / 1000
        waiting = Patience(log, self._name, self._settings.retry_backoff_ms, self._settings.retry_backoff_max_ms)
        await asyncio.sleep(interval_s)
        while self._standing.generation != _NO_GENERATION:
            sent_s = clock()
            try:
                await self._once(sent_s)
            except RetriableError as error:
                await waiting.after(error)
                continue
            except PermanentError as error:
                self.lose(str(error))
                return
            waiting.over()
            await asyncio.sleep(max(0.0, sent_s + interval_s - clock()))

    async def _once(self, sent_s: float) -> None:
        member, generation = self._standing.member, self._standing.generation
        request = requests.heartbeat(self._settings, member, generation)
        self._meters.heartbeat_sent()
        answer = await self._coordinator.call(request, BEATING, timeout_ms=self._coordinator.prompt_ms)
        self._meters.heartbeat_answered(asyncio.get_running_loop().time() - sent_s)
        code: int = answer.error_code
        as_sent = (member, generation) == (self._standing.member, self._standing.generation)
        if code in NOT_A_MEMBER:
            # In a round that has ended without our knowing yet the generation is an old one: the join finds out.
            if as_sent and not self._standing.joining:
                self.lose(f"{self._name}: {error_name(code)}", known=code != UNKNOWN_MEMBER_ID)
            return
        if code != REBALANCE_IN_PROGRESS:
            requests.check(self._settings, f"cluster {self._coordinator.name}", "Heartbeat", code)
        self.renew(sent_s)
        self._events.heartbeat_answered()
        if code and as_sent and not self._standing.joining and not self._standing.rebalance_said:
            self._standing.rebalance_said = True
            self._events.rebalance_begun()

    def _lease_over(self) -> None:
        self._lease = None
        self._events.lease_lost()

    def _end_lease(self) -> None:
        self._renewed_s = float("-inf")
        if self._lease is not None:
            self._lease.cancel()
            self._lease = None

    def _ended(self, beating: asyncio.Task[None]) -> None:
        if not beating.cancelled() and (error := beating.exception()) is not None:
            log.error("%s ended by a defect", self._name, exc_info=error)
            self.lose(f"{self._name} ended by a defect: {error!r}")
