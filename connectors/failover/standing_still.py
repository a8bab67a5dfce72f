"""Partitions of the flow that are noted as not copied. Notes of those that it has no more stay: no task is left to take
them back."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from connect.kafka.cluster import Cluster, TopicMetadata
from connectors.dataplane.lost import known_topics
from connectors.dataplane.plan import TopicPartition
from connectors.failover.site import Site
from connectors.partition_states import read_states
from connectors.record_settings import record_settings

_NAMED: Final = 5
#: Each look waits for so long where a topic is gone.
_GONE_AFTER_S: Final = 2.0


async def not_copied(site: Site, source: Cluster | None) -> dict[str, str]:
    """By source partition, with the reason, of those that the flow selects and the ``source`` has; None cannot be asked
    which it has. Raises as the clusters."""
    states = await read_states(site.target, record_settings(site.flow))
    wanted = sorted(one for one in states if site.flow.should_mirror(one.topic))
    if source is not None:
        wanted = still_there(wanted, await known_topics(source, {one.topic for one in wanted}, _GONE_AFTER_S))
    return {str(one): f"it is {states[one].state}: {states[one].reason}" for one in wanted}


def still_there(partitions: Collection[TopicPartition], topics: Mapping[str, TopicMetadata]) -> list[TopicPartition]:
    """Those of ``topics``; what cannot be looked into counts as there (pure)."""
    return [
        one
        for one in partitions
        if (topic := topics.get(one.topic)) is not None and (topic.error_code or one.partition in topic.partitions)
    ]


def as_notes(stopped: Mapping[str, str]) -> list[str]:
    """Where the source is gone: nobody copies them any more, and what is moved is what was copied (pure)."""
    lines = [f"{name} was not copied to its end: {why}" for name, why in stopped.items()]
    more = len(lines) - _NAMED
    return [*lines[:_NAMED], *([f"nor were {more} more partitions"] if more > 0 else [])]
