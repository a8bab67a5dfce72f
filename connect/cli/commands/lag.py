"""``heliograph lag``, which reads the lag of each flow from its clusters or from a worker, and prints a table."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from connect.cli.commands.rest_client import RestClient
from connect.cli.console import exit_code
from connect.cli.rates import moved_texts
from connect.cli.tables import ERROR, console, show_json, table, text
from connect.core.config.rest_settings import REST_INTERNAL
from connect.core.errors import ConfigError
from connect.core.model import State
from connect.core.wording import age_text, counted
from connectors.config.mm2_properties import Connector, Flow, chosen_flows
from connectors.flow_progress import FlowLag, since_text
from connectors.internal_topics import read_target_state
from connectors.lag_reader import NOTHING, LagReader, lag_reader

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
#: A narrower terminal does not show offsets.
_WIDE: Final = 110
#: How many partitions that were not checked are listed with the reason.
_UNKNOWN_NAMED: Final = 5


def show_lags(reported: Sequence[Mapping[str, Any]]) -> None:
    """Print a headline and a table for each flow."""
    out = console()
    for one in reported:
        for part in _flow(one, None, is_wide=out.width >= _WIDE):
            out.print(part, soft_wrap=isinstance(part, Text))


@contextmanager
def live() -> Iterator[Callable[[Sequence[Mapping[str, Any]], float], None]]:
    """Give a function that redraws the lags, given the time of a monotonic clock in seconds."""
    screen = Console(highlight=False)
    before: dict[str, tuple[float, int]] = {}
    with Live(console=screen, auto_refresh=False) as shown:

        def show(reported: Sequence[Mapping[str, Any]], now_s: float) -> None:
            parts: list[RenderableType] = []
            for one in reported:
                name = f"{one.get('connector', '')} {one['flow']}"
                parts += _flow(one, _speed(before.get(name), now_s, one["records"]), is_wide=screen.width >= _WIDE)
                before[name] = (now_s, one["records"])
            shown.update(Group(*parts), refresh=True)

        yield show


def _speed(before: tuple[float, int] | None, now_s: float, records: int) -> float | None:
    """Return the growth of the lag in records a second; None if it is not known."""
    if before is None or now_s <= before[0] or min(records, before[1]) < 0:
        return None
    return (records - before[1]) / (now_s - before[0])


def _flow(one: Mapping[str, Any], speed: float | None, *, is_wide: bool) -> Iterator[RenderableType]:
    yield text(f"{one['flow']}: {_headline(one)}{_trend(speed)}")
    if one.get("problem"):
        yield text(f"  {one['problem']}", ERROR)
    if "source_answers" in one:
        yield Text(f"  {_contact(one)}")
    if one["furthest"]:
        yield _table(one["furthest"], is_wide=is_wide)
    unknown = list(one["unknown"].items())
    for _, why in unknown[:_UNKNOWN_NAMED]:
        yield text(f"  not checked: {why}", ERROR)
    if len(unknown) > _UNKNOWN_NAMED:
        yield text(f"  not checked: {len(unknown) - _UNKNOWN_NAMED} more", ERROR)


def _headline(one: Mapping[str, Any]) -> str:
    lost = f", {one['lost']:,} lost" if one["lost"] else ""
    count = counted(one["partitions"], "partition")
    missed = f", {counted(len(one['unknown']), 'partition')} not checked" if one["unknown"] else ""
    if one["records"] < 0:
        since_ms = one["unknown_since_ms"]
        where = f" in {count}{lost}" if one["partitions"] else ", partitions unknown"
        return f"lag unknown {since_text(-1 if since_ms is None else since_ms)}{where}"
    if not one["partitions"]:
        return f"lag unknown{missed}" if missed else "nothing to copy: 0 partitions"
    if not one["records"]:
        return f"no lag in {count}{lost}{missed}"
    size, age = bytes_text(one["bytes"]), age_text(one["ms"])
    return f"{one['records']:,} records behind in {count}, about {size}, the oldest {age} old{lost}{missed}"


def _contact(one: Mapping[str, Any]) -> str:
    """Say whether the clusters answer the worker, and when it last fetched and produced."""
    said = {True: "answers", False: "does not answer", None: "not contacted by this worker"}
    sides = [f"{side}: {said[one[f'{side}_answers']]}" for side in ("source", "target")]
    return ", ".join([*sides, *moved_texts(one)])


def _trend(speed: float | None) -> str:
    if speed is None or abs(speed) < 1:
        return ""
    return f", {'growing' if speed > 0 else 'shrinking'} by {abs(speed):,.0f} a second"


def _table(rows: Sequence[Mapping[str, Any]], *, is_wide: bool) -> Table:
    numbers = (*(("position", "end") if is_wide else ()), "records", "bytes (est.)", "oldest", "lost")
    cells = (
        (
            f"{one['topic']}-{one['partition']}",
            *((str(one["position"]), str(one["end"])) if is_wide else ()),
            f"{one['records']:,}",
            bytes_text(one["bytes"]),
            age_text(one["ms"]),
            f"{one['lost']:,}" if one["lost"] else "",
        )
        for one in rows
    )
    return table(("partition", *numbers), cells, whole=numbers, right=numbers)


def bytes_text(count: int) -> str:
    """Format a size in powers of 1024; a negative count is unknown."""
    if count < 0:
        return "unknown"
    value, unit = float(count), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.1f} {_UNITS[unit]}" if unit else f"{count} B"


_NO_TOPICS: Final = "no source topic is selected, so nothing is copied. Check the flow's topics and topics.exclude"
_CLASSES: Final = ("MirrorSourceConnector", "MirrorSource")
#: The lag of each flow, in JSON's form.
LagReports = list[dict[str, Any]]


def run_lag(
    file: Path | None,
    *,
    flow: str | None,
    top: int,
    as_json: bool,
    rest: str | None = None,
    watch: bool = False,
    every_s: float = 2.0,
) -> int:
    """Print the lags, repeatedly with ``watch``, and return the exit code: 0, or 1 for an incomplete check or a flow
    that copies nothing because it has no topics or its connector is stopped.

    Raises:
        ConfigError: The file or an argument is wrong.
        HeliographError: A cluster or the worker does not answer.
    """
    if (file is None) == (rest is None):
        raise ConfigError("give either mm2.properties or --rest")
    if watch and (as_json or not sys.stdout.isatty()):
        raise ConfigError("--watch needs a terminal and cannot be combined with --json", "--watch")
    if rest is not None:
        return _of_worker(rest, flow, top, as_json=as_json, every_s=every_s if watch else None)
    assert file is not None
    return asyncio.run(_of_file(file, flow, top, as_json=as_json, every_s=every_s if watch else None))


async def _of_file(file: Path, flow: str | None, top: int, *, as_json: bool, every_s: float | None) -> int:
    flows = {str(one): one for one in chosen_flows(file, flow)}
    last = dict.fromkeys(flows, NOTHING)
    async with readers_of(file, flow) as readers:

        async def read() -> LagReports:
            reported = []
            for name, reader in readers.items():
                last[name] = lag = await reader.look(last[name])
                problem = await problem_of(flows[name], reader, lag)
                reported.append({"flow": name, **lag.to_json(top), "problem": problem})
            return reported

        if every_s is None:
            return _show(await read(), as_json=as_json)
        with live() as show:
            while True:
                show(await read(), time.monotonic())
                await asyncio.sleep(every_s)


async def problem_of(flow: Flow, reader: LagReader, lag: FlowLag) -> str | None:
    """Return why the flow copies nothing; None if it copies or that is not known."""
    if not lag.is_known:
        return None
    name = Connector.SOURCE.value
    state = await read_target_state(reader.store, flow.worker_config()["config.storage.topic"], name)
    return _stopped(name, state, _rest_url(flow)) or (None if lag.partitions or lag.unknown else _NO_TOPICS)


def _stopped(connector: str, state: str, url: str) -> str | None:
    if state not in (State.STOPPED, State.PAUSED):
        return None
    after_failover = "after a failover run heliograph failback, otherwise " if state == State.STOPPED else ""
    return (
        f"connector {connector} is {state} and copies nothing; {after_failover}"
        f"run heliograph connectors resume {connector} --rest {url}"
    )


def _rest_url(flow: Flow) -> str:
    """Return the URL of a flow's REST API in its mirror; the word URL if the file does not configure one."""
    if not flow.config.public_rest:
        return "URL"
    listener = REST_INTERNAL.parse(flow.config.top_level_properties()).strings("listeners")[0]
    return f"{listener.replace('//:', '//localhost:')}/{flow.source}/{flow.target}"


