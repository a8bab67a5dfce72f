"""Metrics of checkpoints and heartbeats for Prometheus, named as the usual exporter names Java's
(``MirrorCheckpointMetrics``); Java has none of heartbeats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client.metrics_core import Metric

from connect.core.gauges import Gauges, Rows
from connect.core.measures import Windowed
from connectors.latencies import LATENCY, Written

_DOMAIN: Final = "kafka_connect_mirror_"
_CHECKPOINT: Final = f"{_DOMAIN}MirrorCheckpointConnector_"
_HEARTBEAT: Final = f"{_DOMAIN}MirrorHeartbeatConnector_"
_FLOW: Final = ("source", "target")
_WHOLE: Final[Rows[Windowed]] = (("count", "Written since its task began.", lambda one, _: one.recorded), *LATENCY)


def written_metrics(workers: Sequence[Written], now_ms: int) -> Iterator[Metric]:
    """Of the tasks of this process: checkpoints by group and partition, those that a task wrote last; checkpoints by
    task, all of them; heartbeats by flow."""
    single = Gauges(f"{_CHECKPOINT}checkpoint_", (*_FLOW, "group", "topic", "partition"), LATENCY)
    tasks = Gauges(f"{_CHECKPOINT}task_checkpoint_", (*_FLOW, "task"), _WHOLE)
    beats = Gauges(f"{_HEARTBEAT}heartbeat_", _FLOW, _WHOLE)
    for worker in workers:
        for task, latencies in worker.checkpoints.items():
            tasks.add(task, latencies.whole, now_ms)
            for labels, latency in latencies:
                single.add((task.source, task.target, *labels), latency, now_ms)
        for task, latencies in worker.heartbeats.items():
            beats.add((task.source, task.target), latencies.whole, now_ms)
    yield from (*single, *tasks, *beats)
