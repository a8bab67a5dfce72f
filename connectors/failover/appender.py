"""Batches appended to the new primary, each in one transaction with the mark that counts it.

Only one appender of a flow can commit: the next one claims its transactional id, which ends what the one before left
open. So the marks that are read after the claim name exactly what is there.
"""

from __future__ import annotations

import contextlib
import time
from typing import Final

from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from connect.core.errors import HeliographError, RetriableError
from connect.kafka.cluster import Cluster
from connect.kafka.producer import SEQUENCES, Batch, Check, Placed, produce_all
from connect.kafka.transactions import (
    Partition,
    ProducerIdentity,
    Superseded,
    TopicsRefused,
    add_partitions,
    claim,
    end_transaction,
    init_producer_id,
    until,
)

#: So long a batch may wait for its leader and the replicas.
_BATCH_S: Final = 20.0
#: Of which so long a leader may wait for replicas, so that it says what it waits for.
_LEADER_S: Final = 10.0
_COMMIT_S: Final = 15.0
#: Longer than both. If the process is killed, the lease beside the mark can be read only when this has passed.
_TRANSACTION_TIMEOUT_MS: Final = 40_000
_ABORT_S: Final = 10.0
_V2: Final = 2
_MARK_BYTES: Final = 16 << 10


class CommitUnknown(RetriableError):
    """A batch may have been appended, and may not; the mark tells."""


def transactional_id(flow: str) -> str:
    """Of who appends for a flow, such as ``us->eu``. No alias has a colon: it is the id of no lease."""
    return f"heliograph-failover-{flow}:append"


class Appender:
    """One batch at a time. Uses the cluster's connections and leaves them open.

    Args:
        marks: The partition that marks are written to.
    """

    def __init__(self, target: Cluster, flow: str, marks: Partition) -> None:
        self._target = target
        self._id = transactional_id(flow)
        self._marks = marks
        self._identity = ProducerIdentity(-1, -1)
        self._sequences: dict[Partition, int] = {}

    async def open(self) -> None:
        """Shut out the appender before. Raises as :func:`connect.kafka.transactions.init_producer_id`."""
        self._identity = await init_producer_id(self._target, self._id, transaction_timeout_ms=_TRANSACTION_TIMEOUT_MS)

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

    async def append(self, partition: Partition, batch: Batch, mark: tuple[bytes, bytes], check: Check) -> None:
        """Commit ``batch``, the next of ``partition``, with the key and value of its ``mark``.

        After an error the batches of :meth:`batch` begin again, and those that were made before are not to be used.

        Raises:
            CommitUnknown: it is not known whether it is committed.
            Superseded: another one has begun to append.
            TopicsRefused: the right to write to the partition is missing; other partitions may be appended to.
            HeliographError: it is not; as ``check``, which gets each error code of a leader.
        """
        builder = self.batch(self._marks, _MARK_BYTES)
        builder.append(0, int(time.time() * 1000), *mark, [])
        batches = {partition: batch, self._marks: Batch(bytes(builder.build()), 1)}
        try:
            await until(_BATCH_S, "waiting for the target", lambda: self._write(batches, check))
        except TopicsRefused:
            # Others are appended after this one. Unless the sequences begin again, brokers may take those for repeated.
            await self._give_up()
            raise
        except HeliographError:
            with contextlib.suppress(HeliographError):
                await self._give_up()
            raise
        try:
            await until(_COMMIT_S, f"committing {self._id}", self._commit)
        except Superseded:
            raise
        except HeliographError as error:
            raise CommitUnknown(str(error)) from error
        for one, each in batches.items():
            self._sequences[one] = (self._sequences.get(one, 0) + each.records) % SEQUENCES

    async def _write(self, batches: dict[Partition, Batch], check: Check) -> None:
        """The same bytes however often: a leader that has them answers as if it took them."""
        known = await self._target.topics({topic for topic, _ in batches})
        placed: Placed = {}
        for one, batch in batches.items():
            leader = known.leader(*one)
            if leader is None:
                raise RetriableError(f"{one[0]}-{one[1]} has no leader")
            placed.setdefault(leader, {})[one] = [batch]
        await add_partitions(self._target, self._id, self._identity, list(batches))
        await produce_all(self._target, placed, self._id, _LEADER_S, check)

    async def _commit(self) -> None:
        await end_transaction(self._target, self._id, self._identity, commit=True)

    async def _give_up(self) -> None:
        """By a new epoch, so that a batch that arrives late is refused; unless another one has claimed the id."""
        await until(_ABORT_S, f"giving {self._id} up", self._reclaim)

    async def _reclaim(self) -> None:
        self._identity = await claim(self._target, self._id, self._identity, timeout_ms=_TRANSACTION_TIMEOUT_MS)
        self._sequences.clear()
