"""The values that a position store reads and writes, and the ownership of partitions: which tasks to fence, and which
positions other tasks have stored."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from math import inf
from typing import Any, Final, NamedTuple, Protocol

from connect.core import status_and_offset_topics
from connect.core.errors import RetriableError, UnreadableRecord
from connect.kafka.cluster import Cluster
from connect.kafka.log.compacted_topic import LogRecord, NewestByKey, read_to_end
from connect.kafka.log.producer import TransactionalWriter
from connect.kafka.log.transactions import Partition, TransactionalIdRefused, init_producer_id
from connectors.formats.gap import Gap
from connectors.formats.position import (
    KeyKind,
    LastRun,
    Position,
    StoredPosition,
    decode_kind,
    decode_position,
    decode_position_key,
)
from connectors.formats.types import TopicPartition
from connectors.offset_map.runs_and_chunks import MapPair, MapRun, decode_chunk_key, first_downstream

log = logging.getLogger(__name__)


class MissingRights:
    """Logs once per flow that it runs without transactional ids; ``id_prefix`` is common to all its ids."""

    def __init__(self, flow: str = "", id_prefix: str = "") -> None:
        self._flow, self._id_prefix = flow, id_prefix
        self._is_announced = False

    def announce(self, error: TransactionalIdRefused) -> None:
        """Log that a transactional id was refused, and what follows, unless that is logged already."""
        if self._is_announced:
            return
        self._is_announced = True
        log.warning(
            "%s: %s (or grant WRITE and DESCRIBE on transactional ids that begin with %s). Until then a predecessor "
            "cannot be fenced, so after a crash records may appear twice, which is logged, and positions are stored "
            "without transactions. Do not run a second mirror of this flow",
            self._flow,
            error,
            self._id_prefix,
        )


#: How long a read may make no progress. It is short, because a transaction is open meanwhile.
_READ_TIMEOUT_S: Final = 10.0


class PositionsTaken(RetriableError):
    """Another task has stored positions of ``sources`` since they were read. Read them again."""

    def __init__(self, sources: Collection[TopicPartition]) -> None:
        self.sources = frozenset(sources)
        names = ", ".join(sorted(str(source) for source in sources))
        super().__init__(f"another task has stored positions of {names} meanwhile")


@dataclass(frozen=True, slots=True)
class Start:
    """What is stored of a partition. ``committed_source_offset``: offset of the last record copied, in Java's record;
    None if there is none. ``moved``: the position does not match that offset: an operator or a Java worker has changed
    it since, or, if ``decided``, a gap policy has. ``claimant``: the store id of the task that is taking the partition
    over from the position's writer, if any."""

    position: Position | None
    committed_source_offset: int | None
    moved: bool
    decided: bool = False
    claimant: str = ""

    @property
    def unmoved_position(self) -> Position | None:
        return None if self.moved else self.position

    @property
    def unclean_position(self) -> Position | None:
        """The position, if its writer may still write, and so has to be fenced."""
        return None if self.position is None or self.position.is_handed_over else self.position


def is_unowned(start: Start) -> bool:
    """Return whether no task owns the partition of ``start``."""
    return not start.claimant and start.unclean_position is None


class ReadTo(NamedTuple):
    """The store's log partition with a source partition's records, and the offset up to which it was read."""

    partition: int
    end: int


