"""Report a mirror over REST: its lag, its partitions, the verdict on its flow, and what the dashboard shows. Lag and
states of partitions are of the whole flow, because they are stored on the target. Other figures are of the tasks of
this worker; :mod:`rest.ui.flows_and_workers` asks the other workers for theirs."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import Any, Final

from connect.api.source import ConnectorReport, TaskReport
from connect.core.model import State
from connect.core.wording import reason_of
from connect.kafka.concurrency import in_turns, wall_ms
from connect.kafka.log.committed_offsets import work_of
from connectors.config.connector_configs import MirrorSourceSettings
from connectors.connector_base import rows_asked
from connectors.dataplane.batches.fetched_batches import KIND_OF_REASON
from connectors.flow_facts import RECOVERING, STARTING, FlowFacts, TaskFacts
from connectors.flow_progress import FlowLag, PartitionLag, furthest, is_stopped
from connectors.flow_verdict import judge
from connectors.formats.types import TopicPartition
from connectors.internal_topics import PartitionState, read_states, record_settings
from connectors.lag_reader import last_checkpoint_ms
from connectors.source.positions.gap_policy import advice, partition_facts
from connectors.source.worker_context import FlowLook, FlowParts, MirrorHost
from connectors.topic_sync.partition_assignment import assigned_before
from connectors.verification.state import read_verified, verification_report

LAG: Final = "lag"
PARTITIONS: Final = "partitions"
VERDICT: Final = "verdict"
VERIFICATION: Final = "verification"
OVERVIEW: Final = "overview"
DETAILS: Final = "details"
SEARCH: Final = "search"
#: What only the worker of a task knows; see :func:`rates_report`.
RATES: Final = "rates"
DASHBOARD: Final = (OVERVIEW, DETAILS, SEARCH)
#: What :func:`mirror_report` makes.
KINDS: Final = (LAG, PARTITIONS, VERDICT, VERIFICATION, *DASHBOARD)
_RUNNING: Final = "running"
#: A verdict reuses what was read this long ago.
_FRESH_S: Final = 3.0
#: Partitions of greatest lag in the details.
_FURTHEST: Final = 20
#: Stopped partitions that an overview names.
_NAMED: Final = 3
#: Partitions in the answer to a search, if the query has no ``top``, and at most.
_FOUND: Final = 50
_MOST_FOUND: Final = 200


@dataclass(frozen=True, slots=True)
class Asked:
    """What a report is of: a connector and its tasks, as the group knows them."""

    host: MirrorHost
    settings: MirrorSourceSettings
    connector: ConnectorReport
    tasks: Sequence[TaskReport]

    @property
    def look(self) -> FlowLook:
        return self.host.look_of(self.settings.name)

    @property
    def tasks_here(self) -> int:
        return sum(name == self.settings.name for name, _ in self.host.running)

    @property
    def is_whole(self) -> bool:
        """Whether this worker has all tasks that run."""
        return self.tasks_here >= sum(task.state == State.RUNNING for task in self.tasks)


async def mirror_report(kind: str, asked: Asked, parts: FlowParts, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the JSON of one of :data:`KINDS`. Raises ConfigError if ``top`` of the query is not a number, and
    HeliographError if a cluster does not answer."""
    if kind == PARTITIONS:
        return await partitions_report(asked, parts, query)
    if kind == VERDICT:
        return await verdict_report(asked, parts, query)
    if kind == VERIFICATION:
        source = parts.clusters.source if asked.host.contact(asked.settings.name).knows_lag else None
        return await verification_report(asked.settings, source, parts.store, query)
    if kind in DASHBOARD:
        return await dashboard_report(kind, asked, parts, query)
    host, settings = asked.host, asked.settings
    shared, watch = host.lag_of(settings.name), host.watches.get(settings.name)
    lag = await shared.read(settings, parts.clusters.source, parts.store, watch)
    contact = host.contact(settings.name)  # after the read, which may take long
    return lag_report(settings, lag, contact.to_json(wall_ms()), query)


def lag_report(
    settings: MirrorSourceSettings, lag: FlowLag, contact: Mapping[str, Any], query: Mapping[str, str]
) -> dict[str, Any]:
    """Return the JSON of a lag, with ``contact`` as JSON. Raises ConfigError if ``top`` is not a number."""
    top = rows_asked(query.get("top", ""))
    return {"connector": settings.name, "flow": settings.flow, **lag.to_json(top), **contact}


