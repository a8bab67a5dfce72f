"""Read groups from both clusters, or from the target alone if the source is gone, and find their target offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar
from uuid import UUID

from connect.core.errors import HeliographError
from connect.core.wording import named
from connect.kafka.cluster import Cluster, TopicMetadata
from connect.kafka.concurrency import gather_limited
from connect.kafka.log.committed_offsets import SHARE, STREAMS, Committed, Partition, committed, list_groups
from connect.kafka.log.compacted_topic import LogRecord, read_if_exists
from connect.kafka.log.offsets import LATEST, known_offsets
from connectors.checkpoint.group_checkpoints import Live, read_live
from connectors.checkpoint.group_offset_sync import why_left
from connectors.config.connector_configs import MirrorSourceSettings
from connectors.dataplane.log_divergence import known_topics
from connectors.failover.clusters_and_lease import Site
from connectors.failover.offset_lookup import LEADER_S, TargetOffsets, about, readable, without_empty_steps
from connectors.failover.plan import FailoverOptions
from connectors.failover.snapshot import GroupFinding, GroupMove, GroupRule, Groups, How, TargetOffset, move_of
from connectors.formats.mirror_records import Checkpoint
from connectors.formats.types import TopicPartition, is_recreated

T = TypeVar("T")
P = TypeVar("P", bound=Partition)

#: Each look-up fetches a chunk of a map: with 64, ten thousand take 17 s from a target 50 ms away.
_AT_ONCE: Final = 512
#: For reading one group: its coordinator may not answer.
_GROUP_S: Final = 30.0
_NO_CHECKPOINT: Final = (
    "has no checkpoint: it is younger than refresh.groups.interval.seconds and emit.checkpoints.interval.seconds, or "
    "the flow's group filter excludes it"
)
_CHANGELOG: Final = "-changelog"
#: Committed offset of a group whose source is gone.
_UNKNOWN: Final = Committed(-1, "")
_WITHOUT_OFFSETS: Final[Mapping[str, GroupFinding]] = {
    SHARE: GroupFinding(
        "",
        GroupRule.SHARE_GROUP,
        "is a share group, whose records are acknowledged one by one. Set its start offset on the target "
        "(share.auto.offset.reset, or kafka-share-groups.sh --reset-offsets)",
    ),
    STREAMS: GroupFinding(
        "",
        GroupRule.STREAMS_GROUP,
        "is a streams group (KIP-1071), whose state a mirror does not copy. Reset the application on the target "
        "(kafka-streams-groups.sh --reset-offsets) and let it rebuild its state there",
    ),
}


class GroupsLook:
    """The groups of a wish. ``source`` is None if it is gone: then the flow's checkpoints say what groups had
    committed."""

    def __init__(
        self, site: Site, failover_options: FailoverOptions, source: Cluster | None, target_offsets: TargetOffsets
    ) -> None:
        self._site, self._options, self._source = site, failover_options, source
        self._target, self._target_offsets = site.target, target_offsets
        #: When each group's last checkpoint was written, in milliseconds since 1970; empty if the source was read.
        self.seen_at_ms: dict[str, int] = {}
        #: Records that groups had read at a source that is gone, and that were not copied.
        self.ahead = 0

    async def groups(self) -> Groups:
        """Read the groups. An error that concerns one group becomes a finding."""
        listed = await list_groups(self._target)
        if self._source is not None:
            moves, findings, lost = await self._of_source(self._source)
        else:
            moves, findings, lost = await self._of_checkpoints()
        found = sorted({one.group for one in moves} | {one.group for one in findings})
        findings += [
            GroupFinding(group, GroupRule.USED_AT_TARGET, why)
            for group in found
            if (why := why_left(listed.get(group)))
        ]
        moves, begun = await readable(moves, self._source, self._target, self._target_offsets)
        moves = await without_empty_steps(moves, self._target)
        moves.sort(key=lambda one: (one.group, one.source))
        return Groups(tuple(found), tuple(moves), (*findings, *begun), lost)

    async def _of_source(self, source: Cluster) -> tuple[list[GroupMove], list[GroupFinding], tuple[str, ...]]:
        listed = {name: one for name, one in (await list_groups(source)).items() if self._options.takes(name)}
        findings = [
            replace(known, group=name) for name, one in listed.items() if (known := _WITHOUT_OFFSETS.get(one.kind))
        ]
        findings += [
            GroupFinding(name, GroupRule.USED_AT_SOURCE, f"has members on cluster {source.name} (it is {one.state})")
            for name, one in listed.items()
            if one.has_offsets and not one.is_idle
        ]
        asked = sorted(name for name, one in listed.items() if one.has_offsets)
        findings += streams_state(asked, (await source.metadata(None)).topics)
        moves: list[GroupMove] = []
        lost: set[str] = set()
        looked = await gather_limited(lambda group: self._one(group, self._translated(group)), asked, _AT_ONCE)
        for one in looked:
            if isinstance(one, GroupFinding):
                findings.append(one)
            else:
                moves += one[0]
                findings += one[1]
                lost |= one[2]
        moves, untimed = await self._by_time(moves)
        return moves, [*findings, *untimed], tuple(sorted(lost))

    async def _one(self, group: str, look: Awaitable[T]) -> T | GroupFinding:
        """Turn an error or a timeout of one group into a finding."""
        try:
            async with asyncio.timeout(_GROUP_S):
                return await look
        except TimeoutError:
            return GroupFinding(group, GroupRule.UNREADABLE, f"could not be read within {_GROUP_S:g} s")
        except HeliographError as error:
            return GroupFinding(group, GroupRule.UNREADABLE, f"could not be read: {error}")

    async def _translated(self, group: str) -> tuple[list[GroupMove], list[GroupFinding], set[str]]:
        assert self._source is not None
        # Offsets in an open transaction count once it ends: without them the group would read records twice.
        offsets = await committed(self._source, group, stable=True)
        present = await committed(self._target, group)
        moves: list[GroupMove] = []
        findings: dict[object, GroupFinding] = {}
        lost: set[str] = set()
        rows = sorted(offsets.items())
        targets = await gather_limited(lambda row: self._target_offsets.of(*row[0], row[1].offset), rows)
        for ((topic, partition), at), to in zip(rows, targets, strict=True):
            if to is not None:
                moves.append(move_of(group, (topic, partition), at, to, present))
            elif self._target_offsets.is_mirrored(topic):
                why = f"offset {at.offset} of {topic}-{partition} has no target offset yet"
                findings[topic, partition] = GroupFinding(group, GroupRule.NO_OFFSET, why)
            else:
                lost.add(topic)
                why = why_not_mirrored(topic, partition, at.offset, self._site.flow, self._site.others)
                findings.setdefault(topic, GroupFinding(group, GroupRule.NOT_MIRRORED, why))
        return moves, list(findings.values()), lost

    async def _of_checkpoints(self) -> tuple[list[GroupMove], list[GroupFinding], tuple[str, ...]]:
        checkpoints = await self._checkpoints()
        live = await read_live(self._target, self._site.flow.map_topic, self._site.flow.flow)
        targets = {target for _, target in checkpoints}
        there = in_topics(targets, await known_topics(self._target, {topic for topic, _ in targets}, 0))
        gone = targets.difference(there)
        # A checkpoint outlives its topic: there is nothing to read, and no offset can be stored.
        findings = [
            GroupFinding(
                group,
                GroupRule.TOPIC_GONE,
                "its remote topic does not exist: the group has a checkpoint of it, and nothing to read there",
                f"{topic}-{index} ",
            )
            for group, (topic, index) in sorted(checkpoints)
            if (topic, index) in gone
        ]
        kept = {of: one for of, one in checkpoints.items() if of[1] not in gone}
        ends, _ = await self._reported({target for _, target in kept}, LATEST)
        reported = {group for group, _ in checkpoints} - {group for group, _ in kept}
        named = self._options.named - reported
        present: dict[str, Mapping[Partition, Committed]] = {}

        async def look(group: str) -> None:
            found = await self._one(group, committed(self._target, group))
            if isinstance(found, GroupFinding):
                findings.append(found)
            else:
                present[group] = found

        await gather_limited(look, sorted({group for group, _ in kept} | named), _AT_ONCE)
        asked = [(of, one) for of, one in sorted(kept.items()) if of[0] in present]
        moves, ahead = list[GroupMove](), dict[Partition, int]()
        found = await gather_limited(
            lambda each: self._one(each[0][0], self._target_offsets.by_checkpoint(each[0][1], each[1].upstream_offset)),
            asked,
            _AT_ONCE,
        )
        for ((group, target), one), known in zip(asked, found, strict=True):
            if isinstance(known, GroupFinding):
                findings.append(replace(known, what=f"{target[0]}-{target[1]} "))
                continue
            offset = known or TargetOffset(*target, one.downstream_offset, How.CHECKPOINT)
            moves.append(move_of(group, target, Committed(one.upstream_offset, one.metadata), offset, present[group]))
            copied = self._target_offsets.copied_from(TopicPartition(*target))
            if copied is not None and one.upstream_offset > copied.next_source_offset:
                ahead[target] = max(ahead.get(target, 0), one.upstream_offset - copied.next_source_offset)
            why = why_not_live(one, live.get(group), copied.source_topic_id if copied else None) or why_stale(
                one, ends.get(target), copied.next_source_offset if copied and known else None
            )
            if self._options.at_ms is None and why:
                findings.append(GroupFinding(group, GroupRule.STALE_CHECKPOINT, why))
        self.ahead = sum(ahead.values())
        more, unseen = await self._unseen(moves, present, named & present.keys())
        moves, untimed = await self._by_time([*moves, *more])
        return moves, [*findings, *unseen, *untimed], ()

    async def _reported(
        self, partitions: Collection[Partition], at: int
    ) -> tuple[dict[Partition, int], dict[Partition, str]]:
        return await known_offsets(self._target, partitions, at, leader_s=LEADER_S)

    async def _checkpoints(self) -> dict[tuple[str, Partition], Checkpoint]:
        found: dict[tuple[str, Partition], Checkpoint] = {}
        self.seen_at_ms.clear()

        def take(record: LogRecord) -> None:
            one = Checkpoint.decode(record.key, record.value)
            if self._options.takes(one.group):
                found[one.group, (one.topic, one.partition)] = one
                self.seen_at_ms[one.group] = max(record.timestamp_ms, self.seen_at_ms.get(one.group, 0))

        await read_if_exists(self._target, self._site.checkpoints.checkpoints_topic, take, read_committed=True)
        return found

    async def _by_time(self, moves: list[GroupMove]) -> tuple[list[GroupMove], list[GroupFinding]]:
        """With ``at_ms``, move to the first record of each partition with that timestamp or a later one."""
        if self._options.at_ms is None or not moves:
            return moves, []
        wanted = {one.target for one in moves}
        found, _ = await self._reported(wanted, self._options.at_ms)
        ends, failed = await self._reported(wanted, LATEST)
        offsets = {one: found[one] if found[one] >= 0 else ends[one] for one in wanted if one in found and one in ends}
        timed, untimed = list[GroupMove](), list[GroupFinding]()
        for one in moves:
            if one.target in offsets:
                timed.append(replace(one, after=offsets[one.target], metadata="", how=How.TIME))
            else:
                why = failed.get(one.target, "its leader does not answer")
                untimed.append(about(one, GroupRule.UNREADABLE, f"could not be read: {why}"))
        return timed, untimed

    async def _unseen(
        self, moves: Sequence[GroupMove], present: Mapping[str, Mapping[Partition, Committed]], others: Collection[str]
    ) -> tuple[list[GroupMove], list[GroupFinding]]:
        """Find partitions without a checkpoint, of groups in ``moves``, which have one, and of ``others``."""
        filled, is_by_time = self._target_offsets.filled(), self._options.at_ms is not None
        known: dict[str, set[Partition]] = {}
        for one in moves:
            known.setdefault(one.group, set()).add(one.target)
        reads = {
            group: {topic for topic, _ in known.get(group, ())}
            | {topic for topic, _ in present[group] if topic in filled}
            for group in sorted({*known, *others})
        }
        topics = {topic for some in reads.values() for topic in some}
        metadata = (await self._target.metadata(topics)).topics if topics else {}
        there = {name: [(name, index) for index in sorted(one.partitions)] for name, one in metadata.items()}
        more, findings, unknown = list[GroupMove](), list[GroupFinding](), dict[str, list[Partition]]()
        for group, some in reads.items():
            of_group = known.get(group, set())
            missing = [one for topic in sorted(some) for one in there.get(topic, ()) if one not in of_group]
            if not some or not (of_group or is_by_time):
                findings.append(GroupFinding(group, GroupRule.NO_CHECKPOINT, _NO_CHECKPOINT))
            elif is_by_time:
                offsets = [TargetOffset(*one, -1, How.TIME) for one in missing]
                more += [move_of(group, (one.topic, one.partition), _UNKNOWN, one, present[group]) for one in offsets]
            else:
                unknown[group] = [one for one in missing if one not in present[group]]
        # An empty partition needs no checkpoint.
        ends, _ = await self._reported({one for some in unknown.values() for one in some}, LATEST)
        for group, partitions in unknown.items():
            if names := [f"{topic}-{index}" for topic, index in partitions if ends.get((topic, index), 1)]:
                why = (
                    f"has no checkpoint of {named(names)}: it begins there by its auto.offset.reset. Use --at to set "
                    "it by time"
                )
                findings.append(GroupFinding(group, GroupRule.PARTLY_NO_CHECKPOINT, why))
        return more, findings


def in_topics(partitions: Iterable[P], topics: Mapping[str, TopicMetadata]) -> list[P]:
    """Return the partitions in ``topics``; if a topic cannot be read, its partitions count as existing."""
    return [
        one
        for one in partitions
        if (topic := topics.get(one[0])) is not None and (topic.error_code or one[1] in topic.partitions)
    ]


def streams_state(groups: Collection[str], topics: Collection[str]) -> list[GroupFinding]:
    """Report Kafka Streams applications with state, recognized by the names that Streams gives its topics."""
    kept = [topic for topic in topics if topic.endswith(_CHANGELOG)]
    found = []
    for group in groups:
        if some := sorted(topic for topic in kept if topic.startswith(f"{group}-")):
            why = (
                f"is a Kafka Streams application with state, such as {some[0]}: its offsets are moved, but its state "
                "is right only if these topics are mirrored under their own names. Otherwise reset it on the target"
            )
            found.append(GroupFinding(group, GroupRule.STREAMS_STATE, why))
    return found


def why_not_mirrored(
    topic: str, partition: int, offset: int, flow: MirrorSourceSettings, others: Collection[str]
) -> str:
    """Why a group at ``offset`` gets no offset of ``topic`` on the target; ``others`` are the aliases of clusters that
    are neither the flow's source nor its target."""
    origin, upstream = flow.policy.topic_source(topic), flow.policy.upstream_topic(topic)
    if origin not in others:
        return f"reads {topic}, which {flow.flow} does not mirror: it gets no offset there"
    here, there = f"{origin}->{flow.source_alias}", f"{origin}->{flow.target_alias}"
    look_up = f"heliograph map FILE --topic {upstream} --partition {partition}"
    return (
        f"reads {topic}, which {here} copies from cluster {origin}: failover does not move groups there. For each "
        f"partition look up the offset there ({look_up} --flow '{here}' --offset {offset} --reverse), then that of the "
        f"answer on cluster {flow.target_alias} ({look_up} --flow '{there}' --offset ANSWER), and set it there with "
        "kafka-consumer-groups.sh --reset-offsets"
    )


