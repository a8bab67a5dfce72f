"""``heliograph drift``: what differs between what the flows of a file would set and what is there."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.table import Table

from connect.cli.connectors_view import console, printable, show_json
from connect.cli.plan import chosen_flows, exit_code, groups_of, internal_topics
from connect.cli.plan_view import change_as_json, plan_rows
from connect.core.errors import ConfigError, HeliographError
from connectors.flows import Flow
from connectors.planning.flow_drift import FlowDrift, Left, LeftKind, drift_of_flow
from connectors.planning.flow_plan import FlowPlan, plan_internal
from connectors.source.host import looked_at_parts
from connectors.source.plugin import access_of

#: Of the JSON; it changes where a reader of an older one would misunderstand.
FORMAT: Final = 1
#: Rows of one kind that are shown unless all are asked for.
_ROWS: Final = 20
_WORDS: Final = {
    LeftKind.EXTRA_PARTITIONS: "more partitions",
    LeftKind.REPLICATION_FACTOR: "replication factor",
    LeftKind.CONFIG: "setting",
    LeftKind.WITHOUT_SOURCE: "no source topic",
    LeftKind.NOT_MIRRORED: "not mirrored",
    LeftKind.REPLACED: "replaced",
    LeftKind.RECREATED: "made anew",
    LeftKind.ACL: "ACL of others",
    LeftKind.GROUP: "group offset",
}


def run_drift(file: Path, *, flow: str | None, as_json: bool, everything: bool, ignored: Sequence[str] = ()) -> int:
    """Print it; the exit code: 0 nothing differs, 2 something does, 1 not all could be looked at. Raises ConfigError
    for a file that is wrong, or a kind of difference that is unknown."""
    drifts = asyncio.run(_drift_all(chosen_flows(file, flow), _kinds(ignored)))
    if as_json:
        show_json(drift_as_json(drifts))
    else:
        show_drifts(drifts, everything=everything)
    return exit_code(
        unknown=any(one.unknown or one.plan.unknown for one in drifts),
        changes=any(one.left or one.plan.changes for one in drifts),
    )


def drift_as_json(drifts: Sequence[FlowDrift]) -> dict[str, Any]:
    """See docs/operations.md."""
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
    """One flow behind the other: what a run would set, then what it would leave."""
    out = console()
    for one in drifts:
        out.print(f"{one.plan.flow}: {_summary(one)}", markup=False, soft_wrap=True)
        if one.plan.changes or one.left:
            out.print(_table(one, everything=everything))
        for note in one.plan.notes:
            out.print(f"  note: {printable(note)}", markup=False, soft_wrap=True)
        for problem in dict.fromkeys((*one.plan.unknown, *one.unknown)):
            out.print(f"  not looked at: {printable(problem)}", markup=False, soft_wrap=True, style="bold red")


def _summary(drift: FlowDrift) -> str:
    told = []
    if drift.plan.changes:
        told.append(f"a run would set {len(drift.plan.changes)}")
    if drift.left:
        told.append(f"{'would ' if told else 'a run would '}leave {len(drift.left)}")
    if drift.plan.unknown or drift.unknown:
        told.append("not all could be looked at")
    return ", ".join(told) or "nothing differs"


def _table(drift: FlowDrift, *, everything: bool) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("a run", "difference", "cluster", "what", "how"):
        table.add_column(name, overflow="fold", no_wrap=name in ("a run", "difference"))
    for change in plan_rows(replace(drift.plan, later=()), everything=everything):
        table.add_row("sets", *map(printable, change))
    for row in _rows(drift.left, everything=everything):
        table.add_row("leaves", *map(printable, row))
    return table


def _rows(left: Sequence[Left], *, everything: bool) -> Iterator[tuple[str, str, str, str]]:
    counts = Counter(one.kind for one in left)
    shown: Counter[LeftKind] = Counter()
    for one in left:
        shown[one.kind] += 1
        if everything or counts[one.kind] <= _ROWS or shown[one.kind] <= _ROWS // 2:
            yield (_WORDS[one.kind], one.cluster, one.resource, _how(one))
    for kind, count in counts.items():
        if not everything and count > _ROWS:
            yield (_WORDS[kind], "", f"and {count - _ROWS // 2} more", "--all shows them")


def _how(one: Left) -> str:
    match one.kind:
        case LeftKind.EXTRA_PARTITIONS:
            return f"{one.found}, the source has {one.expected}"
        case LeftKind.REPLICATION_FACTOR:
            return f"{one.found}, replication.factor is {one.expected}"
        case LeftKind.CONFIG:
            return f"{one.key}: {_value(one.found)}, the source has {_value(one.expected)}"
        case LeftKind.WITHOUT_SOURCE:
            return f"topic {one.found} is not on the source"
        case LeftKind.NOT_MIRRORED:
            return f"topic {one.found} is on the source, and the flow does not mirror it"
        case LeftKind.REPLACED:
            return f"topic {one.found} is copied to {one.expected} now"
        case LeftKind.RECREATED:
            return f"it was copied as {one.expected}, and is {one.found}"
        case LeftKind.ACL:
            return one.found or ""
        case LeftKind.GROUP:
            return f"{one.key}; it stands at {one.found or 'nothing'}, the source's at {one.expected}"


def _value(value: str | None) -> str:
    return "its default" if value is None else value or "nothing"


def _kinds(names: Sequence[str]) -> set[LeftKind]:
    known = [kind.value for kind in LeftKind]
    for name in names:
        if name not in known:
            raise ConfigError(f"--ignore {name}: there is no such difference; it can be {', '.join(known)}", "--ignore")
    return {LeftKind(name) for name in names}


async def _drift_all(flows: Sequence[Flow], ignored: Collection[LeftKind]) -> list[FlowDrift]:
    found = [await _drift(flow) for flow in flows]
    return [replace(one, left=tuple(left for left in one.left if left.kind not in ignored)) for one in found]


async def _drift(flow: Flow) -> FlowDrift:
    settings, clients = flow.settings(), flow.clients()
    internal = internal_topics(flow, settings)
    try:
        async with looked_at_parts(clients, flow.source, flow.target) as parts:
            if flow.enabled:
                found = await drift_of_flow(settings, parts, access_of(settings, parts), internal)
                return await _with_groups(flow, found)
            mine = await plan_internal(parts.clusters.target, flow.target, internal.on_target)
            return FlowDrift(FlowPlan(str(flow), tuple(mine)))
    except ConfigError:
        raise
    except HeliographError as error:
        return FlowDrift(FlowPlan(str(flow), unknown=(str(error),)))


async def _with_groups(flow: Flow, drift: FlowDrift) -> FlowDrift:
    """Groups that no run moves to where they would belong; those that it moves go on all the time and are no drift."""
    groups = await groups_of(flow)
    left = (
        Left(
            LeftKind.GROUP,
            flow.target,
            one.group,
            expected=str(one.expected),
            found=None if one.found is None else str(one.found),
            key=f"{one.topic}-{one.partition}: {one.why}",
        )
        for one in groups.left
    )
    return replace(drift, left=(*drift.left, *left), unknown=(*drift.unknown, *groups.unknown))
