"""Partitions that no task owns in the store: nothing is stored of them, or their last writer has handed them over.

There is no one to shut out then. If such a partition is given to one task and soon to another, both may be about to
store where they begin, and both would copy. The store's log decides: the first position of a partition is written in a
transaction, and committed only if nothing else of the partition lies between that record and the offset up to which the
store was read. The later one of two tasks finds the record of the other, committed or not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from connect.core.errors import RetriableError
from connect.kafka.cluster import Cluster
from connect.kafka.producer import OutRecord
from connect.kafka.topiclog import LogRecord, read_to_end
from connect.kafka.transactions import Partition
from connectors.dataplane.plan import TopicPartition
from connectors.positions import Kind, Position, decode_kind, decode_position_key

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
    """Those of one connector that one store has read, in the log ``topic``."""

    def __init__(self, cluster: Cluster, topic: str, connector: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._connector = connector
        self._read_to: dict[TopicPartition, ReadTo] = {}

    def read(self, starts: Mapping[TopicPartition, _Start], read_to: Mapping[TopicPartition, ReadTo]) -> None:
        """The store says ``starts``."""
        self.owned(starts)
        self._read_to.update((source, read_to[source]) for source, start in starts.items() if is_unowned(start))

    def owned(self, sources: Iterable[TopicPartition]) -> None:
        """Positions of ``sources`` were stored."""
        for source in sources:
            self._read_to.pop(source, None)

    def first(self, sources: Iterable[TopicPartition], records: Sequence[OutRecord]) -> FirstPositions | None:
        """What decides whether ``records`` of ``sources`` may be committed; None if none of these is unowned."""
        read_to = {source: self._read_to[source] for source in sources if source in self._read_to}
        return FirstPositions(self._cluster, self._topic, self._connector, read_to, records) if read_to else None


class FirstPositions:
    """A write that has the first positions of some partitions. ``taken``: those that another task has written."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        connector: str,
        read_to: Mapping[TopicPartition, ReadTo],
        records: Sequence[OutRecord],
    ) -> None:
        self.taken: set[TopicPartition] = set()
        self._cluster = cluster
        self._topic = topic
        self._connector = connector
        self._read_to = read_to
        # An attempt before this one may have left them in the log.
        self._own = {(record.key, record.value) for record in records if record.topic == topic}

    async def may_commit(self, first: Mapping[Partition, int]) -> bool:
        """Whether no other task has written a partition before our ``first`` records, by their offsets.

        Raises as :func:`connect.kafka.topiclog.read_to_end`.
        """
        self.taken.clear()

        def look(record: LogRecord) -> None:
            if record.offset >= first[self._topic, record.partition]:
                return
            if (record.key, record.value) in self._own or (source := self._source_of(record.key)) is None:
                return
            if source in self._read_to and record.offset >= self._read_to[source].end:
                self.taken.add(source)

        after: dict[int, int] = {}
        for partition, end in self._read_to.values():
            after[partition] = min(after.get(partition, end), end)
        await read_to_end(
            self._cluster, self._topic, look, partitions=after.keys(), after=after, timeout_s=_READ_TIMEOUT_S
        )
        return not self.taken

    def _source_of(self, key: bytes | None) -> TopicPartition | None:
        """Whose position or progress a record is, if it is one of our connector's."""
        if key is None or decode_kind(key) not in (Kind.POSITION, Kind.PROGRESS):
            return None
        decoded = decode_position_key(key)
        is_ours = decoded.connector == self._connector
        return TopicPartition(decoded.source_topic, decoded.source_partition) if is_ours else None
