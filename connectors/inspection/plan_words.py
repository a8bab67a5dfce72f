"""The words of plans and drift: what changes and how, for the commands and the dashboard."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from connect.core.wording import counted, in_utc
from connectors.inspection.flow_plan import Drift, DriftKind, Planned
from connectors.topic_sync.cluster_changes import (
    AddPartitions,
    AlterConfig,
    Change,
    CreateAcl,
    CreateTopic,
    DeleteAcl,
    DeleteTopic,
    MoveGroup,
)

ACTIONS: Final[dict[type[Change], tuple[str, str, str]]] = {
    CreateTopic: ("create-topic", "+ create topic", "topics to create"),
    AddPartitions: ("add-partitions", "~ add partitions", "topics to grow"),
    AlterConfig: ("alter-config", "~ alter config", "settings to alter"),
    DeleteTopic: ("delete-topic", "- delete topic", "topics to delete"),
    MoveGroup: ("move-group", "~ move group", "group offsets to move"),
    CreateAcl: ("create-acl", "+ create ACL", "ACLs to create"),
    DeleteAcl: ("delete-acl", "- delete ACL", "ACLs to delete"),
}


def in_words(change: Change) -> tuple[str, str]:
    """Return what changes, and how."""
    match change:
        case CreateTopic():
            if change.source_topic:
                more = [f"of {change.source_topic}", *(f"{key}={value}" for key, value in change.configs.items())]
            else:
                compacted = change.configs.get("cleanup.policy") == "compact"
                more = ["compacted internal topic" if compacted else "internal topic"]
            return change.topic, ", ".join([_count(change.partitions), _factor(change.replication_factor), *more])
        case AddPartitions():
            return change.topic, f"{change.have} -> {change.want}, as {change.source_topic}"
        case AlterConfig():
            return change.topic, f"{change.key}: {_value(change.before)} -> {_value(change.after)}"
        case DeleteTopic():
            since, due = in_utc(change.gone_since_ms), in_utc(change.due_ms)
            return change.topic, f"{change.source_topic} missing since {since}, due {due}"
        case MoveGroup():
            before = "none" if change.before is None else change.before
            return change.group, f"{change.topic}-{change.partition}: {before} -> {change.after}"
        case CreateAcl() | DeleteAcl():
            rule = change.binding
            name = f"{rule.resource_type} {rule.resource_name}" + (
                " (prefix)" if rule.pattern_type == "PREFIXED" else ""
            )
            return name, f"{rule.permission} {rule.principal} {rule.operation} from {rule.host}"


def change_as_json(one: Planned) -> dict[str, Any]:
    """Return the JSON form that docs/operations.md describes."""
    fields = asdict(one.change)
    return {"action": ACTIONS[type(one.change)][0], "cluster": one.cluster, **fields.pop("binding", {}), **fields}


def _count(partitions: int) -> str:
    if partitions < 0:
        return "default partitions"
    return counted(partitions, "partition")


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


def drift_cells(one: Drift) -> tuple[str, ...]:
    return DRIFT_WORDS[one.kind], one.cluster, one.resource, _how(one)


def _how(one: Drift) -> str:
    match one.kind:
        case DriftKind.EXTRA_PARTITIONS:
            return f"{one.found}, the source has {one.expected}"
        case DriftKind.REPLICATION_FACTOR:
            return f"{one.found}, replication.factor is {one.expected}"
        case DriftKind.CONFIG:
            return f"{one.key}: {_value(one.found)}, the source has {_value(one.expected)}"
        case DriftKind.WITHOUT_SOURCE:
            return f"source topic {one.found} does not exist"
        case DriftKind.NOT_MIRRORED:
            return f"source topic {one.found} exists, but the flow does not mirror it"
        case DriftKind.REPLACED:
            return f"source topic {one.found} is copied to {one.expected} now"
        case DriftKind.RECREATED:
            return f"was {one.expected} when copied, is {one.found} now"
        case DriftKind.ACL:
            return one.found or ""
        case DriftKind.GROUP:
            return f"{one.key}; offset {one.found or 'none'}, expected {one.expected}"
