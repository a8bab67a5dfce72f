"""Check before a takeover which partitions can be fenced now, and whether their stored positions still match the logs.

A fence is one transaction over all its partitions: while one marker cannot be written, every request with that
transactional id fails with CONCURRENT_TRANSACTIONS. So a partition without a leader, or with too few in-sync replicas
for a marker, waits and is not fenced with the others. Its position stays as it is, and nothing is written there until
it is taken over separately: between two slices, because its fence raises the epoch of all partitions.

A stored position does not match if a topic was deleted or recreated, or a target was truncated. This is checked before
any fence, because a marker would move the target's end. An entry that does not match is stopped, with its position left
as it is. If the stored offset was altered since, an operator has decided, and nothing is checked.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from connect.core.errors import RetriableError
from connect.kafka.cluster import Cluster, ClusterMetadata, TopicMetadata
from connect.kafka.concurrency import gather_limited
from connect.kafka.log.offsets import LATEST, list_offsets, unknown_ends
from connect.kafka.log.topic_admin import min_insync_replicas
from connectors.dataplane import fetch_api, log_divergence
from connectors.dataplane.batches import error_codes
from connectors.dataplane.log_divergence import known_topics
from connectors.dataplane.resume import is_another_log
from connectors.formats.gap import GapKind
from connectors.formats.position import Position
from connectors.formats.types import ProducerIdAndEpoch, ResumeProof, TopicPartition
from connectors.source.positions.partition_pairs import Entry
from connectors.source.positions.stored_positions import Start

#: How long after a takeover to check whether a waiting partition can be taken over; doubled each time that it could not
#: after all, because a takeover interrupts the copy.
_LOOK_AGAIN_S: Final = 5.0
_MAX_LOOK_AGAIN_S: Final = 300.0
_OUT_OF_DATE_S: Final = 60.0
#: Reasons that an error names if all partitions wait.
_MOST_NAMED: Final = 5


class UnavailablePartitions:
    """Partitions of a task that could not be taken over with the others."""

    def __init__(self, source: Cluster, target: Cluster) -> None:
        self._source, self._target, self._again_s = source, target, _LOOK_AGAIN_S
        self._look_at_s = 0.0
        #: Their stored positions.
        self.starts: Mapping[TopicPartition, Start] = {}
        self._read_s: dict[TopicPartition, float] = {}

    def keep(self, entries: Sequence[Entry], starts: Mapping[TopicPartition, Start]) -> None:
        """Keep the ``entries`` that a takeover has left waiting."""
        self._again_s = min(self._again_s * 2, _MAX_LOOK_AGAIN_S) if entries and self.starts else _LOOK_AGAIN_S
        now_s = asyncio.get_running_loop().time()
        self._look_at_s = now_s + self._again_s
        self.starts = {entry.pair.source: starts[entry.pair.source] for entry in entries}
        self._read_s = {source: self._read_s.get(source, now_s) for source in self.starts}

    def add(self, starts: Mapping[TopicPartition, Start]) -> None:
        """Add waiting partitions, or newer stored positions."""
        if starts:
            self.starts, self._look_at_s = {**self.starts, **starts}, 0.0
            self._read_s |= dict.fromkeys(starts, asyncio.get_running_loop().time())

    def out_of_date(self) -> list[TopicPartition]:
        """Return the partitions whose stored positions were read long ago."""
        now_s = asyncio.get_running_loop().time()
        return [source for source, read_s in self._read_s.items() if now_s - read_s > _OUT_OF_DATE_S]

    def retain(self, entries: Sequence[Entry]) -> None:
        """Forget all stored positions except those of ``entries``, because other tasks may write the others."""
        kept = {entry.pair.source for entry in entries}
        self.starts = {source: start for source, start in self.starts.items() if source in kept}
        self._read_s = {source: read_s for source, read_s in self._read_s.items() if source in kept}

    async def is_back(self, entries: Sequence[Entry]) -> bool:
        """Return whether one of ``entries`` can be taken over now; False if it is too early to check."""
        now_s = asyncio.get_running_loop().time()
        if not entries or now_s < self._look_at_s:
            return False
        self._look_at_s = now_s + _LOOK_AGAIN_S
        with contextlib.suppress(RetriableError):
            return len(await still_unavailable(self._source, self._target, entries, self.starts)) < len(entries)
        return False


async def unavailable(
    source: Cluster, target: Cluster, entries: Sequence[Entry], starts: Mapping[TopicPartition, Start]
) -> dict[TopicPartition, str]:
    """Return why entries cannot be taken over now, by source partition, as messages. Raises :class:`RetriableError` if
    a cluster does not answer."""
    known = {entry.pair.source: starts[entry.pair.source] for entry in entries}
    marked = {one: position.target for one, start in known.items() if (position := start.unclean_position)}
    # For a proof, or for where to start.
    asked = {one for one, start in known.items() if start.committed_source_offset is None or one in marked}
    here, there, least = await asyncio.gather(
        source.metadata({partition.topic for partition in asked}),
        target.metadata({entry.pair.target.topic for entry in entries} | {one.topic for one in marked.values()}),
        min_insync_replicas(target, {one.topic for one in marked.values()}),
    )
    found = {}
    for entry in entries:
        pair = entry.pair
        why = "" if there.leader(*pair.target) is not None else f"target {pair.target} has no leader"
        if not why and pair.source in marked:
            why = _no_marker(there, marked[pair.source], least)
        if not why and pair.source in asked and here.leader(*pair.source) is None:
            why = f"source {pair.source} has no leader"
        if why:
            found[pair.source] = why
    led = {entry.pair.target: entry.pair.source for entry in entries if entry.pair.source not in found}
    unreported = await unknown_ends(target, led) if led else {}
    return found | {led[TopicPartition(*partition)]: f"target {why}" for partition, why in unreported.items()}


def let_wait(entries: Sequence[Entry], away: Mapping[TopicPartition, str], *, may_be_all: bool = False) -> list[Entry]:
    """Let entries ``away`` wait, and return the others. Raises :class:`RetriableError` without others."""
    if away and not may_be_all and all(entry.pair.source in away for entry in entries):
        raise RetriableError("; ".join(sorted(set(away.values()))[:_MOST_NAMED]))
    for entry in entries:
        if why := away.get(entry.pair.source):
            entry.wait(why)
    return [entry for entry in entries if entry.pair.source not in away]


async def still_unavailable(
    source: Cluster, target: Cluster, entries: Sequence[Entry], starts: Mapping[TopicPartition, Start]
) -> dict[TopicPartition, str]:
    """Return :func:`unavailable` without partitions whose topic was deleted: it does not come back, and a takeover
    pairs them with another topic, or reports the deletion."""
    away = await unavailable(source, target, entries, starts)
    pairs = [entry.pair for entry in entries if entry.pair.source in away]
    here, there = await asyncio.gather(
        source.metadata({pair.source.topic for pair in pairs}), target.metadata({pair.target.topic for pair in pairs})
    )
    return {
        pair.source: away[pair.source]
        for pair in pairs
        if _has(here, pair.source.topic) and _has(there, pair.target.topic)
    }


def _has(cluster: ClusterMetadata, name: str) -> bool:
    topic = cluster.topics.get(name)
    return topic is not None and topic.error_code != error_codes.UNKNOWN_TOPIC_OR_PARTITION


def _no_marker(target: ClusterMetadata, partition: TopicPartition, least: Mapping[str, int]) -> str:
    """Return why a fence cannot mark a partition now; empty if it can, or if the topic was deleted."""
    topic = target.topics.get(partition.topic)
    known = topic.partitions.get(partition.partition) if topic else None
    if known is None:
        return ""
    if known.leader < 0:
        return f"target {partition} has no leader"
    wanted = least.get(partition.topic, 1)
    if known.in_sync and len(known.in_sync) < wanted:
        return f"target {partition} has {len(known.in_sync)} of the {wanted} in-sync replicas that a write there needs"
    return ""


ASK_AGAIN_S: Final = 0.5
#: One batch of any size.
_ONE_BATCH: Final = fetch_api.FetchLimits(0, 1, 1, 1, fetch_api.READ_UNCOMMITTED)
_AT_ONCE: Final = 32


async def refuse_deleted_topics(
    source: Cluster, target: Cluster, entries: Sequence[Entry], starts: Mapping[TopicPartition, Start]
) -> frozenset[str]:
    """Stop entries whose topics were deleted or recreated, and give the others the current ids of their topics. Return
    the existing topics of all current and former targets. Raises :class:`RetriableError` if a cluster does not
    answer."""
    written = {position.target_topic for entry in entries if (position := starts[entry.pair.source].position)}
    here, there = await asyncio.gather(
        known_topics(source, {entry.pair.source.topic for entry in entries}),
        known_topics(target, {entry.pair.target.topic for entry in entries} | written),
    )
    for entry in entries:
        pair, start = entry.pair, starts[entry.pair.source]
        copied, remote = here.get(pair.source.topic), there.get(pair.target.topic)
        if entry.is_recovering and entry.gap and entry.gap.old_id:
            reported = copied if entry.gap.is_of_source else remote
            if reported is not None and reported.topic_id == entry.gap.old_id:
                raise RetriableError(f"a broker has not yet learned that topic {reported.name} was recreated")
        refuse_topic("source", entry, start, copied)
        # A deleted target overrides a recreated source: a policy may pass over the latter, and would find no target.
        if not entry.is_stopped or (remote is None and entry.gap and entry.gap.kind is GapKind.SOURCE_RECREATED):
            refuse_topic("target", entry, start, remote)
        # Because with the previous id of a recreated topic a slice would find the same gap again.
        entry.pair = replace(
            pair,
            source_topic_id=(copied and copied.topic_id) or pair.source_topic_id,
            target_topic_id=(remote and remote.topic_id) or pair.target_topic_id,
        )
    return frozenset(there)


def refuse_topic(side: str, entry: Entry, start: Start, topic: TopicMetadata | None) -> None:
    """Stop an entry whose topic on this ``side`` was deleted, or is not the topic of its position. An entry without a
    position loses nothing, and waits for its topic."""
    position = start.unmoved_position
    if position is not None and (verdict := judge(side, entry, position, topic)) is not None:
        entry.position = entry.position or position  # to recognise its topic when it is back
        _stop(entry, verdict)


def judge(side: str, entry: Entry, position: Position, topic: TopicMetadata | None) -> log_divergence.Verdict | None:
    """Return what happened to the entry's topic on a ``side`` since the position was stored; None if it is the same."""
    of_source, source = side == "source", entry.pair.source
    name = (source if of_source else entry.pair.target).topic
    then, topic_id = (
        (position.source_topic, position.source_topic_id)
        if of_source
        else (position.target_topic, position.target_topic_id)
    )
    if then != name:
        return None  # nothing was copied there
    expected = name, topic_id
    copied_to, end = position.next_source_offset, entry.high_watermark
    verdict = log_divergence.of_topic(side, topic, expected, source, copied_to, end)
    if verdict and of_source and topic and topic.partitions and source.partition not in topic.partitions:
        return log_divergence.deleted(side, f"{name} with partition {source.partition}", source, copied_to, end)
    return verdict


