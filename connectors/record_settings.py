"""Where the records of a flow beside its positions are kept, and how they are read: in the topic of the offset map."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from connect.kafka.admin import Admin
from connect.kafka.cluster import Cluster
from connect.kafka.producer import partition_of
from connect.kafka.topiclog import LogRecord, ensure_compacted_topic, partition_count, read_to_end
from connectors.positions import Kind, decode_kind
from connectors.settings import MirrorSourceSettings

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class RecordSettings:
    """Of one connector; ``partitions`` and ``replication_factor`` are for a topic that is not there yet."""

    connector: str
    topic: str
    partitions: int
    replication_factor: int
    timeout_s: float = 60.0

    async def make_topic(self, admin: Admin) -> None:
        """Make the topic where it is missing. Raises as :func:`connect.kafka.topiclog.ensure_compacted_topic`."""
        await ensure_compacted_topic(
            admin,
            self.topic,
            partitions=self.partitions,
            replication_factor=self.replication_factor,
            timeout_s=self.timeout_s,
        )


def record_settings(settings: MirrorSourceSettings) -> RecordSettings:
    """Those of a flow's source connector."""
    return RecordSettings(
        settings.name,
        settings.map_topic,
        settings.offsets_topic_partitions,
        settings.offsets_topic_replication_factor,
    )


async def read_records(
    cluster: Cluster,
    settings: RecordSettings,
    kind: Kind,
    partition_key: bytes,
    decode_key: Callable[[bytes], tuple[str, K]],
    decode_value: Callable[[bytes], V],
) -> dict[K, V]:
    """The connector's records of one kind as they stand, of a topic that is there.

    Args:
        partition_key: By which all of the kind lie in one partition.
        decode_key: Gives the connector, and what the record is about.

    Raises:
        RetriableError: the cluster does not answer, or not in time.
        SecurityError: READ or DESCRIBE on the topic is missing.
        UnknownFormat: a later version wrote a record of this kind.
    """
    found: dict[K, V] = {}

    def fold(record: LogRecord) -> None:
        if decode_kind(record.key) is not kind:
            return
        assert record.key is not None
        connector, about = decode_key(record.key)
        if connector != settings.connector:
            return
        if record.value is None:
            found.pop(about, None)
        else:
            found[about] = decode_value(record.value)

    partitions = await partition_count(cluster, settings.topic, timeout_s=settings.timeout_s)
    place = partition_of(partition_key, partitions)
    await read_to_end(cluster, settings.topic, fold, partitions={place}, timeout_s=settings.timeout_s)
    return found
