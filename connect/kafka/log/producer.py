"""Writes records to compacted topics: in transactions of a single writer, or without transactions, in order.

Transactions do not use aiokafka's: after a lost connection, a writer may continue only if no other one has taken over
its transactional id (KIP-360), and aiokafka's InitProducerId cannot check that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import zip_longest
from typing import Final, NamedTuple, TypeVar

from aiokafka.partitioner import murmur2
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from kafka.errors import for_code
from kafka.protocol.producer.produce import ProduceRequest

from connect.core.errors import ClusterUnreachable, HeliographError, PermanentError, RetriableError
from connect.kafka.cluster import Cluster, ClusterMetadata, NotAuthorized, error_name
from connect.kafka.concurrency import in_turns, retried, together, until, wall_ms, within
from connect.kafka.log import active_producers, transactions
from connect.kafka.log.committed_offsets import Committed, commit_in_transaction
from connect.kafka.log.transactions import Partition, ProducerIdentity

log = logging.getLogger(__name__)

#: Below every default of ``max.message.bytes``.
_BATCH_BYTES: Final = 900_000
#: From version 12 Produce adds partitions to a transaction implicitly (KIP-890), which needs another EndTxn.
_PRODUCE_AT_MOST: Final = 11
_ACKS_ALL: Final = -1
#: How long a response may take beyond the time that its leader waits for the other replicas.
_LAPSE_MS: Final = 2_000
#: Of a producer in a partition; 0 follows the last one.
SEQUENCES: Final = 2**31
#: For errors that pass in moments: a leader that moved, a topic that its broker does not know yet.
_RETRY_FOR_S: Final = 5.0
_RETRY_PAUSE_S: Final = 0.05
#: How long leaders are taken as they were, unless a write fails: offset syncs are up to ten writes a second.
_LEADERS_S: Final = 30.0
_NOT_ALLOWED: Final = frozenset({29, 31})  # topic, cluster: authorisation failed
_INVALID_RECORD: Final = 87  # of a compacted topic: a record without a key
_NO_PRODUCER: Final = ProducerIdentity(-1, -1)

#: Raises the error for an error code of a partition, given its name.
Check = Callable[[int, str], None]
#: Offsets to commit, by group.
GroupOffsets = Mapping[str, Mapping[Partition, Committed]]
#: Decides whether to commit a transaction, given the offset of its first record in each partition.
MayCommit = Callable[[Mapping[Partition, int]], Awaitable[bool]]
T = TypeVar("T")
Header = tuple[str, bytes]


class OutRecord(NamedTuple):
    """A record to write; ``value`` None is a tombstone, ``timestamp_ms`` None is now. With ``partition`` the key may be
    empty, and then the record has none. Otherwise the partition depends on ``partition_key``, which keeps records of
    several keys in order, or on the key as with Java's producer."""

    topic: str
    key: bytes
    value: bytes | None
    partition_key: bytes | None = None
    headers: tuple[Header, ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


class Batch(NamedTuple):
    data: bytes
    records: int


#: Batches by leader and partition.
Placed = dict[int, dict[Partition, list[Batch]]]


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition that Java's ``BuiltInPartitioner`` chooses for a key."""
    hashed: int = murmur2(key)
    return (hashed & 0x7FFFFFFF) % partitions


class TransactionalWriter:
    """Writes under one transactional id, which it claims at its first write; this fences earlier writers. Uses the
    cluster's connections and leaves them open. ``transaction_timeout_ms``: when the cluster aborts the open transaction
    of a dead writer, which blocks readers until then; None means the default of a claim. ``batch_bytes``: limit of a
    batch before compression with ``codec`` (Kafka's number); one record may be larger."""

    def __init__(
        self,
        cluster: Cluster,
        transactional_id: str,
        *,
        timeout_s: float = 30.0,
        transaction_timeout_ms: int | None = None,
        batch_bytes: int = _BATCH_BYTES,
        codec: int = 0,
    ) -> None:
        self._cluster = cluster
        self._transactional_id = transactional_id
        self._batch_bytes = batch_bytes
        self._codec = codec
        self._timeout_s = timeout_s
        self._transaction_timeout_ms = transaction_timeout_ms
        self._identity: ProducerIdentity | None = None
        self._sequences: dict[Partition, int] = {}
        self._in_doubt = True
        self._lock = asyncio.Lock()

    async def open(self) -> None:
        """Claim the transactional id and abort what its last writer left open. Raises Superseded if this writer had
        claimed it before and another one has taken it over, SecurityError if an ACL is missing, which the message
        names, and RetriableError if the cluster did not answer in time."""
        async with self._lock:
            await self._claim()

    async def end_left_open(self, partitions: Collection[Partition]) -> frozenset[Partition]:
        """Abort hanging transactions of this id in ``partitions``, after :meth:`open`; return the partitions that had
        some. Raises the errors of ``open``."""
        async with self._lock:
            assert self._identity is not None, "it was opened"
            self._identity, left = await active_producers.end_left_open(
                self._cluster,
                self._transactional_id,
                self._identity,
                partitions,
                transaction_timeout_ms=self._transaction_timeout_ms,
            )
            self._sequences.clear()
            return left

    async def write(
        self, records: Iterable[OutRecord], may_commit: MayCommit | None = None, offsets: GroupOffsets | None = None
    ) -> bool:
        """Write all of ``records`` and commit ``offsets`` of groups with them; after an error, perhaps none. Return
        False if ``may_commit`` forbids it. ``may_commit`` is called when records and offsets are written but not
        committed, with the offset of the first record in each partition. If it raises an error, the transaction is
        aborted. After a RetriableError the outcome is unknown, so the same may be written again; it cannot overtake a
        later write. Raises the errors of ``open``."""
        wanted = list(records)
        if not wanted:
            return True
        async with self._lock:
            return await waiting_out(partial(self._write, wanted, may_commit, offsets or {}))

    async def _write(self, records: Sequence[OutRecord], may_commit: MayCommit | None, offsets: GroupOffsets) -> bool:
        """Try one transaction. If it ends early, its outcome is unknown until the next claim."""
        what = f"cluster {self._cluster.name}: a transaction of {self._transactional_id}"
        async with within(self._timeout_s, f"{what} did not finish"):
            if self._in_doubt:
                await self._claim()
            self._in_doubt = True
            is_committed = await self._transaction(records, may_commit, offsets)
            self._in_doubt = False
            return is_committed

    async def _claim(self) -> None:
        what = f"claiming {self._transactional_id} on cluster {self._cluster.name}"
        # With the current identity, the claim succeeds only if no other writer has claimed the id since.
        claim = partial(
            transactions.claim,
            self._cluster,
            self._transactional_id,
            self._identity,
            timeout_ms=self._transaction_timeout_ms,
        )
        self._identity = await until(self._timeout_s, what, claim)
        self._sequences.clear()
        self._in_doubt = False

    async def _transaction(
        self, records: Sequence[OutRecord], may_commit: MayCommit | None, offsets: GroupOffsets
    ) -> bool:
        identity = self._identity
        assert identity is not None
        by_leader = await place(
            self._cluster, records, identity, self._sequences, batch_bytes=self._batch_bytes, codec=self._codec
        )
        partitions = [partition for placed in by_leader.values() for partition in placed]
        await transactions.add_after_markers(self._cluster, self._transactional_id, identity, partitions)
        for group, of_group in offsets.items():
            await transactions.add_offsets(self._cluster, self._transactional_id, identity, group)
            await commit_in_transaction(self._cluster, self._transactional_id, identity, group, of_group)
        check = partial(transactions.check, self._cluster, self._transactional_id, "Produce")
        first = await produce_all(self._cluster, by_leader, self._transactional_id, self._timeout_s, check)
        try:
            is_allowed = may_commit is None or await may_commit(first)
        except HeliographError:
            # Because an open transaction blocks readers, including this worker's.
            await transactions.end_transaction(self._cluster, self._transactional_id, identity, commit=False)
            raise
        await transactions.end_transaction(self._cluster, self._transactional_id, identity, commit=is_allowed)
        for placed in by_leader.values():
            for partition, batches in placed.items():
                written = sum(batch.records for batch in batches)
                self._sequences[partition] = (self._sequences.get(partition, 0) + written) % SEQUENCES
        return is_allowed


class PlainWriter:
    """Writes without transactions, if none is wanted or ACLs are missing: fences no writers, and a failed write may be
    partial. Uses the cluster's connections and leaves them open. ``timeout_s``: how long a leader may take."""

    def __init__(self, cluster: Cluster, *, timeout_s: float = 30.0) -> None:
        self._cluster = cluster
        self._timeout_s = timeout_s
        self._lock = asyncio.Lock()
        #: Metadata of these topics, and when it was asked for.
        self._known: dict[frozenset[str], tuple[ClusterMetadata, float]] = {}

    async def write(self, records: Iterable[OutRecord]) -> None:
        """Write ``records``, those of a partition in order. Raises SecurityError if an ACL is missing, which the
        message names. After a RetriableError some records may be written; write the same records again."""
        wanted = list(records)
        if wanted:
            async with self._lock:
                await waiting_out(partial(self._write, wanted))

    async def _write(self, records: Sequence[OutRecord]) -> None:
        topics, now_s = frozenset(record.topic for record in records), asyncio.get_running_loop().time()
        metadata, asked_s = self._known.pop(topics, (None, 0.0))
        if metadata is not None and now_s - asked_s <= _LEADERS_S:
            with suppress(RetriableError):  # because there may be other leaders by now
                await self._send(records, metadata)
                self._known[topics] = metadata, asked_s
                return
        metadata = await self._cluster.topics(topics)
        await self._send(records, metadata)
        self._known = {topics: (metadata, now_s)}

    async def _send(self, records: Sequence[OutRecord], metadata: ClusterMetadata) -> None:
        by_leader = await place(self._cluster, records, _NO_PRODUCER, {}, metadata)
        await produce_all(self._cluster, by_leader, None, self._timeout_s, self._check)

    def _check(self, code: int, partition: str) -> None:
        if not code:
            return
        what = f"cluster {self._cluster.name}: {partition} cannot be written: {error_name(code)}"
        if code in _NOT_ALLOWED:
            raise NotAuthorized(f"{what}; grant WRITE on topic {partition.rsplit('-', 1)[0]}")
        if code == _INVALID_RECORD:
            raise PermanentError(f"{what}; if the topic is compacted, set its cleanup.policy to delete")
        raise (RetriableError if for_code(code).retriable else PermanentError)(what)


async def waiting_out(write: Callable[[], Awaitable[T]]) -> T:
    """Retry for a few seconds, but not if no broker answers, which is left to the caller."""
    clock = asyncio.get_running_loop().time
    give_up_s = clock() + _RETRY_FOR_S

    async def wait(error: RetriableError) -> None:
        if isinstance(error, ClusterUnreachable) or clock() > give_up_s:
            raise error
        log.debug("%s; retrying", error)
        await asyncio.sleep(_RETRY_PAUSE_S)

    return await retried(write, wait)


async def place(
    cluster: Cluster,
    records: Sequence[OutRecord],
    identity: ProducerIdentity,
    sequences: Mapping[Partition, int],
    metadata: ClusterMetadata | None = None,
    *,
    batch_bytes: int = _BATCH_BYTES,
    codec: int = 0,
) -> Placed:
    """Return ``records`` as batches of ``identity`` by leader; other tasks on the loop run in between. Asks for the
    ``metadata`` of their topics if it is None."""
    if metadata is None:
        metadata = await cluster.topics({record.topic for record in records})
    by_partition: dict[Partition, list[OutRecord]] = {}
    async for record in in_turns(records):
        partition = record.partition
        if partition is None:
            by = record.key if record.partition_key is None else record.partition_key
            partition = partition_of(by, len(metadata.topics[record.topic].partitions))
        by_partition.setdefault((record.topic, partition), []).append(record)
    by_leader: Placed = {}
    for (topic, partition), placed in by_partition.items():
        leader = metadata.leader(topic, partition)
        if leader is None:
            raise RetriableError(f"cluster {cluster.name}: {topic}-{partition} has no leader")
        sequence = sequences.get((topic, partition), 0)
        batches = await _batches(placed, partial(_builder, identity, batch_bytes, codec), sequence)
        by_leader.setdefault(leader, {})[topic, partition] = batches
        await asyncio.sleep(0)
    return by_leader


async def produce_all(
    cluster: Cluster,
    by_leader: Placed,
    transactional_id: str | None,
    timeout_s: float,
    check: Check,
    *,
    produce_at_most: int = _PRODUCE_AT_MOST,
) -> dict[Partition, int]:
    """Send placed batches and wait for all responses; ``check`` raises their errors. Return the offset of the first
    record in each partition."""
    sending = [
        _produce(cluster, leader, placed, transactional_id, timeout_s, check, produce_at_most)
        for leader, placed in by_leader.items()
    ]
    first: dict[Partition, int] = {}
    for of_leader in await together(f"records of {cluster.settings.client_id}", sending):
        first |= of_leader
    return first


async def _produce(
    cluster: Cluster,
    leader: int,
    placed: Mapping[Partition, Sequence[Batch]],
    transactional_id: str | None,
    timeout_s: float,
    check: Check,
    at_most: int,
) -> dict[Partition, int]:
    first: dict[Partition, int] = {}
    connection = await cluster.connection(leader, "positions")
    # A broker accepts only one batch per partition and request.
    for round_ in zip_longest(*([(partition, batch) for batch in batches] for partition, batches in placed.items())):
        topics: dict[str, ProduceRequest.TopicProduceData] = {}
        for (topic, partition), batch in filter(None, round_):
            entry = topics.setdefault(topic, ProduceRequest.TopicProduceData(name=topic, partition_data=[]))
            entry.partition_data.append(
                ProduceRequest.TopicProduceData.PartitionProduceData(index=partition, records=batch.data)
            )
        request = ProduceRequest(
            transactional_id=transactional_id,
            acks=_ACKS_ALL,
            timeout_ms=int(timeout_s * 1000),
            topic_data=list(topics.values()),
        )
        timeout_ms = min(connection.request_timeout_ms, request.timeout_ms + _LAPSE_MS)
        answer = await connection.call(request, at_most=at_most, timeout_ms=timeout_ms)
        for topic_row in answer.responses:
            for row in topic_row.partition_responses:
                check(row.error_code, f"{topic_row.name}-{row.index}")
                first.setdefault((topic_row.name, row.index), row.base_offset)
    return first


async def _batches(
    records: Sequence[OutRecord], begin: Callable[[int], DefaultRecordBatchBuilder], sequence: int
) -> list[Batch]:
    """Return batches of ``records`` in order, each as large as the builder from ``begin`` (given a sequence) allows."""
    now_ms = wall_ms()
    batches: list[Batch] = []
    builder, count = None, 0
    async for record in in_turns(records):
        headers = list(record.headers)
        at_ms = now_ms if record.timestamp_ms is None else record.timestamp_ms
        key = record.key or (None if record.partition is not None else b"")
        if builder is None or builder.append(count, at_ms, key, record.value, headers) is None:
            if builder is not None:
                batches.append(Batch(bytes(builder.build()), count))
                sequence = (sequence + count) % SEQUENCES
            builder, count = begin(sequence), 0
            builder.append(0, at_ms, key, record.value, headers)
        count += 1
    if builder is not None:
        batches.append(Batch(bytes(builder.build()), count))
    return batches


def _builder(identity: ProducerIdentity, batch_bytes: int, codec: int, sequence: int) -> DefaultRecordBatchBuilder:
    if identity == _NO_PRODUCER:
        return DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, batch_bytes)
    return DefaultRecordBatchBuilder(2, codec, 1, identity.producer_id, identity.epoch, sequence, batch_bytes)
