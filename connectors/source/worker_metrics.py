"""Export the mirror's metrics for Prometheus, with the lag and states of all partitions of the worker's tasks.

The names are those of Java's metrics (``MirrorSourceMetrics``) in the usual exporter. A task reports the lag and state
of the partitions that it copies. For others, which are stopped, waiting, or without a running task, the watch here
polls the source. It also reads the sizes and ages of partitions that have moved since.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from connect.api.connector import Props
from connect.api.source import ConnectorHere, TaskReport
from connect.core.errors import HeliographError
from connect.core.metrics import Families, Rows
from connect.core.model import State
from connect.kafka.concurrency import Scope, in_turns, wall_ms
from connect.kafka.security.connection_settings import open_stores
from connectors.config.client_config import FlowClients
from connectors.config.connector_configs import MirrorSourceSettings
from connectors.flow_history import SAMPLE_S
from connectors.flow_progress import (
    UNKNOWN,
    ClusterContact,
    Contact,
    Lag,
    LagSnapshot,
    PartitionLag,
    PartitionMeter,
    PartitionView,
    Resting,
    Takeovers,
    age_ms,
    is_stopped,
    together,
)
from connectors.formats.types import RUNNING, FlowName, TopicPartition
from connectors.internal_topics import PartitionState, read_states, record_settings
from connectors.lag_reader import NOTICED_WITHIN_S, ContactWatch, LagReader
from connectors.source.lag_and_partition_reports import partition_rows
from connectors.source.plugin import settings_of
from connectors.source.positions.partition_pairs import STARTING
from connectors.source.task import MirrorSourceTask
from connectors.source.verification_metrics import read_last_runs
from connectors.source.worker_context import FlowParts, MirrorHost, looked_at_parts
from connectors.spark.engine import SparkEngine
from connectors.topic_sync.partition_assignment import assigned_before

_PREFIX: Final = "kafka_connect_mirror_MirrorSourceConnector_"
_LABELS: Final = ("source", "target", "topic", "partition")

#: Java's attributes: name, help text, and how to read it from a meter at a time.
_MEASURED: Final[Rows[PartitionMeter]] = (
    ("record_count", "Records copied since the task started.", lambda meter, _: meter.records),
    ("record_rate", "Records copied per second.", lambda meter, now_ms: meter.record_rate.rate(now_ms)),
    ("byte_count", "Bytes copied since the task started.", lambda meter, _: meter.bytes),
    ("byte_rate", "Bytes copied per second.", lambda meter, now_ms: meter.byte_rate.rate(now_ms)),
    ("record_age_ms", "Age of the newest record that was read last.", lambda meter, _: meter.age_ms.last),
    ("record_age_ms_min", "Minimum age of records.", lambda meter, now_ms: meter.age_ms.least(now_ms)),
    ("record_age_ms_max", "Maximum age of records.", lambda meter, now_ms: meter.age_ms.most(now_ms)),
    ("record_age_ms_avg", "Mean age of records.", lambda meter, now_ms: meter.age_ms.mean(now_ms)),
    ("replication_latency_ms", "Last time from a record's timestamp to its copy.", lambda meter, _: meter.age_ms.last),
    ("replication_latency_ms_min", "Minimum of these times.", lambda meter, now_ms: meter.age_ms.least(now_ms)),
    ("replication_latency_ms_max", "Maximum of these times.", lambda meter, now_ms: meter.age_ms.most(now_ms)),
    ("replication_latency_ms_avg", "Mean of these times.", lambda meter, now_ms: meter.age_ms.mean(now_ms)),
)
#: Metrics that Java does not have, from the state of a partition.
_OF_VIEWS: Final[Rows[PartitionView]] = (
    ("skipped_records", "Records skipped because the target refuses them.", lambda view, _: view.skipped),
    ("lost_offsets", "Source offsets that were lost and passed over.", lambda view, _: view.lost),
    ("transform_dropped_records", "Records that a transformation dropped.", lambda view, _: view.dropped),
    ("transform_changed_records", "Records that a transformation changed.", lambda view, _: view.changed),
    ("batches_shallow", "Source batches copied unchanged.", lambda view, _: view.batches["shallow"]),
    ("batches_merged", "Source batches sent in one batch with others.", lambda view, _: view.batches["merged"]),
    ("batches_rebuilt", "Source batches rebuilt from their records.", lambda view, _: view.batches["rebuilt"]),
    ("batches_dropped", "Source batches that are not copied.", lambda view, _: view.batches["dropped"]),
)
#: The lag, whether the task runs or not; -1 if it is not known.
_BEHIND: Final[Rows[PartitionLag]] = (
    ("lag_records", "Source offsets that are not copied yet.", lambda lag, _: lag.records),
    ("lag_bytes", "Approximate bytes of the source that are not copied yet.", lambda lag, _: lag.bytes),
    ("lag_ms", "Age of the oldest record that is not copied yet.", lambda lag, _: lag.ms),
    ("lag_lost_offsets", "Offsets that are not copied and no longer on the source.", lambda lag, _: lag.lost),
)
_STOPPED: Final[Rows[str]] = (
    ("stopped", "1 if the partition has stopped and needs an operator.", lambda state, _: is_stopped(state)),
)
#: Whether the clusters answer, as this worker checks every few seconds.
_CONTACT: Final[Rows[Contact]] = (
    (
        "source_answers",
        "1 if the source cluster answers, 0 if not, -1 if not known.",
        lambda one, _: _reported(one.source),
    ),
    (
        "target_answers",
        "1 if the target cluster answers, 0 if not, -1 if not known.",
        lambda one, _: _reported(one.target),
    ),
    (
        "last_fetch_age_ms",
        "Time since the last answer to a fetch; -1 if there was none.",
        lambda one, now_ms: age_ms(one.source.moved_ms, now_ms),
    ),
    (
        "last_produce_age_ms",
        "Time since the last answer to a produce request; -1 if there was none.",
        lambda one, now_ms: age_ms(one.target.moved_ms, now_ms),
    ),
    (
        "lag_unknown_ms",
        "Time since the lag was last known, 0 while it is known; -1 if it never was.",
        lambda one, now_ms: 0 if one.knows_lag else age_ms(one.source.answered_ms, now_ms),
    ),
)
#: The lag of flows: sums, and the maximum age.
_OF_FLOWS: Final[Rows[Lag]] = (
    ("flow_lag_records", "Source offsets that are not copied yet, of all partitions here.", lambda lag, _: lag.records),
    ("flow_lag_bytes", "Approximate bytes of the source that are not copied yet.", lambda lag, _: lag.bytes),
    ("flow_lag_ms", "Age of the oldest record that is not copied yet.", lambda lag, _: lag.ms),
    ("flow_lag_lost_offsets", "Offsets that are not copied and no longer on the source.", lambda lag, _: lag.lost),
)
#: Counted since the worker began to run the flow, also while none of its tasks runs here.
_TAKEOVERS: Final[Rows[Takeovers]] = (
    (
        "flow_resumed_exact_total",
        "Partitions that were taken over after a crash and continued without a duplicate.",
        lambda one, _: one.exact,
    ),
    (
        "flow_resumed_at_least_once_total",
        "Partitions that were taken over after a crash and continued at their stored position, without a proof.",
        lambda one, _: one.at_least_once,
    ),
    (
        "flow_announced_duplicates_total",
        "Records that may be at the target twice at most, as announced at takeovers.",
        lambda one, _: one.may_double,
    ),
    ("flow_skipped_gaps_total", "Gaps in logs that a policy has passed over.", lambda one, _: one.gaps),
    ("flow_skipped_offsets_total", "Source offsets that were lost in these gaps.", lambda one, _: one.lost),
    (
        "flow_slices_lost_total",
        "Slices that ended without having been asked to, after which their task took over again.",
        lambda one, _: one.slices_lost,
    ),
)
_OF_TASKS: Final[Rows[MirrorSourceTask]] = (
    ("task_copying", "1 while the task copies, 0 while it starts or recovers.", lambda task, _: task.state == RUNNING),
    ("task_epoch", "Number of the slice that the task runs, counted since its start.", lambda task, _: task.epoch),
)
#: The Spark of a process.
_OF_SPARK: Final[Rows[SparkEngine]] = (
    ("ready", "1 while the driver of Spark answers and accepts jobs, else 0.", lambda one, _: one.is_ready),
    ("jobs", "Jobs of slices that Spark runs, or that wait for a slot.", lambda one, _: one.jobs),
    (
        "slots",
        "Slots of Spark, each of which runs one slice; -1 if only the cluster knows.",
        lambda one, _: UNKNOWN if (slots := one.settings.slots()) is None else slots,
    ),
    ("lost_total", "Drivers of Spark that have ended without having been asked to.", lambda one, _: one.lost),
)
#: The lag of a flow whose connector is STOPPED, before the source is first polled.
_NOT_SEEN: Final = Lag(0, -1, -1, -1, 0)


def _reported(side: ClusterContact) -> int:
    return UNKNOWN if side.answers is None else int(side.answers)


async def mirror_metrics(hosts: Sequence[MirrorHost], now_ms: int) -> list[Metric]:
    """Return the metrics of all partitions of this process, with a value per partition in each family; other coroutines
    run in between, because ten thousand partitions take most of a second."""
    measured, viewed = Families(_PREFIX, _LABELS, _MEASURED), Families(_PREFIX, _LABELS, _OF_VIEWS)
    behind, stopped = Families(_PREFIX, _LABELS, _BEHIND), Families(_PREFIX, _LABELS, _STOPPED)
    flows, contacted = Families(_PREFIX, _LABELS[:2], _OF_FLOWS), Families(_PREFIX, _LABELS[:2], _CONTACT)
    takeovers, tasks = Families(_PREFIX, _LABELS[:2], _TAKEOVERS), Families(_PREFIX, (*_LABELS[:2], "task"), _OF_TASKS)
    taken: dict[FlowName, Takeovers] = {}
    states = GaugeMetricFamily(f"{_PREFIX}partitions", "Partitions by state.", labels=("source", "target", "state"))
    counted: Counter[tuple[FlowName, str]] = Counter()
    lags: dict[FlowName, list[PartitionLag]] = {}
    contacts: dict[FlowName, Contact] = {}

    def count_state(flow: FlowName, labels: tuple[str, ...], state: str, lag: PartitionLag | None) -> None:
        counted[flow, state] += 1
        stopped.add(labels, state, now_ms)
        if lag is not None:
            lag = lag if contacts[flow].knows_lag else lag.with_unknown_lag()
            behind.add(labels, lag, now_ms)
            lags.setdefault(flow, []).append(lag)

    for host in hosts:
        here = list(host.running.items())
        mirrors = {connector: watch.flow for connector, watch in host.watches.items()}
        mirrors |= {connector: task.flow for (connector, _), task in here}
        async for connector, flow in in_turns(list(mirrors.items())):  # each looks at all tasks
            contacts[flow] = host.contact(connector)
            taken[flow] = taken.get(flow, Takeovers()) + host.takeovers(connector)
        for (connector, index), task in here:
            tasks.add((*task.flow, str(index)), task, now_ms)
            async for partition, meter in in_turns(list(task.meters.partitions.items())):
                labels = (*task.flow, task.target_topic(partition), str(partition.partition))
                measured.add(labels, meter, now_ms)
            async for view in in_turns(task.view(now_ms)):
                labels = (*task.flow, view.target_topic, str(view.target_partition))
                viewed.add(labels, view, now_ms)
                count_state(task.flow, labels, view.state, _lag(host.seen.get(connector), view, now_ms))
        async for connector, seen in in_turns(list(host.seen.items())):
            contacts[seen.flow] = host.contact(connector)
            running = {index for name, index in host.running if name == connector}
            if seen.is_stopped and running:
                continue  # it was resumed since the snapshot
            if seen.is_stopped:
                lags.setdefault(seen.flow, [])
            async for one in in_turns(seen.resting):
                if one.task not in running:
                    labels = (*seen.flow, one.target_topic, str(one.source.partition))
                    count_state(seen.flow, labels, one.state, seen.resting_lag(one, now_ms))
    for flow, of_flow in lags.items():
        flows.add(flow, together(of_flow) if of_flow else _NOT_SEEN, now_ms)
    for flow, known in contacts.items():
        contacted.add(flow, known, now_ms)
    for flow, counts in taken.items():
        takeovers.add(flow, counts, now_ms)
    for (flow, state), count in counted.items():
        states.add_metric((*flow, state), count)
    tables = (measured, viewed, behind, stopped, flows, contacted, takeovers, tasks, _of_spark(hosts, now_ms))
    return [*(family for table in tables for family in table), states]


def _of_spark(hosts: Sequence[MirrorHost], now_ms: int) -> Families[SparkEngine]:
    """Return the metrics of the Spark that the hosts share; without a value before it is needed."""
    families = Families("heliograph_spark_", (), _OF_SPARK)
    for engine in {engine for host in hosts if (engine := host.spark.engine) is not None}:
        families.add((), engine, now_ms)
    return families


def _lag(seen: LagSnapshot | None, view: PartitionView, now_ms: int) -> PartitionLag | None:
    """Return a partition's lag from the snapshot; from its task until there is a snapshot."""
    lag = None if seen is None else seen.lag_of(view, now_ms)
    if lag is not None or view.next_source_offset < 0:
        return lag
    at = (view.next_source_offset, view.source_end_offset, view.lag_records)
    size = -1 if view.lag_records else 0
    return PartitionLag(view.source_topic, view.source_partition, view.target_topic, *at, bytes=size, ms=view.lag_ms)


