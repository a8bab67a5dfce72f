"""Ask a cluster why a log refuses a position that it once held, and explain the cause in a sentence and as data.

Each explanation says which partition, what was there and what is there now, and how to continue. When no policy
handles the cause, the partition stops with it, and its stored position stays as it is: the evidence by which a later
start sees the same.
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
    """Why a partition stops: the sentence, the short name of the fault, and what happened as data."""

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
    """What became of a topic of a ``side``, source or target; None if it is the ``expected`` one, by name and id."""
    name, before = expected
    if topic is None or not topic.exists:
        return deleted(side, name, source, next_source_offset, known_end)
    if before and topic.topic_id and topic.topic_id != before:
        return made_anew(side, name, topic.topic_id, before, source, next_source_offset, known_end)
    return None


def made_anew(
    side: str,
    topic: str,
    current: UUID,
    before: UUID,
    source: TopicPartition,
    next_source_offset: int = UNKNOWN,
    known_end: int = UNKNOWN,
) -> Verdict:
    """``side`` is source or target; ``known_end`` is behind the last offset that the old source was seen to have."""
    kind = GapKind.SOURCE_RECREATED if side == "source" else GapKind.TARGET_RECREATED
    lost = f"; its offsets {next_source_offset} to {known_end - 1} are lost"
    missing = side == "source" and known_end > next_source_offset >= 0
    return _verdict(
        f"{side} topic {topic} was deleted and made anew (topic id {current}, was {before})"
        f"{lost if missing else ''}; {_remedy(source)} (or on.topic.recreated set)",
        Gap(
            kind,
            next_source_offset if side == "source" else UNKNOWN,
            known_end - 1 if missing else UNKNOWN,
            old_id=before,
            new_id=current,
        ),
    )


def deleted(side: str, topic: str, source: TopicPartition, next_source_offset: int, known_end: int = -1) -> Verdict:
    """It bears the last word on a topic that nobody makes anew, so that names no remedy."""
    copied = f"up to source offset {next_source_offset - 1}" if next_source_offset else "not at all"
    kind = GapKind.SOURCE_DELETED if side == "source" else GapKind.TARGET_DELETED
    last = known_end - 1 if side == "source" and known_end > next_source_offset else UNKNOWN
    first = next_source_offset if side == "source" else UNKNOWN
    return _verdict(
        f"{side} topic {topic} does not exist any more; {source} was copied {copied}", Gap(kind, first, last)
    )


def source_truncated(source: TopicPartition, read_to: int, epoch: int, end: int) -> Verdict:
    """``read_to``: behind the last offset read; ``epoch`` ends at ``end`` in the log as it is now (KIP-320)."""
    return _verdict(
        f"source {source} was truncated: leader epoch {epoch} ends at offset {end}, but offsets up to {read_to - 1} "
        f"had been read, so that {read_to - end} of those copied are no longer there; {_remedy(source)} "
        "(or on.source.gap set)",
        Gap(GapKind.SOURCE_TRUNCATED, end, read_to - 1, go_on_at=end, leader_epoch=epoch),
    )


def source_shorter(source: TopicPartition, read_to: int, end: int) -> Verdict:
    """As :func:`source_truncated` where no leader epoch tells it."""
    return _verdict(
        f"source {source} was truncated: it ends at offset {end}, but offsets up to {read_to - 1} had been read; "
        f"{_remedy(source)} (or on.source.gap set)",
        Gap(GapKind.SOURCE_TRUNCATED, end, read_to - 1, go_on_at=end),
    )


def source_gap(source: TopicPartition, read_to: int, start: int) -> Verdict:
    return _verdict(
        f"source {source} begins at offset {start} now, and offset {read_to} was to be copied next: retention or a "
        f"deletion took {start - read_to} offsets that are not known to be copied; {_remedy(source)} "
        "(or on.source.gap set)",
        Gap(GapKind.SOURCE_GAP, read_to, start - 1, go_on_at=start),
    )


def source_another(source: TopicPartition, read_to: int, last_epoch: int) -> Verdict:
    """The offset is in range and still refused: the leader cannot place the epoch (``Partition.readRecords``)."""
    return _verdict(
        f"source {source} refuses offset {read_to}, which it has: its log knows nothing of leader epoch {last_epoch}, "
        f"which was read before, so it is another log; {_remedy(source)}",
        Gap(GapKind.SOURCE_TRUNCATED, leader_epoch=last_epoch),
    )


def target_truncated(
    target: TopicPartition, acknowledged_to: int, end: int, source: TopicPartition, next_source_offset: int, why: str
) -> Verdict:
    """``acknowledged_to``: behind the last acknowledged offset; ``end``: where the log ends now."""
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
    """Of a verdict's sentence what happened, without what to do about it: for a command that knows another way."""
    return reason.partition(f"; {_REMEDY}")[0]


#: A broker that has just started may not have heard of a topic yet, below KRaft of none at all.
GONE_AFTER_S: Final = 10.0
_ASK_AGAIN_S: Final = 0.5


class LeaderChanged(RetriableError):
    """What a leader answered proves nothing, because another one leads now."""


async def explain_source(
    cluster: Cluster, copier: PartitionCopier, leader_epoch: int, diverging: tuple[int, int] | None
) -> Verdict | None:
    """Find out why a source refuses a copier's position; None if it would take it now.

    ``leader_epoch`` is that of the leader that refused it; ``diverging`` is (leader epoch, its end) if it said that its
    log differs from what was read.

    Raises:
        LeaderChanged: the refusal came from a former leader.
        RetriableError: no broker answers now.
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
    """What became of a target that no longer knows what it had acknowledged. Errors as :func:`explain_source`."""
    plan = copier.plan
    if gone := await explain_topic(cluster, "target", plan, copier.next_source_offset):
        return gone
    end = await list_offset(cluster, plan.target, LATEST)
    return target_truncated(plan.target, copier.target_end, end, plan.source, copier.next_source_offset, str(why))


async def explain_topic(
    cluster: Cluster, side: str, plan: PartitionPlan, next_source_offset: int, known_end: int = UNKNOWN
) -> Verdict | None:
    """Find out whether the topic of a ``side``, source or target, was deleted or recreated; None if it is the one that
    the plan means. Errors as :func:`explain_source`."""
    if side == "source":
        name, topic_id = plan.source.topic, plan.source_topic_id
    else:
        name, topic_id = plan.target.topic, plan.target_topic_id
    topic = (await known_topics(cluster, {name})).get(name)
    return of_topic(side, topic, (name, topic_id), plan.source, next_source_offset, known_end)


async def known_topics(
    cluster: Cluster, names: Collection[str], for_s: float = GONE_AFTER_S
) -> dict[str, TopicMetadata]:
    """The topics of ``names`` that are there; one is given up only after ``for_s`` of asking. Errors as
    :func:`explain_source`."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + for_s
    while True:
        topics = (await cluster.metadata(names)).topics if names else {}
        there = {name: topic for name, topic in topics.items() if topic.exists}
        if len(there) == len(names) or clock() > deadline:
            return there
        await asyncio.sleep(_ASK_AGAIN_S)
