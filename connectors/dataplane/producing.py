"""Produce requests and answers, whatever version a broker speaks, with record bytes uncopied where it is hot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from kafka.protocol.producer.produce import ProduceRequest, ProduceResponse

from connect.kafka.connection import Connection
from connect.wire import hot
from connectors.dataplane.plan import PartitionPlan, TransactionTerms

PRODUCE: Final = 0
_MAX_VERSION: Final = 13
#: From version 12 on a broker adds partitions to a transaction by itself (KIP-890).
_EXPLICIT_AT_MOST: Final = 11

#: One batch for a partition: (plan of the pair, its bytes).
Addressed = tuple[PartitionPlan, memoryview]


def produce_version(connection: Connection, transactions: TransactionTerms | None = None) -> int:
    """The highest version that the broker and we know, and that the transactions allow."""
    explicit = transactions is not None and not transactions.adds_implicitly
    return min(_EXPLICIT_AT_MOST if explicit else _MAX_VERSION, connection.versions[PRODUCE][1])


def topic_key(plan: PartitionPlan, version: int) -> bytes:
    """How requests and answers of ``version`` name the target topic of ``plan``: by id from Produce 13 on."""
    if version >= hot.PRODUCE_TOPIC_IDS_FROM and plan.target_topic_id is not None:
        return plan.target_topic_id.bytes
    return hot.topic_name_key(plan.target.topic)


def encode_produce(
    version: int,
    timeout_ms: int,
    topics: Mapping[bytes, Sequence[Addressed]],
    transactions: TransactionTerms | None = None,
) -> list[bytes | memoryview]:
    """Encode the body of an acks=all ProduceRequest as buffers; ``topics`` by :func:`topic_key`.

    No partition may appear twice: the broker would keep the last batch only and acknowledge both.
    """
    for batches in topics.values():
        if len({plan.target.partition for plan, _ in batches}) != len(batches):
            raise AssertionError("a partition has two batches in one Produce request")
    if version >= hot.PRODUCE_FLEXIBLE_FROM:
        return hot.encode_produce(
            timeout_ms,
            [(key, [(plan.target.partition, batch) for plan, batch in batches]) for key, batches in topics.items()],
            hot.compact_string(transactions.transactional_id) if transactions else hot.NO_TRANSACTIONAL_ID,
        )
    request = ProduceRequest(
        transactional_id=transactions.transactional_id if transactions else None,
        acks=-1,
        timeout_ms=timeout_ms,
        topic_data=[_topic_of_old(batches) for batches in topics.values()],
    )
    return [bytes(request.encode(version=version))]


def decode_produce(body: memoryview, version: int) -> hot.ProduceAnswer:
    """A ProduceResponse of any version."""
    if version >= hot.PRODUCE_FLEXIBLE_FROM:
        return hot.decode_produce(body, version)
    answer = ProduceResponse.decode(bytes(body), version=version)
    rows = [
        hot.ProducedPartition(
            hot.topic_name_key(topic.name),
            row.index,
            row.error_code,
            row.base_offset,
            row.log_append_time_ms,
            row.log_start_offset,
            getattr(row, "error_message", None),
            tuple(
                (one.batch_index, one.batch_index_error_message) for one in getattr(row, "record_errors", None) or ()
            ),
            None,
        )
        for topic in answer.responses
        for row in topic.partition_responses
    ]
    return hot.ProduceAnswer(answer.throttle_time_ms, rows)


def _topic_of_old(batches: Sequence[Addressed]) -> Any:
    data = ProduceRequest.TopicProduceData
    return data(
        name=batches[0][0].target.topic,
        partition_data=[
            data.PartitionProduceData(index=plan.target.partition, records=bytes(batch)) for plan, batch in batches
        ],
    )
