"""The broker's side of a classic group: members, sessions, the barriers of JoinGroup and SyncGroup."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from tests.simulation.world import World

UNKNOWN_MEMBER_ID = "UNKNOWN_MEMBER_ID"
ILLEGAL_GENERATION = "ILLEGAL_GENERATION"
REBALANCE_IN_PROGRESS = "REBALANCE_IN_PROGRESS"
MEMBER_ID_REQUIRED = "MEMBER_ID_REQUIRED"
OK = "OK"

Answer = Callable[[Any], None]


class Phase(Enum):
    EMPTY = auto()
    PREPARING = auto()
    COMPLETING = auto()
    STABLE = auto()


@dataclass
class Round:
    """A JoinGroup's good answer; ``members`` is empty for all but the leader."""

    generation: int
    member: str
    leader: str
    protocol: str
    members: Mapping[str, bytes]


@dataclass
class Member:
    protocols: Sequence[tuple[str, bytes]] = ()
    deadline_ms: int = 0
    join: Answer | None = None
    sync: Answer | None = None
    assignment: bytes = b""
    synced: bool = False


@dataclass
class Coordinator:
    world: World
    session_ms: int
    rebalance_ms: int
    initial_delay_ms: int
    #: While it is down every answer is None, and sessions do not run.
    up: bool = True
    phase: Phase = Phase.EMPTY
    generation: int = 0
    leader: str = ""
    protocol: str = ""
    members: dict[str, Member] = field(default_factory=dict)
    #: Handed out, and not used to join yet.
    _ids: set[str] = field(default_factory=set)
    _given: int = 0
    _rounds: int = 0
    _gathering: bool = False

    def join(self, name: str, member: str, protocols: Sequence[tuple[str, bytes]], answer: Answer) -> None:
        if not self.up:
            answer(None)
            return
        if not member:
            self._given += 1
            member = f"{name}-{self._given}"
            self._ids.add(member)
            answer((MEMBER_ID_REQUIRED, member))
            return
        if member not in self.members:
            if member not in self._ids:
                answer((UNKNOWN_MEMBER_ID, ""))
                return
            self._ids.discard(member)
            self.members[member] = Member(deadline_ms=self.world.now_ms + self.session_ms)
            self._watch(member)
        one = self.members[member]
        one.protocols, one.join = protocols, answer
        self._touch(one)
        if self.phase is Phase.EMPTY:
            self._gathering = True
            self.world.after(self.initial_delay_ms, self._gathered)
        if self.phase is not Phase.PREPARING:
            self._prepare()
        self._complete_if_all()

    def sync(self, member: str, generation: int, assignments: Mapping[str, bytes], answer: Answer) -> None:
        if not self.up:
            answer(None)
            return
        if (refusal := self._refusal(member, generation)) is not None:
            answer((refusal, b""))
            return
        one = self.members[member]
        if self.phase is Phase.PREPARING:
            answer((REBALANCE_IN_PROGRESS, b""))
            return
        one.sync, one.synced = answer, True
        self._touch(one)
        if self.phase is Phase.COMPLETING and member == self.leader:
            for name, data in assignments.items():
                if name in self.members:
                    self.members[name].assignment = data
            self.phase = Phase.STABLE
        if self.phase is Phase.STABLE:
            for each in self.members.values():
                if each.sync is not None:
                    each.sync((OK, each.assignment))
                    each.sync = None

    def heartbeat(self, member: str, generation: int, answer: Answer) -> None:
        if not self.up:
            answer(None)
            return
        if (refusal := self._refusal(member, generation)) is not None:
            answer(refusal)
            return
        self._touch(self.members[member])
        answer(REBALANCE_IN_PROGRESS if self.phase is Phase.PREPARING else OK)

    def leave(self, member: str, answer: Answer) -> None:
        if not self.up:
            answer(None)
            return
        if member in self.members:
            self._drop(member)
        answer(OK)

    def go_down(self) -> None:
        """Its broker dies: who waits for an answer hears that it is gone. Nothing that it knew is lost."""
        self.up = False
        for one in self.members.values():
            for answer in (one.join, one.sync):
                if answer is not None:
                    answer(None)
            one.join = one.sync = None

    def come_up(self) -> None:
        self.up = True
        self._prepare()
        for one in self.members.values():
            self._touch(one)

    def _refusal(self, member: str, generation: int) -> str | None:
        if member not in self.members:
            return UNKNOWN_MEMBER_ID
        return ILLEGAL_GENERATION if generation != self.generation else None

    def _prepare(self) -> None:
        self.phase = Phase.PREPARING
        self._rounds += 1
        this = self._rounds
        for one in self.members.values():
            if one.sync is not None:
                one.sync((REBALANCE_IN_PROGRESS, b""))
                one.sync = None
        self.world.after(self.rebalance_ms, lambda: self._end_waiting(this))

    def _gathered(self) -> None:
        self._gathering = False
        self._complete_if_all()

    def _end_waiting(self, this: int) -> None:
        if self.up and self.phase is Phase.PREPARING and self._rounds == this:
            for name in [name for name, one in self.members.items() if one.join is None]:
                self.world.report(f"coordinator: {name} has not joined in time")
                del self.members[name]
            self._complete_if_all()

    def _complete_if_all(self) -> None:
        if not self.up or self.phase is not Phase.PREPARING or self._gathering:
            return
        if not self.members:
            self.phase = Phase.EMPTY
            return
        if any(one.join is None for one in self.members.values()):
            return
        self.generation += 1
        if self.leader not in self.members:
            self.leader = next(iter(self.members))
        offers = [[name for name, _ in one.protocols] for one in self.members.values()]
        self.protocol = next(name for name in offers[0] if all(name in each for each in offers))
        self.phase = Phase.COMPLETING
        all_members = {name: dict(one.protocols)[self.protocol] for name, one in self.members.items()}
        self.world.report(f"coordinator: generation {self.generation} of {', '.join(all_members)}; {self.leader} leads")
        for name, one in self.members.items():
            answer, one.join, one.synced, one.assignment = one.join, None, False, b""
            self._touch(one)
            assert answer is not None
            shown = all_members if name == self.leader else {}
            answer((OK, Round(self.generation, name, self.leader, self.protocol, shown)))
        generation = self.generation
        self.world.after(self.rebalance_ms, lambda: self._end_syncing(generation))

    def _end_syncing(self, generation: int) -> None:
        if self.up and self.phase in (Phase.COMPLETING, Phase.STABLE) and self.generation == generation:
            for name in [name for name, one in self.members.items() if not one.synced]:
                self.world.report(f"coordinator: {name} has not synced in time")
                self._drop(name)

    def _touch(self, one: Member) -> None:
        one.deadline_ms = self.world.now_ms + self.session_ms

    def _watch(self, member: str) -> None:
        one = self.members.get(member)
        if one is None:
            return
        if one.join is not None or not self.up:
            self._touch(one)
        if one.deadline_ms <= self.world.now_ms:
            self.world.report(f"coordinator: the session of {member} has ended")
            self._drop(member)
        else:
            self.world.after(one.deadline_ms - self.world.now_ms, lambda: self._watch(member))

    def _drop(self, member: str) -> None:
        del self.members[member]
        if self.phase is Phase.PREPARING:
            self._complete_if_all()
        elif not self.members:
            self.phase = Phase.EMPTY
        else:
            self._prepare()
