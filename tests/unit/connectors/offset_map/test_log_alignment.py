"""Two logs laid side by side: what is claimed is true, whatever copying, retention and cleaners left of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.offset_map.log_alignment import Item, LogSide, ProvenMap, SideBySide, digest, embedded
from connectors.offset_map.runs_and_chunks import MapPair, MapRun, OffsetLocation, RunList, decode_chunk

PAIR = MapPair("orders", UUID(int=1), 0, "us.orders", UUID(int=2), 0)


def item(offset: int, content: str) -> Item:
    return Item(offset, digest(None, content.encode(), [], 0))


def items(contents: str, first: int = 0) -> list[Item]:
    """A record a letter; a dot is an offset without one."""
    return [item(first + at, letter) for at, letter in enumerate(contents) if letter != "."]


def found_in(found: ProvenMap) -> RunList:
    return RunList(run for upstream, value in found.chunks(PAIR) for run in decode_chunk(upstream, value))


def lay(source: Sequence[Item], target: Sequence[Item], top: tuple[int, int], window: int = 8) -> ProvenMap:
    found = ProvenMap()
    log = SideBySide(top, found, window)
    left = {LogSide.SOURCE: source[::-1], LogSide.TARGET: target[::-1]}
    turns = 0
    while not log.is_done:
        turns += 1
        assert turns < 10_000, "it comes to an end"
        for side in LogSide:
            while log.wants(side):
                log.take(side, left[side][:3])
                left[side] = left[side][3:]
                if not left[side]:
                    log.end(side)
        log.settle()
    return found


def runs(source: str, target: str, top: tuple[int, int] | None = None, window: int = 8) -> list[MapRun]:
    return list(found_in(lay(items(source), items(target), top or (len(source), len(target)), window)))


def test_a_plain_copy_is_one_run() -> None:
    letters = items("abcdefghijklmnopqrstuvwxyz")
    found = lay(letters, letters, (26, 26))
    assert list(found_in(found)) == [MapRun(0, 0, 26)]
    assert (len(found), found.records) == (1, 26)


def test_markers_on_either_side_begin_runs() -> None:
    assert runs("abc.def.ghi", "abcd.ef.ghi") == [MapRun(0, 0, 3), MapRun(4, 3, 1), MapRun(5, 5, 2), MapRun(8, 8, 3)]


def test_equal_records_between_others_are_told_by_their_place() -> None:
    assert runs("axxxb", "axxxb") == [MapRun(0, 0, 5)]


def test_what_was_copied_twice_counts_the_first_time() -> None:
    """Beyond it is the map's beginning: the last records before a take-over from Java may be there twice."""
    assert runs("abcd", "abcdcd") == [MapRun(0, 0, 4)]


def test_of_equal_records_of_which_some_are_gone_no_reader_misses_one() -> None:
    assert runs("axxb", "axb") == [MapRun(0, 0, 1), MapRun(2, 1, 2)]
    assert embedded(items("xxyyy"), items("xy")) == [(item(1, "x"), item(0, "x")), (item(4, "y"), item(1, "y"))]


def test_below_a_hole_nothing_is_claimed() -> None:
    """Of x and y on either side nobody can say whose copies they are, or whether they are any."""
    assert runs("abxyxycd", "abyxyxcd") == [MapRun(6, 6, 2)]


def test_what_the_cleaner_took_from_the_target_stood_where_there_is_room_for_it() -> None:
    assert runs("abcdefgh", "a...efgh") == [MapRun(0, 0, 8)]
    both_lack = runs("ab.def.h", "a..d.f.h")
    assert both_lack == [MapRun(0, 0, 1), MapRun(3, 3, 3), MapRun(7, 7, 1)], "not where the source has none"
    assert runs("abcdefgh", "a..efgh") == [MapRun(0, 0, 1), MapRun(4, 3, 4)]
    assert runs("pxxbcdxxq", "pxx...xxq") == [MapRun(0, 0, 9)], "also between records that are no anchors"
    assert runs("abcd", "axyd") == [MapRun(0, 0, 1), MapRun(3, 3, 1)], "not where the target has others"


def test_a_source_that_retention_cut_and_a_target_that_it_cut() -> None:
    assert runs("......ghijklmnop", "abcdefghijklmnop", window=6) == [MapRun(6, 6, 10)]
    assert runs("abcdefghijklmnop", "......ghijklmnop", window=6) == [MapRun(6, 6, 10)]


