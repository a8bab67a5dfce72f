"""Shut other tasks out of the store, with the partitions that are taken over from them.

A successor B that has fenced a writer A and freezes before it stores anything leaves "A" in the store. The next
successor C must not copy at the same time as B. So each partition has one owner in the store: the claimant that is
named with its position, else the writer. A task that takes the partition over claims the owner's id of the store,
reads the store again until the owner stays the same, and then names itself as the claimant, under the very id that it
claimed. If C has claimed that id since, or if the owner itself has started again, B is refused and stops. If B was
first, C reads B's name and claims B's id, without which B copies nothing.

A task that is named as the claimant already claims no other id: an earlier run of it has shut the writer out. So two
tasks that have partitions of each other restart at most once for each of these, not whenever the other one starts.
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

    def _owner(self, start: _Start) -> _Owner | None:
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
