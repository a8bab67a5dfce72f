"""Which groups are to move and to where, as both clusters tell, or the target alone where the source is gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final

from connect.core.errors import HeliographError
from connect.kafka.cluster import Cluster
from connect.kafka.group_offsets import (
    SHARE,
    STREAMS,
    Committed,
    Partition,
    committed,
    list_groups,
)
from connect.kafka.offsets import LATEST, list_offsets, told_offsets
from connect.kafka.topiclog import LogRecord, read_to_end
from connectors.checkpoint.offset_sync import why_left
from connectors.dataplane.plan import TopicPartition
from connectors.failover.by_time import unseen
from connectors.failover.log_starts import readable, without_empty_steps
from connectors.failover.model import GroupMove, GroupsPlan, How, Left, Place, move_of
from connectors.failover.places import Places
from connectors.mirror_records import Checkpoint
from connectors.settings import MirrorSourceSettings

log = logging.getLogger(__name__)

_AT_ONCE: Final = 16
_UNKNOWN_TOPIC_OR_PARTITION: Final = 3
#: What is known of one group at the source: its offsets, by partition of the source.
_Stored = dict[str, Mapping[Partition, Committed]]
_WHY_NOT: Final = {
    SHARE: "is a share group, whose records are acknowledged one by one: it begins at its own share.auto.offset.reset",
    STREAMS: "is a streams group, whose state a mirror does not carry",
}


class GroupsLook:
    """At groups whose whole names ``takes`` accepts.

    Args:
        source: None where it is gone: then the flow's checkpoints tell, as far as they were written.
        checkpoints_topic: On the target.
        at_ms: Positions by time, in milliseconds since 1970, instead of by offset; None for none.
        named: Groups that are looked for whether anything tells of them or not; ``topics`` are remote ones they read.
        others: Aliases of clusters that are neither the source nor the target.
        leaves_topics: Groups may read topics that no flow carries.
        trusts_checkpoints: Those that lie beyond the copy, too, are of the topics that are there.
        skips_deleted: Groups may pass over what the target has deleted and the source has not.
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
        leaves_topics: bool = False,
        trusts_checkpoints: bool = False,
        skips_deleted: bool = False,
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
        self._leaves_topics = leaves_topics
        self._trusts_checkpoints = trusts_checkpoints
        self._skips_deleted = skips_deleted
        #: When each group's last checkpoint was written, in milliseconds since 1970; none where the source tells.
        self.seen_at_ms: dict[str, int] = {}

    async def plan(self) -> tuple[GroupsPlan, tuple[str, ...]]:
        """The plan, and the topics that no flow carries. Raises as the clusters."""
        if self._source is not None:
            moves, left, lost = await self._of_source(self._source)
        else:
            moves, left, lost = await self._of_checkpoints()
        listed = await list_groups(self._target)
        found = sorted({one.group for one in moves} | {one.group for one in left})
        refused = {group: why for group in found if (why := why_left(listed.get(group)))}
        done = {group for group in refused if all(one.is_done for one in moves if one.group == group)}
        left += [Left(group, "", why, is_obstacle=group not in done) for group, why in refused.items()]
        kept = [one for one in moves if one.group not in refused or one.group in done]
        kept, begun = await readable(kept, self._source, self._target, self._places, skips_deleted=self._skips_deleted)
        kept = await without_empty_steps(kept, self._target)
        kept.sort(key=lambda one: (one.group, one.source))
        return GroupsPlan(tuple(found), tuple(kept), (*left, *begun)), lost

    async def _of_source(self, source: Cluster) -> tuple[list[GroupMove], list[Left], tuple[str, ...]]:
        listed = {name: one for name, one in (await list_groups(source)).items() if self._takes(name)}
        left = [
            Left(name, "", why, is_obstacle=False) for name, one in listed.items() if (why := _WHY_NOT.get(one.kind))
        ]
        left += [
            Left(
                name,
                "",
                f"still has members on cluster {source.name} (it is {one.state}): stop its consumers first",
                is_of_source=True,
            )
            for name, one in listed.items()
            if one.has_offsets and not one.is_idle
        ]
        stored: _Stored = {}
        asking = asyncio.Semaphore(_AT_ONCE)

        async def ask(group: str) -> None:
            async with asking:
                # What a transaction is about to store would be read twice.
                stored[group] = await committed(source, group, stable=True)

        await asyncio.gather(*(ask(name) for name, one in listed.items() if one.has_offsets))
        moves: list[GroupMove] = []
        lost: set[str] = set()
        not_mirrored: dict[tuple[str, str], Left] = {}
        for group, offsets in sorted(stored.items()):
            present = await committed(self._target, group)
            for (topic, partition), at in sorted(offsets.items()):
                place = await self._places.place(topic, partition, at.offset)
                if place is not None:
                    moves.append(move_of(group, (topic, partition), at, place, present))
                elif self._places.is_mirrored(topic):
                    why = f"nothing is known of where offset {at.offset} of {topic}-{partition} is on the target"
                    left.append(Left(group, "", why))
                else:
                    lost.add(topic)
                    why = why_not_mirrored(topic, partition, at.offset, self._places.flow, self._others)
                    one = Left(group, "", why, is_obstacle=not self._leaves_topics)
                    not_mirrored.setdefault((group, topic), one)
        return await self._by_time(moves), [*left, *not_mirrored.values()], tuple(sorted(lost))

    async def _of_checkpoints(self) -> tuple[list[GroupMove], list[Left], tuple[str, ...]]:
        moves: list[GroupMove] = []
        left: list[Left] = []
        present: dict[str, Mapping[Partition, Committed]] = {}
        checkpoints = await self._checkpoints()
        gone = await self._gone({target for _, target in checkpoints})
        left += [_without_topic(*one) for one in sorted(checkpoints) if one[1] in gone]
        kept = {of: one for of, one in checkpoints.items() if of[1] not in gone}
        ends, _ = await told_offsets(self._target, {target for _, target in kept}, LATEST)
        for (group, target), one in sorted(kept.items()):
            if group not in present:
                present[group] = await committed(self._target, group)
            place = await self._places.by_checkpoint(target, one.upstream_offset)
            at = Committed(one.upstream_offset, one.metadata)
            moves.append(
                move_of(
                    group, target, at, place or Place(*target, one.downstream_offset, How.CHECKPOINT), present[group]
                )
            )
            if self._at_ms is None and (why := self._why_doubted(one, ends.get(target), is_known=place is not None)):
                left.append(Left(group, "", why, is_obstacle=not self._trusts_checkpoints))
        told = {group for group, _ in checkpoints} - {one.group for one in moves}
        more = await unseen(
            self._target,
            moves,
            present,
            {group for group in self._named if group not in told or self._topics},
            self._topics,
            self._places.filled(),
            is_by_time=self._at_ms is not None,
        )
        return await self._by_time([*moves, *more.moves]), [*left, *more.left], ()

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

    def _why_doubted(self, one: Checkpoint, end: int | None, *, is_known: bool) -> str:
        target = TopicPartition(one.topic, one.partition)
        return why_doubted(one, end, self._places.copied_up_to(target) if is_known else None)

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

    async def _by_time(self, moves: list[GroupMove]) -> list[GroupMove]:
        """With ``at_ms`` the first record that is as late, of the same partitions."""
        if self._at_ms is None or not moves:
            return moves
        wanted = {one.target for one in moves}
        found = await list_offsets(self._target, wanted, self._at_ms)
        ends = await list_offsets(self._target, wanted, LATEST)
        places = {one: found[one] if found[one] >= 0 else ends[one] for one in wanted}
        return [replace(one, after=places[one.target], metadata="", how=How.TIME) for one in moves]


