"""Decide whether a partition continues when its log has changed: ``on.source.gap`` and ``on.topic.recreated``.

:mod:`connectors.source.positions.position_checks` and the slices find what happened; this module decides whether the
copy continues, and from which offset. It continues only at a takeover: after a fence, under a new epoch, with its
position stored together with a record of the gap before anything is written. A target that lost acknowledged records
gets them again under any policy, because that loses and doubles none: the offset map has their source offsets.

A topic counts as deleted when no broker knows it for some seconds. If an operator or the connector's refresh creates it
later, that is another topic: then the partition counts as recreated, and ``on.topic.recreated`` decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from connect.core.audit import state_changed
from connect.core.errors import RetriableError
from connect.kafka.cluster import Cluster, TopicMetadata
from connect.kafka.log.offsets import EARLIEST, list_offsets
from connectors.dataplane.log_divergence import Verdict
from connectors.flow_facts import PartitionFacts
from connectors.formats.gap import UNKNOWN, Gap, GapKind, GapPolicy
from connectors.formats.position import Position
from connectors.formats.types import TopicPartition
from connectors.internal_topics import PartitionState
from connectors.offset_map.runs_and_chunks import MapRun, RunList
from connectors.source.positions.partition_pairs import Clusters, Entry
from connectors.source.positions.position_checks import judge
from connectors.source.positions.stored_positions import PassedGap, Start

log = logging.getLogger(__name__)

_FAR: Final = 2**63


class Rewind(NamedTuple):
    """The source offset to copy next, and where the target's map ends."""

    upstream: int
    downstream: int


class GapPasser:
    """Lets entries continue after gaps, at one takeover. ``label``: starts each log line. ``runs_of``: returns the
    newest stored runs of a position's pair, ascending. ``now_ms``: since 1970."""

    def __init__(
        self, label: str, policy: GapPolicy, runs_of: Callable[[Position], Sequence[MapRun]], now_ms: int
    ) -> None:
        self._label, self._policy, self._runs_of, self._now_ms = label, policy, runs_of, now_ms

    def resume_past_gap(self, entries: Sequence[Entry]) -> None:
        """Mark entries that have just stopped and may continue, before :meth:`begin`. If this takeover fails, the next
        one starts them, which would ignore a stopped entry; and no report shows them as stopped."""
        for entry in entries:
            if entry.is_stopped and self._passable(entry) is not None:
                entry.resume_past_gap()

    async def begin(
        self, source: Cluster, entries: Sequence[Entry], known: Mapping[TopicPartition, Start]
    ) -> dict[TopicPartition, Start]:
        """Return where entries start that continue after a gap of their source, or in recreated topics. Raises
        RetriableError if the source does not answer."""
        passed = [(entry, gap) for entry in entries if (gap := self._passable(entry)) is not None]
        starts = await list_offsets(source, [entry.pair.source for entry, _ in passed], EARLIEST) if passed else {}
        found = {}
        for entry, gap in passed:
            start = known[entry.pair.source]
            decided = self._behind(gap, start.position, starts[entry.pair.source])
            found[entry.pair.source] = self._go_on(entry, start, decided)
        return found

    def rewind(self, entries: Sequence[Entry], known: Mapping[TopicPartition, Start]) -> dict[TopicPartition, Start]:
        """Return where entries with a truncated target start. An entry whose map does not cover it stays stopped."""
        found = {}
        for entry in entries:
            gap, start = entry.gap, known[entry.pair.source]
            position = start.position
            if gap is None or gap.kind is not GapKind.TARGET_TRUNCATED or position is None or start.decided:
                continue
            # The marker that committed the position is at its end. If it is still there, the lost records were not
            # committed, and are copied again anyway.
            if entry.is_recovering and position.is_atomic and gap.target_first > position.target_end:
                continue
            back = None if entry.is_recovering else rewound(self._runs_of(position), gap.target_first)
            if back is None:
                entry.stop(entry.reason, gap=gap)
                continue
            decided = replace(gap, first=back.upstream, target_first=back.downstream, go_on_at=back.upstream)
            found[entry.pair.source] = self._go_on(
                entry, start, PassedGap(self._now_ms, decided, target_truncated_to=back.downstream)
            )
        return found

    def _passable(self, entry: Entry) -> Gap | None:
        gap = entry.gap
        passes = gap is not None and gap.kind is not GapKind.TARGET_TRUNCATED and self._policy.goes_on(gap)
        return gap if passes else None

    def _behind(self, gap: Gap, position: Position | None, start: int) -> PassedGap:
        """Return the gap as passed over; ``start``: the source's log start offset now."""
        if gap.kind is GapKind.SOURCE_GAP:
            at = max(gap.go_on_at, start)
            return PassedGap(self._now_ms, replace(gap, first=_reached(gap.first, position), last=at - 1, go_on_at=at))
        if gap.kind is GapKind.SOURCE_TRUNCATED:
            at = max(_reached(gap.go_on_at, position), start)
            decided = replace(gap, go_on_at=at)
            if position and (there := RunList(self._runs_of(position)).forward(gap.first)):
                decided = replace(decided, target_first=there.offset, target_last=position.target_end - 1)
            return PassedGap(self._now_ms, decided, source_truncated_to=gap.first)
        decided = replace(gap, go_on_at=start)
        if gap.kind is GapKind.TARGET_RECREATED and start > 0:
            decided = replace(decided, first=0, last=start - 1)
        return PassedGap(self._now_ms, decided)

    def _go_on(self, entry: Entry, start: Start, passing: PassedGap) -> Start:
        entry.resume_past_gap()
        entry.passing = passing
        gap, source = passing.gap, entry.pair.source
        said, about = "%s: %s continues at source offset %d: %s", (self._label, source, gap.go_on_at, gap_message(gap))
        state_changed(log, logging.WARNING, "gap-skipped", str(source), said, *about)
        return Start(start.position, gap.go_on_at - 1, moved=True, decided=True)


