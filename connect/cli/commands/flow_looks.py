"""Look at flows for ``heliograph status`` and ``lag``: at their clusters, so that no worker has to run, or a worker.

The clusters hold nearly all: heartbeats, stored positions, states of partitions, statuses of connectors and tasks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

from connect.cli.commands.rest_client import RestClient, WorkerRefused, WorkerUnreachable, flow_url, is_of
from connect.cli.commands.topology import age_words, health_of
from connect.core.config.rest_settings import REST_INTERNAL
from connect.core.errors import ConfigError, HeliographError
from connect.core.model import State, TargetState
from connect.core.status_and_offset_topics import StatusLog
from connect.core.wording import reason_of
from connect.kafka.concurrency import Scope, wall_ms
from connect.kafka.log.committed_offsets import work_of
from connectors.config.mm2_properties import Connector, Flow, chosen_flows, load
from connectors.failover.journal import read_last_move
from connectors.flow_facts import FlowFacts, OtherFacts, TaskFacts, Trend
from connectors.flow_progress import FlowLag
from connectors.flow_verdict import FlowVerdict, judge
from connectors.formats.types import FlowName
from connectors.heartbeat import FlowHealth, FlowState
from connectors.internal_topics import read_states, read_statuses, read_target_state, record_settings
from connectors.lag_reader import NOTHING, LagReader, lag_reader, last_checkpoint_ms
from connectors.source.positions.gap_policy import partition_facts
from connectors.verification.state import read_verified

#: Heartbeats are read again after this time.
_HEARTBEATS_S: Final = 10.0
_CLASSES: Final = ("MirrorSourceConnector", "MirrorSource")
_HAS_WORKER: Final = {FlowState.ALIVE: True, FlowState.STOPPED: False, FlowState.NONE: False}


@dataclass(frozen=True, slots=True)
class FlowSeen:
    """A flow at one look: its facts, its lag as JSON, and its last heartbeat in words."""

    facts: FlowFacts
    lag: dict[str, Any]
    last_heartbeat: str = "unknown"

    @property
    def verdict(self) -> FlowVerdict:
        return judge(self.facts)


class Looks(Protocol):
    async def look(self) -> list[FlowSeen]:
        """Look at all flows once. Raises HeliographError."""
        ...


@asynccontextmanager
async def readers_of(file: Path, flow: str | None) -> AsyncIterator[dict[str, LagReader]]:
    """Open a lag reader for each enabled flow of a file, or for the named one. Raises ConfigError."""
    flows = chosen_flows(file, flow)
    async with AsyncExitStack() as stack:
        yield {str(one): await stack.enter_async_context(lag_reader(one.settings(), one.clients())) for one in flows}


@asynccontextmanager
async def looks_of(file: Path, flow: str | None, top: int, rest: Sequence[str] = ()) -> AsyncIterator[Looks]:
    """Give the looks at the flows of a file, or at the one named; ``rest``: URLs of workers that are asked too; ``top``
    partitions of greatest lag are named. Raises ConfigError."""
    async with readers_of(file, flow) as readers, Scope("heartbeats") as scope:
        yield _FileLooks(file, {str(one): one for one in chosen_flows(file, flow)}, readers, top, rest, scope)


class _FileLooks:
    def __init__(
        self,
        file: Path,
        flows: dict[str, Flow],
        readers: dict[str, LagReader],
        top: int,
        rest: Sequence[str],
        scope: Scope,
    ) -> None:
        self._file = file
        self._flows = flows
        self._readers = readers
        self._top = top
        self._rest = rest
        self._scope = scope
        self._last: dict[str, FlowLag] = dict.fromkeys(flows, NOTHING)
        self._trends = {name: Trend() for name in flows}
        self._health: dict[str, FlowHealth] = {}
        self._beats: asyncio.Task[None] | None = None
        self._beats_s = 0.0

    async def look(self) -> list[FlowSeen]:
        if self._beats is None or (self._beats.done() and time.monotonic() >= self._beats_s + _HEARTBEATS_S):
            self._beats = self._scope.spawn(self._read_heartbeats(), "read heartbeats")
        lags = await asyncio.gather(*map(self._lag, self._flows))
        if not self._health or self._beats.done():
            await self._beats  # later ones are shown by the next look, because a cluster may take long to answer
        return list(await asyncio.gather(*map(self._look_at, self._flows, lags)))

    async def _read_heartbeats(self) -> None:
        self._health = await health_of(load(self._file), list(self._flows.values()))
        self._beats_s = time.monotonic()

    async def _lag(self, name: str) -> FlowLag:
        self._last[name] = lag = await self._readers[name].look(self._last[name])
        return lag

    async def _look_at(self, name: str, lag: FlowLag) -> FlowSeen:
        health, trend, now_ms = self._health[name], self._trends[name], wall_ms()
        trend.observe(now_ms, lag)
        facts = await self._of_clusters(name, lag, now_ms)
        asked, unchecked = await asyncio.to_thread(_of_workers, self._rest, self._flows[name].name)
        if asked is not None:
            others = tuple({*asked.others, *facts.others})
            facts = replace(asked, others=others, stopped_by=facts.stopped_by, stopped_by_ms=facts.stopped_by_ms)
        if health.age is not None:
            facts = replace(facts, heartbeat_ms=now_ms - round(health.age.seconds * 1000))
        facts = replace(
            facts,
            has_worker=_HAS_WORKER.get(health.state) if facts.has_worker is None else facts.has_worker,
            unchecked=tuple(dict.fromkeys([*facts.unchecked, *unchecked])),
            file=str(self._file),
        )
        shown = {"flow": name, **lag.to_json(self._top), **facts.contact.to_json(now_ms)}
        return FlowSeen(facts, shown, age_words(health.age))

    async def _of_clusters(self, name: str, lag: FlowLag, now_ms: int) -> FlowFacts:
        flow, reader, trend = self._flows[name], self._readers[name], self._trends[name]
        facts = FlowFacts(
            flow.name,
            now_ms,
            contact=reader.contact,
            lag=trend.lag_facts(lag),
            records_per_s=trend.copied_per_s,
            unchecked=tuple(dict.fromkeys(lag.unknown.values())),
            rest=rest_url(flow),
        )
        if reader.contact.target.answers is False:
            return facts
        settings, topics, connector = flow.settings(), flow.worker_config(), Connector.SOURCE.value
        seen_source = reader.source if reader.contact.knows_lag else None
        try:
            states, statuses, target, checkpoint_ms, work, verified = await asyncio.gather(
                read_states(reader.store, record_settings(settings)),
                read_statuses(reader.store, topics["status.storage.topic"]),
                read_target_state(reader.store, topics["config.storage.topic"], connector),
                last_checkpoint_ms(settings, reader.store),
                work_of(reader.store, topics["group.id"]),
                read_verified(seen_source, reader.store, settings, lag.partitions),
            )
            runs = target is not TargetState.STOPPED and work is not None and work.members > 0
            source = None if reader.contact.source.answers is False else reader.source
            move = None if runs else await read_last_move(source, reader.store, settings)
        except HeliographError as error:  # such as a missing right
            return replace(facts, unchecked=(*facts.unchecked, str(error)))
        status, tasks = statuses.status(connector), statuses.tasks(connector).items()
        state = "" if status is None else status.state.value
        facts = replace(
            facts,
            connector_state=state if target is TargetState.STARTED else target.value,
            connector_reason="" if status is None else reason_of(status.trace),
            tasks=tuple(TaskFacts(id_, one.state.value, one.worker_id, reason_of(one.trace)) for id_, one in tasks),
            others=tuple(_others(statuses, connector)),
            checkpoint_ms=checkpoint_ms,
            verified=verified,
            stopped_by="" if move is None else move.command.removeprefix("heliograph "),
            stopped_by_ms=-1 if move is None else move.updated_ms,
        )
        if work is not None:
            facts = replace(facts.with_lost_tasks(work.tasks), has_worker=work.members > 0)
        return facts.with_partitions(partition_facts(connector, settings.source_alias, states))


def _others(statuses: StatusLog, own: str) -> list[OtherFacts]:
    found = []
    for name in statuses.connectors():
        parts = {-1: statuses.status(name), **statuses.tasks(name)} if name != own else {}
        failed = {number: one for number, one in parts.items() if one is not None and one.state is State.FAILED}
        found += [OtherFacts(name, number, reason_of(one.trace)) for number, one in failed.items()]
    return found


def rest_url(flow: Flow) -> str:
    """Return the URL of a flow's REST API in its mirror; empty if the file does not configure one."""
    if not flow.config.public_rest:
        return ""
    listener = REST_INTERNAL.parse(flow.config.top_level_properties()).strings("listeners")[0]
    return f"{listener.replace('//:', '//localhost:')}/{flow.source}/{flow.target}"


