"""The filters that ``topic.filter.class``, ``group.filter.class`` and ``config.property.filter.class`` can name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from connect.api.filters import ConfigPropertyFilter, GroupFilter, TopicFilter
from connectors.classes import CONFIG_PROPERTY_FILTERS, GROUP_FILTERS, TOPIC_FILTERS, Factory, make
from connectors.config_defs import CHECKPOINT, SOURCE, USE_DEFAULTS_FROM
from connectors.filters import DefaultConfigPropertyFilter, DefaultGroupFilter, DefaultTopicFilter

_JAVA: Final = "org.apache.kafka.connect.mirror."
_OURS: Final = "connectors.filters."


def make_topic_filter(props: Mapping[str, str]) -> TopicFilter:
    """Raises:
    ConfigError: The class is not known, or refuses ``props``.
    """
    found: TopicFilter = _make("topic.filter.class", "DefaultTopicFilter", _topics, TOPIC_FILTERS, props)
    return found


def make_group_filter(props: Mapping[str, str]) -> GroupFilter:
    """Raises as :func:`make_topic_filter`."""
    found: GroupFilter = _make("group.filter.class", "DefaultGroupFilter", _groups, GROUP_FILTERS, props)
    return found


def make_property_filter(props: Mapping[str, str]) -> ConfigPropertyFilter:
    """Raises as :func:`make_topic_filter`."""
    key, default = "config.property.filter.class", "DefaultConfigPropertyFilter"
    found: ConfigPropertyFilter = _make(key, default, _properties, CONFIG_PROPERTY_FILTERS, props)
    return found


def _make(key: str, default: str, factory: Factory, group: str, props: Mapping[str, str]) -> Any:
    name = props.get(key, _JAVA + default).strip()
    return make(key, name, {_JAVA + default: factory, _OURS + default: factory}, group, props)


def _topics(props: Mapping[str, str]) -> DefaultTopicFilter:
    values = SOURCE.only("topics", "topics.exclude").parse(props)
    return DefaultTopicFilter(values.strings("topics"), values.strings("topics.exclude"))


def _groups(props: Mapping[str, str]) -> DefaultGroupFilter:
    values = CHECKPOINT.only("groups", "groups.exclude").parse(props)
    return DefaultGroupFilter(values.strings("groups"), values.strings("groups.exclude"))


def _properties(props: Mapping[str, str]) -> DefaultConfigPropertyFilter:
    values = (SOURCE.only("config.properties.exclude") | USE_DEFAULTS_FROM).parse(props)
    return DefaultConfigPropertyFilter(
        values.strings("config.properties.exclude"), source_defaults=values.string("use.defaults.from") == "source"
    )
