"""The replication policies that ``replication.policy.class`` can name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from connect.api.policy import ReplicationPolicy
from connect.core.errors import ConfigError
from connectors.classes import REPLICATION_POLICIES, Factory, make, offered
from connectors.mapping_policy import MappingReplicationPolicy, make_mapping_policy
from connectors.policy import DefaultReplicationPolicy, IdentityReplicationPolicy, is_cycle, separators

_KEY: Final = "replication.policy.class"
_SEPARATOR: Final = "replication.policy.separator"


def _default(props: Mapping[str, str]) -> ReplicationPolicy:
    return DefaultReplicationPolicy(*separators(props))


def _identity(props: Mapping[str, str]) -> ReplicationPolicy:
    return IdentityReplicationPolicy(*separators(props), props.get("source.cluster.alias"))


DEFAULT_POLICY_CLASS: Final = "org.apache.kafka.connect.mirror.DefaultReplicationPolicy"
IDENTITY_POLICY_CLASS: Final = "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"
#: Java's under another name; Strimzi's examples had it before Kafka had one.
_STRIMZI_IDENTITY: Final = "io.strimzi.kafka.connect.mirror.IdentityReplicationPolicy"
MAPPING_POLICY_CLASS: Final = "connectors.policy.MappingReplicationPolicy"

#: Java's names, our own and Strimzi's.
POLICIES: Final[Mapping[str, Factory]] = {
    DEFAULT_POLICY_CLASS: _default,
    IDENTITY_POLICY_CLASS: _identity,
    "connectors.policy.DefaultReplicationPolicy": _default,
    "connectors.policy.IdentityReplicationPolicy": _identity,
    _STRIMZI_IDENTITY: _identity,
    MAPPING_POLICY_CLASS: make_mapping_policy,
}


def sees_cycles(
    there: ReplicationPolicy, back: ReplicationPolicy, source_alias: str, *, are_renamed: bool = False
) -> bool:
    """Whether ``back`` knows again what ``there`` named on its way from ``source_alias``. Where others rename topics
    behind it (``are_renamed``), it does not."""
    if are_renamed:
        return False
    if isinstance(there, MappingReplicationPolicy):
        return there.tells_source
    return is_cycle(back, there.format_remote_topic(source_alias, "orders"), source_alias)


def find_policy(name: str) -> str | None:
    """``name`` where there is such a policy."""
    return name if name in POLICIES or name in offered(REPLICATION_POLICIES) else None


def known_policies() -> list[str]:
    """Their names."""
    return [*POLICIES, *offered(REPLICATION_POLICIES)]


def make_policy(props: Mapping[str, str]) -> ReplicationPolicy:
    """The policy that a connector's or client's properties ask for.

    Raises:
        ConfigError: ``replication.policy.class`` is not known, or what it needs is wrong.
    """
    name = props.get(_KEY, DEFAULT_POLICY_CLASS).strip()
    if props.get(_SEPARATOR) == "" and POLICIES.get(name) is not _identity:
        raise ConfigError(f"{_SEPARATOR} must not be empty where names of topics are made with it", _SEPARATOR)
    policy: ReplicationPolicy = make(_KEY, name, POLICIES, REPLICATION_POLICIES, props)
    return policy
