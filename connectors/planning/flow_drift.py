"""What differs between what a flow would set and what is there, and what of it a run would not change.

The first is the flow's plan (:mod:`connectors.planning.flow_plan`). Here is added what no run changes: somebody made it
by hand, or a setting of the flow leaves it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from connect.api.filters import ConfigPropertyFilter
from connect.core.acls import AclBinding
from connect.core.errors import HeliographError, PermanentError
from connect.kafka.cluster import TopicMetadata
from connect.kafka.topic_configs import ConfigSource, TopicConfigs, describe
from connectors.access.plan import AccessPlan
from connectors.access.sync import AccessSync
from connectors.changes import DeleteTopic
from connectors.planning.flow_plan import FlowPlan, InternalTopics, look_at_flow
from connectors.positions import Position
from connectors.settings import MirrorSourceSettings
from connectors.source.config_sync import alterations, wanted_configs
from connectors.source.host import FlowParts
from connectors.source.topic_plan import TopicPlan
from connectors.stored_offsets import read_positions


class LeftKind(StrEnum):
    """What differs."""

    #: The remote topic has more partitions.
    EXTRA_PARTITIONS = "extra-partitions"
    REPLICATION_FACTOR = "replication-factor"
    #: A setting that the flow does not keep in step.
    CONFIG = "config"
    #: A remote topic whose source topic is gone.
    WITHOUT_SOURCE = "without-source"
    #: A remote topic whose source topic is there and not mirrored (any more).
    NOT_MIRRORED = "not-mirrored"
    #: A remote topic that the flow filled before its source topic got another remote name.
    REPLACED = "replaced"
    #: A topic that is not the one that was copied, or copied to: it was deleted and made again.
    RECREATED = "recreated"
    #: A rule for a remote topic that the flow neither wants nor has made.
    ACL = "acl"
    #: A group that stands elsewhere and is left alone, or is ahead; ``key`` says in which partition, and why.
    GROUP = "group"


@dataclass(frozen=True, slots=True)
class Left:
    """A difference that a run leaves as it is: ``found`` on ``cluster``, where the flow's source has, or its settings
    ask for, ``expected``; None: there is nothing of the kind. ``resource`` is a topic's name; ``key`` that of a
    setting."""

    kind: LeftKind
    cluster: str
    resource: str
    expected: str | None
    found: str | None
    key: str = ""


@dataclass(frozen=True, slots=True)
class FlowDrift:
    """What a run would set, and what it would leave."""

    plan: FlowPlan
    left: tuple[Left, ...] = ()
    unknown: tuple[str, ...] = ()


async def drift_of_flow(
    settings: MirrorSourceSettings, parts: FlowParts, access: AccessSync | None, internal: InternalTopics
) -> FlowDrift:
    """Look at both clusters of a flow that mirrors; nothing is changed. Raises as
    :func:`connectors.planning.flow_plan.look_at_flow`."""
    look = await look_at_flow(settings, parts, access, internal)
    unknown: list[str] = []
    cluster, topics = settings.target_alias, look.topics
    left = [*partitions_left(cluster, topics), *replicas_left(cluster, topics, settings.replication_factor)]
    left += await _configs_left(settings, parts, topics, unknown)
    positions = list((await read_positions(parts.store, settings.map_topic, settings.name)).values())
    source = (await parts.clusters.source.metadata(None)).topics
    target = (await parts.clusters.target.metadata(None)).topics
    going = {one.change.topic for one in (*look.plan.changes, *look.plan.later) if isinstance(one.change, DeleteTopic)}
    left += topics_left(settings, source, target, topics.naming.remote, positions, going)
    left += recreated_left(settings, source, target, positions)
    if look.access is not None:
        left += acls_left(cluster, look.access, {*topics.naming.remote.values()})
    return FlowDrift(look.plan, tuple(left), tuple(dict.fromkeys(unknown)))


def partitions_left(cluster: str, topics: TopicPlan) -> Iterator[Left]:
    """Remote topics are never shrunk."""
    for topic, remote in _pairs(topics):
        if len(remote.partitions) > len(topic.partitions):
            counts = str(len(topic.partitions)), str(len(remote.partitions))
            yield Left(LeftKind.EXTRA_PARTITIONS, cluster, remote.name, *counts)


def replicas_left(cluster: str, topics: TopicPlan, wanted: int) -> Iterator[Left]:
    """Counts of replicas other than ``replication.factor``; -1 there is whatever the cluster gives."""
    for _, remote in _pairs(topics):
        counts = {len(partition.replicas) for partition in remote.partitions.values()}
        if wanted > 0 and counts - {wanted}:
            found = ", ".join(map(str, sorted(counts)))
            yield Left(LeftKind.REPLICATION_FACTOR, cluster, remote.name, str(wanted), found)


def configs_left(
    cluster: str,
    remote: str,
    source: TopicConfigs,
    target: TopicConfigs,
    properties: ConfigPropertyFilter,
    *,
    synced: bool,
) -> Iterator[Left]:
    """Settings of one pair of topics that differ: those that are left out of the sync, or all where there is none."""
    if not synced:
        for change in alterations(remote, source, target, properties):
            yield Left(LeftKind.CONFIG, cluster, remote, change.after, change.before, change.key)
    wanted = wanted_configs(source, properties)
    for key, config in sorted(target.items()):
        if config.source is not ConfigSource.TOPIC or key in wanted:
            continue
        has = source.get(key)
        if has is None or has.value != config.value:
            yield Left(LeftKind.CONFIG, cluster, remote, has.value if has else None, config.value, key)


def topics_left(
    settings: MirrorSourceSettings,
    source: Collection[str],
    target: Collection[str],
    current: Mapping[str, str],
    positions: Iterable[Position],
    going: Collection[str],
) -> Iterator[Left]:
    """Remote topics that are not ``current`` (by source topic), by their names and by what the flow has copied;
    ``going`` are to be deleted."""
    # Where a policy takes every topic for one of the source, only positions tell.
    by_name = _by_name(settings, target) if settings.policy.topic_source("x") != settings.source_alias else {}
    copied = {position.target_topic: position.source_topic for position in positions}
    others = (name for topic in current for name in settings.remote_topics(topic)[1:])
    fills = {*current.values(), *others}
    for remote, topic in sorted({**by_name, **copied}.items()):
        if remote not in target or remote in fills or remote in going:
            continue
        if topic in current:
            yield Left(LeftKind.REPLACED, settings.target_alias, remote, current[topic], topic)
        else:
            kind = LeftKind.NOT_MIRRORED if topic in source else LeftKind.WITHOUT_SOURCE
            yield Left(kind, settings.target_alias, remote, None, topic)


def recreated_left(
    settings: MirrorSourceSettings,
    source: Mapping[str, TopicMetadata],
    target: Mapping[str, TopicMetadata],
    positions: Iterable[Position],
) -> Iterator[Left]:
    """Topics that are not those that the flow's positions speak of."""
    seen = set()
    for position in positions:
        for alias, topics, name, stored in (
            (settings.source_alias, source, position.source_topic, position.source_topic_id),
            (settings.target_alias, target, position.target_topic, position.target_topic_id),
        ):
            now = topics[name].topic_id if name in topics else None
            if now and stored and now != stored:
                seen.add((alias, name, stored, now))
    return (Left(LeftKind.RECREATED, alias, name, _id(old), _id(new)) for alias, name, old, new in sorted(seen))


