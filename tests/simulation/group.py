"""A worker's side of the group: joins, heartbeats and the lease, as ``connect.kafka.group_member`` does them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from connect.core.herder.events import Event, Joined, LeaderElected, LeaseLost, MembershipLost, RebalanceBegun
from tests.simulation.coordinator import (
    ILLEGAL_GENERATION,
    MEMBER_ID_REQUIRED,
    OK,
    REBALANCE_IN_PROGRESS,
    UNKNOWN_MEMBER_ID,
    Coordinator,
    Round,
)
from tests.simulation.world import Machine

_RETRY_MS = 100


class GroupClient:
    """``report`` takes events; ``lost`` those that end a membership or its lease, which come before whatever waits."""

    def __init__(
        self,
        machine: Machine,
        coordinator: Coordinator,
        report: Callable[[Event], None],
        lost: Callable[[Event], None],
        renewed: Callable[[], None],
        syncing: Callable[[], None],
        *,
        lease_ms: int,
        heartbeat_ms: int,
    ) -> None:
        self.machine = machine
        self.coordinator = coordinator
        self.report = report
        self.lost = lost
        self.renewed = renewed
        self.syncing = syncing
        self.lease_ms = lease_ms
        self.heartbeat_ms = heartbeat_ms
        self.member = ""
        self.generation = -1
        self.joining = False
        self.lease_end_ms = 0
        self._attempt = 0
        self._lease_runs = False
        self._timer_set = False
        self._beats = 0
        self._said = -1
        self._asked = 0
        self._assign: Callable[[Mapping[str, bytes]], None] | None = None

    # joining

    def join(self, token: int, protocols: Sequence[tuple[str, bytes]]) -> None:
        self._attempt += 1
        self.joining = True
        self._ask(self._attempt, token, protocols)

    def assign(self, assignments: Mapping[str, bytes]) -> None:
        if self._assign is not None:
            assign, self._assign = self._assign, None
            assign(assignments)

    def leave(self) -> None:
        self._attempt += 1
        self.joining = False
        member, self.member, self.generation = self.member, "", -1
        self._lease_runs = False
        if member:
            self.machine.call(None, lambda answer: self.coordinator.leave(member, answer), lambda _: None, lambda: None)

    def _ask(self, attempt: int, token: int, protocols: Sequence[tuple[str, bytes]]) -> None:
        if attempt != self._attempt:
            return
        member = self.member
        asked = self._wait_for_answer(attempt, token, protocols)

        def again() -> None:
            if asked == self._asked:
                self.machine.after(_RETRY_MS, lambda: self._ask(attempt, token, protocols))

        def joined(answer: tuple[str, Round | str] | None) -> None:
            if attempt != self._attempt or asked != self._asked:
                return
            if answer is None:
                again()
                return
            code, value = answer
            if code == UNKNOWN_MEMBER_ID:
                self._forget("unknown on joining")
                self._ask(attempt, token, protocols)
            elif code == MEMBER_ID_REQUIRED:
                assert isinstance(value, str)
                self.member = value
                self._ask(attempt, token, protocols)
            else:
                assert isinstance(value, Round)
                self._elected(attempt, token, protocols, value)

        self.machine.call(
            None, lambda answer: self.coordinator.join(self.machine.name, member, protocols, answer), joined, again
        )

    def _elected(self, attempt: int, token: int, protocols: Sequence[tuple[str, bytes]], this: Round) -> None:
        self.generation = this.generation
        self._start_beating()
        if this.member != this.leader:
            self._sync(attempt, token, protocols, this, {})
            return

        def assigned(assignments: Mapping[str, bytes]) -> None:
            if attempt == self._attempt:
                self._sync(attempt, token, protocols, this, assignments)

        self._assign = assigned
        self.report(LeaderElected(this.protocol, this.leader, this.members))

    def _sync(
        self,
        attempt: int,
        token: int,
        protocols: Sequence[tuple[str, bytes]],
        this: Round,
        assignments: Mapping[str, bytes],
    ) -> None:
        sent_ms = self.machine.world.now_ms
        self.syncing()
        asked = self._wait_for_answer(attempt, token, protocols)

        def again() -> None:
            if asked == self._asked:
                self.machine.after(_RETRY_MS, lambda: self._ask(attempt, token, protocols))

        def synced(answer: tuple[str, bytes] | None) -> None:
            if attempt != self._attempt or asked != self._asked:
                return
            if answer is None:
                again()
                return
            code, data = answer
            if code == UNKNOWN_MEMBER_ID:
                self._forget("unknown on syncing")
            if code != OK:
                self._ask(attempt, token, protocols)
                return
            self.joining = False
            self._asked += 1
            self._renew(sent_ms)
            made = Joined(token, this.generation, this.member, this.leader, this.protocol, data)
            # Whoever waits for it has its turn after what is due by now; a lease that is over among it.
            self.machine.after(0, lambda: self.report(made))

        self.machine.call(
            None, lambda answer: self.coordinator.sync(this.member, this.generation, assignments, answer), synced, again
        )

    def _wait_for_answer(self, attempt: int, token: int, protocols: Sequence[tuple[str, bytes]]) -> int:
        """An older request that comes late may take our place at the coordinator, and then nobody answers us."""
        self._asked += 1
        asked = self._asked

        def over() -> None:
            if asked == self._asked:
                self._ask(attempt, token, protocols)

        self.machine.after(self.coordinator.rebalance_ms + 1_000, over)
        return asked

    def _forget(self, reason: str) -> None:
        had_part = self.generation >= 0
        self.member, self.generation = "", -1
        if had_part:
            self._lease_runs = False
            self.lost(MembershipLost(reason))

    # heartbeats and the lease

    def _start_beating(self) -> None:
        self._beats += 1
        beats = self._beats
        self.machine.after(self.heartbeat_ms, lambda: self._beat(beats))

    def _beat(self, beats: int) -> None:
        if beats != self._beats or self.generation < 0:
            return
        sent_ms, member, generation = self.machine.world.now_ms, self.member, self.generation

        def answered(code: str | None) -> None:
            as_sent = (member, generation) == (self.member, self.generation)
            if code in (UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION):
                if as_sent and not self.joining:
                    self._forget(str(code))
                    if code == ILLEGAL_GENERATION:
                        self.member = member
            elif code is not None:
                self._renew(sent_ms)
                if code == REBALANCE_IN_PROGRESS and as_sent and not self.joining and self._said != generation:
                    self._said = generation
                    self.report(RebalanceBegun())

        self.machine.call(
            None, lambda answer: self.coordinator.heartbeat(member, generation, answer), answered, lambda: None
        )
        self.machine.after(self.heartbeat_ms, lambda: self._beat(beats))

    def _renew(self, sent_ms: int) -> None:
        self._lapse_if_over()
        end_ms = sent_ms + self.lease_ms
        if end_ms <= self.lease_end_ms or not self.member:
            return
        self.lease_end_ms = end_ms
        self._lease_runs = True
        self.renewed()
        if not self._timer_set:
            self._set_timer()

    def _set_timer(self) -> None:
        self._timer_set = True
        self.machine.after(self.lease_end_ms - self.machine.world.now_ms, self._timer_over)

    def _timer_over(self) -> None:
        self._timer_set = False
        self._lapse_if_over()
        if self._lease_runs:
            self._set_timer()

    def _lapse_if_over(self) -> None:
        if self._lease_runs and self.machine.world.now_ms >= self.lease_end_ms:
            self._lease_runs = False
            self.lost(LeaseLost())
