"""Topics that the target lacks: made with as many partitions as the source's has, and its settings."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from connect.core.errors import HeliographError, RetriableError
from connect.kafka.admin import Admin, NewTopic, TopicExists
from connect.kafka.cluster import TopicMetadata
from connect.kafka.topic_configs import describe
from connectors.filters import DefaultConfigPropertyFilter
from connectors.source.remote_configs import configs_of_new
from connectors.source.takeover import Clusters

log = logging.getLogger(__name__)

_APPEAR_S: Final = 30.0
_LOOK_S: Final = 0.1
#: The brokers' own default.
_REPLICATION_FACTOR: Final = -1
_PROPERTIES: Final = DefaultConfigPropertyFilter((), source_defaults=False)


async def make_missing(
    clusters: Clusters, admin: Admin, wanted: Mapping[str, TopicMetadata]
) -> dict[str, TopicMetadata]:
    """The target's topics of these names, once all are there. ``wanted``: the source's.

    Raises:
        RetriableError: a cluster does not answer, or one does not appear within half a minute.
        HeliographError: one cannot be made; says why.
    """
    found = await _there(clusters, wanted)
    missing = [name for name in wanted if name not in found]
    if not missing:
        return found
    configs = await describe(clusters.source, missing)
    made = await admin.create_topics(
        NewTopic(name, len(wanted[name].partitions), _REPLICATION_FACTOR, configs_of_new(known, _PROPERTIES))
        for name, known in configs.items()
        if not isinstance(known, HeliographError)
    )
    for name, error in made.items():
        if error is None:
            log.info("target: made topic %s with %d partitions", name, len(wanted[name].partitions))
        elif not isinstance(error, TopicExists):
            raise error
    for known in configs.values():
        # Without its settings a compacted topic would lose records.
        if isinstance(known, HeliographError):
            raise known
    until_s = asyncio.get_running_loop().time() + _APPEAR_S
    while len(found) < len(wanted):
        if asyncio.get_running_loop().time() > until_s:
            raise RetriableError(f"the target does not show {', '.join(sorted(wanted.keys() - found.keys()))} yet")
        await asyncio.sleep(_LOOK_S)
        found = await _there(clusters, wanted)
    return found


async def _there(clusters: Clusters, wanted: Mapping[str, TopicMetadata]) -> dict[str, TopicMetadata]:
    known = (await clusters.target.metadata(set(wanted))).topics
    return {name: topic for name, topic in known.items() if not topic.error_code and topic.partitions}