log = logging.getLogger(__name__)

#: Returns, by name, getters of the mirrors that concern this worker, even those without tasks here.
ConnectorsHere = Callable[[], Mapping[str, Callable[[], ConnectorHere]]]
_TICK_S: Final = 1.0
_AFTER_ERROR_S: Final = 10.0
#: Polls take at most this share of the time: after a slow one the next is delayed.
_SHARE: Final = 0.1
#: Partitions per poll whose oldest record to copy is looked up, because its timestamp gives the lag in time.
_STAMPS: Final = 200
#: A slice that fetched within this time knows where the source's partitions end.
_CURRENT_MS: Final = 5000
#: States in the group of tasks that copy or are about to.
_TO_RUN: Final = frozenset({State.UNASSIGNED, State.RUNNING, State.RESTARTING})
#: The state of a partition that no task has.
_WITHOUT_TASK: Final = State.UNASSIGNED.lower()
#: How long stored positions of tasks that do not run are cached, if no task starts meanwhile.
_STORED_S: Final = 60.0


@dataclass(slots=True)
class _Watched:
    """A watched connector; replaced when its client settings change."""

    settings: MirrorSourceSettings
    clients: FlowClients
    parts: FlowParts
    closing: AsyncExitStack
    reader: LagReader
    watch: ContactWatch
    stored: dict[TopicPartition, int] = field(default_factory=dict)
    stored_s: float = float("-inf")
    #: As of the last poll.
    is_stopped: bool = False
    starts: int = 0


