"""Interfaces of ``topic.filter.class``, ``group.filter.class`` and ``config.property.filter.class``, which select what
a mirror replicates.

A package provides an implementation through an entry point of ``heliograph.topic_filters``,
``heliograph.group_filters`` or ``heliograph.config_property_filters``. The entry point refers to a callable, usually
the class, that takes the connector's whole config with references resolved and raises
:class:`~connect.core.errors.ConfigError` if it is invalid. Configs name it by the entry point's name or by its target,
``package.module.Name``. Results may depend only on the name and the config: any worker may ask again at any time.
"""

from __future__ import annotations

from typing import Protocol


class TopicFilter(Protocol):
    """Selects topics (Kafka's ``TopicFilter``)."""

    def should_replicate_topic(self, topic: str) -> bool: ...


class GroupFilter(Protocol):
    """Selects consumer groups (Kafka's ``GroupFilter``)."""

    def should_replicate_group(self, group: str) -> bool: ...


class ConfigPropertyFilter(Protocol):
    """Selects topic configs (Kafka's ``ConfigPropertyFilter``)."""

    def should_replicate_config_property(self, key: str) -> bool:
        """Return whether the remote topic gets the topic config ``key`` at all."""

    def should_replicate_source_default(self, key: str) -> bool:
        """Return, for a topic config left at its default on the source, whether the remote topic gets the source's
        default rather than the target's (KIP-894)."""
