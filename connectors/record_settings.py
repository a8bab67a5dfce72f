"""Where the records of a flow beside its positions are kept, and how they are read: in the topic of the offset map."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from connect.core.model import CLEANED_SOON, NewTopic
from connect.kafka.admin import Admin
from connect.kafka.cluster import Cluster
from connect.kafka.known_topic import known_topic
from connect.kafka.producer import OutRecord, PlainWriter, partition_of
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

    async def make_topic(self, admin: Admin) -> None:
        """Make the topic where it is missing. Raises as :func:`connect.kafka.topiclog.ensure_compacted_topic`."""
        topic = NewTopic(self.topic, self.partitions, self.replication_factor, CLEANED_SOON)
        await ensure_compacted_topic(admin, topic)


def record_settings(settings: MirrorSourceSettings) -> RecordSettings:
    """Those of a flow's source connector."""
    return RecordSettings(
        settings.name,
        settings.map_topic,
        settings.offsets_topic_partitions,
        settings.offsets_topic_replication_factor,
    )


@dataclass(frozen=True, slots=True)
class RecordKind(Generic[K, V]):
    """How records of one kind are stored: keys are of a connector and what the record is about.

    Args:
        partition_key: All records of the kind are in its partition, so that reading them is reading one partition.
    """

    kind: Kind
    partition_key: bytes
    encode_key: Callable[[str, K], bytes]
    decode_key: Callable[[bytes], tuple[str, K]]
    encode_value: Callable[[V], bytes]
    decode_value: Callable[[bytes], V]


class Records(Generic[K, V]):
    """The records of one kind and one connector. Every method raises RetriableError, or SecurityError if a right is
    missing."""

    def __init__(self, of: RecordKind[K, V], cluster: Cluster, admin: Admin, settings: RecordSettings) -> None:
        self._of = of
        self._cluster = cluster
        self._admin = admin
        self._settings = settings
        self._writer = PlainWriter(cluster)

    async def load(self) -> dict[K, V]:
        """Return what is stored; the topic is created if it is missing."""
        await self._settings.make_topic(self._admin)
        return await read_records(self._cluster, self._settings, self._of)

    async def store(self, values: Mapping[K, V | None]) -> None:
        """Store values; None deletes a record."""
        of, connector = self._of, self._settings.connector
        records = [
            (of.encode_key(connector, about), None if value is None else of.encode_value(value))
            for about, value in values.items()
        ]
        await self._writer.write(
            OutRecord(self._settings.topic, key, value, of.partition_key) for key, value in sorted(records)
        )


async def read_records(cluster: Cluster, settings: RecordSettings, of: RecordKind[K, V]) -> dict[K, V]:
    """Return the connector's records of one kind. Raises as :func:`read_all_records`."""
    found = await read_all_records(cluster, settings.topic, of)
    return {about: value for (connector, about), value in found.items() if connector == settings.connector}


async def read_all_records(cluster: Cluster, topic: str, of: RecordKind[K, V]) -> dict[tuple[str, K], V]:
    """Return all connectors' records of one kind, by connector and what they are about; none if there is no topic.

    Raises:
        RetriableError: the cluster does not answer, or not in time.
        SecurityError: READ or DESCRIBE on the topic is missing.
        LaterFormat: a later version wrote a record of this kind.
    """
    found: dict[tuple[str, K], V] = {}
    if await known_topic(cluster, topic) is None:
        return found

    def fold(record: LogRecord) -> None:
        if decode_kind(record.key) is not of.kind:
            return
        assert record.key is not None
        about = of.decode_key(record.key)
        if record.value is None:
            found.pop(about, None)
        else:
            found[about] = of.decode_value(record.value)

    partitions = await partition_count(cluster, topic)
    place = partition_of(of.partition_key, partitions)
    await read_to_end(cluster, topic, fold, partitions={place}, only_last=True)
    return found
