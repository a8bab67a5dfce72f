"""What a flow would change of its remote topics, asked of both clusters and changing nothing.

The connector carries it out, and whoever only shows changes asks the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from connect.kafka.cluster import Cluster, TopicMetadata
from connectors.changes import AddPartitions, CreateTopic
from connectors.dataplane.plan import TopicPartition
from connectors.settings import MirrorSourceSettings
from connectors.source.config_sync import ConfigSync
from connectors.source.remote_topics import Naming, absent, creations, growths, name_topics
from connectors.source.topology import selected
from connectors.stored_offsets import read_positions


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """``topics`` of the source that the flow selects, their names, what the target has of these, and the changes."""

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
    """Where it has to be known what was copied before this start, stored positions tell."""
    naming = name_topics(settings.remote_topics, topics, copied)
    if not naming.undecided:
        return naming
    positions = (await read_positions(target, settings.map_topic, settings.name)).values()
    before = {one.source_topic for one in positions if one.target_topic == naming.undecided.get(one.source_topic)}
    return name_topics(settings.remote_topics, topics, copied | before)
