"""Partitions that no task owns in the store: nothing is stored of them, or their last writer has handed them over.

There is no one to shut out then. If such a partition is given to one task and soon to another, both may be about to
store where they begin, and both would copy. The store's log decides: the first position of a partition is written in a
transaction, and committed only if nothing else of the partition lies between that record and the offset up to which the
store was read. The later one of two tasks finds the record of the other, committed or not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from math import inf
from typing import Final, NamedTuple, Protocol

from connect.core.errors import RetriableError
from connect.kafka.cluster import Cluster
from connect.kafka.topiclog import LogRecord, read_to_end
from connect.kafka.transactions import Partition
from connectors.dataplane.plan import TopicPartition
from connectors.positions import Kind, Position, decode_kind, decode_position, decode_position_key

#: Without progress. A transaction is open meanwhile.
_READ_TIMEOUT_S: Final = 10.0


class PositionsTaken(RetriableError):
    """Another task has stored positions of ``sources`` since they were read. Read them again."""

    def __init__(self, sources: Collection[TopicPartition]) -> None:
        self.sources = frozenset(sources)
        names = ", ".join(sorted(str(source) for source in sources))
        super().__init__(f"another task has stored positions of {names} meanwhile")


class _Start(Protocol):
    @property
    def position(self) -> Position | None: ...

    @property
    def claimant(self) -> str: ...


def is_unowned(start: _Start) -> bool:
    """Whether no task owns the partition that the store says ``start`` of."""
    return not start.claimant and (start.position is None or start.position.is_handed_over)


class ReadTo(NamedTuple):
    """The partition of the store's log where a source partition's records are, and up to which offset it was read."""

    partition: int
    end: int


class Unowned:
    """Those of one connector that one store has read, in the log ``topic``, and those that it hands over: while it is
    not known whether that was committed, another task may have stored a position of them already."""

    def __init__(self, cluster: Cluster, topic: str, connector: str) -> None:
        #: What :meth:`may_commit` has found: these are to be read again.
        self.taken: frozenset[TopicPartition] = frozenset()
        self._cluster = cluster
        self._topic = topic
        self._connector = connector
        self._partitions: dict[TopicPartition, int] = {}
        self._read_to: dict[TopicPartition, ReadTo] = {}

    def read(self, starts: Mapping[TopicPartition, _Start], read_to: Mapping[TopicPartition, ReadTo]) -> None:
        """The store says ``starts``."""
        self.owned(starts)
        self._partitions.update((source, read_to[source].partition) for source in starts)
        self._read_to.update((source, read_to[source]) for source, start in starts.items() if is_unowned(start))

    def owned(self, sources: Iterable[TopicPartition]) -> None:
        """Positions of ``sources`` were stored."""
        for source in sources:
            self._read_to.pop(source, None)

    def concern(self, positions: Mapping[TopicPartition, Position]) -> bool:
        """Whether :meth:`may_commit` is to be asked before ``positions`` are committed."""
        return any(position.is_handed_over or source in self._read_to for source, position in positions.items())

    async def may_commit(self, ours: Mapping[TopicPartition, Position], first: Mapping[Partition, int]) -> bool:
        """Whether no other task has written a partition before us.

        Args:
            ours: The positions that are written.
            first: Offsets of the first records of this write.

        Raises as :func:`connect.kafka.topiclog.read_to_end`.
        """
        read_to = {source: self._read_to[source] for source in ours if source in self._read_to}
        self.taken = await self._written_by_others(read_to, ours, first) if read_to else frozenset()
        if self.taken:
            return False
        for source, position in ours.items():
            partition = self._partitions.get(source, -1)
            if position.is_handed_over and source not in self._read_to and (self._topic, partition) in first:
                self._read_to[source] = ReadTo(partition, first[self._topic, partition])
        return True

    async def _written_by_others(
        self,
        read_to: Mapping[TopicPartition, ReadTo],
        ours: Mapping[TopicPartition, Position],
        first: Mapping[Partition, int],
    ) -> frozenset[TopicPartition]:
        others, written = set[TopicPartition](), set[TopicPartition]()

        def look(record: LogRecord) -> None:
            source = self._source_of(record)
            if source is None or source not in read_to or record.offset < read_to[source].end:
                return
            if not _is_by(ours[source], record):
                if source not in written:
                    others.add(source)
            elif record.offset >= first.get((self._topic, record.partition), inf):  # else of an attempt before this one
                written.add(source)

        after: dict[int, int] = {}
        for partition, end in read_to.values():
            after[partition] = min(after.get(partition, end), end)
        await read_to_end(
            self._cluster, self._topic, look, partitions=after.keys(), after=after, timeout_s=_READ_TIMEOUT_S
        )
        # Our record may be elsewhere: partitions were added to the log, or it was recreated.
        return frozenset(others | (read_to.keys() - written))

    def _source_of(self, record: LogRecord) -> TopicPartition | None:
        """Whose position or progress it is, if it is one of our connector's."""
        if record.key is None or decode_kind(record.key) not in (Kind.POSITION, Kind.PROGRESS):
            return None
        key = decode_position_key(record.key)
        return TopicPartition(key.source_topic, key.source_partition) if key.connector == self._connector else None


def _is_by(position: Position, record: LogRecord) -> bool:
    """Whether the task of ``position`` has written the record, now or in an attempt of which it is not known what
    became."""
    if record.key is None or record.value is None or decode_kind(record.key) is not Kind.POSITION:
        return False
    # No two tasks have the same producer id where there is none to fence.
    return decode_position(decode_position_key(record.key), record.value).producer_id == position.producer_id


def source_of(position: Position) -> TopicPartition:
    """The source partition that a position is of."""
    return TopicPartition(position.source_topic, position.source_partition)