def test_many_records_that_only_one_log_has_are_passed_over() -> None:
    many = "".join(chr(200 + at) for at in range(100))
    assert runs(f"ab{many}cd", "abcd", window=6) == [MapRun(0, 0, 2), MapRun(102, 2, 2)]
    assert runs("abcd", f"ab{many}cd", window=6) == [MapRun(0, 0, 2), MapRun(2, 102, 2)]
    found = runs("abcfbbfdfdcf", "abcfbbfd", window=4)
    assert found == [MapRun(0, 0, 1), MapRun(5, 1, 1), MapRun(10, 2, 2)], "they are not compared again"


def test_more_than_the_window_on_both_sides_is_a_hole() -> None:
    one, other = ("".join(chr(first + at) for at in range(50)) for first in (200, 300))
    assert runs(f"ab{one}cd", f"ab{other}cd", window=6) == [MapRun(52, 52, 2)]


def test_equal_records_that_fill_the_window_are_a_hole() -> None:
    """Nobody can say which of them are copies of which."""
    equal, many = 30 * "x", "".join(chr(200 + at) for at in range(100))
    assert runs(f"ab{equal}cd", f"ab{equal}cd", window=6) == [MapRun(32, 32, 2)]
    assert runs(f"ab{many}xcd", "abxxcd", window=6) == [MapRun(103, 4, 2)]
    assert runs(f"ab{many}yycd", "abycd", window=6) == [MapRun(104, 3, 2)]
    assert runs("baab", "b", window=4) == [], "the window shows both"


def test_nothing_in_common_is_no_map() -> None:
    assert runs("abcdef", "uvwxyz") == []
    assert runs("", "uvwxyz") == []
    assert runs("aaaa", "aaaa") == [], "without an anchor below them equal records prove nothing"


def test_crossed_anchors_are_none() -> None:
    assert embedded(items("bc"), items("cb")) is None
    assert runs("abcd", "acbd") == [MapRun(3, 3, 1)]
    assert runs("wabcz", "wbcaz") == runs("wbcaz", "wabcz") == [MapRun(4, 4, 1)], "however far what they cross is"
    assert runs("abcz", "bcaz") == runs("bcaz", "abcz") == [MapRun(3, 3, 1)], "also the lowest"


def test_the_newest_is_kept_where_it_is_too_much() -> None:
    found = ProvenMap(max_runs=2)
    SideBySide((9, 9), found)
    for at in (30, 20, 10):
        if not found.is_full:
            found.add_below(MapRun(2 * at, at, 1))
    assert list(found_in(found)) == [MapRun(40, 20, 1), MapRun(60, 30, 1)]


def test_what_stands_above_as_well_is_no_anchor() -> None:
    """c and a were copied twice, and the copier went back for it: the first a of them is no copy of the a before b."""
    source, target = 17 * "a" + 5 * "b" + "c" + 5 * "a", 17 * "a" + 5 * "b" + "ca" + "c" + 5 * "a"
    assert [run for run in runs(source, target, window=4) if run.upstream < 17] == []


@pytest.mark.parametrize(
    ("source", "target", "many", "begins"),
    [
        ("x{}x", "x{}x", 24, 1),
        ("x{}", "x{}x", 24, 1),
        ("x{}x", "x{}", 32, 1),
        ("x{}x", "x{}x", 35, 0),
        ("x{}x", "x{}", 33, 0),
    ],
)
def test_what_one_log_has_shortly_above_is_no_anchor(source: str, target: str, many: int, begins: int) -> None:
    """It may be a second copy; what is far above is forgotten."""
    others = "".join(chr(200 + at) for at in range(many))
    found = runs(source.format(others), target.format(others), window=4)
    assert found[0].upstream == found[0].downstream == begins


def test_what_was_passed_over_above_is_no_anchor() -> None:
    others, passed = "".join(chr(200 + at) for at in range(12)), "".join(chr(300 + at) for at in range(30))
    assert runs(f"x{others}{passed}x{passed.upper()}cd", f"x{others}cd", window=6)[0] == MapRun(1, 1, 12)


def test_what_was_written_twice_is_told_by_the_later_of_either_log() -> None:
    """A replay with the times of old: the first of both is gone from one log."""
    assert runs("abcdefabcdef", "......abcdef") == [MapRun(6, 6, 6)]
    assert runs("......abcdef", "abcdefabcdef") == [MapRun(6, 6, 6)]


