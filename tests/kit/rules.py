"""Access rules of a cluster as a stock client makes, sees and deletes them; the broker hears of them a moment later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
)

from tests.kit.brokers import KafkaCluster
from tests.kit.processes import wait_until

_SEEN_DEADLINE_S: Final = 120.0


@dataclass(frozen=True)
class Guarded:
    """Rules of a cluster, each as a line: ``ALLOW READ User:bob TOPIC LITERAL orders``."""

    cluster: KafkaCluster
    admin: Any

    def rules(self) -> set[str]:
        found, _ = self.admin.describe_acls(_filter())
        return {_line(acl) for acl in found}

    def add(self, *lines: str) -> None:
        made = self.admin.create_acls([_acl(line) for line in lines])
        assert not made["failed"], made
        wait_until(lambda: self.rules() >= set(lines), _SEEN_DEADLINE_S, f"the broker knows {lines}")

    def remove(self, *lines: str) -> None:
        for _, matching, error in self.admin.delete_acls([_acl(line) for line in lines]):
            assert len(matching) == 1 and not getattr(error, "errno", 0), (matching, error)

    def clear(self) -> None:
        self.admin.delete_acls([_filter()])
        wait_until(lambda: not self.rules(), _SEEN_DEADLINE_S, "the broker has forgotten all rules")


def _filter() -> ACLFilter:
    pattern = ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY)
    return ACLFilter(None, None, ACLOperation.ANY, ACLPermissionType.ANY, pattern)


def _acl(line: str) -> ACL:
    permission, operation, principal, kind, pattern, name = line.split()
    return ACL(
        principal,
        "*",
        ACLOperation[operation],
        ACLPermissionType[permission],
        ResourcePattern(ResourceType[kind], name, ACLResourcePatternType[pattern]),
    )


def _line(acl: Any) -> str:
    pattern = acl.resource_pattern
    words = (acl.permission_type.name, acl.operation.name, acl.principal, pattern.resource_type.name)
    return " ".join((*words, pattern.pattern_type.name, pattern.resource_name))
