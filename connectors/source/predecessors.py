"""The ids under which other tasks stored positions that this task takes over: shut out, and used once for a handover.

A successor B that has fenced a writer A and freezes before it stores anything leaves "A" in the store. The next
successor C must not copy beside B. So whoever takes a partition over from A claims A's id of the store first, reads the
store again until it names no writer that was not shut out, and writes the first position of the partition under that
very id. If C has claimed it since, B's write is refused and B stops; if B was first, C reads that B is the writer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

from connect.kafka.cluster import Cluster
from connect.kafka.producer import TransactionalWriter
from connect.kafka.transactions import TransactionalIdRefused, init_producer_id
from connectors.dataplane.plan import TopicPartition
from connectors.positions import Position
from connectors.source.unfenced import MissingRights


class _Start(Protocol):
    @property
    def position(self) -> Position | None: ...


class _Commit(Protocol):
    @property
    def position(self) -> Position: ...


StartT = TypeVar("StartT", bound=_Start)
CommitT = TypeVar("CommitT", bound=_Commit)
Read = Callable[[Collection[TopicPartition]], Awaitable[Mapping[TopicPartition, StartT]]]


def store_id(transactional_id: str) -> str:
    """The id under which a task stores positions, by that under which it writes records."""
    return f"{transactional_id}-commit"


class Predecessors:
    """Of the partitions of one store. ``own`` is the store's id; ``is_atomic``: it writes in the transactions of the
    records instead, whose id is claimed."""

    def __init__(self, cluster: Cluster, own: str, rights: MissingRights, *, is_atomic: bool) -> None:
        self._cluster = cluster
        self._own = own
        self._is_atomic = is_atomic
        self._rights = rights
        self._writers: dict[str, TransactionalWriter | None] = {}
        self._handed_over_by: dict[TopicPartition, str] = {}

    async def shut_out(
        self, starts: Mapping[TopicPartition, StartT], read: Read[StartT]
    ) -> dict[TopicPartition, StartT]:
        """Let nobody else store positions of the partitions in ``starts``; return what is stored then.

        Raises as :meth:`TransactionalWriter.open` and ``read``.
        """
        known = dict(starts)
        shut_out: set[tuple[str, bool]] = set()
        while True:
            writers = {source: writer for source, start in known.items() if (writer := self._writer_of(start.position))}
            if not (new := set(writers.values()) - shut_out):
                self._handed_over_by.update((source, store_id(name)) for source, (name, _) in writers.items())
                return known
            for name, is_atomic in sorted(new):
                await self._claim(name, is_atomic=is_atomic)
            shut_out |= new
            known |= await read([source for source, writer in writers.items() if writer in new])

    def by_writer(self, commits: Sequence[CommitT]) -> Iterator[tuple[TransactionalWriter | None, list[CommitT]]]:
        """``commits`` by who writes them; None: the store's own writer. Call :meth:`stored` behind each."""
        groups: dict[TransactionalWriter | None, list[CommitT]] = {}
        for commit in commits:
            writer = self._writers.get(self._handed_over_by.get(_source_of(commit.position), ""))
            groups.setdefault(writer, []).append(commit)
        yield from groups.items()

    def stored(self, commits: Sequence[CommitT]) -> None:
        """These are written: what follows is ours."""
        for commit in commits:
            self._handed_over_by.pop(_source_of(commit.position), None)

    def _writer_of(self, position: Position | None) -> tuple[str, bool] | None:
        """Another writer that may store the position of a partition still; whether in transactions of its records."""
        if position is None or position.is_handed_over or not (name := position.transactional_id):
            return None
        if store_id(name) == self._own and (self._is_atomic or not position.is_atomic):
            return None
        return name, position.is_atomic

    async def _claim(self, name: str, *, is_atomic: bool) -> None:
        by = store_id(name)
        try:
            if is_atomic:
                await init_producer_id(self._cluster, name)
            if by != self._own:
                writer = self._writers[by] = TransactionalWriter(self._cluster, by)
                await writer.open()
        except TransactionalIdRefused as error:
            self._rights.announce(error)
            self._writers[by] = None


def _source_of(position: Position) -> TopicPartition:
    return TopicPartition(position.source_topic, position.source_partition)
