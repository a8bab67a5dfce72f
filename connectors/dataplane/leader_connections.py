"""Find and connect the leaders of a cluster's topics, and limit how much a slice asks of each connection at once.

The limits, in bytes and in requests, are measured while a connection is busy.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection
from typing import Final, NamedTuple, Self
from uuid import UUID

from connect.kafka.cluster import Cluster, ClusterMetadata
from connect.kafka.concurrency import Scope
from connectors.formats.types import TopicPartition

#: A broker that does not answer delays the others no longer than this.
_OPEN_TIMEOUT_S: Final = 5.0


class Leader(NamedTuple):
    node: int
    epoch: int


class Leaders:
    """The leaders that metadata named at one time. They are hints: each answer says if the leader still leads."""

    def __init__(self, metadata: ClusterMetadata) -> None:
        self._metadata = metadata

    @classmethod
    async def connected(cls, cluster: Cluster, topics: Collection[str]) -> Self:
        """Look up the leaders of ``topics`` and connect to each. An unreachable leader fails at its first request.
        Raises :class:`ClusterUnreachable`."""
        metadata = await cluster.metadata(topics)
        nodes = {row.leader for topic in metadata.topics.values() for row in topic.partitions.values()} - {-1}
        async with Scope("leaders") as scope:
            opening = [scope.spawn(cluster.connection(node, "copy"), f"connect to {node}") for node in nodes]
            if opening:
                await asyncio.wait(opening, timeout=_OPEN_TIMEOUT_S)
            for one in opening:
                if one.done() and not one.cancelled():
                    one.exception()  # because the first request will raise it again
        return cls(metadata)

    def of(self, partition: TopicPartition, topic_id: UUID | None, least_epoch: int = -1) -> Leader | None:
        """Return a partition's leader; None if there was none, its epoch is over, or the topic had another id."""
        topic = self._metadata.topics.get(partition.topic)
        row = topic.partitions.get(partition.partition) if topic is not None and topic.topic_id == topic_id else None
        if row is None or row.leader < 0 or row.leader_epoch < least_epoch:
            return None
        return Leader(row.leader, row.leader_epoch)


#: Long enough to keep a fast link busy between answers, short enough for the drain at the end of an epoch.
_AHEAD_S: Final = 5.0
#: Answers that arrive closer together say nothing about the rate.
_SAMPLE_S: Final = 0.25
#: How long requests may wait at a broker, so that it is never idle even if we are busy for 10 ms and more.
_QUEUED_S: Final = 0.02
_FIRST_REQUESTS: Final = 8
_LEAST_REQUESTS: Final = 2
#: An answer that takes at most this multiple of the shortest trip did not wait in a queue.
_UNQUEUED: Final = 1.25
#: How long a shortest trip counts, and how long a window that was too large is not tried again.
_TRIP_S: Final = 10.0
#: Weight of a new sample of a request's cost.
_WEIGHT: Final = 0.2


class Pace:
    """The rate of a connection, and how many bytes to have in flight: ``limit_bytes``, from ``least`` to ``most``.
    Times are seconds of a steady clock."""

    def __init__(self, least: int, most: int) -> None:
        self._least = min(least, most)
        self._most = most
        self._bytes_per_s = 0.0
        self._since_s = 0.0
        self._moved_bytes = 0

    @property
    def limit_bytes(self) -> int:
        return min(max(self._least, int(self._bytes_per_s * _AHEAD_S)), self._most)

    def seconds_for(self, size: int) -> float:
        """Return how long ``size`` bytes should take; 5 s while no rate is known."""
        return size / self._bytes_per_s if self._bytes_per_s else _AHEAD_S

    def begin(self, now_s: float) -> None:
        """Note that an idle connection is now busy."""
        self._since_s = now_s
        self._moved_bytes = 0

    def moved(self, size: int, now_s: float, *, is_idle: bool) -> None:
        """Note that ``size`` bytes were answered; ``is_idle``: nothing is in flight any more."""
        self._moved_bytes += size
        took_s = now_s - self._since_s
        if took_s <= 0 or not (is_idle or took_s >= _SAMPLE_S):
            return
        sample = self._moved_bytes / took_s
        # The rate falls slowly, because a slow sample may mean that there was little to send.
        self._bytes_per_s = max(sample, (self._bytes_per_s + sample) / 2)
        self.begin(now_s)


