"""Which of two tasks has an unowned partition, by the order of their records in the store's log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from connect.kafka.cluster import Cluster
from connect.kafka.log.compacted_topic import LogRecord
from connectors.formats.position import (
    KeyKind,
    Position,
    PositionKey,
    encode_position,
    encode_position_key,
    encode_progress,
)
from connectors.formats.types import TopicPartition
from connectors.source.positions import stored_positions
from connectors.source.positions.stored_positions import ReadTo, Start, Unowned

ORDERS, OTHERS = TopicPartition("orders", 0), TopicPartition("others", 0)
FIRST = Position("orders", 0, None, 40, -1, "us.orders", 0, None, 40, "mm2-0", 7, 0, 0)
THEIRS = replace(FIRST, transactional_id="mm2-1", producer_id=8)
_READ_TO = 5


def record(
    offset: int, position: Position, *, kind: KeyKind = KeyKind.POSITION, connector: str = "mirror"
) -> LogRecord:
    key = encode_position_key(PositionKey(connector, position.source_topic, position.source_partition), kind)
    value = encode_position(position) if kind is KeyKind.POSITION else encode_progress(position, None)
    return LogRecord(key, value, 0, offset, 0)


def answer(patch: pytest.MonkeyPatch, records: Sequence[LogRecord], *, after: int) -> None:
    """To who reads the log."""

    async def read_to_end(_: object, topic: str, apply: Callable[[LogRecord], None], **named: Any) -> None:
        assert (topic, named["after"], set(named["partitions"])) == ("map", {0: after}, {0})
        for one in records:
            apply(one)

    patch.setattr(stored_positions, "read_to_end", read_to_end)


async def taken(
    patch: pytest.MonkeyPatch, records: Sequence[LogRecord], *, first: int, positions: Sequence[Position] = (FIRST,)
) -> set[TopicPartition]:
    """Of ``positions``, in a write whose first record has the offset ``first``."""
    answer(patch, records, after=_READ_TO)
    known = Unowned(cast(Cluster, None), "map", "mirror")
    ours = {one.source: one for one in positions}
    known.read(dict.fromkeys(ours, Start(None, None, False)), dict.fromkeys(ours, ReadTo(0, _READ_TO)))
    assert known.concern(ours)
    assert await known.may_commit(ours, {("map", 0): first}) == (not known.taken)
    return set(known.taken)


@pytest.mark.parametrize(
    "before",
    [record(6, THEIRS), record(6, THEIRS, kind=KeyKind.PROGRESS), record(6, replace(THEIRS, is_handed_over=True))],
    ids=["position", "progress", "mark"],
)
async def test_who_comes_second_finds_the_other(monkeypatch: pytest.MonkeyPatch, before: LogRecord) -> None:
    assert await taken(monkeypatch, [before, record(7, FIRST)], first=7) == {ORDERS}


@pytest.mark.parametrize(
    "records",
    [
        [record(7, FIRST), record(8, THEIRS)],
        [record(6, replace(THEIRS, source_topic="others")), record(7, FIRST)],
        [record(6, THEIRS, connector="another"), record(7, FIRST)],
        [LogRecord(None, b"", 0, 6, 0), record(7, FIRST)],
        [record(6, FIRST), record(7, replace(FIRST, is_handed_over=True))],
    ],
    ids=["behind us", "of another partition", "of another connector", "no position", "of our attempt before"],
)
async def test_other_records_do_not_matter(monkeypatch: pytest.MonkeyPatch, records: Sequence[LogRecord]) -> None:
    assert await taken(monkeypatch, records, first=7) == set()


async def test_of_a_write_in_several_batches_each_record_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(FIRST, source_topic="others")
    records = [record(6, other), record(7, THEIRS), record(8, FIRST)]
    assert await taken(monkeypatch, records, first=6, positions=[other, FIRST]) == {ORDERS}


async def test_a_partition_whose_records_are_elsewhere_now_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await taken(monkeypatch, [], first=7) == {ORDERS}


@pytest.mark.parametrize(
    "start",
    [Start(FIRST, 39, False), Start(replace(FIRST, is_handed_over=True), 39, False, claimant="mm2-1-commit")],
    ids=["writer", "claimant"],
)
def test_a_partition_with_an_owner_is_not_looked_for(start: Start) -> None:
    known = Unowned(cast(Cluster, None), "map", "mirror")
    known.read({ORDERS: start}, {ORDERS: ReadTo(0, 0)})
    assert not known.concern({ORDERS: FIRST})


def test_what_was_stored_is_owned() -> None:
    known = Unowned(cast(Cluster, None), "map", "mirror")
    known.read({ORDERS: Start(None, None, False)}, {ORDERS: ReadTo(0, 0)})
    known.owned([ORDERS])
    assert not known.concern({ORDERS: FIRST})


@pytest.mark.parametrize("is_taken", [True, False])
async def test_a_mark_that_may_not_have_been_stored(monkeypatch: pytest.MonkeyPatch, is_taken: bool) -> None:
    """Its answer was lost; a task that has read it may have stored a newer position."""
    mark = replace(FIRST, is_handed_over=True)
    known = Unowned(cast(Cluster, None), "map", "mirror")
    known.read({ORDERS: Start(FIRST, 39, False)}, {ORDERS: ReadTo(0, _READ_TO)})
    assert known.concern({ORDERS: mark})
    assert await known.may_commit({ORDERS: mark}, {("map", 0): 8}), "it is ours, and nothing has to be read"
    between = [record(10, THEIRS)] if is_taken else []
    answer(monkeypatch, [record(8, mark), *between, record(12, mark)], after=8)
    assert await known.may_commit({ORDERS: mark}, {("map", 0): 12}) is not is_taken
    assert known.taken == ({ORDERS} if is_taken else set())
