"""Metrics of what runs on workers: connectors and tasks, under the names of Java's ``ConnectMetricsRegistry``.

A text of Java's is a label of a series that is 1.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from connect.core.gauges import Gauges, Rows
from connect.core.measures import Windowed
from connect.core.model import State
from connect.kafka.concurrency import in_turns
from connect.runtime.counters import TaskCounters
from connect.runtime.known import Known
from connect.runtime.worker import Worker

PREFIX: Final = "kafka_connect_"
#: So many connectors or tasks are looked at before others of the loop have their turn.
_AT_ONCE: Final = 100
_CONNECTOR_PARTS: Final = ("connector-class", "connector-type", "connector-version")
_TASK_PARTS: Final = (
    *_CONNECTOR_PARTS,
    "task-class",
    "task-version",
    *(f"{role}-converter-{what}" for role in ("key", "value", "header") for what in ("class", "version")),
)
_OF_CONNECTOR: Final = ("group", "connector")
_OF_TASK: Final = ("group", "connector", "task")

_TASK: Final[Rows[TaskCounters]] = (
    ("source_task_metrics_source_record_poll_total", "Records polled.", lambda task, _: task.polled),
    ("source_task_metrics_source_record_poll_rate", "Polled a second.", lambda task, now: task.poll_records.rate(now)),
    ("source_task_metrics_source_record_write_total", "Records written.", lambda task, _: task.written),
    (
        "source_task_metrics_source_record_write_rate",
        "Written a second.",
        lambda task, now: task.written_records.rate(now),
    ),
    ("source_task_metrics_source_record_active_count", "Records on their way.", lambda task, _: task.active),
    (
        "source_task_metrics_source_record_active_count_max",
        "Most at once.",
        lambda task, now: task.active_records.most(now),
    ),
    (
        "source_task_metrics_source_record_active_count_avg",
        "Mean of them.",
        lambda task, now: task.active_records.mean(now),
    ),
    ("source_task_metrics_poll_batch_max_time_ms", "Longest poll.", lambda task, now: task.poll_ms.most(now)),
    ("source_task_metrics_poll_batch_avg_time_ms", "Mean length of polls.", lambda task, now: task.poll_ms.mean(now)),
    ("connector_task_metrics_running_ratio", "Time RUNNING.", lambda task, now: task.states.ratio(State.RUNNING, now)),
    ("connector_task_metrics_pause_ratio", "Time PAUSED.", lambda task, now: task.states.ratio(State.PAUSED, now)),
    ("connector_task_metrics_batch_size_max", "Largest batch polled.", lambda task, now: task.batch_records.most(now)),
    ("connector_task_metrics_batch_size_avg", "Mean batch polled.", lambda task, now: task.batch_records.mean(now)),
    ("connector_task_metrics_offset_commit_max_time_ms", "Longest commit.", lambda task, now: task.commit_ms.most(now)),
    ("connector_task_metrics_offset_commit_avg_time_ms", "Mean commit.", lambda task, now: task.commit_ms.mean(now)),
    (
        "connector_task_metrics_offset_commit_success_percentage",
        "Share of commits that went well.",
        lambda task, now: task.commits_well.share(now),
    ),
    (
        "connector_task_metrics_offset_commit_failure_percentage",
        "Share of commits that failed.",
        lambda task, now: complement(task.commits_well, now),
    ),
    ("task_error_metrics_total_record_failures", "Failed attempts.", lambda task, _: task.failures),
    ("task_error_metrics_total_record_errors", "Records that failed.", lambda task, _: task.errors),
    ("task_error_metrics_total_records_skipped", "Records left out for it.", lambda task, _: task.skipped),
    ("task_error_metrics_total_retries", "Repeated attempts.", lambda task, _: task.retries),
    ("task_error_metrics_total_errors_logged", "Errors told to the log.", lambda task, _: task.logged),
    ("task_error_metrics_deadletterqueue_produce_requests", "Of sinks: none here.", lambda _task, _now: 0),
    ("task_error_metrics_deadletterqueue_produce_failures", "Of sinks: none here.", lambda _task, _now: 0),
    ("task_error_metrics_last_error_timestamp", "When the last one was, in ms.", lambda task, _: task.last_error_ms),
)
#: Only where there were transactions, as Java has them with exactly-once alone.
_TRANSACTIONS: Final[Rows[TaskCounters]] = (
    (
        "source_task_metrics_transaction_size_min",
        "Smallest one.",
        lambda of, now: of.transaction_records.least(now),
    ),
    ("source_task_metrics_transaction_size_max", "Largest one.", lambda of, now: of.transaction_records.most(now)),
    ("source_task_metrics_transaction_size_avg", "Mean of them.", lambda of, now: of.transaction_records.mean(now)),
)


#: Of a connector's tasks here, by their states.
_COUNTED: Final[Rows[Counter[State]]] = (
    ("total_task_count", "Tasks here of a connector.", lambda states, _: states.total()),
    ("running_task_count", "Those that run.", lambda states, _: states[State.RUNNING]),
    ("paused_task_count", "Those that are paused.", lambda states, _: states[State.PAUSED]),
    ("failed_task_count", "Those that have failed.", lambda states, _: states[State.FAILED]),
    ("unassigned_task_count", "Those that are given up.", lambda states, _: states[State.UNASSIGNED]),
    ("destroyed_task_count", "Those that are deleted.", lambda states, _: states[State.DESTROYED]),
    ("restarting_task_count", "Those that restart.", lambda states, _: states[State.RESTARTING]),
)


def complement(well: Windowed, now_ms: int) -> float:
    """The share of what did not go well, 0 where there was nothing."""
    mean = well.mean(now_ms)
    return 0.0 if math.isnan(mean) else 1 - mean


async def work_metrics(workers: Sequence[tuple[str, Worker]], now_ms: int) -> list[Metric]:
    """Of workers and the names of their groups: a series for each connector and task that is there.

    Others of the loop have their turn in between: a task takes some 40 us."""
    return [*await _of_connectors(workers, now_ms), *await _of_tasks(workers, now_ms)]


async def _of_connectors(workers: Sequence[tuple[str, Worker]], now_ms: int) -> list[Metric]:
    status = _family("connector_metrics_status", "1, with the state.", _OF_CONNECTOR, "status")
    parts = _part_families("connector_metrics", _CONNECTOR_PARTS, _OF_CONNECTOR)
    counted = Gauges(f"{PREFIX}connect_worker_metrics_connector_", _OF_CONNECTOR, _COUNTED)
    for group, worker in workers:
        async for name, connector in in_turns(list(worker.connectors.items()), _AT_ONCE):
            status.add_metric((group, name, connector.state.lower()), 1)
            _add_parts(parts, _CONNECTOR_PARTS, (group, name), connector.known)
        states: dict[str, Counter[State]] = {}
        for task, runner in list(worker.tasks.items()):
            states.setdefault(task.connector, Counter())[runner.state] += 1
        for name, counts in states.items():
            counted.add((group, name), counts, now_ms)
    return [status, *parts, *counted]


async def _of_tasks(workers: Sequence[tuple[str, Worker]], now_ms: int) -> list[Metric]:
    status = _family("connector_task_metrics_status", "1, with the state.", _OF_TASK, "status")
    parts = _part_families("connector_task_metrics", _TASK_PARTS, _OF_TASK)
    gauges = Gauges(PREFIX, _OF_TASK, _TASK)
    transactions = Gauges(PREFIX, _OF_TASK, _TRANSACTIONS)
    steps = {
        kind: _part_families(f"connector_{kind}_metrics", (f"{kind}-class", f"{kind}-version"), (*_OF_TASK, kind))
        for kind in ("transform", "predicate")
    }
    for group, worker in workers:
        async for task, runner in in_turns(list(worker.tasks.items()), _AT_ONCE):
            labels = (group, task.connector, str(task.task))
            counters = runner.counters
            status.add_metric((*labels, runner.state.lower()), 1)
            _add_parts(parts, _TASK_PARTS, labels, runner.known)
            gauges.add(labels, counters, now_ms)
            if counters.transaction_records.recorded:
                transactions.add(labels, counters, now_ms)
            for kind, alias, *told in runner.known.steps:
                for family, part in zip(steps[kind], told, strict=True):
                    family.add_metric((*labels, alias, part), 1)
    of_steps = (family for families in steps.values() for family in families)
    return [status, *parts, *gauges, *transactions, *of_steps]


def _family(name: str, text: str, labels: Iterable[str], *more: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, text, labels=(*labels, *more))


def _part_families(prefix: str, parts: Iterable[str], labels: Iterable[str]) -> list[GaugeMetricFamily]:
    return [told_family(prefix, part, labels) for part in parts]


def told_family(prefix: str, attribute: str, labels: Iterable[str]) -> GaugeMetricFamily:
    """Of series that are 1, with a text of Java's as a label."""
    name = attribute.replace("-", "_")
    return _family(f"{prefix}_{name}", f"1, with the {name.replace('_', ' ')}.", labels, name)


def _add_parts(
    families: Iterable[GaugeMetricFamily], parts: Iterable[str], labels: tuple[str, ...], known: Known
) -> None:
    for family, part in zip(families, parts, strict=True):
        if part in known.parts:
            family.add_metric((*labels, known.parts[part]), 1)
