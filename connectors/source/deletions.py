"""Which remote topics are to go, as their source topics are gone (``topic.deletion.policy``). Pure.

A topic counts as gone only where its cluster says, when asked by name, that there is none; never because of a missing
right, an error, or a filter.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from connect.api.policy import ReplicationPolicy
from connect.core.errors import PermanentError
from connectors.changes import DeleteTopic
from connectors.remote_names import RemoteNames


class Copy(NamedTuple):
    """A connector has copied ``topic`` of the source into ``remote``, as its stored positions say."""

    connector: str
    topic: str
    remote: str
    remote_id: UUID | None


@dataclass(frozen=True, slots=True)
class GonePlan:
    """Source topics that are newly gone, those that are no longer of interest (back, or without a remote topic), and
    what is to be deleted now or later."""

    newly: frozenset[str]
    settled: frozenset[str]
    deletions: tuple[DeleteTopic, ...]

    def due(self, now_ms: int) -> list[DeleteTopic]:
        return [change for change in self.deletions if change.due_ms <= now_ms]


def candidates(
    names: RemoteNames,
    should_mirror: Callable[[str], bool],
    source: Collection[str],
    target: Collection[str],
    copied: Iterable[tuple[str, str]] = (),
) -> dict[str, str]:
    """Remote topics by source topic, where the source does not list it and this flow would mirror it.

    Nothing where the source lists no topic of the flow at all, so that a cluster that has lost everything is told early
    (:func:`is_copied_cluster` is the proof). ``copied``: source
    topics and the remote ones that they were copied to, which tells what remote names do not. A remote topic that
    records of a topic are sent to that is there is never among them, whoever fills it.
    """
    if not any(should_mirror(topic) for topic in source):
        return {}
    policy, source_alias = names.policy, names.source_alias
    found = {
        topic: name
        for topic, name in copied
        if topic not in source
        and name in target
        and should_mirror(topic)
        and not policy.is_heartbeats_topic(topic)
        and _leads_to(names, topic, name)
    }
    for name in target:
        topic = policy.upstream_topic(name) if policy.topic_source(name) == source_alias else None
        if (
            topic is not None
            and topic not in source
            and should_mirror(topic)
            and not policy.is_heartbeats_topic(topic)
            and not policy.is_internal_topic(name)
            and not policy.is_checkpoints_topic(name)
            and _leads_to(names, topic, name)
        ):
            found[topic] = name
    living = {name for topic in source for name in _sent_to(names, topic)} if found else set()
    return {topic: name for topic, name in found.items() if name not in living}


def is_copied_cluster(
    policy: ReplicationPolicy, copied: Iterable[tuple[str, UUID | None]], listed: Mapping[str, UUID | None]
) -> bool:
    """Whether the cluster that answers still has a topic that was copied, by its id.

    One that was rebuilt, or another one under the same address, has none, whatever its topics are called: the remote
    topics are then all that is left. Where nothing has ids (before Kafka 2.8) a name counts, but for heartbeats, which
    every mirror makes.

    Args:
        copied: Source topics and their ids, as the stored positions say.
        listed: The source's topics now.
    """
    if any(listed.values()):
        return any(topic_id is not None and listed.get(topic) == topic_id for topic, topic_id in copied)
    return any(topic in listed and not policy.is_heartbeats_topic(topic) for topic, _ in copied)


def copied_by(
    connector: str,
    maybe: Mapping[str, str],
    copies: Collection[Copy],
    source: Collection[str],
    ids: Mapping[str, UUID | None],
) -> dict[str, str]:
    """Those of :func:`candidates` that ``connector`` has filled, and nobody fills from another topic of ``source``.

    ``ids`` are those of remote topics now: one that somebody has made since under the name of ours is none of ours.
    Without ids nobody could tell.
    """
    ours = {copy[1:] for copy in copies if copy.connector == connector and copy.remote_id is not None}
    living = {copy[2:] for copy in copies if copy.topic in source}
    return {
        topic: name
        for topic, name in maybe.items()
        if (topic, name, ids[name]) in ours and (name, ids[name]) not in living and (name, None) not in living
    }


def _sent_to(names: RemoteNames, topic: str) -> tuple[str, ...]:
    try:
        return names.all_of(topic)
    except PermanentError:
        return ()


def _leads_to(names: RemoteNames, topic: str, name: str) -> bool:
    try:
        return names.of(topic) == name
    except PermanentError:
        return False


def plan_deletions(gone: Mapping[str, str], since_ms: Mapping[str, int], now_ms: int, delay_ms: int) -> GonePlan:
    """``gone``: remote topics by source topics that are gone now. ``since_ms``: what was known of them before."""
    newly = frozenset(gone.keys() - since_ms.keys())
    deletions = []
    for topic in sorted(gone):
        since = since_ms.get(topic, now_ms)
        deletions.append(DeleteTopic(gone[topic], topic, since, since + delay_ms))
    return GonePlan(newly, frozenset(since_ms.keys() - gone.keys()), tuple(deletions))
