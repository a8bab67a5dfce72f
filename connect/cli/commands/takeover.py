"""``heliograph takeover``: where a start of the mirror would continue, and what blocks it."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from connect.cli.console import FORMAT, exit_code
from connect.cli.daemons.flow_worker import worker_config
from connect.cli.tables import ERROR, listed, show, show_json, show_remarks, table
from connect.core.errors import HeliographError
from connect.core.wording import counted
from connect.kafka.concurrency import together
from connectors.config.mm2_properties import Flow, chosen_flows
from connectors.inspection.takeover_check import WATCH_S, PartitionStart, TakeoverCheck, check_takeover, stop_order
from connectors.source.worker_context import looked_at_parts

_COLUMNS: Final = ("partition", "starts at", "by", "log", "to copy", "lost", "remote end")
_SHORT: Final = 30
_BECAUSE: Final = {
    "position": "stored position",
    "stored-offset": "stored offset",
    "group": "initial.offsets.group",
    "earliest": "nothing stored: log start",
    "latest": "nothing stored: log end",
    "restart": "on.topic.recreated",
    "offset-map": "offset map",
}


def run_check(file: Path, *, flow: str | None, as_json: bool, everything: bool, watch_s: float = WATCH_S) -> int:
    """Print the checks and return the exit code: 0 a start is fine, 2 it is blocked, 1 for an incomplete check. Raises
    ConfigError if the file is wrong."""
    checks = asyncio.run(together("checks", [_check(one, watch_s) for one in chosen_flows(file, flow)]))
    if as_json:
        show_json({"format": FORMAT, "flows": [_as_json(one) for one in checks]})
    else:
        for one in checks:
            _show(one, everything=everything)
    return exit_code(unknown=any(one.unknown for one in checks), found=any(one.obstacles for one in checks))


async def _check(flow: Flow, watch_s: float) -> TakeoverCheck:
    settings, clients, group_id = flow.settings(), flow.clients(), worker_config(flow).group_id
    try:
        async with looked_at_parts(clients, flow.source, flow.target) as parts:
            return await check_takeover(settings, parts, group_id, watch_s)
    except HeliographError as error:
        return TakeoverCheck(str(flow), unknown=(str(error),))


def _as_json(checked: TakeoverCheck) -> dict[str, Any]:
    return {
        "flow": checked.flow,
        "running": checked.is_running,
        "obstacles": checked.obstacles,
        "notes": checked.notes,
        "partitions": [
            {**asdict(one), "stops": one.stops, "lag": one.lag, "lost": one.lost, "beyond": one.beyond}
            for one in checked.partitions
        ],
        "groups": [
            {"role": one.role, "cluster": one.cluster, "group": one.group, **asdict(one.state)}
            for one in checked.groups
        ],
        "moving": list(checked.moving),
        "transactional_ids": [asdict(one) for one in checked.transactional_ids],
        "steps": list(stop_order(checked)),
        "unknown": list(checked.unknown),
    }


def _show(checked: TakeoverCheck, *, everything: bool) -> None:
    # What needs attention first.
    ordered = sorted(
        checked.partitions,
        key=lambda one: (not one.stops, not one.met, -one.lost, -one.beyond, -one.lag, one.topic, one.partition),
    )
    partitions, records = counted(len(ordered), "partition"), counted(sum(one.lag for one in ordered), "record")
    headline = f"{partitions}, {records} to copy from where a run would start"
    show(f"{checked.flow}: {headline if ordered or not checked.unknown else 'not everything could be checked'}")
    rows = [tuple(row) for row in listed(ordered, _cells, everything=everything)]
    # A short name is not broken, because the other columns have spaces to break at.
    whole = _COLUMNS[:1] if max((len(str(row[0])) for row in rows), default=0) <= _SHORT else ()
    show(table(_COLUMNS, rows, whole=whole, right=("starts at", *_COLUMNS[4:])))
    for group in checked.groups:
        members = ", ".join(group.state.members) or "no members"
        show(f"  group {group.group} on cluster {group.cluster}: {group.state.state}, {members}")
    for one in checked.transactional_ids:
        show(f"  would be fenced: transactional id {one.name} ({one.state})")
    for obstacle in checked.obstacles:
        show(f"  blocked: {obstacle}", ERROR)
    show_remarks(checked.notes, checked.unknown)
    for number, step in enumerate(stop_order(checked), 1):
        show(f"  {number}. {step}")


def _cells(one: PartitionStart) -> tuple[str, ...]:
    return (
        f"{one.topic}-{one.partition}",
        "" if one.stops else str(one.begins_at),
        next((f"stops: {met.state}" for met in one.met if met.stops), _BECAUSE[one.because]),
        f"{one.log_start} to {one.end}",
        str(one.lag),
        str(one.lost) if one.lost else "",
        str(one.target_end) if one.target_end >= 0 else "does not exist",
    )
