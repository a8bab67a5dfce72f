"""Copies of a third cluster's topic on both clusters: where an offset of the one is in the other.

By the offset map of the flow from there to the source, read the other way, and then by that of the flow to the target.
Both lie where their copies are: the third cluster itself is not asked. Nothing is told that would have a group skip a
record, or read one again because one of the flows is behind the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Final, NamedTuple
from uuid import UUID

from connect.core.errors import HeliographError, PermanentError
from connect.kafka.cluster import Cluster
from connect.kafka.group_offsets import Partition
from connectors.checkpoint.beginnings import Beginnings
from connectors.dataplane.plan import TopicPartition
from connectors.failover.model import BothCopied, How, Place
from connectors.failover.own import read_ranges
from connectors.failover.third import Third
from connectors.map_reader import MapReader
from connectors.offset_map import Pair
from connectors.offset_map import Place as Lies
from connectors.positions import Position
from connectors.settings import MirrorSourceSettings

_BY_HAND: Final = "set its offset there by hand (kafka-consumer-groups.sh --reset-offsets) and --accept not-mirrored"
_AGAIN: Final = f"look again once it has or, if it never will, {_BY_HAND}"


class Sibling(NamedTuple):
    """The partition of the target that holds the same. ``place`` is None where it cannot be told, as ``why`` says."""

    target: Partition
    place: Place | None
    why: str = ""


class _Upstream(NamedTuple):
    """A reader in the third cluster's topic: behind the last record that it has read, and at the next one."""

    read_to: int
    at: int
    how: How


class _Untold(Exception):
    """Why a place cannot be told, and what to do."""

    def __init__(self, why: str, remedy: str = _BY_HAND) -> None:
        super().__init__(f"{why}; {remedy}")


class Siblings:
    """Of all third clusters. Maps are read when the first place is asked for: few failovers need them."""

    def __init__(self, thirds: Sequence[Third], source: Cluster, target: Cluster) -> None:
        self._ways = [_Way(third, source, target) for third in thirds]

    async def find(self, topic: str, partition: int, offset: int) -> Sibling | None:
        """Of who would read ``offset`` of the source next; None where the target has no such copy, as far as the file
        and the maps tell. Raises as the clusters."""
        found = [one for way in self._ways if (one := await way.find(topic, partition, offset)) is not None]
        if len(found) > 1:
            return found[0]._replace(place=None, why=f"reads {topic}-{partition}, which several flows fill; {_BY_HAND}")
        return found[0] if found else None

    async def first_there(self, log: Partition, target: Partition, offset: int) -> int | None:
        """As :meth:`connectors.failover.places.Places.first_there`."""
        found = [one for way in self._ways if (one := await way.first_there(log, target, offset)) is not None]
        return max(found, default=None)


