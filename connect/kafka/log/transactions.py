"""Fencing: after it, nothing that a predecessor still has under way can reach the target's log.

A lease or an end offset proves nothing: bytes can sit in a stalled socket, in a frozen broker's queue, or below a
high watermark that does not move. A raised producer epoch alone does not help either, for a partition learns of it
only by an append. So the fence is a new epoch and an aborted transaction without data over all partitions: it leaves
one marker in each, and from there on the old epoch is refused, never-written partitions included.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final, NamedTuple, TypeVar

from kafka.errors import for_code
from kafka.protocol.producer.transaction import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
)

from connect.core.config.client_settings import TRANSACTION_TIMEOUT_MS
from connect.core.errors import HeliographError, PermanentError, RetriableError
from connect.kafka.cluster import Cluster, NotAuthorized, error_name

log = logging.getLogger(__name__)

Partition = tuple[str, int]
T = TypeVar("T")

#: What is asked for instead where brokers allow less, and nobody has said how long it may be.
_SHORTER_TIMEOUTS_MS: Final = (1_000, 10_000)
_BACKOFF_FIRST_S: Final = 0.02
_BACKOFF_LAST_S: Final = 0.5
#: From this epoch on, the next InitProducerId hands out another producer id (Kafka ``TransactionMetadata``).
_EPOCH_EXHAUSTED: Final = 32766
#: Later versions do more than we want: AddPartitionsToTxn 4 is the brokers' own batched form, EndTxn 5 raises the
#: epoch and refuses a transaction without data (KIP-890).
_ADD_PARTITIONS_AT_MOST: Final = 3
_END_TXN_AT_MOST: Final = 4
_ADD_OFFSETS_AT_MOST: Final = 3
_GROUP_AUTHORIZATION_FAILED: Final = 30
_END_TXN_RENEWING: Final = 5
#: Coordinators that load or moved, markers under way: nothing has changed, and soon something may.
_NOT_YET: Final = frozenset({14, 15, 16, 51})
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
#: Another attempt from the beginning may do: coordinators that load or moved, markers under way, a forgotten id.
_START_AGAIN: Final = frozenset({14, 15, 16, 48, 49, _UNKNOWN_TOPIC_OR_PARTITION})


class Superseded(PermanentError):
    """Somebody else has taken the transactional id over: this one must stop and write nothing more."""


class FenceRefused(NotAuthorized):
    """The cluster's rules do not let us fence; names what to grant."""


class TopicsRefused(FenceRefused):
    """The cluster's rules do not let us write to ``partitions``; others may be fenced without them."""

    def __init__(self, message: str, partitions: frozenset[Partition]) -> None:
        super().__init__(message)
        self.partitions = partitions


class TransactionalIdRefused(FenceRefused):
    """The cluster's rules do not let us use the transactional id at all; what needs none may go on."""


class MarkersPending(RetriableError):
    """The transaction before is not wound up yet: ask again in a moment."""


class ProducerIdentity(NamedTuple):
    """Under which the cluster knows a writer; only the highest epoch of an id may write."""

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
    """Shut out whoever wrote under ``transactional_id`` and return the identity to write under.

    ``transaction_timeout_ms``: after so long the cluster aborts a transaction of that identity.

    When it returns, each partition has a marker of the identity's producer id, behind everything that earlier epochs
    ever got in; the first sequence there must be 0, and any other is refused.

    Raises:
        TopicsRefused: the right to write to some of the partitions is missing.
        FenceRefused: other rights are missing.
        Superseded: another one fences at the same time, and won.
        RetriableError: not done within ``timeout_s``; says what stood in the way.
    """

    async def attempt() -> ProducerIdentity:
        while True:
            first = await claim(cluster, transactional_id, timeout_ms=transaction_timeout_ms)
            if partitions:
                await add_partitions(cluster, transactional_id, first, partitions)
                await end_transaction(cluster, transactional_id, first, commit=False)
            final = await claim(cluster, transactional_id, first, timeout_ms=transaction_timeout_ms)
            # An id whose epochs are used up is exchanged for one that the markers say nothing of. And nobody may
            # write under the last epoch, or the next fence could not mark the same id with a higher one.
            if final.producer_id == first.producer_id and final.epoch < _EPOCH_EXHAUSTED:
                return final

    return await until(timeout_s, f"fencing {transactional_id} on cluster {cluster.name}", attempt)


