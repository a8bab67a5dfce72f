"""What Java's MirrorMaker 2 copied: its source offsets tell how far, and nothing tells where its copies end on the
target. A flow back that keeps names would bring them all back."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from connect.core.errors import PermanentError
from connect.core.offsetlog import SourceOffsets
from connect.kafka.cluster import Cluster
from connect.kafka.offsets import EARLIEST, LATEST, list_offsets
from connectors.dataplane.plan import TopicPartition
from connectors.failover.site import Site
from connectors.settings import MirrorSourceSettings
from connectors.stored_offsets import read_stored_offsets


class Copied(NamedTuple):
    """Up to the record at ``offset`` of ``source``; ``target`` is where its copies went."""

    source: TopicPartition
    target: TopicPartition
    offset: int


async def comes_back(site: Site, ours: Collection[TopicPartition]) -> list[str]:
    """Why the flow back must not begin yet: partitions without one of ``ours``, which have positions, whose copies it
    would bring back. None where it is not enabled. Raises as the clusters."""
    if not site.back.enabled:
        return []
    stored = await read_stored_offsets(site.target, site.flow.offsets_topic)
    found = [one for one in copied(site.flow, site.back, stored) if one.source not in ours]
    if not found:
        return []
    begun = await read_stored_offsets(site.source, site.back.offsets_topic)
    back = site.back
    found = [one for one in found if begun.mirrored_offset(back.name, back.source_alias, *one.target) is None]
    logs = await _logs(site.source, [one.source for one in found])
    copies = await _logs(site.target, [one.target for one in found])
    return [_why(site, one) for one in found if _holds(logs, one.source, one.offset) and _holds(copies, one.target, 0)]


def copied(flow: MirrorSourceSettings, back: MirrorSourceSettings, stored: SourceOffsets) -> list[Copied]:
    """What source offsets of ``flow`` tell of topics that ``back`` would copy into where they came from (pure)."""
    found = []
    for partition in stored.partitions.get(flow.name, {}).values():
        topic, index = partition.get("topic"), partition.get("partition")
        if not isinstance(topic, str) or not isinstance(index, int):
            continue
        offset = stored.mirrored_offset(flow.name, flow.source_alias, topic, index)
        try:
            target = flow.remote_topic(topic)
            is_returned = offset is not None and back.should_mirror(target) and back.remote_topic(target) == topic
        except PermanentError:  # without a name on the other side it is not copied
            continue
        if offset is not None and is_returned:
            found.append(Copied(TopicPartition(topic, index), TopicPartition(target, index), offset))
    return sorted(found)


async def _logs(cluster: Cluster, partitions: Collection[TopicPartition]) -> dict[tuple[str, int], tuple[int, int]]:
    """Where they begin and end, of those that are there."""
    if not partitions:
        return {}
    topics = (await cluster.metadata({one.topic for one in partitions})).topics
    there = [one for one in partitions if one.topic in topics and one.partition in topics[one.topic].partitions]
    begins, ends = await list_offsets(cluster, there, EARLIEST), await list_offsets(cluster, there, LATEST)
    return {one: (begins[one], ends[one]) for one in there}


def _holds(logs: Mapping[tuple[str, int], tuple[int, int]], log: TopicPartition, offset: int) -> bool:
    """Whether it has records, and has had one at ``offset``: one that was made anew since is to get them back."""
    begin, end = logs.get(log, (0, 0))
    return begin < end and offset < end


def _why(site: Site, one: Copied) -> str:
    flow, back = site.flow.flow, site.back.flow
    return (
        f"{flow} copied {one.source} up to offset {one.offset} as Java does, which does not tell where its copies end "
        f"on cluster {site.flow.target_alias}: {back} would bring them all back. If nobody has written to {one.target} "
        f"there yet, start {flow} once with heliograph mirror: it takes over, and knows; else set the offset of {back} "
        f"for {one.target} to that of the last copy (heliograph connectors offsets)"
    )
