"""Where a partition goes on whose log is not what it was."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast
from uuid import UUID

import pytest

from connect.kafka.cluster import Cluster
from connectors.dataplane import log_divergence
from connectors.formats.gap import Gap, GapKind, GapPolicy, OnSourceGap, OnTopicRecreated
from connectors.formats.position import Position
from connectors.formats.types import TopicPartition
from connectors.internal_topics import PartitionState
from connectors.offset_map.runs_and_chunks import MapRun
from connectors.source.positions import gap_policy
from connectors.source.positions.gap_policy import GapPasser, Rewind, advice, gap_message, partition_facts, rewound
from connectors.source.positions.ledger import Ledger
from connectors.source.positions.partition_pairs import Entry, PartitionPair
from connectors.source.positions.stored_positions import PassedGap, Start

SOURCE, TARGET = TopicPartition("orders", 0), TopicPartition("us.orders", 0)
POSITION = Position(*SOURCE, UUID(int=1), 100, 3, *TARGET, UUID(int=2), 50, "mm2-0", 5, 1, 8)
#: 40 records from 0, ten offsets that were not copied, and 50 more up to the position.
RUNS = (MapRun(0, 0, 30), MapRun(80, 30, 20))
GENEROUS = GapPolicy(OnSourceGap.SKIP, OnTopicRecreated.RESTART)
NO_SOURCE = cast(Cluster, None)


def stopped(gap: Gap | None) -> Any:
    assert gap is not None
    entry = Entry(PartitionPair(SOURCE, UUID(int=1), TARGET, UUID(int=2)))
    entry.stop("for a reason", gap=gap)
    return entry


async def begun(
    monkeypatch: pytest.MonkeyPatch, entry: Entry, start: int, policy: GapPolicy = GENEROUS
) -> dict[TopicPartition, Start]:
    async def list_offsets(_: Cluster, partitions: list[TopicPartition], __: int) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, start)

    monkeypatch.setattr(gap_policy, "list_offsets", list_offsets)
    passer = GapPasser("us->eu", policy, lambda _: RUNS, 1234)
    return await passer.begin(NO_SOURCE, [entry], {SOURCE: Start(POSITION, 99, False)})


async def test_behind_what_the_source_lost(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Which may have become more since the slice saw it."""
    entry = stopped(log_divergence.source_gap(SOURCE, 100, 107).gap)
    found = await begun(monkeypatch, entry, 110)
    assert found[SOURCE] == Start(POSITION, 109, True, True)
    assert entry.is_recovering
    assert (entry.passing.gap.first, entry.passing.gap.last, entry.passing.found_ms) == (100, 109, 1234)
    (said,) = caplog.messages
    assert said.startswith(f"us->eu: {SOURCE} continues at source offset 110: source-gap: source offsets 100 to 109")


async def test_where_the_source_parts_the_map_ends_and_both_sides_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = stopped(log_divergence.source_truncated(SOURCE, 100, 2, 90).gap)
    found = await begun(monkeypatch, entry, 0)
    assert found[SOURCE].committed_source_offset == 89
    assert entry.passing.source_truncated_to == 90
    passed = entry.passing.gap
    assert (passed.first, passed.last, passed.target_first, passed.target_last) == (90, 99, 40, 49)


async def test_what_was_aborted_after_a_slice_told_of_a_gap_is_copied_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under exactly-once the stored position may lie before the gap."""
    truncated = stopped(log_divergence.source_truncated(SOURCE, 130, 2, 120).gap)
    assert (await begun(monkeypatch, truncated, 0))[SOURCE].committed_source_offset == 99
    entry = stopped(log_divergence.source_gap(SOURCE, 120, 150).gap)
    assert (await begun(monkeypatch, entry, 150))[SOURCE].committed_source_offset == 149
    assert entry.passing.gap.lost_offsets == 50


async def test_a_topic_made_anew_begins_at_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = stopped(log_divergence.recreated_topic("source", "orders", UUID(int=9), UUID(int=1), SOURCE, 100, 120).gap)
    assert (await begun(monkeypatch, entry, 4))[SOURCE].committed_source_offset == 3
    assert entry.passing.gap.lost_offsets == 20  # what the old one was seen to have
    target = log_divergence.recreated_topic("target", "us.orders", UUID(int=9), UUID(int=2), SOURCE).gap
    entry = stopped(target)
    assert (await begun(monkeypatch, entry, 4))[SOURCE].committed_source_offset == 3
    assert (entry.passing.gap.first, entry.passing.gap.last) == (0, 3)
    for start, lost in ((0, (-1, -1)), (1, (0, 0))):
        entry = stopped(target)
        await begun(monkeypatch, entry, start)
        assert (entry.passing.gap.first, entry.passing.gap.last) == lost


@pytest.mark.parametrize("kind", [GapKind.SOURCE_GAP, GapKind.SOURCE_RECREATED, GapKind.TARGET_RECREATED])
async def test_by_default_it_stays_stopped(monkeypatch: pytest.MonkeyPatch, kind: GapKind) -> None:
    entry = stopped(Gap(kind, 100, 106, go_on_at=107))
    assert await begun(monkeypatch, entry, 107, GapPolicy()) == {}
    assert entry.is_stopped
    assert entry.state == kind.label


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (50, Rewind(100, 50)),
        (45, Rewind(95, 45)),
        (30, Rewind(30, 30)),
        (12, Rewind(12, 12)),
        (0, None),  # nothing of what is known is left
        (-1, None),  # it has grown again
    ],
)
def test_what_a_truncated_target_still_has(end: int, expected: Rewind | None) -> None:
    assert rewound(RUNS, end) == expected


def test_a_truncated_target_is_copied_to_again_whatever_the_policy() -> None:
    entry = stopped(log_divergence.target_truncated(TARGET, 50, 45, SOURCE, 100, "its end is lower").gap)
    passer = GapPasser("us->eu", GapPolicy(), lambda _: RUNS, 1234)
    found = passer.rewind([entry], {SOURCE: Start(POSITION, 99, False)})
    assert found[SOURCE] == Start(POSITION, 94, True, True)
    assert entry.passing.target_truncated_to == 45


def test_one_of_which_the_logs_say_nothing_any_more_stays_stopped() -> None:
    """A slice was told of it, and at the take-over nothing shows where it was."""
    entry = stopped(Gap(GapKind.TARGET_TRUNCATED, last=99, target_last=49))
    entry.resume_past_gap()
    passer = GapPasser("us->eu", GapPolicy(), lambda _: RUNS, 1234)
    assert passer.rewind([entry], {SOURCE: Start(POSITION, 99, False)}) == {}
    assert entry.state == "target-truncated"


@pytest.mark.parametrize(("end", "goes_on"), [(101, True), (107, True), (100, False), (99, False), (-1, False)])
def test_what_was_not_committed_may_be_gone(end: int, goes_on: bool) -> None:
    """A slice was acknowledged more than its last commit, up to 110; the target's log ended at ``end`` then."""
    entry = stopped(Gap(GapKind.TARGET_TRUNCATED, last=119, target_first=end, target_last=109))
    entry.resume_past_gap()
    position = replace(POSITION, target_end=100, is_atomic=True)
    passer = GapPasser("us->eu", GapPolicy(), lambda _: [MapRun(0, 0, 100)], 1)
    assert passer.rewind([entry], {SOURCE: Start(position, 99, False)}) == {}
    assert entry.is_stopped is not goes_on