async def init_producer_id(
    cluster: Cluster,
    transactional_id: str,
    *,
    timeout_s: float = 60.0,
    transaction_timeout_ms: int | None = None,
) -> ProducerIdentity:
    """Take ``transactional_id`` over where there is nothing to shut out of any partition: a first start.

    ``transaction_timeout_ms`` and errors as of ``fence``.
    """

    async def attempt() -> ProducerIdentity:
        identity = await claim(cluster, transactional_id, timeout_ms=transaction_timeout_ms)
        if identity.epoch < _EPOCH_EXHAUSTED:
            return identity
        return await claim(cluster, transactional_id, timeout_ms=transaction_timeout_ms)

    return await until(timeout_s, f"claiming {transactional_id} on cluster {cluster.name}", attempt)


async def new_producer_id(cluster: Cluster, *, timeout_s: float = 60.0) -> ProducerIdentity:
    """A producer id that no transactional id stands behind, and that nobody else has or had.

    Raises:
        FenceRefused: the right to write without a gap is missing.
        RetriableError: no broker gave one within ``timeout_s``.
    """

    async def attempt() -> ProducerIdentity:
        request = InitProducerIdRequest(
            transactional_id=None, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS, producer_id=-1, producer_epoch=-1
        )
        answer = await (await cluster.any_connection()).call(request)
        what = f"cluster {cluster.name} gives us no producer id: {error_name(answer.error_code)}"
        if answer.error_code in REFUSED_CODES:
            raise FenceRefused(f"{what}; grant WRITE on the topics to be written, or IDEMPOTENT_WRITE on the cluster")
        if answer.error_code:
            raise (RetriableError if for_code(answer.error_code).retriable else PermanentError)(what)
        return ProducerIdentity(answer.producer_id, answer.producer_epoch)

    return await until(timeout_s, f"asking cluster {cluster.name} for a producer id", attempt)