class _Copies:
    """One flow's, with its map, on the cluster where both are."""

    def __init__(self, flow: MirrorSourceSettings, cluster: Cluster) -> None:
        self.flow = flow
        self.cluster = cluster
        self.map = MapReader(cluster, flow.map_topic, connector=flow.name)
        self.by_target: Mapping[Partition, Pair] = {}
        self._ids: dict[str, UUID | None] = {}
        self._error: HeliographError | None = None
        self._is_read = False

    async def begin(self) -> None:
        """Read the map, once. Who may not read it is told so by :meth:`check` alone, where the map is needed."""
        if self._is_read:
            return
        self._is_read = True
        try:
            await self.map.follow()
        except HeliographError as error:
            self._error = error
            return
        pairs = [pair for one in self.map.sources() if (pair := self.map.current(one)) is not None]
        self.by_target = {(pair.target_topic, pair.target_partition): pair for pair in pairs}
        known = (await self.cluster.metadata({pair.target_topic for pair in pairs})).topics if pairs else {}
        self._ids = {name: topic.topic_id for name, topic in known.items() if topic.partitions}

    def check(self, pair: Pair | None, what: str) -> Pair:
        """``pair`` where its copy is still there. Raises _Untold."""
        if self._error is not None:
            raise _Untold(f"the offset map of {self.flow.flow} cannot be read: {self._error}")
        if pair is None:
            raise _Untold(
                f"the offset map of {self.flow.flow} on cluster {self.cluster.name} does not know {what}, as where "
                "Java's MirrorMaker 2 copies it"
            )
        if pair.target_topic not in self._ids or _differ(pair.target_topic_id, self._ids[pair.target_topic]):
            raise _Untold(
                f"{pair.target_topic} of cluster {self.cluster.name} was made anew since {self.flow.flow} copied to it"
            )
        return pair

    def position(self, pair: Pair) -> Position:
        position = self.map.position(TopicPartition(pair.source_topic, pair.source_partition))
        assert position is not None, "a pair that is current has one"
        return position

    async def has_records(self, pair: Pair, begin: int, end: int) -> bool:
        """Of the copy; the marker of a transaction is none."""
        if begin >= end:
            return False
        copy = TopicPartition(pair.target_topic, pair.target_partition)
        async with aclosing(read_ranges(self.cluster, copy, [(begin, end)])) as records:
            async for _ in records:
                return True
        return False

    async def check_bare(self, pair: Pair, begin: int) -> None:
        """Raises _Untold where copies lie before all that the map knows."""
        beginnings = Beginnings(self.cluster)
        await beginnings.follow([pair])
        if not await beginnings.is_bare_before(pair, begin):
            raise _Untold(
                f"the offset map of {self.flow.flow} knows nothing of what {pair.target_topic}-{pair.target_partition} "
                f"of cluster {self.cluster.name} holds before offset {begin}"
            )


