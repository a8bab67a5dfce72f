"""Access rules of a cluster as a stock client makes, sees and deletes them; the broker hears of them a moment later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
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
from tests.kit.clients import stock_admin
from tests.kit.processes import wait_until

_SEEN_DEADLINE_S: Final = 120.0
_PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
_CONFIG: Final = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.bobs.plain.sasl.jaas.config": f'{_PLAIN} required user_bob="secret";',
}
#: How bob comes in at the addresses of the listener BOBS.
BOB: Final = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.jaas.config": f'{_PLAIN} required username="bob" password="secret";',
}


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


@contextmanager
def guarded(name: str, config: Mapping[str, str] | None = None) -> Iterator[Guarded]:
    """Start a cluster where whoever comes without a name may do all, and bob may do what rules say."""
    started = KafkaCluster.start(name, config={**_CONFIG, **(config or {})}, listeners={"BOBS": "SASL_PLAINTEXT"})
    with started as cluster, stock_admin(cluster.bootstrap) as admin:
        yield Guarded(cluster, admin)


@contextmanager
def two_guarded(config: Mapping[str, str] | None = None) -> Iterator[tuple[Guarded, Guarded]]:
    """Start two of them, us and eu, at the same time."""
    with ExitStack() as exits, ThreadPoolExecutor(2) as pool:
        us, eu = pool.map(lambda name: exits.enter_context(guarded(name, config)), ("us", "eu"))
        yield us, eu


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
