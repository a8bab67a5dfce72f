"""Records written to compacted topics: all at once or not at all by one writer at a time, or plainly, in order.

A transaction of its own making rather than aiokafka's: a writer whose connection broke must be able to come back only
if nobody has taken its transactional id over meanwhile (KIP-360), and aiokafka's InitProducerId cannot ask for that.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import Final, NamedTuple, TypeVar

from aiokafka.partitioner import murmur2
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from kafka.errors import for_code
from kafka.protocol.producer.produce import ProduceRequest

from connect.core.errors import ClusterUnreachable, HeliographError, PermanentError, RetriableError
from connect.kafka.cluster import Cluster, NotAuthorized, error_name
from connect.kafka.concurrency import in_turns, together
from connect.kafka.log import active_producers, transactions
from connect.kafka.log.committed_offsets import Committed, commit_in_transaction
from connect.kafka.log.transactions import MarkersPending, Partition, ProducerIdentity

log = logging.getLogger(__name__)

#: Below every default of ``max.message.bytes``.
_BATCH_BYTES: Final = 900_000
#: So many records are placed before others of the loop have their turn; each takes some 10 us.
_AT_ONCE: Final = 1000
#: From version 12 on Produce adds partitions to a transaction by itself (KIP-890), which needs another EndTxn.
_PRODUCE_AT_MOST: Final = 11
_ACKS_ALL: Final = -1
#: What an answer may take beyond the time that its leader waits for the other replicas.
_LAPSE_MS: Final = 2_000
#: Of a producer in a partition: after the last comes 0.
SEQUENCES: Final = 2**31
_MARKERS_WAIT_S: Final = 0.005
#: What passes in moments is waited out: a leader that moved, a topic that its broker has not heard of yet.
_RETRY_FOR_S: Final = 5.0
_RETRY_PAUSE_S: Final = 0.05
_NOT_ALLOWED: Final = frozenset({29, 31})  # topic, cluster: authorisation failed
_NOBODY: Final = ProducerIdentity(-1, -1)

#: What an error code of a partition (its name) means; raises it.
Check = Callable[[int, str], None]
#: Offsets to commit, by group.
GroupOffsets = Mapping[str, Mapping[Partition, Committed]]
#: Whether a transaction may be committed, whose first records have these offsets.
MayCommit = Callable[[Mapping[Partition, int]], Awaitable[bool]]
T = TypeVar("T")
Header = tuple[str, bytes]


class OutRecord(NamedTuple):
    """A record to write; ``value`` None is a tombstone.

    Its partition follows from its key as with Java's producer, or from ``partition_key`` where records of several keys
    must keep their order, unless ``partition`` says it, and then it may have no key.
    ``timestamp_ms`` None is now.
    """

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
    """Where Java's ``BuiltInPartitioner`` puts a record with this key."""
    hashed: int = murmur2(key)
    return (hashed & 0x7FFFFFFF) % partitions


class TransactionalWriter:
    """Writes under one transactional id, which it takes over with its first write: earlier writers are shut out.

    Uses the cluster's connections and leaves them open. ``transaction_timeout_ms``: after so long the cluster aborts
    what a writer that has died left open, and until then nobody reads past it; None: as long as a claim says.
    ``batch_bytes``: of a batch before ``codec``, in Kafka's numbers, compresses it; one record may be larger.
    """

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
        """Take the transactional id over and wind up what its last writer left open.

        Raises:
            Superseded: it was ours, and another one has taken it over.
            SecurityError: rights are missing; names them.
            RetriableError: the cluster did not answer in time.
        """
        async with self._lock:
            await self._claim()

    async def end_left_open(self, partitions: Collection[Partition]) -> frozenset[Partition]:
        """After :meth:`open`: abort what is open of this id in ``partitions`` all the same; in which there was some.
        Raises as ``open``."""
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
        """Write all of ``records`` and commit ``offsets`` of groups with them or, when this raises, perhaps none.
        Return False if ``may_commit`` forbids it.

        ``may_commit`` is asked once the logs have records and offsets, and before they count: it gets the offset of the
        first record in each partition. What it raises ends the transaction without a trace.

        After a RetriableError it is not known which, so the same may be written again; no later write can be overtaken
        by it. Raises as ``open``.
        """
        wanted = list(records)
        if not wanted:
            return True
        async with self._lock:
            return await waiting_out(partial(self._write, wanted, may_commit, offsets or {}))

    async def _write(self, records: Sequence[OutRecord], may_commit: MayCommit | None, offsets: GroupOffsets) -> bool:
        """One attempt at a transaction; whatever ends it early leaves us in doubt, which a new claim ends."""
        try:
            async with asyncio.timeout(self._timeout_s):
                if self._in_doubt:
                    await self._claim()
                self._in_doubt = True
                is_committed = await self._transaction(records, may_commit, offsets)
                self._in_doubt = False
                return is_committed
        except TimeoutError as error:
            raise RetriableError(
                f"cluster {self._cluster.name}: a transaction of {self._transactional_id} was not done within "
                f"{self._timeout_s:g} s"
            ) from error

    async def _claim(self) -> None:
        what = f"claiming {self._transactional_id} on cluster {self._cluster.name}"
        self._identity = await transactions.until(self._timeout_s, what, self._ask_identity)
        self._sequences.clear()
        self._in_doubt = False

    async def _ask_identity(self) -> ProducerIdentity:
        # With the identity held before: only if nobody else has taken it over since.
        return await transactions.claim(
            self._cluster, self._transactional_id, self._identity, timeout_ms=self._transaction_timeout_ms
        )

    async def _transaction(
        self, records: Sequence[OutRecord], may_commit: MayCommit | None, offsets: GroupOffsets
    ) -> bool:
        identity = self._identity
        assert identity is not None
        by_leader = await place(
            self._cluster, records, identity, self._sequences, batch_bytes=self._batch_bytes, codec=self._codec
        )
        await self._add(identity, [partition for placed in by_leader.values() for partition in placed])
        for group, of_group in offsets.items():
            await transactions.add_offsets(self._cluster, self._transactional_id, identity, group)
            await commit_in_transaction(self._cluster, self._transactional_id, identity, group, of_group)
        check = partial(transactions.check, self._cluster, self._transactional_id, "Produce")
        first = await produce_all(self._cluster, by_leader, self._transactional_id, self._timeout_s, check)
        try:
            is_allowed = may_commit is None or await may_commit(first)
        except HeliographError:
            # Else readers wait for it, also our own.
            await transactions.end_transaction(self._cluster, self._transactional_id, identity, commit=False)
            raise
        await transactions.end_transaction(self._cluster, self._transactional_id, identity, commit=is_allowed)
        for placed in by_leader.values():
            for partition, batches in placed.items():
                written = sum(batch.records for batch in batches)
                self._sequences[partition] = (self._sequences.get(partition, 0) + written) % SEQUENCES
        return is_allowed

    async def _add(self, identity: ProducerIdentity, partitions: Sequence[Partition]) -> None:
        while True:
            try:
                return await transactions.add_partitions(self._cluster, self._transactional_id, identity, partitions)
            except MarkersPending:  # of our last transaction; bounded by the write's time-out
                await asyncio.sleep(_MARKERS_WAIT_S)


