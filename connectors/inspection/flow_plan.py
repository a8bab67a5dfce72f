"""The plan of what a run of a flow would change on its clusters, by the connector's own planners, and the drift that it
would leave: any difference that an operator made, or a setting excludes from being synced."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from uuid import UUID

from connect.api.filters import ConfigPropertyFilter
from connect.core.errors import HeliographError, RetriableError
from connect.core.model import NewTopic
from connect.kafka.authorization import AclBinding, SecurityDisabled
from connect.kafka.cluster import Cluster, TopicMetadata
from connect.kafka.concurrency import wall_ms
from connect.kafka.log.topic_admin import ConfigSource, TopicConfigs, describe
from connectors.config.connector_configs import MirrorSourceSettings
from connectors.formats.position import Position
from connectors.internal_topics import read_positions
from connectors.source.worker_context import FlowParts
from connectors.topic_sync.acl_plan import AccessPlan
from connectors.topic_sync.acl_sync import AccessSync
from connectors.topic_sync.cluster_changes import Change, CreateTopic, DeleteTopic
from connectors.topic_sync.remote_topics import ConfigSync, TopicPlan, alterations, plan_topics, wanted_configs
from connectors.topic_sync.topic_deletion import TopicDeletion


@dataclass(frozen=True, slots=True)
class Planned:
    """One change, and the alias of its cluster."""

    cluster: str
    change: Change


@dataclass(frozen=True, slots=True)
class FlowPlan:
    """What a run would change. ``changes``: in the order of a run, except those made at intervals. ``later``: deletions
    that are not due yet. ``unknown``: what could not be checked, a sentence each; the plan does not cover it.
    ``notes``: what a run would leave out, and why."""

    flow: str
    changes: tuple[Planned, ...] = ()
    later: tuple[Planned, ...] = ()
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Findings:
    changes: list[Planned] = field(default_factory=list)
    later: list[Planned] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class InternalTopics:
    """Internal topics of a flow's worker and connectors by cluster; ``of_tasks`` are on the target too, but only if
    there is something to copy."""

    on_target: Sequence[NewTopic]
    on_source: Sequence[NewTopic] = ()
    of_tasks: Sequence[NewTopic] = ()


async def plan_internal(cluster: Cluster, alias: str, wanted: Sequence[NewTopic]) -> list[Planned]:
    """Plan the missing topics of ``wanted``. Raises HeliographError if the cluster does not answer, RetriableError if
    it does not tell whether a topic exists."""
    found = (await cluster.metadata({topic.name for topic in wanted})).topics if wanted else {}
    return [
        Planned(alias, CreateTopic(topic.name, "", topic.partitions, topic.replication_factor, dict(topic.configs)))
        for topic in wanted
        if _is_missing(cluster, topic.name, found.get(topic.name))
    ]


def _is_missing(cluster: Cluster, topic: str, found: TopicMetadata | None) -> bool:
    if found is not None and not found.exists:
        return True
    if found is None or not found.partitions:
        raise RetriableError(
            f"cluster {cluster.name} does not tell whether topic {topic} exists. Grant DESCRIBE on topic {topic}"
        )
    return False


@dataclass(frozen=True, slots=True)
class FlowSnapshot:
    """A plan with its parts; ``access`` is None if ACLs are not synced or cannot be read."""

    plan: FlowPlan
    topics: TopicPlan
    access: AccessPlan | None


async def look_at_flow(
    settings: MirrorSourceSettings, parts: FlowParts, access: AccessSync | None, internal: InternalTopics
) -> FlowSnapshot:
    """Plan an enabled flow. Raises HeliographError if a cluster does not answer, such as ClusterUnreachable."""
    source, target = parts.clusters.source, parts.clusters.target
    configs = ConfigSync(settings.flow, source, target, settings.property_filter)
    topics = await plan_topics(settings, source, target, configs)
    found = _Findings(notes=list(topics.naming.problems.values()))
    if not topics.topics:
        found.notes.append(f"topics selects no topic of cluster {settings.source_alias}")
    mine = (*internal.on_target, *(internal.of_tasks if topics.naming.remote else ()))
    found.changes += await plan_internal(target, settings.target_alias, mine)
    found.changes += await plan_internal(source, settings.source_alias, internal.on_source)
    found.changes += [Planned(settings.target_alias, change) for change in topics.creations]
    found.changes += [Planned(settings.target_alias, change) for change in topics.growths]
    await _add_configs(found, settings, configs, topics)
    await _add_deletions(found, settings, parts)
    rules = await _add_access(found, settings, access)
    plan = FlowPlan(
        settings.flow, tuple(found.changes), tuple(found.later), tuple(dict.fromkeys(found.unknown)), tuple(found.notes)
    )
    return FlowSnapshot(plan, topics, rules)


async def _add_configs(
    found: _Findings, settings: MirrorSourceSettings, configs: ConfigSync, topics: TopicPlan
) -> None:
    if settings.sync_topic_configs_interval_s is not None:
        altered = await configs.plan(topics.there)
        found.changes += [Planned(settings.target_alias, change) for change in altered]
    hidden = (*configs.hidden_sources.values(), *configs.hidden_targets.values())
    found.unknown += [str(error) for error in hidden]


async def _add_deletions(found: _Findings, settings: MirrorSourceSettings, parts: FlowParts) -> None:
    if settings.topic_deletion_delay_ms is None:
        return
    clusters = parts.clusters
    deletion = TopicDeletion(settings, settings.topic_deletion_delay_ms, clusters.source, clusters.target, parts.admin)
    due = (plan := await deletion.plan()).due(wall_ms())
    found.changes += [Planned(settings.target_alias, change) for change in due]
    found.later += [Planned(settings.target_alias, change) for change in plan.deletions if change not in due]


async def _add_access(found: _Findings, settings: MirrorSourceSettings, access: AccessSync | None) -> AccessPlan | None:
    if access is None:
        return None
    try:
        plan = await access.plan()
    except SecurityDisabled as error:
        found.notes.append(f"{error}; ACLs are not synced")
    except HeliographError as error:
        found.unknown.append(str(error))
    else:
        if settings.access.dry_run and plan.changes:
            found.notes.append(f"{len(plan.changes)} ACLs would change, but sync.acls.dry.run is set")
        else:
            found.changes += [Planned(settings.target_alias, change) for change in plan.changes]
        return plan
    return None


class DriftKind(StrEnum):
    #: The remote topic has more partitions than its source topic.
    EXTRA_PARTITIONS = "extra-partitions"
    REPLICATION_FACTOR = "replication-factor"
    #: A setting that the flow does not sync.
    CONFIG = "config"
    #: A remote topic whose source topic does not exist.
    WITHOUT_SOURCE = "without-source"
    #: A remote topic whose source topic exists, but is not mirrored (any more).
    NOT_MIRRORED = "not-mirrored"
    #: The previous remote topic of a source topic whose remote name has changed.
    REPLACED = "replaced"
    #: A source or remote topic that was recreated since it was copied.
    RECREATED = "recreated"
    #: An ACL of a remote topic that the flow neither wants nor has created.
    ACL = "acl"
    #: A group whose offset differs and is not synced; ``key`` has the partition and the reason.
    GROUP = "group"


@dataclass(frozen=True, slots=True)
class Drift:
    """A difference that a run leaves: ``cluster`` has ``found``, the source or the settings have ``expected``; None
    means nothing. ``resource`` is a topic or group, ``key`` a setting."""

    kind: DriftKind
    cluster: str
    resource: str
    expected: str | None
    found: str | None
    key: str = ""


@dataclass(frozen=True, slots=True)
class FlowDrift:
    """What a run would set, and what it would leave."""

    plan: FlowPlan
    left: tuple[Drift, ...] = ()
    unknown: tuple[str, ...] = ()


async def drift_of_flow(
    settings: MirrorSourceSettings, parts: FlowParts, access: AccessSync | None, internal: InternalTopics
) -> FlowDrift:
    """Find the drift of an enabled flow. Raises the errors of :func:`look_at_flow`."""
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


def partitions_left(cluster: str, topics: TopicPlan) -> Iterator[Drift]:
    """Find remote topics with extra partitions, because topics are never shrunk."""
    for topic, remote in _pairs(topics):
        if len(remote.partitions) > len(topic.partitions):
            counts = str(len(topic.partitions)), str(len(remote.partitions))
            yield Drift(DriftKind.EXTRA_PARTITIONS, cluster, remote.name, *counts)


def replicas_left(cluster: str, topics: TopicPlan, wanted: int) -> Iterator[Drift]:
    """Find remote topics with another number of replicas than ``replication.factor``; -1 accepts any."""
    for _, remote in _pairs(topics):
        counts = {len(partition.replicas) for partition in remote.partitions.values()}
        if wanted > 0 and counts - {wanted}:
            found = ", ".join(map(str, sorted(counts)))
            yield Drift(DriftKind.REPLICATION_FACTOR, cluster, remote.name, str(wanted), found)


def configs_left(
    cluster: str,
    remote: str,
    source: TopicConfigs,
    target: TopicConfigs,
    properties: ConfigPropertyFilter,
    *,
    synced: bool,
) -> Iterator[Drift]:
    """Find differing settings of a pair of topics: those that the sync excludes, or all if it is disabled."""
    if not synced:
        for change in alterations(remote, source, target, properties):
            yield Drift(DriftKind.CONFIG, cluster, remote, change.after, change.before, change.key)
    wanted = wanted_configs(source, properties)
    for key, config in sorted(target.items()):
        if config.source is not ConfigSource.TOPIC or key in wanted:
            continue
        has = source.get(key)
        if has is None or has.value != config.value:
            yield Drift(DriftKind.CONFIG, cluster, remote, has.value if has else None, config.value, key)


def topics_left(
    settings: MirrorSourceSettings,
    source: Collection[str],
    target: Collection[str],
    current: Mapping[str, str],
    positions: Iterable[Position],
    going: Collection[str],
) -> Iterator[Drift]:
    """Find remote topics, by name or stored position, that are not ``current`` (by source topic) nor ``going`` to be
    deleted."""
    # If the policy takes every topic for one of the source, only positions show what the flow has copied.
    by_name = _by_name(settings, target) if settings.policy.topic_source("x") != settings.source_alias else {}
    copied = {position.target_topic: position.source_topic for position in positions}
    others = (name for topic in current for name in settings.remote_topics(topic)[1:])
    fills = {*current.values(), *others}
    for remote, topic in sorted({**by_name, **copied}.items()):
        if remote not in target or remote in fills or remote in going:
            continue
        if topic in current:
            yield Drift(DriftKind.REPLACED, settings.target_alias, remote, current[topic], topic)
        else:
            kind = DriftKind.NOT_MIRRORED if topic in source else DriftKind.WITHOUT_SOURCE
            yield Drift(kind, settings.target_alias, remote, None, topic)


def recreated_left(
    settings: MirrorSourceSettings,
    source: Mapping[str, TopicMetadata],
    target: Mapping[str, TopicMetadata],
    positions: Iterable[Position],
) -> Iterator[Drift]:
    """Find topics whose id differs from that in the flow's positions."""
    seen = set()
    for position in positions:
        for alias, topics, name, stored in (
            (settings.source_alias, source, position.source_topic, position.source_topic_id),
            (settings.target_alias, target, position.target_topic, position.target_topic_id),
        ):
            now = topics[name].topic_id if name in topics else None
            if now and stored and now != stored:
                seen.add((alias, name, stored, now))
    return (Drift(DriftKind.RECREATED, alias, name, _id(old), _id(new)) for alias, name, old, new in sorted(seen))


