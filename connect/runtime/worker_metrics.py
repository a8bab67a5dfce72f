"""Exports the metrics of workers, connectors and tasks to Prometheus.

Names are those that the usual exporter gives Java's metrics (``ConnectMetricsRegistry``): domain, type and attribute.
Labels are Java's tags, and ``group``, because a dedicated mirror has several workers in a process. Only connectors and
tasks that run here have a series. An attribute that is text in Java is a label of a series with the value 1.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Final

from prometheus_client.metrics_core import CounterMetricFamily, Metric

from connect.core.metrics import Families, Family, Rows, Windowed, new_family, over
from connect.core.model import State
from connect.kafka.concurrency import in_turns
from connect.kafka.group_heartbeat import GroupMeters
from connect.runtime.distributed_worker import DistributedWorker
from connect.runtime.task.task_control import Known, TaskCounters

PREFIX: Final = "kafka_connect_"
_CONNECTOR_PARTS: Final = ("connector-class", "connector-type", "connector-version")
_TASK_PARTS: Final = (
    *_CONNECTOR_PARTS,
    "task-class",
    "task-version",
    *(f"{role}-converter-{what}" for role in ("key", "value", "header") for what in ("class", "version")),
)
_OF_CONNECTOR: Final = ("group", "connector")
_OF_TASK: Final = ("group", "connector", "task")

#: Functions of rows that read a :class:`Windowed`, given its field.
_rate, _frequency = partial(over, how=Windowed.rate), partial(over, how=Windowed.frequency)
_most, _mean, _least = (partial(over, how=how) for how in (Windowed.most, Windowed.mean, Windowed.least))
_share, _lack = partial(over, how=Windowed.share), partial(over, how=Windowed.lack)

_SOURCE_TASK: Final[Rows[TaskCounters]] = (
    ("source_record_poll_total", "Records that the task has polled from its source.", lambda of, _: of.polled),
    ("source_record_poll_rate", "Records polled per second, over the last minute.", _rate("poll_records")),
    ("source_record_write_total", "Records that the task has written to Kafka.", lambda of, _: of.written),
    ("source_record_write_rate", "Records written per second, over the last minute.", _rate("written_records")),
    ("source_record_active_count", "Records that are polled and not yet written.", lambda of, _: of.active),
    ("source_record_active_count_max", "Most records that were in flight in the last minute.", _most("active_records")),
    ("source_record_active_count_avg", "Mean number of records in flight in the last minute.", _mean("active_records")),
    ("poll_batch_max_time_ms", "Longest time in ms that a poll took in the last minute.", _most("poll_ms")),
    ("poll_batch_avg_time_ms", "Mean time in ms that a poll took in the last minute.", _mean("poll_ms")),
)
_CONNECTOR_TASK: Final[Rows[TaskCounters]] = (
    (
        "running_ratio",
        "Share of its time that the task was RUNNING.",
        lambda of, now: of.states.ratio(State.RUNNING, now),
    ),
    ("pause_ratio", "Share of its time that the task was PAUSED.", lambda of, now: of.states.ratio(State.PAUSED, now)),
    ("batch_size_max", "Records in the largest batch of the last minute.", _most("batch_records")),
    ("batch_size_avg", "Mean number of records in a batch of the last minute.", _mean("batch_records")),
    (
        "offset_commit_max_time_ms",
        "Longest time in ms that a commit of offsets took in the last minute.",
        _most("commit_ms"),
    ),
    (
        "offset_commit_avg_time_ms",
        "Mean time in ms that a commit of offsets took in the last minute.",
        _mean("commit_ms"),
    ),
    (
        "offset_commit_success_percentage",
        "Share of the last minute's commits of offsets that succeeded.",
        _share("commits_well"),
    ),
    (
        "offset_commit_failure_percentage",
        "Share of the last minute's commits of offsets that failed.",
        _lack("commits_well"),
    ),
)
_TASK_ERROR: Final[Rows[TaskCounters]] = (
    ("total_record_failures", "Attempts to process a record that failed.", lambda of, _: of.failures),
    ("total_record_errors", "Records that could not be processed.", lambda of, _: of.errors),
    ("total_records_skipped", "Records that were skipped because of an error.", lambda of, _: of.skipped),
    ("total_retries", "Attempts to process a record that were repeated.", lambda of, _: of.retries),
    ("total_errors_logged", "Errors that were written to the log.", lambda of, _: of.logged),
    ("deadletterqueue_produce_requests", "Always 0, because only sinks have a dead letter queue.", lambda _of, _now: 0),
    ("deadletterqueue_produce_failures", "Always 0, because only sinks have a dead letter queue.", lambda _of, _now: 0),
    (
        "last_error_timestamp",
        "Time of the last error, in ms since 1970; 0 if there was none.",
        lambda of, _: of.last_error_ms,
    ),
)
#: By domain.
_TASK: Final = {
    "source_task_metrics": _SOURCE_TASK,
    "connector_task_metrics": _CONNECTOR_TASK,
    "task_error_metrics": _TASK_ERROR,
}
#: Only after the first transaction, as Java has these metrics only with exactly-once.
_TRANSACTIONS: Final[Rows[TaskCounters]] = (
    ("size_min", "Records in the smallest transaction of the last minute.", _least("transaction_records")),
    ("size_max", "Records in the largest transaction of the last minute.", _most("transaction_records")),
    ("size_avg", "Mean number of records in a transaction of the last minute.", _mean("transaction_records")),
)


_STATE_WORDS: Final = {
    **{state: state.value for state in (State.RUNNING, State.PAUSED, State.FAILED, State.UNASSIGNED)},
    State.DESTROYED: "deleted",
    State.RESTARTING: "restarting",
}


def _in_state(state: State) -> Callable[[Counter[State], int], int]:
    return lambda states, _: states[state]


#: A connector's tasks on this worker, by state.
_COUNTED: Final[Rows[Counter[State]]] = (
    ("total_task_count", "Tasks of the connector that are on this worker.", lambda states, _: states.total()),
    *(
        (f"{state.lower()}_task_count", f"Tasks of the connector on this worker that are {words}.", _in_state(state))
        for state, words in _STATE_WORDS.items()
    ),
)


async def _of_connectors(workers: Sequence[DistributedWorker], now_ms: int) -> list[Metric]:
    status = _family("connector_metrics_status", "Always 1; the label has the state.", _OF_CONNECTOR, "status")
    parts = _part_families("connector_metrics", _CONNECTOR_PARTS, _OF_CONNECTOR)
    counted = Families(f"{PREFIX}connect_worker_metrics_connector_", _OF_CONNECTOR, _COUNTED)
    for worker in workers:
        group = worker.config.group_id
        async for name, connector in in_turns(list(worker.worker.connectors.items())):
            status.add_metric((group, name, connector.state.lower()), 1)
            _add_parts(parts, _CONNECTOR_PARTS, (group, name), connector.known)
        states: dict[str, Counter[State]] = {}
        for task, runner in list(worker.worker.tasks.items()):
            states.setdefault(task.connector, Counter())[runner.state] += 1
        for name, counts in states.items():
            counted.add((group, name), counts, now_ms)
    return [status, *parts, *counted]


async def _of_tasks(workers: Sequence[DistributedWorker], now_ms: int) -> list[Metric]:
    status = _family("connector_task_metrics_status", "Always 1; the label has the state.", _OF_TASK, "status")
    parts = _part_families("connector_task_metrics", _TASK_PARTS, _OF_TASK)
    gauges = [Families(f"{PREFIX}{domain}_", _OF_TASK, rows) for domain, rows in _TASK.items()]
    transactions = Families(f"{PREFIX}source_task_metrics_transaction_", _OF_TASK, _TRANSACTIONS)
    steps = {
        kind: _part_families(f"connector_{kind}_metrics", (f"{kind}-class", f"{kind}-version"), (*_OF_TASK, kind))
        for kind in ("transform", "predicate")
    }
    for worker in workers:
        async for task, runner in in_turns(list(worker.worker.tasks.items())):
            labels = (worker.config.group_id, task.connector, str(task.task))
            counters = runner.counters
            status.add_metric((*labels, runner.state.lower()), 1)
            _add_parts(parts, _TASK_PARTS, labels, runner.known)
            for each in gauges:
                each.add(labels, counters, now_ms)
            if counters.transaction_records.recorded:
                transactions.add(labels, counters, now_ms)
            for kind, alias, *reported in runner.known.steps:
                for family, part in zip(steps[kind], reported, strict=True):
                    family.add_metric((*labels, alias, part), 1)
    of_steps = (family for families in steps.values() for family in families)
    return [status, *parts, *chain(*gauges), *transactions, *of_steps]


def _family(name: str, text: str, labels: Iterable[str], *more: str) -> Family:
    return new_family(PREFIX + name, text, (*labels, *more))


def _part_families(prefix: str, parts: Iterable[str], labels: Iterable[str]) -> list[Family]:
    return [text_family(prefix, part, labels) for part in parts]


def text_family(prefix: str, attribute: str, labels: Iterable[str]) -> Family:
    """Return a family of series that are 1, with one of Java's text attributes as a label."""
    name = attribute.replace("-", "_")
    return _family(f"{prefix}_{name}", f"Always 1; the label has the {name.replace('_', ' ')}.", labels, name)


