"""Decide when an epoch ends, open the next slice, and change a task's partitions from one slice to the next.

A slice copies the same partitions from start to end. While it copies, new partitions are taken over, unless that needs
the task's own transactional id, which is claimed only between two slices, or another task of the connector is about to
hand them over, whose slice a fence would end. The next slice copies the new partitions that are ready, so a slow change
delays no other. Each step follows only from the config, the ledger and the store, so after an interruption the next one
simply looks again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Final, Protocol

from connect.core.errors import RetriableError
from connect.core.wording import named
from connect.kafka.concurrency import Pauses
from connectors.formats.types import RUNNING, ProducerIdAndEpoch, TopicPartition
from connectors.source.positions.ledger import Ledger
from connectors.source.positions.partition_pairs import STARTING, PartitionPair
from connectors.source.positions.position_checks import UnavailablePartitions
from connectors.source.positions.stored_positions import PositionStore, Start
from connectors.source.slice_handle import Defects, SliceHandle, SliceLost, close_quietly

log = logging.getLogger(__name__)

#: How long to wait until another task hands a partition over, before it is fenced. That task starts a slice first.
HAND_OVER_S: Final = 30.0
#: How long changes are collected, and the least length of an epoch.
_TOGETHER_S: Final = 1.0
_APART_S: Final = 5.0
_LATE_LOOK_S: Final = 0.25
_LOOK_S: Final = 5.0
_RETRY_S: Final = 1.0
_MAX_RETRY_S: Final = 10.0
_OPEN_AGAIN_S: Final = 5.0


class Joins(Protocol):
    """What :class:`connectors.source.task.MirrorSourceTask` does for partitions that join and leave."""

    async def find(self, partitions: Sequence[TopicPartition]) -> list[PartitionPair]: ...

    async def fence_predecessors(self, starts: Mapping[TopicPartition, Start]) -> Mapping[TopicPartition, Start]: ...

    async def join(self, handle: SliceHandle, joining: Ledger, starts: Mapping[TopicPartition, Start]) -> None: ...

    async def store_left(self) -> None: ...


class Reconfiguring:
    """The changes of one task's partitions. ``transactional_id`` is the task's, ``wanted`` what it has to copy."""

    def __init__(
        self,
        name: str,
        transactional_id: str,
        wanted: Sequence[TopicPartition],
        ledger: Ledger,
        store: PositionStore,
        waiting: UnavailablePartitions,
        joins: Joins,
    ) -> None:
        self.wanted = tuple(wanted)
        ledger.want(self.wanted)
        #: Whether the current producer has a transactional id.
        self.is_fencing = True
        self._name, self._transactional_id, self._ledger = name, transactional_id, ledger
        self._store, self._waiting, self._joins = store, waiting, joins
        self._changed = asyncio.Event()
        self._producer: ProducerIdAndEpoch | None = None
        #: Target partitions that the current producer may have written.
        self._written: set[TopicPartition] = set()
        self._waits_since: dict[TopicPartition, float] = {}
        self._is_back = False
        self._began_s = -inf
        self._changed_s = inf

    @property
    def takes_over(self) -> bool:
        """Whether a takeover is due between this slice and the next."""
        return self._is_back or any(entry.is_recovering for entry in self._ledger.apart.values())

    def want(self, partitions: Sequence[TopicPartition]) -> None:
        """Copy only these partitions from the next slice on."""
        self.wanted = tuple(partitions)
        self._ledger.want(self.wanted)
        self.look()

    def look(self) -> None:
        """Note that the ledger has changed."""
        self._changed.set()

    def began(self, producer: ProducerIdAndEpoch) -> None:
        """Note that a slice copies all entries that are ready, as ``producer``."""
        if producer != self._producer:
            self._producer = producer
            self._written.clear()
        for entry in self._ledger.entries.values():
            if entry.state == STARTING:
                entry.become(RUNNING)
            if entry.is_copied:
                entry.was_copied = True
                self._written.add(entry.pair.target)
        self._waiting.retain(self._ledger.waiting())
        self._is_back = False
        self._began_s, self._changed_s = asyncio.get_running_loop().time(), inf

    async def until_due(self, handle: SliceHandle, length_s: float) -> None:
        """Take over joining partitions until the epoch of ``handle`` is due to end: after ``length_s``, or soon after a
        change. Raises :class:`SliceLost` if the slice ends by itself, and errors that are not retriable."""
        clock = asyncio.get_running_loop().time
        ends_s, pauses = clock() + length_s, Pauses(_RETRY_S, _MAX_RETRY_S)
        while clock() < min(ends_s, self._due_s()):
            self._changed.clear()
            try:
                again_s = await self._step(handle)
                pauses.over()
            except SliceLost:
                raise
            except RetriableError as error:
                log.warning("%s: its partitions cannot be changed now: %s; retrying", self._name, error)
                again_s = pauses.next_s()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(min(ends_s, self._due_s(), clock() + again_s)):
                    await self._changed.wait()

    async def wait_for_others(self, loaded: Mapping[TopicPartition, Start]) -> Mapping[TopicPartition, Start]:
        """Wait until other tasks have handed these partitions over; return what the store then says of them. Raises
        :class:`RetriableError` if one is no longer wanted, because its new owner must not be fenced."""
        starts = dict(loaded)
        clock = asyncio.get_running_loop().time
        until_s = clock() + HAND_OVER_S
        while set(starts) <= set(self.wanted):
            if not (others := self._of_others(starts)) or clock() >= until_s:
                return starts
            await asyncio.sleep(_LATE_LOOK_S)
            starts.update(await self._store.load_more(others))
        raise RetriableError("its partitions were changed before it started")

    def _due_s(self) -> float:
        """Return when the epoch ends because of a change; infinity if there is none."""
        if not self._has_changed():
            self._changed_s = inf
        elif self._changed_s == inf:
            self._changed_s = asyncio.get_running_loop().time()
        return max(self._changed_s + _TOGETHER_S, self._began_s + _APART_S)

    def _has_changed(self) -> bool:
        return (
            self.takes_over
            or any(entry.state == STARTING for entry in self._ledger.apart.values())
            or any(not entry.is_leaving for entry in self._ledger.unwanted.values())
        )

    async def _step(self, handle: SliceHandle) -> float:
        """Take one step; return in how many seconds to look again."""
        await self._look_for_waiting()
        await self._joins.store_left()
        missing = self._ledger.missing
        self._waits_since = {source: since for source, since in self._waits_since.items() if source in missing}
        return await self._take_in(handle, list(missing)) if missing else _LOOK_S

    async def _look_for_waiting(self) -> None:
        """Check whether a waiting partition can be taken over. Read the stored positions of long waiting ones again,
        because a takeover compares them with what was stored since."""
        if self._is_back or not await self._waiting.is_back(self._ledger.waiting()):
            return
        if sources := self._waiting.out_of_date():
            starts = await self._store.load_more(sources)
            self._waiting.add({**starts, **await self._joins.fence_predecessors(starts)})
        self._is_back = True

    async def _take_in(self, handle: SliceHandle, missing: Sequence[TopicPartition]) -> float:
        pairs = await self._joins.find(missing)
        starts = dict(await self._store.load_more([pair.source for pair in pairs])) if pairs else {}
        now_s = asyncio.get_running_loop().time()
        late = {
            source
            for source in self._of_others(starts)
            if now_s - self._waits_since.setdefault(source, now_s) < HAND_OVER_S
        }
        ready = [pair for pair in pairs if pair.source not in late]
        # Read again after the fence, because what others commit between read and fence would be copied again.
        starts |= await self._joins.fence_predecessors({pair.source: starts[pair.source] for pair in ready})
        held = Ledger(pair for pair in ready if self._needs_own_id(pair, starts[pair.source]))
        for entry in held.entries.values():
            entry.wait("its previous writer is fenced between two slices")
        joining = Ledger(pair for pair in ready if pair.source not in held.entries)
        if joining.entries:
            await self._joins.join(handle, joining, starts)
        for ledger in (held, joining):
            self._ledger.take_in(ledger)
            self._waiting.add({entry.pair.source: starts[entry.pair.source] for entry in ledger.waiting()})
        if joining.entries:
            log.info("%s: its next slice copies %s as well", self._name, named(joining.entries))
        if late:
            return _LATE_LOOK_S
        if len(pairs) < len(missing):
            found = {pair.source for pair in pairs}
            raise RetriableError(f"a cluster does not know {named([one for one in missing if one not in found])} now")
        return _LOOK_S

    def _of_others(self, starts: Mapping[TopicPartition, Start]) -> list[TopicPartition]:
        """Return the partitions that another task of this connector has written and not handed over."""
        family = self._transactional_id.rpartition("-")[0]
        return [
            source
            for source, start in starts.items()
            if (position := start.unclean_position) is not None
            and position.transactional_id != self._transactional_id
            and position.transactional_id.rpartition("-")[0] == family
        ]

    def _needs_own_id(self, pair: PartitionPair, start: Start) -> bool:
        """Return whether a takeover has to claim our own transactional id first. Because under the same producer epoch
        a leader treats a second sequence 0 as a duplicate. A position without an id may have our producer id, with an
        epoch above ours."""
        if not self.is_fencing or pair.target in self._written:
            return True
        position = start.position
        if position is None or (position.transactional_id and position.is_handed_over):
            return False
        return position.transactional_id in ("", self._transactional_id)


async def open_next(
    new_slice: Callable[[], SliceHandle],
    known_pairs: Callable[[], list[tuple[TopicPartition, TopicPartition]]],
    no_slot: asyncio.Event,
    defects: Defects,
    name: str,
) -> SliceHandle:
    """Open the next epoch's slice; retry until it opens. Set ``no_slot`` if it waits for a Spark slot. Raises
    :class:`connectors.source.slice_handle.TaskDefective`, and errors that are not retriable."""
    while True:
        following = new_slice()
        following.on_no_slot = no_slot.set
        try:
            await following.open(known_pairs())
        except RetriableError as error:
            defects.count(error, 0.0)
            log.warning("%s: the next slice did not start: %s; retrying", name, error)
            await close_quietly(following)
            await asyncio.sleep(_OPEN_AGAIN_S)
        except BaseException:
            await close_quietly(following)
            raise
        else:
            return following


async def close_opening(opening: asyncio.Task[SliceHandle] | None) -> None:
    """Cancel the task of :func:`open_next`, and close its slice if it is open already."""
    if opening is not None:
        opening.cancel()
        (opened,) = await asyncio.gather(opening, return_exceptions=True)
        await close_quietly(opened if isinstance(opened, SliceHandle) else None)