def test_what_has_stopped_and_may_continue_waits_for_the_takeover() -> None:
    gap = Gap(GapKind.SOURCE_GAP, 100, 106, go_on_at=107)
    running = Entry(PartitionPair(SOURCE, UUID(int=1), TARGET, UUID(int=2)), state="running", gap=gap)
    entries = [stopped(gap), stopped(Gap(GapKind.TARGET_TRUNCATED)), running]
    GapPasser("us->eu", GENEROUS, lambda _: RUNS, 1).resume_past_gap(entries)
    assert [one.is_recovering for one in entries] == [True, False, False]


def test_a_truncated_target_is_left_alone_where_it_was_decided_or_never_copied() -> None:
    gap = log_divergence.target_truncated(TARGET, 50, 45, SOURCE, 100, "its end is lower").gap
    passer = GapPasser("us->eu", GapPolicy(), lambda _: RUNS, 1234)
    for start in (Start(POSITION, 99, False, decided=True), Start(None, None, False)):
        assert passer.rewind([stopped(gap)], {SOURCE: start}) == {}


@pytest.mark.parametrize(
    ("gap", "message"),
    [
        (
            Gap(GapKind.TARGET_TRUNCATED, 95, 99, 45, 49),
            "target-truncated: source offsets 95 to 99 are copied again (target offsets 45 to 49)",
        ),
        (
            Gap(GapKind.SOURCE_TRUNCATED, 0, 9, 0, 9),
            "source-truncated: the source lost offsets 0 to 9 after they were copied (target offsets 0 to 9)",
        ),
        (Gap(GapKind.SOURCE_GAP, 100, 99), "source-gap: no offsets are known to be lost"),
        (Gap(GapKind.SOURCE_RECREATED, last=5), "source-recreated: no offsets are known to be lost"),
        (Gap(GapKind.SOURCE_GAP, 100, 100), "source-gap: source offsets 100 to 100 are lost, 1 in all"),
    ],
)
def test_a_gap_is_described_for_the_log(gap: Gap, message: str) -> None:
    assert gap_message(gap) == message


def test_the_gap_is_stored_with_the_position_behind_it_and_again_after_an_error() -> None:
    ledger = Ledger([PartitionPair(SOURCE, UUID(int=1), TARGET, UUID(int=2))])
    entry = ledger.entries[SOURCE]
    gap = Gap(GapKind.SOURCE_GAP, 100, 106, go_on_at=107)
    entry.passing = PassedGap(1234, gap, source_truncated_to=100)
    ledger.begin(SOURCE, POSITION)
    assert entry.lost == 7
    (commit,) = ledger.take_commits()
    assert commit.passing == PassedGap(1234, gap, source_truncated_to=100)
    ledger.give_back([commit])
    assert list(ledger.take_commits()) == [commit]
    assert not list(ledger.take_commits())


def test_only_what_stopped_at_a_gap_may_continue_behind_an_offset() -> None:
    states = {
        SOURCE: PartitionState("source-gap", "a reason", TARGET.topic, 1, Gap(GapKind.SOURCE_GAP)),
        TopicPartition("orders", 1): PartitionState("QUARANTINED", "refused", TARGET.topic, 1),
    }
    facts = partition_facts("MirrorSourceConnector", "us", states)
    assert [(one.source, bool(one.advice)) for one in facts] == [(SOURCE, True), (TopicPartition("orders", 1), False)]


def test_the_advice_is_what_is_sent_over_rest() -> None:
    said = advice("MirrorSourceConnector", "us", SOURCE)
    assert '{"offsets":[{"partition":{"cluster":"us","topic":"orders","partition":0},"offset":{"offset":N}}]}' in said