class PlainWriter:
    """Writes without a transaction, where none is wanted or its rights are missing: who else writes is not shut out,
    and a write that fails may have written a part. Uses the cluster's connections and leaves them open.

    ``timeout_s``: how long a leader may take.
    """

    def __init__(self, cluster: Cluster, *, timeout_s: float = 30.0) -> None:
        self._cluster = cluster
        self._timeout_s = timeout_s
        self._lock = asyncio.Lock()

    async def write(self, records: Iterable[OutRecord]) -> None:
        """Write ``records``, those of a partition in order.

        Raises:
            SecurityError: rights are missing; names them.
            RetriableError: perhaps only some are written; write the same again.
        """
        wanted = list(records)
        if wanted:
            async with self._lock:
                await waiting_out(partial(self._write, wanted))

    async def _write(self, records: Sequence[OutRecord]) -> None:
        by_leader = await place(self._cluster, records, _NOBODY, {})
        await produce_all(self._cluster, by_leader, None, self._timeout_s, self._check)

    def _check(self, code: int, partition: str) -> None:
        if not code:
            return
        what = f"cluster {self._cluster.name}: {partition} cannot be written: {error_name(code)}"
        if code in _NOT_ALLOWED:
            raise NotAuthorized(f"{what}; grant WRITE on topic {partition.rsplit('-', 1)[0]}")
        raise (RetriableError if for_code(code).retriable else PermanentError)(what)


async def waiting_out(write: Callable[[], Awaitable[T]]) -> T:
    """Try for a few seconds; a cluster that does not answer at all is the caller's to wait for."""
    clock = asyncio.get_running_loop().time
    give_up_s = clock() + _RETRY_FOR_S
    while True:
        try:
            return await write()
        except ClusterUnreachable:
            raise
        except RetriableError as error:
            if clock() > give_up_s:
                raise
            log.debug("%s; trying again", error)
        await asyncio.sleep(_RETRY_PAUSE_S)


async def place(
    cluster: Cluster,
    records: Sequence[OutRecord],
    identity: ProducerIdentity,
    sequences: Mapping[Partition, int],
    *,
    batch_bytes: int = _BATCH_BYTES,
    codec: int = 0,
) -> Placed:
    """``records`` as batches of ``identity``, at their leaders; others of the loop have their turn in between."""
    metadata = await cluster.topics({record.topic for record in records})
    by_partition: dict[Partition, list[OutRecord]] = {}
    async for record in in_turns(records, _AT_ONCE):
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
        batches = _batches(placed, partial(_builder, identity, batch_bytes, codec), sequence)
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
    """Send what was placed and wait for all answers, of which ``check`` raises what an error means. Return the offset
    of the first record in each partition."""
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
    # One batch per partition and request is all that a broker takes.
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


def _batches(
    records: Sequence[OutRecord], begin: Callable[[int], DefaultRecordBatchBuilder], sequence: int
) -> list[Batch]:
    """Batches of ``records`` in order, each as large as the builder that ``begin`` makes of its sequence takes."""
    now_ms = int(time.time() * 1000)
    batches: list[Batch] = []
    builder, count = None, 0
    for record in records:
        headers = list(record.headers)
        at_ms = now_ms if record.timestamp_ms is None else record.timestamp_ms
        if builder is None or builder.append(count, at_ms, record.key, record.value, headers) is None:
            if builder is not None:
                batches.append(Batch(bytes(builder.build()), count))
                sequence = (sequence + count) % SEQUENCES
            builder, count = begin(sequence), 0
            builder.append(0, at_ms, record.key, record.value, headers)
        count += 1
    if builder is not None:
        batches.append(Batch(bytes(builder.build()), count))
    return batches


def _builder(identity: ProducerIdentity, batch_bytes: int, codec: int, sequence: int) -> DefaultRecordBatchBuilder:
    if identity == _NOBODY:
        return DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, batch_bytes)
    return DefaultRecordBatchBuilder(2, codec, 1, identity.producer_id, identity.epoch, sequence, batch_bytes)
