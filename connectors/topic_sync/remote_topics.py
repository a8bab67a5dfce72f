"""Plan which remote topics to create and grow, and keep their settings in step with the source's, as Kafka's
``MirrorSourceConnector.syncTopicConfigs``. The connector and commands that only show changes use the same plan."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from connect.api.filters import ConfigPropertyFilter
from connect.core.errors import HeliographError, PermanentError, RetriableError
from connect.kafka.cluster import Cluster, TopicMetadata
from connect.kafka.log.topic_admin import Admin, ConfigSource, TopicConfig, TopicConfigs, describe
from connectors.config.connector_configs import MirrorSourceSettings
from connectors.formats.types import TopicPartition
from connectors.internal_topics import read_positions
from connectors.policy import IN_NAMES, LONGEST_NAME
from connectors.topic_sync.cluster_changes import AddPartitions, AlterConfig, CreateTopic, alter_configs
from connectors.topic_sync.partition_assignment import selected

log = logging.getLogger(__name__)

#: Topics whose settings are read at a time: decoding them takes about thirty milliseconds.
_AT_A_LOOK: Final = 200


def _mirrored(key: str, config: TopicConfig, properties: ConfigPropertyFilter) -> bool:
    return (
        not config.read_only
        and not config.sensitive
        and config.source is not ConfigSource.STATIC_BROKER
        and properties.should_replicate_config_property(key)
    )


def configs_of_new(source: TopicConfigs, properties: ConfigPropertyFilter) -> dict[str, str]:
    """Return the settings for a new remote topic: no defaults of the source, unless configured."""
    return {key: value for key, value in wanted_configs(source, properties).items() if value is not None}


def wanted_configs(source: TopicConfigs, properties: ConfigPropertyFilter) -> dict[str, str | None]:
    """Return the settings that an existing remote topic should have; None for the target's own default."""
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
    """Return changes of the remote ``topic``. ``target`` None: its settings are hidden from us, so all are sent. A key
    that the target does not know is left out, because it would make the broker reject the others."""
    changes = []
    for key, value in wanted_configs(source, properties).items():
        has = None if target is None else target.get(key)
        if target is not None and (has is None or _has(has, value)):
            continue
        changes.append(AlterConfig(topic, key, None if has is None else has.value, value))
    return changes


def unknown_keys(source: TopicConfigs, target: TopicConfigs, properties: ConfigPropertyFilter) -> list[str]:
    """Return settings of the source that would be set on the target, but that its brokers do not know."""
    return [key for key, value in wanted_configs(source, properties).items() if value is not None and key not in target]


def _has(config: TopicConfig, value: str | None) -> bool:
    own = config.source is ConfigSource.TOPIC
    return not own if value is None else own and config.value == value


class ConfigSync:
    """Settings of the remote topics of one flow. ``topics`` maps source topics to remote topics."""

    def __init__(self, flow: str, source: Cluster, target: Cluster, properties: ConfigPropertyFilter) -> None:
        self._flow, self._source, self._target, self._properties = flow, source, target, properties
        self._seen: dict[str, dict[str, str | None]] = {}
        self._next = 0
        #: Topics whose settings were hidden when last read, and why.
        self.hidden_sources: dict[str, HeliographError] = {}
        self.hidden_targets: dict[str, HeliographError] = {}

    async def of_source(self, topics: Iterable[str]) -> dict[str, TopicConfigs]:
        """Return the settings of source topics; hidden ones are logged with the missing right."""
        return self._shown(await describe(self._source, list(topics)))

    async def sync(self, topics: Mapping[str, str], admin: Admin) -> None:
        """Alter settings that differ. Errors are those of :func:`connect.kafka.log.topic_admin.alter`."""
        sources = await self.of_source(topics)
        changes = await self._plan(topics, sources)
        refused = await alter_configs(self._flow, admin, changes) if changes else set()
        for topic, configs in sources.items():
            if topics[topic] not in refused:
                self._seen[topic] = wanted_configs(configs, self._properties)

    async def plan(self, topics: Mapping[str, str]) -> list[AlterConfig]:
        """Return what :meth:`sync` would alter now, except for topics whose settings are hidden."""
        changes = await self._plan(topics, await self.of_source(topics))
        return [change for change in changes if change.topic not in self.hidden_targets]

    async def look(self, topics: Mapping[str, str]) -> list[str]:
        """Read the source's settings of some of ``topics``, in turn. Return topics whose settings have changed."""
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
                self.hidden_targets[remote] = has or RetriableError(f"the target does not describe topic {remote}")
                changes += alterations(remote, configs, None, self._properties)
                continue
            if unknown := unknown_keys(configs, has, self._properties):
                keys = ", ".join(unknown)
                log.warning("%s: %s cannot get %s, which the target's brokers do not know", self._flow, remote, keys)
            changes += alterations(remote, configs, has, self._properties)
        return changes

    def _shown(self, found: Mapping[str, TopicConfigs | HeliographError]) -> dict[str, TopicConfigs]:
        shown: dict[str, TopicConfigs] = {}
        for topic, configs in found.items():
            if isinstance(configs, HeliographError):
                log.error("%s: topic settings could not be read: %s", self._flow, configs)
                self.hidden_sources[topic] = configs
            else:
                shown[topic] = configs
                self.hidden_sources.pop(topic, None)
        return shown


