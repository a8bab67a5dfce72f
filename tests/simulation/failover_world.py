"""Groups, their coordinator and operators that move them, simulated, and judged by what brokers hold."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final

import pytest

from connect.core.errors import HeliographError
from connect.kafka.concurrency import Scope
from connect.kafka.log.committed_offsets import CLASSIC, Committed, GroupListing, Partition
from connect.kafka.log.transactions import Superseded
from connectors.failover import clusters_and_lease, execute, failback_and_undo, journal
from connectors.failover.plan import FailoverOptions, plan
from connectors.failover.snapshot import GroupFinding, GroupMove, GroupRule, Groups, How, Snapshot

GROUPS: Final = ("billing", "mail", "search")
PARTITIONS: Final[tuple[Partition, ...]] = (("us.orders", 0), ("us.orders", 1))
TRANSACTION_TIMEOUT_S: Final = clusters_and_lease.TRANSACTION_TIMEOUT_MS / 1000
PAUSE_S: Final = 30.0
#: The operator that acts, in whose step what follows happens.
_ACTOR: ContextVar[Operator | None] = ContextVar("actor", default=None)


class Killed(BaseException):
    """The operator's process has ended here."""


@dataclass(slots=True)
class Stored:
    """A committed offset: by whom, None for a consumer, and where in the brokers' log of offsets."""

    offset: int
    at: int
    by: Operator | None


@dataclass(slots=True)
class Transaction:
    since_s: float
    offsets: dict[tuple[str, Partition], Stored]


@dataclass(eq=False, slots=True)
class Operator:
    name: str
    #: What each group had committed when it was looked at, or may have if no consumer has gone on since.
    seen: dict[tuple[str, Partition], set[int | None]] = field(default_factory=dict)
    is_dead: bool = False
    frozen_until_s: float = 0.0


class World:
    """``faults``: the chance of a pause, and of a kill, at each step of an operator."""

    def __init__(self, seed: int, faults: tuple[float, float] = (0.02, 0.006)) -> None:
        self.random = random.Random(seed)
        self.faults = faults
        self.offsets: dict[tuple[str, Partition], Stored] = {}
        self.members: dict[str, int] = dict.fromkeys(GROUPS, 0)
        self.topic: dict[bytes, bytes] = {}
        self.owners: dict[str, object] = {}
        self.open: dict[str, Transaction] = {}
        self.holder: Operator | None = None
        #: What the consumers of a group have read, at the source or here; no group may be sent beyond it.
        self.read: dict[tuple[str, Partition], int] = {}
        self.at = 0
        self.faults_found: list[str] = []
        self.moves = self.undone = 0
        for group in GROUPS:
            for place in PARTITIONS:
                self.read[group, place] = self.random.randrange(10, 100)
                if self.random.random() < 0.5:
                    self.commit(group, place, self.random.randrange(0, 10), None)

    # -- brokers ---------------------------------------------------------------------------------------------------

    def commit(self, group: str, place: Partition, offset: int, by: Operator | None) -> None:
        self.at += 1
        self.offsets[group, place] = Stored(offset, self.at, by)

    async def step(self) -> None:
        """Before each request, and each answer, of an operator."""
        await asyncio.sleep(self.random.uniform(0.001, 0.02))
        actor = _ACTOR.get()
        if actor is None:
            return
        pause, kill = self.faults
        drawn = self.random.random()
        if drawn < kill:
            actor.is_dead = True
        clock = asyncio.get_running_loop().time
        if kill <= drawn < kill + pause:
            actor.frozen_until_s = clock() + PAUSE_S
        await asyncio.sleep(0 if actor.is_dead else max(actor.frozen_until_s - clock(), 0))
        if actor.is_dead:
            raise Killed

    def judge(self, group: str, place: Partition, old: Stored | None, new: int | None, by: Operator | None) -> None:
        if by is None:
            return
        if self.holder is not by:
            self.faults_found.append(f"{by.name} commits {new} for {group} after {self.holder} has taken over")
        if old is None or old.by is not None or old.offset == new:
            return
        if old.offset not in by.seen.get((group, place), ()):
            self.faults_found.append(f"{by.name} commits {new} for {group} {place}, over the newer {old.offset}")

    def end(self, name: str, *, commit: bool) -> None:
        transaction = self.open.pop(name, None)
        if transaction is None or not commit:
            return
        for (group, place), one in transaction.offsets.items():
            old = self.offsets.get((group, place))
            if old is None or old.at < one.at:  # as brokers do, which keep what lies last
                self.judge(group, place, old, None if one.offset < 0 else one.offset, one.by)
                if one.offset < 0:
                    self.offsets.pop((group, place), None)
                    self.undone += 1
                    continue
                self.offsets[group, place] = one
                if one.offset > self.read[group, place]:
                    skipped = f"{group} {place}: {one.offset} skips what is behind {self.read[group, place]}"
                    self.faults_found.append(skipped)

    async def committed(self, _: Any, group: str, *__: Any, **___: Any) -> dict[Partition, Committed]:
        await self.step()
        found = {place: one for (name, place), one in self.offsets.items() if name == group}
        await self.step()
        return {place: Committed(one.offset) for place, one in found.items()}

    async def listed(self, _: Any, group: str) -> GroupListing:
        await self.step()
        listed = GroupListing(CLASSIC, "consumer", "Stable" if self.members[group] else "Empty")
        await self.step()
        return listed

    async def stored(self, *_: Any) -> dict[bytes, bytes]:
        await self.step()
        return dict(self.topic)

    async def look(self, *_: Any) -> clusters_and_lease.LeaseRecord | None:
        await self.step()
        value = self.topic.get(clusters_and_lease.encode_key("us->eu"))
        return None if value is None else clusters_and_lease.decode(value)

    def writer(self, _: Any, name: str, **__: Any) -> Writer:
        return Writer(self, name)

    def now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000) + 1_000_000_000


