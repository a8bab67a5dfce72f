"""Reports the lag of a MirrorSource and the states of its partitions as JSON, for REST."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from connect.api.source import TaskReport
from connect.core.errors import PermanentError
from connect.core.model import State
from connect.kafka.concurrency import in_turns
from connectors.config.connector_configs import MirrorSourceSettings
from connectors.flow_progress import FlowLag
from connectors.formats.types import TopicPartition
from connectors.internal_topics import PartitionState, read_states, record_settings
from connectors.kept_reports import rows_asked
from connectors.source.positions.gap_policy import advice
from connectors.source.worker_context import FlowParts
from connectors.topic_sync.partition_assignment import assigned_before

LAG: Final = "lag"
PARTITIONS: Final = "partitions"
_RUNNING: Final = "running"


def lag_report(
    settings: MirrorSourceSettings, lag: FlowLag, contact: Mapping[str, Any], query: Mapping[str, str]
) -> dict[str, Any]:
    """Return the JSON of a lag report, with ``contact`` as JSON. Raises ConfigError if ``top`` is not a number."""
    top = rows_asked(query.get("top", ""))
    return {"connector": settings.name, "flow": settings.flow, **lag.to_json(top), **contact}


async def partitions_report(
    settings: MirrorSourceSettings, parts: FlowParts, tasks: Sequence[TaskReport], query: Mapping[str, str]
) -> dict[str, Any]:
    """Return all partitions of tasks, or those in the state of ``query``. Raises if the target does not answer."""
    noted = await read_states(parts.store, record_settings(settings))
    rows = await partition_rows(settings, tasks, noted)
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["state"]] = counts.get(row["state"], 0) + 1
    wanted = query.get("state", "")
    shown = [row for row in rows if wanted in ("", row["state"])]
    return {"connector": settings.name, "flow": settings.flow, "states": counts, "partitions": shown}


async def partition_rows(
    settings: MirrorSourceSettings, tasks: Sequence[TaskReport], noted: Mapping[TopicPartition, PartitionState]
) -> list[dict[str, Any]]:
    """Return a row for each partition of ``tasks``. Its state is the stored one; else ``running``, or its task's."""
    assigned = zip(tasks, assigned_before([task.config for task in tasks]), strict=True)
    each = ((task, one) for task, partitions in assigned for one in partitions)
    rows = [_row(settings, task, one, noted.get(one)) async for task, one in in_turns(each)]
    return sorted(rows, key=lambda row: (row["topic"], row["partition"]))


def _row(
    settings: MirrorSourceSettings, task: TaskReport, partition: TopicPartition, state: PartitionState | None
) -> dict[str, Any]:
    reported = {"state": _RUNNING if task.state == State.RUNNING else task.state.lower()}
    shown = {**reported, "reason": "", "since_ms": None, "gap": None} if state is None else state.to_json()
    has_gap = state is not None and state.gap is not None
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "target_topic": _remote_topic(settings, partition.topic) if state is None else state.target_topic,
        "task": task.task,
        "task_state": task.state,
        "worker_id": task.worker_id,
        **shown,
        "advice": advice(settings.name, settings.source_alias, partition) if has_gap else "",
    }


def _remote_topic(settings: MirrorSourceSettings, topic: str) -> str:
    """Return a topic's remote name; empty if it has none: it is not mirrored then, and its connector logged why."""
    try:
        return settings.remote_topic(topic)
    except PermanentError:
        return ""
