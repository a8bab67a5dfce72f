"""Collect the facts of a flow on a worker, for the verdict that its REST API reports.

The lag and the states of partitions are those of the whole flow, because they are stored on the target. What only a
task knows (records left out, why it starts again) is known of the tasks of this worker.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from connect.api.source import ConnectorReport, TaskReport
from connect.core.wording import reason_of
from connect.kafka.concurrency import in_turns, wall_ms
from connect.kafka.log.committed_offsets import work_of
from connectors.config.connector_configs import MirrorSourceSettings
from connectors.flow_facts import RECOVERING, STARTING, FlowFacts, TaskFacts
from connectors.flow_verdict import judge
from connectors.internal_topics import read_states, record_settings
from connectors.lag_reader import last_checkpoint_ms
from connectors.source.positions.gap_policy import partition_facts
from connectors.source.worker_context import FlowLook, FlowParts, MirrorHost
from connectors.verification.last_run import read_verified

#: A report reuses what was read this long ago.
_FRESH_S: Final = 3.0


async def verdict_report(
    host: MirrorHost,
    settings: MirrorSourceSettings,
    parts: FlowParts,
    connector: ConnectorReport,
    tasks: Sequence[TaskReport],
    query: Mapping[str, str],
) -> dict[str, Any]:
    """Return the JSON of a verdict with its facts; both clusters are read every few seconds at most.

    ``query`` may name the ``rest`` URL and the ``file`` that commands of actions shall have."""
    look = host.look_of(settings.name)
    async with look.reading:
        if time.monotonic() > look.fresh_until_s:
            await _look(host, settings, parts, look)
    facts = await _facts(host, settings, connector, tasks, look, query)
    return {"connector": settings.name, "facts": facts.to_wire(), "verdict": judge(facts).to_wire()}


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


async def _facts(
    host: MirrorHost,
    settings: MirrorSourceSettings,
    connector: ConnectorReport,
    tasks: Sequence[TaskReport],
    look: FlowLook,
    query: Mapping[str, str],
) -> FlowFacts:
    name = settings.name
    running = [task for (of, _), task in host.running.items() if of == name]
    views = [view for task in running async for view in in_turns(task.view(look.at_ms))]
    facts = FlowFacts(
        flow=settings.flow_name,
        at_ms=wall_ms(),
        connector=name,
        connector_state=connector.state,
        connector_reason=reason_of(connector.trace),
        tasks=tuple(_task(host, name, one) for one in tasks),
        has_worker=True,
        contact=host.contact(name),
        spark=host.spark.problem if running else "",
        lag=look.trend.lag_facts(look.lag),
        records_per_s=look.trend.copied_per_s,
        checkpoint_ms=look.checkpoint_ms,
        skipped=sum(one.skipped for one in views),
        lost=sum(one.lost for one in views),
        verified=look.verified,
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
