"""When an offset sync is due, and which wait to be written (Kafka's ``OffsetSyncWriter``, without its producer). Pure.

Java is told of records one by one. Here whole runs are told, and cost as much as the syncs that they make due.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from connectors.dataplane.plan import Run, TopicPartition
from connectors.mirror_records import OffsetSync

#: Of one partition. A reader keeps no more (``OffsetSyncStore``), and they are farther apart the older they are.
_MOST_WAITING: Final = 64


class Offsets(NamedTuple):
    """Two offsets of one record."""

    upstream: int
    downstream: int


@dataclass(slots=True)
class PartitionState:
    """What was acknowledged last of one source partition, and synced last (``OffsetSyncWriter.PartitionState``)."""

    upstream: int = -1
    downstream: int = -1
    synced_downstream: int = -1

    def advance(self, run: Run, lag_max: int) -> range:
        """Take a run of acknowledged records; the upstream offsets of those that a sync is due for.

        One is due for the first record ever; where ``lag_max`` records and more lie behind what the last sync
        translates to; where upstream offsets are missing, or go back; and where downstream offsets go back.
        """
        upstream, downstream, count = run
        far = self.synced_downstream + 1 + lag_max - downstream
        at_once = (
            self.synced_downstream == -1 or far <= 0 or upstream - self.upstream != 1 or downstream < self.downstream
        )
        # Within a run only distance makes one due.
        due = range(upstream + (0 if at_once else far), upstream + count, max(lag_max + 1, 1))
        if due:
            self.synced_downstream = downstream + due[-1] - upstream
        self.upstream, self.downstream = upstream + count - 1, downstream + count - 1
        return due


class OffsetSyncs:
    """The syncs of one task that wait to be written, in order.

    A sync that is due may be written at once. The last record of each partition may be synced at a commit, due or not,
    so that a quiet partition does not stay behind. Where syncs wait, Java keeps the newest of each partition; here a
    few more are kept, farther apart the older they are.
    """

    def __init__(self, lag_max: int) -> None:
        self._lag_max = lag_max
        self._states: dict[TopicPartition, PartitionState] = {}
        self._pending: dict[TopicPartition, list[Offsets]] = {}
        self._delayed: dict[TopicPartition, Offsets] = {}

    def acknowledged(self, source: TopicPartition, runs: Iterable[Run]) -> None:
        """Records of a source partition have been acknowledged, in this order."""
        state = self._states.setdefault(source, PartitionState())
        for run in runs:
            due = state.advance(run, self._lag_max)
            if due:
                difference = run[1] - run[0]
                # The last one stays, however many are left out.
                every = -(-len(due) // _MOST_WAITING)
                self._queue(source, [Offsets(upstream, upstream + difference) for upstream in reversed(due[::-every])])
            if due and due[-1] == state.upstream:
                self._delayed.pop(source, None)
            else:
                self._delayed[source] = Offsets(state.upstream, state.downstream)

    def commit(self) -> None:
        """Positions were stored: what is delayed may be written too."""
        delayed, self._delayed = self._delayed, {}
        for source, pair in delayed.items():
            self._queue(source, [pair])

    def waiting(self) -> int:
        """How many may be written now."""
        return sum(map(len, self._pending.values()))

    def leave(self, sources: Iterable[TopicPartition]) -> list[OffsetSync]:
        """What may be written of partitions that another task writes of from now on, delayed or not; nothing of them
        is known here after that."""
        left: list[OffsetSync] = []
        for source in sources:
            if source in self._delayed:
                self._queue(source, [self._delayed.pop(source)])
            left += _syncs_of(source, self._pending.pop(source, ()))
            self._states.pop(source, None)
        return left

    def keep_newest(self) -> None:
        """Leave out all that waits but the newest of each partition."""
        self._pending = {source: pairs[-1:] for source, pairs in self._pending.items()}

    def take(self, most: int) -> list[OffsetSync]:
        """So many at most that may be written now, to be given back where that fails."""
        taken: list[OffsetSync] = []
        while self._pending and len(taken) < most:
            source = next(iter(self._pending))
            pairs = self._pending.pop(source)
            room = most - len(taken)
            taken += _syncs_of(source, pairs[:room])
            if pairs[room:]:
                self._pending[source] = pairs[room:]
        return taken

    def give_back(self, syncs: Iterable[OffsetSync]) -> None:
        """These were not written; they come before what has become due since. Those of partitions that have left are
        forgotten."""
        newer, self._pending = self._pending, {}
        for sync in syncs:
            source = TopicPartition(sync.topic, sync.partition)
            if source not in self._states:
                continue
            self._pending.setdefault(source, []).append(Offsets(sync.upstream_offset, sync.downstream_offset))
        for source, pairs in newer.items():
            self._queue(source, pairs)

    def _queue(self, source: TopicPartition, pairs: list[Offsets]) -> None:
        waiting = self._pending.setdefault(source, [])
        if waiting and pairs[0].upstream <= waiting[-1].upstream:
            # A reader forgets all that it had when upstream offsets go back.
            waiting.clear()
        waiting += pairs
        while len(waiting) > _MOST_WAITING:
            half = len(waiting) // 2
            waiting[:half] = waiting[:half:2]


def _syncs_of(source: TopicPartition, pairs: Iterable[Offsets]) -> list[OffsetSync]:
    return [OffsetSync(source.topic, source.partition, *pair) for pair in pairs]