async def refuse_truncated_targets(
    target: Cluster, entries: Sequence[Entry], starts: Mapping[TopicPartition, Start]
) -> None:
    """Stop entries whose target's log ends before its acknowledged end, or was truncated there and has grown again. The
    latter is checked only for partitions that were handed over, because a resume reads the others from there. A former
    leader that does not know of its replacement yet may report a lower end, so that counts only after the same time as
    a missing topic. Raises :class:`RetriableError` if a leader does not answer."""
    asked = [(entry, position) for entry in entries if (position := _of_target(entry, starts[entry.pair.source]))]
    clock = asyncio.get_running_loop().time
    until_s = clock() + log_divergence.DELETED_AFTER_S
    while asked:
        ends = await list_offsets(target, [entry.pair.target for entry, _ in asked], LATEST)
        asked = [(entry, position) for entry, position in asked if ends[entry.pair.target] < position.target_end]
        if clock() >= until_s:
            break
        if asked:
            await asyncio.sleep(ASK_AGAIN_S)
    for entry, position in asked:
        refuse_truncated(entry, position, ends[entry.pair.target])
    await _refuse_grown_targets(target, [entry for entry in entries if not entry.is_stopped], starts)


async def _refuse_grown_targets(
    target: Cluster, entries: Sequence[Entry], starts: Mapping[TopicPartition, Start]
) -> None:
    asked = [
        (entry, position)
        for entry in entries
        if (position := _of_target(entry, starts[entry.pair.source])) is not None
        and (position.is_handed_over and position.is_last_ours and position.next_sequence and not position.is_atomic)
    ]
    if not asked:
        return
    metadata = await target.metadata({entry.pair.target.topic for entry, _ in asked})

    async def ask(one: tuple[Entry, Position]) -> None:
        entry, position = one
        end = await _end_of_another_log(target, metadata, entry.pair.target, position)
        if end is not None:
            _stop_truncated(entry, position, end, "the record before that end is another one")

    await gather_limited(ask, asked, _AT_ONCE)


