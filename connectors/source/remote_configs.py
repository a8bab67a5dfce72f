"""Which settings a remote topic is to have: the source's with where they come from in, changes out. Pure.

The rule is that of Kafka's ``MirrorSourceConnector.targetConfig`` and ``incrementalAlterConfigs``. Only what differs
is a change, where Java sends all each time; the result is the same.
"""

from __future__ import annotations

from connect.api.filters import ConfigPropertyFilter
from connect.kafka.topic_configs import ConfigSource, TopicConfig, TopicConfigs
from connectors.changes import AlterConfig


def _mirrored(key: str, config: TopicConfig, properties: ConfigPropertyFilter) -> bool:
    return (
        not config.read_only
        and not config.sensitive
        and config.source is not ConfigSource.STATIC_BROKER
        and properties.should_replicate_config_property(key)
    )


def configs_of_new(source: TopicConfigs, properties: ConfigPropertyFilter) -> dict[str, str]:
    """What a remote topic is made with: nothing that the source has by default, unless its defaults are wanted."""
    return {
        key: config.value
        for key, config in sorted(source.items())
        if config.value is not None
        and _mirrored(key, config, properties)
        and (config.source is not ConfigSource.DEFAULT or properties.should_replicate_source_default(key))
    }


def wanted_configs(source: TopicConfigs, properties: ConfigPropertyFilter) -> dict[str, str | None]:
    """What a remote topic that exists is to have; None for the target's own default."""
    return {
        key: config.value
        if config.source is not ConfigSource.DEFAULT or properties.should_replicate_source_default(key)
        else None
        for key, config in sorted(source.items())
        if _mirrored(key, config, properties)
    }


def alterations(
    topic: str, source: TopicConfigs, target: TopicConfigs | None, properties: ConfigPropertyFilter
) -> list[AlterConfig]:
    """Changes of the remote ``topic``. ``target`` None: what it has is not shown to us, so everything is sent.

    A key that the target does not know is left out: it would make the broker refuse the others.
    """
    changes = []
    for key, value in wanted_configs(source, properties).items():
        has = None if target is None else target.get(key)
        if target is not None and (has is None or _has(has, value)):
            continue
        changes.append(AlterConfig(topic, key, None if has is None else has.value, value))
    return changes


def unknown_keys(source: TopicConfigs, target: TopicConfigs, properties: ConfigPropertyFilter) -> list[str]:
    """Settings of the source that the target's brokers do not know, and that would be set there."""
    return [key for key, value in wanted_configs(source, properties).items() if value is not None and key not in target]


def _has(config: TopicConfig, value: str | None) -> bool:
    own = config.source is ConfigSource.TOPIC
    return not own if value is None else own and config.value == value
