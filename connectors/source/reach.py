"""Which partitions a take-over can do something with now; the others wait, and do not hold it up.

A fence is one transaction over all of its partitions: where one marker cannot be written, the transactional id answers
CONCURRENT_TRANSACTIONS to everybody for as long. So a partition that has no leader, or too few replicas in sync for a
marker, is not fenced with the others. Its position stays as it is and nothing is written there, until it is taken over
by itself: behind a fence of its own, between two slices, as that raises the epoch of all.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Final

from connect.core.errors import RetriableError
from connect.kafka.cluster import Cluster, ClusterMetadata
from connect.kafka.offsets import unknown_ends
from connect.kafka.topic_configs import min_insync_replicas
from connectors.dataplane import codes
from connectors.dataplane.plan import TopicPartition
from connectors.positions import Position
from connectors.source.ledger import Entry
from connectors.source.store import Start

#: How long after a take-over is looked whether one that waits can be taken over; twice as long each time that it then
#: could not, since nobody copies meanwhile.
_LOOK_AGAIN_S: Final = 5.0
_MAX_LOOK_AGAIN_S: Final = 300.0
_OUT_OF_DATE_S: Final = 60.0
#: So many reasons are given if every partition waits.
_MOST_NAMED: Final = 5


class Waiting:
    """Partitions of a task that could not be taken over with the others."""

    def __init__(self, source: Cluster, target: Cluster) -> None:
        self._source = source
        self._target = target
        self._again_s = _LOOK_AGAIN_S
        self._look_at_s = 0.0
        #: What is stored of them.
        self.starts: Mapping[TopicPartition, Start] = {}
        self._read_s: dict[TopicPartition, float] = {}

    def keep(self, entries: Sequence[Entry], starts: Mapping[TopicPartition, Start]) -> None:
        """A takeover has left these ``entries``."""
        self._again_s = min(self._again_s * 2, _MAX_LOOK_AGAIN_S) if entries and self.starts else _LOOK_AGAIN_S
        now_s = asyncio.get_running_loop().time()
        self._look_at_s = now_s + self._again_s
        self.starts = {entry.pair.source: starts[entry.pair.source] for entry in entries}
        self._read_s = {source: self._read_s.get(source, now_s) for source in self.starts}

    def add(self, starts: Mapping[TopicPartition, Start]) -> None:
        """More wait, or the store says something else of them."""
        if starts:
            self.starts, self._look_at_s = {**self.starts, **starts}, 0.0
            self._read_s |= dict.fromkeys(starts, asyncio.get_running_loop().time())

    def out_of_date(self) -> list[TopicPartition]:
        """Return those of which the store was read long ago."""
        now_s = asyncio.get_running_loop().time()
        return [source for source, read_s in self._read_s.items() if now_s - read_s > _OUT_OF_DATE_S]

    def retain(self, entries: Sequence[Entry]) -> None:
        """Forget what was stored of all but ``entries``: others may write the rest."""
        kept = {entry.pair.source for entry in entries}
        self.starts = {source: start for source, start in self.starts.items() if source in kept}
        self._read_s = {source: read_s for source, read_s in self._read_s.items() if source in kept}

    async def is_back(self, entries: Sequence[Entry]) -> bool:
        """Return whether one of ``entries`` can be taken over now; False if it is too early to look."""
        now_s = asyncio.get_running_loop().time()
        if not entries or now_s < self._look_at_s:
            return False
        self._look_at_s = now_s + _LOOK_AGAIN_S
        with contextlib.suppress(RetriableError):
            return len(await still_away(self._source, self._target, entries, self.starts)) < len(entries)
        return False


async def out_of_reach(
    source: Cluster, target: Cluster, entries: Sequence[Entry], starts: Mapping[TopicPartition, Start]
) -> dict[TopicPartition, str]:
    """Why entries cannot be taken over now, by source partition; in sentences for people.

    Raises :class:`RetriableError` where a cluster does not answer.
    """
    marked = {entry.pair.source: target_of(position) for entry in entries if (position := _unclean(entry, starts))}
    asked = {entry.pair.source for entry in entries if _asks_the_source(starts[entry.pair.source])}
    here, there, least = await asyncio.gather(
        source.metadata({partition.topic for partition in asked}),
        target.metadata({entry.pair.target.topic for entry in entries} | {one.topic for one in marked.values()}),
        min_insync_replicas(target, {one.topic for one in marked.values()}),
    )
    found = {}
    for entry in entries:
        pair = entry.pair
        why = "" if there.leader(*pair.target) is not None else f"target {pair.target} has no leader"
        if not why and pair.source in marked:
            why = _no_marker(there, marked[pair.source], least)
        if not why and pair.source in asked and here.leader(*pair.source) is None:
            why = f"source {pair.source} has no leader"
        if why:
            found[pair.source] = why
    led = {entry.pair.target: entry.pair.source for entry in entries if entry.pair.source not in found}
    untold = await unknown_ends(target, led) if led else {}
    return found | {led[TopicPartition(*partition)]: f"target {why}" for partition, why in untold.items()}


def let_wait(entries: Sequence[Entry], away: Mapping[TopicPartition, str], *, may_be_all: bool = False) -> list[Entry]:
    """Let the entries wait that are ``away``, each with its reason, and return the others. Raises
    :class:`RetriableError` if there are no others, unless it ``may_be_all``."""
    if away and not may_be_all and all(entry.pair.source in away for entry in entries):
        raise RetriableError("; ".join(sorted(set(away.values()))[:_MOST_NAMED]))
    for entry in entries:
        if why := away.get(entry.pair.source):
            entry.wait(why)
    return [entry for entry in entries if entry.pair.source not in away]


async def still_away(
    source: Cluster, target: Cluster, entries: Sequence[Entry], starts: Mapping[TopicPartition, Start]
) -> dict[TopicPartition, str]:
    """As :func:`out_of_reach`, without those whose topic a cluster does not have: it does not come back by being waited
    for, and a take-over gives them another, or tells that it is gone."""
    away = await out_of_reach(source, target, entries, starts)
    pairs = [entry.pair for entry in entries if entry.pair.source in away]
    here, there = await asyncio.gather(
        source.metadata({pair.source.topic for pair in pairs}),
        target.metadata({pair.target.topic for pair in pairs}),
    )
    return {
        pair.source: away[pair.source]
        for pair in pairs
        if _has(here, pair.source.topic) and _has(there, pair.target.topic)
    }


def target_of(position: Position) -> TopicPartition:
    """Where a position's writer wrote, which under another policy is another topic than now."""
    return TopicPartition(position.target_topic, position.target_partition)


def _has(cluster: ClusterMetadata, name: str) -> bool:
    topic = cluster.topics.get(name)
    return topic is not None and topic.error_code != codes.UNKNOWN_TOPIC_OR_PARTITION


def _unclean(entry: Entry, starts: Mapping[TopicPartition, Start]) -> Position | None:
    """Where somebody may still write: what a fence has to mark."""
    position = starts[entry.pair.source].position
    return None if position is None or position.is_handed_over else position


def _asks_the_source(start: Start) -> bool:
    """For a proof, or for where to begin."""
    position = start.position
    return start.committed_source_offset is None or (position is not None and not position.is_handed_over)


def _no_marker(target: ClusterMetadata, partition: TopicPartition, least: Mapping[str, int]) -> str:
    """Why a fence cannot mark a partition now; empty if it can, and where its topic is gone."""
    topic = target.topics.get(partition.topic)
    known = topic.partitions.get(partition.partition) if topic else None
    if known is None:
        return ""
    if known.leader < 0:
        return f"target {partition} has no leader"
    wanted = least.get(partition.topic, 1)
    if known.in_sync and len(known.in_sync) < wanted:
        return f"target {partition} has {len(known.in_sync)} of the {wanted} replicas in sync that writing there needs"
    return ""
