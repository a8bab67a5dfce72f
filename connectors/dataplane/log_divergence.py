"""Ask a cluster why a log refuses a position that it once held, and explain the cause in a sentence and as data.

An explanation names the partition, what was there, what is there now, and how to continue. If no policy handles the
cause, the partition stops with it and its stored position stays, so that a later start finds the same cause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final, NamedTuple
from uuid import UUID

from connect.core.errors import RetriableError
from connect.kafka.cluster import Cluster, TopicMetadata
from connect.kafka.log.offsets import EARLIEST, LATEST, list_offset
from connectors.control_link.protocol import PartitionPlan
from connectors.dataplane.batches.copier import PartitionCopier
from connectors.formats.gap import UNKNOWN, Gap, GapKind
from connectors.formats.types import TopicPartition

_REMEDY: Final = "nothing more is copied until the stored source offset of "


class Verdict(NamedTuple):
    """Why a partition stops: the reason as a sentence, the short name of the fault, and the gap as data."""

    reason: str
    error: str
    gap: Gap | None = None


def of_topic(
    side: str,
    topic: TopicMetadata | None,
    expected: tuple[str, UUID | None],
    source: TopicPartition,
    next_source_offset: int,
    known_end: int = UNKNOWN,
) -> Verdict | None:
    """Explain what happened to a topic of ``side``, source or target; None if it is the ``expected`` (name, id)."""
    name, before = expected
    if topic is None or not topic.exists:
        return deleted(side, name, source, next_source_offset, known_end)
    if before and topic.topic_id and topic.topic_id != before:
        return recreated_topic(side, name, topic.topic_id, before, source, next_source_offset, known_end)
    return None


def recreated_topic(
    side: str,
    topic: str,
    current: UUID,
    before: UUID,
    source: TopicPartition,
    next_source_offset: int = UNKNOWN,
    known_end: int = UNKNOWN,
) -> Verdict:
    """Explain a recreated topic; ``known_end`` is the offset behind the last one seen in the old source."""
    kind = GapKind.SOURCE_RECREATED if side == "source" else GapKind.TARGET_RECREATED
    first = next_source_offset if side == "source" else UNKNOWN
    missing = side == "source" and known_end > next_source_offset >= 0
    lost = f"; its offsets {next_source_offset} to {known_end - 1} are lost" if missing else ""
    return _verdict(
        f"{side} topic {topic} was recreated (topic id {current}, previously {before}){lost}; {_remedy(source)} "
        "(or on.topic.recreated set)",
        Gap(kind, first, known_end - 1 if missing else UNKNOWN, old_id=before, new_id=current),
    )


def deleted(side: str, topic: str, source: TopicPartition, next_source_offset: int, known_end: int = -1) -> Verdict:
    """Explain a deleted topic. There is no remedy, because this is the final state unless the topic is recreated."""
    copied = f"copied up to source offset {next_source_offset - 1}" if next_source_offset else "not copied"
    kind = GapKind.SOURCE_DELETED if side == "source" else GapKind.TARGET_DELETED
    last = known_end - 1 if side == "source" and known_end > next_source_offset else UNKNOWN
    first = next_source_offset if side == "source" else UNKNOWN
    return _verdict(f"{side} topic {topic} does not exist any more; {source} was {copied}", Gap(kind, first, last))


def source_truncated(source: TopicPartition, read_to: int, epoch: int, end: int) -> Verdict:
    """Explain a truncation by leader epoch (KIP-320): ``epoch`` now ends at ``end``, before the next offset to read."""
    return _verdict(
        f"source {source} was truncated: leader epoch {epoch} ends at offset {end}, but offsets up to {read_to - 1} "
        f"had been read, so {read_to - end} copied offsets are no longer there; {_remedy(source)} "
        "(or on.source.gap set)",
        Gap(GapKind.SOURCE_TRUNCATED, end, read_to - 1, go_on_at=end, leader_epoch=epoch),
    )


def source_shorter(source: TopicPartition, read_to: int, end: int) -> Verdict:
    """Explain a truncation that no leader epoch shows."""
    return _verdict(
        f"source {source} was truncated: it ends at offset {end}, but offsets up to {read_to - 1} had been read; "
        f"{_remedy(source)} (or on.source.gap set)",
        Gap(GapKind.SOURCE_TRUNCATED, end, read_to - 1, go_on_at=end),
    )


def source_gap(source: TopicPartition, read_to: int, start: int) -> Verdict:
    return _verdict(
        f"source {source} begins at offset {start} now, and offset {read_to} was to be copied next: retention or a "
        f"deletion removed {start - read_to} offsets that may not have been copied; {_remedy(source)} "
        "(or on.source.gap set)",
        Gap(GapKind.SOURCE_GAP, read_to, start - 1, go_on_at=start),
    )


def source_another(source: TopicPartition, read_to: int, last_epoch: int) -> Verdict:
    """Explain the refusal of an offset in range: the leader does not know the epoch (``Partition.readRecords``)."""
    return _verdict(
        f"source {source} refuses offset {read_to}, which it has: its log has no leader epoch {last_epoch}, "
        f"which was read before, so it is another log; {_remedy(source)}",
        Gap(GapKind.SOURCE_TRUNCATED, leader_epoch=last_epoch),
    )


def target_truncated(
    target: TopicPartition, acknowledged_to: int, end: int, source: TopicPartition, next_source_offset: int, why: str
) -> Verdict:
    """Explain a truncated target; ``acknowledged_to``: behind the last acknowledged offset; ``end``: of the log now."""
    shorter = end < acknowledged_to
    now = f"ends at {end} now" if shorter else f"was written to again since, up to offset {end - 1}"
    return _verdict(
        f"target {target} was truncated: it had acknowledged offsets up to {acknowledged_to - 1}, and {now} ({why}); "
        f"records of {source} before source offset {next_source_offset} are missing there; {_remedy(source)}",
        Gap(
            GapKind.TARGET_TRUNCATED,
            last=next_source_offset - 1,
            target_first=end if shorter else UNKNOWN,
            target_last=acknowledged_to - 1,
        ),
    )


def _verdict(reason: str, gap: Gap) -> Verdict:
    return Verdict(reason, gap.state, gap)


def _remedy(source: TopicPartition) -> str:
    return f"{_REMEDY}{source} is altered or reset"


def facts(reason: str) -> str:
    """Return what happened from a verdict's sentence, without the remedy, for a command that has its own."""
    return reason.partition(f"; {_REMEDY}")[0]