@asynccontextmanager
async def readers_of(file: Path, flow: str | None) -> AsyncIterator[dict[str, LagReader]]:
    """Open a lag reader for each enabled flow of a file, or for the named one. Raises ConfigError."""
    flows = chosen_flows(file, flow)
    async with AsyncExitStack() as stack:
        yield {str(one): await stack.enter_async_context(lag_reader(one.settings(), one.clients())) for one in flows}


def _of_worker(url: str, flow: str | None, top: int, *, as_json: bool, every_s: float | None) -> int:
    with RestClient(url, "--rest") as worker:
        read = _reading(worker, flow, top)
        if every_s is None:
            return _show(read(), as_json=as_json)
        with live() as show:
            while True:
                show(read(), time.monotonic())
                time.sleep(every_s)


def _reading(worker: RestClient, flow: str | None, top: int) -> Callable[[], LagReports]:
    def read() -> LagReports:
        known = worker.connectors("status")
        names = [name for name, each in sorted(known.items()) if _is_mirror(each["info"]["config"])]
        reported = []
        for name in names:
            one = worker.ask("GET", f"{worker.path(name, 'lag')}?top={top}")
            state = known[name].get("status", {}).get("connector", {}).get("state", "")
            no_topics = None if one["partitions"] or one["unknown"] else _NO_TOPICS
            reported.append({**one, "problem": _stopped(name, state, worker.shown_url) or no_topics})
        wanted = [one for one in reported if flow in (None, one["flow"])]
        if not wanted:
            raise ConfigError(f"the worker at {worker.shown_url} mirrors no flow {flow or ''}".rstrip())
        return wanted

    return read


def _is_mirror(config: dict[str, str]) -> bool:
    return config.get("connector.class", "").strip().rpartition(".")[2] in _CLASSES


def _show(reported: LagReports, *, as_json: bool) -> int:
    if as_json:
        show_json(reported)
    else:
        show_lags(reported)
    return exit_code(unknown=any(one["unknown"] or one["problem"] for one in reported), found=False)
