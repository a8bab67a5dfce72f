"""Brings the partitions of a task in step with its config while its slice copies the others.

What is wanted and what the ledger has are compared, again and again until they agree; so whatever interrupts a step (an
epoch that ends, a slice that is lost, a stop) costs no more than another one. A step has this order:

1. Partitions that are no longer wanted are drained by the slice, marked as handed over, and stored. From the mark on
   they are not copied here any more, whatever happens.
2. Partitions that are wanted are loaded from the store. Where another task of the connector is about to hand one over,
   that is waited for: a fence would end that task's slice. Who does not hand over in time is fenced.
3. They are proven by the slice that copies, and stored with our producer before anything is written. The ledger has
   them from then on, then the slice.

Our own transactional id is never claimed while the slice writes. What needs that waits for the end of the epoch, which
comes at once: partitions that we wrote uncleanly ourselves, and all where our id was refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from connect.core.errors import RetriableError
from connectors.dataplane.plan import PartitionPlan, ProducerIdentity, TopicPartition
from connectors.source.ledger import Entry, Ledger, Pair, plan_of
from connectors.source.reach import Waiting
from connectors.source.slice import SliceHandle, SliceLost
from connectors.source.store import PositionStore, Start

log = logging.getLogger(__name__)

#: How long a task that is about to hand a partition over is waited for before it is fenced.
HAND_OVER_S: Final = 8.0
_LOOK_S: Final = 0.25
_RETRY_S: Final = 1.0
_MAX_RETRY_S: Final = 10.0
#: So many partitions are named in a line of the log.
_MOST_NAMED: Final = 5


class Joins(Protocol):
    """What the task does for partitions that join: it knows how to take over."""

    async def find(self, partitions: Collection[TopicPartition]) -> list[Pair]:
        """The pairs of those that both clusters know now."""
        ...

    async def shut_out(self, starts: Mapping[TopicPartition, Start]) -> Mapping[TopicPartition, Start]:
        """Let no other task store positions of these partitions; return what is stored then."""
        ...

    async def left(self, sources: Collection[TopicPartition]) -> None:
        """These are no longer copied here, and nobody else copies them yet."""
        ...

    async def join(self, handle: SliceHandle, joining: Ledger, starts: Mapping[TopicPartition, Start]) -> None:
        """Take over all of ``joining`` beside the running slice, and store where each begins."""
        ...


class Reconfiguring:
    """Of one task. ``transactional_id`` is its own; ``commit`` stores what the ledger has to be stored."""

    def __init__(
        self,
        name: str,
        transactional_id: str,
        ledger: Ledger,
        store: PositionStore,
        waiting: Waiting,
        joins: Joins,
        commit: Callable[[], Awaitable[None]],
    ) -> None:
        #: Set while no step is under way.
        self._quiet = asyncio.Event()
        #: Whether the present producer has a transactional id.
        self.is_fencing = True
        self._name = name
        self._transactional_id = transactional_id
        self._ledger = ledger
        self._store = store
        self._waiting = waiting
        self._joins = joins
        self._commit = commit
        self._wanted: tuple[TopicPartition, ...] | None = None
        self._changed = asyncio.Event()
        #: Target partitions that the present producer has written and let go of, with its next sequence; None where
        #: nobody knows it.
        self._left: dict[TopicPartition, int | None] = {}
        self._waits_since: dict[TopicPartition, float] = {}

    def want(self, partitions: Sequence[TopicPartition]) -> None:
        """Copy these from now on, and no others."""
        self._wanted = tuple(partitions)
        self._changed.set()

    def producer_changed(self, *, is_fencing: bool) -> None:
        """A take-over has begun a new producer epoch, in which sequences begin anew everywhere."""
        self._left.clear()
        self.is_fencing = is_fencing

    def continued(self, plan: PartitionPlan, producer: ProducerIdentity) -> PartitionPlan:
        """A plan to go on where the present producer has been: at its next sequence, for the leader knows the others
        and would take what comes under them for what came before."""
        following = self._left.get(plan.target) if plan.producer in (None, producer) else None
        return plan if following is None else replace(plan, next_sequence=following)

    async def keep(self, handle: SliceHandle) -> None:
        """Make the steps, as long as ``handle`` copies. Raises :class:`SliceLost` where a partition did not leave
        cleanly, and what is for good."""
        delay_s = _RETRY_S
        try:
            while True:
                self._changed.clear()
                self._quiet.clear()
                again_s: float | None = None
                try:
                    again_s = await self._step(handle)
                    delay_s = _RETRY_S
                except SliceLost:
                    raise
                except RetriableError as error:
                    log.warning("%s: partitions cannot be changed now: %s; trying again", self._name, error)
                    again_s, delay_s = delay_s, min(delay_s * 2, _MAX_RETRY_S)
                self._quiet.set()
                try:
                    async with asyncio.timeout(again_s):
                        await self._changed.wait()
                except TimeoutError:
                    continue
        finally:
            self._quiet.set()

    async def pause(self, ending: Sequence[asyncio.Future[Any]]) -> None:
        """Return between two steps, or when one of ``ending`` is done."""
        quiet = asyncio.create_task(self._quiet.wait(), name=f"between two changes of {self._name}")
        await asyncio.wait([quiet, *ending], return_when="FIRST_COMPLETED")
        quiet.cancel()

    async def wait_for_others(self, loaded: Mapping[TopicPartition, Start]) -> Mapping[TopicPartition, Start]:
        """What the store says of these partitions once other tasks have handed over what they are about to.

        Raises :class:`RetriableError` where some of these are no longer wanted when that is over: whoever has them now
        is not to be fenced.
        """
        starts = dict(loaded)
        clock = asyncio.get_running_loop().time
        until_s = clock() + HAND_OVER_S
        while (others := self._of_others(starts)) and clock() < until_s:
            await asyncio.sleep(_LOOK_S)
            starts.update(await self._store.load_more(others))
        if self._wanted is not None and not set(starts) <= set(self._wanted):
            raise RetriableError("its partitions were changed before it began")
        return starts

    async def _step(self, handle: SliceHandle) -> float | None:
        """Returns in how many seconds there is more to do; None if nothing is."""
        if self._wanted is None:
            return None
        wanted = set(self._wanted)
        # Whoever has begun to leave leaves first, even where it is wanted again by now: it is copied no more.
        entries = self._ledger.entries.items()
        await self._let_go(handle, [source for source, entry in entries if source not in wanted or entry.is_leaving])
        missing = [source for source in self._wanted if source not in self._ledger.entries]
        self._waits_since = {source: since for source, since in self._waits_since.items() if source in missing}
        return await self._take_in(handle, missing) if missing else None

    # -- leaving ----------------------------------------------------------------------------------

    async def _let_go(self, handle: SliceHandle, leaving: Sequence[TopicPartition]) -> None:
        entries = [self._ledger.entries[source] for source in leaving]
        copied = [entry for entry in entries if not entry.is_leaving]
        if copied:
            unclean = await handle.remove([entry.pair.source for entry in copied])
            if unclean:
                raise SliceLost(f"the target did not answer for the last batches of {_names(unclean)}")
            for entry in copied:
                self._leave(entry)
        if entries:
            # Whoever gets them waits for the mark.
            await self._joins.left(leaving)
            await self._commit()
            for source in leaving:
                self._ledger.drop(source)
            log.info("%s: no longer copies %s", self._name, _names(leaving))

    def _leave(self, entry: Entry) -> None:
        if not entry.is_waiting and entry.position is not None:
            self._left[entry.pair.target] = (
                None if entry.is_stopped or entry.is_healing else entry.position.next_sequence
            )
        entry.leave()

    # -- joining ----------------------------------------------------------------------------------

    async def _take_in(self, handle: SliceHandle, missing: Sequence[TopicPartition]) -> float | None:
        pairs = await self._joins.find(missing)
        starts = dict(await self._store.load_more([pair.source for pair in pairs])) if pairs else {}
        now_s = asyncio.get_running_loop().time()
        late = {
            source
            for source in self._of_others(starts)
            if now_s - self._waits_since.setdefault(source, now_s) < HAND_OVER_S
        }
        ready = [pair for pair in pairs if pair.source not in late]
        # What others commit between our look and our fence would be copied again.
        starts |= await self._joins.shut_out({pair.source: starts[pair.source] for pair in ready})
        between = [pair for pair in ready if self._needs_own_fence(pair, starts[pair.source])]
        self._wait_for_epoch(between, starts)
        joining = Ledger(pair for pair in ready if pair not in between)
        if joining.entries:
            await self._joins.join(handle, joining, starts)
            self._enter(handle, joining, starts)
        if late:
            return _LOOK_S
        if len(pairs) < len(missing):
            found = {pair.source for pair in pairs}
            unknown = [source for source in missing if source not in found]
            raise RetriableError(f"a cluster does not know {_names(unknown)} now")
        return None

    def _of_others(self, starts: Mapping[TopicPartition, Start]) -> list[TopicPartition]:
        """Partitions that another task of this connector has written, and has not handed over."""
        family = self._transactional_id.rpartition("-")[0]
        return [
            source
            for source, start in starts.items()
            if (position := start.position) is not None
            and not position.is_handed_over
            and position.transactional_id != self._transactional_id
            and position.transactional_id.rpartition("-")[0] == family
        ]

    def _needs_own_fence(self, pair: Pair, start: Start) -> bool:
        """Whether it can only be taken over where our slice does not write."""
        position = start.position
        if not self.is_fencing or self._left.get(pair.target, 0) is None:
            return True
        if position is None:
            return False
        # Without a transactional id, also under our producer id with an epoch that was raised above ours.
        return not position.transactional_id or (
            not position.is_handed_over and position.transactional_id == self._transactional_id
        )

    def _wait_for_epoch(self, pairs: Iterable[Pair], starts: Mapping[TopicPartition, Start]) -> None:
        between = Ledger(pairs)
        for entry in between.entries.values():
            entry.wait("what was written there before is to be fenced, between two slices")
        if between.entries:
            self._ledger.entries.update(between.entries)
            self._waiting.add({source: starts[source] for source in between.entries}, is_back=True)

    def _enter(self, handle: SliceHandle, joined: Ledger, starts: Mapping[TopicPartition, Start]) -> None:
        self._ledger.entries.update(joined.entries)
        going = [entry for entry in joined.going() if not entry.holds_back]
        handle.add([plan_of(entry, pipelined=False) for entry in going])
        if waiting := joined.waiting():
            self._waiting.add({entry.pair.source: starts[entry.pair.source] for entry in waiting})
        for entry in going:
            self._left.pop(entry.pair.target, None)
        log.info("%s: copies %s as well", self._name, _names([entry.pair.source for entry in going]))


def _names(partitions: Collection[TopicPartition]) -> str:
    named = ", ".join(str(one) for one in list(partitions)[:_MOST_NAMED])
    more = len(partitions) - _MOST_NAMED
    return f"{named} and {more} more" if more > 0 else named
