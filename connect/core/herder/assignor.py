"""Assigns work to members, as leader (Kafka ``IncrementalCooperativeAssignor``, ``EagerAssignor``; KIP-415).

A new worker needs two rebalances: the first revokes surplus work from the others, the second assigns it. The work of a
lost worker waits for its return, unless it has certainly stopped, because the worker held it under a lease.

*Foreign* connectors have a class that the leader does not have. They go to Java members while there are any (decision
30). Foreign work is balanced among Java members, and other work fills all members up to one level.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count, cycle
from typing import Final

from connect.core.herder.membership import NOTHING, Allocation
from connect.core.model import TaskId, connector_of

Work = str | TaskId

#: Revocations in consecutive rebalances have growing delays: 40 ms, 1.6 s, 64 s ...
_BACKOFF_FACTOR: Final = 40
#: After this number of steps every maximum delay is reached.
_BACKOFF_STEPS: Final = 10


@dataclass(frozen=True, slots=True)
class MemberState:
    """The metadata of a joining member: all work that it holds, and its lease, None for a Java member."""

    held: Allocation = NOTHING
    lease_ms: int | None = None


@dataclass(frozen=True, slots=True)
class MemberAssignment:
    """The changes of a rebalance for a member, and its ``total`` work after it."""

    assigned: Allocation = NOTHING
    revoked: Allocation = NOTHING
    total: Allocation = NOTHING


@dataclass(frozen=True, slots=True)
class Assignments:
    """The assignments of a rebalance by member; ``delay_ms`` above 0: all members rejoin after this delay."""

    members: Mapping[str, MemberAssignment]
    delay_ms: int = 0


def eager_assign(
    configured: Allocation, members: Mapping[str, MemberState], foreign: Collection[str] = frozenset()
) -> Assignments:
    """Assign all work round-robin to members that have stopped their work: first connectors, then tasks."""
    loads = [_Load(member, is_java=members[member].lease_ms is None) for member in sorted(members)]
    own, of_java = _parted(_work(configured), foreign, loads)
    for works, takers in ((own, loads), (of_java, [load for load in loads if load.is_java])):
        connectors, tasks = _sorted(works)
        turns = cycle(takers)
        for connector in connectors:
            next(turns).connectors[connector] = None
        for task in tasks:
            next(turns).tasks[task] = None
    totals = {load.member: load.allocation() for load in loads}
    return Assignments({member: MemberAssignment(total, NOTHING, total) for member, total in totals.items()})


@dataclass(slots=True)
class _Load:
    """The work of a member after the rebalance; dicts, as sets that keep their order."""

    member: str
    connectors: dict[str, None] = field(default_factory=dict)
    tasks: dict[TaskId, None] = field(default_factory=dict)
    is_java: bool = False

    def discard(self, gone: Collection[Work]) -> None:
        for work in gone:
            if isinstance(work, TaskId):
                self.tasks.pop(work, None)
            else:
                self.connectors.pop(work, None)

    def is_empty(self) -> bool:
        return not self.connectors and not self.tasks

    def allocation(self) -> Allocation:
        return Allocation(tuple(self.connectors), tuple(self.tasks))


@dataclass(slots=True)
class IncrementalAssignor:
    """An assignor that moves as little work as possible. It keeps its last decision, so a worker needs only one.
    ``max_delay_ms``: ``scheduled.rebalance.max.delay.ms``, how long lost work waits for its worker's return.
    ``max_delay_is_set``: the worker's file sets it, so it also applies to members with a lease."""

    max_delay_ms: int
    max_delay_is_set: bool
    _generation: int = -1
    #: The work assigned in the last rebalance, including lost work, without revoked work.
    _previous: set[Work] = field(default_factory=set)
    _revoked: set[Work] = field(default_factory=set)
    #: The total work of each member after the last rebalance, and whether it holds it under a lease.
    _members: dict[str, tuple[Allocation, bool]] = field(default_factory=dict)
    #: Members that had no work while lost work waited, in the order they were seen.
    _candidates: dict[str, None] = field(default_factory=dict)
    #: When lost work is reassigned, or balancing continues; 0: nothing waits.
    _scheduled_ms: int = 0
    _delay_ms: int = 0
    _revoked_for_balance: bool = False
    _revoking_rounds: int = 0

    def assign(
        self,
        configured: Allocation,
        members: Mapping[str, MemberState],
        *,
        last_completed_generation: int,
        generation: int,
        now_ms: int,
        foreign: Collection[str] = frozenset(),
    ) -> Assignments:
        """Assign ``configured``, all connectors and tasks in the config topic, to ``members``, of which there is one at
        least. ``now_ms``: of a clock that does not jump. ``foreign``: connectors whose class this worker does not have.

        If the last rebalance that this leader completed is not the one assigned last, members may not have received
        that assignment, and it is forgotten.
        """
        held = {member: _work(members[member].held) for member in sorted(members)}
        counts = Counter(chain.from_iterable(held.values()))
        active = counts.keys()
        self._forget(last_completed_generation, active)
        wanted = _work(configured)
        # Java looks for these only in its own assignments, so a new leader does not stop deleted work.
        deleted = {work for work in chain(self._previous, active) if work not in wanted}
        duplicated = {work for work, holders in counts.items() if holders > 1}
        ended = deleted | duplicated
        lost = {work for work in self._previous if work not in active and work not in deleted}
        # In the order of ``configured``, which is nearly sorted.
        created = [work for work in wanted if work not in self._previous and work not in active]

        loads = [_Load(member, *_split(work), members[member].lease_ms is None) for member, work in held.items()]
        revoked = {member: [work for work in works if work in ended] for member, works in held.items()}
        _discard(loads, revoked)
        again = self._handle_lost(lost, loads, members, now_ms, foreign)
        self._balance(_parted(wanted, foreign, loads), loads, revoked, now_ms)
        _hand_out(loads, created, again, foreign)

        outcome = {load.member: _outcome(load, held[load.member], revoked[load.member]) for load in loads}
        self._remember(generation, members, outcome, lost)
        return Assignments(outcome, self._delay_ms)

    def _forget(self, last_completed_generation: int, active: Collection[Work]) -> None:
        """Drop remembered assignments that members did not apply."""
        if self._generation != last_completed_generation:
            self._previous = set()
        if not self._revoked.isdisjoint(active):
            # A member has missed a revocation.
            self._previous = set(active)

    def _remember(
        self,
        generation: int,
        members: Mapping[str, MemberState],
        outcome: Mapping[str, MemberAssignment],
        lost: Collection[Work],
    ) -> None:
        self._generation = generation
        self._revoked = {work for each in outcome.values() for work in _work(each.revoked)}
        self._previous = set(lost)
        for each in outcome.values():
            self._previous.update(each.total.connectors, each.total.tasks)
        self._members = {member: (each.total, members[member].lease_ms is not None) for member, each in outcome.items()}

    # lost work

    def _handle_lost(
        self,
        lost: set[Work],
        loads: Sequence[_Load],
        members: Mapping[str, MemberState],
        now_ms: int,
        foreign: Collection[str],
    ) -> set[Work]:
        """Return the part of ``lost`` to assign like new work. After the delay candidates get theirs here."""
        departed = [before for member, before in self._members.items() if member not in members]
        stopped: set[Work] = set()
        if not self.max_delay_is_set:
            # Members with a lease stop before the group can notice that they are lost.
            stopped = lost.intersection(chain.from_iterable(_work(total) for total, leased in departed if leased))
            departed = [before for before in departed if not before[1]]
        lost = lost - stopped
        if not lost and not self._revoked_for_balance:
            self._reset_delay()
            return stopped
        if not self.max_delay_ms or not (self._scheduled_ms or departed):
            # In the second case, remaining members have missed an assignment.
            return stopped | lost
        if self._scheduled_ms and now_ms >= self._scheduled_ms:
            return stopped | self._give_up(lost, loads, foreign)
        self._candidates.update((load.member, None) for load in loads if load.is_empty())
        remaining_ms = self._scheduled_ms - now_ms if self._scheduled_ms else self.max_delay_ms
        self._delay_ms = min(remaining_ms, self.max_delay_ms)
        self._scheduled_ms = now_ms + self._delay_ms
        return stopped

    def _give_up(self, lost: set[Work], loads: Sequence[_Load], foreign: Collection[str]) -> set[Work]:
        """Assign lost work round-robin to the candidates after the delay; return what is like new work: foreign work,
        and without candidates all."""
        by_member = {load.member: load for load in loads}
        candidates = [by_member[member] for member in self._candidates if member in by_member]
        self._reset_delay()
        self._revoked_for_balance = False
        if not candidates:
            return lost
        own, of_java = _parted(lost, foreign, loads)
        connectors, tasks = _sorted(own)
        for connector, load in zip(connectors, cycle(candidates), strict=False):
            load.connectors[connector] = None
        for task, load in zip(tasks, cycle(candidates), strict=False):
            load.tasks[task] = None
        return of_java

    def _reset_delay(self) -> None:
        self._candidates.clear()
        self._scheduled_ms = 0
        self._delay_ms = 0

    # balance

    def _balance(
        self,
        wanted: tuple[set[Work], set[Work]],
        loads: Sequence[_Load],
        revoked: Mapping[str, list[Work]],
        now_ms: int,
    ) -> None:
        """Revoke surplus work, which the next rebalance assigns; ``wanted``: other work and foreign work."""
        if self._delay_ms:
            self._revoked_for_balance = False
            return
        surplus = _surplus(*wanted, loads)
        if not surplus:
            if self._revoked_for_balance:
                self._revoking_rounds = 0
            self._revoked_for_balance = False
            return
        if self._revoked_for_balance:
            self._revoking_rounds += 1
            steps = min(self._revoking_rounds, _BACKOFF_STEPS)
            self._delay_ms = min(_BACKOFF_FACTOR**steps, self.max_delay_ms)
            if self._delay_ms:
                self._scheduled_ms = now_ms + self._delay_ms
                return
        self._revoked_for_balance = True
        for member, works in surplus.items():
            revoked[member].extend(works)
        _discard(loads, surplus)


