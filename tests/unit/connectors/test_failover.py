"""The pure parts of a failover: what is in the way, what moves, what is the same, what is taken back."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from connect.core.errors import ConfigError, PermanentError
from connectors.failover import lease, places, undo
from connectors.failover.model import (
    DIFFERS,
    NOT_COMPARED,
    SAME,
    GroupMove,
    GroupsPlan,
    How,
    Left,
    Place,
    Preflight,
    to_commit,
    with_moved,
    with_rewinds,
)
from connectors.failover.own import Range, between
from connectors.failover.proving import _rounds, compare
from connectors.offset_map import Place as Lies
from connectors.offset_map import Run, RunList, Translation
from connectors.positions import Kind, decode_kind

MOVE = GroupMove("readers", ("orders", 0), 40, ("us.orders", 0), None, "", 37, "note", How.EXACT)


def preflight(**more: Any) -> Preflight:
    return Preflight("us", "eu", **{"groups": GroupsPlan(("readers",), (MOVE,)), **more})


def test_it_goes_where_nothing_is_in_the_way() -> None:
    assert preflight().obstacles == []
    assert preflight(source_error="no answer", is_gone=True).obstacles == []


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"source_error": "no answer"}, "--source-gone"),
        ({"groups": GroupsPlan()}, "no group was found"),
        ({"stopped": {"orders-0": "it is quarantined"}}, "orders-0 is not copied"),
        ({"unknown": ("orders-1",)}, "not looked at: orders-1"),
        ({"in_the_way": ("somebody",)}, "somebody"),
        ({"groups": GroupsPlan(("a",), (), (Left("a", "", "has members"),))}, "group a: has members"),
    ],
)
def test_what_is_in_the_way_is_said(more: dict[str, Any], words: str) -> None:
    (obstacle,) = preflight(**more).obstacles
    assert words in obstacle


def test_no_group_goes_back_unless_that_is_wanted() -> None:
    back = replace(MOVE, before=50)
    plan = with_rewinds(GroupsPlan(("readers",), (back, replace(MOVE, before=37))), allowed=False)
    assert [one.before for one in plan.moves] == [37]
    assert plan.due == ()
    assert "from 50" not in plan.left[0].why and "50" in plan.left[0].why
    assert plan.left[0].is_obstacle, "who has not read so far would skip records"
    assert not with_rewinds(GroupsPlan((), (back,)), allowed=False, keeps=True).left[0].is_obstacle
    assert with_rewinds(GroupsPlan((), (back,)), allowed=True).due == (back,)
    assert to_commit([back]) == {"readers": {("us.orders", 0): (37, "note")}}


def record(value: bytes, timestamp: int = 7, timestamp_type: int = 0) -> Any:
    return SimpleNamespace(key=None, value=value, headers=(), timestamp=timestamp, timestamp_type=timestamp_type)


def test_the_same_records_are_the_same_and_others_are_not() -> None:
    ours = [record(b"1"), record(b"2")]
    assert compare(MOVE, ours, ours).outcome == SAME
    more = compare(MOVE, ours[:1], ours)
    assert (more.outcome, more.why) == (SAME, "the target goes on with 1 records or more")
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
    assert compare(move, numbers[5:15], numbers[2:12]) == replace(
        compare(MOVE, numbers[5:12], numbers[5:12]), group=move.group
    )
    assert compare(move, numbers[5:15], numbers[7:17]).outcome == DIFFERS
    assert compare(move, numbers[5:8], [*numbers[5:6], *numbers[7:9]]).outcome == DIFFERS
    assert compare(move, numbers[5:8], []).outcome == NOT_COMPARED


def test_groups_that_stand_in_one_partition_are_read_in_turns() -> None:
    other = replace(MOVE, group="others")
    assert _rounds([MOVE, other, replace(MOVE, source=("b", 0), target=("us.b", 0))]) == [
        [MOVE, replace(MOVE, source=("b", 0), target=("us.b", 0))],
        [other],
    ]


def test_an_undo_file_outlives_an_interrupted_run_with_what_was_there_first(tmp_path: Path) -> None:
    file = tmp_path / "undo.json"
    first = undo.begin(file, "us", "eu").with_moves([MOVE]).with_denied(["orders"])
    first.write()
    again = undo.begin(file, "us", "eu").with_moves([replace(MOVE, before=37, after=38)])
    again.write()
    (row,) = undo.read(file).groups
    assert (row.before, row.after) == (None, 38)
    done = replace(again, is_finished=True)
    done.write()
    other = undo.begin(file, "us", "eu")
    assert other.groups == ()
    replace(other, is_finished=True).write()
    assert undo.read(file) == done, "what changes nothing leaves what takes the run before back"
    other.with_denied(["payments"]).write()
    assert undo.read(tmp_path / "undo.1.json") == done
    replace(other.with_denied(["payments"]), is_finished=True).write()
    assert undo.read(file).denied == ("payments",)
    assert not (tmp_path / "undo.2.json").exists()


def test_an_undo_file_of_something_else_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "undo.json"
    undo.begin(file, "us", "eu").write()
    with pytest.raises(ConfigError, match="from us to eu"):
        undo.begin(file, "eu", "us")
    file.write_text("{}")
    with pytest.raises(ConfigError, match="no undo file"):
        undo.read(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        undo.read(tmp_path / "none")


def test_who_is_at_it_is_told_and_the_dead_are_not_waited_for() -> None:
    held = lease.Record(
        "ann@host",
        platform.node(),
        os.getpid(),
        "heliograph failover",
        0,
        5000,
        "drain",
        denied=("a",),
        undo_files=("host:/a",),
    )
    assert lease.decode(lease.encode(held)) == held
    assert held.is_held(4999) and not held.is_held(5000)
    assert not held.is_of_the_dead
    assert replace(held, pid=2**22 - 1 if sys.platform == "linux" else 99999).is_of_the_dead
    assert not replace(held, host="elsewhere", pid=2**22 - 1).is_of_the_dead
    assert "ann@host" in lease.in_words(held) and "«drain»" in lease.in_words(held)
    assert decode_kind(lease.encode_key("us->eu")) is Kind.FAILOVER
    with pytest.raises(PermanentError, match="later Heliograph"):
        lease.decode(b'{"format": 2}')


@pytest.mark.parametrize(
    ("offset", "near"),
    [(0, 0), (5, 5), (10, 10), (15, 10), (30, 30), (34, 34), (40, 40), (99, 40)],
)
async def test_a_map_knows_how_near_its_last_record_lies(offset: int, near: int) -> None:
    """Ten records, twenty offsets that came from elsewhere, ten records."""
    runs = RunList([Run(0, 0, 10), Run(30, 25, 10)])

    async def inverse(downstream: int) -> Translation | None:
        return runs.reverse(downstream)

    found = runs.forward(offset)
    assert found is not None
    assert await places._nearness(found, offset, inverse) == near
    assert await places._nearness(Translation(0, Lies.BELOW), offset, inverse) == -1


async def test_behind_the_last_record_is_exact_once_the_copy_has_passed_what_lies_there() -> None:
    runs = RunList([Run(0, 0, 10)])

    async def inverse(downstream: int) -> Translation | None:
        return runs.reverse(downstream)

    for is_passed, how in ((True, How.EXACT), (False, How.END)):
        found = await places._candidate(runs.forward(12), 12, ("orders", 0), inverse, is_passed=is_passed)
        assert found == (10, Place("orders", 0, 10, how))
    assert await places._candidate(None, 12, ("orders", 0), inverse, is_passed=True) is None


@pytest.mark.parametrize(
    ("copied", "left"),
    [
        ([], [(5, 20)]),
        ([(0, 5)], [(5, 20)]),
        ([(0, 7), (7, 9), (15, 99)], [(9, 15)]),
        ([(5, 20)], []),
        ([(4, 6), (5, 6), (19, 20)], [(6, 19)]),
    ],
)
def test_what_is_no_copy_is_a_cluster_s_own(copied: list[Range], left: list[Range]) -> None:
    assert list(between(5, 20, copied)) == left


def test_whom_an_interrupted_run_has_moved_does_not_go_back_to_an_older_checkpoint() -> None:
    late = replace(MOVE, before=37, after=30, how=How.CHECKPOINT)
    (one,) = with_moved(GroupsPlan(("readers",), (late,)), {("readers", MOVE.target): 37}).moves
    assert one.is_done and one.how is How.MOVED
    for moved in ({}, {("readers", MOVE.target): 36}, {("others", MOVE.target): 37}):
        assert with_moved(GroupsPlan(("readers",), (late,)), moved).moves == (late,), "somebody else has moved it"
    ahead = replace(late, before=30, after=37)
    assert with_moved(GroupsPlan(("readers",), (ahead,)), {("readers", MOVE.target): 30}).moves == (ahead,)


def test_only_a_run_that_was_interrupted_lately_is_gone_on_with(tmp_path: Path) -> None:
    file = tmp_path / "undo.json"
    assert undo.interrupted(file, "us", "eu") is None
    undo.begin(file, "us", "eu").with_moves([MOVE]).write()
    assert undo.interrupted(file, "us", "eu") is not None
    os.utime(file, (0, 0))
    assert undo.interrupted(file, "us", "eu") is None
    replace(undo.read(file), is_finished=True).write()
    assert undo.interrupted(file, "us", "eu") is None