class Copy(NamedTuple):
    """A record, of which the source has one and the target as many as were written."""

    number: int
    content: str


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[tuple[int, Copy]], list[tuple[int, Copy]], tuple[int, int]]:
    """What is left of both logs. The source has few contents and gaps; the copier leaves contents out that the target
    refuses, goes back now and then and copies again, writes markers. Either log loses what comes first, and cleaners
    take, of equal records, the earlier first."""
    alphabet = draw(st.sampled_from(["ab", "abcdef", "".join(chr(0x4E00 + at) for at in range(400))]))
    copies = [Copy(at, draw(st.sampled_from(alphabet))) for at in range(draw(st.integers(0, 30)))]
    source, at = [], 0
    for one in copies:
        at += draw(st.integers(1, 2))
        source.append((at, one))
    target: list[tuple[int, Copy]] = []
    end, following, refused = 0, 0, draw(st.sampled_from(["", alphabet[0]]))
    while following < len(copies):
        step = draw(st.sampled_from(["copy"] * 8 + ["back", "marker"]))
        if step == "back" and draw(st.booleans()):
            following = max(following - draw(st.integers(1, 4)), 0)
        elif step == "marker":
            end += 1
        elif copies[following].content == refused:
            following += 1
        else:
            target.append((end, copies[following]))
            end, following = end + 1, following + 1
    left, there = (maybe_compacted(draw, log) for log in (source, target))
    return left, there, (at + 1, end)


def maybe_compacted(draw: st.DrawFn, log: list[tuple[int, Copy]]) -> list[tuple[int, Copy]]:
    start = draw(st.integers(0, 15))
    count = Counter(copy.content for _, copy in log)
    taken = {content: draw(st.integers(0, count[content])) for content in draw(st.sets(st.sampled_from([*count, ""])))}
    seen: Counter[str] = Counter()
    kept = []
    for offset, copy in log:
        seen[copy.content] += 1
        if offset >= start and seen[copy.content] > taken.get(copy.content, 0):
            kept.append((offset, copy))
    return kept


@given(histories(), st.integers(4, 30))
def test_what_is_claimed_is_true(
    history: tuple[list[tuple[int, Copy]], list[tuple[int, Copy]], tuple[int, int]], window: int
) -> None:
    left, there, top = history
    ours, theirs = ([item(offset, copy.content) for offset, copy in log] for log in (left, there))
    mapped = found_in(lay(ours, theirs, top, window))
    if not mapped.first:
        return
    target = dict(there)
    readable = [(offset, copy) for offset, copy in left if offset >= mapped.first.upstream]
    for at, (offset, copy) in enumerate(readable):
        reported = mapped.forward(offset)
        assert reported is not None
        # Right behind a run somebody goes on, though what stands there may be no copy of what follows.
        if any(run.upstream <= offset < run.upstream_end for run in mapped) and reported.offset in target:
            assert target[reported.offset].content == copy.content
        begins = reported.offset if reported.place is not OffsetLocation.BEYOND else top[1]
        contents = [one.content for place, one in there if place >= begins]
        for later in (one for _, one in readable[at:]):
            if any(one.number == later.number for _, one in there):
                assert later.content in contents, "whoever begins there misses nothing that is there"


@given(st.data())
def test_records_that_are_all_different_are_told_exactly(data: st.DataObject) -> None:
    """Where nothing was copied twice, each record that is on both sides is found, down to the first of them."""
    count = data.draw(st.integers(1, 30))
    gaps = data.draw(st.lists(st.integers(1, 3), min_size=2 * count, max_size=2 * count))
    kept = data.draw(st.lists(st.sampled_from([(1, 1)] * 6 + [(1, 0), (0, 1)]), min_size=count, max_size=count))
    up = down = 0
    source, target, wanted = [], [], []
    for at in range(count):
        up, down = up + gaps[2 * at], down + gaps[2 * at + 1]
        is_here, is_there = kept[at]
        source += [item(up, chr(0x4E00 + at))] * is_here
        target += [item(down, chr(0x4E00 + at))] * is_there
        wanted += [MapRun(up, down, 1)] * (is_here and is_there)
    found = found_in(lay(source, target, (up + 1, down + 1), window=count + 1))
    assert (found.first or MapRun(-1, -1, 1))[:2] == (wanted or [MapRun(-1, -1, 1)])[0][:2]
    for run in wanted:
        assert found.forward(run.upstream) == (run.downstream, OffsetLocation.INSIDE)
        assert found.reverse(run.downstream) == (run.upstream, OffsetLocation.INSIDE)
