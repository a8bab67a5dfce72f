"""Messages of the formats before batches (magic 0 and 1), written with the requests of their time."""

from __future__ import annotations

import struct
from typing import Any, Final

from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from kafka.protocol.producer.produce import ProduceRequest

from tests.kit.clients import cluster_at

#: What a topic of an old broker needs as ``message.format.version`` to keep them as they come, by magic.
FORMATS: Final = {0: "0.9.0", 1: "0.10.0"}
#: Codecs by their number in a message's attributes; lz4 is framed wrongly in magic 0.
_CODECS: Final = {0: (0, 1, 2), 1: (0, 1, 2, 3)}
_PRODUCE_VERSION: Final = {0: 1, 1: 2}
_SIZE_BYTES: Final = 1 << 20
_VERSION_AND_ACKS: Final = struct.Struct(">hi")


async def write_old(bootstrap: str, topic: str, magic: int, sets: int, records: int) -> int:
    """Message sets of every codec in turn, each of ``records``, to partition 0; how many records that makes."""
    async with cluster_at(bootstrap) as cluster:
        leader = (await cluster.topics({topic})).leader(topic, 0)
        assert leader is not None, f"{topic}-0 has no leader"
        connection = await cluster.connection(leader)
        for number in range(sets):
            codecs = _CODECS[magic]
            built = _set(magic, codecs[number % len(codecs)], number * records, records)
            await _produce(connection, topic, magic, built)
        return sets * records


def _set(magic: int, codec: int, first: int, count: int) -> bytes:
    builder = LegacyRecordBatchBuilder(magic, codec, _SIZE_BYTES)
    for offset, number in enumerate(range(first, first + count)):
        key = None if number % 5 == 0 else b"key %d" % (number % 7)
        value = None if number % 11 == 0 else b"value %d of magic %d" % (number, magic)
        builder.append(offset, 1_600_000_000_000 + number, key, value)
    return bytes(builder.build())


async def _produce(connection: Any, topic: str, magic: int, records: bytes) -> None:
    data = ProduceRequest.TopicProduceData
    request = ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=30_000,
        topic_data=[data(name=topic, partition_data=[data.PartitionProduceData(index=0, records=records)])],
    )
    answer = await connection.call(request, _PRODUCE_VERSION[magic])
    codes = [row.error_code for one in answer.responses for row in one.partition_responses]
    assert codes == [0], f"{topic}: the broker refuses messages of magic {magic}: {codes}"
