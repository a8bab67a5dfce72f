"""Report what a running flow would change on its clusters and what differs from its settings, in the words of
``heliograph plan``."""

from __future__ import annotations

import asyncio
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from connect.api.connector import Props
from connect.core.wording import counted, in_utc
from connect.kafka.concurrency import wall_ms
from connect.kafka.long_log import LongLogs
from connectors.config.client_config import FlowClients
from connectors.config.connector_configs import MirrorSourceSettings
from connectors.connector_base import rows_asked
from connectors.inspection.flow_plan import (
    Drift,
    DriftKind,
    FlowDrift,
    InternalTopics,
    Planned,
    acl_in_words,
    drift_of_flow,
)
from connectors.source.plugin import access_of
from connectors.source.worker_context import MirrorHost, looked_at_parts
from connectors.topic_sync import cluster_changes

PLAN: Final = "plan"
DRIFT: Final = "drift"
_MOST_ROWS: Final = 1000
_DEFAULT_ROWS: Final = 100
_FRESH_S: Final = 30.0

_Found = tuple[FlowDrift, int]


async def changes_report(
    kind: str,
    props: Props,
    settings: MirrorSourceSettings,
    clients: FlowClients,
    query: Mapping[str, str],
    host: MirrorHost,
) -> dict[str, Any] | None:
    """Return the JSON of a report: ``top`` of the rows that contain ``search``, of a look at most 30 s old. None if it
    is not one of these. Raises ConfigError if ``top`` is not a number, HeliographError if a cluster does not answer."""
    if kind not in (PLAN, DRIFT):
        return None
    top = rows_asked(query.get("top") or str(_DEFAULT_ROWS))
    key = "changes", tuple(sorted(props.items()))
    drift, at_ms = await host.kept.get(key, _FRESH_S, partial(_look, settings, clients))
    rows, counts = await asyncio.to_thread(_rows, drift, kind, query.get("search", "").lower())
    command = f"heliograph plan mm2.properties --flow {shlex.quote(settings.flow)}"
    return {
        "connector": settings.name,
        "flow": settings.flow,
        "at_ms": at_ms,
        "counts": counts,
        "matching": len(rows),
        "rows": rows[:top],
        "notes": drift.plan.notes[:_MOST_ROWS],
        "unknown": list(dict.fromkeys((*drift.plan.unknown, *drift.unknown)))[:_MOST_ROWS],
        "command": command if kind == PLAN else f"{command} --drift",
    }


async def _look(settings: MirrorSourceSettings, clients: FlowClients) -> _Found:
    long_logs = LongLogs()
    try:
        async with looked_at_parts(clients, settings.source_alias, settings.target_alias, long_logs) as parts:
            # The running worker has made its internal topics.
            return await drift_of_flow(settings, parts, access_of(settings, parts), InternalTopics(())), wall_ms()
    finally:
        long_logs.close()


def _rows(drift: FlowDrift, kind: str, search: str) -> tuple[list[Sequence[str]], dict[str, int]]:
    """Return the rows that contain ``search``, and how many changes or differences there are of each kind."""
    if kind == PLAN:
        rows = [*_changes(drift.plan.changes), *_changes(drift.plan.later, "later: ")]
    else:
        rows = [drift_cells(one) for one in drift.left]
    return [row for row in rows if search in " ".join(row).lower()], dict(Counter(row[0] for row in rows))


def _changes(planned: Sequence[Planned], before: str = "") -> list[tuple[str, ...]]:
    return [(before + ACTIONS[type(one.change)][1], one.cluster, *in_words(one.change)) for one in planned]


ACTIONS: Final[dict[type[cluster_changes.Change], tuple[str, str, str, str]]] = {
    cluster_changes.CreateTopic: ("create-topic", "+ create topic", "topic", "to create"),
    cluster_changes.AddPartitions: ("add-partitions", "~ add partitions", "topic", "to grow"),
    cluster_changes.AlterConfig: ("alter-config", "~ alter config", "setting", "to alter"),
    cluster_changes.DeleteTopic: ("delete-topic", "- delete topic", "topic", "to delete"),
    cluster_changes.MoveGroup: ("move-group", "~ move group", "group offset", "to move"),
    cluster_changes.CreateAcl: ("create-acl", "+ create ACL", "ACL", "to create"),
    cluster_changes.DeleteAcl: ("delete-acl", "- delete ACL", "ACL", "to delete"),
}