_READABLE: Final = 0


@dataclass(frozen=True, slots=True)
class Naming:
    """Source topics with a unique remote name, by topic; for the others a sentence each, why not. ``undecided``: those
    of the others that would have a name if they are known to have had it before."""

    remote: Mapping[str, str]
    problems: Mapping[str, str] = field(default_factory=dict)
    undecided: Mapping[str, str] = field(default_factory=dict)


def name_topics(
    all_names: Callable[[str], Sequence[str]], topics: Sequence[str], copied: Collection[str] = ()
) -> Naming:
    """Name ``topics``. ``all_names`` returns the names of a topic and of all that others make of its records, ours
    first; it raises PermanentError if there is none. Two topics of one name are never merged, whether we fill both or
    other connectors fill one: the one in ``copied`` keeps it, otherwise none has it."""
    names: dict[str, Sequence[str]] = {}
    problems: dict[str, str] = {}
    for topic in topics:
        try:
            found = all_names(topic)
        except PermanentError as error:
            problems[topic] = str(error)
            continue
        if wrong := next(filter(None, map(_wrong_name, found)), None):
            problems[topic] = f"topic {topic} is not mirrored: its remote name {wrong}. Exclude it by topics.exclude"
        else:
            names[topic] = found
    shared = _shared(names)
    remote: dict[str, str] = {}
    undecided: dict[str, str] = {}
    for topic, (name, *_) in names.items():
        sharing, clash = shared.get(topic, ((topic,), name))
        holders = [other for other in sharing if other in copied]
        if len(sharing) > 1 and holders != [topic]:
            problems[topic] = (
                f"topics {' and '.join(sharing)} would share the remote topic {clash}, so {topic} is not mirrored. "
                "Change the replication policy or what renames topics after it, or exclude one by topics.exclude"
            )
            if not holders:
                undecided[topic] = name
        else:
            remote[topic] = name
    return Naming(remote, problems, undecided)


def _shared(names: Mapping[str, Sequence[str]]) -> dict[str, tuple[Sequence[str], str]]:
    """Return topics whose remote topic is also that of other topics, if we fill one of them. The values are these
    topics, itself included, in the order of ``names``, and the remote topic."""
    filling: dict[str, set[str]] = defaultdict(set)
    sent: dict[str, set[str]] = defaultdict(set)
    for topic, (own, *others) in names.items():
        filling[own].add(topic)
        for name in (own, *others):
            sent[name].add(topic)
    found: dict[str, tuple[Sequence[str], str]] = {}
    for topic, (own, *others) in names.items():
        by_name = {own: sent[own], **{name: filling[name] for name in others}}
        sharing = {topic}.union(*by_name.values())
        clash = next((name for name, those in by_name.items() if those - {topic}), own)
        if len(sharing) > 1:
            found[topic] = [one for one in names if one in sharing], clash
    return found


def _wrong_name(name: str) -> str | None:
    if len(name) > LONGEST_NAME:
        return f"{name[:40]}... has {len(name)} characters, and Kafka allows {LONGEST_NAME}"
    if not name or name in (".", "..") or not IN_NAMES.issuperset(name):
        return f"'{name}' is not valid in Kafka"
    return None