def _of_workers(urls: Sequence[str], flow: FlowName) -> tuple[FlowFacts | None, list[str]]:
    """Return the facts of a flow as a worker reports them, and what could not be asked."""
    unchecked = []
    for url in urls:
        for place in (flow_url(url, flow.source, flow.target), url):
            try:
                with RestClient(place) as worker:
                    if found := facts_of_worker(worker, flow):
                        return found, []
                break
            except (WorkerRefused, WorkerUnreachable) as error:
                why = str(error)
        else:
            unchecked.append(why)
    return None, unchecked


def facts_of_worker(worker: RestClient, flow: FlowName) -> FlowFacts | None:
    """Return the facts of a flow as a worker reports them, with what failed in its other connectors; None if the worker
    does not have the flow. Raises WorkerRefused, WorkerUnreachable."""
    known = {
        name: one for name, one in sorted(worker.connectors("status").items()) if is_of(one["info"]["config"], *flow)
    }
    sources = [name for name, one in known.items() if _is_mirror(one["info"]["config"])]
    if not sources:
        return None
    facts = FlowFacts.from_wire(worker.ask("GET", worker.path(sources[0], "verdict"))["facts"])
    others = []
    for name, one in known.items():
        status = one.get("status", {"connector": {"state": ""}, "tasks": []})
        parts = [{"id": -1, **status["connector"]}, *status["tasks"]] if name != sources[0] else []
        failed = [part for part in parts if part["state"] == State.FAILED]
        others += [OtherFacts(name, part["id"], reason_of(part.get("trace"))) for part in failed]
    return replace(facts, rest=worker.shown_url, others=tuple(others))


def _is_mirror(config: dict[str, str]) -> bool:
    return config.get("connector.class", "").strip().rpartition(".")[2] in _CLASSES


class WorkerLooks:
    """Looks at the mirrors of one worker, or at the one of ``flow``."""

    def __init__(self, worker: RestClient, flow: str | None, top: int) -> None:
        self._worker, self._flow, self._top = worker, flow, top

    async def look(self) -> list[FlowSeen]:
        """Look once. Raises WorkerRefused or WorkerUnreachable, and ConfigError if it does not mirror the flow."""
        return await asyncio.to_thread(self._asked)

    def _asked(self) -> list[FlowSeen]:
        worker, found = self._worker, []
        for name, one in sorted(worker.connectors().items()):
            if not _is_mirror(one["info"]["config"]):
                continue
            lag = worker.ask("GET", f"{worker.path(name, 'lag')}?top={self._top}")
            if self._flow in (None, lag["flow"]):
                facts = FlowFacts.from_wire(worker.ask("GET", worker.path(name, "verdict"))["facts"])
                found.append(FlowSeen(replace(facts, rest=worker.shown_url), lag))
        if not found:
            raise ConfigError(f"the worker at {worker.shown_url} mirrors no flow {self._flow or ''}".rstrip())
        return found