def acls_left(cluster: str, plan: AccessPlan, remotes: Collection[str]) -> Iterator[Drift]:
    """Find ACLs of remote topics that the flow has not created."""
    for rule in sorted(plan.others):
        if rule.resource_type == "TOPIC" and _covers_any(rule, remotes):
            name, said = acl_in_words(rule)
            yield Drift(DriftKind.ACL, cluster, name, None, said)


def acl_in_words(rule: AclBinding) -> tuple[str, str]:
    """Return the name that an ACL is for, and what it says."""
    prefix = " (prefix)" if rule.pattern_type == "PREFIXED" else ""
    return f"{rule.resource_name}{prefix}", f"{rule.permission} {rule.principal} {rule.operation} from {rule.host}"


def _covers_any(rule: AclBinding, topics: Collection[str]) -> bool:
    if rule.pattern_type == "PREFIXED":
        return any(topic.startswith(rule.resource_name) for topic in topics)
    return rule.resource_name in topics


async def _configs_left(
    settings: MirrorSourceSettings, parts: FlowParts, topics: TopicPlan, unknown: list[str]
) -> list[Drift]:
    there = topics.there
    sources = await describe(parts.clusters.source, there.keys())
    targets = await describe(parts.clusters.target, there.values())
    found: list[Drift] = []
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
    """Return source topics by remote topics, as the replication policy reads their names."""
    policy, found = settings.policy, {}
    for remote in target:
        topic = policy.upstream_topic(remote) if policy.topic_source(remote) == settings.source_alias else None
        if topic is not None and not policy.is_internal_topic(remote) and settings.names.find(topic) == remote:
            found[remote] = topic
    return found


def _id(topic_id: UUID) -> str:
    return f"topic id {topic_id}"
