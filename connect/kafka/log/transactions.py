"""Fences producers: afterwards no write of a predecessor that is still in flight can reach the target's log.

An expired lease or an end offset is not enough: bytes can sit in a stalled socket, in a frozen broker's queue, or above
a high watermark that does not move. A new producer epoch alone is not enough either, because a partition learns of it
only through an append. So a fence is a new epoch and an aborted transaction without data over all partitions. It leaves
a marker in each, even in one never written to; from then on the partition rejects the old epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any, Final, NamedTuple

from kafka.errors import for_code
from kafka.protocol.producer import transaction

from connect.core.config.client_settings import TRANSACTION_TIMEOUT_MS
from connect.core.errors import PermanentError, RetriableError
from connect.kafka.cluster import Cluster, NotAuthorized, error_name
from connect.kafka.concurrency import Pauses, until
from connect.kafka.log.offsets import by_topic

Partition = tuple[str, int]

#: Used instead if brokers allow less and the caller named no timeout.
_SHORTER_TIMEOUTS_MS: Final = (1_000, 10_000)
_BACKOFF_FIRST_S: Final = 0.02
_BACKOFF_LAST_S: Final = 0.5
#: From this epoch, the next InitProducerId returns another producer id (Kafka ``TransactionMetadata``).
_EPOCH_EXHAUSTED: Final = 32766
#: Later versions do more than is wanted: AddPartitionsToTxn 4 is the brokers' own batched form, EndTxn 5 raises the
#: epoch and rejects a transaction without data (KIP-890).
_ADD_PARTITIONS_AT_MOST: Final = 3
_END_TXN_AT_MOST: Final = 4
_ADD_OFFSETS_AT_MOST: Final = 3
_GROUP_AUTHORIZATION_FAILED: Final = 30
_END_TXN_RENEWING: Final = 5
#: Coordinators that are loading or moved, pending markers: nothing has changed yet.
_NOT_YET: Final = frozenset({14, 15, 16, 51})
_MARKERS_WAIT_S: Final = 0.005
_COMMIT_PAUSES_S: Final = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)

_UNKNOWN_TOPIC_OR_PARTITION: Final = 3
_INVALID_PRODUCER_EPOCH: Final = 47
_INVALID_TRANSACTION_TIMEOUT: Final = 50
_CONCURRENT_TRANSACTIONS: Final = 51
_OPERATION_NOT_ATTEMPTED: Final = 55
_TOPIC_AUTHORIZATION_FAILED: Final = 29
_TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Final = 53
_FENCED: Final = frozenset({_INVALID_PRODUCER_EPOCH, 90})  # ... PRODUCER_FENCED
#: topic, cluster, transactional id: authorisation failed
REFUSED_CODES: Final = frozenset({29, 31, _TRANSACTIONAL_ID_AUTHORIZATION_FAILED})
#: Errors worth another attempt from the start: coordinators loading or moved, pending markers, a forgotten id.
_START_AGAIN: Final = frozenset({14, 15, 16, 48, 49, _UNKNOWN_TOPIC_OR_PARTITION})


class Superseded(PermanentError):
    """Another process has taken the transactional id over: this one must stop and write nothing more."""


class FenceRefused(NotAuthorized):
    """An ACL for fencing is missing; the message names it."""


class TopicsRefused(FenceRefused):
    """WRITE is missing on the topics of ``partitions``; other partitions may still be fenced."""

    def __init__(self, message: str, partitions: frozenset[Partition]) -> None:
        super().__init__(message)
        self.partitions = partitions


class TransactionalIdRefused(FenceRefused):
    """ACLs on the transactional id are missing; what needs none may continue."""


class MarkersPending(RetriableError):
    """The markers of the previous transaction are not complete yet: retry in a moment."""


class ProducerIdentity(NamedTuple):
    """How the cluster identifies a writer; only the highest epoch of an id may write."""

    producer_id: int
    epoch: int


async def fence(
    cluster: Cluster,
    transactional_id: str,
    partitions: Collection[Partition],
    *,
    timeout_s: float = 60.0,
    transaction_timeout_ms: int | None = None,
) -> ProducerIdentity:
    """Fence all earlier writers under ``transactional_id`` and return the identity to write under.

    ``transaction_timeout_ms``: when the cluster aborts an open transaction of that identity.

    Afterwards each partition has a marker of the identity's producer id, after everything that earlier epochs wrote;
    the first sequence there must be 0, and any other is rejected.

    Raises:
        TopicsRefused: WRITE on the topics of some partitions is missing.
        FenceRefused: another ACL is missing.
        Superseded: another process fenced at the same time, and won.
        RetriableError: not done within ``timeout_s``; the message has the cause.
    """

    async def attempt() -> ProducerIdentity:
        while True:
            first = await claim(cluster, transactional_id, timeout_ms=transaction_timeout_ms)
            if partitions:
                await add_partitions(cluster, transactional_id, first, partitions)
                await end_transaction(cluster, transactional_id, first, commit=False)
            final = await claim(cluster, transactional_id, first, timeout_ms=transaction_timeout_ms)
            # When its epochs are used up, an id is replaced by one that the markers do not fence. And the last epoch
            # must not be used for writing, because the next fence could not mark the same id with a higher one.
            if final.producer_id == first.producer_id and final.epoch < _EPOCH_EXHAUSTED:
                return final

    return await until(timeout_s, f"fencing {transactional_id} on cluster {cluster.name}", attempt)


async def init_producer_id(
    cluster: Cluster, transactional_id: str, *, timeout_s: float = 60.0, transaction_timeout_ms: int | None = None
) -> ProducerIdentity:
    """Claim ``transactional_id`` when no partition has earlier writers to fence: a first start.
    ``transaction_timeout_ms`` and errors are those of ``fence``."""

    async def attempt() -> ProducerIdentity:
        identity = await claim(cluster, transactional_id, timeout_ms=transaction_timeout_ms)
        if identity.epoch < _EPOCH_EXHAUSTED:
            return identity
        return await claim(cluster, transactional_id, timeout_ms=transaction_timeout_ms)

    return await until(timeout_s, f"claiming {transactional_id} on cluster {cluster.name}", attempt)


async def new_producer_id(cluster: Cluster, *, timeout_s: float = 60.0) -> ProducerIdentity:
    """Return a new producer id without a transactional id, which no other producer has or had. Raises FenceRefused if
    an ACL for idempotent writes is missing, and RetriableError if no broker allocated one within ``timeout_s``."""

    async def attempt() -> ProducerIdentity:
        request = transaction.InitProducerIdRequest(
            transactional_id=None, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS, producer_id=-1, producer_epoch=-1
        )
        answer = await (await cluster.any_connection()).call(request)
        what = f"cluster {cluster.name} did not allocate a producer id: {error_name(answer.error_code)}"
        if answer.error_code in REFUSED_CODES:
            raise FenceRefused(f"{what}; grant WRITE on the topics to write to, or IDEMPOTENT_WRITE on the cluster")
        if answer.error_code:
            raise (RetriableError if for_code(answer.error_code).retriable else PermanentError)(what)
        return ProducerIdentity(answer.producer_id, answer.producer_epoch)

    return await until(timeout_s, f"asking cluster {cluster.name} for a producer id", attempt)


async def claim(
    cluster: Cluster, transactional_id: str, current: ProducerIdentity | None = None, *, timeout_ms: int | None = None
) -> ProducerIdentity:
    """Send InitProducerId once: raises the epoch and aborts an open transaction; waits for its markers, without limit.
    The cluster aborts a transaction of the new epoch after ``timeout_ms``. None, for callers whose transactions are
    short, means Java's default, or less if the cluster allows no more. With ``current`` it fails if another process has
    claimed the id since; brokers before 2.5 (KIP-360) cannot check."""
    pauses = Pauses(_BACKOFF_FIRST_S, _BACKOFF_LAST_S)
    asked_ms = [timeout_ms] if timeout_ms is not None else [*_SHORTER_TIMEOUTS_MS, TRANSACTION_TIMEOUT_MS]
    while True:
        answer = await _ask(
            cluster,
            transactional_id,
            transaction.InitProducerIdRequest(
                transactional_id=transactional_id,
                transaction_timeout_ms=asked_ms[-1],
                producer_id=current.producer_id if current else -1,
                producer_epoch=current.epoch if current else -1,
            ),
            None,
        )
        if answer.error_code == _INVALID_TRANSACTION_TIMEOUT and len(asked_ms) > 1:
            asked_ms.pop()
            continue
        if answer.error_code != _CONCURRENT_TRANSACTIONS:
            break
        # Markers are being written; the caller waits until they are complete.
        await pauses.wait()
    if answer.error_code == _INVALID_TRANSACTION_TIMEOUT:
        raise PermanentError(
            f"cluster {cluster.name} rejects transaction.timeout.ms={asked_ms[-1]}; lower it, or raise the "
            "brokers' transaction.max.timeout.ms"
        )
    check(cluster, transactional_id, "InitProducerId", answer.error_code)
    return ProducerIdentity(answer.producer_id, answer.producer_epoch)


async def add_partitions(
    cluster: Cluster, transactional_id: str, identity: ProducerIdentity, partitions: Collection[Partition]
) -> None:
    """Send AddPartitionsToTxn once, so that the partitions may be written to. Errors as ``fence``."""
    answer = await _ask(
        cluster,
        transactional_id,
        transaction.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.epoch,
            v3_and_below_topics=[
                transaction.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=indexes)
                for topic, indexes in by_topic(sorted(partitions)).items()
            ],
        ),
        _ADD_PARTITIONS_AT_MOST,
    )
    # One bad partition fails all; the others report only that they were not attempted.
    codes = {
        (result.name, row.partition_index): row.partition_error_code
        for result in answer.results_by_topic_v3_and_below
        for row in result.results_by_partition
        if row.partition_error_code
    }
    refused = frozenset(partition for partition, code in codes.items() if code == _TOPIC_AUTHORIZATION_FAILED)
    if refused:
        topics_named = ", ".join(sorted({topic for topic, _ in refused}))
        raise TopicsRefused(
            f"cluster {cluster.name}: AddPartitionsToTxn for transactional id {transactional_id}: "
            f"{error_name(_TOPIC_AUTHORIZATION_FAILED)}; grant WRITE on topic {topics_named}",
            refused,
        )
    for (topic, index), code in sorted(codes.items(), key=lambda one: (one[1] == _OPERATION_NOT_ATTEMPTED, one[0])):
        check(cluster, transactional_id, "AddPartitionsToTxn", code, f"{topic}-{index}")


async def add_after_markers(
    cluster: Cluster, transactional_id: str, identity: ProducerIdentity, partitions: Collection[Partition]
) -> None:
    """Add partitions once the markers of the previous transaction are complete; the caller limits the time."""
    while True:
        try:
            return await add_partitions(cluster, transactional_id, identity, partitions)
        except MarkersPending:
            await asyncio.sleep(_MARKERS_WAIT_S)


async def add_offsets(cluster: Cluster, transactional_id: str, identity: ProducerIdentity, group: str) -> None:
    """Send AddOffsetsToTxn once, so that offsets of ``group`` may be committed. Errors as ``fence``, and NotAuthorized
    if READ on the group is missing."""
    request = transaction.AddOffsetsToTxnRequest(
        transactional_id=transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        group_id=group,
    )
    answer = await _ask(cluster, transactional_id, request, _ADD_OFFSETS_AT_MOST)
    if answer.error_code == _GROUP_AUTHORIZATION_FAILED:
        name = error_name(answer.error_code)
        raise NotAuthorized(f"cluster {cluster.name}: AddOffsetsToTxn: {name}; grant READ on group {group}")
    check(cluster, transactional_id, "AddOffsetsToTxn", answer.error_code)


async def end_transaction(cluster: Cluster, transactional_id: str, identity: ProducerIdentity, *, commit: bool) -> None:
    """Send EndTxn once, in the form that keeps the epoch. Errors as ``fence``."""
    answer = await _ask(cluster, transactional_id, _end(transactional_id, identity, commit=commit), _END_TXN_AT_MOST)
    check(cluster, transactional_id, "EndTxn", answer.error_code)


async def commit_transaction(
    cluster: Cluster, transactional_id: str, identity: ProducerIdentity, *, renews: bool
) -> ProducerIdentity:
    """Commit a transaction that holds data; return the identity for the next one. ``renews``: use the EndTxn that
    raises the epoch, or returns a new id if epochs are used up (KIP-890). It is retried only after responses that mean
    "not yet", because a request in flight on a lost connection could end the next transaction. Errors as ``fence``."""
    if not renews:
        await end_transaction(cluster, transactional_id, identity, commit=True)
        return identity
    for waiting_s in (*_COMMIT_PAUSES_S, None):
        answer = await _ask(cluster, transactional_id, _end(transactional_id, identity, commit=True), _END_TXN_RENEWING)
        if answer.error_code not in _NOT_YET or waiting_s is None:
            break
        cluster.forget_coordinator(transactional_id, "transaction", answer.error_code)
        await asyncio.sleep(waiting_s)
    check(cluster, transactional_id, "EndTxn", answer.error_code)
    return ProducerIdentity(answer.producer_id, answer.producer_epoch)


def _end(transactional_id: str, identity: ProducerIdentity, *, commit: bool) -> transaction.EndTxnRequest:
    return transaction.EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        committed=commit,
    )


async def _ask(cluster: Cluster, transactional_id: str, request: Any, at_most: int | None) -> Any:
    try:
        connection = await cluster.coordinator(transactional_id, "transaction")
    except NotAuthorized as error:
        raise TransactionalIdRefused(
            f"cluster {cluster.name}: access to transactional id {transactional_id} is denied; "
            f"grant WRITE and DESCRIBE on transactional id {transactional_id}"
        ) from error
    return await connection.call(request, at_most=at_most)


def check(cluster: Cluster, transactional_id: str, api: str, code: int, partition: str = "") -> None:
    """Raise the error for the code of a transactional response, if it is one."""
    if not code:
        return
    cluster.forget_coordinator(transactional_id, "transaction", code)
    what = f"cluster {cluster.name}: {api} for transactional id {transactional_id}"
    what += f", {partition}: {error_name(code)}" if partition else f": {error_name(code)}"
    if code == _CONCURRENT_TRANSACTIONS:
        raise MarkersPending(what)
    if code in _FENCED:
        raise Superseded(f"{what}; another process has taken it over")
    if code == _TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        raise TransactionalIdRefused(f"{what}; grant WRITE and DESCRIBE on transactional id {transactional_id}")
    if code in REFUSED_CODES:
        grant = f"WRITE on topic {partition.rsplit('-', 1)[0]}" if partition else "IDEMPOTENT_WRITE on the cluster"
        raise FenceRefused(f"{what}; grant {grant}")
    if code in _START_AGAIN or for_code(code).retriable:
        raise RetriableError(what)
    raise PermanentError(what)
