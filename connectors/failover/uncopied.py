"""Partitions that a flow takes and has no position of: a topic that grew, or a new one, while the mirror was down."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from connect.core.errors import PermanentError
from connect.kafka.offsets import EARLIEST, LATEST, READ_COMMITTED, list_offsets
from connectors.dataplane.plan import TopicPartition
from connectors.failover.own import Own, Range, count, own_ranges, without
from connectors.failover.side_by_side import side_by_side
from connectors.failover.site import Site
from connectors.map_reader import MapReader
from connectors.source.topology import selected
from connectors.stored_offsets import read_copied


@dataclass(frozen=True, slots=True)
class Uncopied:
    """What only the source holds of one, as far as is known. ``may_have_arrived``: it begins behind a stored offset
    that no position of ours goes with. Java's MirrorMaker 2 stored it, which copies further than it stores, or somebody
    set it."""

    own: Own
    source: TopicPartition
    target: TopicPartition
    ranges: tuple[Range, ...]
    may_have_arrived: bool
    topic_id: UUID | None = None


class Extent(NamedTuple):
    """From where to where a partition holds records that are decided."""

    topic_id: UUID | None
    begin: int
    end: int


async def extents(site: Site, known: Collection[TopicPartition]) -> dict[TopicPartition, Extent]:
    """Of all partitions that the flow takes but ``known``, which have a position. Raises as the source."""
    wanted = await _selected(site, known)
    if not wanted:
        return {}
    begins = await list_offsets(site.source, wanted, EARLIEST)
    ends = await list_offsets(site.source, wanted, LATEST, READ_COMMITTED)
    return {one: Extent(topic_id, begins[one], ends[one]) for one, topic_id in wanted.items()}


async def uncopied(
    site: Site,
    there: Mapping[TopicPartition, Extent],
    copies: MapReader,
    brought: Mapping[TopicPartition, Sequence[Range]],
) -> list[Uncopied]:
    """What only the source holds of those in ``there``. ``copies`` is the map of the flow back, read since, and
    ``brought`` what that flow has written behind what it stored. Raises as the clusters."""
    if not there:
        return []
    copied = await read_copied(site.target, site.flow, there)

    async def look_at(one: TopicPartition) -> Uncopied | None:
        topic_id, first, end = there[one]
        offset = copied.get(one)
        # A log that ends before has been made anew, and nothing of it was copied.
        may_have_arrived = offset is not None and offset < end
        begin = max(first, offset + 1) if offset is not None and may_have_arrived else first
        ranges = without(await own_ranges(copies, one, topic_id, begin, end), brought.get(one, ()))
        own = await count(site.source, one, ranges)
        target = TopicPartition(site.flow.remote_topic(one.topic), one.partition)
        return None if own is None else Uncopied(own, one, target, tuple(ranges), may_have_arrived, topic_id)

    return [one for one in await side_by_side(look_at, sorted(there)) if one is not None]


async def _selected(site: Site, known: Collection[TopicPartition]) -> dict[TopicPartition, UUID | None]:
    """With the ids of their topics. Heartbeats are nobody's records."""
    if not site.flow.enabled:
        return {}
    topics = selected(site.flow.should_mirror, (await site.source.metadata(None)).topics)
    return {
        one: topic.topic_id
        for topic in topics
        if not site.flow.policy.is_heartbeats_topic(topic.name) and _has_name(site, topic.name)
        for index in topic.partitions
        if (one := TopicPartition(topic.name, index)) not in known
    }


def _has_name(site: Site, topic: str) -> bool:
    """On the target: one without is not mirrored, and the flow says so."""
    try:
        site.flow.remote_topic(topic)
    except PermanentError:
        return False
    return True


async def not_there(site: Site, targets: Collection[TopicPartition]) -> set[TopicPartition]:
    """Those that the target does not have. Raises as the target."""
    if not targets:
        return set()
    topics = (await site.target.metadata({one.topic for one in targets})).topics
    return {one for one in targets if one.topic not in topics or one.partition not in topics[one.topic].partitions}