async def partitions_report(asked: Asked, parts: FlowParts, query: Mapping[str, str]) -> dict[str, Any]:
    """Return all partitions of tasks, or those in the state of ``query``. Raises if the target does not answer."""
    settings = asked.settings
    rows = await partition_rows(settings, asked.tasks, await read_states(parts.store, record_settings(settings)))
    wanted = query.get("state", "")
    return {
        "connector": settings.name,
        "flow": settings.flow,
        "states": Counter(row["state"] for row in rows),
        "partitions": [row for row in rows if wanted in ("", row["state"])],
    }


async def partition_rows(
    settings: MirrorSourceSettings, tasks: Sequence[TaskReport], noted: Mapping[TopicPartition, PartitionState]
) -> list[dict[str, Any]]:
    """Return a row for each partition of ``tasks``. Its state is the stored one; else ``running``, or its task's."""
    assigned = zip(tasks, assigned_before([task.config for task in tasks]), strict=True)
    each = ((task, one) for task, partitions in assigned for one in partitions)
    rows = [_partition_row(settings, task, one, noted.get(one)) async for task, one in in_turns(each)]
    return sorted(rows, key=lambda row: (row["topic"], row["partition"]))


def _partition_row(
    settings: MirrorSourceSettings, task: TaskReport, partition: TopicPartition, state: PartitionState | None
) -> dict[str, Any]:
    reported = {"state": _RUNNING if task.state == State.RUNNING else task.state.lower()}
    shown = {**reported, "reason": "", "since_ms": None, "gap": None} if state is None else state.to_json()
    has_gap = state is not None and state.gap is not None
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        # Without a remote name a topic is not mirrored, and its connector logged why.
        "target_topic": settings.names.find(partition.topic) or "" if state is None else state.target_topic,
        "task": task.task,
        "task_state": task.state,
        "worker_id": task.worker_id,
        **shown,
        "advice": advice(settings.name, settings.source_alias, partition) if has_gap else "",
    }


async def verdict_report(asked: Asked, parts: FlowParts, query: Mapping[str, str]) -> dict[str, Any]:
    """Return a verdict with its facts; both clusters are read every few seconds at most. ``query`` may name the
    ``rest`` URL and the ``file`` that commands of actions shall have."""
    look = asked.look
    async with look.reading:
        if time.monotonic() > look.fresh_until_s:
            await _look(asked.host, asked.settings, parts, look)
            await _look_at_moves(asked, parts, look)
    facts = await _facts(asked, look, query)
    return {"connector": asked.settings.name, "facts": facts.to_wire(), "verdict": judge(facts).to_wire()}


async def _look(host: MirrorHost, settings: MirrorSourceSettings, parts: FlowParts, look: FlowLook) -> None:
    watch = host.watches.get(settings.name)
    lag = await host.lag_of(settings.name).read(settings, parts.clusters.source, parts.store, watch)
    contact = host.contact(settings.name)
    if contact.target.answers is not False:
        look.states, look.checkpoint_ms, look.work, look.verified = await asyncio.gather(
            read_states(parts.store, record_settings(settings)),
            last_checkpoint_ms(settings, parts.store),
            work_of(parts.store, host.group_id),
            read_verified(parts.clusters.source if contact.knows_lag else None, parts.store, settings, lag.partitions),
        )
    look.lag, look.at_ms, look.fresh_until_s = lag, wall_ms(), time.monotonic() + _FRESH_S
    look.trend.observe(look.at_ms, lag)


async def _look_at_moves(asked: Asked, parts: FlowParts, look: FlowLook) -> None:
    """Read whether a failover has stopped the flow, if its connector is stopped."""
    look.stopped_by, look.stopped_by_ms = "", -1
    contact = asked.host.contact(asked.settings.name)
    if asked.connector.state != State.STOPPED or contact.target.answers is False:
        return
    from connectors.failover.journal import read_last_move  # because a worker starts without a failover's modules

    source = None if contact.source.answers is False else parts.clusters.source
    move = await read_last_move(source, parts.store, asked.settings)
    if move is not None:
        look.stopped_by, look.stopped_by_ms = move.command.removeprefix("heliograph "), move.updated_ms


