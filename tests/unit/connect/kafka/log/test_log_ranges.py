"""Ranges of offsets of a log, and what is read of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, overload

import pytest
from aiokafka.errors import OffsetOutOfRangeError
from hypothesis import given
from hypothesis import strategies as st

from connect.core.errors import RetriableError
from connect.kafka.log import log_ranges
from connect.kafka.log.log_ranges import Range, has_records, merged, read_ranges, without
from tests.kit.virtual_time import in_virtual_time

OVERLAPPING = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)).map(lambda one: (one[0], sum(one)))).map(sorted)
RANGES = OVERLAPPING.map(merged)


@given(RANGES, st.one_of(RANGES, OVERLAPPING))
def test_what_is_left_of_ranges_is_what_no_other_covers(ranges: list[Range], others: list[Range]) -> None:
    left = without(ranges, others)
    assert [at for one in left for at in range(*one)] == sorted(offsets(ranges) - offsets(others))
    assert all(begin < end for begin, end in left)


def offsets(ranges: Iterable[Range]) -> set[int]:
    return {at for one in ranges for at in range(*one)}


class Counted(Sequence[Range]):
    """Ranges that know how often they were looked at."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        self.looks = 0
        self._ranges = ranges

    def __len__(self) -> int:
        return len(self._ranges)

    @overload
    def __getitem__(self, index: int) -> Range: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Range]: ...
    def __getitem__(self, index: int | slice) -> Range | Sequence[Range]:
        self.looks += 1
        return self._ranges[index]

    def __iter__(self) -> Iterator[Range]:
        for one in self._ranges:
            self.looks += 1
            yield one


def test_thousands_of_ranges_are_taken_away_in_one_pass() -> None:
    """A log of many transactions: nothing else of the process goes on meanwhile."""
    appended = Counted([(10 * at, 10 * at + 4) for at in range(3000)])
    assert len(without([(10 * at, 10 * at + 9) for at in range(3000)], appended)) == 3000
    assert appended.looks < 10 * 3000


# -- read --------------------------------------------------------------------------------------------------------

ORDERS = ("orders", 0)
US: Any = SimpleNamespace(name="us")


class Consumer:
    """Of a log from ``start`` to ``end``, which hands out ``step`` records at a time up to ``stops_at``; then it raises
    what is said."""

    def __init__(
        self, end: int, *, start: int = 0, step: int = 5, stops_at: int | None = None, error: Exception | None = None
    ) -> None:
        self.at, self.seeks = 0, list[int]()
        self._start, self._end, self._step, self._error = start, end, step, error
        self._stops_at = end if stops_at is None else stops_at
        self.asked: dict[str, Any] = {}

    def reader(self, _: Any, **asked: Any) -> Any:
        self.asked = asked
        return contextlib.nullcontext(self)

    async def end_offsets(self, places: Any) -> Any:
        return dict.fromkeys(places, self._end)

    async def beginning_offsets(self, places: Any) -> Any:
        return dict.fromkeys(places, self._start)

    def assign(self, _: Any) -> None: ...

    def seek(self, _: Any, offset: int) -> None:
        self.seeks.append(offset)
        self.at = offset

    async def position(self, _: Any) -> int:
        return self.at

    async def getmany(self, place: Any, **_: Any) -> Any:
        await asyncio.sleep(0.001)
        if self.at >= self._stops_at and self._error is not None:
            raise self._error
        begin, self.at = self.at, max(min(self.at + self._step, self._stops_at), self.at)
        return {place: [SimpleNamespace(offset=offset) for offset in range(begin, self.at)]}


async def read(monkeypatch: pytest.MonkeyPatch, consumer: Consumer, ranges: Sequence[Range]) -> list[int]:
    monkeypatch.setattr(log_ranges, "reader", consumer.reader)
    found: list[int] = []
    async for record in read_ranges(US, ORDERS, ranges):
        found.append(record.offset)
    assert consumer.asked == {"read_committed": True, "auto_offset_reset": "none"}, "nothing comes twice"
    return found


async def test_what_lies_between_markers_is_read_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction leaves a range of one offset behind: to begin at each takes hours."""
    consumer = Consumer(100_500, step=700)
    markers = [(at, at + 1) for at in range(10, 10_000, 10)]
    found = await read(monkeypatch, consumer, [*markers, (100_000, 101_000)])
    assert found == [*range(10, 10_000, 10), *range(100_000, 100_500)]
    assert consumer.seeks == [10, 100_000]


@in_virtual_time
async def test_a_log_that_hands_out_nothing_more_is_not_read_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_ranges, "_STALLED_S", 0.05)
    with pytest.raises(RetriableError, match=r"^cluster us: orders-0 could not be read from offset 10 for .* run this"):
        await read(monkeypatch, Consumer(20, stops_at=10), [(0, 20)])


async def test_a_log_that_loses_its_end_meanwhile_is_not_read_from_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = Consumer(20, stops_at=10, error=OffsetOutOfRangeError())
    with pytest.raises(RetriableError, match=r"^cluster us: orders-0 has lost offset 10 .* run this again"):
        await read(monkeypatch, lost, [(5, 20)])


async def test_what_is_deleted_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await read(monkeypatch, Consumer(20, start=12), [(5, 8), (10, 15)]) == [12, 13, 14]


@pytest.mark.parametrize(("end", "has_some"), [(12, True), (25, None), (5, False)])
async def test_what_is_not_decided_yet_may_be_asked_for(
    monkeypatch: pytest.MonkeyPatch, end: int, has_some: bool | None
) -> None:
    """A transaction is open behind 20."""
    monkeypatch.setattr(log_ranges, "reader", Consumer(20).reader)
    if has_some is None:
        with pytest.raises(RetriableError, match="orders-0 is stable only up to offset 20"):
            await has_records(US, ORDERS, 5, end, is_decided=True)
    else:
        assert await has_records(US, ORDERS, 5, end, is_decided=True) == has_some
    assert await has_records(US, ORDERS, 5, max(end, 6))
