"""What a flow would change of its remote topics, asked of both clusters and changing nothing.

The connector carries it out, and whoever only shows changes asks the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from connect.kafka.cluster import Cluster, TopicMetadata
from connectors.changes import AddPartitions, CreateTopic
from connectors.dataplane.plan import TopicPartition
from connectors.gaps import OnTopicRecreated
from connectors.positions import Position
from connectors.settings import MirrorSourceSettings
from connectors.source.config_sync import ConfigSync
from connectors.source.remote_topics import Naming, absent, creations, growths, name_topics
from connectors.source.renamed import is_of_another, name_of_new, names_of_new, renamed_topics
from connectors.source.store import Start
from connectors.source.stored_starts import read_stored, starts_of
from connectors.source.topology import selected
from connectors.stored_offsets import read_positions


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """``topics`` of the source that the flow selects, their names, what the target has of these, and the changes.
    ``renamed``: remote topics of those that were made anew and have one of their own; ``naming`` has these names."""

    topics: tuple[TopicMetadata, ...]
    naming: Naming
    target: Mapping[str, TopicMetadata]
    creations: tuple[CreateTopic, ...]
    growths: tuple[AddPartitions, ...]
    renamed: Mapping[str, str]

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
        """Of the source topics that have a remote name."""
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
    """Ask and plan. ``copied``: topics that are mirrored already and keep their names; ``named`` is told the names
    before anything else is asked. Raises as the clusters do."""
    topics = selected(settings.should_mirror, (await source.metadata(None)).topics)
    naming = await _names(settings, [topic.name for topic in topics], target, copied)
    renamed = await find_renamed(settings, topics, target)
    naming = replace(naming, remote={topic: renamed.get(topic, name) for topic, name in naming.remote.items()})
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
        renamed,
    )


async def _names(
    settings: MirrorSourceSettings, topics: Sequence[str], target: Cluster, copied: frozenset[str]
) -> Naming:
    """Where it has to be known what was copied before this start, stored positions tell."""
    naming = name_topics(settings.remote_topics, topics, copied)
    if not naming.undecided:
        return naming
    positions = (await read_positions(target, settings.map_topic, settings.name)).values()
    before = {one.source_topic for one in positions if _is_of(one, naming.undecided.get(one.source_topic))}
    return name_topics(settings.remote_topics, topics, copied | before)


def _is_of(position: Position, remote: str | None) -> bool:
    """Whether it speaks of a remote topic, or of the one of its own that its source topic has."""
    source_id = position.source_topic_id
    own = name_of_new(remote, source_id) if remote and source_id else remote
    return position.target_topic in (remote, own)


async def find_renamed(
    settings: MirrorSourceSettings, topics: Sequence[TopicMetadata], target: Cluster
) -> dict[str, str]:
    """Remote topics of those of ``topics`` that were made anew and have one of their own, by source topic."""
    if settings.gap_policy.on_topic_recreated is not OnTopicRecreated.NEW_REMOTE_TOPIC:
        return {}
    return await renamed_topics(settings.remote_topic, topics, target)


async def look_for_renamed(settings: MirrorSourceSettings, source: Cluster, target: Cluster) -> dict[str, str]:
    """The same of all topics that the flow selects."""
    if settings.gap_policy.on_topic_recreated is not OnTopicRecreated.NEW_REMOTE_TOPIC:
        return {}
    return await find_renamed(settings, selected(settings.should_mirror, (await source.metadata(None)).topics), target)


async def find_coming(settings: MirrorSourceSettings, store: Cluster, plan: TopicPlan) -> dict[str, str]:
    """Remote topics that the tasks of a run will make for source topics that were made anew since they were copied, by
    source topic. Errors as those of ``store``."""
    if settings.gap_policy.on_topic_recreated is not OnTopicRecreated.NEW_REMOTE_TOPIC:
        return {}
    stored = await read_stored(settings, store)
    positions = await read_positions(store, settings.map_topic, settings.name)
    return coming_of(settings, plan, starts_of(settings, stored, positions, plan.partitions))


def coming_of(
    settings: MirrorSourceSettings, plan: TopicPlan, starts: Mapping[TopicPartition, Start]
) -> dict[str, str]:
    """The same where it is known what is stored of the plan's partitions."""
    if settings.gap_policy.on_topic_recreated is not OnTopicRecreated.NEW_REMOTE_TOPIC:
        return {}
    ids = {topic.name: topic.topic_id for topic in plan.topics}
    anew = {one.topic for one, start in starts.items() if is_of_another(start, ids[one.topic])}
    topics = [topic for topic in plan.topics if topic.name in anew and topic.name not in plan.renamed]
    return names_of_new(settings.remote_topic, topics)
