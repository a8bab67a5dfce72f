"""Reads the heartbeats of a cluster: the newest of each flow in each topic, and not the whole of a long log."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Final

from connect.api.policy import ReplicationPolicy
from connect.kafka.cluster import Cluster
from connect.kafka.offsets import EARLIEST, LATEST, list_offset
from connect.kafka.topiclog import LogRecord, read_to_end
from connectors.flow_health import Told
from connectors.mirror_records import Heartbeat

log = logging.getLogger(__name__)

#: Of one topic: hours of heartbeats of several flows. A flow that has stopped before is known to be so long gone.
MOST: Final = 20_000


async def read_heartbeats(
    cluster: Cluster, policies: Collection[ReplicationPolicy], timeout_s: float, most: int = MOST
) -> list[Told]:
    """Of every topic of heartbeats there, by name.

    Raises:
        RetriableError: the cluster does not answer, or not in time.
        SecurityError: a right is missing.
    """
    topics = (await cluster.metadata(None)).topics
    names = sorted(
        name
        for name, topic in topics.items()
        if topic.partitions and any(policy.is_heartbeats_topic(name) for policy in policies)
    )
    return [await _read(cluster, name, timeout_s, most) for name in names]


async def _read(cluster: Cluster, topic: str, timeout_s: float, most: int) -> Told:
    start, end = [await list_offset(cluster, (topic, 0), at) for at in (EARLIEST, LATEST)]
    begin = max(start, end - most)
    newest_ms: dict[tuple[str, str], int] = {}
    read_from_ms: list[int] = []

    def take(record: LogRecord) -> None:
        one = Heartbeat.decode(record.key, record.value)
        if not read_from_ms:
            read_from_ms.append(one.timestamp_ms)
        flow = (one.source_alias, one.target_alias)
        newest_ms[flow] = max(one.timestamp_ms, newest_ms.get(flow, 0))

    await read_to_end(cluster, topic, take, partitions=[0], after={0: begin}, timeout_s=timeout_s)
    return Told(topic, newest_ms, read_from_ms[0] if begin > start and read_from_ms else None)
