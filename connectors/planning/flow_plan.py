"""What a run of one flow would change on its clusters, as a whole: asked with the connector's own planners, never done.

Of the offsets of groups see :mod:`connectors.planning.group_plan`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from connect.core.errors import HeliographError, RetriableError
from connect.core.model import NewTopic
from connect.kafka.acls import SecurityDisabled
from connect.kafka.cluster import Cluster, TopicMetadata
from connectors.access.plan import AccessPlan
from connectors.access.sync import AccessSync
from connectors.changes import Change, CreateTopic
from connectors.settings import MirrorSourceSettings
from connectors.source.config_sync import ConfigSync
from connectors.source.deletion import TopicDeletion
from connectors.source.host import FlowParts
from connectors.source.topic_plan import TopicPlan, plan_topics


@dataclass(frozen=True, slots=True)
class Planned:
    """One change, and the alias of the cluster it is made on."""

    cluster: str
    change: Change


@dataclass(frozen=True, slots=True)
class FlowPlan:
    """What a run would change.

    Args:
        changes: In the order of a run, but for what it does at intervals of its own.
        later: Deletions that are not due yet; no change of today.
        unknown: What could not be looked at, a sentence each: there the plan says nothing.
        notes: What a run would leave out, and why.
    """

    flow: str
    changes: tuple[Planned, ...] = ()
    later: tuple[Planned, ...] = ()
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Found:
    changes: list[Planned] = field(default_factory=list)
    later: list[Planned] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class InternalTopics:
    """Topics that a flow's worker and connectors make for themselves, on each of its clusters; ``of_tasks`` on the
    target too, but only where there is something to copy."""

    on_target: Sequence[NewTopic]
    on_source: Sequence[NewTopic] = ()
    of_tasks: Sequence[NewTopic] = ()


async def plan_internal(cluster: Cluster, alias: str, wanted: Sequence[NewTopic]) -> list[Planned]:
    """Those of ``wanted`` that are missing. Raises as the cluster does, RetriableError where it does not say."""
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
            f"cluster {cluster.name} does not say whether topic {topic} exists; grant DESCRIBE on topic {topic}"
        )
    return False


@dataclass(frozen=True, slots=True)
class Look:
    """A plan with what it was made of; ``access`` is None where rules are not synced, or cannot be seen."""

    plan: FlowPlan
    topics: TopicPlan
    access: AccessPlan | None


async def look_at_flow(
    settings: MirrorSourceSettings, parts: FlowParts, access: AccessSync | None, internal: InternalTopics
) -> Look:
    """Plan a flow that mirrors. Raises ClusterUnreachable and its kin where a cluster cannot be asked at all."""
    source, target = parts.clusters.source, parts.clusters.target
    configs = ConfigSync(settings.flow, source, target, settings.property_filter)
    topics = await plan_topics(settings, source, target, configs)
    found = _Found(notes=list(topics.naming.problems.values()))
    if not topics.topics:
        found.notes.append(f"no topic of cluster {settings.source_alias} is selected by topics")
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
    return Look(plan, topics, rules)


async def _add_configs(found: _Found, settings: MirrorSourceSettings, configs: ConfigSync, topics: TopicPlan) -> None:
    if settings.sync_topic_configs_interval_s is not None:
        altered = await configs.plan(topics.there)
        found.changes += [Planned(settings.target_alias, change) for change in altered]
    hidden = (*configs.hidden_sources.values(), *configs.hidden_targets.values())
    found.unknown += [str(error) for error in hidden]


async def _add_deletions(found: _Found, settings: MirrorSourceSettings, parts: FlowParts) -> None:
    if settings.topic_deletion_delay_ms is None:
        return
    clusters = parts.clusters
    deletion = TopicDeletion(settings, settings.topic_deletion_delay_ms, clusters.source, clusters.target, parts.admin)
    plan = await deletion.plan()
    due = plan.due(time.time_ns() // 1_000_000)
    found.changes += [Planned(settings.target_alias, change) for change in due]
    found.later += [Planned(settings.target_alias, change) for change in plan.deletions if change not in due]


async def _add_access(found: _Found, settings: MirrorSourceSettings, access: AccessSync | None) -> AccessPlan | None:
    if access is None:
        return None
    try:
        plan = await access.plan()
    except SecurityDisabled as error:
        found.notes.append(f"{error}; access rules are not synced")
    except HeliographError as error:
        found.unknown.append(str(error))
    else:
        if settings.access.dry_run and plan.changes:
            found.notes.append(f"sync.acls.dry.run: {len(plan.changes)} access rules would change, and do not")
        else:
            found.changes += [Planned(settings.target_alias, change) for change in plan.changes]
        return plan
    return None