class LagWatch:
    """Polls the lag of one worker's mirrors into ``host.seen``."""

    def __init__(self, host: MirrorHost, here: ConnectorsHere) -> None:
        self._host = host
        self._here = here
        self._watched: dict[str, _Watched] = {}
        self._due_s: dict[str, float] = {}
        self._said: dict[str, str] = {}
        #: Tasks that ran at the last poll; a change makes the next one due.
        self._ran: dict[str, frozenset[tuple[str, int]]] = {}
        #: Since when connectors have had starting tasks.
        self._starting_s: dict[str, float] = {}
        #: Since when watched connectors have been missing here.
        self._absent_s: dict[str, float] = {}
        self._scope = Scope("lag of mirrors")

    def start(self) -> None:
        """Start polling, within a running loop."""
        self._scope.spawn(self._forever(), f"lag of mirrors in {self._host.group_id}")
        self._scope.spawn(read_last_runs(self._host, self._watched), f"last verifications in {self._host.group_id}")
        self._scope.spawn(self._sample_forever(), f"last hour of mirrors in {self._host.group_id}")

    async def stop(self) -> None:
        await self._scope.close()
        for name in list(self._watched):
            await self._forget(name)

    async def _forever(self) -> None:
        while True:
            here = self._here()
            for name in (self._watched.keys() | self._due_s.keys()) - here.keys():
                if self._is_over(name):
                    await self._forget(name)
                    self._host.forget(name)
            self._absent_s = {name: since_s for name, since_s in self._absent_s.items() if name not in here}
            for name, connector in here.items():
                running = frozenset(
                    key for key, task in self._host.running.items() if key[0] == name and task.state != STARTING
                )
                if time.monotonic() >= self._due_s.get(name, 0.0) or running != self._ran.get(name):
                    await self._look(name, connector)
                    self._ran[name] = running
            await asyncio.sleep(_TICK_S)

    async def _sample_forever(self) -> None:
        while True:
            for name in self._here():
                self._host.sample(name)
                await asyncio.sleep(0)
            await asyncio.sleep(SAMPLE_S)

    def _is_over(self, name: str) -> bool:
        """Return whether a missing connector no longer concerns this worker. It still does if the worker has lost it
        because a cluster does not answer, which metrics have to show for that time."""
        absent_s = time.monotonic() - self._absent_s.setdefault(name, time.monotonic())
        watched = self._watched.get(name)
        if watched is None:
            return True
        contact = watched.watch.contact
        return absent_s > NOTICED_WITHIN_S and False not in (contact.source.answers, contact.target.answers)

    async def _look(self, name: str, connector: Callable[[], ConnectorHere]) -> None:
        interval_s, began_s = _AFTER_ERROR_S, time.monotonic()
        try:
            here = connector()
            watched = await self._watch(name, here.config)
            began_s = time.monotonic()
            interval_s = watched.settings.lag_interval_ms / 1000 or float("inf")
            if here.is_stopped and not watched.is_stopped:
                before = self._host.seen.get(name)  # kept until the next poll, which waits for the source's answer
                self._host.seen[name] = _of_stopped(
                    watched.settings.flow_name, {} if before is None else before.lags, {}
                )
                watched.stored_s = float("-inf")
            watched.is_stopped = here.is_stopped
            if watched.starts != (starts := self._host.starts[name]):
                # because a task that has started, even one that has failed since, may have moved its positions
                watched.starts, watched.stored_s = starts, float("-inf")
            if not watched.watch.contact.knows_lag:
                interval_s = _TICK_S  # the watch has logged why; once the source answers, the next poll is due
            elif interval_s < float("inf") and here.is_stopped:
                await self._look_at_all(name, watched)
            elif interval_s < float("inf"):
                await self._look_at(name, watched, here.tasks)
            self._said.pop(name, None)
        except HeliographError as error:
            if self._said.get(name) != str(error):
                self._said[name] = str(error)
                log.warning("%s: its lag cannot be read: %s", name, error)
        except Exception as error:  # a bug in the metrics must not stop the copy
            log.error("%s: its lag cannot be read", name, exc_info=error)
        took_s = time.monotonic() - began_s
        self._due_s[name] = began_s + max(interval_s, took_s / _SHARE)

    async def _look_at(self, name: str, watched: _Watched, tasks: Sequence[TaskReport]) -> None:
        positions: dict[TopicPartition, int] = {}
        resting_lags: dict[TopicPartition, PartitionLag] = {}
        known = self._host.seen[name].lags if name in self._host.seen else {}
        for task in [task for (connector, _), task in self._host.running.items() if connector == name]:
            is_current = wall_ms() - task.meters.fetched_ms <= _CURRENT_MS
            async for view in in_turns(task.view(0)):
                lag = known.get(view.source)
                if lag is not None and is_current and _is_at_rest(lag, view):
                    resting_lags[view.source] = lag
                elif view.next_source_offset >= 0:
                    positions[view.source] = view.next_source_offset
        starting = self._starting(name, tasks)
        assigned = assigned_before([task.config for task in tasks])
        partitions = sorted(
            one for task, own in zip(tasks, assigned, strict=True) if task.task not in starting for one in own
        )
        without = [one for one in partitions if not (one in positions or one in resting_lags)]
        positions |= {one: at for one, at in (await self._stored(watched, without)).items() if one not in positions}
        read = await watched.reader.of(positions, _STAMPS)
        seen = resting_lags | {TopicPartition(one.topic, one.partition): one for one in read.partitions}
        idle = [one for one in tasks if (name, one.task) not in self._host.running and one.task not in starting]
        resting = await _resting(watched, idle)
        self._host.seen[name] = LagSnapshot(watched.settings.flow_name, wall_ms(), seen, resting)

    async def _look_at_all(self, name: str, watched: _Watched) -> None:
        """Poll the lag of a connector without tasks, from its stored positions."""
        now_s = time.monotonic()
        if now_s - watched.stored_s > _STORED_S:
            watched.stored, watched.stored_s = await watched.reader.positions(), now_s
        lag = await watched.reader.of(watched.stored, _STAMPS)
        noted = await read_states(watched.parts.store, record_settings(watched.settings))
        seen = {TopicPartition(one.topic, one.partition): one for one in lag.partitions}
        self._host.seen[name] = _of_stopped(watched.settings.flow_name, seen, noted)

    def _starting(self, name: str, tasks: Sequence[TaskReport]) -> set[int]:
        """Return the tasks that are reading their stored positions and will report them soon, so that the watch does
        not read them too; none once that takes long."""
        starting = {task.task for task in tasks if task.state in _TO_RUN and self._is_silent(name, task.task)}
        if not starting:
            self._starting_s.pop(name, None)
            return starting
        since_s = self._starting_s.setdefault(name, time.monotonic())
        return starting if time.monotonic() - since_s < _STORED_S else set()

    def _is_silent(self, name: str, index: int) -> bool:
        task = self._host.running.get((name, index))
        return task is None or task.state == STARTING

    async def _stored(self, watched: _Watched, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        now_s = time.monotonic()
        is_known = all(one in watched.stored for one in partitions)
        if partitions and (now_s - watched.stored_s > _STORED_S or not is_known):
            watched.stored, watched.stored_s = await watched.reader.stored(partitions), now_s
        return {one: watched.stored[one] for one in partitions if one in watched.stored}

    async def _watch(self, name: str, config: Props) -> _Watched:
        await open_stores(config)
        settings, clients = settings_of(config, self._host)
        known = self._watched.get(name)
        if known is not None and known.clients == clients:
            known.settings = settings
            return known
        await self._forget(name)
        closing = AsyncExitStack()
        # Separate connections, so that a slow request does not delay those of tasks.
        parts = await closing.enter_async_context(
            looked_at_parts(clients, settings.source_alias, settings.target_alias, self._host.long_logs)
        )
        reader = LagReader(settings, parts.clusters.source, parts.store)
        watch = self._host.watches[name] = ContactWatch(settings.flow_name, parts.clusters.source, parts.store)
        closing.push_async_callback(watch.stop)
        watched = self._watched[name] = _Watched(settings, clients, parts, closing, reader, watch)
        return watched

    async def _forget(self, name: str) -> None:
        self._host.seen.pop(name, None)
        self._host.watches.pop(name, None)
        self._due_s.pop(name, None)
        self._ran.pop(name, None)
        self._absent_s.pop(name, None)
        self._starting_s.pop(name, None)
        if (watched := self._watched.pop(name, None)) is not None:
            await watched.closing.aclose()


def _is_at_rest(lag: PartitionLag, view: PartitionView) -> bool:
    """Return whether nothing waits and nothing has moved since ``lag`` was read, so that it need not be read again."""
    return view.state == RUNNING and lag.position == lag.end == view.next_source_offset == view.source_end_offset


def _of_stopped(
    flow: FlowName, lags: Mapping[TopicPartition, PartitionLag], noted: Mapping[TopicPartition, PartitionState]
) -> LagSnapshot:
    resting = tuple(
        Resting(None, one, lag.target_topic, noted[one].state if one in noted else _WITHOUT_TASK)
        for one, lag in lags.items()
    )
    return LagSnapshot(flow, wall_ms(), lags, resting, is_stopped=True)


async def _resting(watched: _Watched, idle: Sequence[TaskReport]) -> tuple[Resting, ...]:
    """Return the partitions of ``idle`` tasks."""
    if not idle:
        return ()
    noted = await read_states(watched.parts.store, record_settings(watched.settings))
    return tuple(
        Resting(row["task"], TopicPartition(row["topic"], row["partition"]), row["target_topic"], row["state"])
        for row in await partition_rows(watched.settings, idle, noted)
    )
