"""Remote topics' settings kept in step with the source's (Kafka ``MirrorSourceConnector.syncTopicConfigs``)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

from connect.api.filters import ConfigPropertyFilter
from connect.core.errors import HeliographError, RetriableError
from connect.kafka.cluster import Cluster
from connect.kafka.topic_configs import ConfigSource, TopicConfig, TopicConfigs, describe
from connectors.changes import AlterConfig
from connectors.source.applying import alter_configs

log = logging.getLogger(__name__)

#: Topics whose settings are looked at in one look: decoding them takes about thirty milliseconds.
_AT_A_LOOK: Final = 200


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


class ConfigSync:
    """Settings of the remote topics of one flow. ``topics`` is always (source topic, remote topic)."""

    def __init__(self, flow: str, source: Cluster, target: Cluster, properties: ConfigPropertyFilter) -> None:
        self._flow = flow
        self._source = source
        self._target = target
        self._properties = properties
        self._seen: dict[str, dict[str, str | None]] = {}
        self._next = 0
        #: Topics whose settings were not shown when they were last asked for, and why.
        self.hidden_sources: dict[str, HeliographError] = {}
        self.hidden_targets: dict[str, HeliographError] = {}

    async def of_source(self, topics: Iterable[str]) -> dict[str, TopicConfigs]:
        """The settings of source topics; of those that may not be seen the log says which right is missing."""
        return self._shown(await describe(self._source, list(topics)))

    async def sync(self, topics: Mapping[str, str]) -> None:
        """Alter what differs. Raises as :func:`connect.kafka.topic_configs.alter`."""
        sources = await self.of_source(topics)
        changes = await self._plan(topics, sources)
        refused = await alter_configs(self._flow, self._target, changes) if changes else set()
        for topic, configs in sources.items():
            if topics[topic] not in refused:
                self._seen[topic] = wanted_configs(configs, self._properties)

    async def plan(self, topics: Mapping[str, str]) -> list[AlterConfig]:
        """What :meth:`sync` would alter now; nothing of topics that are hidden then, of which nobody can say."""
        changes = await self._plan(topics, await self.of_source(topics))
        return [change for change in changes if change.topic not in self.hidden_targets]

    async def look(self, topics: Mapping[str, str]) -> list[str]:
        """Look at the source's settings of some of ``topics``, in turn; those whose settings are new to us."""
        if not topics:
            return []
        self._seen = {topic: seen for topic, seen in self._seen.items() if topic in topics}
        names = sorted(topics)
        start = self._next % len(names)
        turn = list(islice(names, start, start + _AT_A_LOOK))
        self._next = start + len(turn)
        found = await describe(self._source, turn)
        return [
            topic
            for topic, configs in found.items()
            if not isinstance(configs, HeliographError)
            and topic in self._seen
            and self._seen[topic] != wanted_configs(configs, self._properties)
        ]

    async def _plan(self, topics: Mapping[str, str], sources: Mapping[str, TopicConfigs]) -> list[AlterConfig]:
        targets = await describe(self._target, [topics[topic] for topic in sources])
        self.hidden_targets = {}
        changes = []
        for topic, configs in sources.items():
            remote = topics[topic]
            has = targets.get(remote)
            if has is None or isinstance(has, HeliographError):
                self.hidden_targets[remote] = has or RetriableError(f"the target says nothing of topic {remote}")
                changes += alterations(remote, configs, None, self._properties)
                continue
            if unknown := unknown_keys(configs, has, self._properties):
                log.warning(
                    "%s: %s cannot get %s, which the target's brokers do not know",
                    self._flow,
                    remote,
                    ", ".join(unknown),
                )
            changes += alterations(remote, configs, has, self._properties)
        return changes

    def _shown(self, found: Mapping[str, TopicConfigs | HeliographError]) -> dict[str, TopicConfigs]:
        shown: dict[str, TopicConfigs] = {}
        for topic, configs in found.items():
            if isinstance(configs, HeliographError):
                log.error("%s: %s", self._flow, configs)
                self.hidden_sources[topic] = configs
            else:
                shown[topic] = configs
                self.hidden_sources.pop(topic, None)
        return shown
