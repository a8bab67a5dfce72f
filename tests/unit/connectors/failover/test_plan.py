"""The pure parts of a failover: what is in the way, what moves, what is the same, what is taken back."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from connect.core.errors import PermanentError
from connectors.failover import clusters_and_lease, offset_lookup
from connectors.failover.log_comparison import _rounds, compare
from connectors.failover.plan import EVERY, FailoverOptions, GroupOutcome, Plan, differing, plan, with_moved
from connectors.failover.snapshot import (
    DIFFERS,
    NOT_COMPARED,
    SAME,
    GroupFinding,
    GroupMove,
    GroupRule,
    Groups,
    How,
    SampleCheck,
    Snapshot,
    TargetOffset,
)
from connectors.formats.position import KeyKind, decode_kind
from connectors.offset_map.runs_and_chunks import MappedOffset, MapRun, RunList
from connectors.offset_map.runs_and_chunks import OffsetLocation as Lies

MOVE = GroupMove("readers", ("orders", 0), 40, ("us.orders", 0), None, "", 37, "note", How.EXACT)


def snapshot(**more: Any) -> Snapshot:
    return Snapshot("us", "eu", **{"groups": Groups(("readers",), (MOVE,)), **more})


def outcomes(found: Plan) -> dict[str, GroupOutcome]:
    return {one.group: one.outcome for one in found.groups}


def test_groups_go_if_nothing_keeps_them() -> None:
    assert outcomes(plan(snapshot(), FailoverOptions())) == {"readers": GroupOutcome.READY}
    assert plan(snapshot(source_error="no answer", is_gone=True), FailoverOptions()).can_go
    done = snapshot(groups=Groups(("readers",), (replace(MOVE, before=37),)))
    assert outcomes(plan(done, FailoverOptions())) == {"readers": GroupOutcome.IN_PLACE}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"source_error": "no answer", "groups": Groups()}, "--source-gone us"),
        ({"groups": Groups()}, "no group was found"),
        ({"obstacles": ("only eu has it",)}, "only eu has it"),
    ],
)
def test_what_keeps_every_group_is_an_obstacle(more: dict[str, Any], words: str) -> None:
    found = plan(snapshot(**more), FailoverOptions())
    (obstacle,) = found.obstacles
    assert words in obstacle and not found.can_go


@pytest.mark.parametrize(
    "failover_options",
    [
        FailoverOptions(rewinds=frozenset({"raeders"})),
        FailoverOptions(keeps=frozenset({"readers", "raeders"})),
        FailoverOptions(accepts={GroupRule.DELETED: frozenset({"raeders"})}),
    ],
)
def test_an_option_for_a_group_that_was_not_found_is_refused(failover_options: FailoverOptions) -> None:
    (obstacle,) = plan(snapshot(), failover_options).obstacles
    assert obstacle == "no group is called raeders. Check --rewind, --keep-offset and --accept"


def test_options_for_found_and_for_all_groups_are_taken() -> None:
    assert FailoverOptions().takes("readers")
    assert plan(snapshot(), FailoverOptions(rewinds=frozenset({EVERY}), keeps=frozenset({"readers"}))).can_go


@pytest.mark.parametrize("rule", list(GroupRule))
def test_one_blocked_group_of_200_keeps_no_other(rule: GroupRule) -> None:
    """Whatever is found of it; it is named with what to do."""
    names = [f"g{number:03}" for number in range(200)]
    moves = tuple(replace(MOVE, group=name) for name in names)
    groups = Groups(tuple(names), moves, (GroupFinding("g007", rule, "has a reason"),))
    found = plan(snapshot(groups=groups), FailoverOptions())
    assert found.can_go
    assert len(found.ready) == 200 - len(found.blocked)
    for one in found.blocked:
        ((why, remedy),) = one.reasons
        assert (one.group, why) == ("g007", "has a reason")
        assert remedy and "{" not in remedy and ("--" not in remedy or "g007" in remedy)
    notes = {one.group: one.notes for one in found.groups if one.notes}
    assert notes == ({} if found.blocked else {"g007": ("has a reason",)})


def test_thousands_of_groups_are_planned_by_looking_at_each_move_once() -> None:
    compared = 0

    class Name(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    names = [Name(f"g{number}") for number in range(300)]
    moves = tuple(replace(MOVE, group=Name(name)) for name in names)
    findings = tuple(GroupFinding(Name(name), GroupRule.USED_AT_TARGET, "has members") for name in names)
    found = plan(snapshot(groups=Groups(tuple(names), moves, findings)), FailoverOptions())
    assert len(found.blocked) == 300
    assert compared < 20 * 300


def test_a_partition_that_is_not_copied_blocks_its_readers_alone() -> None:
    other = replace(MOVE, group="others", source=("mail", 0), target=("us.mail", 0))
    groups = Groups(("others", "readers"), (MOVE, other))
    found = plan(snapshot(groups=groups, stopped={"orders-0": "it is quarantined"}), FailoverOptions())
    assert outcomes(found) == {"readers": GroupOutcome.BLOCKED, "others": GroupOutcome.READY}
    assert found.blocked[0].reasons[0].why == "orders-0 is not copied to its end: it is quarantined"
    gone = plan(snapshot(groups=groups, stopped={"orders-0": "it is quarantined"}, is_gone=True), FailoverOptions())
    assert not gone.blocked, "what was copied is all there will be"


def test_a_group_in_use_that_is_in_place_is_not_blocked() -> None:
    used = GroupFinding("readers", GroupRule.USED_AT_TARGET, "has members")
    for before, outcome in ((37, GroupOutcome.IN_PLACE), (None, GroupOutcome.BLOCKED)):
        groups = Groups(("readers",), (replace(MOVE, before=before),), (used,))
        assert outcomes(plan(snapshot(groups=groups), FailoverOptions())) == {"readers": outcome}


def test_a_group_without_offsets_is_left() -> None:
    groups = Groups(("shared",), (), (GroupFinding("shared", GroupRule.SHARE_GROUP, "is a share group"),))
    found = plan(snapshot(groups=groups), FailoverOptions())
    assert (outcomes(found), found.can_go) == ({"shared": GroupOutcome.LEFT}, False)


def test_no_group_goes_back_unless_that_is_wanted() -> None:
    back = replace(MOVE, before=50)
    other = replace(back, group="others")
    groups = snapshot(groups=Groups(("others", "readers"), (back, other)))
    found = plan(groups, FailoverOptions(rewinds=frozenset({"readers"})))
    assert outcomes(found) == {"readers": GroupOutcome.READY, "others": GroupOutcome.BLOCKED}
    assert found.ready[0].due == (back,)
    assert found.blocked[0].moves == (other,)
    ((why, remedy),) = found.blocked[0].reasons
    assert "50" in why and "--rewind others" in remedy and "--keep-offset others" in remedy
    kept = plan(groups, FailoverOptions(keeps=frozenset({"readers"}), rewinds=frozenset({"others"})))
    assert outcomes(kept) == {"readers": GroupOutcome.IN_PLACE, "others": GroupOutcome.READY}
    assert [one.after for one in kept.moves if one.group == "readers"] == [50]


def test_what_is_accepted_is_accepted_for_the_group_that_is_named() -> None:
    stale = [GroupFinding(group, GroupRule.STALE_CHECKPOINT, "may be stale") for group in ("others", "readers")]
    moves = (MOVE, replace(MOVE, group="others"))
    groups = snapshot(groups=Groups(("others", "readers"), moves, tuple(stale)))
    found = plan(groups, FailoverOptions(accepts={GroupRule.STALE_CHECKPOINT: frozenset({"readers"})}))
    assert outcomes(found) == {"readers": GroupOutcome.READY, "others": GroupOutcome.BLOCKED}
    every = plan(groups, FailoverOptions(accepts={GroupRule.STALE_CHECKPOINT: frozenset({EVERY})}))
    assert not every.blocked


def test_groups_whose_samples_differ_are_blocked() -> None:
    found = plan(snapshot(), FailoverOptions())
    proofs = [SampleCheck("readers", "orders-0 at 40", "us.orders-0 at 37", 1, outcome, "'a' against 'b'")
              for outcome in (SAME, NOT_COMPARED)]  # fmt: skip
    assert found.with_blocked(differing(proofs)) == found
    blocked = found.with_blocked(differing([*proofs, replace(proofs[0], outcome=DIFFERS)]))
    assert "'a' against 'b'" in blocked.blocked[0].reasons[0].why and not blocked.can_go


def record(value: bytes, timestamp: int = 7, timestamp_type: int = 0) -> Any:
    return SimpleNamespace(key=None, value=value, headers=(), timestamp=timestamp, timestamp_type=timestamp_type)


def test_the_same_records_are_the_same_and_others_are_not() -> None:
    ours = [record(b"1"), record(b"2")]
    assert compare(MOVE, ours, ours).outcome == SAME
    more = compare(MOVE, ours[:1], ours)
    assert (more.outcome, more.why) == (SAME, "the target continues with 1 record or more")
    lacks = compare(MOVE, ours, ours[:1])
    assert (lacks.outcome, lacks.records) == (DIFFERS, 1)
    other = compare(MOVE, ours, [record(b"1"), record(b"3")])
    assert (other.outcome, other.why) == (DIFFERS, "'2' against '3'")


def test_records_that_are_alike_are_told_by_their_times() -> None:
    """Of ticks a group may stand anywhere, and all would be the same."""
    ticks = [record(b"tick", at) for at in range(20)]
    assert compare(MOVE, ticks[5:10], ticks[5:10]).outcome == SAME
    other = compare(MOVE, ticks[5:10], ticks[6:11])
    assert (other.outcome, other.why) == (DIFFERS, "'tick' of 5 against the same of 6, in ms")
    stamped = [record(b"tick", at, timestamp_type=1) for at in range(100, 120)]
    none = [record(b"tick", -1) for _ in range(20)]
    for log in (stamped, none):
        assert compare(MOVE, ticks[:5], log[:5]).outcome == compare(MOVE, log[:5], ticks[:5]).outcome == SAME
    assert compare(replace(MOVE, how=How.SYNCS), ticks[5:10], ticks[6:11]).outcome == DIFFERS


def test_by_offset_syncs_a_group_may_begin_earlier_and_never_later() -> None:
    move = replace(MOVE, how=How.SYNCS)
    numbers = [record(b"%d" % at) for at in range(20)]
    same = compare(MOVE, numbers[5:12], numbers[5:12])
    assert compare(move, numbers[5:15], numbers[2:12]) == replace(same, group=move.group)
    assert compare(move, numbers[5:15], numbers[7:17]).outcome == DIFFERS
    assert compare(move, numbers[5:8], [*numbers[5:6], *numbers[7:9]]).outcome == DIFFERS
    assert compare(move, numbers[5:8], []).outcome == NOT_COMPARED


def test_groups_that_stand_in_one_partition_are_read_in_turns() -> None:
    other = replace(MOVE, group="others")
    elsewhere = replace(MOVE, source=("b", 0), target=("us.b", 0))
    assert _rounds([MOVE, other, elsewhere]) == [[MOVE, elsewhere], [other]]


def test_who_is_at_it_is_told_and_the_dead_are_not_waited_for() -> None:
    of_process = platform.node(), os.getpid(), "heliograph failover"
    held = clusters_and_lease.LeaseRecord("ann@host", *of_process, 0, 5000, "drain", "run")
    assert clusters_and_lease.decode(clusters_and_lease.encode(held)) == held
    assert held.is_held(4999) and not held.is_held(5000)
    assert not held.owner_process_exited
    dead = replace(held, pid=2**22 - 1 if sys.platform == "linux" else 99999)
    assert dead.owner_process_exited and not dead.is_held(4999)
    assert not replace(dead, host="elsewhere").owner_process_exited
    assert "ann@host" in str(held) and "«drain»" in str(held)
    assert decode_kind(clusters_and_lease.encode_key("us->eu")) is KeyKind.FAILOVER
    with pytest.raises(PermanentError, match="a later version of Heliograph"):
        clusters_and_lease.decode(b'{"format": 2}')


@pytest.mark.parametrize(
    ("offset", "near"), [(0, 0), (5, 5), (10, 10), (15, 10), (30, 30), (34, 34), (40, 40), (99, 40)]
)
async def test_a_map_knows_how_near_its_last_record_lies(offset: int, near: int) -> None:
    """Ten records, twenty offsets that came from elsewhere, ten records."""
    runs = RunList([MapRun(0, 0, 10), MapRun(30, 25, 10)])

    async def inverse(downstream: int) -> MappedOffset | None:
        return runs.reverse(downstream)

    found = runs.forward(offset)
    assert found is not None
    assert await offset_lookup._nearness(found, offset, inverse) == near
    assert await offset_lookup._nearness(MappedOffset(0, Lies.BELOW), offset, inverse) == -1


async def test_behind_the_last_record_is_exact_once_the_copy_has_passed_what_lies_there() -> None:
    runs = RunList([MapRun(0, 0, 10)])

    async def inverse(downstream: int) -> MappedOffset | None:
        return runs.reverse(downstream)

    for is_passed, how in ((True, How.EXACT), (False, How.END)):
        found = await offset_lookup._candidate(runs.forward(12), 12, ("orders", 0), inverse, is_passed=is_passed)
        assert found == (10, TargetOffset("orders", 0, 10, how))
    assert await offset_lookup._candidate(None, 12, ("orders", 0), inverse, is_passed=True) is None


def test_a_group_that_an_interrupted_run_has_moved_does_not_go_back_to_an_older_checkpoint() -> None:
    late = replace(MOVE, before=37, after=30, how=How.CHECKPOINT)
    groups = Groups(("readers",), (late,))
    (one,) = with_moved(groups, {("readers", MOVE.target): 37}, FailoverOptions()).moves
    assert one.is_done and one.how is How.MOVED
    for moved in ({}, {("readers", MOVE.target): 36}, {("others", MOVE.target): 37}):
        assert with_moved(groups, moved, FailoverOptions()).moves == (late,), "another operator has moved it"
    rewinds = FailoverOptions(rewinds=frozenset({"readers"}))
    assert with_moved(groups, {("readers", MOVE.target): 37}, rewinds).moves == (late,), "that is wanted"
    for is_gone, at_ms, outcome in ((True, None, "IN_PLACE"), (False, None, "BLOCKED"), (True, 5, "READY")):
        looked = snapshot(groups=groups, moved={("readers", MOVE.target): 37}, is_gone=is_gone)
        assert outcomes(plan(looked, FailoverOptions(at_ms=at_ms))) == {"readers": GroupOutcome[outcome]}
    ahead = replace(late, before=30, after=37)
    ahead_alone = Groups(("readers",), (ahead,))
    assert with_moved(ahead_alone, {("readers", MOVE.target): 30}, FailoverOptions()).moves == (ahead,)


def test_the_planning_of_a_move_opens_few_files() -> None:
    """Who wants to know why a group is blocked reads two modules; from the command on it is at most 18."""
    modules = "(name for name, one in sys.modules.items() if not hasattr(one, '__path__'))"
    code = f"import sys, connect.cli.commands.failover, connectors.failover.plan; print(*{modules})"
    reported = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    ours = [name for name in reported if name.partition(".")[0] in ("connect", "connectors", "rest")]
    assert {"connectors.failover.plan", "connectors.failover.snapshot"} <= set(ours)
    assert len(ours) <= 18, ours
    # Its filter of warnings, and how it waits for a signal, which do no I/O.
    console = {"connect.kafka", "connect.kafka.error_causes", "connect.kafka.concurrency"}
    assert not [name for name in ours if name.startswith("connect.kafka") and name not in console], "the plan is pure"
