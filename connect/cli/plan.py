"""``heliograph plan``: what a run of a properties file would change on its clusters. Nothing is changed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from connect.cli.connectors_view import show_json
from connect.cli.console import EXIT_OK
from connect.cli.flow_worker import worker_config
from connect.cli.plan_view import plan_as_json, show_plans
from connect.core.errors import ConfigError, HeliographError
from connect.core.model import NewTopic
from connectors.changes import CreateTopic
from connectors.checkpoint.connector import objections, topic_of_checkpoints
from connectors.checkpoint.settings import checkpoint_settings
from connectors.flows import Connector, Flow, chosen_flows
from connectors.heartbeat import topic_of_heartbeats
from connectors.planning.flow_plan import FlowPlan, InternalTopics, Planned, look_at_flow, plan_internal
from connectors.planning.group_plan import GroupPlan, plan_groups
from connectors.settings import MirrorSourceSettings
from connectors.source.host import looked_at_parts
from connectors.source.plugin import access_of
from connectors.source.sync_writer import topic_of_syncs

T = TypeVar("T")

#: As of ``terraform plan -detailed-exitcode``.
EXIT_UNKNOWN: Final = 1
EXIT_CHANGES: Final = 2


def run_plan(file: Path, *, flow: str | None, as_json: bool, everything: bool) -> int:
    """Print it; the exit code. Raises ConfigError for a file that is wrong."""
    plans = asyncio.run(_plan_all(chosen_flows(file, flow, mirroring=False)))
    if as_json:
        show_json(plan_as_json(plans))
    else:
        show_plans(plans, everything=everything)
    return exit_code(unknown=any(plan.unknown for plan in plans), changes=any(plan.changes for plan in plans))


def exit_code(*, unknown: bool, changes: bool) -> int:
    """0: nothing to do; 1: not all could be looked at, whatever was found beside it; 2: something to do."""
    return EXIT_UNKNOWN if unknown else EXIT_CHANGES if changes else EXIT_OK


async def _plan_all(flows: Sequence[Flow]) -> list[FlowPlan]:
    plans: list[FlowPlan] = []
    made: set[tuple[str, str]] = set()
    for flow in flows:
        plan = _without(made, await _plan(flow))
        made |= {(one.cluster, one.change.topic) for one in plan.changes if isinstance(one.change, CreateTopic)}
        plans.append(plan)
    return plans


async def _plan(flow: Flow) -> FlowPlan:
    async def look(*parts: Any) -> FlowPlan:
        return await _with_groups(flow, (await look_at_flow(*parts)).plan)

    return await looked_at(flow, look, lambda plan: plan)


async def looked_at(flow: Flow, look: Callable[..., Awaitable[T]], of_plan: Callable[[FlowPlan], T]) -> T:
    """Return what ``look`` finds with the parts of an enabled flow; of others, and of one whose clusters do not answer,
    what ``of_plan`` makes of a plan."""
    settings, clients = flow.settings(), flow.clients()
    internal = internal_topics(flow, settings)
    try:
        async with looked_at_parts(clients, flow.source, flow.target) as parts:
            if flow.enabled:
                return await look(settings, parts, access_of(settings, parts), internal)
            mine = await plan_internal(parts.clusters.target, flow.target, internal.on_target)
            notes = ("it mirrors nothing, and is there for heartbeats alone",)
            return of_plan(FlowPlan(str(flow), tuple(mine), notes=notes))
    except ConfigError:
        raise
    except HeliographError as error:
        return of_plan(FlowPlan(str(flow), unknown=(str(error),)))


async def groups_of(flow: Flow) -> GroupPlan:
    """What ``sync.group.offsets`` would do; nothing where the flow has no checkpoints, or clusters cannot be asked."""
    props = flow.config.resolved(flow.connector_config(Connector.CHECKPOINT))
    if objections(props):
        return GroupPlan()
    try:
        return await plan_groups(checkpoint_settings(props))
    except HeliographError as error:
        return GroupPlan(unknown=(str(error),))


async def _with_groups(flow: Flow, plan: FlowPlan) -> FlowPlan:
    groups = await groups_of(flow)
    alone = (f"group {group} is left alone: {why}" for group, why in groups.alone.items())
    return replace(
        plan,
        changes=(*plan.changes, *(Planned(flow.target, one) for one in groups.moves)),
        notes=(*plan.notes, *alone),
        unknown=(*plan.unknown, *groups.unknown),
    )


def _without(made: set[tuple[str, str]], plan: FlowPlan) -> FlowPlan:
    """What an earlier flow of the same file makes already is not made again."""
    return replace(
        plan,
        changes=tuple(
            one
            for one in plan.changes
            if not (isinstance(one.change, CreateTopic) and (one.cluster, one.change.topic) in made)
        ),
    )


def internal_topics(flow: Flow, settings: MirrorSourceSettings) -> InternalTopics:
    """What a flow's worker and connectors make for themselves."""
    worker = worker_config(flow)
    own = [
        _compacted(worker.offset_topic),
        _compacted(worker.config_topic),
        _compacted(worker.status_topic),
        topic_of_heartbeats(flow.config.resolved(flow.connector_config(Connector.HEARTBEAT))),
    ]
    if not flow.enabled:
        return InternalTopics(own)
    checkpoints = flow.config.resolved(flow.connector_config(Connector.CHECKPOINT))
    if not objections(checkpoints):
        own.append(topic_of_checkpoints(checkpoint_settings(checkpoints)))
    offset_map = _compacted(replace(worker.offset_topic, name=settings.map_topic, configs={}))
    syncs = settings.offset_syncs
    beside = [] if syncs is None else [topic_of_syncs(syncs)]
    on_source = syncs is not None and syncs.on_source
    deletes = settings.topic_deletion_delay_ms is not None
    return InternalTopics(
        on_target=[*own, *([] if on_source else beside), *([offset_map] if deletes else [])],
        on_source=beside if on_source else [],
        of_tasks=[] if deletes else [offset_map],
    )


def _compacted(topic: NewTopic) -> NewTopic:
    return replace(topic, configs={**topic.configs, "cleanup.policy": "compact"})
