"""Topics that the target lacks: made with as many partitions as the source's has, and its settings."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from connect.core.errors import HeliographError, PermanentError, RetriableError, SecurityError
from connect.kafka.admin import Admin
from connect.kafka.cluster import TopicMetadata
from connect.kafka.topic_configs import describe
from connectors.changes import CreateTopic
from connectors.filters import DefaultConfigPropertyFilter
from connectors.source.applying import Refusals, make_topics
from connectors.source.remote_configs import configs_of_new
from connectors.source.takeover import Clusters

_APPEAR_S: Final = 30.0
_LOOK_S: Final = 0.1
#: The brokers' own default.
_REPLICATION_FACTOR: Final = -1
_PROPERTIES: Final = DefaultConfigPropertyFilter((), source_defaults=False)


class Refused(Refusals):
    """What keeps topics from being made at the target, each said once by one member."""

    def take(self, topic: str, error: Exception) -> None:
        """Raises it where a right is missing."""
        if isinstance(error, SecurityError):
            raise error
        rest = f"nothing of {topic} is copied before the target has it, the other topics are; it is tried again"
        choice = "make the topic there yourself, or leave it out with --include or --exclude"
        super().take(topic, PermanentError(f"{error}; {rest}. To help: {choice}"))


async def make_missing(
    clusters: Clusters, admin: Admin, wanted: Mapping[str, TopicMetadata], refused: Refused
) -> dict[str, TopicMetadata]:
    """Those of the target's topics of these names that are there, once all are that can be. ``wanted``: the source's;
    ``refused`` is told of the others.

    Raises:
        RetriableError: a cluster does not answer, or one does not appear within half a minute.
        SecurityError: a right is missing; says which.
    """
    found = await _there(clusters, wanted)
    missing = [name for name in wanted if name not in found]
    if not missing:
        return found
    changes = []
    for name, known in (await describe(clusters.source, missing)).items():
        # Without its settings a compacted topic would lose records.
        if isinstance(known, HeliographError):
            refused.take(name, known)
        else:
            configs = configs_of_new(known, _PROPERTIES)
            changes.append(CreateTopic(name, name, len(wanted[name].partitions), _REPLICATION_FACTOR, configs))
    made = {change.topic for change in await make_topics(admin, changes, refused)}
    until_s = asyncio.get_running_loop().time() + _APPEAR_S
    while late := made - found.keys():
        if asyncio.get_running_loop().time() > until_s:
            raise RetriableError(f"the target does not show {', '.join(sorted(late))} yet")
        await asyncio.sleep(_LOOK_S)
        found = await _there(clusters, wanted)
    return found


async def _there(clusters: Clusters, wanted: Mapping[str, TopicMetadata]) -> dict[str, TopicMetadata]:
    known = (await clusters.target.metadata(set(wanted))).topics
    return {name: topic for name, topic in known.items() if not topic.error_code and topic.partitions}