async def _facts(asked: Asked, look: FlowLook, query: Mapping[str, str]) -> FlowFacts:
    host, settings, name = asked.host, asked.settings, asked.settings.name
    running = [task for (of, _), task in host.running.items() if of == name]
    views = [view for task in running async for view in in_turns(task.view(look.at_ms))]
    facts = FlowFacts(
        flow=settings.flow_name,
        at_ms=wall_ms(),
        connector=name,
        connector_state=asked.connector.state,
        connector_reason=reason_of(asked.connector.trace),
        tasks=tuple(_task(host, name, one) for one in asked.tasks),
        has_worker=True,
        contact=host.contact(name),
        spark=host.spark.problem if running else "",
        lag=look.trend.lag_facts(look.lag),
        records_per_s=look.trend.copied_per_s,
        checkpoint_ms=look.checkpoint_ms,
        skipped=sum(one.skipped for one in views),
        lost=sum(one.lost for one in views),
        verified=look.verified,
        stopped_by=look.stopped_by,
        stopped_by_ms=look.stopped_by_ms,
        unchecked=tuple(dict.fromkeys(look.lag.unknown.values())),
        rest=query.get("rest", ""),
        file=query.get("file", ""),
    )
    # A group without members is not the one that this worker is in, which may be on another cluster.
    if look.work is not None and look.work.members:
        facts = facts.with_lost_tasks(look.work.tasks)
    # In a thread, because thousands may be stopped.
    found = await asyncio.to_thread(partition_facts, name, settings.source_alias, look.states)
    return await asyncio.to_thread(facts.with_partitions, found)


def _task(host: MirrorHost, connector: str, reported: TaskReport) -> TaskFacts:
    state, reason = reported.state, reason_of(reported.trace)
    here = host.running.get((connector, reported.task))
    if here is not None and here.state.upper() in (STARTING, RECOVERING):
        state, reason = here.state.upper(), here.problem
    return TaskFacts(reported.task, state, reported.worker_id, reason)