def _add_parts(families: Iterable[Family], parts: Iterable[str], labels: tuple[str, ...], known: Known) -> None:
    for family, part in zip(families, parts, strict=True):
        if part in known.parts:
            family.add_metric((*labels, known.parts[part]), 1)


def _starts(kind: str) -> Rows[DistributedWorker]:
    prefix, starts = f"{kind}_startup", f"worker.{kind}_starts"
    succeeded, failed, well = attrgetter(f"{starts}.succeeded"), attrgetter(f"{starts}.failed"), f"{starts}.well"
    share = "Share of the last minute's starts that"
    return (
        (
            f"{prefix}_attempts_total",
            f"{kind.capitalize()}s started on this worker.",
            lambda one, _: succeeded(one) + failed(one),
        ),
        (f"{prefix}_success_total", "Starts on this worker that succeeded.", lambda one, _: succeeded(one)),
        (f"{prefix}_success_percentage", f"{share} succeeded.", _share(well)),
        (f"{prefix}_failure_total", "Starts on this worker that failed.", lambda one, _: failed(one)),
        (f"{prefix}_failure_percentage", f"{share} failed.", _lack(well)),
    )


#: By domain.
_WORKER: Final[Mapping[str, Rows[DistributedWorker]]] = {
    "app_info": (("start_time_ms", "Time at which the worker started, in ms since 1970.", lambda one, _: one.made_ms),),
    "connect_worker_metrics": (
        ("connector_count", "Connectors that run on this worker.", lambda one, _: len(one.worker.connectors)),
        ("task_count", "Tasks that run on this worker.", lambda one, _: len(one.worker.tasks)),
        *_starts("connector"),
        *_starts("task"),
    ),
    "connect_worker_rebalance_metrics": (
        (
            "completed_rebalances_total",
            "Rebalances that this worker has completed.",
            lambda one, _: one.rebalances.completed,
        ),
        (
            "rebalancing",
            "1 while the worker takes part in a rebalance, else 0.",
            lambda one, _: float(one.rebalances.began_ms is not None),
        ),
        ("epoch", "Generation of the group that the worker is a member of.", lambda one, _: one.core.generation),
        (
            "rebalance_max_time_ms",
            "Longest time in ms that a rebalance took in the last minute.",
            lambda one, _: one.rebalances.took_ms.most(one.steady_ms()),
        ),
        (
            "rebalance_avg_time_ms",
            "Mean time in ms that a rebalance took in the last minute.",
            lambda one, _: one.rebalances.took_ms.mean(one.steady_ms()),
        ),
        (
            "time_since_last_rebalance_ms",
            "Time in ms since the end of the last rebalance.",
            lambda one, _: math.nan if (ended := one.rebalances.ended_ms) is None else one.steady_ms() - ended,
        ),
    ),
    "connect_coordinator_metrics": (
        (
            "assigned_connectors",
            "Connectors that the group has assigned to this worker.",
            lambda one, _: len(one.core.assignment.connectors),
        ),
        (
            "assigned_tasks",
            "Tasks that the group has assigned to this worker.",
            lambda one, _: len(one.core.assignment.tasks),
        ),
    ),
}

