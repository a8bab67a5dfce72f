"""MirrorSource's task under ``exactly.once.source.support``: records and positions in the same transactions.

The slice fills a transaction and sends ``drained`` once all its batches are acknowledged. Then this task writes
positions, Java's offsets and the map into it, with the same producer id and epoch, and commits it (KIP-618). Any error
ends the slice: the next claim of the transactional id aborts the open transaction, and the copy continues exactly at
the committed positions, without a proof.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from connect.core.errors import HeliographError
from connect.kafka.concurrency import Scope, in_turns
from connect.kafka.log.shared_transactions import SharedTransactions
from connect.kafka.log.transactions import (
    FenceRefused,
    Superseded,
    TopicsRefused,
    TransactionalIdRefused,
    init_producer_id,
)
from connectors.config.client_config import Rhythm
from connectors.control_link.protocol import Message, PartitionPlan, PartitionProgress, TransactionTerms
from connectors.formats.types import ProducerIdAndEpoch, Run, TopicPartition
from connectors.source.positions import partition_notes
from connectors.source.positions.stored_positions import Commit, PositionStore, Start
from connectors.source.positions.takeover import Takeover
from connectors.source.slice_handle import SliceDefect, SliceFenced, SliceHandle, SliceLost, TaskServices, TaskSettings
from connectors.source.task import MirrorSourceTask

log = logging.getLogger(__name__)

#: Small, because each transaction adds a run to the map and writes the open chunk again.
MAX_RUNS_PER_CHUNK: Final = 256
_SKIPS_REPORTED_S: Final = 1.0


class ExactlyOnceTask(MirrorSourceTask):
    """A task that copies in transactions; see the module. ``store``: writes into ``transactions``. ``plain_id``: the
    transactional id of the store of a predecessor without exactly-once. ``check_newest``: raises if another worker owns
    the task; awaited after the id is claimed."""

    _lets_join = False

    def __init__(
        self,
        settings: TaskSettings,
        services: TaskServices,
        store: PositionStore,
        transactions: SharedTransactions,
        rhythm: Rhythm,
        plain_id: str,
        check_newest: Callable[[], Awaitable[None]] | None,
    ) -> None:
        super().__init__(settings, services, store)
        self._transactions, self._rhythm, self._plain_id = transactions, rhythm, plain_id
        self._check_newest = check_newest
        #: Whether no transaction can be open, so that the ledger has what is committed.
        self._is_settled = False
        self._reported: asyncio.Queue[Message] = asyncio.Queue()
        self._scope = Scope(f"transactions of {self._name}")
        self._ending: asyncio.Task[None] | None = None
        #: Runs of the open transaction, for offset syncs once it is committed.
        self._unsynced: list[tuple[TopicPartition, Iterable[Run]]] = []

    async def _copy(self) -> None:
        try:
            await super()._copy()
        except SliceFenced as error:
            raise Superseded(str(error)) from error
        finally:
            await self._stop_ending()

    async def _go(self, handle: SliceHandle, producer: ProducerIdAndEpoch, plans: Iterable[PartitionPlan]) -> None:
        """Start the slice with the identity that the last transaction left, instead of ``producer``."""
        transactions = self._transactions
        identity = ProducerIdAndEpoch(*transactions.identity)
        self._is_settled = False
        self._reported = asyncio.Queue()
        handle.on_transaction = self._reported.put_nowait
        self._scope = Scope(f"transactions of {self._name}")
        self._ending = self._scope.spawn(self._end_forever(handle), f"transactions of {self._name}")
        await handle.go(
            identity,
            (
                replace(plan, producer=None, next_sequence=plan.next_sequence if plan.producer == identity else 0)
                for plan in plans
            ),
            TransactionTerms(
                transactions.transactional_id, transactions.version, self._rhythm.spacing_ms, self._rhythm.length_ms
            ),
        )

    async def _end_forever(self, handle: SliceHandle) -> None:
        """Handle the slice's messages about transactions, in order; an error ends the slice."""
        try:
            while True:
                message = await self._reported.get()
                if message["type"] == "enlist":
                    await self._enlist(handle, {TopicPartition(*one) for one in message["partitions"]})
                else:
                    async for partition in in_turns(message["partitions"]):
                        self._progressed(PartitionProgress.from_wire(partition))
                    await self._store_all()
                    identity = ProducerIdAndEpoch(*self._transactions.identity)
                    handle.begin(identity, restarts=self._transactions.restarts)
                self._reported.task_done()
        except HeliographError as error:
            handle.give_up(error)
        except TimeoutError:
            handle.give_up(SliceLost(f"the target did not add partitions to the transaction of {self._name} in time"))
        except Exception as error:  # else the slice would wait for its next transaction until the epoch ends
            log.error("%s: its transaction could not be ended", self._name, exc_info=error)
            handle.give_up(SliceDefect(f"{type(error).__name__}: {error}"))

    async def _enlist(self, handle: SliceHandle, targets: Collection[TopicPartition]) -> None:
        """Add target partitions to the transaction. The slice stops those that we may not write to, as it does when
        Produce is refused."""
        wanted, refused = set(targets), set[TopicPartition]()
        while True:
            try:
                await self._transactions.add(wanted)
                break
            except TopicsRefused as error:  # then none of them was added
                if not (ours := {target for target in wanted if target in error.partitions}):
                    raise
                wanted -= ours
                refused |= ours
        handle.enlisted(wanted, refused)

    async def _store_all(self) -> None:
        """Commit the open transaction with all reported progress; do nothing if there is none."""
        async with self._committing:
            identity = self._transactions.identity
            taken = in_turns(self.ledger.take_commits())
            if commits := [self._atomic(commit, *identity) async for commit in taken]:
                await self._write(commits)
                async for commit in in_turns(commits):
                    self.ledger.commit_succeeded(commit)
        committed, self._unsynced = self._unsynced, []
        async for source, runs in in_turns(committed):
            super()._sync(source, runs)
        if self._services.syncs is not None:
            self._services.syncs.commit()

    def _sync(self, source: TopicPartition, runs: Iterable[Run]) -> None:
        if known := list(runs):
            self._unsynced.append((source, known))

    def _atomic(self, commit: Commit, producer_id: int, epoch: int) -> Commit:
        position = replace(
            commit.position,
            transactional_id=self._transactions.transactional_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            is_atomic=True,
        )
        return replace(commit, position=position)

    async def _end_epoch(self, handle: SliceHandle) -> None:
        await super()._end_epoch(handle)
        await self._all_ended()
        if handle.ended.done() and (error := handle.ended.result()) is not None:
            raise error
        await self._stop_ending()
        self._is_settled = True

    async def _all_ended(self) -> None:
        """Wait for the commit of the slice's last transaction. Raises :class:`SliceLost` if it fails."""
        assert self._ending is not None
        async with Scope(self._name) as scope:
            joining = scope.spawn(self._reported.join(), f"last transaction of {self._name}")
            await asyncio.wait({joining, self._ending}, return_when="FIRST_COMPLETED")
            if not joining.done():
                self._ending.result()
                raise SliceLost("the last transaction could not be committed")

    async def _stop_ending(self) -> None:
        await self._scope.close()
        self._ending = None

    async def _take_over(self) -> tuple[Takeover, Mapping[TopicPartition, Start]]:
        if self._is_settled:
            await self._commit()
            await self.ledger.committed_with_records()
        else:
            self._loaded = False
            self.ledger.forget_unstored()
            self._unsynced.clear()
        takeover, starts = await super()._take_over()
        if not takeover.transactional_id:
            raise FenceRefused(
                f"{self._name}: exactly-once needs the transactional id {self._transactions.transactional_id}; "
                "grant WRITE and DESCRIBE on it"
            )
        if unfenced := list(takeover.unfenced.values()):
            raise FenceRefused(
                f"{self._name}: exactly-once cannot start: the last writer of {unfenced[0]} ({len(unfenced)} "
                "partitions) cannot be fenced, because the target does not know its transactional id. Start the flow "
                "once without exactly-once, stop it while it copies, then enable exactly-once"
            )
        producer = takeover.producer
        self._transactions.adopt(producer.producer_id, producer.epoch)
        if self._check_newest is not None:
            await self._check_newest()
        self._is_settled = True
        for plan in takeover.plans:
            position = starts[plan.source].position
            if position and position.is_atomic and not position.is_handed_over:
                partition_notes.log_committed(str(self.flow), plan, position)
        return takeover, starts

    async def _load(self, sources: Sequence[TopicPartition]) -> Mapping[TopicPartition, Start]:
        # Fence the store of a predecessor without exactly-once, which may be about to write.
        with contextlib.suppress(TransactionalIdRefused):
            await init_producer_id(self._services.clusters.target, self._plain_id)
        return await super()._load(sources)

    def _hold_if_full(self) -> None:
        """Never hold: a record counts only once its transaction, and so its position, is committed."""

    async def _commit(self) -> None:
        """Store start positions and handovers, outside of the slice's transactions."""
        if self._is_settled:
            self._is_settled = False
            await self._store_all()
            self._is_settled = True

    async def _commit_forever(self) -> None:
        while True:
            await asyncio.sleep(_SKIPS_REPORTED_S)
            self._tell()
