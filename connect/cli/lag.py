"""``heliograph lag``: how far each flow is behind, asked of the clusters of a file, or of a running worker."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from connect.cli.connectors_view import show_json
from connect.cli.console import EXIT_OK
from connect.cli.lag_view import live, show_lags
from connect.cli.rest_client import RestClient, connector_path
from connect.core.errors import ConfigError
from connect.core.model import State
from connect.core.rest_defs import REST_INTERNAL
from connectors.flows import Connector, Flow, chosen_flows
from connectors.lag import FlowLag
from connectors.lag_reader import NOTHING, LagReader, lag_reader
from connectors.target_states import read_target_state

#: Not all could be looked at, as with ``heliograph plan``.
EXIT_UNKNOWN: Final = 1
_NO_TOPICS: Final = "no topic of the source is selected, so nothing is copied; see the flow's topics and topics.exclude"
_CLASSES: Final = ("MirrorSourceConnector", "MirrorSource")
#: What is printed of each flow, as JSON has it.
Told = list[dict[str, Any]]


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
    """Print it, with ``watch`` again and again; the exit code: 0, or 1 where not all could be looked at, or a flow
    copies nothing because it has no topics or its connector is stopped.

    Raises ConfigError for a file that is wrong, and what the clusters or the worker raise.
    """
    if (file is None) == (rest is None):
        raise ConfigError("name an mm2.properties, or with --rest a running worker; one of the two")
    if watch and (as_json or not sys.stdout.isatty()):
        raise ConfigError("--watch is for a terminal, and not for --json", "--watch")
    if rest is not None:
        return _of_worker(rest, flow, top, as_json=as_json, every_s=every_s if watch else None)
    assert file is not None
    return asyncio.run(_of_file(file, flow, top, as_json=as_json, every_s=every_s if watch else None))


async def _of_file(file: Path, flow: str | None, top: int, *, as_json: bool, every_s: float | None) -> int:
    flows = {str(one): one for one in chosen_flows(file, flow)}
    last = dict.fromkeys(flows, NOTHING)
    async with readers_of(file, flow) as readers:

        async def read() -> Told:
            told = []
            for name, reader in readers.items():
                last[name] = lag = await reader.look(last[name])
                problem = await _problem(flows[name], reader, lag)
                told.append({"flow": name, **lag.to_json(top), "problem": problem})
            return told

        if every_s is None:
            return _show(await read(), as_json=as_json)
        with live() as show:
            while True:
                show(await read(), time.monotonic())
                await asyncio.sleep(every_s)


async def _problem(flow: Flow, reader: LagReader, lag: FlowLag) -> str | None:
    """Why the flow copies nothing, if that is so and can be seen."""
    if not lag.is_known:
        return None
    name = Connector.SOURCE.value
    state = await read_target_state(reader.store, flow.worker_config()["config.storage.topic"], name)
    return _stopped(name, state, _rest_url(flow)) or (None if lag.partitions or lag.unknown else _NO_TOPICS)


def _stopped(connector: str, state: str, url: str) -> str | None:
    if state not in (State.STOPPED, State.PAUSED):
        return None
    after_failover = "after a failover heliograph failback starts it, else: " if state == State.STOPPED else ""
    return (
        f"connector {connector} is {state} and copies nothing; {after_failover}"
        f"heliograph connectors resume {connector} --url {url}"
    )


def _rest_url(flow: Flow) -> str:
    """Return where the mirror of a file has the REST API of a flow; URL if the file does not say."""
    if not flow.config.public_rest:
        return "URL"
    listener = REST_INTERNAL.parse(flow.config.top_level_properties()).strings("listeners")[0]
    return f"{listener.replace('//:', '//localhost:')}/{flow.source}/{flow.target}"


@asynccontextmanager
async def readers_of(file: Path, flow: str | None) -> AsyncIterator[dict[str, LagReader]]:
    """Open a reader for each flow of a file that mirrors, or for the one that is named. Raises ConfigError."""
    flows = chosen_flows(file, flow)
    async with AsyncExitStack() as stack:
        yield {str(one): await stack.enter_async_context(lag_reader(one.settings(), one.clients())) for one in flows}


def _of_worker(url: str, flow: str | None, top: int, *, as_json: bool, every_s: float | None) -> int:
    with RestClient(url) as worker:
        read = _reading(worker, flow, top)
        if every_s is None:
            return _show(read(), as_json=as_json)
        with live() as show:
            while True:
                show(read(), time.monotonic())
                time.sleep(every_s)


def _reading(worker: RestClient, flow: str | None, top: int) -> Callable[[], Told]:
    def read() -> Told:
        known = worker.ask("GET", "/connectors?expand=info&expand=status")
        names = [name for name, each in sorted(known.items()) if _is_mirror(each["info"]["config"])]
        told = []
        for name in names:
            one = worker.ask("GET", f"{connector_path(name, 'lag')}?top={top}")
            state = known[name].get("status", {}).get("connector", {}).get("state", "")
            no_topics = None if one["partitions"] or one["unknown"] else _NO_TOPICS
            told.append({**one, "problem": _stopped(name, state, worker.shown_url) or no_topics})
        wanted = [one for one in told if flow in (None, one["flow"])]
        if not wanted:
            raise ConfigError(f"the worker at {worker.shown_url} mirrors no flow {flow or ''}".rstrip())
        return wanted

    return read


def _is_mirror(config: dict[str, str]) -> bool:
    return config.get("connector.class", "").strip().rpartition(".")[2] in _CLASSES


def _show(told: Told, *, as_json: bool) -> int:
    if as_json:
        show_json(told)
    else:
        show_lags(told)
    return EXIT_UNKNOWN if any(one["unknown"] or one["problem"] for one in told) else EXIT_OK