#: A broker that has just started may not know a topic yet, or, before KRaft, any topic.
DELETED_AFTER_S: Final = 10.0
_ASK_AGAIN_S: Final = 0.5


class LeaderChanged(RetriableError):
    """A leader's answer proves nothing, because another broker leads now."""


async def explain_source(
    cluster: Cluster, copier: PartitionCopier, leader_epoch: int, diverging: tuple[int, int] | None
) -> Verdict | None:
    """Find out why a source refuses a copier's position; None if it would accept it now.

    ``leader_epoch`` is that of the leader that refused it; ``diverging`` is (leader epoch, its end) if the leader said
    that its log differs from what was read. Raises LeaderChanged if the refusal came from a former leader, and
    RetriableError if no broker answers.
    """
    plan, read_to = copier.plan, copier.fetch_offset
    source = plan.source
    metadata = await cluster.metadata({source.topic})
    if 0 <= leader_epoch < max(metadata.leader_epoch(*source), copier.last_fetched_epoch):
        raise LeaderChanged(f"the leader of epoch {leader_epoch} of source {source} was replaced")
    if gone := await explain_topic(cluster, "source", plan, read_to, copier.high_watermark):
        return gone
    if diverging is not None:
        return source_truncated(source, read_to, *diverging)
    start = await list_offset(cluster, source, EARLIEST)
    end = await list_offset(cluster, source, LATEST)
    if read_to < start:
        return source_gap(source, read_to, start)
    if read_to > end:
        return source_shorter(source, read_to, end)
    return None


async def explain_target(cluster: Cluster, copier: PartitionCopier, why: Exception) -> Verdict:
    """Explain why a target no longer has what it acknowledged."""
    plan = copier.plan
    if gone := await explain_topic(cluster, "target", plan, copier.next_source_offset):
        return gone
    end = await list_offset(cluster, plan.target, LATEST)
    return target_truncated(plan.target, copier.target_end, end, plan.source, copier.next_source_offset, str(why))


async def explain_topic(
    cluster: Cluster, side: str, plan: PartitionPlan, next_source_offset: int, known_end: int = UNKNOWN
) -> Verdict | None:
    """Explain a deleted or recreated topic of ``side``, source or target; None if it is neither."""
    expected = plan.source.topic, plan.source_topic_id
    if side == "target":
        expected = plan.target.topic, plan.target_topic_id
    topic = (await known_topics(cluster, {expected[0]})).get(expected[0])
    return of_topic(side, topic, expected, plan.source, next_source_offset, known_end)


async def known_topics(
    cluster: Cluster, names: Collection[str], for_s: float = DELETED_AFTER_S
) -> dict[str, TopicMetadata]:
    """Return the existing topics of ``names``; a topic counts as missing only after ``for_s`` of asking."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + for_s
    while True:
        topics = (await cluster.metadata(names)).topics if names else {}
        there = {name: topic for name, topic in topics.items() if topic.exists}
        if len(there) == len(names) or clock() > deadline:
            return there
        await asyncio.sleep(_ASK_AGAIN_S)
