"""What a mirror tells of itself over REST, on any worker of its group: its lag, and the states of its partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from connect.api.source import TaskReport
from connect.core.errors import ConfigError, PermanentError
from connect.core.model import State
from connect.kafka.concurrency import in_turns
from connectors.dataplane.plan import TopicPartition
from connectors.lag import FlowLag
from connectors.partition_states import PartitionState, read_states
from connectors.record_settings import record_settings
from connectors.settings import MirrorSourceSettings
from connectors.source.gap_policy import advice
from connectors.source.host import FlowParts
from connectors.source.topology import assigned_before

LAG: Final = "lag"
PARTITIONS: Final = "partitions"
_RUNNING: Final = "running"
#: Partitions that are named at most, however many are asked for.
_MOST_NAMED: Final = 1000
#: So many are told of before others of the loop have their turn; each takes some 4 us.
_AT_ONCE: Final = 500


def lag_report(
    settings: MirrorSourceSettings, lag: FlowLag, contact: Mapping[str, Any], query: Mapping[str, str]
) -> dict[str, Any]:
    """``contact`` as its JSON. Raises ConfigError for a ``top`` that is no count."""
    top = query.get("top", "")
    if not (top.isascii() and top.isdigit()):
        raise ConfigError(f"top is '{top}'; it is how many partitions are named, such as 10", "top")
    return {"connector": settings.name, "flow": settings.flow, **lag.to_json(min(int(top), _MOST_NAMED)), **contact}


async def partitions_report(
    settings: MirrorSourceSettings, parts: FlowParts, tasks: Sequence[TaskReport], query: Mapping[str, str]
) -> dict[str, Any]:
    """All partitions that tasks have, or those of the state that is asked for. Errors as those of the target."""
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
    """A partition is ``running`` where its task is and nothing else is noted; else as noted, or as its task."""
    assigned = zip(tasks, assigned_before([task.config for task in tasks]), strict=True)
    each = ((task, one) for task, partitions in assigned for one in partitions)
    rows = [_row(settings, task, one, noted.get(one)) async for task, one in in_turns(each, _AT_ONCE)]
    return sorted(rows, key=lambda row: (row["topic"], row["partition"]))


def _row(
    settings: MirrorSourceSettings, task: TaskReport, partition: TopicPartition, state: PartitionState | None
) -> dict[str, Any]:
    told = {"state": _RUNNING if task.state == State.RUNNING else task.state.lower()}
    shown = {**told, "reason": "", "since_ms": None, "gap": None} if state is None else state.to_json()
    heals = state is not None and state.gap is not None
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "target_topic": _remote_topic(settings, partition.topic) if state is None else state.target_topic,
        "task": task.task,
        "task_state": task.state,
        "worker_id": task.worker_id,
        **shown,
        "advice": advice(settings.name, settings.source_alias, partition) if heals else "",
    }


def _remote_topic(settings: MirrorSourceSettings, topic: str) -> str:
    """Empty where it has no name there: it is not mirrored then, and its connector has said why."""
    try:
        return settings.remote_topic(topic)
    except PermanentError:
        return ""