_GROUP: Final[Rows[GroupMeters]] = (
    (
        "heartbeat_response_time_max",
        "Longest time in ms until the coordinator answered a heartbeat.",
        _most("heartbeat_ms"),
    ),
    ("heartbeat_rate", "Heartbeats per second, over the last minute.", _frequency("heartbeat_ms")),
    ("heartbeat_total", "Heartbeats that the coordinator has answered.", lambda of, _: of.heartbeat_ms.recorded),
    (
        "last_heartbeat_seconds_ago",
        "Seconds since the last heartbeat was sent; -1 if none was.",
        lambda of, now: _ago(of.heartbeat_sent_ms, now),
    ),
    ("join_time_avg", "Mean time in ms to join the group.", _mean("join_ms")),
    ("join_time_max", "Longest time in ms to join the group.", _most("join_ms")),
    ("join_rate", "Joins of the group per second, over the last minute.", _frequency("join_ms")),
    ("join_total", "Joins of the group since the start.", lambda of, _: of.join_ms.recorded),
    ("sync_time_avg", "Mean time in ms to sync with the group.", _mean("sync_ms")),
    ("sync_time_max", "Longest time in ms to sync with the group.", _most("sync_ms")),
    ("sync_rate", "Syncs with the group per second, over the last minute.", _frequency("sync_ms")),
    ("sync_total", "Syncs with the group since the start.", lambda of, _: of.sync_ms.recorded),
    ("rebalance_latency_avg", "Mean time in ms that a rebalance took.", _mean("rounds_ms")),
    ("rebalance_latency_max", "Longest time in ms that a rebalance took.", _most("rounds_ms")),
    ("rebalance_latency_total", "Time in ms that all rebalances took together.", lambda of, _: of.rounds_ms.total),
    (
        "rebalance_rate_per_hour",
        "Rebalances per hour, at the rate of the last minute.",
        lambda of, now_ms: of.rounds_ms.frequency(now_ms) * 3600,
    ),
    ("rebalance_total", "Rebalances since the start.", lambda of, _: of.rounds_ms.recorded),
    (
        "failed_rebalance_rate_per_hour",
        "Failed rebalances per hour, at the rate of the last minute.",
        lambda of, now_ms: of.failed_rounds.frequency(now_ms) * 3600,
    ),
    ("failed_rebalance_total", "Rebalances that failed since the start.", lambda of, _: of.failed_rounds.recorded),
    (
        "last_rebalance_seconds_ago",
        "Seconds since the last rebalance ended; -1 if there was none.",
        lambda of, now_ms: _ago(of.round_ended_ms, now_ms),
    ),
)
#: Text attributes in Java: a label with the attribute's name, of a series with the value 1.
_TEXTS: Final[tuple[tuple[str, str, Callable[[DistributedWorker], str]], ...]] = (
    ("app_info", "version", lambda one: one.herder.info.version),
    ("app_info", "commit-id", lambda one: one.herder.info.commit),
    ("connect_worker_rebalance_metrics", "leader-name", lambda one: one.core.leader_url or ""),
    ("connect_worker_rebalance_metrics", "connect-protocol", lambda one: one.core.protocol),
)
_LABELS: Final = ("group",)


