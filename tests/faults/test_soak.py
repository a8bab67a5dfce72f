"""The soak run's judge finds every fault that is made; and a short run of it, in both modes."""

from __future__ import annotations

import itertools
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.formats.gap import Gap, GapKind, GapRecord
from tests.kit.processes import Role
from tests.kit.soak import lost_ranges, run
from tests.kit.soak_judge import Lost, Seen, judge
from tests.kit.soak_plan import EVERYTHING, Act, Action, actions, feeds

FIRST, SECOND, THIRD = (UUID(int=number) for number in (1, 2, 3))


def log(count: int, keys: int = 10**6, life: int = 0) -> list[Seen]:
    """Records of a source with an offset in five taken by a marker."""
    return [Seen(life, at + at // 4, at % keys, 1000 * life + at) for at in range(count)]


def copied(source: list[Seen]) -> list[Seen]:
    return [seen._replace(life=0, offset=at) for at, seen in enumerate(source)]


SIZES = st.integers(2, 30)


@given(count=SIZES, data=st.data())
def test_each_fault_is_found_and_named(count: int, data: st.DataObject) -> None:
    source = log(count)
    assert judge(source, copied(source)).is_exact
    at = data.draw(st.integers(0, count - 1))
    offset = source[at].offset
    missing = judge(source, copied([*source[:at], *source[at + 1 :]]))
    assert (missing.missing, missing.faults) == (1, [f"source offset {offset} is missing, and no gap record names it"])
    doubled = judge(source, copied([*source[: at + 1], *source[at:]]))
    assert (doubled.doubled, doubled.faults) == (1, [f"target offset {at + 1} is source offset {offset} again"])
    strange = judge(source, copied([*source[:at], Seen(0, 0, 0, -1), *source[at:]]))
    assert (strange.strange, strange.faults) == (1, [f"target offset {at} is no record of the source"])
    swapped = [*source[: at - 1], source[at], source[at - 1], *source[at + 1 :]] if at else None
    assert swapped is None or judge(source, copied(swapped)).disorder == 1


@given(count=SIZES, keys=st.integers(1, 6), data=st.data())
def test_of_compacted_topics_what_was_replaced_may_be_missing(count: int, keys: int, data: st.DataObject) -> None:
    source = log(count, keys)
    last = {seen.key: at for at, seen in enumerate(source)}
    kept = [seen for at, seen in enumerate(source) if at in last.values() or data.draw(st.booleans())]
    verdict = judge(source, copied(kept), compacted=True)
    assert verdict.is_exact
    assert verdict.superseded == count - len(kept)
    at = data.draw(st.sampled_from(sorted(last.values())))
    assert judge(source, copied([seen for seen in kept if seen != source[at]]), compacted=True).missing == 1


@given(count=SIZES, data=st.data())
def test_what_is_missing_is_exactly_what_gap_records_name(count: int, data: st.DataObject) -> None:
    source = log(count)
    first = data.draw(st.integers(0, count - 1))
    last = data.draw(st.integers(first, count - 1))
    lost = [Lost(0, source[first].offset, source[last].offset)]
    left = copied([*source[:first], *source[last + 1 :]])
    assert judge(source, left, lost).is_exact
    assert judge(source, left).missing == last - first + 1
    assert judge(source, copied(source), lost).wrongly_lost == last - first + 1


def test_gap_records_tell_which_topic_of_the_name_they_are_about() -> None:
    def record(found_ms: int, gap: Gap) -> GapRecord:
        return GapRecord("MirrorSourceConnector", "anew", 0, found_ms, gap, "us.anew")

    gaps = [
        record(1, Gap(GapKind.SOURCE_GAP, 3, 4)),
        record(2, Gap(GapKind.SOURCE_RECREATED, 8, -1, old_id=FIRST, new_id=THIRD)),
        record(3, Gap(GapKind.SOURCE_GAP, 0, 5)),
    ]
    lives = [FIRST.hex, SECOND.hex, THIRD.hex]
    assert lost_ranges(gaps, lives) == [Lost(0, 3, 4), Lost(0, 8, None), Lost(1, 0, None), Lost(2, 0, 5)]


def test_a_seed_plays_the_same_plan_and_every_plan_does_everything() -> None:
    played = [list(itertools.islice(actions(seed), 40)) for seed in (5, 5, 6)]
    assert played[0] == played[1] != played[2]
    for plan in played:
        done = [(action.act, action.role, action.side) for action in plan[: len(EVERYTHING)]]
        assert sorted(map(str, done)) == sorted(str((act.act, act.role, act.side)) for act in EVERYTHING)
    assert feeds(5) == feeds(5) != feeds(6)
    assert {feed.fate for feed in feeds(5)} == {feed.fate for feed in feeds(6)}


@pytest.mark.long
@pytest.mark.integration
@pytest.mark.timeout(2400)
@pytest.mark.parametrize(("seed", "exactly_once"), [(1, False), (2, True)])
async def test_a_short_run_is_exact(seed: int, exactly_once: bool, tmp_path: Path) -> None:
    wanted = (
        Action(Act.KILL, Role.WORKER),
        Action(Act.KILL, Role.PYTHON_WORKER),
        Action(Act.FREEZE_BROKER, side="eu"),
        Action(Act.LATE),
        Action(Act.GROW),
        Action(Act.RECREATED),
        Action(Act.CUT, down=True, unread=True),
    )
    report = await run(tmp_path, seed=seed, seconds=0, exactly_once=exactly_once, records_per_s=1_500, wanted=wanted)
    assert not report.faults, report.markdown()
    assert report.total("lost"), "something was cut before it was copied"
