"""Topics that the target lacks: made with as many partitions as the source's has, and its settings."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import Final

from connect.core.errors import HeliographError, PermanentError, SecurityError
from connect.kafka.admin import Admin
from connect.kafka.cluster import TopicMetadata
from connect.kafka.topic_configs import describe
from connectors.changes import CreateTopic
from connectors.dataplane import codes
from connectors.filters import DefaultConfigPropertyFilter
from connectors.source.applying import Refusals, make_topics
from connectors.source.config_sync import configs_of_new
from connectors.source.takeover import Clusters

log = logging.getLogger(__name__)

_APPEAR_S: Final = 30.0
_LOOK_S: Final = 0.1
#: The brokers' own default.
_REPLICATION_FACTOR: Final = -1
_PROPERTIES: Final = DefaultConfigPropertyFilter((), source_defaults=False)


class Refused(Refusals):
    """What keeps topics from being made at the target, each said once by one member."""

    def __init__(self, flow: str) -> None:
        super().__init__(flow)
        self._not_shown: Collection[str] = ()

    def take(self, topic: str, error: Exception) -> None:
        """Raises it where a right is missing."""
        if isinstance(error, SecurityError):
            raise error
        rest = f"nothing of {topic} is copied before the target has it, the other topics are; it is tried again"
        choice = "make the topic there yourself, or leave it out with --include or --exclude"
        super().take(topic, PermanentError(f"{error}; {rest}. To help: {choice}"))

    def not_shown(self, late: Collection[str]) -> None:
        """These have been made, by us or by others, and the target does not tell of them."""
        if new := sorted(set(late).difference(self._not_shown)):
            names = ", ".join(new)
            log.error(
                "%s: the target does not show %s yet, the other topics are copied; it is asked again", self.flow, names
            )
        self._not_shown = late


async def make_missing(
    clusters: Clusters, admin: Admin, wanted: Mapping[str, TopicMetadata], refused: Refused, stopping: asyncio.Event
) -> dict[str, TopicMetadata]:
    """Those of the target's topics of these names that are there, once all are that can be within half a minute.
    ``wanted``: the source's; ``refused`` is told of the others; with ``stopping`` none is waited for.

    Raises:
        RetriableError: a cluster does not answer.
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
    late = made = {change.topic for change in await make_topics(admin, changes, refused)}
    until_s = asyncio.get_running_loop().time() + _APPEAR_S
    while late and not stopping.is_set():
        await asyncio.sleep(_LOOK_S)
        found = await _there(clusters, wanted)
        late = made - found.keys()
        if asyncio.get_running_loop().time() > until_s:
            break
    if not stopping.is_set():
        refused.not_shown(late)
    return found


async def _there(clusters: Clusters, wanted: Mapping[str, TopicMetadata]) -> dict[str, TopicMetadata]:
    known = (await clusters.target.metadata(set(wanted))).topics
    # Else one that is there would count as one that nobody has made.
    if hidden := {name for name, topic in known.items() if topic.error_code == codes.TOPIC_AUTHORIZATION_FAILED}:
        await clusters.target.topics(hidden)
    return {name: topic for name, topic in known.items() if not topic.error_code and topic.partitions}
