"""The two replication policies that come with MirrorMaker 2, and the rule against cycles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol, runtime_checkable

from connect.api.policy import ReplicationPolicy

_HEARTBEATS: Final = "heartbeats"
_DEFAULT_SEPARATOR: Final = "."
#: A topic's name has no more characters (Kafka ``Topic.MAX_NAME_LENGTH``).
LONGEST_NAME: Final = 249
#: Topics whose names never follow the policy's separator: a worker's three, and the offset map.
_ALWAYS_DOTTED: Final = (
    "mm2-configs.",
    "mm2-offsets.",
    "mm2-status.",
    "mm2-offset-map.",
)


class DefaultReplicationPolicy:
    """``us.orders``: the source's alias, a separator, the topic.

    Args:
        separator: ``replication.policy.separator``.
        internal_separator: What stands in the names of the topics of checkpoints and offset syncs.
    """

    def __init__(self, separator: str = _DEFAULT_SEPARATOR, internal_separator: str | None = None) -> None:
        self._separator = separator
        between = separator if internal_separator is None else internal_separator
        self._between = between
        self._internal_suffix = f"{between}internal"
        self._checkpoints_suffix = f"{between}checkpoints{self._internal_suffix}"

    def format_remote_topic(self, source_alias: str, topic: str) -> str:
        return f"{source_alias}{self._separator}{topic}"

    def topic_source(self, topic: str) -> str | None:
        if not self._separator:
            # Java's split has a part for each character then.
            return topic[0] if len(topic) > 1 else None
        # Java's split drops trailing empty parts, so "us." and "us.." have one part and are no remote topics.
        source, separator, rest = topic.partition(self._separator)
        return source if separator and rest.replace(self._separator, "") else None

    def upstream_topic(self, topic: str) -> str | None:
        source = self.topic_source(topic)
        return None if source is None else topic[len(source) + len(self._separator) :]

    def original_topic(self, topic: str) -> str:
        while (upstream := self.upstream_topic(topic)) is not None and upstream != topic:
            topic = upstream
        return topic

    def heartbeats_topic(self) -> str:
        return _HEARTBEATS

    def offset_syncs_topic(self, alias: str) -> str:
        return f"mm2-offset-syncs{self._between}{alias}{self._internal_suffix}"

    def checkpoints_topic(self, alias: str) -> str:
        return alias + self._checkpoints_suffix

    def is_heartbeats_topic(self, topic: str) -> bool:
        return self.original_topic(topic) == _HEARTBEATS

    def is_checkpoints_topic(self, topic: str) -> bool:
        return topic.endswith(self._checkpoints_suffix)

    def is_mm2_internal_topic(self, topic: str) -> bool:
        # Java asks for its separator in the worker's topics too, where it never stands, and would mirror them.
        dotted = topic.startswith(_ALWAYS_DOTTED) and topic.endswith(".internal")
        named = topic.startswith("mm2") and topic.endswith(self._internal_suffix)
        return named or dotted or self.is_checkpoints_topic(topic)

    def is_internal_topic(self, topic: str) -> bool:
        return self.is_mm2_internal_topic(topic) or topic.startswith(("__", "."))


class IdentityReplicationPolicy(DefaultReplicationPolicy):
    """Topics keep their names, heartbeats excepted. Cycles cannot be seen from names alone.

    Args:
        source_alias: What :meth:`topic_source` answers for every topic (``source.cluster.alias``).
    """

    def __init__(
        self,
        separator: str = _DEFAULT_SEPARATOR,
        internal_separator: str | None = None,
        source_alias: str | None = None,
    ) -> None:
        super().__init__(separator, internal_separator)
        self._source_alias = source_alias

    def format_remote_topic(self, source_alias: str, topic: str) -> str:
        return super().format_remote_topic(source_alias, topic) if looks_like_heartbeat(topic) else topic

    def topic_source(self, topic: str) -> str | None:
        return super().topic_source(topic) if looks_like_heartbeat(topic) else self._source_alias

    def upstream_topic(self, topic: str) -> str | None:
        return super().upstream_topic(topic) if looks_like_heartbeat(topic) else topic


def looks_like_heartbeat(topic: str) -> bool:
    """Whether a policy that keeps names must not keep this one (Kafka ``IdentityReplicationPolicy``)."""
    return topic.endswith(_HEARTBEATS)


def separators(props: Mapping[str, str]) -> tuple[str, str]:
    """The separator and the one for internal topics; the switch counts only where a separator is given."""
    separator = props.get("replication.policy.separator")
    if separator is None:
        return _DEFAULT_SEPARATOR, _DEFAULT_SEPARATOR
    enabled = props.get("replication.policy.internal.topic.separator.enabled", "true").strip().lower() == "true"
    return separator, separator if enabled else _DEFAULT_SEPARATOR


@runtime_checkable
class KnowsItsWay(Protocol):
    """A replication policy that reads a name otherwise where it knows whom to look for."""

    def has_passed(self, topic: str, alias: str) -> bool:
        """Whether ``topic`` has come over the cluster ``alias``."""
        ...


def is_cycle(policy: ReplicationPolicy, topic: str, target_alias: str) -> bool:
    """Whether mirroring ``topic`` to ``target_alias`` brings records back to where they have been.

    Kafka's ``MirrorSourceConnector.isCycle``: some hop in the name is the target. It ends whatever a policy of other
    people answers: at a name that was there before, and at one that no topic can have.
    """
    if isinstance(policy, KnowsItsWay):
        return policy.has_passed(topic, target_alias)
    seen: set[str] = set()
    while topic not in seen and (source := policy.topic_source(topic)) is not None:
        if source == target_alias:
            return True
        upstream = policy.upstream_topic(topic)
        if upstream is None or len(upstream) > LONGEST_NAME:
            return False
        seen.add(topic)
        topic = upstream
    return False
