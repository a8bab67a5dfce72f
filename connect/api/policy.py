"""Interface of ``replication.policy.class``, which names remote topics.

A package provides an implementation through an entry point of ``heliograph.replication_policies``. The entry point
refers to a callable, usually the class, that takes the connector's whole config with references resolved and raises
:class:`~connect.core.errors.ConfigError` if it is invalid. Configs name it by the entry point's name or by its target,
``package.module.Name``.
"""

from __future__ import annotations

from typing import Protocol


class ReplicationPolicy(Protocol):
    """Maps topic names of a source cluster to those of its target, and back (Kafka's ``ReplicationPolicy``). A remote
    topic is a topic that was mirrored from another cluster, its source."""

    def format_remote_topic(self, source_alias: str, topic: str) -> str:
        """Return the target's name for ``topic`` of the cluster ``source_alias``. Raises
        :class:`~connect.core.errors.PermanentError`, with a message for the log, if there is no such name."""

    def topic_source(self, topic: str) -> str | None:
        """Return the alias of the cluster a remote topic was mirrored from; None if ``topic`` is not remote."""

    def upstream_topic(self, topic: str) -> str | None:
        """Return a remote topic's name on the cluster it was mirrored from; None if ``topic`` is not remote."""

    def original_topic(self, topic: str) -> str:
        """Return the topic's name on its first cluster, with every hop removed; ``topic`` itself if not remote."""

    def heartbeats_topic(self) -> str:
        """Return the topic that heartbeats are written to."""

    def offset_syncs_topic(self, alias: str) -> str:
        """Return the offset-syncs topic; ``alias`` is the cluster of the flow that does not hold this topic."""

    def checkpoints_topic(self, alias: str) -> str:
        """Return the checkpoints topic for the source cluster ``alias``."""

    def is_heartbeats_topic(self, topic: str) -> bool:
        """Return whether ``topic`` holds heartbeats, mirrored any number of times."""

    def is_checkpoints_topic(self, topic: str) -> bool: ...

    def is_mm2_internal_topic(self, topic: str) -> bool:
        """Return whether MirrorMaker 2 created ``topic`` for its own use."""

    def is_internal_topic(self, topic: str) -> bool:
        """Return whether ``topic`` is internal to Kafka or MirrorMaker 2; such topics are never mirrored."""
