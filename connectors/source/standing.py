"""Whether a stored position still speaks of the logs that are there: a topic deleted or made anew, a target truncated.

Asked before anything is fenced: a marker would move the target's end. An entry of which it does not hold is stopped,
its position left as it is. Where the stored offset was altered since, somebody has decided, and nothing is asked.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from connect.core.errors import RetriableError
from connect.kafka.cluster import Cluster, ClusterMetadata, TopicMetadata
from connect.kafka.offsets import LATEST, list_offsets
from connectors.dataplane import codes, lost, reading, verdicts
from connectors.dataplane.lost import known_topics
from connectors.dataplane.plan import ProducerIdentity, Proof, TopicPartition
from connectors.dataplane.resume import is_another_log
from connectors.gaps import GapKind
from connectors.positions import Position
from connectors.source.ledger import Entry
from connectors.source.store import Start

ASK_AGAIN_S: Final = 0.5
#: One batch, whatever its size.
_ONE_BATCH: Final = reading.FetchLimits(0, 1, 1, 1, reading.READ_UNCOMMITTED)
_AT_ONCE: Final = 32


async def refuse_topics_gone(
    source: Cluster, target: Cluster, entries: Sequence[Entry], starts: Mapping[TopicPartition, Start]
) -> frozenset[str]:
    """Stop entries whose topics were deleted or recreated, and give the others the ids that their topics have now.

    Return which topics are there of those that are written to and those that were. Raise :class:`RetriableError` if a
    cluster does not answer.
    """
    written = {position.target_topic for entry in entries if (position := starts[entry.pair.source].position)}
    here, there = await asyncio.gather(
        known_topics(source, {entry.pair.source.topic for entry in entries}),
        known_topics(target, {entry.pair.target.topic for entry in entries} | written),
    )
    for entry in entries:
        pair, start = entry.pair, starts[entry.pair.source]
        copied, remote = here.get(pair.source.topic), there.get(pair.target.topic)
        if entry.is_healing and entry.gap and entry.gap.old_id:
            told = copied if entry.gap.is_of_source else remote
            if told is not None and told.topic_id == entry.gap.old_id:
                raise RetriableError(f"a broker does not know yet that topic {told.name} was recreated")
        refuse_topic("source", entry, start, copied)
        # A deletion has the last word: a policy may pass over the source's verdict, and would find no target.
        if not entry.is_stopped or (remote is None and entry.gap and entry.gap.kind is GapKind.SOURCE_RECREATED):
            refuse_topic("target", entry, start, remote)
        # Under the id of a recreated topic's predecessor a slice would find the same gap again.
        entry.pair = replace(
            pair,
            source_topic_id=(copied and copied.topic_id) or pair.source_topic_id,
            target_topic_id=(remote and remote.topic_id) or pair.target_topic_id,
        )
    return frozenset(there)


def refuse_topic(side: str, entry: Entry, start: Start, topic: TopicMetadata | None) -> None:
    """Stop an entry whose topic of this ``side`` was deleted, or is not the one that its position is about. An entry
    of which nothing was copied loses nothing, and waits for its topic."""
    position = None if start.moved else start.position
    if position is not None and (verdict := judge(side, entry, position, topic)) is not None:
        entry.position = entry.position or position  # by which it is known when its topic is there again
        _stop(entry, verdict)


def judge(side: str, entry: Entry, position: Position, topic: TopicMetadata | None) -> verdicts.Verdict | None:
    """What became of the entry's topic of a ``side`` since the position was stored; None if it is the same."""
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
    verdict = verdicts.of_topic(side, topic, expected, source, copied_to, end)
    if verdict and of_source and topic and topic.partitions and source.partition not in topic.partitions:
        return verdicts.deleted(side, f"{name} with partition {source.partition}", source, copied_to, end)
    return verdict


async def refuse_truncated_targets(
    target: Cluster, entries: Sequence[Entry], starts: Mapping[TopicPartition, Start]
) -> None:
    """Stop entries whose target's log ends before what it had acknowledged, or was cut there and has grown again.

    The latter is asked of partitions that were handed over; the others are read from there anyhow. A leader that was
    replaced a moment ago may not know it yet and shows less, so a lower end counts once it is the same for as long as a
    missing topic. Raises :class:`RetriableError` if a leader does not answer.
    """
    asked = [(entry, position) for entry in entries if (position := _of_target(entry, starts[entry.pair.source]))]
    clock = asyncio.get_running_loop().time
    until_s = clock() + lost.GONE_AFTER_S
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
    left = deque(asked)

    async def ask() -> None:
        try:
            while left:
                entry, position = left.popleft()
                end = await _end_of_another_log(target, metadata, entry.pair.target, position)
                if end is not None:
                    pair, before, why = entry.pair, position.target_end, "the record before that end is another one"
                    copied_to = position.next_source_offset
                    _stop(entry, verdicts.target_truncated(pair.target, before, end, pair.source, copied_to, why))
        except BaseException:
            left.clear()
            raise

    for ended in await asyncio.gather(*(ask() for _ in range(_AT_ONCE)), return_exceptions=True):
        if ended is not None:
            raise ended


async def _end_of_another_log(
    target: Cluster, metadata: ClusterMetadata, partition: TopicPartition, position: Position
) -> int | None:
    """Where the log ends, if the record before the position's end is not the one that was acknowledged there; None if
    it is, or if it cannot be read: compaction or retention may have taken it, or we may only write there."""
    leader, at = metadata.leader(*partition), position.target_end - 1
    if leader is None:
        raise RetriableError(f"{partition} has no leader now")
    connection = await target.connection(leader, "resume")
    topic = reading.TopicOnWire(partition.topic, position.target_topic_id)
    asked = (at, metadata.leader_epoch(*partition), -1)
    row = await reading.fetch_one(connection, topic, partition.partition, asked, _ONE_BATCH)
    if row.error_code in codes.RETRIABLE:
        raise RetriableError(f"{partition}: its last record cannot be read: {codes.name(row.error_code)}")
    if row.error_code:
        return None
    if row.high_watermark <= at:
        raise RetriableError(f"{partition} does not show all that it has yet")
    writer = ProducerIdentity(position.producer_id, position.producer_epoch)
    proof = Proof(writer, position.next_sequence, is_fenced=False, is_last_ours=True)
    return row.high_watermark if is_another_log(proof, position.target_end, row.records) else None


def refuse_truncated(entry: Entry, position: Position, end: int) -> None:
    """``end``: the target's high watermark. A target that has grown again since is noticed when it is scanned."""
    pair, target_end = entry.pair, position.target_end
    if end < target_end:
        why, next_source_offset = "its end is lower", position.next_source_offset
        _stop(entry, verdicts.target_truncated(pair.target, target_end, end, pair.source, next_source_offset, why))


def _stop(entry: Entry, verdict: verdicts.Verdict) -> None:
    entry.stop(verdict.reason, gap=verdict.gap)


def _of_target(entry: Entry, start: Start) -> Position | None:
    """The stored position, if it is about the entry's target."""
    position = start.position
    if position is None or start.moved:
        return None
    return position if TopicPartition(position.target_topic, position.target_partition) == entry.pair.target else None
