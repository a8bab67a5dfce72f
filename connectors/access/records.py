"""What a flow has made on its target's authorizer, kept on the target itself: in the topic of the offset map.

A rule is recorded before it is made. So after a crash in between the record may stand for a rule that is not there,
which does no harm, but no rule is ever there that this flow made and does not know of.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import Final

from connect.core.acls import OPERATIONS, PATTERN_TYPES, PERMISSIONS, RESOURCE_TYPES, AclBinding, code, word
from connect.kafka.admin import Admin
from connect.kafka.cluster import Cluster
from connectors.positions import VERSION, Kind, Reader, check_version, front, text
from connectors.record_settings import RecordKind, Records, RecordSettings, read_records

_CODES: Final = struct.Struct(">bbbb")  # resource type, pattern type, operation, permission


def encode_acl_key(connector: str, rule: AclBinding) -> bytes:
    codes = (
        code(RESOURCE_TYPES, rule.resource_type),
        code(PATTERN_TYPES, rule.pattern_type),
        code(OPERATIONS, rule.operation),
        code(PERMISSIONS, rule.permission),
    )
    names = (connector, rule.resource_name, rule.principal, rule.host)
    return front(Kind.ACL) + _CODES.pack(*codes) + b"".join(map(text, names))


def decode_acl_key(key: bytes) -> tuple[str, AclBinding]:
    """Return the connector and the rule. Raises UnknownFormat."""
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
    return connector, rule


def _check_value(value: bytes) -> bool:
    check_version(value, "access rule")
    return True


#: A record says that the rule was made.
ACLS: Final[RecordKind[AclBinding, bool]] = RecordKind(
    Kind.ACL, b"acls", encode_acl_key, decode_acl_key, lambda _: bytes((VERSION,)), _check_value
)


class AccessRecords:
    """The records of one connector. Errors of every method: RetriableError, SecurityError (rights are missing)."""

    def __init__(self, cluster: Cluster, admin: Admin, settings: RecordSettings) -> None:
        self._cluster = cluster
        self._admin = admin
        self._settings = settings
        self._records = Records(ACLS, cluster, admin, settings)

    async def load(self) -> frozenset[AclBinding]:
        """Return what this connector has made, whether it still exists or not."""
        return frozenset(await read_records(self._cluster, self._settings, ACLS))

    async def claim(self, rules: Collection[AclBinding]) -> None:
        """Record rules that are about to be made."""
        if rules:
            await self._settings.make_topic(self._admin)
            await self._records.store(dict.fromkeys(rules, True))

    async def forget(self, rules: Collection[AclBinding]) -> None:
        """Delete the records of rules that were deleted, or never made."""
        await self._records.store(dict.fromkeys(rules))