class Unowned:
    """The unowned partitions of one connector: those that one store has read, in ``topic``, and those that it hands
    over. While it is unknown whether a handover was committed, another task may have stored their positions already."""

    def __init__(self, cluster: Cluster, topic: str, connector: str) -> None:
        #: Partitions that :meth:`may_commit` found taken by others, to be read again.
        self.taken: frozenset[TopicPartition] = frozenset()
        self._cluster, self._topic, self._connector = cluster, topic, connector
        self._partitions: dict[TopicPartition, int] = {}
        self._read_to: dict[TopicPartition, ReadTo] = {}

    def read(self, starts: Mapping[TopicPartition, Start], read_to: Mapping[TopicPartition, ReadTo]) -> None:
        """Note the ``starts`` that the store has read."""
        self.owned(starts)
        self._partitions.update((source, read_to[source].partition) for source in starts)
        self._read_to.update((source, read_to[source]) for source, start in starts.items() if is_unowned(start))

    def owned(self, sources: Iterable[TopicPartition]) -> None:
        """Note that we have stored positions of ``sources``."""
        for source in sources:
            self._read_to.pop(source, None)

    def concern(self, positions: Mapping[TopicPartition, Position]) -> bool:
        """Return whether :meth:`may_commit` has to be called before ``positions`` are committed."""
        return any(position.is_handed_over or source in self._read_to for source, position in positions.items())

    async def may_commit(self, ours: Mapping[TopicPartition, Position], first: Mapping[Partition, int]) -> bool:
        """Return whether no other task has written a partition before us. ``ours``: the positions in this write.
        ``first``: offsets of the first records of this write. Raises :class:`RetriableError` if the log cannot be read
        to its end."""
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
            elif record.offset >= first.get((self._topic, record.partition), inf):  # else it is from an earlier attempt
                written.add(source)

        after: dict[int, int] = {}
        for partition, end in read_to.values():
            after[partition] = min(after.get(partition, end), end)
        await read_to_end(
            self._cluster, self._topic, look, partitions=after.keys(), after=after, timeout_s=_READ_TIMEOUT_S
        )
        # Our record may be in another partition, if partitions were added or the topic was recreated.
        return frozenset(others | (read_to.keys() - written))

    def _source_of(self, record: LogRecord) -> TopicPartition | None:
        """Return the source partition of a position or progress record of our connector; None for other records."""
        if record.key is None or decode_kind(record.key) not in (KeyKind.POSITION, KeyKind.PROGRESS):
            return None
        key = decode_position_key(record.key)
        return key.source if key.connector == self._connector else None


def _is_by(position: Position, record: LogRecord) -> bool:
    """Return whether the task of ``position`` has written the record, now or in an attempt with an unknown outcome."""
    if record.key is None or record.value is None or decode_kind(record.key) is not KeyKind.POSITION:
        return False
    # Two tasks never have the same producer id unless one has resumed the other's, and these partitions had no owner.
    return decode_position(decode_position_key(record.key), record.value).producer_id == position.producer_id


_STORE: Final = "-commit"


#: The transactional id of a task's records, and whether it has to be claimed together with the store's id.
_Owner = tuple[str, bool]
Read = Callable[[Collection[TopicPartition]], Awaitable[Mapping[TopicPartition, Start]]]
Claim = Callable[[TransactionalWriter, Collection[TopicPartition]], Awaitable[None]]


def store_id(transactional_id: str) -> str:
    """Return the transactional id of a task's store, from that of its records."""
    return f"{transactional_id}{_STORE}"


class Predecessors:
    """Fences the predecessors of one store's partitions. ``own`` is the store's id; ``is_atomic``: whether it writes in
    the records' transactions instead, whose id is claimed."""

    def __init__(self, cluster: Cluster, own: str, rights: MissingRights, *, is_atomic: bool) -> None:
        self._cluster, self._own, self._is_atomic, self._rights = cluster, own, is_atomic, rights

    async def fence_predecessors(
        self, starts: Mapping[TopicPartition, Start], read: Read, claim: Claim
    ) -> dict[TopicPartition, Start]:
        known = dict(starts)
        #: One writer per name, because a second one would fence the first.
        writers: dict[str, TransactionalWriter | None] = {}
        claimed = set[_Owner]()
        while True:
            owners = {source: owner for source, start in known.items() if (owner := self._owner(start)) is not None}
            new = sorted(set(owners.values()) - claimed)
            if not new:
                break
            claimed.update(new)
            for name, is_atomic in new:
                if is_atomic:
                    await self._claim_records(name)
                if name not in writers:
                    writers[name] = await self._claim(name)
            known |= await read([source for source, owner in owners.items() if owner in new])
        by_writer: dict[TransactionalWriter, list[TopicPartition]] = {}
        for source, owner in owners.items():
            if (writer := writers[owner[0]]) is not None:
                by_writer.setdefault(writer, []).append(source)
        for writer, sources in by_writer.items():
            await claim(writer, sources)
        return known

    def _owner(self, start: Start) -> _Owner | None:
        """Return which task to fence from a partition, if any."""
        position = start.position
        is_atomic = position is not None and position.is_atomic
        if start.claimant:
            name = start.claimant.removesuffix(_STORE)
            # Because our own earlier run with exactly-once may have left a transaction open.
            return (name, True) if start.claimant != self._own or (is_atomic and not self._is_atomic) else None
        if position is None or position.is_handed_over or not (name := position.transactional_id):
            return None
        if store_id(name) == self._own and (self._is_atomic or not is_atomic):
            return None
        return name, is_atomic

    async def _claim_records(self, name: str) -> None:
        try:
            await init_producer_id(self._cluster, name)
        except TransactionalIdRefused as error:
            self._rights.announce(error)

    async def _claim(self, name: str) -> TransactionalWriter | None:
        if store_id(name) == self._own:
            return None
        writer = TransactionalWriter(self._cluster, store_id(name))
        try:
            await writer.open()
        except TransactionalIdRefused as error:
            self._rights.announce(error)
            return None
        return writer


