"""Asks a cluster what became of a log that refuses a position it once held."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Final

from connect.core.errors import RetriableError
from connect.kafka.cluster import Cluster, TopicMetadata
from connect.kafka.offsets import EARLIEST, LATEST, list_offset
from connectors.dataplane import verdicts
from connectors.dataplane.copier import PartitionCopier
from connectors.dataplane.plan import PartitionPlan
from connectors.dataplane.verdicts import Verdict
from connectors.gaps import UNKNOWN

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
        return verdicts.source_truncated(source, read_to, *diverging)
    start = await list_offset(cluster, source, EARLIEST)
    end = await list_offset(cluster, source, LATEST)
    if read_to < start:
        return verdicts.source_gap(source, read_to, start)
    if read_to > end:
        return verdicts.source_shorter(source, read_to, end)
    return None


async def explain_target(cluster: Cluster, copier: PartitionCopier, why: Exception) -> Verdict:
    """What became of a target that no longer knows what it had acknowledged. Errors as :func:`explain_source`."""
    plan = copier.plan
    if gone := await explain_topic(cluster, "target", plan, copier.next_source_offset):
        return gone
    end = await list_offset(cluster, plan.target, LATEST)
    return verdicts.target_truncated(
        plan.target, copier.target_end, end, plan.source, copier.next_source_offset, str(why)
    )


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
    return verdicts.of_topic(side, topic, (name, topic_id), plan.source, next_source_offset, known_end)


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