async def dashboard_report(kind: str, asked: Asked, parts: FlowParts, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the JSON of one of :data:`DASHBOARD`. Raises ConfigError if the ``top`` of a search is not a number."""
    verdict = await verdict_report(asked, parts, query)
    # In a thread, because a loop over ten thousand partitions takes longer than one turn of the event loop may.
    if kind == SEARCH:
        return await asyncio.to_thread(search, asked, query)
    shown = overview(asked, verdict)
    if kind == OVERVIEW:
        return shown
    most = await asyncio.to_thread(lambda: rows_of(asked, furthest(asked.look.lag.partitions, _FURTHEST)))
    return {**shown, **details(asked.tasks, verdict), "furthest": most}


def overview(asked: Asked, verdict: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a card shows: the verdict, rates, lag, and how many partitions are in which state."""
    facts = verdict["facts"]
    stopped = [(one, state) for one, state in asked.look.states.items() if is_stopped(state.state)]
    oldest = min(stopped, key=lambda one: one[1].since_ms, default=None)
    return {
        "verdict": verdict["verdict"],
        "contact": facts["contact"],
        "lag": facts["lag"],
        "rates": _rates(asked),
        "partition_states": Counter(state.state for state in asked.look.states.values()),
        "stopped": facts["stopped"][:_NAMED],
        "stopped_count": facts["stopped_count"],
        "oldest_problem": None if oldest is None else {"source": str(oldest[0]), "since_ms": oldest[1].since_ms},
        "spark": _spark(asked.host, asked.settings.name),
        "tasks": {"here": asked.tasks_here, "all": len(asked.tasks)},
    }


def _rates(asked: Asked) -> dict[str, Any]:
    """Return the rates of this worker's tasks, and if others have tasks too, the flow's by its stored positions."""
    if asked.is_whole:
        return {**_rates_here(asked.host, asked.settings.name), "is_whole": True}
    return {"records_per_s": asked.look.trend.copied_per_s, "bytes_per_s": None, "is_whole": False}


def _rates_here(host: MirrorHost, name: str) -> dict[str, float | None]:
    records, size = host.history_of(name).rates(wall_ms(), host.copied(name))
    return {"records_per_s": _or_none(records), "bytes_per_s": _or_none(size)}


def _or_none(value: float) -> float | None:
    return None if value < 0 else round(value, 1)


def _spark(host: MirrorHost, name: str) -> dict[str, Any]:
    tasks = [task for (of, _), task in host.running.items() if of == name]
    return {"epoch": max((task.epoch for task in tasks), default=None), **host.spark.to_json()}


def rates_report(host: MirrorHost, name: str) -> dict[str, Any]:
    """Return what only this worker knows of the connector ``name``, as JSON: its tasks' rates, last hour, batches by
    kind and reason, and Spark. ``at_ms`` is this worker's time."""
    batches: Counter[str] = sum((meters.batches for meters in host.meters_of(name)), Counter())
    return {
        "at_ms": wall_ms(),
        **_rates_here(host, name),
        "history": host.history_of(name).to_json(),
        "batches": [
            {"kind": KIND_OF_REASON.get(reason, ""), "reason": reason, "count": count}
            for reason, count in batches.most_common()
        ],
        "spark": _spark(host, name),
    }


def details(tasks: Sequence[TaskReport], verdict: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the page of a flow shows besides: the tasks of each worker by state, and tasks that failed."""
    workers: dict[str, Counter[str]] = {}
    for task in tasks:
        workers.setdefault(task.worker_id, Counter())[task.state] += 1
    return {
        "workers": [{"worker_id": worker, "tasks": workers[worker]} for worker in sorted(workers)],
        "failed": [task for task in verdict["facts"]["tasks"] if task["reason"]],
    }


def search(asked: Asked, query: Mapping[str, str]) -> dict[str, Any]:
    """Return partitions by ``text`` in a name and by ``state``: those that do not copy first, then by lag."""
    text, state = query.get("text", "").strip().lower(), query.get("state", "")
    top = rows_asked(query.get("top", str(_FOUND)), _MOST_FOUND)
    states = asked.look.states
    lags = {TopicPartition(one.topic, one.partition): one for one in asked.look.lag.partitions}
    found: list[PartitionLag] = []
    for one in lags.keys() | states.keys():
        noted = states.get(one)
        lag = lags.get(one) or PartitionLag(*one, noted.target_topic if noted else "", -1, -1, -1, -1, -1)
        if state and (state != noted.state if noted else state != "copying"):
            continue
        if text and text not in str(one).lower() and text not in f"{lag.target_topic}-{one.partition}".lower():
            continue
        found.append(lag)

    def order(lag: PartitionLag) -> tuple[int, int, str, int]:
        noted = states.get(TopicPartition(lag.topic, lag.partition))
        need = 2 if noted is None else 1 if not is_stopped(noted.state) else 0
        return need, -lag.records - lag.lost, lag.topic, lag.partition

    rows = rows_of(asked, nsmallest(top, found, key=order))
    counted = Counter(one.state for one in states.values())
    copying = sum(one not in states for one in lags)
    return {
        "partitions": rows,
        "found": len(found),
        "all": len(lags.keys() | states.keys()),
        "states": {"copying": copying, **counted},
        "cluster": asked.settings.source_alias,
        "is_known": asked.look.lag.is_known,
    }


def rows_of(asked: Asked, lags: Sequence[PartitionLag]) -> list[dict[str, Any]]:
    """Return a row for each of ``lags``, with what is known of the partition besides."""
    wanted = {TopicPartition(one.topic, one.partition) for one in lags}
    assigned = zip(asked.tasks, assigned_before([task.config for task in asked.tasks]), strict=True)
    owners = {one: task for task, own in assigned for one in own if one in wanted}
    return [_row(asked, lag, owners.get(TopicPartition(lag.topic, lag.partition))) for lag in lags]


def _row(asked: Asked, lag: PartitionLag, task: TaskReport | None) -> dict[str, Any]:
    source, settings = TopicPartition(lag.topic, lag.partition), asked.settings
    noted: PartitionState | None = asked.look.states.get(source)
    by_task = "no task" if task is None else "copying" if task.state == State.RUNNING else task.state.lower()
    return {
        **lag.to_json(),
        "state": by_task if noted is None else noted.state,
        "is_stopped": noted is not None and is_stopped(noted.state),
        "reason": "" if noted is None else noted.reason,
        "since_ms": None if noted is None else noted.since_ms,
        "advice": advice(settings.name, settings.source_alias, source) if noted and noted.gap else "",
        "task": None if task is None else task.task,
        "worker_id": "" if task is None else task.worker_id,
    }
