"""What a start would meet in the logs of a partition, and what it would do about it: judged as a task judges it, by
:mod:`connectors.source.standing` and the flow's policies, on an entry that is thrown away. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from connect.kafka.cluster import TopicMetadata
from connectors.dataplane import verdicts
from connectors.dataplane.plan import TopicPartition
from connectors.gaps import Gap, GapKind, GapPolicy
from connectors.offset_map import Run
from connectors.source.gap_policy import rewound
from connectors.source.ledger import Entry, Pair
from connectors.source.reach import target_of
from connectors.source.standing import refuse_topic, refuse_truncated
from connectors.source.store import Start

_OF_SOURCE_LOG: Final = (GapKind.SOURCE_GAP, GapKind.SOURCE_TRUNCATED)


@dataclass(frozen=True, slots=True)
class Met:
    """Something that a run meets.

    Args:
        state: What happened, as the state of a partition is called that stopped of it.
        told: The same in words, with what a run does.
        stops: Whether the partition stops there; else it goes on at source offset ``goes_on_at``.
    """

    state: str
    told: str
    stops: bool
    goes_on_at: int = -1


def judged(
    source: TopicPartition,
    target: TopicPartition,
    start: Start,
    topics: tuple[TopicMetadata, TopicMetadata | None],
    target_end: int | None,
) -> Entry:
    """An entry that is stopped where the stored position does not speak of these logs. ``topics``: of both sides;
    ``target_end``: None where nobody knows."""
    here, there = topics
    entry = Entry(Pair(source, here.topic_id, target, there.topic_id if there else None))
    refuse_topic("source", entry, start, here)
    position = None if start.moved else start.position
    if entry.is_stopped or position is None or target_of(position) != target:
        return entry
    refuse_topic("target", entry, start, there)
    if entry.gap is None and target_end is not None:
        refuse_truncated(entry, position, target_end)
    return entry


def met_at_start(
    entry: Entry, start: Start, policy: GapPolicy, log_start: int, newest_runs: Sequence[Run]
) -> Met | None:
    """Of an entry that was ``judged``. ``newest_runs``: of the position's map, where its target was truncated;
    ``log_start``: of the source."""
    gap, position = entry.gap, start.position
    if gap is None or position is None:
        return None
    happened = verdicts.facts(entry.reason)
    if gap.kind is GapKind.TARGET_TRUNCATED:
        back = rewound(newest_runs, gap.target_first)
        if back is None:
            return Met(gap.state, f"{happened}; a run stops there, as the offset map does not tell which", stops=True)
        told = f"{happened}; a run copies them again from source offset {back.upstream} on"
        return Met(gap.state, told, stops=False, goes_on_at=back.upstream)
    # The connector makes a remote topic that is gone before a task looks at it.
    meant = replace(gap, kind=GapKind.TARGET_RECREATED) if gap.kind is GapKind.TARGET_DELETED else gap
    return _decided(meant, happened, policy, log_start)


def met_by_reading(source: TopicPartition, next_offset: int, log_start: int, end: int, policy: GapPolicy) -> Met | None:
    """Where the source's log does not have the offset that is to be copied next."""
    if next_offset < log_start:
        gap = verdicts.source_gap(source, next_offset, log_start).gap
        happened = f"{log_start - next_offset} offsets from {next_offset} on are gone"
    elif next_offset > end:
        gap = verdicts.source_shorter(source, next_offset, end).gap
        happened = f"the source ends at {end}, and offset {next_offset} is to be copied next"
    else:
        return None
    assert gap is not None, "a verdict on a log names its gap"
    return _decided(gap, happened, policy, gap.go_on_at)


def _decided(gap: Gap, happened: str, policy: GapPolicy, goes_on_at: int) -> Met:
    if gap.kind in _OF_SOURCE_LOG:
        setting = f"on.source.gap={policy.on_source_gap}"
    else:
        setting = f"on.topic.recreated={policy.on_topic_recreated}"
    if policy.goes_on(gap):
        told = f"{happened}; a run goes on at source offset {goes_on_at} ({setting})"
        return Met(gap.state, told, stops=False, goes_on_at=goes_on_at)
    return Met(gap.state, f"{happened}; a run stops there ({setting})", stops=True)
