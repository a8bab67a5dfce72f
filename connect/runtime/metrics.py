"""A worker's metrics for Prometheus, named as the usual exporter names Java's: domain, type and attribute.

Labels are Java's tags, and ``group``, since a dedicated mirror has several workers in a process. There is a series for
each connector and task that is here, and for no other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from connect.core.gauges import Gauges, Rows
from connect.core.model import TaskId
from connect.kafka.group_meters import GroupMeters
from connect.runtime.counters import Starts
from connect.runtime.distributed import DistributedWorker
from connect.runtime.work_metrics import PREFIX, complement, told_family, work_metrics
from connect.runtime.worker import Worker


def _starts(kind: str, of: Callable[[Worker], Starts]) -> Rows[DistributedWorker]:
    """Return the metrics of the starts of one kind of work."""
    prefix, kinds = f"connect_worker_metrics_{kind}_startup", f"{kind.capitalize()}s"
    return (
        (
            f"{prefix}_attempts_total",
            f"{kinds} started here.",
            lambda one, _: of(one.worker).succeeded + of(one.worker).failed,
        ),
        (f"{prefix}_success_total", "Those that did.", lambda one, _: of(one.worker).succeeded),
        (
            f"{prefix}_success_percentage",
            "Share of the last minute's starts that went well.",
            lambda one, now_ms: of(one.worker).well.share(now_ms),
        ),
        (f"{prefix}_failure_total", "Those that did not.", lambda one, _: of(one.worker).failed),
        (
            f"{prefix}_failure_percentage",
            "Share of the last minute's starts that failed.",
            lambda one, now_ms: complement(of(one.worker).well, now_ms),
        ),
    )


_WORKER: Final[Rows[DistributedWorker]] = (
    ("app_info_start_time_ms", "When the worker was made.", lambda one, _: one.made_ms),
    ("connect_worker_metrics_connector_count", "Connectors here.", lambda one, _: len(one.worker.connectors)),
    ("connect_worker_metrics_task_count", "Tasks here.", lambda one, _: len(one.worker.tasks)),
    *_starts("connector", lambda worker: worker.connector_starts),
    *_starts("task", lambda worker: worker.task_starts),
    (
        "connect_worker_rebalance_metrics_completed_rebalances_total",
        "Rounds of the group.",
        lambda one, _: one.rebalances.completed,
    ),
    (
        "connect_worker_rebalance_metrics_rebalancing",
        "1 while a round is under way.",
        lambda one, _: float(one.rebalances.began_ms is not None),
    ),
    ("connect_worker_rebalance_metrics_epoch", "The group's generation.", lambda one, _: one.core.generation),
    (
        "connect_worker_rebalance_metrics_rebalance_max_time_ms",
        "Longest round of the last minute.",
        lambda one, _: one.rebalances.took_ms.most(one.steady_ms()),
    ),
    (
        "connect_worker_rebalance_metrics_rebalance_avg_time_ms",
        "Mean length of its rounds.",
        lambda one, _: one.rebalances.took_ms.mean(one.steady_ms()),
    ),
    (
        "connect_worker_rebalance_metrics_time_since_last_rebalance_ms",
        "Since the last round ended.",
        lambda one, _: math.nan if (ended := one.rebalances.ended_ms) is None else one.steady_ms() - ended,
    ),
    (
        "connect_coordinator_metrics_assigned_connectors",
        "Connectors that are ours by the last round.",
        lambda one, _: len(one.core.assignment.connectors),
    ),
    (
        "connect_coordinator_metrics_assigned_tasks",
        "Tasks that are ours by the last round.",
        lambda one, _: len(one.core.assignment.tasks),
    ),
)

_GROUP: Final[Rows[GroupMeters]] = (
    ("heartbeat_response_time_max", "Longest heartbeat, in ms.", lambda of, now_ms: of.heartbeat_ms.most(now_ms)),
    ("heartbeat_rate", "Heartbeats a second.", lambda of, now_ms: of.heartbeat_ms.frequency(now_ms)),
    ("heartbeat_total", "Heartbeats answered.", lambda of, _: of.heartbeat_ms.recorded),
    (
        "last_heartbeat_seconds_ago",
        "Since one was sent; -1: none yet.",
        lambda of, now: _ago(of.heartbeat_sent_ms, now),
    ),
    ("join_time_avg", "Mean time to join, in ms.", lambda of, now_ms: of.join_ms.mean(now_ms)),
    ("join_time_max", "Longest join, in ms.", lambda of, now_ms: of.join_ms.most(now_ms)),
    ("join_rate", "Joins a second.", lambda of, now_ms: of.join_ms.frequency(now_ms)),
    ("join_total", "Joins.", lambda of, _: of.join_ms.recorded),
    ("sync_time_avg", "Mean time to sync, in ms.", lambda of, now_ms: of.sync_ms.mean(now_ms)),
    ("sync_time_max", "Longest sync, in ms.", lambda of, now_ms: of.sync_ms.most(now_ms)),
    ("sync_rate", "Syncs a second.", lambda of, now_ms: of.sync_ms.frequency(now_ms)),
    ("sync_total", "Syncs.", lambda of, _: of.sync_ms.recorded),
    ("rebalance_latency_avg", "Mean length of rounds, in ms.", lambda of, now_ms: of.rounds_ms.mean(now_ms)),
    ("rebalance_latency_max", "Longest round, in ms.", lambda of, now_ms: of.rounds_ms.most(now_ms)),
    ("rebalance_latency_total", "Length of all rounds, in ms.", lambda of, _: of.rounds_ms.total),
    ("rebalance_rate_per_hour", "Rounds an hour.", lambda of, now_ms: of.rounds_ms.frequency(now_ms) * 3600),
    ("rebalance_total", "Rounds.", lambda of, _: of.rounds_ms.recorded),
    (
        "failed_rebalance_rate_per_hour",
        "Rounds an hour that came to nothing.",
        lambda of, now_ms: of.failed_rounds.frequency(now_ms) * 3600,
    ),
    ("failed_rebalance_total", "Rounds that came to nothing.", lambda of, _: of.failed_rounds.recorded),
    (
        "last_rebalance_seconds_ago",
        "Since one ended; -1: none yet.",
        lambda of, now_ms: _ago(of.round_ended_ms, now_ms),
    ),
)
#: Java's texts: a label, named as the attribute, of a series that is 1.
_TEXTS: Final[tuple[tuple[str, str, Callable[[DistributedWorker], str]], ...]] = (
    ("app_info", "version", lambda one: one.herder.info.version),
    ("app_info", "commit-id", lambda one: one.herder.info.commit),
    ("connect_worker_rebalance_metrics", "leader-name", lambda one: one.core.leader_url or ""),
    ("connect_worker_rebalance_metrics", "connect-protocol", lambda one: one.core.protocol),
)
_LABELS: Final = ("group",)


async def worker_metrics(workers: Sequence[DistributedWorker], now_ms: int) -> list[Metric]:
    """Of the workers of this process."""
    of_work = await work_metrics([(worker.config.group_id, worker.worker) for worker in workers], now_ms)
    return [*_of_workers(workers, now_ms), *_of_groups(workers, now_ms), *_of_restarts(workers), *of_work]


def _of_workers(workers: Sequence[DistributedWorker], now_ms: int) -> Iterator[Metric]:
    gauges = Gauges(PREFIX, _LABELS, _WORKER)
    texts = [(told_family(name, text, _LABELS), value) for name, text, value in _TEXTS]
    for worker in workers:
        labels = (worker.config.group_id,)
        gauges.add(labels, worker, now_ms)
        for family, value in texts:
            family.add_metric((*labels, value(worker)), 1)
    yield from gauges
    yield from (family for family, _ in texts)


def _of_groups(workers: Sequence[DistributedWorker], now_ms: int) -> Iterator[Metric]:
    gauges = Gauges(f"{PREFIX}connect_coordinator_metrics_", _LABELS, _GROUP)
    for worker in workers:
        gauges.add((worker.config.group_id,), worker.group_meters, now_ms)
    yield from gauges


def _of_restarts(workers: Sequence[DistributedWorker]) -> Iterator[Metric]:
    text = "Automatic restarts that this worker has decided on."
    of_connectors = GaugeMetricFamily(
        f"{PREFIX}connector_metrics_auto_restart_total", text, labels=("group", "connector")
    )
    of_tasks = GaugeMetricFamily(
        f"{PREFIX}connector_task_metrics_auto_restart_total", text, labels=("group", "connector", "task")
    )
    for worker in workers:
        for work, total in worker.restarts.totals.items():
            if isinstance(work, str) and work in worker.worker.connectors:
                of_connectors.add_metric((worker.config.group_id, work), total)
            elif isinstance(work, TaskId) and work in worker.worker.tasks:
                of_tasks.add_metric((worker.config.group_id, work.connector, str(work.task)), total)
    yield of_connectors
    yield of_tasks


def _ago(at_ms: int | None, now_ms: int) -> float:
    return -1 if at_ms is None else (now_ms - at_ms) // 1000
