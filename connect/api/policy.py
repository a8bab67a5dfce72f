"""How remote topics are named: the plugin interface of ``replication.policy.class``.

A package offers an implementation by an entry point of ``heliograph.replication_policies``. It leads to a callable,
most often the class itself, that takes the whole configuration of the connector, references resolved, and raises
:class:`~connect.core.errors.ConfigError` where it is wrong. Files name it by the entry point's name, or by what it
leads to: ``package.module.Name``.
"""

from __future__ import annotations

from typing import Protocol


class ReplicationPolicy(Protocol):
    """Names of topics and what they tell (Kafka's ``ReplicationPolicy``).

    A remote topic is one that was mirrored from another cluster, its source.
    """

    def format_remote_topic(self, source_alias: str, topic: str) -> str:
        """The name on the target of ``topic`` of the cluster ``source_alias``.

        Raises :class:`~connect.core.errors.PermanentError`, with a sentence for the log, where it has none.
        """
        ...

    def topic_source(self, topic: str) -> str | None:
        """The alias of the cluster a remote topic came from; None if ``topic`` is not remote."""
        ...

    def upstream_topic(self, topic: str) -> str | None:
        """A remote topic's name one cluster upstream; None if ``topic`` is not remote."""
        ...

    def original_topic(self, topic: str) -> str:
        """The name where the topic began, all hops undone; ``topic`` itself if it is not remote."""
        ...

    def heartbeats_topic(self) -> str:
        """The topic that heartbeats are emitted to."""
        ...

    def offset_syncs_topic(self, alias: str) -> str:
        """The topic of offset syncs; ``alias`` is the cluster of the flow that it does not live on."""
        ...

    def checkpoints_topic(self, alias: str) -> str:
        """The topic of checkpoints of the source cluster ``alias``."""
        ...

    def is_heartbeats_topic(self, topic: str) -> bool:
        """Whether ``topic`` carries heartbeats, mirrored any number of times."""
        ...

    def is_checkpoints_topic(self, topic: str) -> bool: ...

    def is_mm2_internal_topic(self, topic: str) -> bool:
        """Whether MirrorMaker 2 made ``topic`` for itself."""
        ...

    def is_internal_topic(self, topic: str) -> bool:
        """Whether ``topic`` is internal to Kafka or MirrorMaker 2; such topics are never mirrored."""
        ...