async def worker_metrics(workers: Sequence[DistributedWorker], now_ms: int) -> list[Metric]:
    """Return the metrics of all workers of this process: of each also a series per connector and task. Other work on
    the loop gets turns in between, because a task takes about 40 us."""
    return [
        *_of_workers(workers, now_ms),
        *_of_groups(workers, now_ms),
        *_of_restarts(workers),
        *_of_audits(workers),
        *await _of_connectors(workers, now_ms),
        *await _of_tasks(workers, now_ms),
    ]


def _of_workers(workers: Sequence[DistributedWorker], now_ms: int) -> Iterator[Metric]:
    gauges = [Families(f"{PREFIX}{domain}_", _LABELS, rows) for domain, rows in _WORKER.items()]
    texts = [(text_family(name, text, _LABELS), value) for name, text, value in _TEXTS]
    for worker in workers:
        labels = (worker.config.group_id,)
        for each in gauges:
            each.add(labels, worker, now_ms)
        for family, value in texts:
            family.add_metric((*labels, value(worker)), 1)
    yield from chain(*gauges)
    yield from (family for family, _ in texts)


def _of_groups(workers: Sequence[DistributedWorker], now_ms: int) -> Iterator[Metric]:
    gauges = Families(f"{PREFIX}connect_coordinator_metrics_", _LABELS, _GROUP)
    for worker in workers:
        gauges.add((worker.config.group_id,), worker.group.meters, now_ms)
    yield from gauges


def _of_restarts(workers: Sequence[DistributedWorker]) -> Iterator[Metric]:
    text = "Automatic restarts that this worker has decided on."
    of_connectors = _family("connector_metrics_auto_restart_total", text, _OF_CONNECTOR)
    of_tasks = _family("connector_task_metrics_auto_restart_total", text, _OF_TASK)
    for worker in workers:
        group, totals = worker.config.group_id, worker.restarts.totals
        # With 0 before the first, because Prometheus sees an increase only from a value that it has read.
        for connector in worker.worker.connectors:
            of_connectors.add_metric((group, connector), totals.get(connector, 0))
        for task in worker.worker.tasks:
            of_tasks.add_metric((group, task.connector, str(task.task)), totals.get(task, 0))
    yield of_connectors
    yield of_tasks


def _of_audits(workers: Sequence[DistributedWorker]) -> Iterator[Metric]:
    written = CounterMetricFamily("heliograph_audit_entries", "Entries written to the audit topic.", labels=_LABELS)
    dropped = CounterMetricFamily(
        "heliograph_audit_dropped", "Audit entries lost because too many waited for the cluster.", labels=_LABELS
    )
    for worker in workers:
        if worker.audit.topic is not None:
            written.add_metric((worker.config.group_id,), worker.audit.written)
            dropped.add_metric((worker.config.group_id,), worker.audit.dropped)
    yield from (written, dropped)


def _ago(at_ms: int | None, now_ms: int) -> float:
    return -1 if at_ms is None else (now_ms - at_ms) // 1000
