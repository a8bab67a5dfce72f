"""Which records only one cluster holds, as ranges of offsets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

from hypothesis import given
from hypothesis import strategies as st

from connectors.failover.own import Range, merged, without

OVERLAPPING = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)).map(lambda one: (one[0], sum(one)))).map(sorted)
RANGES = OVERLAPPING.map(merged)


@given(RANGES, st.one_of(RANGES, OVERLAPPING))
def test_what_is_left_of_ranges_is_what_no_other_covers(ranges: list[Range], others: list[Range]) -> None:
    left = without(ranges, others)
    assert [at for one in left for at in range(*one)] == sorted(offsets(ranges) - offsets(others))
    assert all(begin < end for begin, end in left)


@given(RANGES, st.integers(0, 70), st.integers(0, 70))
def test_between_two_offsets_is_what_no_range_covers(ranges: list[Range], begin: int, end: int) -> None:
    found = [at for one in without([(begin, end)], ranges) for at in range(*one)]
    assert found == sorted(set(range(begin, end)) - offsets(ranges))


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