class Turns:
    """The number of Produce requests worth having in flight on a connection. Batches that a broker could not begin yet
    wait here instead, where they can be merged.

    A broker takes a connection's requests one after the other, and answers each when followers have it. The time that
    an answer takes beyond the shortest is the time its request waited for others. Once per round trip ``limit`` is set
    so that this wait would be 20 ms (as FAST TCP sets its window by queueing delay), so the broker is never idle while
    there is a backlog. Without a backlog, waiting there gains nothing, and ``unqueued`` is the number of requests that
    do not wait for each other (as TCP Vegas finds it): one if replication takes longer than the network, many at a
    distance.

    ``request_s`` is a request's cost: its time divided by the number in flight. ``answer_s`` is the time until its
    answer. Both are means of recent requests, 0 before the first. Times are seconds of a steady clock.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.limit = self.unqueued = min(_FIRST_REQUESTS, most)
        self.request_s = self.answer_s = 0.0
        self._usual_bytes = 0.0
        self._trip_s = self._next_trip_s = math.inf
        self._trip_until_s = self._round_since_s = self._grows_after_s = 0.0
        self._took_s: list[float] = []
        self._under_way = self._most_under_way = 0

    def answered(self, sent_s: float, now_s: float, under_way: int, size: int) -> None:
        """Take the answer to ``size`` bytes sent at ``sent_s``; ``under_way`` counts requests in flight, its own
        included. A small request among large ones is ignored, because a slow link needs less time for it."""
        self._usual_bytes += _WEIGHT * (size - self._usual_bytes)
        if size < self._usual_bytes / 2:
            return
        took_s = now_s - sent_s
        cost_s = took_s / under_way
        self.request_s = _mean(self.request_s, cost_s)
        self.answer_s = _mean(self.answer_s, took_s)
        self._look_at_trip(took_s, now_s, under_way)
        self._took_s.append(took_s)
        self._under_way += under_way
        self._most_under_way = max(self._most_under_way, under_way)
        if sent_s >= self._round_since_s:
            self._end_round(now_s)

    def _look_at_trip(self, took_s: float, now_s: float, under_way: int) -> None:
        """Update the shortest trip: how long an answer takes whose request did not wait, in the last seconds."""
        self._trip_s = min(self._trip_s, took_s)
        if under_way <= _LEAST_REQUESTS:
            self._next_trip_s = min(self._next_trip_s, took_s)
        if now_s >= self._trip_until_s:
            self._trip_until_s = now_s + _TRIP_S
            if self._next_trip_s < math.inf:
                self._trip_s, self._next_trip_s = self._next_trip_s, math.inf

    def _end_round(self, now_s: float) -> None:
        took_s = max(sum(self._took_s) / len(self._took_s), self._trip_s, _QUEUED_S / 1000)
        wanted = math.ceil(self.limit * (self._trip_s + _QUEUED_S) / took_s)
        if wanted < self.limit or self._most_under_way >= self.limit:
            self.limit = max(min(wanted, 2 * self.limit, self._most), _LEAST_REQUESTS)
        unqueued = int(self._under_way / len(self._took_s) * self._trip_s * _UNQUEUED / took_s)
        if self._most_under_way > 1 and unqueued < self.unqueued:
            self.unqueued = max(unqueued, 1)
            self._grows_after_s = now_s + _TRIP_S
        elif self._most_under_way >= self.unqueued and now_s >= self._grows_after_s:
            self.unqueued = min(2 * self.unqueued, self._most)
        self._took_s.clear()
        self._under_way = self._most_under_way = 0
        self._round_since_s = now_s


def _mean(of_recent: float, sample: float) -> float:
    """Return the mean with a new sample; 0 is none yet."""
    return of_recent + _WEIGHT * (sample - of_recent) if of_recent else sample
