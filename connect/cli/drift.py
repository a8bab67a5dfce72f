"""``heliograph drift``: what differs between what the flows of a file would set and what is there."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from connect.cli.connectors_view import new_table, printable, shortened, show_flow, show_json
from connect.cli.plan import exit_code, groups_of, looked_at
from connect.cli.plan_view import change_as_json, plan_rows
from connect.core.errors import ConfigError
from connectors.flows import Flow, chosen_flows
from connectors.planning.flow_drift import FlowDrift, Left, LeftKind, drift_of_flow

#: Of the JSON; it changes where a reader of an older one would misunderstand.
FORMAT: Final = 1
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
    drifts = asyncio.run(_drift_all(chosen_flows(file, flow, mirroring=False), _kinds(ignored)))
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
    for one in drifts:
        table = new_table("a run", "difference", "cluster", "what", "how", whole=("a run", "difference"))
        for change in plan_rows(replace(one.plan, later=()), everything=everything):
            table.add_row("sets", *map(printable, change))
        for row in _rows(one.left, everything=everything):
            table.add_row("leaves", *map(printable, row))
        unknown = dict.fromkeys((*one.plan.unknown, *one.unknown))
        show_flow(f"{one.plan.flow}: {_summary(one)}", table, one.plan.notes, unknown)


def _summary(drift: FlowDrift) -> str:
    told = []
    if drift.plan.changes:
        told.append(f"a run would set {len(drift.plan.changes)}")
    if drift.left:
        told.append(f"{'would ' if told else 'a run would '}leave {len(drift.left)}")
    if drift.plan.unknown or drift.unknown:
        told.append("not all could be looked at")
    return ", ".join(told) or "nothing differs"


def _rows(left: Sequence[Left], *, everything: bool) -> Iterator[tuple[str, str, str, str]]:
    for kind in dict.fromkeys(one.kind for one in left):
        of_kind = [one for one in left if one.kind is kind]
        shown = shortened(of_kind, everything=everything)
        for one in shown:
            yield (_WORDS[kind], one.cluster, one.resource, _how(one))
        if len(shown) < len(of_kind):
            yield (_WORDS[kind], "", f"and {len(of_kind) - len(shown)} more", "--all shows them")


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
    async def look(*parts: Any) -> FlowDrift:
        return await _with_groups(flow, await drift_of_flow(*parts))

    return await looked_at(flow, look, FlowDrift)


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