def absent(naming: Naming, topics: Sequence[TopicMetadata], target: Mapping[str, TopicMetadata]) -> list[TopicMetadata]:
    """Return those of ``topics`` that have a name and no remote topic."""
    named = [topic for topic in topics if topic.name in naming.remote]
    return [topic for topic in named if not _exists(target.get(naming.remote[topic.name]))]


def creations(
    naming: Naming,
    new: Sequence[TopicMetadata],
    configs: Mapping[str, TopicConfigs],
    properties: ConfigPropertyFilter,
    replication_factor: int,
) -> list[CreateTopic]:
    """Return remote topics for ``new``, as Java creates them: same partition count, the source's own settings. Topics
    without ``configs`` are left out: created without them, a compacted topic would lose records."""
    found = []
    for topic in new:
        if topic.name in configs:
            settings = configs_of_new(configs[topic.name], properties)
            names = naming.remote[topic.name], topic.name
            found.append(CreateTopic(*names, len(topic.partitions), replication_factor, settings))
    return found


def growths(
    naming: Naming, topics: Sequence[TopicMetadata], target: Mapping[str, TopicMetadata]
) -> list[AddPartitions]:
    """Return partitions to add; remote topics never shrink."""
    found = []
    for topic in topics:
        name = naming.remote.get(topic.name)
        remote = target.get(name) if name else None
        if name and remote is not None and _exists(remote) and len(remote.partitions) < len(topic.partitions):
            found.append(AddPartitions(name, topic.name, len(remote.partitions), len(topic.partitions)))
    return found


def _exists(remote: TopicMetadata | None) -> bool:
    return remote is not None and (remote.error_code == _READABLE or bool(remote.partitions))


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """The source topics that the flow selects, their names, what the target has of these, and the changes."""

    topics: tuple[TopicMetadata, ...]
    naming: Naming
    target: Mapping[str, TopicMetadata]
    creations: tuple[CreateTopic, ...]
    growths: tuple[AddPartitions, ...]

    @property
    def there(self) -> dict[str, str]:
        """Remote topics that the target has, by source topic."""
        return {
            topic: name
            for topic, name in self.naming.remote.items()
            if (remote := self.target.get(name)) is not None and remote.partitions
        }

    @property
    def partitions(self) -> list[TopicPartition]:
        """Partitions of the source topics that have a remote name."""
        return [
            TopicPartition(topic.name, index)
            for topic in self.topics
            if topic.name in self.naming.remote
            for index in sorted(topic.partitions)
        ]


async def plan_topics(
    settings: MirrorSourceSettings,
    source: Cluster,
    target: Cluster,
    configs: ConfigSync,
    copied: frozenset[str] = frozenset(),
    named: Callable[[Naming], None] = lambda _: None,
) -> TopicPlan:
    """Read both clusters and plan. ``copied``: topics that are mirrored already and keep their names; ``named`` is
    called with the names before anything else is read."""
    topics = selected(settings.should_mirror, (await source.metadata(None)).topics)
    naming = await _names(settings, [topic.name for topic in topics], target, copied)
    named(naming)
    remote = (await target.metadata(set(naming.remote.values()))).topics if naming.remote else {}
    new = absent(naming, topics, remote)
    shown = await configs.of_source([topic.name for topic in new]) if new else {}
    return TopicPlan(
        tuple(topics),
        naming,
        remote,
        tuple(creations(naming, new, shown, settings.property_filter, settings.replication_factor)),
        tuple(growths(naming, topics, remote)),
    )


async def _names(
    settings: MirrorSourceSettings, topics: Sequence[str], target: Cluster, copied: frozenset[str]
) -> Naming:
    """Return names; stored positions say what was copied before this start, if that matters."""
    naming = name_topics(settings.remote_topics, topics, copied)
    if not naming.undecided:
        return naming
    positions = (await read_positions(target, settings.map_topic, settings.name)).values()
    before = {one.source_topic for one in positions if one.target_topic == naming.undecided.get(one.source_topic)}
    return name_topics(settings.remote_topics, topics, copied | before)