def acls_left(cluster: str, plan: AccessPlan, remotes: Collection[str]) -> Iterator[Left]:
    """Rules for remote topics that somebody else has made."""
    for rule in sorted(plan.others):
        if rule.resource_type == "TOPIC" and _covers_any(rule, remotes):
            said = f"{rule.permission} {rule.principal} {rule.operation} from {rule.host}"
            prefix = " (prefix)" if rule.pattern_type == "PREFIXED" else ""
            yield Left(LeftKind.ACL, cluster, rule.resource_name + prefix, None, said)


def _covers_any(rule: AclBinding, topics: Collection[str]) -> bool:
    if rule.pattern_type == "PREFIXED":
        return any(topic.startswith(rule.resource_name) for topic in topics)
    return rule.resource_name in topics


async def _configs_left(
    settings: MirrorSourceSettings, parts: FlowParts, topics: TopicPlan, unknown: list[str]
) -> list[Left]:
    there = topics.there
    sources = await describe(parts.clusters.source, there.keys())
    targets = await describe(parts.clusters.target, there.values())
    found: list[Left] = []
    for topic, remote in sorted(there.items()):
        has, wants = targets.get(remote), sources.get(topic)
        for shown in (has, wants):
            if isinstance(shown, HeliographError):
                unknown.append(str(shown))
        if has is None or wants is None or isinstance(has, HeliographError) or isinstance(wants, HeliographError):
            continue
        synced = settings.sync_topic_configs_interval_s is not None
        found += configs_left(settings.target_alias, remote, wants, has, settings.property_filter, synced=synced)
    return found


def _pairs(topics: TopicPlan) -> Iterator[tuple[TopicMetadata, TopicMetadata]]:
    for topic in topics.topics:
        remote = topics.target.get(topics.naming.remote.get(topic.name, ""))
        if remote is not None and remote.partitions:
            yield topic, remote


def _by_name(settings: MirrorSourceSettings, target: Iterable[str]) -> dict[str, str]:
    """Source topics by remote topics, as the policy reads these."""
    policy, found = settings.policy, {}
    for remote in target:
        topic = policy.upstream_topic(remote) if policy.topic_source(remote) == settings.source_alias else None
        if (
            topic is not None
            and not policy.is_internal_topic(remote)
            and _leads_to(settings.remote_topic, topic, remote)
        ):
            found[remote] = topic
    return found


def _leads_to(remote_topic: Callable[[str], str], topic: str, remote: str) -> bool:
    try:
        return remote_topic(topic) == remote
    except PermanentError:
        return False


def _id(topic_id: UUID) -> str:
    return f"topic id {topic_id}"
