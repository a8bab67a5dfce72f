"""``heliograph lag``, the lag of each flow from its clusters or from a worker, and ``heliograph status``: each flow of
a file in a word, why, what to do, and whether a failover could start now."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from connect.cli.commands.flow_looks import FlowSeen, Looks, WorkerLooks, looks_of
from connect.cli.commands.rest_client import RestClient
from connect.cli.console import exit_code
from connect.cli.rates import moved_texts
from connect.cli.tables import ERROR, console, show, show_json, table, text
from connect.core.errors import ConfigError
from connect.core.wording import age_text, bytes_text, counted
from connectors.flow_verdict import FlowWord, Urgency

#: Version of the JSON of ``heliograph status``.
_FORMAT: Final = 2
#: Partitions of greatest lag that the page of ``heliograph status`` names, as far as they fit.
_TOP: Final = 50
#: A narrower terminal does not show offsets.
_WIDE: Final = 110
#: How many partitions that were not checked are listed with the reason.
_UNKNOWN_NAMED: Final = 5
#: States of a flow that copies nothing because of its file or its operator.
_IDLE: Final = (FlowWord.STOPPED, FlowWord.PAUSED, FlowWord.IDLE)


def show_lags(seen: Sequence[FlowSeen]) -> None:
    out = console()
    for one in seen:
        for part in _flow(one, is_wide=out.width >= _WIDE):
            out.print(part, soft_wrap=isinstance(part, Text))


def _flow(one: FlowSeen, *, is_wide: bool) -> Iterator[RenderableType]:
    verdict = one.verdict
    yield text(f"{one.facts.flow}: {verdict.lag}")
    if verdict.urgency is not Urgency.OK:
        yield from (text(f"  {sentence}", ERROR) for sentence in (verdict.sentence, *verdict.also))
        yield from (text(f"  Do: {action}") for action in verdict.actions)
    if moved := moved_texts(one.lag):
        yield text(f"  {', '.join(moved)}")
    if one.lag["furthest"]:
        yield _table(one.lag["furthest"], is_wide=is_wide)
    unknown = list(one.lag["unknown"].values())
    more = [f"{len(unknown) - _UNKNOWN_NAMED} more"] if len(unknown) > _UNKNOWN_NAMED else []
    yield from (text(f"  not checked: {why}", ERROR) for why in (*unknown[:_UNKNOWN_NAMED], *more))


def _table(rows: Sequence[Mapping[str, Any]], *, is_wide: bool) -> Table:
    numbers = (*(("position", "end") if is_wide else ()), "records", "bytes (est.)", "oldest", "lost")
    cells = (
        (
            f"{one['topic']}-{one['partition']}",
            *((str(one["position"]), str(one["end"])) if is_wide else ()),
            f"{one['records']:,}",
            "unknown" if one["bytes"] < 0 else bytes_text(one["bytes"]),
            age_text(one["ms"]),
            f"{one['lost']:,}" if one["lost"] else "",
        )
        for one in rows
    )
    return table(("partition", *numbers), cells, whole=numbers, right=numbers)


def run_lag(
    file: Path | None,
    *,
    flow: str | None,
    top: int,
    as_json: bool,
    rest: str | None = None,
    every_s: float | None = None,
) -> int:
    """Print the lags and return the exit code: 0, or 1 for an incomplete check or a flow that copies nothing because it
    has no topics or its connector is stopped; with ``every_s`` show a page until Ctrl-C. Raises ConfigError if the file
    or an argument is wrong, HeliographError if a cluster or the worker does not answer."""
    if (file is None) == (rest is None):
        raise ConfigError("give either mm2.properties or --rest")
    looks = _looks(file, rest, flow, top)
    if every_s is not None:
        from connect.cli.commands.flow_page import watch as shown

        return shown(f"heliograph lag {rest or file}", looks, every_s, as_json=as_json)
    seen = asyncio.run(_once(looks))
    if as_json:
        show_json([{**one.lag, "verdict": {**one.verdict.to_wire(), "flow": str(one.facts.flow)}} for one in seen])
    else:
        show_lags(seen)
    idle = any(one.verdict.state in _IDLE for one in seen)
    return exit_code(unknown=idle or any(one.facts.unchecked for one in seen), found=False)


async def _once(opened: AbstractAsyncContextManager[Looks]) -> list[FlowSeen]:
    async with opened as looks:
        return await looks.look()


@asynccontextmanager
async def _looks(file: Path | None, rest: str | None, flow: str | None, top: int) -> AsyncIterator[Looks]:
    if file is not None:
        async with looks_of(file, flow, top) as looks:
            yield looks
    else:
        with RestClient(rest or "") as worker:
            yield WorkerLooks(worker, flow, top)


def run_status(file: Path, *, rest: Sequence[str], as_json: bool, every_s: float | None = None) -> int:
    """Print the status and return the exit code: 0 all flows run, 2 something needs a hand, 1 something could not be
    checked; with ``every_s`` show it until Ctrl-C. Raises ConfigError if the file is wrong."""
    if every_s is not None:
        from connect.cli.commands.flow_page import watch as shown

        return shown(f"heliograph status {file}", looks_of(file, None, _TOP, rest), every_s, as_json=as_json)
    seen = asyncio.run(_once(looks_of(file, None, 1, rest)))
    if as_json:
        flows = [{**one.verdict.to_wire(), "flow": str(one.facts.flow), "facts": one.facts.to_wire()} for one in seen]
        show_json({"format": _FORMAT, "flows": flows})
    else:
        show_statuses(seen)
    needs_a_hand = any(one.verdict.urgency is not Urgency.OK for one in seen)
    return exit_code(unknown=any(one.facts.unchecked for one in seen), found=needs_a_hand)


def show_statuses(seen: Sequence[FlowSeen]) -> None:
    """Print a table of the flows, below it what is wrong and what to do, then what a failover would lose."""
    rows = ((str(one.facts.flow), one.verdict.state.value, _behind(one), one.last_heartbeat) for one in seen)
    show(table(("flow", "state", "behind", "last heartbeat"), rows, whole=("flow",)))
    for one in seen:
        verdict = one.verdict
        if verdict.urgency is not Urgency.OK:
            show(verdict.sentence, ERROR if verdict.urgency is Urgency.ERROR else "yellow")
        for line in (*verdict.also, *(f"Do: {action}" for action in verdict.actions)):
            show(f"  {line}")
    lines = [f"Failover {one.facts.flow}: {one.verdict.failover.sentence}" for one in seen]
    lines += [f"Copy of {one.facts.flow}: {one.verdict.verified}" for one in seen if one.verdict.verified]
    for line in lines:
        show(line)


def _behind(one: FlowSeen) -> str:
    lag = one.facts.lag
    age = f", {age_text(lag.ms)}" if lag.records > 0 and lag.ms >= 0 else ""
    return "unknown" if lag.records < 0 else f"{counted(lag.records, 'record')}{age}"
