"""``heliograph status``: each flow of a file in a word, why, what to do, and whether a failover could start now."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from connect.cli.commands.flow_looks import FlowSeen, looks_of
from connect.cli.console import exit_code
from connect.cli.tables import ERROR, show, show_json, table
from connect.core.wording import age_text, counted
from connectors.flow_verdict import Urgency

#: Version of the command's JSON.
_FORMAT: Final = 2
#: Partitions of greatest lag that the page names, as far as they fit.
_TOP: Final = 50


def run_status(file: Path, *, rest: Sequence[str], as_json: bool, watch: bool = False, every_s: float = 2.0) -> int:
    """Print the status and return the exit code: 0 all flows run, 2 something needs a hand, 1 something could not be
    checked; with ``watch`` show it until Ctrl-C. Raises ConfigError if the file is wrong."""
    if watch:
        from connect.cli.commands.flow_page import watch as shown

        return shown(f"heliograph status {file}", looks_of(file, None, _TOP, rest), every_s, as_json=as_json)
    seen = asyncio.run(_once(file, rest))
    if as_json:
        flows = [{**one.verdict.to_wire(), "flow": str(one.facts.flow), "facts": one.facts.to_wire()} for one in seen]
        show_json({"format": _FORMAT, "flows": flows})
    else:
        show_statuses(seen)
    return exit_code(
        unknown=any(one.facts.unchecked for one in seen),
        found=any(one.verdict.urgency is not Urgency.OK for one in seen),
    )


async def _once(file: Path, rest: Sequence[str]) -> list[FlowSeen]:
    async with looks_of(file, None, 1, rest) as looks:
        return await looks.look()


def show_statuses(seen: Sequence[FlowSeen]) -> None:
    """Print a table of the flows, below it what is wrong and what to do, then what a failover would lose."""
    rows = ((str(one.facts.flow), one.verdict.state.value, _behind(one), one.last_heartbeat) for one in seen)
    show(table(("flow", "state", "behind", "last heartbeat"), rows, whole=("flow",)))
    for one in seen:
        verdict = one.verdict
        if verdict.urgency is not Urgency.OK:
            show(verdict.sentence, ERROR if verdict.urgency is Urgency.ERROR else "yellow")
        for sentence in verdict.also:
            show(f"  {sentence}")
        for action in verdict.actions:
            show(f"  Do: {action}")
    for one in seen:
        show(f"Failover {one.facts.flow}: {one.verdict.failover.sentence}")
    for one in seen:
        if one.verdict.verified:
            show(f"Copy of {one.facts.flow}: {one.verdict.verified}")


def _behind(one: FlowSeen) -> str:
    lag = one.facts.lag
    age = f", {age_text(lag.ms)}" if lag.records > 0 and lag.ms >= 0 else ""
    return "unknown" if lag.records < 0 else f"{counted(lag.records, 'record')}{age}"
