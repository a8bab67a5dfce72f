"""What is stored of partitions, and whose it is: starts, commits, records read; other tasks shut out, or not to be
fenced."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from math import inf
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from connect.core import status_and_offset_topics
from connect.core.errors import RetriableError, UnreadableRecord
from connect.kafka.cluster import Cluster
from connect.kafka.log.compacted_topic import LogRecord, read_to_end
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
    """Announces once per flow that it runs without transactional ids. ``id_prefix`` begins all of its ids."""

    def __init__(self, flow: str = "", id_prefix: str = "") -> None:
        self._flow = flow
        self._id_prefix = id_prefix
        self._is_announced = False

    def announce(self, error: TransactionalIdRefused) -> None:
        """A transactional id was refused, and the copy continues without it."""
        if self._is_announced:
            return
        self._is_announced = True
        log.warning(
            "%s: %s (one grant for all: WRITE and DESCRIBE on transactional ids that begin with %s). Until then "
            "a predecessor cannot be fenced: after a crash records may appear twice, which the log announces, and "
            "positions are stored without transactions. Do not run a second mirror of this flow",
            self._flow,
            error,
            self._id_prefix,
        )


#: Without progress. A transaction is open meanwhile.
_READ_TIMEOUT_S: Final = 10.0


class PositionsTaken(RetriableError):
    """Another task has stored positions of ``sources`` since they were read. Read them again."""

    def __init__(self, sources: Collection[TopicPartition]) -> None:
        self.sources = frozenset(sources)
        names = ", ".join(sorted(str(source) for source in sources))
        super().__init__(f"another task has stored positions of {names} meanwhile")


class _UnownedStart(Protocol):
    @property
    def position(self) -> Position | None: ...

    @property
    def claimant(self) -> str: ...


def is_unowned(start: _UnownedStart) -> bool:
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

    def read(self, starts: Mapping[TopicPartition, _UnownedStart], read_to: Mapping[TopicPartition, ReadTo]) -> None:
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

        Raises as :func:`connect.kafka.log.compacted_topic.read_to_end`.
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
        if record.key is None or decode_kind(record.key) not in (KeyKind.POSITION, KeyKind.PROGRESS):
            return None
        key = decode_position_key(record.key)
        return TopicPartition(key.source_topic, key.source_partition) if key.connector == self._connector else None


def _is_by(position: Position, record: LogRecord) -> bool:
    """Whether the task of ``position`` has written the record, now or in an attempt of which it is not known what
    became."""
    if record.key is None or record.value is None or decode_kind(record.key) is not KeyKind.POSITION:
        return False
    # No two tasks have the same producer id where there is none to fence.
    return decode_position(decode_position_key(record.key), record.value).producer_id == position.producer_id


def source_of(position: Position) -> TopicPartition:
    """The source partition that a position is of."""
    return TopicPartition(position.source_topic, position.source_partition)


_STORE: Final = "-commit"


class _FencedStart(Protocol):
    @property
    def position(self) -> Position | None: ...

    @property
    def claimant(self) -> str: ...


StartT = TypeVar("StartT", bound=_FencedStart)
#: The id of a task's records, and whether that is to be claimed as well as the id of the store.
_Owner = tuple[str, bool]
Read = Callable[[Collection[TopicPartition]], Awaitable[Mapping[TopicPartition, StartT]]]
Claim = Callable[[TransactionalWriter, Collection[TopicPartition]], Awaitable[None]]


def store_id(transactional_id: str) -> str:
    """The id under which a task stores positions, by that under which it writes records."""
    return f"{transactional_id}{_STORE}"


class Predecessors:
    """Of the partitions of one store. ``own`` is the store's id; ``is_atomic``: it writes in the transactions of the
    records instead, whose id is claimed."""

    def __init__(self, cluster: Cluster, own: str, rights: MissingRights, *, is_atomic: bool) -> None:
        self._cluster = cluster
        self._own = own
        self._is_atomic = is_atomic
        self._rights = rights

    async def shut_out(
        self, starts: Mapping[TopicPartition, StartT], read: Read[StartT], claim: Claim
    ) -> dict[TopicPartition, StartT]:
        """Let no other task store positions of the partitions in ``starts``; return what is stored then.

        Raises as :meth:`TransactionalWriter.open`, ``read`` and ``claim``.
        """
        known = dict(starts)
        #: One writer per name: a second one would shut the first one out.
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

    def _owner(self, start: _FencedStart) -> _Owner | None:
        """Whom to shut out of a partition, if anyone."""
        position = start.position
        is_atomic = position is not None and position.is_atomic
        if start.claimant:
            name = start.claimant.removesuffix(_STORE)
            # A run of our own with exactly-once may have left a transaction open.
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


#: On Java's record, where it was not written together with its position in a transaction.
WRITTEN_PLAINLY: Final = ("heliograph.plain", b"1")


@dataclass(frozen=True, slots=True)
class Start:
    """What is stored of a partition.

    Args:
        committed_source_offset: Offset of the last record copied, in Java's record; None where there is none.
        moved: The position does not belong to that offset: an operator or a Java worker has changed it since, or,
            where it is ``decided``, a policy has.
        claimant: The store id of the task that takes the partition over from the position's writer, if one does.
    """

    position: Position | None
    committed_source_offset: int | None
    moved: bool
    decided: bool = False
    claimant: str = ""


class CommitScope(IntEnum):
    """What a commit of a partition writes."""

    PROGRESS = 0  # a progress record, and chunks of the map to which a run was added
    OFFSETS = 1  # Java's offset and a full position instead of the progress record
    ALL = 2  # also a last chunk of which only the last run grew: all that an earlier version continues from


@dataclass(frozen=True, slots=True)
class Commit:
    """What to store of a partition.

    Args:
        runs: (upstream, downstream, count) copied since the last commit; storing a run twice does no harm.
        target_truncated_to: The target's log was found to end here, below what had been acknowledged.
        target_log_start: The map below it is let go.
        is_target_compacted: Then also what is oldest of a map that is too long.
        source_truncated_to: The source's log was found to part here from what was copied.
        gaps: What a policy let the copy pass over, with when it was found, in milliseconds since 1970.
        scope: How much is written at least.
    """

    position: Position
    runs: Sequence[tuple[int, int, int]] = ()
    target_truncated_to: int | None = None
    target_log_start: int | None = None
    source_truncated_to: int | None = None
    gaps: Sequence[tuple[int, Gap]] = ()
    scope: CommitScope = CommitScope.ALL
    is_target_compacted: bool = False


class PositionStore(Protocol):
    """Keeps positions for the partitions of one task. Errors of every method: RetriableError (the cluster does not
    answer now), Superseded (another process has taken over: stop), SecurityError (rights are missing)."""

    async def load(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Start]:
        """Shut earlier writers out of the store, as far as our rights go, then read what it says of source
        partitions."""

    async def load_more(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Start]:
        """Read what it says of partitions that another task may be writing; those loaded before stay as they are. Our
        own writer may be at work meanwhile, with others than these."""

    async def shut_out(self, starts: Mapping[TopicPartition, Start]) -> Mapping[TopicPartition, Start]:
        """Let no other task store positions of the partitions in ``starts``, as far as our rights go; return what is
        stored then. Raises Superseded if yet another task does the same."""

    async def commit(self, commits: Sequence[Commit]) -> None:
        """Store, each partition as a whole as far as our rights go; after an error give the same again.

        Raises :class:`PositionsTaken` if another task has stored the first position of an unowned partition meanwhile:
        then nothing is stored, and its positions have to be read again.
        """

    def runs_of(self, position: Position) -> list[MapRun]:
        """The newest runs that are stored of a position's pair, ascending; older ones may lie before them."""

    async def close(self) -> None:
        """Let go of what the store holds."""