async def claim(
    cluster: Cluster,
    transactional_id: str,
    current: ProducerIdentity | None = None,
    *,
    timeout_ms: int | None = None,
) -> ProducerIdentity:
    """InitProducerId, once: raises the epoch and ends what is open; waits for its markers, without a bound. The cluster
    aborts a transaction of the new epoch after ``timeout_ms``; None, for who has none open for long: Java's default, or
    less where the cluster allows no more.

    With ``current`` only if nobody else has done so since; brokers older than 2.5 (KIP-360) cannot tell.
    """
    waiting_s = _BACKOFF_FIRST_S
    asked_ms = [timeout_ms] if timeout_ms is not None else [*_SHORTER_TIMEOUTS_MS, TRANSACTION_TIMEOUT_MS]
    while True:
        answer = await _ask(
            cluster,
            transactional_id,
            InitProducerIdRequest(
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
        # Markers are being written; that they are all there is what the caller waits for.
        await asyncio.sleep(waiting_s)
        waiting_s = min(2 * waiting_s, _BACKOFF_LAST_S)
    if answer.error_code == _INVALID_TRANSACTION_TIMEOUT:
        raise PermanentError(
            f"cluster {cluster.name} allows no transaction.timeout.ms of {asked_ms[-1]}; lower it, or raise the "
            "brokers' transaction.max.timeout.ms"
        )
    check(cluster, transactional_id, "InitProducerId", answer.error_code)
    return ProducerIdentity(answer.producer_id, answer.producer_epoch)


async def add_partitions(
    cluster: Cluster, transactional_id: str, identity: ProducerIdentity, partitions: Collection[Partition]
) -> None:
    """AddPartitionsToTxn, once: what follows may be written in the partitions. Errors as ``fence``."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    answer = await _ask(
        cluster,
        transactional_id,
        AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=indexes)
                for topic, indexes in topics.items()
            ],
        ),
        _ADD_PARTITIONS_AT_MOST,
    )
    # One bad partition fails all; the others then say only that they were not attempted.
    codes = [
        (
            row.partition_error_code == _OPERATION_NOT_ATTEMPTED,
            result.name,
            row.partition_index,
            row.partition_error_code,
        )
        for result in answer.results_by_topic_v3_and_below
        for row in result.results_by_partition
        if row.partition_error_code
    ]
    refused = frozenset((topic, index) for _, topic, index, code in codes if code == _TOPIC_AUTHORIZATION_FAILED)
    if refused:
        topics_named = ", ".join(sorted({topic for topic, _ in refused}))
        raise TopicsRefused(
            f"cluster {cluster.name}: AddPartitionsToTxn for transactional id {transactional_id}: "
            f"{error_name(_TOPIC_AUTHORIZATION_FAILED)}; grant WRITE on topic {topics_named}",
            refused,
        )
    for _, topic, partition, code in sorted(codes):
        check(cluster, transactional_id, "AddPartitionsToTxn", code, f"{topic}-{partition}")


async def add_offsets(cluster: Cluster, transactional_id: str, identity: ProducerIdentity, group: str) -> None:
    """AddOffsetsToTxn, once: what follows may commit offsets of ``group``. Errors as ``fence``, and NotAuthorized
    if READ on the group is missing."""
    request = AddOffsetsToTxnRequest(
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
    """EndTxn, once, in the form that leaves the epoch alone. Errors as ``fence``."""
    answer = await _ask(
        cluster,
        transactional_id,
        _end(transactional_id, identity, commit=commit),
        _END_TXN_AT_MOST,
    )
    check(cluster, transactional_id, "EndTxn", answer.error_code)


async def commit_transaction(
    cluster: Cluster, transactional_id: str, identity: ProducerIdentity, *, renews: bool
) -> ProducerIdentity:
    """EndTxn, of a transaction that holds data; returns as whom the next one is written.

    ``renews``: in the form that raises the epoch, or gives a new id where epochs are used up (KIP-890). Only answers
    that say «not yet» are followed by another attempt: a request that is under way in a lost connection might end the
    next transaction. Errors as ``fence``.
    """
    if not renews:
        await end_transaction(cluster, transactional_id, identity, commit=True)
        return identity
    for waiting_s in (*_COMMIT_PAUSES_S, None):
        answer = await _ask(
            cluster,
            transactional_id,
            _end(transactional_id, identity, commit=True),
            _END_TXN_RENEWING,
        )
        if answer.error_code not in _NOT_YET or waiting_s is None:
            break
        cluster.forget_coordinator(transactional_id, "transaction", answer.error_code)
        await asyncio.sleep(waiting_s)
    check(cluster, transactional_id, "EndTxn", answer.error_code)
    return ProducerIdentity(answer.producer_id, answer.producer_epoch)


def _end(transactional_id: str, identity: ProducerIdentity, *, commit: bool) -> EndTxnRequest:
    return EndTxnRequest(
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
            f"cluster {cluster.name} does not let us use transactional id {transactional_id}; "
            f"grant WRITE and DESCRIBE on transactional id {transactional_id}"
        ) from error
    return await connection.call(request, at_most=at_most)


def check(cluster: Cluster, transactional_id: str, api: str, code: int, partition: str = "") -> None:
    """Raise what an error code of a transactional request means, if it is one."""
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


async def until(timeout_s: float, what: str, attempt: Callable[[], Awaitable[T]]) -> T:
    """Repeat ``attempt`` while it fails retriably, with a growing pause, for ``timeout_s``."""
    waiting_s = _BACKOFF_FIRST_S
    reason: HeliographError | None = None
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    return await attempt()
                except RetriableError as error:
                    if reason is None or str(error) != str(reason):
                        log.info("%s: %s; trying again", what, error)
                    reason = error
                await asyncio.sleep(waiting_s)
                waiting_s = min(2 * waiting_s, _BACKOFF_LAST_S)
    except TimeoutError as error:
        raise RetriableError(f"{what}: not done within {timeout_s:g} s; {reason or 'no answer'}") from error
