"""Set where the reverse flow begins: after what the flow has copied, for topics that keep their names. Otherwise it
would copy back what came from there; other names say where a topic came from."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from connect.core import status_and_offset_topics
from connect.core.errors import PermanentError
from connect.core.model import CLEANED_SOON, NewTopic
from connect.core.status_and_offset_topics import SourceOffsets
from connect.core.wording import counted
from connect.kafka.cluster import Cluster, NotAuthorized
from connect.kafka.log.compacted_topic import ensure_compacted_topic
from connect.kafka.log.offsets import EARLIEST, LATEST, list_offsets
from connect.kafka.log.producer import OutRecord, PlainWriter
from connectors.config.connector_configs import MirrorSourceSettings
from connectors.failover.clusters_and_lease import Site, read_positions, returns
from connectors.failover.drain import CopiedEnd, FlowControl, why_back_runs
from connectors.failover.journal import StartBefore
from connectors.failover.log_comparison import Fate, Log, logs_now
from connectors.failover.unreplicated import find
from connectors.formats.types import TopicPartition
from connectors.internal_topics import read_copied, read_stored_offsets
from connectors.offset_map.reader import MapReader
from connectors.offset_map.runs_and_chunks import OffsetLocation


class Due(NamedTuple):
    """What is to be stored for the reverse flow. ``starts``: where it begins. ``refused``: why nothing may be stored
    for a partition. ``diverged``: partitions of the source that have lost the end of what was copied: the reverse flow
    begins where the logs diverge."""

    starts: list[StartBefore]
    refused: list[str]
    diverged: Mapping[TopicPartition, Log]


async def starts_due(site: Site, ends: Mapping[TopicPartition, CopiedEnd]) -> Due:
    """Return what is not stored yet; ``ends`` are by source partition."""
    positions = await read_positions(site)
    returning = {
        one: position
        for one, position in positions.items()
        if one in ends and returns(site.back, one.topic, position.target_topic)
    }
    # A mirror of one direction may have no right to read the other's offsets.
    back = [position.target for position in returning.values()]
    stored = await _begun(site, back) if back else {}
    logs = await logs_now(site.source, returning)
    due = Due([], await comes_back(site, positions), {one: log for one, log in logs.items() if log.fate is Fate.CUT})
    parts = await _parting(site, due.diverged)
    for one, position in sorted(returning.items()):
        end, before = parts.get(one, ends[one].offset), stored.get(position.target)
        if one in due.diverged and one not in parts:
            due.refused.append(
                f"cluster {site.flow.source_alias} has lost the end of {one}, and the offset map does not say where "
                f"its log diverges from that of cluster {site.flow.target_alias}. Set {site.back.flow}.topics.exclude "
                f"= {one.topic} in the file and in the mirror"
            )
        elif not end or (before is not None and before >= end - 1):
            continue
        elif logs[one].fate in (Fate.SAME, Fate.CUT):
            due.starts.append(StartBefore(position.target_topic, position.target_partition, before, end - 1))
        elif before is not None:
            due.refused.append(
                f"{one} of cluster {site.flow.source_alias} was recreated or deleted, but {site.back.flow} would begin "
                f"at offset {before + 1}. Reset its offsets of {position.target_topic}, so that it copies all back"
            )
    return due


async def _parting(site: Site, diverged: Mapping[TopicPartition, Log]) -> dict[TopicPartition, int]:
    """Return the target offset at which what the source has lost begins, by source partition."""
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
    """Return source partitions of which the flow has copied more than what is still the same, with what each side alone
    holds."""
    try:
        positions = await read_positions(site)
    except NotAuthorized:
        if site.flow.enabled:
            raise
        return {}  # a mirror of one direction may have no right to read it
    now = await logs_now(site.source, positions, must_answer=False)
    logs = {one: log for one, log in now.items() if log.fate is Fate.CUT}
    own = {one.source: one.own for one in await find(site, {one: log.end for one, log in logs.items()})} if logs else {}
    source, target = site.flow.source_alias, site.flow.target_alias
    return {
        one: f"cluster {source} has lost the end of {one}, which cluster {target} has: they are the same up to offset "
        f"{log.same_to} of {positions[one].next_source_offset}, and from there cluster {source} "
        + (
            f"holds {counted(own[one].records, 'other record')}, offsets {own[one].first} to {own[one].last}"
            if one in own
            else "holds no other records"
        )
        for one, log in sorted(logs.items())
    }


async def _begun(site: Site, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    try:
        return await read_copied(site.source, site.back, partitions)
    except NotAuthorized as error:
        raise NotAuthorized(
            f"{error}, CREATE, READ and WRITE. Topics keep their names, so where {site.back.flow} begins is stored "
            "there; otherwise it would copy everything back"
        ) from error


async def store_starts(site: Site, starts: list[StartBefore]) -> None:
    """Store the offsets, as an operator who alters offsets does. The reverse flow must not run."""
    await _store(site, {(one.topic, one.partition): one.after for one in starts})


async def undo_starts(site: Site, starts: Sequence[StartBefore]) -> list[StartBefore]:
    """Restore the earlier offsets. Return those that have moved since, which stay."""
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
        raise PermanentError(f"{back.flow}: an offset below 0 is not valid")
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


class ReverseFlow(NamedTuple):
    """``due`` is to be stored, unless there are ``objections``."""

    due: list[StartBefore]
    objections: list[str]


async def reverse_flow_check(
    site: Site, ends: Mapping[TopicPartition, CopiedEnd], back: FlowControl | None, *, leaves_unreplicated: bool
) -> ReverseFlow:
    """Read and change nothing. ``ends`` are by source partition."""
    due, objections, _ = await starts_due(site, ends)
    if due and (why := await why_back_runs(site, back)):
        objections.append(
            f"{site.back.flow} runs and copies back what came from cluster {site.flow.source_alias} ({why}). Stop it "
            "first"
        )
    if due and not leaves_unreplicated:
        begins = {TopicPartition(one.topic, one.partition): one.after + 1 for one in due}
        objections += await would_skip(site.turned(), begins)
    return ReverseFlow(due, objections)


async def would_skip(site: Site, until: Mapping[TopicPartition, int] | None = None) -> list[str]:
    """Name records that only the flow's source holds, and that the flow would skip; ``until`` as in :func:`find`. The
    tail of a log that was replaced stays; it is reported for the groups that read it."""
    diverged = await find_diverged(site)
    return [
        f"only cluster {site.flow.source_alias} holds {one.own}, which {site.flow.flow} has not copied and would skip. "
        "Append them (heliograph unreplicated --append) or use --leave-unreplicated"
        for one in await find(site, until)
        if one.source not in diverged
    ]


class CopiedPartition(NamedTuple):
    """Copied up to the record at ``offset`` of ``source``, into ``target``."""

    source: TopicPartition
    target: TopicPartition
    offset: int


async def comes_back(site: Site, ours: Collection[TopicPartition]) -> list[str]:
    """Why the reverse flow must not begin yet: it would copy back partitions that have no position, so are not in
    ``ours``. Empty if it is not enabled."""
    if not site.back.enabled:
        return []
    stored = await read_stored_offsets(site.target, *site.flow.offsets_topics)
    found = [one for one in copied(site.flow, site.back, stored) if one.source not in ours]
    if not found:
        return []
    begun = await read_stored_offsets(site.source, *site.back.offsets_topics)
    flow, back = site.flow.flow, site.back
    found = [one for one in found if begun.mirrored_offset(back.name, back.source_alias, *one.target) is None]
    logs = await _logs(site.source, [one.source for one in found])
    copies = await _logs(site.target, [one.target for one in found])
    return [
        f"{flow} copied {one.source} up to offset {one.offset} as Java does, without recording where its copies end on "
        f"cluster {site.flow.target_alias}, so {back.flow} would copy them all back. If no producer has written to "
        f"{one.target} there yet, start {flow} once with heliograph mirror, which records it; otherwise set the offset "
        f"of {back.flow} for {one.target} to that of the last copy (heliograph connectors offsets)"
        for one in found
        if _holds(logs, one.source, one.offset) and _holds(copies, one.target, 0)
    ]


def copied(flow: MirrorSourceSettings, back: MirrorSourceSettings, stored: SourceOffsets) -> list[CopiedPartition]:
    """Return source offsets of ``flow`` for topics that ``back`` would copy into the topics they came from."""
    found = []
    for partition in stored.partitions.get(flow.name, {}).values():
        topic, index = partition.get("topic"), partition.get("partition")
        if not isinstance(topic, str) or not isinstance(index, int):
            continue
        offset = stored.mirrored_offset(flow.name, flow.source_alias, topic, index)
        try:
            target = flow.remote_topic(topic)
            is_returned = offset is not None and back.should_mirror(target) and back.remote_topic(target) == topic
        except PermanentError:  # a topic without a name on the other side is not copied
            continue
        if offset is not None and is_returned:
            found.append(CopiedPartition(TopicPartition(topic, index), TopicPartition(target, index), offset))
    return sorted(found)


async def _logs(cluster: Cluster, partitions: Collection[TopicPartition]) -> dict[tuple[str, int], tuple[int, int]]:
    """Return where those partitions that exist begin and end."""
    if not partitions:
        return {}
    topics = (await cluster.metadata({one.topic for one in partitions})).topics
    there = [one for one in partitions if one.topic in topics and one.partition in topics[one.topic].partitions]
    begins, ends = await list_offsets(cluster, there, EARLIEST), await list_offsets(cluster, there, LATEST)
    return {one: (begins[one], ends[one]) for one in there}


def _holds(logs: Mapping[tuple[str, int], tuple[int, int]], log: TopicPartition, offset: int) -> bool:
    """Whether the log has records and had one at ``offset``: a log recreated since is to get its records back."""
    begin, end = logs.get(log, (0, 0))
    return begin < end and offset < end
