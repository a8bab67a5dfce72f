"""What a flow has made on its target's authorizer, kept on the target itself: in the topic of the offset map.

A rule is recorded before it is made. So after a crash in between the record may stand for a rule that is not there,
which does no harm, but no rule is ever there that this flow made and does not know of.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import Final, NamedTuple

from connect.core.acls import OPERATIONS, PATTERN_TYPES, PERMISSIONS, RESOURCE_TYPES, AclBinding, code, word
from connect.kafka.admin import Admin
from connect.kafka.cluster import Cluster
from connect.kafka.producer import OutRecord, PlainWriter, partition_of
from connect.kafka.topiclog import LogRecord, partition_count, read_to_end
from connectors.positions import VERSION, Kind, Reader, check_version, decode_kind, front, text
from connectors.record_settings import RecordSettings

_CODES: Final = struct.Struct(">bbbb")  # resource type, pattern type, operation, permission
#: One place for all records of rules, so that reading them is reading one partition.
_PARTITION_KEY: Final = b"acls"
_VALUE: Final = bytes((VERSION,))
_UNKNOWN_TOPIC_OR_PARTITION: Final = 3


class AclKey(NamedTuple):
    """``connector`` has made ``binding``."""

    connector: str
    binding: AclBinding


def encode_acl_key(key: AclKey) -> bytes:
    rule = key.binding
    codes = (
        code(RESOURCE_TYPES, rule.resource_type),
        code(PATTERN_TYPES, rule.pattern_type),
        code(OPERATIONS, rule.operation),
        code(PERMISSIONS, rule.permission),
    )
    names = (key.connector, rule.resource_name, rule.principal, rule.host)
    return front(Kind.ACL) + _CODES.pack(*codes) + b"".join(map(text, names))


def decode_acl_key(key: bytes) -> AclKey:
    """The reverse. Raises UnknownFormat."""
    reader = Reader(key, len(front(Kind.ACL)))
    resource, pattern, operation, permission = reader.fixed(_CODES)
    connector, name, principal, host = (reader.text() for _ in range(4))
    reader.end()
    rule = AclBinding(
        word(RESOURCE_TYPES, resource),
        name,
        word(PATTERN_TYPES, pattern),
        principal,
        host,
        word(OPERATIONS, operation),
        word(PERMISSIONS, permission),
    )
    return AclKey(connector, rule)


class AccessRecords:
    """The records of one connector. Errors of every method: RetriableError, SecurityError (rights are missing)."""

    def __init__(self, cluster: Cluster, admin: Admin, settings: RecordSettings) -> None:
        self._cluster = cluster
        self._admin = admin
        self._settings = settings
        self._writer = PlainWriter(cluster)

    async def load(self) -> frozenset[AclBinding]:
        """What this connector has made, whether it is still there or not."""
        keys = await recorded(self._cluster, self._settings.topic, self._settings.timeout_s)
        return frozenset(key.binding for key in keys if key.connector == self._settings.connector)

    async def claim(self, rules: Collection[AclBinding]) -> None:
        """These are about to be made."""
        if not rules:
            return
        await self._settings.make_topic(self._admin)
        await self._write(rules, _VALUE)

    async def forget(self, rules: Collection[AclBinding]) -> None:
        """These are gone, or were never made."""
        await self._write(rules, None)

    async def _write(self, rules: Collection[AclBinding], value: bytes | None) -> None:
        settings = self._settings
        keys = [encode_acl_key(AclKey(settings.connector, rule)) for rule in sorted(rules)]
        await self._writer.write([OutRecord(settings.topic, key, value, _PARTITION_KEY) for key in keys])


async def recorded(cluster: Cluster, topic: str, timeout_s: float = 60.0) -> set[AclKey]:
    """What connectors have recorded in ``topic``; nothing where it is not there.

    Raises as :class:`AccessRecords`.
    """
    found: set[AclKey] = set()
    described = (await cluster.metadata({topic})).topics.get(topic)
    if described is None or described.error_code == _UNKNOWN_TOPIC_OR_PARTITION:
        return found

    def fold(record: LogRecord) -> None:
        if decode_kind(record.key) is not Kind.ACL:
            return
        assert record.key is not None
        key = decode_acl_key(record.key)
        if record.value is None:
            found.discard(key)
        else:
            check_version(record.value, "access rule")
            found.add(key)

    partitions = await partition_count(cluster, topic, timeout_s=timeout_s)
    place = partition_of(_PARTITION_KEY, partitions)
    await read_to_end(cluster, topic, fold, partitions={place}, timeout_s=timeout_s)
    return found