def why_not_mirrored(
    topic: str, partition: int, offset: int, flow: MirrorSourceSettings, others: Collection[str]
) -> str:
    """Why a group at ``offset`` gets none of ``topic`` at the target, and what to do (pure).

    Args:
        others: Aliases of clusters that are neither the flow's source nor its target.
    """
    origin, upstream = flow.policy.topic_source(topic), flow.policy.upstream_topic(topic)
    if origin not in others:
        return f"reads {topic}, which {flow.flow} does not mirror: it gets no offset there; --accept not-mirrored"
    here, there = f"{origin}->{flow.source_alias}", f"{origin}->{flow.target_alias}"
    look_up = f"heliograph map FILE --topic {upstream} --partition {partition}"
    return (
        f"reads {topic}, which {here} copies from cluster {origin}: failover moves no groups there. For each of its "
        f"partitions look up the offset there ({look_up} --flow '{here}' --offset {offset} --reverse) and then that of "
        f"the answer on cluster {flow.target_alias} ({look_up} --flow '{there}' --offset ANSWER), set it there with "
        "kafka-consumer-groups.sh --reset-offsets, and --accept not-mirrored"
    )


def _without_topic(group: str, target: Partition) -> Left:
    """A checkpoint outlives its topic: nothing is left to read, and nothing can be stored for it."""
    why = "its remote topic is gone: the group has a checkpoint of it, and nothing there to read"
    return Left(group, f"{target[0]}-{target[1]} ", why, is_obstacle=False)


def why_doubted(one: Checkpoint, end: int | None, copied_up_to: int | None) -> str:
    """Why a checkpoint may be of a topic that was there before (pure). ``end`` is the target's, ``copied_up_to`` a
    source offset; None unknown."""
    what = ""
    if end is None:
        what = f"{one.topic}-{one.partition} does not tell where it ends"
    elif one.downstream_offset > end:
        what = f"offset {one.downstream_offset} of {one.topic}-{one.partition}, which ends at {end}"
    elif copied_up_to is not None and one.upstream_offset > copied_up_to:
        what = f"source offset {one.upstream_offset} of {one.topic}-{one.partition}, copied up to {copied_up_to} only"
    return what and (
        f"its checkpoint is of {what}: its reader was ahead of the copy, or the topic was made anew since; --accept "
        "checkpoints if it was ahead, else --at"
    )


async def still_there(cluster: Cluster, seconds: float = 10.0) -> str:
    """Why a cluster does not answer; empty where it does."""
    try:
        async with asyncio.timeout(seconds):
            await cluster.metadata(frozenset())
    except TimeoutError:
        return f"no broker answers within {seconds:g} s"
    except HeliographError as error:
        return str(error)
    return ""
