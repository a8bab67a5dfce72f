"""``heliograph status``: each flow of a file, whether it runs, how far behind it is and why, and what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from connect.cli.commands.lag import problem_of, readers_of
from connect.cli.commands.rest_client import RestClient, WorkerRefused, WorkerUnreachable, is_of
from connect.cli.commands.topology import STALE_AFTER_S, age_words, heartbeats_of
from connect.cli.console import FORMAT, exit_code
from connect.cli.tables import ERROR, show, show_json, table
from connect.core.wording import age_text, counted, reason_of
from connectors.config.mm2_properties import chosen_flows, load
from connectors.formats.types import FlowName
from connectors.heartbeat import FlowHealth, FlowState

#: A running flow whose oldest waiting record is older than this is behind. Positions are stored every 10 s.
_BEHIND_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class FlowStatus:
    """A flow: its state in a word or two, the records and the milliseconds that it is behind (-1 unknown), its last
    heartbeat, ``actions`` that name what is wrong with its remedy, and what could not be checked."""

    flow: str
    state: str
    records: int
    ms: int
    last_heartbeat: str
    actions: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def judged(health: FlowHealth, lag: Mapping[str, Any], failures: Sequence[str], file: Path) -> FlowStatus:
    """Return the status of a flow.

    Args:
        health: From its heartbeats.
        lag: JSON as ``heliograph lag`` prints it.
        failures: What its workers report over REST.
        file: For the command that starts it.
    """
    state, actions = "running", list(failures)
    if health.state in (FlowState.STOPPED, FlowState.NONE):
        state = "stopped" if health.state is FlowState.STOPPED else "never started"
        actions.append(f"no worker writes heartbeats to {health.target}. Start one: heliograph mirror {file}")
    elif health.state in (FlowState.OFF, FlowState.UNKNOWN):
        state = health.state.value
    elif lag["ms"] >= _BEHIND_MS:
        state, most = "behind", lag["furthest"][0]
        actions.append(
            f"the oldest waiting record is {age_text(lag['ms'])} old, and {counted(most['records'], 'record')} wait in "
            f"{most['topic']}-{most['partition']}. If this grows, raise tasks.max or start another node"
        )
    if lag["problem"]:
        state = "copies nothing"
        actions.append(lag["problem"])
    if lag["lost"]:
        actions.append(
            f"the source deleted {counted(lag['lost'], 'offset')} before they were copied. See "
            "docs/runbooks/stopped-partition.md"
        )
    beat, unknown = age_words(health.age), tuple(dict.fromkeys(lag["unknown"].values()))
    return FlowStatus(health.name, state, lag["records"], lag["ms"], beat, tuple(actions), unknown)


def failures_of(worker: RestClient, flow: FlowName) -> Iterator[str]:
    """Yield what failed in the connectors of a flow on a worker, each with its remedy.

    Raises:
        WorkerRefused, WorkerUnreachable: As :meth:`RestClient.ask`.
    """
    known = worker.connectors("status")
    for name, one in sorted(known.items()):
        config, status = one["info"]["config"], one.get("status")
        if status is None or not is_of(config, *flow):
            continue
        parts = {"connector": status["connector"], **{f"task {task['id']}": task for task in status["tasks"]}}
        for part, its in parts.items():
            if its["state"] == "FAILED":
                yield (
                    f"{name}, {part} failed: {reason_of(its.get('trace'))}. When the cause is gone: heliograph "
                    f"connectors restart {name} --tasks --failed --rest {worker.shown_url}"
                )
        if config.get("connector.class", "").strip().endswith(("MirrorSourceConnector", "MirrorSource")):
            for partition in worker.ask("GET", worker.path(name, "partitions"))["partitions"]:
                if partition.get("reason"):
                    where = f"{partition['topic']}-{partition['partition']}"
                    yield f"{where} is {partition['state']}: {partition['reason']}; {partition.get('advice', '')}"


def _reported(urls: Sequence[str], flow: FlowName) -> tuple[list[str], list[str]]:
    """Return the failures of a flow on workers, and what could not be asked."""
    failures: list[str] = []
    unknown: list[str] = []
    for url in urls:
        errors = []
        for place in (f"{url.rstrip('/')}/{flow.source}/{flow.target}", url):
            try:
                with RestClient(place) as worker:
                    failures += failures_of(worker, flow)
                break
            except (WorkerRefused, WorkerUnreachable) as error:
                errors.append(str(error))
        else:
            unknown.append(errors[-1])
    return failures, unknown


def run_status(file: Path, *, rest: Sequence[str], as_json: bool) -> int:
    """Print the status and return the exit code: 0 all flows run, 2 something needs a hand, 1 something could not be
    checked. Raises ConfigError if the file is wrong."""
    found = asyncio.run(_statuses(file, rest))
    if as_json:
        show_json({"format": FORMAT, "flows": [asdict(one) for one in found]})
    else:
        show_statuses(found)
    return exit_code(unknown=any(one.unknown for one in found), found=any(one.actions for one in found))


async def _statuses(file: Path, rest: Sequence[str]) -> list[FlowStatus]:
    flows = {str(one): one for one in chosen_flows(file, None)}
    _, health, _ = await heartbeats_of(load(file), list(flows.values()), STALE_AFTER_S)
    by_name = {one.name: one for one in health}
    statuses = []
    async with readers_of(file, None) as readers:
        for name, reader in readers.items():
            lag = await reader.look()
            failures, missed = await asyncio.to_thread(_reported, rest, flows[name].name)
            problem = await problem_of(flows[name], reader, lag)
            seen = {**lag.to_json(1), "problem": problem}
            seen["unknown"] |= {str(number): why for number, why in enumerate(missed)}
            statuses.append(judged(by_name[name], seen, failures, file))
    return statuses


def show_statuses(found: Sequence[FlowStatus]) -> None:
    """Print a table of the flows, and below it what to do."""
    show(table(("flow", "state", "behind", "last heartbeat"), map(_cells, found), whole=("flow",)))
    for one in found:
        for action in one.actions:
            show(f"{one.flow}: {action}", ERROR)
        for problem in one.unknown:
            show(f"{one.flow}: not checked: {problem}", ERROR)


def _cells(one: FlowStatus) -> tuple[str, ...]:
    age = f", {age_text(one.ms)}" if one.records > 0 and one.ms >= 0 else ""
    behind = "unknown" if one.records < 0 else f"{counted(one.records, 'record')}{age}"
    return one.flow, one.state, behind, one.last_heartbeat
