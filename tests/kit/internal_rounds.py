"""Write the same internal records round after round, with the timestamps that they would have, as fast as possible."""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping, Sequence
from typing import Final

import crc32c
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from kafka.protocol.producer.produce import ProduceRequest

from connect.kafka.cluster import Cluster
from connect.kafka.log.producer import OutRecord

_CRC_AT: Final = 17
_TIMES: Final = struct.Struct(">qq")  # base and max timestamp, at byte 27 of a batch
_TIMES_AT: Final = 27
#: Records by topic and partition.
Moment = Mapping[tuple[str, int], Sequence[OutRecord]]
_Batches = Mapping[tuple[str, int], bytearray]


async def write_rounds(cluster: Cluster, moments: Sequence[Moment], rounds: int, round_ms: int) -> int:
    """Write ``moments``, one request each, ``rounds`` times, the last round as of now; return how many records."""
    batches = [{place: _batch(records) for place, records in moment.items()} for moment in moments]
    (node,) = (await cluster.metadata(())).brokers
    connection = await cluster.connection(node, "rounds")
    first_ms = int(time.time() * 1000) - rounds * round_ms
    step_ms = round_ms // len(moments)
    for number in range(rounds):
        for index, moment in enumerate(batches):
            await connection.call(_request(moment, first_ms + number * round_ms + (index + 1) * step_ms), at_most=11)
    return rounds * sum(len(records) for moment in moments for records in moment.values())


def _batch(records: Sequence[OutRecord]) -> bytearray:
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 900_000)
    for count, record in enumerate(records):
        builder.append(count, 0, record.key, record.value, [])
    return bytearray(builder.build())


def _request(batches: _Batches, now_ms: int) -> ProduceRequest:
    topics: dict[str, ProduceRequest.TopicProduceData] = {}
    for (topic, partition), batch in batches.items():
        _TIMES.pack_into(batch, _TIMES_AT, now_ms, now_ms)
        struct.pack_into(">I", batch, _CRC_AT, crc32c.crc32c(bytes(batch[_CRC_AT + 4 :])))
        entry = topics.setdefault(topic, ProduceRequest.TopicProduceData(name=topic, partition_data=[]))
        row = ProduceRequest.TopicProduceData.PartitionProduceData(index=partition, records=bytes(batch))
        entry.partition_data.append(row)
    return ProduceRequest(transactional_id=None, acks=-1, timeout_ms=30_000, topic_data=list(topics.values()))
