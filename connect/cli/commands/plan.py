"""``heliograph plan``, which shows what a run of a file would change and changes nothing; with ``--drift`` the
differences between what the file's flows would set and what the clusters have."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeVar

from connect.cli.console import FORMAT, exit_code
from connect.cli.daemons.flow_worker import worker_config
from connect.cli.tables import change_table, listed, show_flow, show_json
from connect.core.errors import ConfigError, HeliographError
from connect.core.model import NewTopic
from connect.core.wording import counted, too_few_brokers
from connectors.checkpoint.connector import objections, topic_of_checkpoints
from connectors.checkpoint.group_offset_sync import GroupOffsetSyncPlan, plan_groups
from connectors.config.connector_configs import MirrorSourceSettings, checkpoint_settings
from connectors.config.mm2_properties import Connector, Flow, chosen_flows
from connectors.heartbeat import topic_of_heartbeats
from connectors.inspection import flow_plan
from connectors.inspection.changes_report import ACTIONS, DRIFT_WORDS, change_as_json, drift_cells, in_words
from connectors.inspection.flow_plan import Drift, DriftKind, FlowDrift, FlowPlan, InternalTopics, Planned
from connectors.source.offset_sync_writer import topic_of_syncs
from connectors.source.plugin import access_of
from connectors.source.positions.partition_pairs import Clusters
from connectors.source.worker_context import FlowParts, looked_at_parts
from connectors.topic_sync.cluster_changes import CreateTopic

_COLUMNS: Final = ("cluster", "what", "how")
_HEARTBEATS_ONLY: Final = "mirrors nothing and only writes heartbeats"


def plan_as_json(plans: Sequence[FlowPlan]) -> dict[str, Any]:
    """Return the JSON form that docs/operations.md describes."""
    return {
        "format": FORMAT,
        "changes": sum(len(plan.changes) for plan in plans),
        "complete": not any(plan.unknown for plan in plans),
        "flows": [
            {
                "flow": plan.flow,
                "changes": [change_as_json(one) for one in plan.changes],
                "later": [change_as_json(one) for one in plan.later],
                "notes": list(plan.notes),
                "unknown": list(plan.unknown),
            }
            for plan in plans
        ],
    }


def show_plans(plans: Sequence[FlowPlan], *, everything: bool) -> None:
    for plan in plans:
        rows = change_table(("change", *_COLUMNS), plan_rows(plan, everything=everything))
        kinds = Counter(type(one.change) for one in plan.changes)
        counts = [(kinds[kind], f"{counted(kinds[kind], noun)} {to}") for kind, (_, _, noun, to) in ACTIONS.items()]
        summary = _summary(counts, "nothing to change", unknown=bool(plan.unknown))
        notes = [note for note in plan.notes if note != f"this flow {_HEARTBEATS_ONLY}"]
        only = f" {_HEARTBEATS_ONLY}" if len(notes) < len(plan.notes) else ""
        show_flow(f"{plan.flow}{only}: {summary}", rows, notes, plan.unknown)


def _summary(counts: Sequence[tuple[int, str]], nothing: str, *, unknown: bool) -> str:
    parts = [words for count, words in counts if count]
    return ", ".join([*parts, *(["not everything could be checked"] if unknown else [])]) or nothing


def plan_rows(plan: FlowPlan, *, everything: bool) -> Iterator[Sequence[str]]:
    """Yield change, cluster, what and how."""
    for kind, (_, words, *_) in ACTIONS.items():
        of_kind = [one for one in plan.changes if isinstance(one.change, kind)]
        yield from listed(of_kind, partial(_cells, words), everything=everything, before=(words, ""))
    yield from map(partial(_cells, "  later"), plan.later)


def _cells(words: str, one: Planned) -> tuple[str, ...]:
    return words, one.cluster, *in_words(one.change)


T = TypeVar("T")


def run_plan(file: Path, *, flow: str | None, as_json: bool, everything: bool) -> int:
    """Print the plan and return the exit code. Raises ConfigError if the file is wrong."""
    plans = asyncio.run(_plan_all(chosen_flows(file, flow, mirroring=False)))
    if as_json:
        show_json(plan_as_json(plans))
    else:
        show_plans(plans, everything=everything)
    return exit_code(unknown=any(plan.unknown for plan in plans), found=any(plan.changes for plan in plans))


async def _plan_all(flows: Sequence[Flow]) -> list[FlowPlan]:
    plans: list[FlowPlan] = []
    made: set[tuple[str, str]] = set()
    for flow in flows:
        plan = await _plan(flow)
        # Topics that an earlier flow of the same file creates are left out.
        plan = replace(plan, changes=tuple(one for one in plan.changes if not made & _created([one])))
        made |= _created(plan.changes)
        plans.append(plan)
    return plans


def _created(changes: Iterable[Planned]) -> set[tuple[str, str]]:
    return {(one.cluster, one.change.topic) for one in changes if isinstance(one.change, CreateTopic)}


async def _plan(flow: Flow) -> FlowPlan:
    async def look(settings: MirrorSourceSettings, parts: FlowParts, *more: Any) -> FlowPlan:
        plan = (await flow_plan.look_at_flow(settings, parts, *more)).plan
        plan, groups = await _with_brokers(plan, parts.clusters, flow), await groups_of(flow)
        alone = (f"group {group} is not synced: {why}" for group, why in groups.alone.items())
        changes = (*plan.changes, *(Planned(flow.target, one) for one in groups.moves))
        return replace(plan, changes=changes, notes=(*plan.notes, *alone), unknown=(*plan.unknown, *groups.unknown))

    return await looked_at(flow, look, lambda plan: plan)


async def _with_brokers(plan: FlowPlan, clusters: Clusters, flow: Flow) -> FlowPlan:
    """Add a note for each cluster that has fewer brokers than a topic to create needs."""
    notes = []
    for alias, cluster in ((flow.source, clusters.source), (flow.target, clusters.target)):
        brokers = len((await cluster.metadata(())).brokers)
        made = [one.change for one in plan.changes if isinstance(one.change, CreateTopic) and one.cluster == alias]
        if few := [one for one in made if one.replication_factor > brokers]:
            factor = max(one.replication_factor for one in few)
            notes.append(f"cluster {alias}: {too_few_brokers(brokers, factor, [one.topic for one in few])}")
    return replace(plan, notes=(*plan.notes, *notes))


async def looked_at(flow: Flow, look: Callable[..., Awaitable[T]], of_plan: Callable[[FlowPlan], T]) -> T:
    """Return what ``look`` finds for an enabled flow. For other flows, and if a cluster does not answer, return
    ``of_plan`` of a plan."""
    settings, clients = flow.settings(), flow.clients()
    internal = internal_topics(flow, settings)
    try:
        async with looked_at_parts(clients, flow.source, flow.target) as parts:
            if flow.enabled:
                return await look(settings, parts, access_of(settings, parts), internal)
            mine = await flow_plan.plan_internal(parts.clusters.target, flow.target, internal.on_target)
            # As Java's does, unless it has emit.heartbeats.enabled = false.
            notes = (f"this flow {_HEARTBEATS_ONLY}",)
            plan = FlowPlan(str(flow), tuple(mine), notes=notes)
            return of_plan(await _with_brokers(plan, parts.clusters, flow))
    except ConfigError:
        raise
    except HeliographError as error:
        return of_plan(FlowPlan(str(flow), unknown=(str(error),)))


async def groups_of(flow: Flow) -> GroupOffsetSyncPlan:
    """Plan ``sync.group.offsets``; empty if the flow has no checkpoints, only an error if a cluster does not answer."""
    props = flow.config.resolved(flow.connector_config(Connector.CHECKPOINT))
    if objections(props):
        return GroupOffsetSyncPlan()
    try:
        return await plan_groups(checkpoint_settings(props))
    except HeliographError as error:
        return GroupOffsetSyncPlan(unknown=(str(error),))


def internal_topics(flow: Flow, settings: MirrorSourceSettings) -> InternalTopics:
    worker = worker_config(flow)
    own = [_compacted(topic) for topic in (worker.offset_topic, worker.config_topic, worker.status_topic)]
    own.append(topic_of_heartbeats(flow.config.resolved(flow.connector_config(Connector.HEARTBEAT))))
    if not flow.enabled:
        return InternalTopics(own)
    checkpoints = flow.config.resolved(flow.connector_config(Connector.CHECKPOINT))
    if not objections(checkpoints):
        own.append(topic_of_checkpoints(checkpoint_settings(checkpoints)))
    offset_map = _compacted(replace(worker.offset_topic, name=settings.map_topic, configs={}))
    syncs = settings.offset_syncs
    of_syncs = [] if syncs is None else [topic_of_syncs(syncs)]
    on_source = syncs is not None and syncs.on_source
    deletes = settings.topic_deletion_delay_ms is not None
    on_target = [*own, *([] if on_source else of_syncs), *([offset_map] if deletes else [])]
    return InternalTopics(on_target, on_source=of_syncs if on_source else [], of_tasks=[] if deletes else [offset_map])


def _compacted(topic: NewTopic) -> NewTopic:
    return replace(topic, configs={**topic.configs, "cleanup.policy": "compact"})


def run_drift(file: Path, *, flow: str | None, as_json: bool, everything: bool, ignored: Sequence[str] = ()) -> int:
    """Print the differences and return the exit code: 0 none, 2 some, 1 for an incomplete check. Raises ConfigError if
    the file is wrong or a kind of difference is unknown."""
    drifts = asyncio.run(_drift_all(chosen_flows(file, flow, mirroring=False), _kinds(ignored)))
    if as_json:
        show_json(drift_as_json(drifts))
    else:
        show_drifts(drifts, everything=everything)
    unknown = any(one.unknown or one.plan.unknown for one in drifts)
    return exit_code(unknown=unknown, found=any(one.left or one.plan.changes for one in drifts))


def drift_as_json(drifts: Sequence[FlowDrift]) -> dict[str, Any]:
    """Return the JSON form that docs/operations.md describes."""
    return {
        "format": FORMAT,
        "differences": sum(len(one.plan.changes) + len(one.left) for one in drifts),
        "complete": not any(one.unknown or one.plan.unknown for one in drifts),
        "flows": [
            {
                "flow": one.plan.flow,
                "sets": [change_as_json(change) for change in one.plan.changes],
                "leaves": [asdict(left) for left in one.left],
                "notes": list(one.plan.notes),
                "unknown": list(dict.fromkeys((*one.plan.unknown, *one.unknown))),
            }
            for one in drifts
        ],
    }


def show_drifts(drifts: Sequence[FlowDrift], *, everything: bool) -> None:
    for one in drifts:
        sets = plan_rows(replace(one.plan, later=()), everything=everything)
        leaves = _rows(one.left, everything=everything)
        rows = chain((("sets", *row) for row in sets), (("leaves", *row) for row in leaves))
        found = change_table(("a run", "difference", *_COLUMNS), rows)
        unknown = dict.fromkeys((*one.plan.unknown, *one.unknown))
        parts = ((len(one.plan.changes), "set"), (len(one.left), "left"))
        counts = [(count, f"{count} {word} by a run") for count, word in parts]
        summary = _summary(counts, "no differences", unknown=bool(unknown))
        show_flow(f"{one.plan.flow}: {summary}", found, one.plan.notes, unknown)


def _rows(left: Sequence[Drift], *, everything: bool) -> Iterator[Sequence[str]]:
    for kind in dict.fromkeys(one.kind for one in left):
        of_kind = [one for one in left if one.kind is kind]
        yield from listed(of_kind, drift_cells, everything=everything, before=(DRIFT_WORDS[kind], ""))


def _kinds(names: Sequence[str]) -> set[DriftKind]:
    known = [kind.value for kind in DriftKind]
    for name in names:
        if name not in known:
            raise ConfigError(f"--ignore {name} is not a kind of difference. Use one of {', '.join(known)}", "--ignore")
    return {DriftKind(name) for name in names}


async def _drift_all(flows: Sequence[Flow], ignored: Collection[DriftKind]) -> list[FlowDrift]:
    found = [await _drift(flow) for flow in flows]
    return [replace(one, left=tuple(left for left in one.left if left.kind not in ignored)) for one in found]


async def _drift(flow: Flow) -> FlowDrift:
    async def look(*parts: Any) -> FlowDrift:
        drift, groups = await flow_plan.drift_of_flow(*parts), await groups_of(flow)
        left = []
        for one in groups.left:  # those that a run syncs move all the time, so they are not drift
            key, found = f"{one.topic}-{one.partition}: {one.why}", None if one.found is None else str(one.found)
            left.append(Drift(DriftKind.GROUP, flow.target, one.group, str(one.expected), found, key))
        return replace(drift, left=(*drift.left, *left), unknown=(*drift.unknown, *groups.unknown))

    return await looked_at(flow, look, FlowDrift)