#: The header of a Java record that was not written in a transaction with its position.
WRITTEN_PLAINLY: Final = ("heliograph.plain", b"1")


class CommitScope(IntEnum):
    """What a commit of a partition writes."""

    PROGRESS = 0  # a progress record, and map chunks with a new run
    OFFSETS = 1  # Java's offset and a full position instead of the progress record
    ALL = 2  # also a last chunk whose last run has grown: all that an earlier version needs to continue


@dataclass(frozen=True, slots=True)
class PassedGap:
    """A gap that a policy has passed over, found at ``found_ms`` since 1970, and where the map ends because of it.
    ``target_truncated_to``: where the target's log was found to end, below its acknowledged end;
    ``source_truncated_to``: where the source's log was found to diverge from what was copied."""

    found_ms: int
    gap: Gap
    target_truncated_to: int | None = None
    source_truncated_to: int | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    """What to store of a partition. ``runs``: (upstream, downstream, count) copied since the last commit; storing a run
    twice is harmless. ``target_log_start``: the map is trimmed below it. ``is_target_compacted``: whether a map that is
    too long is trimmed too, from its oldest entries. ``scope``: what is written at least."""

    position: Position
    runs: Sequence[tuple[int, int, int]] = ()
    passing: PassedGap | None = None
    target_log_start: int | None = None
    scope: CommitScope = CommitScope.ALL
    is_target_compacted: bool = False


class PositionStore(Protocol):
    """Keeps the positions of one task's partitions. All methods raise RetriableError (the cluster does not answer now),
    Superseded (another process has taken over: stop) and SecurityError (ACLs are missing)."""

    async def load(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Start]:
        """Fence earlier writers of the store, as far as our ACLs allow; return what it has of source partitions."""

    async def load_more(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Start]:
        """Return what the store has of more partitions, which another task may be writing. Partitions loaded before
        stay as they are, and may be committed meanwhile."""

    async def fence_predecessors(self, starts: Mapping[TopicPartition, Start]) -> Mapping[TopicPartition, Start]:
        """Fence other tasks from storing positions of the partitions in ``starts``, as far as our ACLs allow; return
        what is stored then. Raises Superseded if a third task does the same."""

    async def commit(self, commits: Sequence[Commit]) -> None:
        """Store commits, each atomically if our ACLs allow; after an error commit the same again. Raises
        :class:`PositionsTaken` if another task has stored the first position of an unowned partition meanwhile: then
        nothing is stored, and its positions have to be read again."""

    def runs_of(self, position: Position) -> list[MapRun]:
        """Return the newest stored runs of a position's pair, ascending; there may be older ones."""