class _Way:
    """From the source's copies of one third cluster's topics to the target's."""

    def __init__(self, third: Third, source: Cluster, target: Cluster) -> None:
        self._third = third
        self._here = _Copies(third.to_source, source)
        self._there = _Copies(third.to_target, target)
        changing = [one for one in (third.to_source, third.to_target) if one.changing_key]
        changed_by = ", ".join(f"{one.flow} changes records on their way, by {one.changing_key}" for one in changing)
        self._both = BothCopied(str(third.to_target.flow), changed_by)

    async def find(self, topic: str, partition: int, offset: int) -> Sibling | None:
        await self._here.begin()
        here = self._here.by_target.get((topic, partition))
        origin = TopicPartition(here.source_topic, here.source_partition) if here else self._by_name(topic, partition)
        if origin is None:
            return None
        await self._there.begin()
        there = self._there.map.current(origin)
        target = self._copy_of(origin) if there is None else (there.target_topic, there.target_partition)
        if target is None or not await self._is_there(target):
            return None
        try:
            here = self._here.check(here, f"{topic}-{partition}")
            there = self._there.check(there, f"{origin} of cluster {self._third.alias}")
            if _differ(here.source_topic_id, there.source_topic_id):
                raise _Untold(
                    f"{origin.topic} of cluster {self._third.alias} was made anew, and its copies here and there are "
                    "not of the same one"
                )
            place = await self._downstream(there, await self._upstream(here, offset))
            return Sibling(target, place._replace(third=self._both))
        except _Untold as error:
            return Sibling(
                target,
                None,
                f"reads {topic}-{partition}, of which cluster {self._there.cluster.name} has {target[0]} by "
                f"{self._third.to_target.flow}; its place there cannot be told: {error}",
            )

    async def first_there(self, log: Partition, target: Partition, offset: int) -> int | None:
        for one in (self._here, self._there):
            await one.begin()
        here, there = self._here.by_target.get(log), self._there.by_target.get(target)
        if here is None or there is None or _origin(here) != _origin(there):
            return None
        found = await self._there.map.reverse(there, offset)
        upstream = self._there.position(there).next_source_offset if found is None else found.offset
        first = await self._here.map.forward(here, upstream)
        return self._here.position(here).target_end if first is None else first.offset

    async def _upstream(self, pair: Pair, offset: int) -> _Upstream:
        """Of who would read ``offset`` of the source's copy next."""
        position, found = self._here.position(pair), await self._here.map.reverse(pair, offset)
        is_beyond = found is None or found.place is Lies.BEYOND
        if is_beyond and await self._here.has_records(pair, position.target_end, offset):
            raise _Untold(f"{self._here.flow.flow} has not stored yet which records it copied last", _AGAIN)
        if found is None:
            await self._here.check_bare(pair, position.target_end)
            return _Upstream(0, position.next_source_offset, How.EXACT)
        if found.place is Lies.BELOW:
            first = await self._here.map.forward(pair, found.offset)
            assert first is not None, "there is a map"
            await self._here.check_bare(pair, first.offset)
            return _Upstream(0, found.offset, How.GAP)
        how = How.GAP if found.place is Lies.GAP else How.EXACT
        last = await self._here.map.reverse(pair, offset - 1) if offset else None
        if last is None or last.place is Lies.BELOW:
            return _Upstream(0, found.offset, how)
        return _Upstream(min(last.offset + (last.place is Lies.INSIDE), found.offset), found.offset, how)

    async def _downstream(self, pair: Pair, upstream: _Upstream) -> Place:
        """The same in the target's copy."""
        position, found = self._there.position(pair), await self._there.map.forward(pair, upstream.at)
        end = position.target_end if found is None else found.offset
        missing = upstream.read_to - position.next_source_offset
        how = upstream.how
        if missing > 0 and (found is None or found.place is Lies.BEYOND):
            raise _Untold(
                f"{self._there.flow.flow} has still to copy what the group has read, {missing} offsets of it, "
                f"which it would read again from the end of the copy on, {end}",
                _AGAIN,
            )
        if found is None or found.place is Lies.BELOW:
            await self._there.check_bare(pair, end)
            how = How.BEGIN
        elif found.place is Lies.GAP:
            how = How.GAP
        elif found.place is Lies.BEYOND and upstream.at > position.next_source_offset:
            how = How.END
        return Place(pair.target_topic, pair.target_partition, end, how)

    def _by_name(self, topic: str, partition: int) -> TopicPartition | None:
        """The third cluster's topic that a copy without a map is of, as its name says."""
        flow = self._third.to_source
        if not flow.names.are_the_policys or flow.policy.topic_source(topic) != self._third.alias:
            return None
        upstream = flow.policy.upstream_topic(topic)
        if upstream is None or not flow.should_mirror(upstream):
            return None
        return TopicPartition(upstream, partition)

    def _copy_of(self, origin: TopicPartition) -> Partition | None:
        """On the target, by name."""
        flow = self._third.to_target
        try:
            return (flow.remote_topic(origin.topic), origin.partition) if flow.should_mirror(origin.topic) else None
        except PermanentError:  # it has no name there
            return None

    async def _is_there(self, target: Partition) -> bool:
        known = (await self._there.cluster.metadata({target[0]})).topics.get(target[0])
        return known is not None and target[1] in known.partitions


async def beside_the_lost(thirds: Sequence[Third], target: Cluster) -> list[str]:
    """Topics of the target that hold copies of what third clusters sent to the lost source as well. Raises as the
    target."""
    found = set()
    for third in thirds:
        if not third.to_source.enabled:
            continue
        copies = _Copies(third.to_target, target)
        await copies.begin()
        sent, policy = third.to_source.should_mirror, third.to_source.policy
        found |= {
            pair.target_topic
            for pair in copies.by_target.values()
            if sent(pair.source_topic) and not policy.is_heartbeats_topic(pair.source_topic)
        }
    return sorted(found)


def _origin(pair: Pair) -> tuple[str, UUID | None, int]:
    return pair.source_topic, pair.source_topic_id, pair.source_partition


def _differ(one: UUID | None, other: UUID | None) -> bool:
    return None not in (one, other) and one != other