class Writer:
    def __init__(self, world: World, name: str) -> None:
        self._world, self._name, self._is_open = world, name, False

    async def open(self) -> None:
        await self._world.step()
        self._world.end(self._name, commit=False)
        self._world.owners[self._name] = self
        self._is_open = True

    async def write(
        self,
        records: Any,
        may_commit: Callable[[Any], Awaitable[bool]] | None = None,
        offsets: Mapping[str, Mapping[Partition, Committed]] | None = None,
    ) -> bool:
        world = self._world
        if not self._is_open:
            await self.open()
        await world.step()
        self._check()
        pending = Transaction(asyncio.get_running_loop().time(), {})
        world.open[self._name] = pending
        for group, wanted in (offsets or {}).items():
            for place, one in wanted.items():
                world.at += 1
                pending.offsets[group, place] = Stored(one.offset, world.at, _ACTOR.get())
        await world.step()
        try:
            is_allowed = may_commit is None or await may_commit({})
        except HeliographError:
            if world.owners[self._name] is self:
                world.end(self._name, commit=False)
            raise
        await world.step()
        self._check()
        if world.open.get(self._name) is not pending:
            raise Superseded("its transaction was ended")
        if asyncio.get_running_loop().time() - pending.since_s > TRANSACTION_TIMEOUT_S:
            world.end(self._name, commit=False)
            raise Superseded("its transaction has timed out")
        world.end(self._name, commit=is_allowed)
        if is_allowed:
            for record in records:
                if record.key == clusters_and_lease.encode_key("us->eu"):
                    world.holder = _ACTOR.get()
                if record.value is None:
                    world.topic.pop(record.key, None)
                else:
                    world.topic[record.key] = record.value
        await world.step()
        return is_allowed

    def _check(self) -> None:
        if self._world.owners[self._name] is not self:
            raise Superseded("another one has it")


# -- actors ------------------------------------------------------------------------------------------------------------


async def consume(world: World) -> None:
    """A consumer of some group: it joins, reads on from what is committed, commits and leaves, again and again."""
    draw = world.random
    for _ in range(draw.randrange(1, 4)):
        await asyncio.sleep(draw.uniform(0, 40))
        group = draw.choice(GROUPS)
        world.members[group] += 1
        # No consumer joins, commits and leaves in less.
        await asyncio.sleep(draw.uniform(3, 10))
        for place in PARTITIONS:
            if draw.random() < 0.6:
                known = world.offsets.get((group, place))
                at = (known.offset if known else 0) + draw.randrange(0, 20)
                world.read[group, place] = max(world.read[group, place], at)
                world.commit(group, place, at, None)
        world.members[group] -= 1


