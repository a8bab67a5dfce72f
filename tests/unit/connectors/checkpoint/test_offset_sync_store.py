"""Offsets translated by syncs: Java's vectors (``OffsetSyncStoreTest``) and what its store promises."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.checkpoint.offset_translation import TOO_OLD, OffsetSyncStore
from connectors.formats.mirror_records import OffsetSync
from connectors.formats.types import TopicPartition

ORDERS = TopicPartition("orders", 2)


def sync(upstream: int, downstream: int) -> OffsetSync:
    return OffsetSync("orders", 2, upstream, downstream)


def store(*syncs: tuple[int, int], only_last: bool = False) -> OffsetSyncStore:
    made = OffsetSyncStore(only_last=only_last)
    for offsets in syncs:
        made.take(sync(*offsets))
    made.read_to_end()
    return made


def test_javas_vectors() -> None:
    one = store((100, 200))
    assert one.translate(ORDERS, 150) == 201
    one.take(sync(150, 251))
    assert [one.translate(ORDERS, offset) for offset in (150, 151, 5)] == [251, 252, TOO_OLD]
    one.take(sync(200, 10))
    assert [one.translate(ORDERS, offset) for offset in (200, 250)] == [10, 11]
    one.take(sync(20, 20))
    assert [one.translate(ORDERS, offset) for offset in (20, 200)] == [20, 21]


@pytest.mark.parametrize("only_last", [True, False], ids=["from the last one", "from all that are there"])
def test_javas_tables_of_1000_to_10000_offsets(only_last: bool) -> None:
    """``testPastOffsetTranslation``, and ``...WithoutInitializationReadToEnd``: which syncs are kept."""
    if only_last:
        first, at_start = 1_010, [(TOO_OLD, 1000)]
        kept_later = [1000, 4840, 6760, 8680, 9160, 9640, 9880, 9940, 9970, 9990, 10000]
    else:
        first, at_start = 1_000, [(0, 480), (480, 720), (990, 1000)]
        kept_later = [0, 3840, 7680, 8640, 9120, 9600, 9840, 9900, 9960, 9990, 10000]
    later = [*at_start[:only_last], *pairwise(kept_later)]
    one = store(*((offset, offset) for offset in range(0, 1001, 10)), only_last=only_last)
    for table, more in ((at_start, range(0)), (later, range(first, 10_001, 10))):
        for offset in more:
            one.take(sync(offset, offset))
        for previous, kept in table:
            below = TOO_OLD if previous == TOO_OLD else previous + 1
            translated = [one.translate(ORDERS, offset) for offset in range(kept - 1, kept + 3)]
            assert translated == [below, kept, kept + 1, kept + 1]
    one.take(sync(1500, 11_000))
    assert [one.translate(ORDERS, offset) for offset in (1499, 1500, 2000)] == [TOO_OLD, 11_000, 11_001]


@pytest.mark.parametrize(
    ("seed", "kept"),
    [
        (0, [50, 15900, 28628, 31881, 35018, 36019, 37019, 37081, 37131, 37132, 37133]),
        (1, [1, 2, 12640, 25627, 32335, 34478, 35484, 36484, 36500, 36504, 36511, 36512, 36515, 36516]),
        (2, [0, 1, 25400, 31614, 37982, 41143, 42249, 43249, 43256]),
        (3, [2, 3, 13262, 19877, 26341, 29684, 30744, 31744, 31745, 31797, 31798]),
    ],
)
def test_java_keeps_the_same_of_syncs_at_irregular_distances(seed: int, kept: list[int]) -> None:
    """Java's store answered so for these; tests/interop/test_offset_syncs.py asks it about others."""
    chance = random.Random(seed)
    offsets = list(accumulate(chance.choice((0, 1, 1, 2, 3, 7, 50, 1000)) for _ in range(300)))
    one = store(*((offset, offset) for offset in offsets))
    assert [offset for offset in sorted({*offsets}) if one.translate(ORDERS, offset) == offset] == kept


def test_a_sync_of_the_same_offset_leaves_the_older_ones_and_an_earlier_one_does_not() -> None:
    assert store((100, 100), (200, 200), (200, 210)).translate(ORDERS, 150) == 101
    assert store((100, 100), (200, 200), (201, 201), (200, 300)).translate(ORDERS, 150) == TOO_OLD


def test_nothing_is_translated_before_the_end_is_read() -> None:
    one = OffsetSyncStore(only_last=False)
    one.take(sync(1, 1))
    assert one.translate(ORDERS, 1) is None
    one.read_to_end()
    assert one.translate(ORDERS, 1) == 1
    assert one.translate(TopicPartition("orders", 3), 1) is None


def test_only_the_last_sync_of_what_was_there_is_used() -> None:
    one = store((0, 0), (100, 100), only_last=True)
    assert one.translate(ORDERS, 99) == TOO_OLD
    one.take(sync(200, 200))
    assert [one.translate(ORDERS, offset) for offset in (99, 199, 200)] == [TOO_OLD, 101, 200]


@pytest.mark.parametrize(
    ("upstream", "kept"),
    [
        ((0, 1 << 27, (1 << 61) + (1 << 27)), [0, (1 << 61) + (1 << 27)]),
        (range(300), [0, 128, 192, 256, 272, 288, 292, 296, 298, 299]),
        ((1, 1, 1, 7, 11, 13, 13, 15, 27, 31, 35, 37, 49, 49, 53, 54, 57, 61, 67, 71), [1, 27, 57, 61, 67, 71]),
        (
            (
                *(3, 15, 22, 22, 24, 28, 29, 32, 36, 48, 54, 55, 59, 71, 71, 71, 75, 76, 78, 78, 80, 85, 89, 93, 97),
                *(100, 106, 106, 110, 111, 116, 120, 132, 136, 141, 143, 155, 159, 163, 164),
            ),
            [3, 59, 111, 143, 155, 159, 163, 164],
        ),
        (
            (
                *(1, 5, 8, 8, 12, 12, 14, 18, 19, 23, 26, 27, 31, 35, 42, 46, 47, 47, 48, 49, 51, 55, 60, 63, 67, 68),
                *(70, 82, 84, 85, 85, 86, 87, 88, 89, 93, 94, 95, 99, 102),
            ),
            [1, 51, 70, 89, 93, 99, 102],
        ),
    ],
)
def test_the_distance_of_kept_syncs_grows_as_powers_of_two(upstream: Sequence[int], kept: list[int]) -> None:
    """Each answers for its own offset with its own record."""
    one = store(*((offset, 2 * offset) for offset in upstream))
    assert [offset for offset in sorted({*upstream}) if one.translate(ORDERS, offset) == 2 * offset] == kept


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=150), st.integers(0, 50))
def test_the_newest_and_the_oldest_are_kept_and_none_translates_too_far(steps: list[int], ahead: int) -> None:
    upstream, syncs = 0, [(0, ahead)]
    for step in steps:
        upstream += step
        syncs.append((upstream, upstream + ahead))
    one = store(*syncs)
    known = {up for up, _ in syncs}
    previous = -1
    for offset in sorted({0, upstream, upstream + 7, *(known), *(up + 1 for up in known)}):
        translated = one.translate(ORDERS, offset)
        assert translated is not None
        assert previous <= translated <= offset + ahead
        used = translated - ahead
        assert used in known or used - 1 in known
        previous = translated
    assert one.translate(ORDERS, 0) == ahead
    assert one.translate(ORDERS, upstream) == upstream + ahead