def _parted(works: Iterable[Work], foreign: Collection[str], loads: Iterable[_Load]) -> tuple[set[Work], set[Work]]:
    """Return the work that any member may get, and the work for Java members only, which is empty without any."""
    both = set(works)
    if not foreign or not any(load.is_java for load in loads):
        return both, set()
    of_java = {work for work in both if connector_of(work) in foreign}
    return both - of_java, of_java


def _surplus(own: Collection[Work], of_java: Collection[Work], loads: Sequence[_Load]) -> dict[str, list[Work]]:
    """Return the work of members beyond an equal share."""
    surplus: dict[str, list[Work]] = {}
    java = [load for load in loads if load.is_java]
    kinds: tuple[tuple[type, Callable[[_Load], Iterable[Work]]], ...] = (
        (str, lambda load: load.connectors),
        (TaskId, lambda load: load.tasks),
    )
    for kind, works in kinds:
        held = {load.member: [work for work in works(load) if work not in of_java] for load in loads}
        floors = dict.fromkeys(held, 0)
        if of_java:
            foreign = {load.member: [work for work in works(load) if work in of_java] for load in loads}
            total = sum(isinstance(work, kind) for work in of_java)
            keeps = _shares(total, java, foreign, floors)
            _trim(surplus, foreign, keeps)
            floors.update(keeps)
        _trim(surplus, held, _shares(sum(isinstance(work, kind) for work in own), loads, held, floors))
    return surplus


