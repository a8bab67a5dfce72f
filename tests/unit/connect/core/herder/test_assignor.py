"""Who runs what: stories that Java's assignor tells in its own tests, a naive twin, and what must always hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connect.core.herder.assignor import Assignments, IncrementalAssignor, MemberState, eager_assign
from connect.core.herder.membership import NOTHING, Allocation
from connect.core.model import TaskId, connector_of

DELAY_MS = 300_000
LEASE_MS = 5_000
#: Enough for a member that joins to get something of each of the others.
MANY = tuple(f"c{number:02}" for number in range(60))


def configured(connectors: Iterable[str], tasks_each: int) -> Allocation:
    names = tuple(connectors)
    return Allocation(names, tuple(TaskId(name, task) for name in names for task in range(tasks_each)))


def work(allocation: Allocation) -> tuple[str | TaskId, ...]:
    return (*allocation.connectors, *allocation.tasks)


def minus(one: Allocation, other: Allocation) -> Allocation:
    gone = set(work(other))
    return Allocation(
        tuple(name for name in one.connectors if name not in gone),
        tuple(task for task in one.tasks if task not in gone),
    )


def plus(one: Allocation, other: Allocation) -> Allocation:
    return Allocation(one.connectors + other.connectors, one.tasks + other.tasks)


@dataclass
class Group:
    """Members that do what they are told, and a leader with its assignor."""

    assignor: IncrementalAssignor = field(default_factory=lambda: IncrementalAssignor(DELAY_MS, max_delay_is_set=True))
    work: Allocation = field(default_factory=lambda: configured("ab", 4))
    #: Connectors whose class the leader does not have.
    foreign: frozenset[str] = frozenset()
    members: dict[str, MemberState] = field(default_factory=dict)
    now_ms: int = 1_000
    generation: int = 0
    completed: int = -1
    #: Before the last round: what was configured, what members held, and the last completed generation.
    before: tuple[Allocation, Mapping[str, MemberState], int] = (NOTHING, {}, -1)

    def join(self, *members: str, lease_ms: int | None = None) -> None:
        self.members.update((member, MemberState(NOTHING, lease_ms)) for member in members)

    def round(self, *, deaf: Iterable[str] = (), lost: bool = False) -> Assignments:
        """One round; ``deaf`` members do not hear of it, ``lost``: nobody does, and the leader knows it."""
        self.generation += 1
        self.before = (self.work, dict(self.members), self.completed)
        outcome = self.assignor.assign(
            self.work,
            self.members,
            last_completed_generation=self.completed,
            generation=self.generation,
            now_ms=self.now_ms,
            foreign=self.foreign,
        )
        if lost:
            return outcome
        self.completed = self.generation
        for member, reported in outcome.members.items():
            if member not in deaf:
                state = self.members[member]
                held = plus(minus(state.held, reported.revoked), reported.assigned)
                self.members[member] = MemberState(held, state.lease_ms)
        return outcome

    def settle(self) -> int:
        """Rounds until nothing moves any more, waiting out what delays there are; how many it took."""
        for number in range(1, 12):
            outcome = self.round()
            self.now_ms += outcome.delay_ms
            if not outcome.delay_ms and not any(
                reported.revoked or reported.assigned for reported in outcome.members.values()
            ):
                return number
        raise AssertionError("this does not come to rest")

    def sizes(self) -> list[tuple[int, int]]:
        """Connectors and tasks of each member, by member id."""
        return [(len(state.held.connectors), len(state.held.tasks)) for _, state in sorted(self.members.items())]

    def held(self) -> Counter[str | TaskId]:
        return Counter(chain.from_iterable(work(state.held) for state in self.members.values()))

    def assert_complete(self) -> None:
        assert self.held() == Counter(work(self.work))
        for kind in zip(*self.sizes(), strict=True):
            assert max(kind) - min(kind) <= 1


def assigned(outcome: Assignments) -> Counter[str | TaskId]:
    return Counter(chain.from_iterable(work(reported.assigned) for reported in outcome.members.values()))


def has_revoked(outcome: Assignments) -> bool:
    return any(reported.revoked for reported in outcome.members.values())


# -- joining -----------------------------------------------------------------------------------------------------------


def test_a_second_worker_takes_a_round_to_revoke_and_one_to_assign() -> None:
    group = Group()
    group.join("m1")
    group.round()
    group.join("m2")
    outcome = group.round()
    assert group.sizes() == [(1, 4), (0, 0)]
    assert outcome.delay_ms == 0
    # Of what a worker holds the first goes.
    assert outcome.members["m1"].revoked == Allocation(("a",), tuple(TaskId("a", task) for task in range(4)))
    outcome = group.round()
    assert outcome.members["m2"].assigned == Allocation(("a",), tuple(TaskId("a", task) for task in range(4)))
    group.assert_complete()
    assert not has_revoked(group.round())


# -- leaving -----------------------------------------------------------------------------------------------------------


def three_workers(lease_ms: int | None = None, *, is_set: bool = True, wanted: Allocation | None = None) -> Group:
    group = Group(IncrementalAssignor(DELAY_MS, is_set), work=wanted or configured("abc", 4))
    group.join("m1", "m2", "m3", lease_ms=lease_ms)
    group.settle()
    group.assert_complete()
    return group


@pytest.mark.parametrize("wanted", [configured("abc", 4), configured("a", 8)])
def test_lost_work_waits_for_its_worker_and_goes_to_the_others_after_the_delay(wanted: Allocation) -> None:
    """Also to those that have tasks alone."""
    group = three_workers(wanted=wanted)
    lost = group.members.pop("m3").held
    outcome = group.round()
    assert outcome.delay_ms == DELAY_MS
    assert not any(reported.assigned or reported.revoked for reported in outcome.members.values())
    group.now_ms += DELAY_MS // 2
    assert group.round().delay_ms == DELAY_MS - DELAY_MS // 2
    group.now_ms += DELAY_MS // 2
    outcome = group.round()
    assert outcome.delay_ms == 0
    assert assigned(outcome) == Counter(work(lost))
    group.assert_complete()


def test_a_worker_that_returns_in_time_gets_its_work_back() -> None:
    group = three_workers()
    held = [group.members[member].held for member in ("m1", "m2")]
    lost = group.members.pop("m3").held
    group.round()
    group.now_ms += 1_000
    group.join("m4", "m5")
    assert group.round().delay_ms == DELAY_MS - 1_000
    group.members.pop("m5")
    group.now_ms += DELAY_MS
    outcome = group.round()
    assert outcome.members["m4"].assigned == lost
    assert [group.members[member].held for member in ("m1", "m2")] == held
    assert not has_revoked(outcome)


def test_lost_work_goes_to_who_joined_without_any_while_it_waited() -> None:
    group = three_workers()
    del group.members["m2"], group.members["m3"]
    group.join("m4")
    group.round()
    group.now_ms += DELAY_MS
    outcome = group.round()
    assert (outcome.members["m1"].assigned, len(outcome.members["m4"].assigned.tasks)) == (NOTHING, 6)
    group.join("m5")
    group.settle()
    del group.members["m5"]
    group.round()
    group.now_ms += DELAY_MS
    group.round()
    group.assert_complete()  # m4 is one of those who had some


def test_where_a_revocation_was_not_heard_of_lost_work_is_new() -> None:
    """The leader believes nothing but what members say they hold."""
    group = three_workers()
    group.join("m4")
    assert has_revoked(group.round(deaf=["m1", "m2", "m3"]))
    group.members.pop("m3")
    group.round()
    assert group.held() == Counter(work(group.work))


# -- leases ------------------------------------------------------------------------------------------------------------


def test_work_under_a_lease_moves_at_once_where_the_file_sets_no_delay() -> None:
    group = three_workers(LEASE_MS, is_set=False)
    group.members.pop("m3")
    assert group.round().delay_ms == 0
    group.assert_complete()


@pytest.mark.parametrize(("lease_ms", "is_set"), [(LEASE_MS, True), (None, False)])
def test_other_work_waits_and_that_under_a_lease_where_the_file_sets_a_delay(
    lease_ms: int | None, is_set: bool
) -> None:
    group = three_workers(lease_ms, is_set=is_set)
    group.members.pop("m3")
    assert group.round().delay_ms == DELAY_MS


def test_work_of_a_java_worker_waits_and_that_of_ours_beside_it_does_not() -> None:
    group = Group(IncrementalAssignor(DELAY_MS, max_delay_is_set=False), work=configured("abcd", 4))
    group.join("m1", "m2", lease_ms=LEASE_MS)
    group.join("m3", lease_ms=LEASE_MS)
    group.join("m4")
    group.settle()
    ours, javas = group.members.pop("m3").held, group.members.pop("m4").held
    outcome = group.round()
    assert outcome.delay_ms == DELAY_MS
    assert assigned(outcome) == Counter(work(ours))
    # The rest goes on to wait, also when others of ours go.
    group.now_ms += 1_000
    group.members.pop("m2")
    assert group.round().delay_ms == DELAY_MS - 1_000
    assert group.held() == Counter(work(minus(group.work, javas)))
    group.now_ms += DELAY_MS
    group.settle()
    group.assert_complete()


def test_a_java_worker_without_work_is_not_waited_for() -> None:
    group = three_workers(LEASE_MS, is_set=False)
    group.work = configured("a", 1)
    group.join("m4")
    group.settle()
    idle = next(member for member, state in group.members.items() if not state.held and member != "m4")
    busy = next(member for member, state in group.members.items() if state.held)
    group.members[idle] = MemberState()
    group.round()
    group.members.pop(idle)
    group.members.pop(busy)
    assert group.round().delay_ms == 0
    assert group.held() == Counter(work(group.work))


# -- what runs twice, or never ends ------------------------------------------------------------------------------------


def test_what_two_members_hold_is_taken_from_both() -> None:
    group = Group(work=configured("ab", 1))
    group.members = dict.fromkeys(("m1", "m2"), MemberState(configured("a", 1)))
    assert [reported.revoked for reported in group.round().members.values()] == [configured("a", 1)] * 2
    group.settle()
    group.assert_complete()


@pytest.mark.parametrize(
    ("delay_ms", "delays"),
    [(DELAY_MS, [0, 40, 0, 1_600, 0, 64_000]), (1_000, [0, 40, 0, 1_000, 0, 1_000]), (0, [0, 0, 0, 0, 0, 0])],
)
def test_revoking_in_one_round_after_the_other_waits_longer_and_longer(delay_ms: int, delays: list[int]) -> None:
    group = Group(IncrementalAssignor(delay_ms, max_delay_is_set=True), work=configured(MANY, 0))
    group.join("m1")
    group.round()
    found = []
    for number in range(2, 8):
        # One joins in each round, so that there is always something to revoke.
        group.join(f"m{number}")
        outcome = group.round()
        found.append(outcome.delay_ms)
        group.now_ms += outcome.delay_ms
    assert found == delays
    group.settle()
    for wait_ms, number in zip(delays[:2], (8, 9), strict=True):
        group.join(f"m{number}")
        assert group.round().delay_ms == wait_ms, "it begins again"
    assert group.round().delay_ms == delays[1], "not one round less"


# -- the eager protocol ------------------------------------------------------------------------------------------------


def test_eager_assignment_deals_connectors_and_goes_on_with_tasks() -> None:
    outcome = eager_assign(
        Allocation(("b", "a", "c"), (TaskId("b", 0), TaskId("a", 10), TaskId("a", 9))),
        dict.fromkeys(["m2", "m1"], MemberState()),
    )
    assert {member: reported.assigned for member, reported in outcome.members.items()} == {
        "m1": Allocation(("a", "c"), (TaskId("a", 10),)),
        "m2": Allocation(("b",), (TaskId("a", 9), TaskId("b", 0))),
    }
    assert all(reported.total == reported.assigned and not reported.revoked for reported in outcome.members.values())


# -- classes that only Java members have -------------------------------------------------------------------------------


def test_what_ours_cannot_run_moves_to_a_java_member_and_the_rest_makes_up_for_it() -> None:
    group = Group(work=configured("abcd", 1), foreign=frozenset("ab"))
    group.join("ours", lease_ms=LEASE_MS)
    group.round()
    assert group.sizes() == [(4, 4)]  # with no other member to run it
    group.join("java")
    group.settle()
    assert group.members["java"].held == configured("ab", 1)
    assert group.members["ours"].held == configured("cd", 1)
    group.join("others", lease_ms=LEASE_MS)
    group.settle()
    assert group.sizes() == [(2, 2), (1, 1), (1, 1)]
    del group.members["java"], group.members["others"]
    group.settle()
    assert group.sizes() == [(4, 4)]


def test_eager_assignment_gives_java_what_ours_cannot_run() -> None:
    members = {"java1": MemberState(), "java2": MemberState(), "ours": MemberState(lease_ms=LEASE_MS)}
    outcome = eager_assign(configured("abcd", 1), members, frozenset("bcd"))
    assert {member: reported.total.connectors for member, reported in outcome.members.items()} == {
        "java1": ("a", "b", "d"),
        "java2": ("c",),
        "ours": (),
    }
    assert outcome.members["ours"].total.tasks == ()


# -- a naive twin ------------------------------------------------------------------------------------------------------


class Twin:
    """The rules as the reference says them, for members without leases; connectors and tasks in two calls."""

    def __init__(self, max_delay_ms: int) -> None:
        self.max_delay_ms = max_delay_ms
        self.previous: list[object] = []
        self.previous_revoked: list[object] = []
        self.previous_members: list[str] = []
        self.previous_generation = -1
        self.candidates: list[str] = []
        self.schedule_ms = 0
        self.delay_ms = 0
        self.flag = False
        self.count = 0

    def assign(
        self, wanted: list[object], members: Mapping[str, list[object]], completed: int, generation: int, now_ms: int
    ) -> dict[str, tuple[list[object], list[object]]]:
        """Assigned and revoked by member."""
        active = [one for held in members.values() for one in held]
        if self.previous_generation != completed:
            self.previous = []
        if any(one in active for one in self.previous_revoked):
            self.previous = active
        gone = [one for one in [*self.previous, *active] if one not in wanted]
        lost = sorted({one for one in self.previous if one not in active and one not in gone}, key=order)
        created = [one for one in wanted if one not in self.previous and one not in active]
        revoked = {
            member: [one for one in held if one in gone or active.count(one) > 1] for member, held in members.items()
        }
        future = {
            member: [one for one in held if one not in revoked[member]] for member, held in sorted(members.items())
        }
        again = self.handle_lost(lost, future, now_ms)
        self.balance(wanted, future, revoked, now_ms)
        for kind in (str, TaskId):
            # Of equals in their order before anything is handed out.
            takers = sorted(future, key=lambda member: (count(future[member], kind), member))
            for one in (one for one in [*sorted(created, key=order), *again] if isinstance(one, kind)):
                least = min(takers, key=lambda member: count(future[member], kind))
                future[least].append(one)
        all_revoked = [one for each in revoked.values() for one in each]
        self.previous = [*(one for held in future.values() for one in held if one not in all_revoked), *lost]
        self.previous_revoked = all_revoked
        self.previous_members = list(members)
        self.previous_generation = generation
        return {
            member: ([one for one in held if one not in members[member]], revoked[member])
            for member, held in future.items()
        }

    def handle_lost(self, lost: list[object], future: dict[str, list[object]], now_ms: int) -> list[object]:
        if not lost and not self.flag:
            self.candidates, self.schedule_ms, self.delay_ms = [], 0, 0
            return []
        if self.schedule_ms == 0 and set(self.previous_members) <= set(future):
            return lost
        if self.max_delay_ms == 0:
            return lost
        if self.schedule_ms and now_ms >= self.schedule_ms:
            takers = [member for member in self.candidates if member in future]
            self.candidates, self.schedule_ms, self.delay_ms, self.flag = [], 0, 0, False
            if not takers:
                return lost
            for kind in (str, TaskId):
                for turn, one in enumerate([one for one in lost if isinstance(one, kind)]):
                    future[takers[turn % len(takers)]].append(one)
            return []
        self.candidates += [member for member in future if not future[member] and member not in self.candidates]
        self.delay_ms = self.schedule_ms - now_ms if self.schedule_ms else self.max_delay_ms
        self.schedule_ms = now_ms + self.delay_ms
        return []

    def balance(
        self, wanted: list[object], future: dict[str, list[object]], revoked: dict[str, list[object]], now_ms: int
    ) -> None:
        if self.delay_ms:
            self.flag = False
            return
        surplus = self.surplus(wanted, future) if wanted and any(future.values()) else {}
        if any(surplus.values()):
            if self.flag:
                self.count += 1
                self.delay_ms = min(40**self.count, self.max_delay_ms)
                if self.delay_ms:
                    self.schedule_ms = now_ms + self.delay_ms
                    return
            self.flag = True
            for member, ones in surplus.items():
                revoked[member] = revoked[member] + ones
                future[member] = [one for one in future[member] if one not in ones]
        elif self.flag:
            self.flag, self.count = False, 0

    def surplus(self, wanted: list[object], future: dict[str, list[object]]) -> dict[str, list[object]]:
        result: dict[str, list[object]] = {member: [] for member in future}
        for kind in (str, TaskId):
            least, extra = divmod(len([one for one in wanted if isinstance(one, kind)]), len(future))
            for member, ones in future.items():
                mine = [one for one in ones if isinstance(one, kind)]
                if len(mine) > least:
                    keep = least
                    if extra > 0:
                        keep, extra = least + 1, extra - 1
                    result[member] += mine[: max(0, len(mine) - keep)]
        return result


def count(ones: list[object], kind: type) -> int:
    return len([one for one in ones if isinstance(one, kind)])


def order(one: object) -> tuple[bool, str, int]:
    return (True, one.connector, one.task) if isinstance(one, TaskId) else (False, str(one), 0)


# -- what must always hold ---------------------------------------------------------------------------------------------

#: One thing that happens to a group: what, to whom, and how much time passes before.
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["join", "leave", "bounce", "change", "round", "deaf", "lost", "leader"]),
        st.integers(0, 4),
        st.sampled_from([0, 20, 5_000, DELAY_MS]),
    ),
    max_size=14,
)
DELAYS = st.sampled_from([0, 1_000, DELAY_MS])
LEASES = st.lists(st.sampled_from([None, LEASE_MS]), min_size=5, max_size=5)


def apply_step(group: Group, step: tuple[str, int, int], leases: list[int | None]) -> Assignments:
    what, number, pause_ms = step
    group.now_ms += pause_ms
    member = f"m{number}"
    options: dict[str, list[str]] = {}
    match what:
        case "join" | "bounce":
            group.join(member, lease_ms=leases[number])
        case "leave" if set(group.members) != {member}:
            group.members.pop(member, None)
        case "change":
            group.work = configured("abcde"[:number], 3)
        case "leader":
            group.assignor = IncrementalAssignor(group.assignor.max_delay_ms, group.assignor.max_delay_is_set)
        case "deaf":
            options["deaf"] = [member]
    if not group.members:
        group.join("m0", lease_ms=leases[0])
    return group.round(lost=what == "lost", deaf=options.get("deaf", ()))


@given(steps=STEPS, delay_ms=DELAYS, is_set=st.booleans(), leases=LEASES)
def test_nothing_is_assigned_twice_and_all_comes_to_rest(
    steps: list[tuple[str, int, int]], delay_ms: int, is_set: bool, leases: list[int | None]
) -> None:
    group = Group(IncrementalAssignor(delay_ms, is_set))
    group.join("m0", lease_ms=leases[0])
    for step in steps:
        outcome = apply_step(group, step, leases)
        totals = Counter(chain.from_iterable(work(reported.total) for reported in outcome.members.values()))
        assert all(count == 1 for count in totals.values())
        assert totals.keys() <= set(work(group.work))
        assert 0 <= outcome.delay_ms <= delay_ms
        for member, reported in outcome.members.items():
            kept = set(work(group.before[1][member].held)) - set(work(reported.revoked))
            assert set(work(reported.total)) == kept | set(work(reported.assigned))
            assert not set(work(reported.assigned)) & set(work(reported.revoked))
        # What is handed out is in nobody's hands.
        holding = set(chain.from_iterable(work(state.held) for state in group.before[1].values()))
        assert not holding & set(assigned(outcome))
    group.settle()
    group.assert_complete()


@given(
    steps=STEPS, delay_ms=DELAYS, is_set=st.booleans(), leases=LEASES, foreign=st.frozensets(st.sampled_from("abcd"))
)
def test_ours_never_get_what_only_java_members_can_run(
    steps: list[tuple[str, int, int]], delay_ms: int, is_set: bool, leases: list[int | None], foreign: frozenset[str]
) -> None:
    group = Group(IncrementalAssignor(delay_ms, is_set), foreign=foreign)
    group.join("m0", lease_ms=leases[0])
    for step in steps:
        outcome = apply_step(group, step, leases)
        java = [member for member, state in group.members.items() if state.lease_ms is None]
        for member, reported in outcome.members.items():
            assert not java or member in java or not foreign.intersection(map(connector_of, work(reported.assigned)))
    group.settle()
    assert group.held() == Counter(work(group.work))
    java = [member for member, state in group.members.items() if state.lease_ms is None]
    if not java:
        group.assert_complete()
        return
    own, of_java = ([Counter[str]() for _ in range(2)] for _ in range(2))
    for member, state in group.members.items():
        for one in work(state.held):
            assert member in java or connector_of(one) not in foreign
            counted = of_java if connector_of(one) in foreign else own
            counted[isinstance(one, TaskId)][member] += 1
    for mine, theirs in zip(own, of_java, strict=True):
        assert max(theirs[member] for member in java) - min(theirs[member] for member in java) <= 1
        both = mine + theirs
        # Who has other work has at most one more than the least loaded.
        assert all(both[member] <= min(both[other] for other in group.members) + 1 for member in mine)


@settings(max_examples=150)
@given(steps=STEPS, delay_ms=DELAYS)
def test_the_naive_twin_decides_alike(steps: list[tuple[str, int, int]], delay_ms: int) -> None:
    group = Group(IncrementalAssignor(delay_ms, max_delay_is_set=True))
    group.join("m0")
    twin = Twin(delay_ms)
    for step in steps:
        if step[0] == "leader":
            twin = Twin(delay_ms)
        outcome = apply_step(group, step, [None] * 5)
        wanted, members, completed = group.before
        held: dict[str, list[object]] = {member: list(work(state.held)) for member, state in members.items()}
        reported = twin.assign(list(work(wanted)), held, completed, group.generation, group.now_ms)
        assert outcome.delay_ms == twin.delay_ms
        for member, each in outcome.members.items():
            assigned, revoked = reported[member]
            assert set(work(each.assigned)) == set(assigned)
            assert set(work(each.revoked)) == set(revoked)


@given(steps=STEPS, leases=LEASES)
def test_the_order_of_members_does_not_matter(steps: list[tuple[str, int, int]], leases: list[int | None]) -> None:
    one, other = (Group(IncrementalAssignor(DELAY_MS, max_delay_is_set=False)) for _ in range(2))
    for group in (one, other):
        group.join("m0", lease_ms=leases[0])
    for step in steps:
        other.members = dict(reversed(list(other.members.items())))
        assert apply_step(one, step, leases) == apply_step(other, step, leases)


@given(workers=st.integers(1, 6), connectors=st.integers(0, 8), tasks_each=st.integers(0, 4), joining=st.booleans())
def test_a_change_of_members_costs_one_round_of_revocation_at_most(
    workers: int, connectors: int, tasks_each: int, joining: bool
) -> None:
    group = Group(IncrementalAssignor(DELAY_MS, False), configured("abcdefgh"[:connectors], tasks_each))
    group.join(*(f"m{number}" for number in range(workers)), lease_ms=LEASE_MS)
    group.settle()
    if joining or workers == 1:
        group.join("new", lease_ms=LEASE_MS)
    else:
        group.members.pop("m0")
    group.round()
    outcome = group.round()
    assert not has_revoked(outcome)
    assert outcome.delay_ms == 0
    group.assert_complete()


@pytest.mark.parametrize("workers", [3, 10])
def test_a_thousand_connectors(workers: int) -> None:
    group = Group(IncrementalAssignor(DELAY_MS, False), configured((f"c{number}" for number in range(1000)), 10))
    group.join(*(f"m{number}" for number in range(workers)), lease_ms=LEASE_MS)
    group.settle()
    group.join("new", lease_ms=LEASE_MS)
    assert group.settle() == 3
    group.members.pop("m0")
    group.settle()
    group.assert_complete()
