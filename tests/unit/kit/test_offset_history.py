"""The judge of moved offsets finds each kind of fault, and none where there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from tests.kit.offset_history import Change, Moved, Place, judge
from tests.kit.operators import Ran, Seen

#: Records lie at even offsets of the source, and behind seven others at the target.
SOURCE = {("orders", 0): range(0, 200, 2)}
TARGET = {("us.orders", 0): range(7, 107), ("us.orders", 1): range(7, 107)}
PLACE: Place = ("billing", "us.orders", 0)
OTHER: Place = ("billing", "us.orders", 1)
WRITER, UNDOER = (4, 0), (5, 0)


def reported(offset: int, topic: str = "us.orders") -> Seen:
    return Seen("told", 1.0, "billing", (-1, -1), {(topic, 0): offset})


def asked(offset: int) -> Seen:
    return Seen("commit", 2.0, "billing", WRITER, {("us.orders", 0): offset})


def moved(command: str, *trace: Seen) -> Moved:
    """By an operator with this trace; consumers have read 30 records at the source."""
    ran = Ran("ann", [command, "--execute"], 0, False, trace, "")
    return Moved("us", [ran], {("billing", "orders", 0): [(0.0, 60)]})


def found(of: Moved, changes: Mapping[Place, Sequence[Change]]) -> list[str]:
    return judge(of, changes, SOURCE, TARGET)[0]


AT_SOURCE = reported(60, "orders")
FOUND, MOVED, GONE_ON = Change(1, 17, None), Change(2, 37, WRITER), Change(3, 40, None)


def test_who_was_told_of_a_commit_may_change_it() -> None:
    assert found(moved("failover", reported(17), AT_SOURCE, asked(37)), {PLACE: [FOUND, MOVED]}) == []
    (fault,) = found(moved("failover", reported(16), AT_SOURCE, asked(37)), {PLACE: [FOUND, MOVED]})
    assert "the newer commit 17 was changed to 37" in fault


def test_what_was_told_behind_the_request_counts_for_nothing() -> None:
    (fault,) = found(moved("failover", AT_SOURCE, asked(37), reported(17)), {PLACE: [FOUND, MOVED]})
    assert "the newer commit 17" in fault


def test_a_group_goes_on_at_the_record_that_it_would_have_read() -> None:
    """At a later one it skips records; at an earlier one it is not exact, which it need not be without the source."""
    late = found(moved("failover", AT_SOURCE, asked(38)), {PLACE: [Change(2, 38, WRITER)]})
    assert [fault.rpartition(", ")[2] for fault in late] == [
        "and has read up to 30",
        "and stood at offset [60] at the source",
    ]
    early = {PLACE: [Change(2, 36, WRITER)]}
    assert len(found(moved("failover", AT_SOURCE, asked(36)), early)) == 1
    gone = moved("failover", AT_SOURCE, asked(36))
    gone.ran[0] = gone.ran[0]._replace(arguments=["failover", "--source-gone", "us"])
    assert found(gone, early) == []


@pytest.mark.parametrize(("other", "faults"), [([MOVED], 0), ([MOVED, GONE_ON], 1)])
def test_a_group_that_has_gone_on_in_one_partition_is_not_taken_back(other: list[Change], faults: int) -> None:
    none = Seen("commit", 3.0, "billing", UNDOER, {("us.orders", 0): -1})
    both = Seen("commit", 2.0, "billing", WRITER, {("us.orders", 0): 37, ("us.orders", 1): 37})
    of = moved("undo", AT_SOURCE, none)
    of.ran.append(of.ran[0]._replace(arguments=["failover", "--source-gone", "us"], trace=[both]))
    of.read["billing", "orders", 1] = [(0.0, 60)]
    changes = {PLACE: [MOVED, Change(9, None, UNDOER)], OTHER: other}
    source = {**SOURCE, ("orders", 1): range(0, 200, 2)}
    assert len(judge(of, changes, source, TARGET)[0]) == faults


def test_a_change_by_no_operator_is_a_fault() -> None:
    (fault,) = found(moved("failover", AT_SOURCE), {PLACE: [MOVED]})
    assert "by none of the operators" in fault