@dataclass(slots=True)
class StoredRecords:
    """What the map topic holds of the partitions asked for."""

    positions: dict[TopicPartition, StoredPosition] = field(default_factory=dict)
    chunks: dict[MapPair, dict[int, int]] = field(default_factory=dict)  # first upstream to first downstream
    newest: dict[MapPair, tuple[int, bytes]] = field(default_factory=dict)  # first upstream and value of the last chunk
    names: dict[tuple[str, int, str, int], set[MapPair]] = field(default_factory=dict)
    read_to: dict[TopicPartition, ReadTo] = field(default_factory=dict)

    def chunks_of(self, pair: MapPair) -> dict[int, int]:
        """The chunks of a pair, found by its names from here on."""
        self.names.setdefault(pair.names(), set()).add(pair)
        return self.chunks.setdefault(pair, {})

    def last_run_of(self, pair: MapPair) -> LastRun | None:
        """As the newest position gives it, if that is of this pair."""
        stored = self.positions.get(TopicPartition(pair.source_topic, pair.source_partition))
        return stored.last_run if stored is not None and MapPair.of(stored.position) == pair else None

    def renew(self, partitions: Collection[TopicPartition], read: StoredRecords) -> None:
        """Take what was ``read`` of source ``partitions`` in the place of what was known of them."""
        known: dict[MapPair, Any]
        for known in (self.chunks, self.newest):
            for pair in [one for one in known if TopicPartition(one.source_topic, one.source_partition) in partitions]:
                del known[pair]
        for partition in partitions:
            self.positions.pop(partition, None)
        self.positions.update(read.positions)
        self.chunks.update(read.chunks)
        self.newest.update(read.newest)
        self.names.update(read.names)

    def predecessors(self, pair: MapPair) -> list[MapPair]:
        """All that are known under the names of ``pair``, of topics that are gone."""
        return [other for other in self.names.get(pair.names(), ()) if other.is_predecessor_of(pair)]


