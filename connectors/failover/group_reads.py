"""Groups as both clusters show them, or the target alone if the source is gone, and their target offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple
from uuid import UUID

from connect.core.errors import HeliographError
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import gather_limited
from connect.kafka.group_offsets import (
    SHARE,
    STREAMS,
    Committed,
    GroupListing,
    Partition,
    committed,
    list_groups,
)
from connect.kafka.offsets import LATEST, told_offsets
from connect.kafka.topiclog import LogRecord, read_to_end
from connectors.checkpoint.live_offsets import Live, read_live
from connectors.checkpoint.offset_sync import why_left
from connectors.dataplane.plan import TopicPartition
from connectors.failover.places import Places, readable, where, without_empty_steps
from connectors.failover.snapshot import Finding, GroupMove, Groups, How, Place, Rule, move_of
from connectors.mirror_records import Checkpoint
from connectors.settings import MirrorSourceSettings

#: Each look-up in a map fetches a chunk of it: with 64, ten thousand take 17 s from a target 50 ms away.
_AT_ONCE: Final = 512
_UNKNOWN_TOPIC_OR_PARTITION: Final = 3
_CHANGELOG: Final = "-changelog"
_NAMED: Final = 5
_NO_ANSWER: Final = "its leader does not answer"
#: What a group has committed at a source that is gone.
_UNKNOWN: Final = Committed(-1, "")
_WITHOUT_OFFSETS: Final[Mapping[str, Finding]] = {
    SHARE: Finding(
        "",
        Rule.SHARE_GROUP,
        "is a share group, whose records are acknowledged one by one: set where it begins on the target "
        "(share.auto.offset.reset, or kafka-share-groups.sh --reset-offsets)",
    ),
    STREAMS: Finding(
        "",
        Rule.STREAMS_GROUP,
        "is a streams group (KIP-1071), whose state a mirror does not copy: reset the application on the target "
        "(kafka-streams-groups.sh --reset-offsets), and let it build its state there",
    ),
}


class GroupsLook:
    """At groups whose whole names ``takes`` accepts.

    Args:
        source: None if it is gone: then the flow's checkpoints say what groups had committed.
        checkpoints_topic: On the target.
        at_ms: Target offsets by time, in milliseconds since 1970, instead of by offset; None for none.
        named: Groups that are looked for even if there is no trace of them; ``topics`` are remote ones they read.
        others: Aliases of clusters that are neither the source nor the target.
    """

    def __init__(
        self,
        takes: Callable[[str], bool],
        source: Cluster | None,
        target: Cluster,
        places: Places,
        checkpoints_topic: str,
        at_ms: int | None = None,
        *,
        named: Collection[str] = (),
        topics: Collection[str] = (),
        others: Collection[str] = (),
    ) -> None:
        self._takes = takes
        self._source = source
        self._target = target
        self._places = places
        self._checkpoints_topic = checkpoints_topic
        self._at_ms = at_ms
        self._named = named
        self._topics = topics
        self._others = others
        #: When each group's last checkpoint was written, in milliseconds since 1970; none if the source was asked.
        self.seen_at_ms: dict[str, int] = {}

    async def groups(self) -> Groups:
        """Raises as the clusters, but for what concerns one group alone."""
        listed = await list_groups(self._target)
        if self._source is not None:
            moves, findings, lost = await self._of_source(self._source)
        else:
            moves, findings, lost = await self._of_checkpoints()
        found = sorted({one.group for one in moves} | {one.group for one in findings})
        refused = {group: why for group in found if (why := why_left(listed.get(group)))}
        findings += [Finding(group, Rule.USED_AT_TARGET, why) for group, why in refused.items()]
        moves, begun = await readable(moves, self._source, self._target, self._places)
        moves = await without_empty_steps(moves, self._target)
        moves.sort(key=lambda one: (one.group, one.source))
        return Groups(tuple(found), tuple(moves), (*findings, *begun), lost)

    async def _of_source(self, source: Cluster) -> tuple[list[GroupMove], list[Finding], tuple[str, ...]]:
        listed = {name: one for name, one in (await list_groups(source)).items() if self._takes(name)}
        findings = [replace(known, group=name) for name, one in listed.items() if (known := _without_offsets(one))]
        findings += [
            Finding(name, Rule.USED_AT_SOURCE, f"has members on cluster {source.name} (it is {one.state})")
            for name, one in listed.items()
            if one.has_offsets and not one.is_idle
        ]
        asked = sorted(name for name, one in listed.items() if one.has_offsets)
        findings += streams_state(asked, (await source.metadata(None)).topics)
        moves: list[GroupMove] = []
        lost: set[str] = set()
        for some, more, topics in await gather_limited(self._of_group, asked, _AT_ONCE):
            moves += some
            findings += more
            lost |= topics
        moves, untimed = await self._by_time(moves)
        return moves, [*findings, *untimed], tuple(sorted(lost))

    async def _of_group(self, group: str) -> tuple[list[GroupMove], list[Finding], set[str]]:
        """One that cannot be read does not keep others from being read."""
        try:
            return await self._translated(group)
        except HeliographError as error:
            return [], [Finding(group, Rule.UNREADABLE, f"could not be read: {error}")], set()

    async def _translated(self, group: str) -> tuple[list[GroupMove], list[Finding], set[str]]:
        assert self._source is not None
        # What a transaction is about to commit would be read twice.
        offsets = await committed(self._source, group, stable=True)
        present = await committed(self._target, group)
        moves: list[GroupMove] = []
        findings: dict[object, Finding] = {}
        lost: set[str] = set()
        for (topic, partition), at in sorted(offsets.items()):
            place = await self._places.place(topic, partition, at.offset)
            if place is not None:
                moves.append(move_of(group, (topic, partition), at, place, present))
            elif self._places.is_mirrored(topic):
                why = f"offset {at.offset} of {topic}-{partition} has no target offset yet"
                findings[topic, partition] = Finding(group, Rule.NO_OFFSET, why)
            else:
                lost.add(topic)
                why = why_not_mirrored(topic, partition, at.offset, self._places.flow, self._others)
                findings.setdefault(topic, Finding(group, Rule.NOT_MIRRORED, why))
        return moves, list(findings.values()), lost

    async def _of_checkpoints(self) -> tuple[list[GroupMove], list[Finding], tuple[str, ...]]:
        checkpoints = await self._checkpoints()
        live = await read_live(self._target, self._places.flow.map_topic, self._places.flow.flow)
        gone = await self._gone({target for _, target in checkpoints})
        findings = [_without_topic(*one) for one in sorted(checkpoints) if one[1] in gone]
        kept = {of: one for of, one in checkpoints.items() if of[1] not in gone}
        ends, _ = await told_offsets(self._target, {target for _, target in kept}, LATEST)
        told = {group for group, _ in checkpoints} - {group for group, _ in kept}
        named = {group for group in self._named if group not in told or self._topics}
        present: dict[str, Mapping[Partition, Committed]] = {}

        async def ask(group: str) -> None:
            try:
                present[group] = await committed(self._target, group)
            except HeliographError as error:
                findings.append(Finding(group, Rule.UNREADABLE, f"could not be read on the target: {error}"))

        await gather_limited(ask, sorted({group for group, _ in kept} | named), _AT_ONCE)
        moves: list[GroupMove] = []
        asked = [(of, one) for of, one in sorted(kept.items()) if of[0] in present]
        for ((group, target), one), place in zip(
            asked, await gather_limited(self._by_checkpoint, asked, _AT_ONCE), strict=True
        ):
            if isinstance(place, Finding):
                findings.append(place)
                continue
            at = Committed(one.upstream_offset, one.metadata)
            offset = place or Place(*target, one.downstream_offset, How.CHECKPOINT)
            moves.append(move_of(group, target, at, offset, present[group]))
            copied_up_to = self._places.copied_up_to(TopicPartition(*target)) if place is not None else None
            now = self._places.source_id(TopicPartition(*target))
            why = why_not_live(one, live.get(group), now) or why_stale(one, ends.get(target), copied_up_to)
            if self._at_ms is None and why:
                findings.append(Finding(group, Rule.STALE_CHECKPOINT, why))
        more = await self._unseen(moves, present, named & present.keys())
        moves, untimed = await self._by_time([*moves, *more.moves])
        return moves, [*findings, *more.findings, *untimed], ()

    async def _by_checkpoint(self, asked: tuple[tuple[str, Partition], Checkpoint]) -> Place | Finding | None:
        (group, target), one = asked
        try:
            return await self._places.by_checkpoint(target, one.upstream_offset)
        except HeliographError as error:
            return Finding(group, Rule.UNREADABLE, f"has no known target offset: {error}", f"{target[0]}-{target[1]} ")

    async def _gone(self, partitions: Collection[Partition]) -> set[Partition]:
        """Those that are not on the target; what it does not show is not known to be gone."""
        if not partitions:
            return set()
        topics = (await self._target.metadata({topic for topic, _ in partitions})).topics
        found = set()
        for topic, index in partitions:
            known = topics.get(topic)
            code = _UNKNOWN_TOPIC_OR_PARTITION if known is None else known.error_code
            if code == _UNKNOWN_TOPIC_OR_PARTITION or (
                known is not None and not code and index not in known.partitions
            ):
                found.add((topic, index))
        return found

    async def _checkpoints(self) -> dict[tuple[str, Partition], Checkpoint]:
        found: dict[tuple[str, Partition], Checkpoint] = {}
        self.seen_at_ms.clear()
        topic = self._checkpoints_topic
        known = (await self._target.metadata({topic})).topics.get(topic)
        if known is None or not known.partitions:
            return found

        def take(record: LogRecord) -> None:
            one = Checkpoint.decode(record.key, record.value)
            if self._takes(one.group):
                found[one.group, (one.topic, one.partition)] = one
                self.seen_at_ms[one.group] = max(record.timestamp_ms, self.seen_at_ms.get(one.group, 0))

        await read_to_end(self._target, topic, take, read_committed=True)
        return found

    async def _by_time(self, moves: list[GroupMove]) -> tuple[list[GroupMove], list[Finding]]:
        """With ``at_ms`` the first record that is as late, of the same partitions."""
        if self._at_ms is None or not moves:
            return moves, []
        wanted = {one.target for one in moves}
        found, _ = await told_offsets(self._target, wanted, self._at_ms)
        ends, failed = await told_offsets(self._target, wanted, LATEST)
        places = {one: found[one] if found[one] >= 0 else ends[one] for one in wanted if one in found and one in ends}
        timed = [
            replace(one, after=places[one.target], metadata="", how=How.TIME) for one in moves if one.target in places
        ]
        findings = [
            Finding(
                one.group, Rule.UNREADABLE, f"could not be looked at: {failed.get(one.target, _NO_ANSWER)}", where(one)
            )
            for one in moves
            if one.target not in places
        ]
        return timed, findings

    async def _unseen(
        self, moves: Sequence[GroupMove], present: Mapping[str, Mapping[Partition, Committed]], others: Collection[str]
    ) -> _Unseen:
        """What no checkpoint says, of groups in ``moves``, which have one, and of ``others``."""
        filled, is_by_time = self._places.filled(), self._at_ms is not None
        known: dict[str, set[Partition]] = {}
        for one in moves:
            known.setdefault(one.group, set()).add(one.target)
        without = sorted(others - known.keys())
        reads = {
            group: {topic for topic, _ in known.get(group, ())}
            | {topic for topic, _ in present[group] if topic in filled}
            | {topic for topic in self._topics if group in self._named}
            for group in (*known, *without)
        }
        there = await self._partitions({topic for some in reads.values() for topic in some})
        found, unplaced = _Unseen([], []), dict[str, list[Partition]]()
        for group, some in reads.items():
            of_group = known.get(group, set())
            missing = [one for topic in sorted(some) for one in there.get(topic, ()) if one not in of_group]
            if group in self._named:
                found.findings.extend(self._no_topic(group, topic) for topic in sorted(self._topics - there.keys()))
            if not some and group not in self._named:
                continue  # it has nothing to do with the flow
            if not some or (not of_group and not is_by_time):
                found.findings.append(self._no_checkpoint(group))
            elif is_by_time:
                found.moves.extend(
                    move_of(group, one, _UNKNOWN, Place(*one, -1, How.TIME), present[group]) for one in missing
                )
            else:
                unplaced[group] = [one for one in missing if one not in present[group]]
        found.findings.extend(await self._without_place(unplaced))
        return found

    async def _partitions(self, topics: Collection[str]) -> dict[str, list[Partition]]:
        """Of those that are there."""
        known = (await self._target.metadata(set(topics))).topics if topics else {}
        return {
            name: [(name, index) for index in sorted(one.partitions)] for name, one in known.items() if one.partitions
        }

    def _no_topic(self, group: str, topic: str) -> Finding:
        return Finding(group, Rule.NO_TOPIC, f"cluster {self._target.name} has no topic {topic}, or does not show it")

    def _no_checkpoint(self, group: str) -> Finding:
        why = (
            "has no checkpoint: it is younger than refresh.groups.interval.seconds and emit.checkpoints.interval."
            "seconds, or the flow's groups leave it out"
        )
        return Finding(group, Rule.NO_CHECKPOINT, why)

    async def _without_place(self, unplaced: Mapping[str, Sequence[Partition]]) -> list[Finding]:
        """Of groups with partitions without a checkpoint. One that is empty needs none."""
        wanted = {one for partitions in unplaced.values() for one in partitions}
        ends, _ = await told_offsets(self._target, wanted, LATEST) if wanted else ({}, {})
        found = []
        for group, partitions in unplaced.items():
            names = [f"{topic}-{index}" for topic, index in partitions if ends.get((topic, index), 1)]
            if names:
                more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
                why = (
                    f"has no checkpoint of {', '.join(names[:_NAMED])}{more}: it begins there by its auto.offset."
                    "reset; --at sets it by time"
                )
                found.append(Finding(group, Rule.PARTLY_NO_CHECKPOINT, why))
        return found


def streams_state(groups: Collection[str], topics: Collection[str]) -> list[Finding]:
    """Groups of Kafka Streams applications that have state, by the names that Streams gives its topics."""
    kept = [topic for topic in topics if topic.endswith(_CHANGELOG)]
    found = []
    for group in groups:
        if some := sorted(topic for topic in kept if topic.startswith(f"{group}-")):
            why = (
                f"is a Kafka Streams application with state, such as {some[0]}: its offsets are moved, and its state "
                "is right only if these topics are mirrored under their own names; else reset it on the target"
            )
            found.append(Finding(group, Rule.STREAMS_STATE, why))
    return found


class _Unseen(NamedTuple):
    moves: list[GroupMove]
    findings: list[Finding]


def _without_offsets(one: GroupListing) -> Finding | None:
    return _WITHOUT_OFFSETS.get(one.kind)


def why_not_mirrored(
    topic: str, partition: int, offset: int, flow: MirrorSourceSettings, others: Collection[str]
) -> str:
    """Why a group at ``offset`` gets none of ``topic`` at the target.

    Args:
        others: Aliases of clusters that are neither the flow's source nor its target.
    """
    origin, upstream = flow.policy.topic_source(topic), flow.policy.upstream_topic(topic)
    if origin not in others:
        return f"reads {topic}, which {flow.flow} does not mirror: it gets no offset there"
    here, there = f"{origin}->{flow.source_alias}", f"{origin}->{flow.target_alias}"
    look_up = f"heliograph map FILE --topic {upstream} --partition {partition}"
    return (
        f"reads {topic}, which {here} copies from cluster {origin}: failover moves no groups there. For each of its "
        f"partitions look up the offset there ({look_up} --flow '{here}' --offset {offset} --reverse) and then that of "
        f"the answer on cluster {flow.target_alias} ({look_up} --flow '{there}' --offset ANSWER), and set it there "
        "with kafka-consumer-groups.sh --reset-offsets"
    )


def _without_topic(group: str, target: Partition) -> Finding:
    """A checkpoint outlives its topic: nothing is left to read, and nothing can be stored for it."""
    why = "its remote topic is gone: the group has a checkpoint of it, and nothing there to read"
    return Finding(group, Rule.TOPIC_GONE, why, f"{target[0]}-{target[1]} ")


def why_not_live(one: Checkpoint, live: Live | None, topic_id: UUID | None) -> str:
    """Why a checkpoint is of an offset that the group did not have any more; ``live`` is what is known of the group,
    None for nothing, and ``topic_id`` of which topic at the source records were copied last."""
    if live is None:
        return ""
    place = TopicPartition(one.topic, one.partition)
    if place not in live:
        return (
            f"its checkpoint of {one.topic}-{one.partition} is stale: when the group was last seen it "
            "had no offset there any more, because it, or the topic, was deleted"
        )
    if None not in (live[place], topic_id) and live[place] != topic_id:
        return f"its checkpoint of {one.topic}-{one.partition} is stale: the topic was recreated since"
    return ""


def why_stale(one: Checkpoint, end: int | None, copied_up_to: int | None) -> str:
    """Why a checkpoint may be of a topic that was there before. ``end`` is the target's, ``copied_up_to`` a source
    offset; None if it is not known."""
    what = ""
    if end is not None and one.downstream_offset > end:
        what = f"offset {one.downstream_offset} of {one.topic}-{one.partition}, which ends at {end}"
    elif copied_up_to is not None and one.upstream_offset > copied_up_to:
        what = f"source offset {one.upstream_offset} of {one.topic}-{one.partition}, copied up to {copied_up_to} only"
    return what and (
        f"its checkpoint is of {what}: its consumers were ahead of the copy, or the topic was recreated since"
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
