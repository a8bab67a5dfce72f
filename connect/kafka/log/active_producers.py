"""Finds the active producers of partitions, as their leaders know them, and aborts hanging transactions."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import NamedTuple

from kafka.protocol.admin.transactions import DescribeProducersRequest, ListTransactionsRequest

from connect.kafka.cluster import Cluster, NotAuthorized, error_name, refusal_of
from connect.kafka.concurrency import until
from connect.kafka.connection import UnsupportedVersion
from connect.kafka.log.offsets import by_leader, by_topic, confirm_leader
from connect.kafka.log.transactions import REFUSED_CODES, Partition, ProducerIdentity, fence

log = logging.getLogger(__name__)


class ProducersRefused(NotAuthorized):
    """READ is missing to describe the producers of ``partitions``; other partitions may still be asked for."""

    def __init__(self, message: str, partitions: frozenset[Partition]) -> None:
        super().__init__(message)
        self.partitions = partitions


class ActiveProducer(NamedTuple):
    """A producer as the leader knows it. ``last_sequence`` is -1 if it wrote only markers; ``open_since`` is the first
    offset of its open transaction, -1 without one."""

    epoch: int
    last_sequence: int
    open_since: int


async def list_transactions(cluster: Cluster) -> dict[str, str]:
    """Return the transactional ids that were used recently, each with its state in Kafka's words. Raises the cluster's
    refusal, or UnsupportedVersion for brokers before 3.0."""
    found: dict[str, str] = {}
    for node in (await cluster.metadata(frozenset())).brokers:
        request = ListTransactionsRequest(state_filters=[], producer_id_filters=[])
        answer = await (await cluster.connection(node)).call(request)
        if answer.error_code:
            line = f"cluster {cluster.name} does not list its transactions: {error_name(answer.error_code)}"
            raise refusal_of(answer.error_code, line, changes=False)
        found |= {one.transactional_id: one.transaction_state for one in answer.transaction_states}
    return found


async def end_left_open(
    cluster: Cluster,
    transactional_id: str,
    identity: ProducerIdentity,
    partitions: Collection[Partition],
    *,
    transaction_timeout_ms: int | None = None,
) -> tuple[ProducerIdentity, frozenset[Partition]]:
    """Abort hanging transactions of ``identity`` in ``partitions``: open there, unknown to the coordinator. Until then,
    read_committed consumers stay before them. Call it after a claim and before writing. Returns the identity to write
    under and the partitions with an aborted transaction.

    A late request can leave a hanging transaction on brokers that do not ask the coordinator (KIP-890). And when a
    coordinator ends a transaction before it knows a partition's leader, it leaves the partition out; that transaction
    may have been committed in others. Does nothing if this client may not describe producers.

    ``transaction_timeout_ms`` and errors are those of ``fence``.
    """
    try:
        seen = await active_producers(cluster, partitions)
    except (UnsupportedVersion, ProducersRefused) as error:
        log.debug("hanging transactions of %s cannot be found: %s", transactional_id, error)
        return identity, frozenset()
    left = [
        partition
        for partition, producers in seen.items()
        if (ours := producers.get(identity.producer_id)) is not None and ours.open_since >= 0
    ]
    if not left:
        return identity, frozenset()
    named = ", ".join(f"{topic}-{index}" for topic, index in sorted(left))
    log.warning(
        "cluster %s: aborting a transaction of %s that was left open in %s, unknown to its coordinator",
        cluster.name,
        transactional_id,
        named,
    )
    fenced = await fence(cluster, transactional_id, left, transaction_timeout_ms=transaction_timeout_ms)
    return fenced, frozenset(left)


async def describe_producers(
    cluster: Cluster, partitions: Collection[Partition], *, timeout_s: float = 30.0
) -> dict[Partition, dict[int, tuple[int, int]]]:
    """Return by partition the (epoch, last sequence) of each producer id. Raises the errors of
    :func:`active_producers`."""
    found = await active_producers(cluster, partitions, timeout_s=timeout_s)
    return {
        partition: {producer_id: (one.epoch, one.last_sequence) for producer_id, one in producers.items()}
        for partition, producers in found.items()
    }


async def active_producers(
    cluster: Cluster, partitions: Collection[Partition], *, timeout_s: float = 30.0
) -> dict[Partition, dict[int, ActiveProducer]]:
    """Return the active producers by partition and producer id. Includes records that are appended but not yet
    replicated. DescribeProducers carries no leader epoch and any replica answers it, so a response counts only if its
    broker confirms afterwards that it leads in the newest known epoch. Raises ProducersRefused if READ on some topics
    is missing, UnsupportedVersion if brokers are older than 2.8, and RetriableError if a partition had no leader that
    answered within ``timeout_s``."""
    found: dict[Partition, dict[int, ActiveProducer]] = {}

    async def attempt() -> None:
        missing = [partition for partition in partitions if partition not in found]
        metadata = await cluster.topics({topic for topic, _ in missing})
        for leader, led in by_leader(cluster, missing, metadata).items():
            described = await _describe(cluster, leader, led)
            await confirm_leader(cluster, leader, led, metadata)
            found.update(described)

    await until(timeout_s, f"asking cluster {cluster.name} for its producers", attempt)
    return found


async def _describe(
    cluster: Cluster, leader: int, led: Collection[Partition]
) -> dict[Partition, dict[int, ActiveProducer]]:
    found: dict[Partition, dict[int, ActiveProducer]] = {}
    row_of = DescribeProducersRequest.TopicRequest
    topics = [row_of(name=topic, partition_indexes=indexes) for topic, indexes in by_topic(led).items()]
    answer = await (await cluster.connection(leader)).call(DescribeProducersRequest(topics=topics))
    failed: tuple[Partition, int] | None = None
    refused: dict[Partition, int] = {}
    for result in answer.topics:
        for row in result.partitions:
            one = result.name, row.partition_index
            if row.error_code in REFUSED_CODES:
                refused[one] = row.error_code
            elif row.error_code:
                failed = one, row.error_code
            else:
                found[one] = {
                    state.producer_id: ActiveProducer(
                        state.producer_epoch, state.last_sequence, state.current_txn_start_offset
                    )
                    for state in row.active_producers
                }
    if refused:
        topics_refused = sorted({topic for topic, _ in refused})
        raise ProducersRefused(
            f"cluster {cluster.name} refuses to describe the producers of {', '.join(topics_refused)}: "
            f"{error_name(next(iter(refused.values())))}; "
            + ", ".join(f"grant READ on topic {name}" for name in topics_refused),
            frozenset(refused),
        )
    if failed:
        (topic, number), code = failed
        line = f"broker {leader} cannot describe the producers of {topic}-{number}: {error_name(code)}"
        raise refusal_of(code, line, changes=False)
    return found
