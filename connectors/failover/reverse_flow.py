"""Where the flow back begins: behind what the flow has copied, where a topic keeps its name on its way.

Else it would copy back what came from there. Under names that tell where a topic came from nothing has to be done: such
topics are not copied back at all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from connect.core import status_and_offset_topics
from connect.core.errors import PermanentError
from connect.core.model import CLEANED_SOON, NewTopic
from connect.core.status_and_offset_topics import SourceOffsets
from connect.kafka.cluster import Cluster, NotAuthorized
from connect.kafka.log.compacted_topic import ensure_compacted_topic
from connect.kafka.log.offsets import EARLIEST, LATEST, list_offsets
from connect.kafka.log.producer import OutRecord, PlainWriter
from connectors.config.connector_configs import MirrorSourceSettings
from connectors.failover.clusters_and_lease import Site, returns
from connectors.failover.drain import CopiedEnd, FlowControl, why_back_runs
from connectors.failover.journal import StartBefore
from connectors.failover.log_comparison import Fate, Log, logs_now
from connectors.failover.unreplicated import find
from connectors.formats.types import TopicPartition
from connectors.internal_topics import read_copied, read_positions, read_stored_offsets
from connectors.offset_map.reader import MapReader
from connectors.offset_map.runs_and_chunks import OffsetLocation
from connectors.source.positions.position_checks import target_of


class Due(NamedTuple):
    """What is to be stored for the flow back.

    Args:
        starts: Where it begins.
        refused: Why nothing may be stored of a partition.
        diverged: Partitions of the source that have lost the end of what was copied: there it begins where the logs
            part. Of each the end of what both have, and of the log.
    """

    starts: list[StartBefore]
    refused: list[str]
    diverged: Mapping[TopicPartition, Log]


async def starts_due(site: Site, ends: Mapping[TopicPartition, CopiedEnd]) -> Due:
    """What is not stored yet; ``ends`` are by source partition. Raises as the clusters."""
    positions = await read_positions(site.target, site.flow.map_topic, site.flow.name)
    returning = {
        one: position
        for one, position in positions.items()
        if one in ends and returns(site.flow, site.back, one.topic, position.target_topic)
    }
    # Who mirrors one way alone may have no right to see it.
    back = [target_of(position) for position in returning.values()]
    stored = await _begun(site, back) if back else {}
    logs = await logs_now(site.source, returning)
    due = Due([], await comes_back(site, positions), {one: log for one, log in logs.items() if log.fate is Fate.CUT})
    parts = await _parting(site, due.diverged)
    for one, position in sorted(returning.items()):
        end, before = parts.get(one, ends[one].offset), stored.get(target_of(position))
        if one in due.diverged and one not in parts:
            due.refused.append(
                f"cluster {site.flow.source_alias} has lost the end of {one}, and the offset map does not tell where "
                f"its log parts from that of cluster {site.flow.target_alias}: set {site.back.flow}.topics.exclude = "
                f"{one.topic} in the file and in the mirror"
            )
        elif not end or (before is not None and before >= end - 1):
            continue
        elif logs[one].fate in (Fate.SAME, Fate.CUT):
            due.starts.append(StartBefore(position.target_topic, position.target_partition, before, end - 1))
        elif before is not None:
            due.refused.append(
                f"{one} of cluster {site.flow.source_alias} was recreated or is gone, but {site.back.flow} would begin "
                f"at offset {before + 1}: reset its offsets of {position.target_topic}, so that it brings all of it "
                "back"
            )
    return due


async def _parting(site: Site, diverged: Mapping[TopicPartition, Log]) -> dict[TopicPartition, int]:
    """Behind which offset of the target lies what the source has lost."""
    if not diverged:
        return {}
    copies = MapReader(site.target, site.flow.map_topic, connector=site.flow.name)
    await copies.follow()
    found = {}
    for one, log in diverged.items():
        pair = copies.current(one)
        place = None if pair is None else await copies.forward(pair, log.same_to)
        if place is not None and place.place is not OffsetLocation.BELOW:
            found[one] = place.offset
    return found


async def find_diverged(site: Site) -> dict[TopicPartition, str]:
    """Partitions of the source that the flow has copied further than they are the same now, with what both sides hold
    alone. Raises as the clusters."""
    try:
        positions = await read_positions(site.target, site.flow.map_topic, site.flow.name)
    except NotAuthorized:
        if site.flow.enabled:
            raise
        return {}  # who mirrors one way alone may have no right to see it
    now = await logs_now(site.source, positions, must_tell=False)
    logs = {one: log for one, log in now.items() if log.fate is Fate.CUT}
    own = {one.source: one.own for one in await find(site, {one: log.end for one, log in logs.items()})} if logs else {}
    source, target = site.flow.source_alias, site.flow.target_alias
    return {
        one: f"cluster {source} has lost the end of {one}, which cluster {target} has: they are the same up to offset "
        f"{log.same_to} of {positions[one].next_source_offset}, and cluster {source} "
        + (
            f"holds {own[one].records} records of its own there, offsets {own[one].first} to {own[one].last}"
            if one in own
            else "has none of its own there"
        )
        for one, log in sorted(logs.items())
    }


async def _begun(site: Site, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    try:
        return await read_copied(site.source, site.back, partitions)
    except NotAuthorized as error:
        raise NotAuthorized(
            f"{error}, and CREATE, READ and WRITE: topics keep their names, and where {site.back.flow} begins is "
            "stored there, or it would bring back all that was copied once it runs"
        ) from error


async def store_starts(site: Site, starts: list[StartBefore]) -> None:
    """As an operator who alters offsets. The flow back must not run. Raises as the source."""
    await _store(site, {(one.topic, one.partition): one.after for one in starts})


async def undo_starts(site: Site, starts: Sequence[StartBefore]) -> list[StartBefore]:
    """Store what was there before; returns those that have moved since, which stay."""
    logs = [TopicPartition(one.topic, one.partition) for one in starts]
    copied = await read_copied(site.source, site.back, logs)
    moved = [one for one, log in zip(starts, logs, strict=True) if copied.get(log) not in (one.after, one.before)]
    same = [one for one, log in zip(starts, logs, strict=True) if copied.get(log) == one.after]
    await _store(site, {(one.topic, one.partition): one.before for one in same})
    return moved


async def _store(site: Site, offsets: Mapping[tuple[str, int], int | None]) -> None:
    if not offsets:
        return
    back = site.back
    if any(offset is not None and offset < 0 for offset in offsets.values()):
        raise PermanentError(f"{back.flow}: an offset below 0 is none")
    counts = back.offsets_topic_partitions, back.offsets_topic_replication_factor
    await ensure_compacted_topic(site.source_admin, NewTopic(back.offsets_topic, *counts, CLEANED_SOON))
    await PlainWriter(site.source).write(
        OutRecord(
            back.offsets_topic,
            status_and_offset_topics.mirror_key(back.name, back.source_alias, topic, partition),
            None if offset is None else status_and_offset_topics.mirror_value(offset),
        )
        for (topic, partition), offset in sorted(offsets.items())
    )


class WayBack(NamedTuple):
    """``due`` is to be stored, and may not while there are ``objections``."""

    due: list[StartBefore]
    objections: list[str]


async def way_back(
    site: Site, ends: Mapping[TopicPartition, CopiedEnd], back: FlowControl | None, *, leaves_unreplicated: bool
) -> WayBack:
    """Look, and change nothing. ``ends`` are by source partition. Raises as the clusters."""
    due, objections, _ = await starts_due(site, ends)
    if due and (why := await why_back_runs(site, back)):
        objections.append(
            f"{site.back.flow} runs and copies back what came from cluster {site.flow.source_alias} ({why}): stop it "
            "first"
        )
    if due and not leaves_unreplicated:
        # The tail of a log that was replaced stays where it is: it is named for the groups that read it.
        diverged = await find_diverged(site.turned())
        begins = {TopicPartition(one.topic, one.partition): one.after + 1 for one in due}
        objections += [
            f"only cluster {site.flow.target_alias} holds {one.own}, which {site.back.flow} has not copied and would "
            "pass over: see heliograph unreplicated; --leave-unreplicated goes on"
            for one in await find(site.turned(), begins)
            if one.source not in diverged
        ]
    return WayBack(due, objections)


class CopiedPartition(NamedTuple):
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
    flow, back = site.flow.flow, site.back
    found = [one for one in found if begun.mirrored_offset(back.name, back.source_alias, *one.target) is None]
    logs = await _logs(site.source, [one.source for one in found])
    copies = await _logs(site.target, [one.target for one in found])
    return [
        f"{flow} copied {one.source} up to offset {one.offset} as Java does, which does not tell where its copies end "
        f"on cluster {site.flow.target_alias}: {back.flow} would bring them all back. If no producer has written to "
        f"{one.target} there yet, start {flow} once with heliograph mirror: it takes over, and knows; else set the "
        f"offset of {back.flow} for {one.target} to that of the last copy (heliograph connectors offsets)"
        for one in found
        if _holds(logs, one.source, one.offset) and _holds(copies, one.target, 0)
    ]


def copied(flow: MirrorSourceSettings, back: MirrorSourceSettings, stored: SourceOffsets) -> list[CopiedPartition]:
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
            found.append(CopiedPartition(TopicPartition(topic, index), TopicPartition(target, index), offset))
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
    """Whether it has records, and has had one at ``offset``: one that was recreated since is to get them back."""
    begin, end = logs.get(log, (0, 0))
    return begin < end and offset < end
