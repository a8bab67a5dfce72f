"""Topics of a single-node cluster as the bench needs them: made, deleted, watched and read batch by batch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, NamedTuple, Self

from kafka.protocol.admin.topics import CreateTopicsRequest, DeleteTopicsRequest
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest
from kafka.protocol.metadata import MetadataRequest

from connect.kafka.connection import Connection
from connect.kafka.settings import ConnectionSettings
from connect.wire.batch import BatchHeader, extents, read_header
from connect.wire.hot import decode_fetch

_NONE: Final = 0
_UNKNOWN_TOPIC: Final = 3
_TOPIC_EXISTS: Final = 36
_FETCH_VERSION: Final = 12  # the last that names topics by name
_LATEST: Final = -1
_PARTITION_BYTES: Final = 4 << 20
_REQUEST_TIMEOUT_MS: Final = 30_000


class BenchError(Exception):
    """A run that cannot be counted, with the reason in one line."""


class Batch(NamedTuple):
    partition: int
    header: BatchHeader
    #: Writable, the reader's to keep and change.
    data: memoryview


@dataclass(frozen=True, slots=True)
class Contents:
    """What a topic holds. ``bytes`` is the size of the batches as stored, headers included."""

    records: int
    bytes: int
    batches: int
    end_offsets: Mapping[int, int]

    @property
    def batch_bytes(self) -> float:
        return self.bytes / self.batches if self.batches else 0.0


class Topics:
    """One connection to the only node of a cluster."""

    def __init__(self, connection: Connection, bootstrap: str) -> None:
        self._connection = connection
        self._bootstrap = bootstrap

    @classmethod
    async def open(cls, bootstrap: str, client_id: str = "bench") -> Topics:
        host, port = bootstrap.rsplit(":", 1)
        settings = ConnectionSettings(bootstrap=((host, int(port)),), client_id=client_id)
        return cls(await Connection.open(settings, host, int(port)), bootstrap)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._connection.close()

    async def names(self) -> set[str]:
        answer = await self._connection.call(MetadataRequest(topics=None, allow_auto_topic_creation=False))
        return {topic.name for topic in answer.topics}

    async def create(self, topic: str, partitions: int) -> None:
        wanted = CreateTopicsRequest.CreatableTopic(
            name=topic,
            num_partitions=partitions,
            replication_factor=1,
            assignments=[],
            configs=[],
        )
        answer = await self._connection.call(CreateTopicsRequest(topics=[wanted], timeout_ms=_REQUEST_TIMEOUT_MS))
        self._check(answer.topics[0].error_code, f"make topic {topic}", allowed=(_TOPIC_EXISTS,))

    async def delete(self, topics: Collection[str], deadline_s: float = 60) -> None:
        """Deletes and waits until the broker no longer names them."""
        if not topics:
            return
        states = [DeleteTopicsRequest.DeleteTopicState(name=name) for name in topics]
        request = DeleteTopicsRequest(topics=states, topic_names=list(topics), timeout_ms=_REQUEST_TIMEOUT_MS)
        for result in (await self._connection.call(request)).responses:
            self._check(
                result.error_code,
                f"delete topic {result.name}",
                allowed=(_UNKNOWN_TOPIC,),
            )
        end_s = time.monotonic() + deadline_s
        while left := (await self.names()).intersection(topics):
            if time.monotonic() > end_s:
                raise BenchError(
                    f"{self._bootstrap}: topics {sorted(left)} still there {deadline_s:.0f} s after deletion"
                )
            await asyncio.sleep(0.1)

    async def end_offsets(self, topic: str, partitions: int) -> dict[int, int]:
        """End offset by partition; empty while the topic does not exist."""
        ask = ListOffsetsRequest.ListOffsetsTopic
        one = ask.ListOffsetsPartition
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=0,
            topics=[
                ask(
                    name=topic,
                    partitions=[one(partition_index=p, timestamp=_LATEST) for p in range(partitions)],
                )
            ],
        )
        answer = await self._connection.call(request)
        return {
            partition.partition_index: partition.offset
            for each in answer.topics
            for partition in each.partitions
            if partition.error_code == _NONE
        }

    async def batches(self, topic: str, partitions: Sequence[int]) -> AsyncIterator[Batch]:
        """Every batch from offset 0 to the end as it is now."""
        ends = await self.end_offsets(topic, max(partitions) + 1)
        positions = dict.fromkeys(partitions, 0)
        while left := {p: at for p, at in positions.items() if at < ends.get(p, 0)}:
            for partition, records in await self._fetch(topic, left):
                for start, size, _ in extents(records):
                    data = records[start : start + size]
                    header = read_header(data)
                    positions[partition] = header.last_offset + 1
                    yield Batch(partition, header, data)

    async def contents(self, topic: str, partitions: int) -> Contents:
        """Counts data records by reading every batch header; control batches are left out."""
        records = size_bytes = batches = 0
        async for batch in self.batches(topic, range(partitions)):
            if not batch.header.is_control:
                records += batch.header.record_count
                size_bytes += batch.header.size_bytes
                batches += 1
        return Contents(records, size_bytes, batches, await self.end_offsets(topic, partitions))

    async def _fetch(self, topic: str, positions: Mapping[int, int]) -> list[tuple[int, memoryview]]:
        wanted = FetchRequest.FetchTopic
        request = FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=64 << 20,
            session_epoch=-1,
            topics=[
                wanted(
                    topic=topic,
                    partitions=[
                        wanted.FetchPartition(
                            partition=p,
                            fetch_offset=at,
                            partition_max_bytes=_PARTITION_BYTES,
                        )
                        for p, at in positions.items()
                    ],
                )
            ],
            forgotten_topics_data=[],
        )
        body = request.encode(version=_FETCH_VERSION)
        answer = decode_fetch(
            await self._connection.send(request.API_KEY, _FETCH_VERSION, [body]),
            _FETCH_VERSION,
        )
        self._check(answer.error_code, f"read {topic}")
        for partition in answer.partitions:
            self._check(partition.error_code, f"read {topic}-{partition.partition}")
        return [(partition.partition, partition.records) for partition in answer.partitions]

    def _check(self, error_code: int, what: str, allowed: Collection[int] = ()) -> None:
        if error_code != _NONE and error_code not in allowed:
            raise BenchError(f"{self._bootstrap}: cannot {what}: Kafka error {error_code}")
