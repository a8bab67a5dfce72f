"""Batches appended to the new primary, each in a transaction of an id that shuts out whoever appended before.

A batch may sit at a frozen broker after its writer was killed, and land behind everything that the next one has read.
So the id is fenced first, and what counts is read after that; from then on the older one commits nothing any more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Final

from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from connect.core.errors import HeliographError, RetriableError
from connect.kafka.cluster import Cluster
from connect.kafka.producer import SEQUENCES, Batch, Check, produce_all
from connect.kafka.transactions import (
    Partition,
    ProducerIdentity,
    Superseded,
    add_partitions,
    claim,
    end_transaction,
    fence,
    until,
)

#: So long a batch may wait for its leader and the replicas; less than a transaction lives by default.
_BATCH_S: Final = 40.0
#: Of which so long a leader may wait for replicas, so that it says what it waits for.
_LEADER_S: Final = 15.0
_COMMIT_S: Final = 15.0
_ABORT_S: Final = 10.0
_V2: Final = 2


class CommitUnknown(RetriableError):
    """A batch may have been appended, and may not."""


def transactional_id(flow: str) -> str:
    """Of who appends for a flow, such as ``us->eu``. No alias has a colon: it is the id of no lease."""
    return f"heliograph-failover-{flow}:append"


class Appender:
    """One batch at a time. Uses the cluster's connections and leaves them open."""

    def __init__(self, target: Cluster, flow: str) -> None:
        self._target = target
        self._id = transactional_id(flow)
        self._identity = ProducerIdentity(-1, -1)
        self._sequences: dict[Partition, int] = {}

    async def open(self, partitions: Collection[Partition]) -> None:
        """Shut out who appended before; what is read of ``partitions`` from now on stays as it is. Raises as
        :func:`connect.kafka.transactions.fence`."""
        self._identity = await fence(self._target, self._id, partitions)

    def batch(self, partition: Partition, size: int) -> DefaultRecordBatchBuilder:
        """An empty one, compressed: what was so at the source may be too large for the same topic without."""
        return DefaultRecordBatchBuilder(
            magic=_V2,
            compression_type=DefaultRecordBatch.CODEC_ZSTD,
            is_transactional=1,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.epoch,
            base_sequence=self._sequences.get(partition, 0),
            batch_size=size,
        )

    async def append(self, partition: Partition, batch: Batch, check: Check) -> None:
        """Have ``batch``, the next of ``partition``, there for all to read. Who has failed appends no more.

        Raises:
            CommitUnknown: it is not known whether it is.
            Superseded: another one has begun to append.
            HeliographError: it is not; as ``check``, which is told each error code of the leader.
        """
        try:
            await until(_BATCH_S, "waiting for the target", lambda: self._write(partition, batch, check))
        except HeliographError:
            await self._give_up()
            raise
        try:
            await until(_COMMIT_S, f"committing {self._id}", self._commit)
        except Superseded:
            raise
        except HeliographError as error:
            raise CommitUnknown(str(error)) from error
        self._sequences[partition] = (self._sequences.get(partition, 0) + batch.records) % SEQUENCES

    async def _write(self, partition: Partition, batch: Batch, check: Check) -> None:
        """The same bytes however often: a leader that has them answers as if it took them."""
        leader = (await self._target.topics({partition[0]})).leader(*partition)
        if leader is None:
            raise RetriableError(f"{partition[0]}-{partition[1]} has no leader")
        await add_partitions(self._target, self._id, self._identity, [partition])
        await produce_all(self._target, {leader: {partition: [batch]}}, self._id, _LEADER_S, check)

    async def _commit(self) -> None:
        await end_transaction(self._target, self._id, self._identity, commit=True)

    async def _give_up(self) -> None:
        """By a new epoch, so that a batch that arrives late is refused; unless somebody has taken the id over."""
        with contextlib.suppress(HeliographError):
            await until(_ABORT_S, f"giving {self._id} up", self._reclaim)

    async def _reclaim(self) -> None:
        self._identity = await claim(self._target, self._id, self._identity)
