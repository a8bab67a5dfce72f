"""``heliograph takeover --check``: where a start of the mirror would continue, and what blocks it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rich.table import Table

from connect.cli.commands.plan import exit_code
from connect.cli.daemons.flow_worker import worker_config
from connect.cli.tables import console, new_table, printable, show_json
from connect.core.errors import ConfigError, HeliographError
from connect.core.wording import counted
from connectors.config.mm2_properties import Flow, chosen_flows
from connectors.inspection.takeover_check import WATCH_S, PartitionStart, TakeoverCheck, check_takeover, stop_order
from connectors.source.worker_context import looked_at_parts

#: Version of the JSON; incremented if a program that reads the previous one would misread it.
FORMAT: Final = 1
_ROWS: Final = 20
_BECAUSE: Final = {
    "position": "stored position",
    "stored-offset": "stored offset",
    "group": "initial.offsets.group",
    "earliest": "nothing stored: log start",
    "latest": "nothing stored: log end",
    "restart": "on.topic.recreated",
    "offset-map": "offset map",
}


def run_check(
    file: Path,
    *,
    flow: str | None,
    as_json: bool,
    everything: bool,
    is_asked: bool = True,
    watch_s: float = WATCH_S,
) -> int:
    """Print the checks and return the exit code: 0 a start is fine, 2 it is blocked, 1 for an incomplete check.

    Raises ConfigError if the file is wrong, or without ``is_asked``."""
    if not is_asked:
        raise ConfigError("only a start of the mirror takes over. Use --check to see what it would do")
    checks = asyncio.run(_check_all(chosen_flows(file, flow), watch_s))
    if as_json:
        show_json({"format": FORMAT, "flows": [_as_json(one) for one in checks]})
    else:
        for one in checks:
            _show(one, everything=everything)
    return exit_code(unknown=any(one.unknown for one in checks), changes=any(one.obstacles for one in checks))


async def _check_all(flows: Sequence[Flow], watch_s: float) -> list[TakeoverCheck]:
    return list(await asyncio.gather(*(_check(flow, watch_s) for flow in flows)))


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
    out = console()

    def say(line: str, style: str = "") -> None:
        out.print(printable(line), markup=False, soft_wrap=True, style=style)

    behind = sum(one.lag for one in checked.partitions)
    partitions, records = counted(len(checked.partitions), "partition"), counted(behind, "record")
    say(f"{checked.flow}: {partitions}, {records} to copy from where a run would start")
    if checked.partitions:
        out.print(_table(checked.partitions, everything=everything))
    for group in checked.groups:
        members = ", ".join(group.state.members) or "no members"
        say(f"  group {group.group} on cluster {group.cluster}: {group.state.state}, {members}")
    for one in checked.transactional_ids:
        say(f"  would be fenced: transactional id {one.name} ({one.state})")
    for obstacle in checked.obstacles:
        say(f"  blocked: {obstacle}", "bold red")
    for note in checked.notes:
        say(f"  note: {note}")
    for problem in checked.unknown:
        say(f"  not checked: {problem}", "bold red")
    for number, step in enumerate(stop_order(checked), 1):
        say(f"  {number}. {step}")


def _table(partitions: Sequence[PartitionStart], *, everything: bool) -> Table:
    names = ("partition", "starts at", "by", "log", "to copy", "lost", "remote end")
    table = new_table(*names, right=("starts at", "to copy", "lost", "remote end"))
    for row in _rows(partitions, everything=everything):
        table.add_row(*map(printable, row))
    return table


def _rows(partitions: Sequence[PartitionStart], *, everything: bool) -> Iterator[tuple[str, ...]]:
    # What needs attention first.
    ordered = sorted(
        partitions,
        key=lambda one: (not one.stops, not one.met, -one.lost, -one.beyond, -one.lag, one.topic, one.partition),
    )
    shown = ordered if everything else ordered[:_ROWS]
    for one in shown:
        yield (
            f"{one.topic}-{one.partition}",
            "" if one.stops else str(one.begins_at),
            next((f"stops: {met.state}" for met in one.met if met.stops), _BECAUSE[one.because]),
            f"{one.log_start} to {one.end}",
            str(one.lag),
            str(one.lost) if one.lost else "",
            str(one.target_end) if one.target_end >= 0 else "does not exist",
        )
    if len(shown) < len(ordered):
        yield (f"and {len(ordered) - len(shown)} more", "", "--all shows them", "", "", "", "")
