"""Select the topics and settings to mirror: by lists of patterns, and by rules that no filter overrides."""

from __future__ import annotations

import re
from collections.abc import Sequence

from connect.api.filters import TopicFilter
from connect.api.policy import ReplicationPolicy
from connect.core.config.java_regex import UnsupportedRegex, compile_java
from connect.core.errors import ConfigError
from connectors.policy import is_cycle


class DefaultTopicFilter:
    """The keys ``topics`` and ``topics.exclude``: names and Java regular expressions. ``topics``: elements of the list;
    an empty one selects nothing. ``exclude``: elements of the list; they take precedence. Raises ConfigError if a list
    is not a valid expression; the error has the key."""

    def __init__(self, topics: Sequence[str], exclude: Sequence[str]) -> None:
        self._included = compile_pattern_list("topics", topics)
        self._excluded = compile_pattern_list("topics.exclude", exclude)

    def should_replicate_topic(self, topic: str) -> bool:
        return _matches(self._included, topic) and not _matches(self._excluded, topic)


class DefaultGroupFilter:
    """The keys ``groups`` and ``groups.exclude``; arguments and errors as for :class:`DefaultTopicFilter`."""

    def __init__(self, groups: Sequence[str], exclude: Sequence[str]) -> None:
        self._included = compile_pattern_list("groups", groups)
        self._excluded = compile_pattern_list("groups.exclude", exclude)

    def should_replicate_group(self, group: str) -> bool:
        return _matches(self._included, group) and not _matches(self._excluded, group)


class DefaultConfigPropertyFilter:
    """The keys ``config.properties.exclude`` and ``use.defaults.from`` (Kafka's ``DefaultConfigPropertyFilter``).
    ``exclude``: elements of the list. ``source_defaults``: whether the source's default values are set on the target.
    Raises ConfigError if the list is not a valid expression."""

    def __init__(self, exclude: Sequence[str], *, source_defaults: bool) -> None:
        self._excluded = compile_pattern_list("config.properties.exclude", exclude)
        self._source_defaults = source_defaults

    def should_replicate_config_property(self, key: str) -> bool:
        return not _matches(self._excluded, key)

    def should_replicate_source_default(self, key: str) -> bool:
        return self._source_defaults


def compile_pattern_list(key: str, elements: Sequence[str]) -> re.Pattern[str] | None:
    """Return one pattern for a list, to be matched in full; None, which matches nothing, for an empty list. The
    elements are joined unchanged, without groups around them, as Kafka's ``MirrorUtils.compilePatternList``: so a comma
    inside parentheses works as an alternative."""
    if not elements:
        return None
    joined = "|".join(elements)
    try:
        return compile_java(joined)
    except UnsupportedRegex as error:
        raise ConfigError(f"{key} is not a usable list of patterns ({joined}): {error}", key) from None


def _matches(pattern: re.Pattern[str] | None, name: str) -> bool:
    return pattern is not None and pattern.fullmatch(name) is not None


def should_mirror(
    topic: str, *, topic_filter: TopicFilter, policy: ReplicationPolicy, target_alias: str, heartbeats_replication: bool
) -> bool:
    """Whether a source topic is mirrored (Kafka's ``MirrorSourceConnector.shouldReplicateTopic``). The filter or the
    rule for heartbeats must select it, it must not be internal, and it must not come from the target."""
    selected = topic_filter.should_replicate_topic(topic) or (
        heartbeats_replication and policy.is_heartbeats_topic(topic)
    )
    return selected and not policy.is_internal_topic(topic) and not is_cycle(policy, topic, target_alias)