async def _end_of_another_log(
    target: Cluster, metadata: ClusterMetadata, partition: TopicPartition, position: Position
) -> int | None:
    """Return the log's end if the record before the position's end is not the one that was acknowledged there; None if
    it is, or if it cannot be read, because of compaction, retention or a missing READ."""
    leader, at = metadata.leader(*partition), position.target_end - 1
    if leader is None:
        raise RetriableError(f"{partition} has no leader now")
    connection = await target.connection(leader, "resume")
    topic = fetch_api.TopicOnWire(partition.topic, position.target_topic_id)
    asked = (at, metadata.leader_epoch(*partition), -1)
    row = await fetch_api.fetch_one(connection, topic, partition.partition, asked, _ONE_BATCH)
    if row.error_code in error_codes.RETRIABLE:
        raise RetriableError(f"{partition}: its last record cannot be read: {error_codes.code_name(row.error_code)}")
    if row.error_code:
        return None
    if row.high_watermark <= at:
        raise RetriableError(f"the leader of {partition} does not know its high watermark yet")
    writer = ProducerIdAndEpoch(position.producer_id, position.producer_epoch)
    proof = ResumeProof(writer, position.next_sequence, is_fenced=False, is_last_ours=True)
    return row.high_watermark if is_another_log(proof, position.target_end, row.records) else None


def refuse_truncated(entry: Entry, position: Position, end: int) -> None:
    """Stop an entry whose target's high watermark ``end`` is below its position; a scan finds those grown again."""
    if end < position.target_end:
        _stop_truncated(entry, position, end, "its end is lower")


def _stop_truncated(entry: Entry, position: Position, end: int, why: str) -> None:
    pair, before, copied_to = entry.pair, position.target_end, position.next_source_offset
    _stop(entry, log_divergence.target_truncated(pair.target, before, end, pair.source, copied_to, why))


def _stop(entry: Entry, verdict: log_divergence.Verdict) -> None:
    entry.stop(verdict.reason, gap=verdict.gap)


def _of_target(entry: Entry, start: Start) -> Position | None:
    """Return the stored position, if it belongs to the entry's target."""
    position = start.unmoved_position
    return position if position is not None and position.target == entry.pair.target else None
