"""What a plan looks like: a table for people, JSON for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Final

from connect.cli.connectors_view import new_table, printable, shortened, show_flow
from connect.cli.console import counted
from connectors.changes import (
    AddPartitions,
    AlterConfig,
    Change,
    CreateAcl,
    CreateTopic,
    DeleteAcl,
    DeleteTopic,
    MoveGroup,
)
from connectors.planning.flow_plan import FlowPlan, Planned

#: Of the JSON; it changes where a reader of an older one would misunderstand.
FORMAT: Final = 1
_ACTIONS: Final[dict[type[Change], tuple[str, str, str]]] = {
    CreateTopic: ("create-topic", "+ create topic", "topics to create"),
    AddPartitions: ("add-partitions", "~ add partitions", "topics to grow"),
    AlterConfig: ("alter-config", "~ alter config", "settings to alter"),
    DeleteTopic: ("delete-topic", "- delete topic", "topics to delete"),
    MoveGroup: ("move-group", "~ move group", "group offsets to move"),
    CreateAcl: ("create-acl", "+ create ACL", "ACLs to create"),
    DeleteAcl: ("delete-acl", "- delete ACL", "ACLs to delete"),
}


def plan_as_json(plans: Sequence[FlowPlan]) -> dict[str, Any]:
    """See docs/operations.md."""
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
    """One flow behind the other. ``everything``: however many changes there are."""
    for plan in plans:
        table = new_table("change", "cluster", "what", "how", whole=("change",))
        for row in plan_rows(plan, everything=everything):
            table.add_row(*map(printable, row))
        show_flow(f"{plan.flow}: {_summary(plan)}", table, plan.notes, plan.unknown)


def _summary(plan: FlowPlan) -> str:
    counts = Counter(type(one.change) for one in plan.changes)
    told = [f"{counts[kind]} {words[2]}" for kind, words in _ACTIONS.items() if counts[kind]]
    if plan.unknown:
        told.append("not all could be looked at")
    return ", ".join(told) or "nothing to change"


def plan_rows(plan: FlowPlan, *, everything: bool) -> Iterator[tuple[str, str, str, str]]:
    """Change, cluster, what and how."""
    for kind, (_, words, _) in _ACTIONS.items():
        of_kind = [one for one in plan.changes if isinstance(one.change, kind)]
        shown = shortened(of_kind, everything=everything)
        for one in shown:
            yield (words, one.cluster, *in_words(one.change))
        if len(shown) < len(of_kind):
            yield (words, "", f"and {len(of_kind) - len(shown)} more", "--all shows them")
    for one in plan.later:
        yield ("  later", one.cluster, *in_words(one.change))


def in_words(change: Change) -> tuple[str, str]:
    """What it is about, and how that changes."""
    match change:
        case CreateTopic():
            of = f", of {change.source_topic}" if change.source_topic else ", for the mirror itself"
            configs = "".join(f", {key}={value}" for key, value in change.configs.items())
            return change.topic, f"{_count(change.partitions)}, {_factor(change.replication_factor)}{of}{configs}"
        case AddPartitions():
            return change.topic, f"{change.have} -> {change.want}, as {change.source_topic}"
        case AlterConfig():
            return change.topic, f"{change.key}: {_value(change.before)} -> {_value(change.after)}"
        case DeleteTopic():
            return change.topic, f"{change.source_topic} is gone since {_utc(change.gone_since_ms)}, due " + _utc(
                change.due_ms
            )
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
    """See docs/operations.md."""
    fields = asdict(one.change)
    return {"action": _ACTIONS[type(one.change)][0], "cluster": one.cluster, **fields.pop("binding", {}), **fields}


def _count(partitions: int) -> str:
    if partitions < 0:
        return "partitions as the cluster has it"
    return counted(partitions, "partition")


def _factor(factor: int) -> str:
    return "replication as the cluster has it" if factor < 0 else f"replication {factor}"


def _value(value: str | None) -> str:
    return "default" if value is None else value or "empty"


def _utc(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(" ", "seconds")
