"""Shutting out who wrote before, where ``connectors.source.takeover`` does not: records that are or were spread."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from connect.core.errors import RetriableError
from connect.kafka.cluster import Cluster, error_name
from connect.kafka.group_offsets import Committed
from connect.kafka.transactions import (
    Superseded,
    TransactionalIdRefused,
    fence,
    init_producer_id,
    new_producer_id,
)
from connectors.dataplane.lost import known_topics
from connectors.dataplane.plan import ProducerIdentity, TopicPartition
from connectors.mirror_maker_1.notes import Spread, decode
from connectors.positions import Position
from connectors.source.takeover import Clusters

log = logging.getLogger(__name__)

#: Two who fence the same id interrupt each other: whoever is interrupted begins again.
_TRIES: Final = 5
_AGAIN_S: Final = 0.3


@dataclass(slots=True)
class Writer:
    """Which target partitions one may still write to, and as whom it did, as far as that is known."""

    partitions: set[TopicPartition] = field(default_factory=set)
    producer_ids: set[int] = field(default_factory=set)


async def writers_of(
    target: Cluster, stored: Mapping[TopicPartition, Committed], *, spreads: bool
) -> dict[str, Writer]:
    """The writers of these positions by transactional id, as far as they have one: of those whose records went to many
    partitions (``spreads``), or of the others. Raises RetriableError where the target does not tell its partitions."""
    found: dict[str, Writer] = {}
    for partition, committed in stored.items():
        note = decode(partition, committed.metadata)
        if note is None or note.is_handed_over or not note.transactional_id or isinstance(note, Spread) is not spreads:
            continue
        writer = found.setdefault(note.transactional_id, Writer())
        if note.producer_id >= 0:
            writer.producer_ids.add(note.producer_id)
        if isinstance(note, Position):
            writer.partitions.add(TopicPartition(note.target_topic, note.target_partition))
        else:
            writer.partitions |= await _all_of(target, note.topics)
    return found


async def shut_out(clusters: Clusters, writers: Mapping[str, Writer]) -> None:
    """Fence these writers. Raises as :func:`connect.kafka.transactions.fence`, but for a refused transactional id."""
    for transactional_id, writer in writers.items():
        for left in reversed(range(_TRIES)):
            try:
                async with clusters.fencing:
                    fenced = await fence(clusters.target, transactional_id, sorted(writer.partitions))
            except TransactionalIdRefused as error:
                clusters.missing_rights.announce(error)
            except Superseded:
                if not left:
                    raise
                await asyncio.sleep(_AGAIN_S * (_TRIES - left))
                continue
            else:
                _tell_of_others(transactional_id, writer.producer_ids - {fenced.producer_id})
            break


def _tell_of_others(transactional_id: str, producer_ids: Collection[int]) -> None:
    if producer_ids:
        log.warning(
            "target: %s is another producer now than wrote before (%s): the cluster had forgotten it, which takes days "
            "of silence; what may still have been under way of that is not shut out",
            transactional_id,
            ", ".join(map(str, sorted(producer_ids))),
        )


async def new_writer(clusters: Clusters, transactional_id: str) -> tuple[str, ProducerIdentity]:
    """Under which transactional id, empty where it is refused, and as whom a partition's records are spread."""
    try:
        identity = await init_producer_id(clusters.target, transactional_id)
    except TransactionalIdRefused as error:
        clusters.missing_rights.announce(error)
        transactional_id, identity = "", await new_producer_id(clusters.target)
    return transactional_id, ProducerIdentity(identity.producer_id, identity.epoch)


async def _all_of(target: Cluster, topics: Collection[str]) -> set[TopicPartition]:
    """Of the topics that are there: what was deleted is past being written to."""
    known = await known_topics(target, set(topics))
    for topic in known.values():
        if topic.error_code:
            raise RetriableError(f"target topic {topic.name}: {error_name(topic.error_code)}")
    return {TopicPartition(name, index) for name, topic in known.items() for index in topic.partitions}