def _reached(offset: int, position: Position | None) -> int:
    """Return ``offset``, or an earlier position, because what a slice had copied at the gap may be aborted since."""
    return min(offset, position.next_source_offset) if position else offset


def rewound(runs: Sequence[MapRun], end: int) -> Rewind | None:
    """Return where a target truncated at ``end`` continues, from the stored ``runs``. None if they do not cover it, or
    if the target has grown again (``end`` is -1)."""
    kept = RunList(runs)
    kept.cut(_FAR, end)
    return Rewind(kept.last.upstream_end, end) if kept.last else None


def gap_message(gap: Gap) -> str:
    """Describe a gap for the log: what is lost, or copied again."""
    target = f" (target offsets {gap.target_first} to {gap.target_last})" if gap.target_first >= 0 else ""
    if gap.kind is GapKind.TARGET_TRUNCATED:
        return f"{gap.state}: source offsets {gap.first} to {gap.last} are copied again{target}"
    if gap.kind is GapKind.SOURCE_TRUNCATED:
        return f"{gap.state}: the source lost offsets {gap.first} to {gap.last} after they were copied{target}"
    if gap.first == UNKNOWN or gap.last < gap.first:
        return f"{gap.state}: no offsets are known to be lost"
    return f"{gap.state}: source offsets {gap.first} to {gap.last} are lost, {gap.lost_offsets} in all"


def advice(connector: str, source_alias: str, source: TopicPartition) -> str:
    """Return how an operator lets a stopped partition continue."""
    key = f'{{"cluster":"{source_alias}","topic":"{source.topic}","partition":{source.partition}}}'
    path = f"/connectors/{connector}"
    return (
        f"to continue after an offset N, over REST: PUT {path}/stop, PATCH {path}/offsets "
        f'{{"offsets":[{{"partition":{key},"offset":{{"offset":N}}}}]}}, PUT {path}/resume'
    )


def partition_facts(
    connector: str, source_alias: str, states: Mapping[TopicPartition, PartitionState]
) -> tuple[PartitionFacts, ...]:
    """Return the facts of partitions that are not copied, by their recorded states."""
    return tuple(
        PartitionFacts(source, one.state, one.reason, advice(connector, source_alias, source) if one.gap else "")
        for source, one in sorted(states.items())
    )


_LOOK_S: Final = 5.0
_GONE: Final = (GapKind.SOURCE_DELETED, GapKind.TARGET_DELETED)


def is_gone(entry: Entry) -> bool:
    """Return whether an entry stopped because its topic was deleted, so that a later check may find it recreated."""
    return entry.is_stopped and entry.gap is not None and entry.gap.kind in _GONE and entry.position is not None


async def look_for_recreated(
    clusters: Clusters, entries: Callable[[], Collection[Entry]], stopped: Callable[[Entry], None]
) -> None:
    """Check entries of deleted topics until cancelled; call ``stopped`` with each entry whose verdict has changed."""
    while True:
        await asyncio.sleep(_LOOK_S)
        with contextlib.suppress(RetriableError):
            for entry, verdict in await returned(clusters.source, clusters.target, entries()):
                # Meanwhile it may have left, or a takeover may have started.
                if is_gone(entry) and any(entry is one for one in entries()):
                    entry.stop(verdict.reason, gap=verdict.gap)
                    stopped(entry)


async def returned(source: Cluster, target: Cluster, entries: Collection[Entry]) -> Sequence[tuple[Entry, Verdict]]:
    """Return the ``entries`` whose deleted topics exist again, with their new verdicts. Raises RetriableError if a
    cluster does not answer."""
    gone = [entry for entry in entries if is_gone(entry)]
    here, there = await asyncio.gather(
        _topics(source, {_partition(entry).topic for entry in gone if _is_of_source(entry)}),
        _topics(target, {_partition(entry).topic for entry in gone if not _is_of_source(entry)}),
    )
    found = []
    for entry in gone:
        topics = here if _is_of_source(entry) else there
        if (verdict := judged(entry, topics.get(_partition(entry).topic))) is not None:
            found.append((entry, verdict))
    return found


async def _topics(cluster: Cluster, names: Collection[str]) -> Mapping[str, TopicMetadata]:
    return (await cluster.metadata(names)).topics if names else {}


def judged(entry: Entry, topic: TopicMetadata | None) -> Verdict | None:
    """Return the verdict on an entry whose deleted topic is now ``topic``; None if nothing has changed."""
    position, partition = entry.position, _partition(entry)
    if position is None or topic is None or partition.partition not in topic.partitions:
        return None
    return judge("source" if _is_of_source(entry) else "target", entry, position, topic)


def _is_of_source(entry: Entry) -> bool:
    return entry.gap is not None and entry.gap.is_of_source


def _partition(entry: Entry) -> TopicPartition:
    return entry.pair.source if _is_of_source(entry) else entry.pair.target