@dataclass(slots=True)
class StoredRecords:
    """The content of the map topic for the requested partitions."""

    positions: dict[TopicPartition, StoredPosition] = field(default_factory=dict)
    chunks: dict[MapPair, dict[int, int]] = field(default_factory=dict)  # first upstream to first downstream
    newest: dict[MapPair, tuple[int, bytes]] = field(default_factory=dict)  # first upstream and value of the last chunk
    names: dict[tuple[str, int, str, int], set[MapPair]] = field(default_factory=dict)
    read_to: dict[TopicPartition, ReadTo] = field(default_factory=dict)

    def chunks_of(self, pair: MapPair) -> dict[int, int]:
        """Return a pair's chunks, and index the pair by its names."""
        self.names.setdefault(pair.names(), set()).add(pair)
        return self.chunks.setdefault(pair, {})

    def last_run_of(self, pair: MapPair) -> LastRun | None:
        """Return the last run in the newest position, if that position belongs to this pair."""
        stored = self.positions.get(pair.source)
        return stored.last_run if stored is not None and MapPair.of(stored.position) == pair else None

    def lacks_run(self, stored: StoredPosition) -> bool:
        """Whether the chunk with the last run of a position is not here."""
        return stored.last_run is not None and not self.chunks.get(MapPair.of(stored.position))

    def renew(self, partitions: Collection[TopicPartition], read: StoredRecords) -> None:
        """Replace the records of source ``partitions`` with those just ``read``."""
        known: dict[MapPair, Any]
        for known in (self.chunks, self.newest):
            for pair in [one for one in known if one.source in partitions]:
                del known[pair]
        for partition in partitions:
            self.positions.pop(partition, None)
        self.positions.update(read.positions)
        self.chunks.update(read.chunks)
        self.newest.update(read.newest)
        self.names.update(read.names)

    def predecessors(self, pair: MapPair) -> list[MapPair]:
        """Return the known pairs with the names of ``pair`` whose topics were since recreated."""
        return [other for other in self.names.get(pair.names(), ()) if other.is_predecessor_of(pair)]


async def read_offsets(cluster: Cluster, *topics: str) -> tuple[status_and_offset_topics.SourceOffsets, set[bytes]]:
    """Return the offsets in ``topics``, of which a later one takes precedence, and the keys of those that were written
    without a transaction."""
    state = status_and_offset_topics.SourceOffsets()
    plain: set[bytes] = set()

    def fold(newest: NewestByKey, record: LogRecord) -> None:
        if not newest.counts(record):
            return
        passed_over = status_and_offset_topics.apply(state, record.key, record.value)
        if passed_over:
            raise UnreadableRecord(passed_over)
        if record.key is not None and WRITTEN_PLAINLY in record.headers:
            plain.add(record.key)
        elif record.key is not None:
            plain.discard(record.key)

    for topic in topics:
        await read_to_end(cluster, topic, partial(fold, NewestByKey()), read_committed=True, only_last=True)
    return state, plain


def start_of(stored: StoredPosition | None, committed: int | None, *, plainly: bool) -> Start:
    """Return a partition's start. ``plainly``: the offset was written without a transaction, so it may be older or
    newer than the position without having been altered."""
    if stored is None:
        return Start(None, committed, False)
    if not plainly and stored.was_altered(committed):
        return Start(stored.position, committed, True, claimant=stored.claimant)
    following = stored.position.next_source_offset  # at 0 Java has no offset
    return Start(stored.position, following - 1 if following else None, False, claimant=stored.claimant)


#: Whether to take the records of a source partition from a partition of the store's log.
IsWanted = Callable[[TopicPartition, int], bool]


def fold_chunk(stored: StoredRecords, is_wanted: IsWanted, record: LogRecord) -> None:
    assert record.key is not None
    pair, upstream = decode_chunk_key(record.key)
    if not is_wanted(pair.source, record.partition):
        return
    chunks = stored.chunks_of(pair)
    if record.value is None:
        chunks.pop(upstream, None)
        return
    chunks[upstream] = first_downstream(record.value)
    newest = stored.newest.get(pair)
    if newest is None or upstream >= newest[0] or newest[0] not in chunks:
        stored.newest[pair] = (upstream, record.value)
