"""Since when source topics are gone, kept on the target in the topic of the offset map: it survives restarts."""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from typing import Final

from connect.kafka.admin import Admin
from connect.kafka.cluster import Cluster
from connect.kafka.producer import OutRecord, PlainWriter
from connectors.positions import VERSION, Kind, Reader, check_version, front, text
from connectors.record_settings import RecordSettings, read_records

_SINCE: Final = struct.Struct(">q")  # milliseconds since 1970
#: One place for all, so that reading them is reading one partition.
_PARTITION_KEY: Final = b"gone"


def encode_gone_key(connector: str, topic: str) -> bytes:
    return front(Kind.GONE) + text(connector) + text(topic)


def decode_gone_key(key: bytes) -> tuple[str, str]:
    """Connector and source topic. Raises UnknownFormat."""
    reader = Reader(key, len(front(Kind.GONE)))
    connector, topic = reader.text(), reader.text()
    reader.end()
    return connector, topic


def encode_gone(since_ms: int) -> bytes:
    return bytes((VERSION,)) + _SINCE.pack(since_ms)


def decode_gone(value: bytes) -> int:
    """Raises UnknownFormat."""
    check_version(value, "vanished topic")
    reader = Reader(value, 1)
    (since_ms,) = reader.fixed(_SINCE)
    reader.end()
    return since_ms


class GoneRecords:
    """Those of one connector. Errors of every method: RetriableError, SecurityError (rights are missing)."""

    def __init__(self, cluster: Cluster, admin: Admin, settings: RecordSettings) -> None:
        self._cluster = cluster
        self._admin = admin
        self._settings = settings
        self._writer = PlainWriter(cluster)

    async def load(self) -> dict[str, int]:
        """Since when, by source topic; milliseconds since 1970."""
        await self._settings.make_topic(self._admin)
        return await read_gone(self._cluster, self._settings)

    async def store(self, since_ms: Mapping[str, int], settled: Collection[str]) -> None:
        """These are gone since then; those are no longer of interest."""
        values = {**{topic: encode_gone(at) for topic, at in since_ms.items()}, **dict.fromkeys(settled)}
        await self._writer.write(
            OutRecord(self._settings.topic, encode_gone_key(self._settings.connector, topic), value, _PARTITION_KEY)
            for topic, value in sorted(values.items())
        )


async def read_gone(cluster: Cluster, settings: RecordSettings) -> dict[str, int]:
    """What :meth:`GoneRecords.load` gives, of a topic that is there."""
    return await read_records(cluster, settings, Kind.GONE, _PARTITION_KEY, decode_gone_key, decode_gone)
