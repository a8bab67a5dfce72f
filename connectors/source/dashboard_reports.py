"""Report a flow for the dashboard: an overview, its details, and the partitions that a search finds.

The lag and the states of partitions are those of the whole flow, because they are stored on the target. Rates, batches
and Spark are those of this worker's tasks; :mod:`rest.ui.workers` asks the other workers of the flow for theirs.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import Any, Final

from connect.api.source import ConnectorReport, TaskReport
from connect.core.model import State
from connect.kafka.concurrency import wall_ms
from connectors.config.connector_configs import MirrorSourceSettings
from connectors.dataplane.batches.fetched_batches import KIND_OF_REASON
from connectors.flow_progress import PartitionLag, furthest, is_stopped
from connectors.formats.types import TopicPartition
from connectors.internal_topics import PartitionState
from connectors.kept_reports import rows_asked
from connectors.source.positions.gap_policy import advice
from connectors.source.verdict_report import verdict_report
from connectors.source.worker_context import FlowLook, FlowParts, MirrorHost
from connectors.topic_sync.partition_assignment import assigned_before

OVERVIEW: Final = "overview"
DETAILS: Final = "details"
SEARCH: Final = "search"
#: What only the worker of a task knows; see :func:`rates_report`.
RATES: Final = "rates"
KINDS: Final = (OVERVIEW, DETAILS, SEARCH)
#: Partitions of greatest lag in the details.
_FURTHEST: Final = 20
#: Stopped partitions that an overview names.
_NAMED: Final = 3
#: Partitions in the answer to a search, if the query has no ``top``, and at most.
_FOUND: Final = 50
_MOST_FOUND: Final = 200


@dataclass(frozen=True, slots=True)
class Asked:
    """What a report is of: a connector and its tasks as the group knows them, and what was last read of its flow."""

    host: MirrorHost
    settings: MirrorSourceSettings
    connector: ConnectorReport
    tasks: Sequence[TaskReport]
    look: FlowLook

    @property
    def tasks_here(self) -> int:
        return sum(name == self.settings.name for name, _ in self.host.running)

    @property
    def is_whole(self) -> bool:
        """Whether this worker has all tasks that run."""
        return self.tasks_here >= sum(task.state == State.RUNNING for task in self.tasks)


async def dashboard_report(
    kind: str,
    host: MirrorHost,
    settings: MirrorSourceSettings,
    parts: FlowParts,
    connector: ConnectorReport,
    tasks: Sequence[TaskReport],
    query: Mapping[str, str],
) -> dict[str, Any]:
    """Return the JSON of one of :data:`KINDS`. Raises ConfigError if the ``top`` of a search is not a number."""
    verdict = await verdict_report(host, settings, parts, connector, tasks, query)
    asked = Asked(host, settings, connector, tasks, host.look_of(settings.name))
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
    """Return the partitions whose source or target name contains ``text`` and that are in ``state``: those that do not
    copy first, then by lag, ``top`` at most."""
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
