"""Members of a worker group that do nothing but take part in its rounds, and remember them."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from connect.kafka.cluster import Cluster
from connect.kafka.group_member import GroupMember, Membership
from connect.kafka.group_protocol import GroupSettings
from connect.kafka.security.connection_settings import connection_settings
from connect.kafka.threads import LeaseLoop
from tests.kit.one_loop import OneLoop

PROTOCOLS = ("sessioned", "compatible")
#: Nobody's session or lease ends because the machine is busy; a test of that shortens them.
SETTINGS = GroupSettings(
    "", "", session_timeout_ms=60_000, rebalance_timeout_ms=60_000, heartbeat_interval_ms=200, lease_ms=40_000
)


async def until(seen: Callable[[], object], what: str, timeout_s: float = 200.0) -> None:
    """Ask until the answer, or what an awaitable returns, is true."""
    give_up_s = time.monotonic() + timeout_s
    while True:
        asked_s = time.monotonic()
        answer = seen()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return
        assert time.monotonic() < give_up_s, f"not within {timeout_s:g} s: {what}"
        # Half of a core at most is spent on looks, for what is waited for needs it.
        await asyncio.sleep(max(0.01, min(time.monotonic() - asked_s, 0.2)))


class Joiner:
    """Joins if the group wants it and ``ready`` is set; ``lapses``: heartbeats answered at each lease's end."""

    def __init__(
        self,
        bootstrap: str,
        group: str,
        name: str,
        settings: GroupSettings = SETTINGS,
        *,
        protocols: Sequence[str] = PROTOCOLS,
        leases: LeaseLoop | None = None,
    ) -> None:
        self.group = group
        settings = replace(settings, group_id=group, client_id=name)
        connection = connection_settings({"bootstrap.servers": bootstrap}, client_id="unused", where="cluster us")
        self.member = GroupMember(Cluster(connection, "us"), settings, self, leases or OneLoop())
        self.rounds: list[Membership] = []
        self.reported: list[str] = []
        self.answered = 0
        self.assigned: list[Mapping[str, bytes]] = []
        self.lapses: list[int] = []
        self.ready = asyncio.Event()
        self.ready.set()
        self.joining = False
        self._protocols = [(protocol, f"{name} {protocol}".encode()) for protocol in protocols]
        self._wanted = asyncio.Event()
        self._wanted.set()
        self._name = name
        self._task = self._begin()

    @property
    def last(self) -> Membership:
        return self.rounds[-1]

    async def assign(self, protocol: str, leader: str, members: Mapping[str, bytes]) -> Mapping[str, bytes]:
        self.assigned.append(dict(members))
        all_members = b",".join(sorted(members.values()))
        return {member: member.encode() + b" of " + all_members for member in members}

    def rebalance_begun(self) -> None:
        self.reported.append("rebalance")
        self._wanted.set()

    def membership_lost(self, reason: str) -> None:
        self.reported.append(f"lost: {reason}")
        self._wanted.set()

    def lease_lost(self) -> None:
        self.reported.append("lease")
        self.lapses.append(self.answered)

    def heartbeat_answered(self) -> None:
        self.answered += 1

    async def ended(self) -> None:
        """Wait for what ends it by itself, and raise that."""
        await self._task

    async def join_again(self) -> None:
        await self._end()
        self._wanted.set()
        self._task = self._begin()

    async def leave(self) -> None:
        await self._end()
        await self.member.leave("the test says so")
        await self.member.close()

    async def vanish(self) -> None:
        await self._end()
        await self.member.close()

    def _begin(self) -> asyncio.Task[None]:
        return asyncio.create_task(self._join(), name=f"joiner {self._name}")

    async def _end(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _join(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            await self.ready.wait()
            self.joining = True
            self.rounds.append(await self.member.join(self._protocols))
            self.joining = False


def agree(*joiners: Joiner) -> bool:
    """Whether they are in one round that nobody else is in, each with what its leader gave it."""
    if not all(joiner.rounds for joiner in joiners):
        return False
    lasts = [joiner.last for joiner in joiners]
    if len({(last.generation, last.leader, last.protocol) for last in lasts}) != 1:
        return False
    return all(
        last.assignment.startswith(last.member.encode() + b" of ") and last.assignment.count(b",") == len(lasts) - 1
        for last in lasts
    )