def snapshot(world: World, by: Operator) -> Snapshot:
    """As a collect finds it: every group is to go to where its consumers have read to at the source."""
    moves, findings = [], []
    for group in GROUPS:
        if world.members[group]:
            findings.append(GroupFinding(group, GroupRule.USED_AT_TARGET, "has members"))
        for index, place in enumerate(PARTITIONS):
            known = world.offsets.get((group, place))
            before, after = known.offset if known else None, world.read[group, place]
            by.seen[group, place] = {before}
            moves.append(GroupMove(group, ("orders", index), after, place, before, "", after, "", How.EXACT))
    return Snapshot("us", "eu", groups=Groups(GROUPS, tuple(moves), tuple(findings)))


async def renew(held: clusters_and_lease.Lease) -> None:
    """Until its process ends."""
    with suppress(Killed):
        await held.renew_forever()


async def operate(world: World, name: str, *, undoes: bool, after_s: float) -> None:
    """A failover, or an undo, as :mod:`connectors.failover.execute` does it behind the drain."""
    await asyncio.sleep(after_s)
    operator = Operator(name)
    _ACTOR.set(operator)
    flow = SimpleNamespace(flow="us->eu", map_topic="map", source_alias="us", target_alias="eu")
    site: Any = SimpleNamespace(flow=flow, target=None, source=None)
    record = clusters_and_lease.LeaseRecord(name, name, 1, "failover", world.now_ms(), 0, run=name)
    held = clusters_and_lease.Lease(site.target, "map", "us->eu", record)
    scope = Scope(name)
    try:
        await held.claim()
        scope.spawn(renew(held), name)
        if undoes:
            run = failback_and_undo.newest(await journal.read_runs(site))
            if run is not None:
                await roll_back(world, site, run, held, operator)
        else:
            written = await journal.Journal.begin(site, held)
            await asyncio.sleep(world.random.uniform(0, 30))  # the flow is drained and stopped
            ready = [one.due for one in plan(snapshot(world, operator), FailoverOptions()).ready]
            await written.store()
            mover = execute.GroupMover(site, held, written, lambda _: None)
            left = await mover.move_all(ready)
            world.moves += len(ready) - len(left)
            await written.store(state=journal.RunState.DONE)
        await held.release()
    except (Killed, HeliographError):
        pass
    finally:
        await scope.close()


async def roll_back(
    world: World, site: Any, run: journal.FailoverRun, held: clusters_and_lease.Lease, operator: Operator
) -> None:
    for group, rows in run.groups.items():
        for row in rows:
            operator.seen[group, (row.topic, row.partition)] = {row.before, row.after}
    before = {group: group_state(world, group) for group in GROUPS}
    used_meanwhile = {
        group
        for group, rows in run.groups.items()
        if any(before[group].get((row.topic, row.partition)) not in (row.after, row.before) for row in rows)
    }
    await failback_and_undo.roll_back(site, run, held, lambda _: None, (None, None))
    for group in used_meanwhile:
        ours = [place for (name, place), one in world.offsets.items() if name == group and one.by is operator]
        missing = [place for place, offset in group_state(world, group).items() if offset is None]
        missing = [place for place in missing if before[group][place] is not None]
        if ours or missing:
            world.faults_found.append(f"{operator.name} takes {group} back in part, which has gone on")


def group_state(world: World, group: str) -> dict[Partition, int | None]:
    return {place: one.offset if (one := world.offsets.get((group, place))) else None for place in PARTITIONS}


async def play(world: World) -> None:
    draw = world.random
    async with Scope("schedule") as scope:
        tasks = [scope.spawn(consume(world), "consumer") for _ in range(3)]
        tasks.append(scope.spawn(operate(world, "ann", undoes=False, after_s=draw.uniform(0, 20)), "ann"))
        for number, name in enumerate(("bob", "carol", "dave")):
            after_s = draw.uniform(0, 60) + 40 * number
            undoes = draw.random() < 0.5
            tasks.append(scope.spawn(operate(world, name, undoes=undoes, after_s=after_s), name))
        await asyncio.gather(*tasks)


def simulate(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    """Put the world's brokers in the place of real ones. Few groups are moved at a time, so that some wait."""
    monkeypatch.setattr(clusters_and_lease, "LANES", 8)
    monkeypatch.setattr(clusters_and_lease, "TransactionalWriter", world.writer)
    for module in (clusters_and_lease, journal):
        monkeypatch.setattr(module, "wall_ms", world.now_ms)
    monkeypatch.setattr(clusters_and_lease, "look", world.look)
    monkeypatch.setattr(journal, "stored", world.stored)
    monkeypatch.setattr(execute, "listed_group", world.listed)
    for module in (execute, failback_and_undo):
        monkeypatch.setattr(module, "committed", world.committed)