def in_words(change: cluster_changes.Change) -> tuple[str, str]:
    """Return what changes, and how."""
    match change:
        case cluster_changes.CreateTopic():
            if change.source_topic:
                more = [f"of {change.source_topic}", *(f"{key}={value}" for key, value in change.configs.items())]
            else:
                compacted = change.configs.get("cleanup.policy") == "compact"
                more = ["compacted internal topic" if compacted else "internal topic"]
            return change.topic, ", ".join([_count(change.partitions), _factor(change.replication_factor), *more])
        case cluster_changes.AddPartitions():
            return change.topic, f"{change.have} -> {change.want}, as {change.source_topic}"
        case cluster_changes.AlterConfig():
            return change.topic, f"{change.key}: {_value(change.before)} -> {_value(change.after)}"
        case cluster_changes.DeleteTopic():
            since, due = in_utc(change.gone_since_ms), in_utc(change.due_ms)
            return change.topic, f"{change.source_topic} missing since {since}, due {due}"
        case cluster_changes.MoveGroup():
            before = "none" if change.before is None else change.before
            return change.group, f"{change.topic}-{change.partition}: {before} -> {change.after}"
        case cluster_changes.CreateAcl() | cluster_changes.DeleteAcl():
            name, said = acl_in_words(change.binding)
            return f"{change.binding.resource_type} {name}", said


def change_as_json(one: Planned) -> dict[str, Any]:
    """Return the JSON form that docs/operations.md describes."""
    fields = asdict(one.change)
    return {"action": ACTIONS[type(one.change)][0], "cluster": one.cluster, **fields.pop("binding", {}), **fields}


def _count(partitions: int) -> str:
    return "default partitions" if partitions < 0 else counted(partitions, "partition")


def _factor(factor: int) -> str:
    return "default replication" if factor < 0 else f"replication {factor}"


def _value(value: str | None) -> str:
    return "default" if value is None else value or "empty"


DRIFT_WORDS: Final = {
    DriftKind.EXTRA_PARTITIONS: "extra partitions",
    DriftKind.REPLICATION_FACTOR: "replication factor",
    DriftKind.CONFIG: "setting",
    DriftKind.WITHOUT_SOURCE: "no source topic",
    DriftKind.NOT_MIRRORED: "not mirrored",
    DriftKind.REPLACED: "replaced",
    DriftKind.RECREATED: "recreated",
    DriftKind.ACL: "unmanaged ACL",
    DriftKind.GROUP: "group offset",
}


_HOW: Final[Mapping[DriftKind, Callable[[Drift], str]]] = {
    DriftKind.EXTRA_PARTITIONS: lambda one: f"{one.found}, the source has {one.expected}",
    DriftKind.REPLICATION_FACTOR: lambda one: f"{one.found}, replication.factor is {one.expected}",
    DriftKind.CONFIG: lambda one: f"{one.key}: {_value(one.found)}, the source has {_value(one.expected)}",
    DriftKind.WITHOUT_SOURCE: lambda one: f"source topic {one.found} does not exist",
    DriftKind.NOT_MIRRORED: lambda one: f"source topic {one.found} exists, but the flow does not mirror it",
    DriftKind.REPLACED: lambda one: f"source topic {one.found} is copied to {one.expected} now",
    DriftKind.RECREATED: lambda one: f"was {one.expected} when copied, is {one.found} now",
    DriftKind.ACL: lambda one: one.found or "",
    DriftKind.GROUP: lambda one: f"{one.key}; offset {one.found or 'none'}, expected {one.expected}",
}


def drift_cells(one: Drift) -> tuple[str, ...]:
    return DRIFT_WORDS[one.kind], one.cluster, one.resource, _HOW[one.kind](one)