async def read_offsets(cluster: Cluster, topic: str) -> tuple[status_and_offset_topics.SourceOffsets, set[bytes]]:
    """The offsets in ``topic``, and the keys of those that were written plainly."""
    state = status_and_offset_topics.SourceOffsets()
    plain: set[bytes] = set()

    def fold(record: LogRecord) -> None:
        passed_over = status_and_offset_topics.apply(state, record.key, record.value)
        if passed_over:
            raise UnreadableRecord(passed_over)
        if record.key is not None and WRITTEN_PLAINLY in record.headers:
            plain.add(record.key)
        elif record.key is not None:
            plain.discard(record.key)

    await read_to_end(cluster, topic, fold, read_committed=True, only_last=True)
    return state, plain


def start_of(stored: StoredPosition | None, committed: int | None, *, plainly: bool) -> Start:
    """What is known of a partition. ``plainly``: the offset was written without a transaction, so it may be older or
    newer than the position, and is ours all the same."""
    if stored is None:
        return Start(None, committed, False)
    if not plainly and stored.was_altered(committed):
        return Start(stored.position, committed, True, claimant=stored.claimant)
    following = stored.position.next_source_offset  # at 0 Java has no offset
    return Start(stored.position, following - 1 if following else None, False, claimant=stored.claimant)


def fold_chunk(stored: StoredRecords, wanted: set[TopicPartition], record: LogRecord) -> None:
    assert record.key is not None
    pair, upstream = decode_chunk_key(record.key)
    if TopicPartition(pair.source_topic, pair.source_partition) not in wanted:
        return
    chunks = stored.chunks_of(pair)
    if record.value is None:
        chunks.pop(upstream, None)
        return
    chunks[upstream] = first_downstream(record.value)
    newest = stored.newest.get(pair)
    if newest is None or upstream >= newest[0] or newest[0] not in chunks:
        stored.newest[pair] = (upstream, record.value)