def why_not_live(one: Checkpoint, live: Live | None, topic_id: UUID | None) -> str:
    """Why the group no longer had a checkpoint's offset. ``live`` is what is known of the group, None if nothing is;
    ``topic_id`` is the source topic from which records were copied last."""
    if live is None:
        return ""
    copy = TopicPartition(one.topic, one.partition)
    if copy not in live:
        return (
            f"its checkpoint of {one.topic}-{one.partition} is stale: when the group was last seen it "
            "had no offset there, because the offset or the topic was deleted"
        )
    if is_recreated(live[copy], topic_id):
        return f"its checkpoint of {one.topic}-{one.partition} is stale: the topic has been recreated since"
    return ""


def why_stale(one: Checkpoint, end: int | None, copied_up_to: int | None) -> str:
    """Why a checkpoint may be of an earlier topic of that name. ``end`` is an offset of the target, ``copied_up_to`` of
    the source; None if it is unknown."""
    what = ""
    if end is not None and one.downstream_offset > end:
        what = f"offset {one.downstream_offset} of {one.topic}-{one.partition}, which ends at {end}"
    elif copied_up_to is not None and one.upstream_offset > copied_up_to:
        what = f"source offset {one.upstream_offset} of {one.topic}-{one.partition}, copied only up to {copied_up_to}"
    return what and (
        f"its checkpoint is of {what}: its consumers were ahead of the copy, or the topic has been recreated since"
    )


async def why_silent(cluster: Cluster, seconds: float = 10.0) -> str:
    """Why a cluster does not answer; empty if it does."""
    try:
        async with asyncio.timeout(seconds):
            await cluster.metadata(frozenset())
    except TimeoutError:
        return f"no broker answers within {seconds:g} s"
    except HeliographError as error:
        return str(error)
    return ""
