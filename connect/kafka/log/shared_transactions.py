"""Transactions shared by two writers: another process writes the records, this one adds offsets and ends them.

The other process uses the same producer id and epoch over its own connections. A commit says nothing about the success
of its writes: in a trial, EndTxn committed although a batch of the transaction was rejected. So the caller of
:meth:`SharedTransactions.write` must know that all of them were acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Final

from kafka.protocol.metadata import ApiVersionsRequest

from connect.core.config.client_settings import TRANSACTION_TIMEOUT_MS
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import within
from connect.kafka.log import active_producers, transactions
from connect.kafka.log.producer import SEQUENCES, OutRecord, place, produce_all, waiting_out
from connect.kafka.log.transactions import Partition, ProducerIdentity

#: From this level of the feature ``transaction.version``, Produce adds partitions to a transaction implicitly and
#: EndTxn raises the epoch (KIP-890).
IMPLICIT_FROM: Final = 2
#: The highest version of Produce below that level, and the highest with topic names.
_PRODUCE_EXPLICIT: Final = 11
_PRODUCE_IMPLICIT: Final = 12
_FEATURES_FROM: Final = 3


class SharedTransactions:
    """The worker's half of a transactional id. Uses the cluster's connections and leaves them open. After any error the
    outcome of the transaction is unknown: :meth:`open` ends it, and what is stored then counts."""

    def __init__(
        self,
        cluster: Cluster,
        transactional_id: str,
        *,
        timeout_s: float = 30.0,
        transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
    ) -> None:
        """``timeout_s``: for a commit with all its attempts. ``transaction_timeout_ms``: when the cluster aborts an
        open transaction."""
        self.transactional_id = transactional_id
        #: The finalized level of ``transaction.version``.
        self.version = 0
        self._cluster = cluster
        self._timeout_s = timeout_s
        self._transaction_timeout_ms = transaction_timeout_ms
        self._identity: ProducerIdentity | None = None
        self._sequences: dict[Partition, int] = {}
        self._added: set[Partition] = set()

    @property
    def identity(self) -> ProducerIdentity:
        """The producer id and epoch of the open transaction, or of the next one."""
        assert self._identity is not None, "a transactional id must be claimed before it is used"
        return self._identity

    @property
    def restarts(self) -> bool:
        """Whether every transaction has a new epoch, so that its sequences start at 0."""
        return self.version >= IMPLICIT_FROM

    async def open(self) -> None:
        """Claim the id: this fences its previous owner and aborts the owner's open transaction before it returns.
        Raises TransactionalIdRefused if an ACL is missing, which the message names, and RetriableError if the cluster
        did not answer in time."""
        self.version = await _transaction_version(self._cluster)
        claimed = await transactions.init_producer_id(
            self._cluster, self.transactional_id, transaction_timeout_ms=self._transaction_timeout_ms
        )
        self.adopt(*claimed)

    async def end_left_open(self, partitions: Collection[Partition]) -> frozenset[Partition]:
        """Abort hanging transactions of this id in ``partitions``, after :meth:`open`; return the partitions that had
        some. Raises the errors of ``open``."""
        identity, left = await active_producers.end_left_open(
            self._cluster,
            self.transactional_id,
            self.identity,
            partitions,
            transaction_timeout_ms=self._transaction_timeout_ms,
        )
        self.adopt(*identity)
        return left

    def adopt(self, producer_id: int, epoch: int) -> None:
        """Continue with the identity from a fence or a commit; no transaction is open."""
        self._identity = ProducerIdentity(producer_id, epoch)
        self._sequences.clear()
        self._added.clear()

    async def add(self, partitions: Collection[Partition]) -> None:
        """Add partitions before their first record, if Produce does not. Errors as :meth:`write`."""
        wanted = [partition for partition in partitions if partition not in self._added]
        if not wanted:
            return
        async with asyncio.timeout(self._timeout_s):
            await transactions.add_after_markers(self._cluster, self.transactional_id, self.identity, wanted)
        self._added.update(wanted)

    async def write(self, records: Iterable[OutRecord]) -> None:
        """Write ``records`` into the open transaction, or into a new one, and commit it. Raises Superseded if another
        process has taken the id over, SecurityError if an ACL is missing, which the message names, and RetriableError
        if it is unknown whether the transaction was committed."""
        wanted = list(records)
        what = f"cluster {self._cluster.name}: a transaction of {self.transactional_id}"
        async with within(self._timeout_s, f"{what} was not committed"):
            # Attempts use the same sequences, so records that have arrived are not duplicated.
            written = await waiting_out(partial(self._produce, wanted))
            after = await transactions.commit_transaction(
                self._cluster, self.transactional_id, self.identity, renews=self.restarts
            )
        self._added.clear()
        if after != self._identity:
            self.adopt(*after)
        else:
            for partition, count in written.items():
                self._sequences[partition] = (self._sequences.get(partition, 0) + count) % SEQUENCES

    async def _produce(self, records: Sequence[OutRecord]) -> dict[Partition, int]:
        """Try once; return the number of records written to each partition."""
        by_leader = await place(self._cluster, records, self.identity, self._sequences)
        if not self.restarts:
            await self.add([partition for placed in by_leader.values() for partition in placed])
        check = partial(transactions.check, self._cluster, self.transactional_id, "Produce")
        at_most = _PRODUCE_IMPLICIT if self.restarts else _PRODUCE_EXPLICIT
        await produce_all(
            self._cluster, by_leader, self.transactional_id, self._timeout_s, check, produce_at_most=at_most
        )
        return {
            partition: sum(batch.records for batch in batches)
            for placed in by_leader.values()
            for partition, batches in placed.items()
        }


async def _transaction_version(cluster: Cluster) -> int:
    """Return the finalized level, 0 if brokers do not know the feature. Raises RetriableError."""
    connection = await cluster.any_connection()
    request = ApiVersionsRequest(client_software_name="heliograph", client_software_version="1")
    if connection.version_of(request) < _FEATURES_FROM:
        return 0
    answer = await connection.call(request)
    levels = {feature.name: feature.max_version_level for feature in answer.finalized_features or ()}
    return int(levels.get("transaction.version", 0))