def _shares(
    total: int, loads: Sequence[_Load], held: Mapping[str, Sequence[Work]], floors: Mapping[str, int]
) -> dict[str, int]:
    """Return how much each of ``loads`` keeps of ``total``, which fills all up from their floors to one level."""
    lowest = sorted(floors[load.member] for load in loads)
    filled = next(n for n in range(len(lowest), 0, -1) if (total + sum(lowest[:n])) // n >= lowest[n - 1])
    level, extra = divmod(total + sum(lowest[:filled]), filled)
    keeps: dict[str, int] = {}
    for load in loads:
        floor = floors[load.member]
        keeps[load.member] = max(level - floor, 0)
        # The first members above their share keep one more each.
        if floor <= level and len(held[load.member]) > keeps[load.member] and extra:
            keeps[load.member] += 1
            extra -= 1
    return keeps


def _trim(surplus: dict[str, list[Work]], held: Mapping[str, Sequence[Work]], keeps: Mapping[str, int]) -> None:
    """Add to ``surplus`` the first of what each member holds beyond what it keeps."""
    for member, works in held.items():
        beyond = len(works) - keeps.get(member, 0)
        if beyond > 0:
            surplus.setdefault(member, []).extend(works[:beyond])


def _hand_out(
    loads: Sequence[_Load], created: Collection[Work], again: Collection[Work], foreign: Collection[str]
) -> None:
    """Assign each connector and task, new ones first, to the member with the fewest of its kind; ties by member id.
    Foreign work counts only foreign work, so that it does not move when other work does."""

    def of_kind(works: Iterable[Work]) -> int:
        return sum(connector_of(work) in foreign for work in works)

    (new, new_of_java), (lost, lost_of_java) = _parted(created, foreign, loads), _parted(again, foreign, loads)
    if new_of_java or lost_of_java:
        java = [load for load in loads if load.is_java]
        _deal(new_of_java, lost_of_java, java, lambda load: of_kind(load.connectors), lambda load: of_kind(load.tasks))
    _deal(new, lost, loads, lambda load: len(load.connectors), lambda load: len(load.tasks))


def _deal(
    created: Iterable[Work],
    again: Iterable[Work],
    loads: Sequence[_Load],
    connectors_of: Callable[[_Load], int],
    tasks_of: Callable[[_Load], int],
) -> None:
    new, lost = _sorted(created), _sorted(again)
    for connector, load in zip(new[0] + lost[0], _least_first(loads, connectors_of), strict=False):
        load.connectors[connector] = None
    for task, load in zip(new[1] + lost[1], _least_first(loads, tasks_of), strict=False):
        load.tasks[task] = None


def _least_first(loads: Sequence[_Load], size: Callable[[_Load], int]) -> Iterator[_Load]:
    """Yield without end the load with the smallest size, which the caller increases by one; ties by order in ``loads``
    (by member id)."""
    by_size = sorted(loads, key=size)
    sizes = [size(load) for load in by_size]
    for level in count(sizes[0]):
        yield from by_size[: bisect_right(sizes, level)]


def _outcome(load: _Load, held: Collection[Work], revoked: Sequence[Work]) -> MemberAssignment:
    total = load.allocation()
    connectors = tuple(work for work in total.connectors if work not in held)
    tasks = tuple(work for work in total.tasks if work not in held)
    return MemberAssignment(Allocation(connectors, tasks), _allocation(revoked), total)


def _discard(loads: Iterable[_Load], gone: Mapping[str, Collection[Work]]) -> None:
    for load in loads:
        load.discard(gone.get(load.member, ()))


def _work(allocation: Allocation) -> dict[Work, None]:
    return dict.fromkeys(chain[Work](allocation.connectors, allocation.tasks))


def _split(works: Iterable[Work]) -> tuple[dict[str, None], dict[TaskId, None]]:
    both = list(works)
    return (
        {work: None for work in both if isinstance(work, str)},
        {work: None for work in both if isinstance(work, TaskId)},
    )


def _allocation(works: Iterable[Work]) -> Allocation:
    connectors, tasks = _split(works)
    return Allocation(tuple(connectors), tuple(tasks))


def _sorted(works: Iterable[Work]) -> tuple[list[str], list[TaskId]]:
    connectors, tasks = _split(works)
    return sorted(connectors), sorted(tasks)
