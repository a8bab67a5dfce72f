"""One broker spoken to by itself: a client that looks for leaders would ask a frozen one too."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from kafka.protocol.admin.topics import (
    AlterPartitionReassignmentsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    ElectLeadersRequest,
)
from kafka.protocol.consumer.offsets import ListOffsetsRequest
from kafka.protocol.metadata import MetadataRequest

from connect.embedded.brokers import KafkaCluster
from connect.embedded.cluster_config import HOST
from connect.kafka.connection import Connection
from connect.kafka.log.compacted_topic import LogRecord, read_to_end
from connect.kafka.security.connection_settings import connection_settings
from connect.wire import records
from tests.kit.batches import produce_request
from tests.kit.clients import cluster_at
from tests.kit.processes import wait_until

_TIMEOUT_MS: Final = 20_000
_MADE_DEADLINE_S: Final = 240.0
#: Of what goes to the controller, which may be frozen: to be asked again.
_ELECTION_TIMEOUT_MS: Final = 3_000
_PRODUCE_VERSION: Final = 9  # by name
_ELECTION_NOT_NEEDED: Final = 84
_LATEST: Final = -1


class Replicas(NamedTuple):
    """``leader`` is -1 where there is none."""

    leader: int
    in_sync: tuple[int, ...]


async def value_numbers(bootstrap: str, topic: str) -> list[int]:
    """The numbers in the values of a topic's committed records, as ``Broker.produce`` writes them."""
    found: list[LogRecord] = []
    async with cluster_at(bootstrap) as cluster:
        await read_to_end(cluster, topic, found.append, read_committed=True)
    return [int((one.value or b"").split()[1]) for one in found]


class Broker:
    """Node ``index`` of a cluster, each method over a connection of its own; AssertionError where it refuses."""

    def __init__(self, cluster: KafkaCluster, index: int) -> None:
        self._host, self._port = HOST, cluster.ports[index].clients
        self._settings = connection_settings(
            {"bootstrap.servers": f"{self._host}:{self._port}", "request.timeout.ms": str(_TIMEOUT_MS)},
            client_id="direct",
            where=cluster.name,
        )

    def make_topic(self, topic: str, replicas: Sequence[Sequence[int]], **configs: str) -> None:
        """``replicas``: node ids of each partition, the preferred leader first; dots of ``configs`` are underscores."""
        new = CreateTopicsRequest.CreatableTopic
        request = CreateTopicsRequest(
            topics=[
                new(
                    name=topic,
                    num_partitions=-1,
                    replication_factor=-1,
                    assignments=[
                        new.CreatableReplicaAssignment(partition_index=index, broker_ids=list(nodes))
                        for index, nodes in enumerate(replicas)
                    ],
                    configs=[
                        new.CreatableTopicConfig(name=name.replace("_", "."), value=value)
                        for name, value in configs.items()
                    ],
                )
            ],
            timeout_ms=_TIMEOUT_MS,
            validate_only=False,
        )
        _check(f"make {topic}", [row.error_code for row in self._ask(request).topics])

    def make(self, topic: str, partitions: int = 1, **configs: str) -> None:
        """A topic of the first node alone, once it is there; one of the name may still be on its way out."""

        def is_made() -> bool:
            with suppress(AssertionError):
                self.make_topic(topic, [[1]] * partitions, **configs)
                return True
            return False

        wait_until(is_made, _MADE_DEADLINE_S, f"{topic} is made")
        wait_until(lambda: self.end(topic) == 0, _MADE_DEADLINE_S, f"{topic} is there")

    def delete_topic(self, topic: str) -> None:
        request = DeleteTopicsRequest(topic_names=[topic], timeout_ms=_TIMEOUT_MS)
        _check(f"delete {topic}", [row.error_code for row in self._ask(request, at_most=5).responses])

    def delete_records(self, topic: str, before_offset: int) -> None:
        row = DeleteRecordsRequest.DeleteRecordsTopic
        request = DeleteRecordsRequest(
            topics=[row(name=topic, partitions=[row.DeleteRecordsPartition(partition_index=0, offset=before_offset)])],
            timeout_ms=_TIMEOUT_MS,
        )
        codes = [part.error_code for one in self._ask(request).topics for part in one.partitions]
        _check(f"delete records of {topic}", codes)

    def replicas(self, topic: str, index: int = 0) -> Replicas | None:
        """As this broker knows them; None where it knows no such topic."""
        request = MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
        )
        for row in self._ask(request).topics[0].partitions:
            if row.partition_index == index:
                return Replicas(row.leader_id, tuple(sorted(row.isr_nodes)))
        return None

    def reassign(self, topic: str, index: int, nodes: Sequence[int]) -> None:
        row = AlterPartitionReassignmentsRequest.ReassignableTopic
        request = AlterPartitionReassignmentsRequest(
            topics=[
                row(name=topic, partitions=[row.ReassignablePartition(partition_index=index, replicas=list(nodes))])
            ],
            timeout_ms=_TIMEOUT_MS,
        )
        codes = [part.error_code for one in self._ask(request).responses for part in one.partitions]
        _check(f"reassign {topic}-{index}", codes)

    def elect(self, topic: str, index: int = 0, *, unclean: bool = False) -> None:
        """Let the preferred replica lead, or an ``unclean`` one; RetriableError if no controller answers."""
        row = ElectLeadersRequest.TopicPartitions
        request = ElectLeadersRequest(
            election_type=int(unclean),
            topic_partitions=[row(topic=topic, partitions=[index])],
            timeout_ms=_ELECTION_TIMEOUT_MS,
        )
        answer = self._ask(request, timeout_ms=_ELECTION_TIMEOUT_MS)
        codes = [part.error_code for one in answer.replica_election_results for part in one.partition_result]
        _check(f"elect a leader of {topic}-{index}", [code for code in codes if code != _ELECTION_NOT_NEEDED])

    def produce(self, topic: str, first: int, count: int) -> None:
        """``count`` records to partition 0, which this broker leads, numbered from ``first`` in their values."""
        now_ms = int(time.time() * 1000)
        made = [
            records.Record(offset, now_ms, b"%d" % (first + offset), b"value %d" % (first + offset), [])
            for offset in range(count)
        ]
        self.append(topic, bytes(records.build(made, 0, -1, -1, -1)))

    def append(self, topic: str, batch: bytes, partition: int = 0) -> None:
        """A batch as it is to a partition that this broker leads."""
        answer = self._ask(produce_request(topic, partition, batch), at_most=_PRODUCE_VERSION)
        codes = [row.error_code for one in answer.responses for row in one.partition_responses]
        _check(f"produce to {topic}", codes)

    def end(self, topic: str) -> int:
        """The high watermark of partition 0, which this broker leads; -1 where it does not or has no such topic."""
        row = ListOffsetsRequest.ListOffsetsTopic
        part = row.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=_LATEST)
        request = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[row(name=topic, partitions=[part])])
        (found,) = self._ask(request).topics[0].partitions
        return -1 if found.error_code else int(found.offset)

    def _ask(self, request: Any, at_most: int | None = None, timeout_ms: int = _TIMEOUT_MS) -> Any:
        return asyncio.run(self._call(request, at_most, timeout_ms))

    async def _call(self, request: Any, at_most: int | None, timeout_ms: int) -> Any:
        connection = await Connection.open(self._settings, self._host, self._port)
        try:
            return await connection.call(request, at_most=at_most, timeout_ms=timeout_ms)
        finally:
            await connection.close()


def _check(what: str, codes: Sequence[int]) -> None:
    assert not any(codes), f"cannot {what}: {codes}"
