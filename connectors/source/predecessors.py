"""Shut other tasks out of the store, with the partitions that are taken over from them.

A successor B that has fenced a writer A and freezes before it stores anything leaves "A" in the store. The next
successor C must not copy beside B. So whoever takes a partition over from A claims A's id of the store first, reads the
store again until it names no task that was not shut out, and then names itself beside A's position, under the very id
that it has claimed. If C has claimed that since, B is refused and stops; if B was first, C reads B's name, and shuts B
out of the store as well, without which B copies nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, Protocol, TypeVar

from connect.kafka.cluster import Cluster
from connect.kafka.producer import TransactionalWriter
from connect.kafka.transactions import TransactionalIdRefused, init_producer_id
from connectors.dataplane.plan import TopicPartition
from connectors.positions import Position
from connectors.source.unfenced import MissingRights

_STORE: Final = "-commit"


class _Start(Protocol):
    @property
    def position(self) -> Position | None: ...

    @property
    def claimant(self) -> str: ...


StartT = TypeVar("StartT", bound=_Start)
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
        shut_out: dict[tuple[str, bool], TransactionalWriter | None] = {}
        while True:
            named = {source: self._named(start) for source, start in known.items()}
            new = sorted({one for of_source in named.values() for one in of_source} - shut_out.keys())
            if not new:
                break
            for one in new:
                shut_out[one] = await self._claim(*one)
            known |= await read([source for source, of_source in named.items() if of_source & set(new)])
        by_writer: dict[TransactionalWriter, list[TopicPartition]] = {}
        for source, start in known.items():
            of_store = self._writer_of(start.position)
            if of_store is not None and (writer := shut_out[of_store]) is not None:
                by_writer.setdefault(writer, []).append(source)
        for writer, sources in by_writer.items():
            await claim(writer, sources)
        return known

    def _named(self, start: _Start) -> set[tuple[str, bool]]:
        """Other tasks that may store positions of a partition still, by the id of their records; whether these are
        claimed too, as they may store in transactions of them."""
        writer = self._writer_of(start.position)
        named = set() if writer is None else {writer}
        if start.claimant not in ("", self._own):
            named.add((start.claimant.removesuffix(_STORE), True))
        return named

    def _writer_of(self, position: Position | None) -> tuple[str, bool] | None:
        if position is None or position.is_handed_over or not (name := position.transactional_id):
            return None
        if store_id(name) == self._own and (self._is_atomic or not position.is_atomic):
            return None
        return name, position.is_atomic

    async def _claim(self, name: str, is_atomic: bool) -> TransactionalWriter | None:
        try:
            if is_atomic:
                await init_producer_id(self._cluster, name)
            if store_id(name) == self._own:
                return None
            writer = TransactionalWriter(self._cluster, store_id(name))
            await writer.open()
        except TransactionalIdRefused as error:
            self._rights.announce(error)
            return None
        return writer
