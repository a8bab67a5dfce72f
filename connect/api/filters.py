"""What a mirror takes: the plugin interfaces of ``topic.filter.class``, ``group.filter.class`` and
``config.property.filter.class``.

A package offers an implementation by an entry point of ``heliograph.topic_filters``, ``heliograph.group_filters`` or
``heliograph.config_property_filters``. It leads to a callable, most often the class itself, that takes the whole
configuration of the connector, references resolved, and raises :class:`~connect.core.errors.ConfigError` where it is
wrong. Files name it by the entry point's name, or by what it leads to: ``package.module.Name``. Answers must depend on
nothing but the name and the configuration: they are asked again and again, on any worker.
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
    """Selects settings of topics (Kafka's ``ConfigPropertyFilter``)."""

    def should_replicate_config_property(self, key: str) -> bool:
        """Whether the remote topic gets the setting ``key`` at all."""
        ...

    def should_replicate_source_default(self, key: str) -> bool:
        """Where the source's topic has the default of Kafka: whether the remote one gets its value, not the target's
        own default (KIP-894)."""
        ...
