"""Who runs what: a leader's decision in a round (Kafka ``IncrementalCooperativeAssignor``, ``EagerAssignor``; KIP-415).

A worker that joins takes two rounds: one takes surplus work from the others, one hands it out. What a worker held that
is gone waits for its return, unless it is certain that it has stopped: members of ours hold their work under a lease.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count, cycle
from typing import Final

from connect.core.herder.membership import NOTHING, Allocation
from connect.core.model import TaskId

Work = str | TaskId

#: Revocations in one round after the other wait longer and longer: 40 ms, 1.6 s, 64 s ...
_BACKOFF_FACTOR: Final = 40
#: Beyond this any longest delay is reached.
_BACKOFF_STEPS: Final = 10


@dataclass(frozen=True, slots=True)
class MemberState:
    """What a member says on joining: all that it runs, and its lease, None for a Java member."""

    held: Allocation = NOTHING
    lease_ms: int | None = None


@dataclass(frozen=True, slots=True)
class MemberAssignment:
    """What a round changes for a member, and ``total``, all that it runs after that."""

    assigned: Allocation = NOTHING
    revoked: Allocation = NOTHING
    total: Allocation = NOTHING


@dataclass(frozen=True, slots=True)
class Assignments:
    """The outcome of a round by member; ``delay_ms`` above 0: all are to join again after so long."""

    members: Mapping[str, MemberAssignment]
    delay_ms: int = 0


def eager_assign(configured: Allocation, members: Iterable[str]) -> Assignments:
    """All work anew to members that have stopped theirs: connectors one by one in turn, then tasks."""
    loads = [_Load(member) for member in sorted(members)]
    turns = cycle(loads)
    for connector in sorted(configured.connectors):
        next(turns).connectors[connector] = None
    for task in sorted(configured.tasks):
        next(turns).tasks[task] = None
    totals = {load.member: load.allocation() for load in loads}
    return Assignments({member: MemberAssignment(total, NOTHING, total) for member, total in totals.items()})


@dataclass(slots=True)
class _Load:
    """What a member is going to run; dicts, for sets that keep their order."""

    member: str
    connectors: dict[str, None] = field(default_factory=dict)
    tasks: dict[TaskId, None] = field(default_factory=dict)

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
    """Moves as little as it can. Keeps what it decided last, so a leader has one for as long as it runs.

    Args:
        max_delay_ms: ``scheduled.rebalance.max.delay.ms``, how long lost work waits for its worker's return.
        max_delay_is_set: It stands in the worker's file, and so holds for members with a lease, too.
    """

    max_delay_ms: int
    max_delay_is_set: bool
    _generation: int = -1
    #: What was assigned in the last round, lost work included and revoked work not.
    _previous: set[Work] = field(default_factory=set)
    _revoked: set[Work] = field(default_factory=set)
    #: What each member of the last round was to hold after it, and whether under a lease.
    _members: dict[str, tuple[Allocation, bool]] = field(default_factory=dict)
    #: Members that were seen without work while lost work waited, the first seen first.
    _candidates: dict[str, None] = field(default_factory=dict)
    #: When lost work is given up, or balancing goes on; 0: nothing waits.
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
    ) -> Assignments:
        """Decide a round.

        Args:
            configured: All connectors and tasks of the config topic.
            members: Those who have joined, by member id; at least one.
            last_completed_generation: That of the last round that this leader has seen through to its assignment.
                Where it is not the one decided last, members may not have heard of that, and it is forgotten.
            generation: That of this round.
            now_ms: By any clock that does not jump.
        """
        held = {member: _work(members[member].held) for member in sorted(members)}
        counts = Counter(chain.from_iterable(held.values()))
        active = counts.keys()
        self._forget(last_completed_generation, active)
        wanted = _work(configured)
        # Java looks for these only in what it assigned itself, so a new leader lets deleted work run on.
        deleted = {work for work in chain(self._previous, active) if work not in wanted}
        duplicated = {work for work, holders in counts.items() if holders > 1}
        ended = deleted | duplicated
        lost = {work for work in self._previous if work not in active and work not in deleted}
        # In their order, in which there is little left to sort.
        created = [work for work in wanted if work not in self._previous and work not in active]

        loads = [_Load(member, *_split(work)) for member, work in held.items()]
        revoked = {member: [work for work in works if work in ended] for member, works in held.items()}
        _discard(loads, revoked)
        again = self._handle_lost(lost, loads, members, now_ms)
        self._balance(configured, loads, revoked, now_ms)
        _hand_out(loads, created, again)

        outcome = {load.member: _outcome(load, held[load.member], revoked[load.member]) for load in loads}
        self._remember(generation, members, outcome, lost)
        return Assignments(outcome, self._delay_ms)

    def _forget(self, last_completed_generation: int, active: Collection[Work]) -> None:
        """Correct what is remembered by what has become of it."""
        if self._generation != last_completed_generation:
            self._previous = set()
        if not self._revoked.isdisjoint(active):
            # Somebody has not heard of it.
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

    # work whose member is gone

    def _handle_lost(
        self, lost: set[Work], loads: Sequence[_Load], members: Mapping[str, MemberState], now_ms: int
    ) -> set[Work]:
        """What of ``lost`` is to be assigned in this round as if it were new; candidates may get theirs at once."""
        departed = [before for member, before in self._members.items() if member not in members]
        stopped: set[Work] = set()
        if not self.max_delay_is_set:
            # Under a lease, they had stopped before the group could notice that they are gone.
            stopped = lost.intersection(chain.from_iterable(_work(total) for total, leased in departed if leased))
            departed = [before for before in departed if not before[1]]
        lost = lost - stopped
        if not lost and not self._revoked_for_balance:
            self._reset_delay()
            return stopped
        if not self.max_delay_ms or not (self._scheduled_ms or departed):
            # In the second case, members that are still there have missed an assignment.
            return stopped | lost
        if self._scheduled_ms and now_ms >= self._scheduled_ms:
            return stopped | self._give_up(lost, loads)
        self._candidates.update((load.member, None) for load in loads if load.is_empty())
        remaining_ms = self._scheduled_ms - now_ms if self._scheduled_ms else self.max_delay_ms
        self._delay_ms = min(remaining_ms, self.max_delay_ms)
        self._scheduled_ms = now_ms + self._delay_ms
        return stopped

    def _give_up(self, lost: set[Work], loads: Sequence[_Load]) -> set[Work]:
        """The delay is over: lost work goes to the candidates in turn, or else to everybody as if it were new."""
        by_member = {load.member: load for load in loads}
        candidates = [by_member[member] for member in self._candidates if member in by_member]
        self._reset_delay()
        self._revoked_for_balance = False
        if not candidates:
            return lost
        connectors, tasks = _sorted(lost)
        for connector, load in zip(connectors, cycle(candidates), strict=False):
            load.connectors[connector] = None
        for task, load in zip(tasks, cycle(candidates), strict=False):
            load.tasks[task] = None
        return set()

    def _reset_delay(self) -> None:
        self._candidates.clear()
        self._scheduled_ms = 0
        self._delay_ms = 0

    # balance

    def _balance(
        self, configured: Allocation, loads: Sequence[_Load], revoked: Mapping[str, list[Work]], now_ms: int
    ) -> None:
        """Take surplus work away, to be handed out in the next round."""
        if self._delay_ms:
            self._revoked_for_balance = False
            return
        surplus = _surplus(configured, loads)
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


def _surplus(configured: Allocation, loads: Sequence[_Load]) -> dict[str, list[Work]]:
    """What members hold beyond an equal share; nothing where nobody holds anything or nothing is configured."""
    surplus: dict[str, list[Work]] = {}
    if not configured or all(load.is_empty() for load in loads):
        return surplus
    kinds: tuple[tuple[int, Callable[[_Load], Collection[Work]]], ...] = (
        (len(configured.connectors), lambda load: load.connectors),
        (len(configured.tasks), lambda load: load.tasks),
    )
    for total, kind in kinds:
        share, extra = divmod(total, len(loads))
        for load in loads:
            held = kind(load)
            if len(held) <= share:
                continue
            # The first members above their share may keep one more each.
            keeps = share + (extra > 0)
            extra -= 1
            if len(held) > keeps:
                surplus.setdefault(load.member, []).extend(list(held)[: len(held) - keeps])
    return surplus


def _hand_out(loads: Sequence[_Load], created: Iterable[Work], again: Iterable[Work]) -> None:
    """Give each work, what is new first, to one who has least of its kind; of equals the first by member id."""
    new, lost = _sorted(created), _sorted(again)
    for connector, load in zip(new[0] + lost[0], _least_first(loads, lambda load: len(load.connectors)), strict=False):
        load.connectors[connector] = None
    for task, load in zip(new[1] + lost[1], _least_first(loads, lambda load: len(load.tasks)), strict=False):
        load.tasks[task] = None


def _least_first(loads: Sequence[_Load], size: Callable[[_Load], int]) -> Iterator[_Load]:
    """Without end, and each to be given one before the next is asked for: rounds over all who have no more than the
    least. ``loads`` come by member id."""
    by_size = sorted(loads, key=size)
    sizes = [size(load) for load in by_size]
    for level in count(sizes[0]):
        for index, load in enumerate(by_size):
            if sizes[index] > level:
                break
            sizes[index] += 1
            yield load


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
