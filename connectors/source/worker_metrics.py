"""Export the mirror's metrics for Prometheus, with the lag and states of all partitions of the worker's tasks.

The names are those that the usual exporter gives Java's (``MirrorSourceMetrics``). A task that copies reports lag and
state by itself, as of this moment. For partitions that are stopped or waiting, whose task is paused or has failed, or
whose connector is STOPPED, no task asks the source any more. The watch here asks it at an interval, and asks for sizes
and ages of all partitions.
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
from connect.core.metrics import Gauges, Rows
from connect.core.model import State
from connect.kafka.concurrency import Scope, in_turns
from connectors.config.client_config import FlowClients
from connectors.config.connector_configs import MirrorSourceSettings
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
    Views,
    age_ms,
    is_stopped,
    together,
)
from connectors.formats.types import FlowName, TopicPartition
from connectors.internal_topics import PartitionState, read_states, record_settings
from connectors.lag_reader import NOTICED_WITHIN_S, ContactWatch, LagReader
from connectors.source.plugin import partition_rows, settings_of
from connectors.source.positions.partition_pairs import STARTING
from connectors.source.worker_context import FlowParts, MirrorHost, looked_at_parts
from connectors.topic_sync.partition_assignment import assigned_before

_PREFIX: Final = "kafka_connect_mirror_MirrorSourceConnector_"
_LABELS: Final = ("source", "target", "topic", "partition")
#: So many partitions are looked at before others of the loop have their turn; each takes some 65 us.
_AT_ONCE: Final = 100

#: Java's attributes: name, meaning, and how a meter gives it at a time.
_MEASURED: Final[Rows[PartitionMeter]] = (
    ("record_count", "Records copied since the task began.", lambda meter, _: meter.records),
    ("record_rate", "Records copied a second.", lambda meter, now_ms: meter.record_rate.rate(now_ms)),
    ("byte_count", "Bytes copied since the task began.", lambda meter, _: meter.bytes),
    ("byte_rate", "Bytes copied a second.", lambda meter, now_ms: meter.byte_rate.rate(now_ms)),
    ("record_age_ms", "Age of the newest record read last.", lambda meter, _: meter.age_ms.last),
    ("record_age_ms_min", "Least age of a record.", lambda meter, now_ms: meter.age_ms.least(now_ms)),
    ("record_age_ms_max", "Greatest age of a record.", lambda meter, now_ms: meter.age_ms.most(now_ms)),
    ("record_age_ms_avg", "Mean age of records.", lambda meter, now_ms: meter.age_ms.mean(now_ms)),
    ("replication_latency_ms", "From a record's time to its copy, last.", lambda meter, _: meter.age_ms.last),
    ("replication_latency_ms_min", "Least such time.", lambda meter, now_ms: meter.age_ms.least(now_ms)),
    ("replication_latency_ms_max", "Greatest such time.", lambda meter, now_ms: meter.age_ms.most(now_ms)),
    ("replication_latency_ms_avg", "Mean of such times.", lambda meter, now_ms: meter.age_ms.mean(now_ms)),
)
#: Ours beside them, from where a partition stands.
_STANDING: Final[Rows[PartitionView]] = (
    ("skipped_records", "Records left out, as the target refuses them.", lambda view, _: view.skipped),
    ("lost_offsets", "Source offsets that were lost and passed over.", lambda view, _: view.lost),
    ("transform_dropped_records", "Records that a transformation dropped.", lambda view, _: view.dropped),
    ("transform_changed_records", "Records that a transformation changed.", lambda view, _: view.changed),
    ("batches_shallow", "Batches of the source passed on as they were.", lambda view, _: view.batches["shallow"]),
    ("batches_merged", "Batches of the source sent in one with others.", lambda view, _: view.batches["merged"]),
    ("batches_rebuilt", "Batches of the source built again from records.", lambda view, _: view.batches["rebuilt"]),
    ("batches_dropped", "Batches of the source left out.", lambda view, _: view.batches["dropped"]),
)
#: And how far it is behind, whether its task runs or not; -1 where that is not known.
_BEHIND: Final[Rows[PartitionLag]] = (
    ("lag_records", "Offsets of the source that are not copied yet.", lambda lag, _: lag.records),
    ("lag_bytes", "What they take at the source, about.", lambda lag, _: lag.bytes),
    ("lag_ms", "Age of the oldest record that is not copied yet.", lambda lag, _: lag.ms),
    ("lag_lost_offsets", "Offsets that are not copied, and that the source has no more.", lambda lag, _: lag.lost),
)
_STOPPED: Final[Rows[str]] = (
    ("stopped", "1 where the partition has stopped and waits for somebody.", lambda state, _: is_stopped(state)),
)
#: Whether its clusters answer, as this worker finds every few seconds.
_CONTACT: Final[Rows[Contact]] = (
    ("source_answers", "1 if the source cluster answers, 0 if not, -1 if not known.", lambda one, _: _told(one.source)),
    ("target_answers", "1 if the target cluster answers, 0 if not, -1 if not known.", lambda one, _: _told(one.target)),
    (
        "last_fetch_age_ms",
        "Time since a fetch was answered; -1 if none was.",
        lambda one, now_ms: age_ms(one.source.moved_ms, now_ms),
    ),
    (
        "last_produce_age_ms",
        "Time since a produce request was answered; -1 if none was.",
        lambda one, now_ms: age_ms(one.target.moved_ms, now_ms),
    ),
    (
        "lag_unknown_ms",
        "Time since the lag was known last, 0 while it is known; -1 if it never was.",
        lambda one, now_ms: 0 if one.knows_lag else age_ms(one.source.answered_ms, now_ms),
    ),
)
#: The same of flows: sums, and the greatest age.
_OF_FLOWS: Final[Rows[Lag]] = (
    ("flow_lag_records", "Offsets that are not copied yet, of all partitions here.", lambda lag, _: lag.records),
    ("flow_lag_bytes", "What they take at the source, about.", lambda lag, _: lag.bytes),
    ("flow_lag_ms", "Age of the oldest record that is not copied yet.", lambda lag, _: lag.ms),
    ("flow_lag_lost_offsets", "Offsets that the source has no more.", lambda lag, _: lag.lost),
)
#: Of a flow whose connector is STOPPED, before the first look at its source.
_NOT_SEEN: Final = Lag(0, -1, -1, -1, 0)


def _told(side: ClusterContact) -> int:
    return UNKNOWN if side.answers is None else int(side.answers)


async def mirror_metrics(hosts: Sequence[MirrorHost], now_ms: int) -> list[Metric]:
    """Of all partitions that tasks of this process have; a value per partition in each family.

    Others of the loop have their turn in between: ten thousand partitions take most of a second."""
    measured, standing = Gauges(_PREFIX, _LABELS, _MEASURED), Gauges(_PREFIX, _LABELS, _STANDING)
    behind, stopped = Gauges(_PREFIX, _LABELS, _BEHIND), Gauges(_PREFIX, _LABELS, _STOPPED)
    flows, contacted = Gauges(_PREFIX, _LABELS[:2], _OF_FLOWS), Gauges(_PREFIX, _LABELS[:2], _CONTACT)
    states = GaugeMetricFamily(f"{_PREFIX}partitions", "Partitions by state.", labels=("source", "target", "state"))
    counted: Counter[tuple[FlowName, str]] = Counter()
    lags: dict[FlowName, list[PartitionLag]] = {}
    contacts: dict[FlowName, Contact] = {}

    def stands(flow: FlowName, labels: tuple[str, ...], state: str, lag: PartitionLag | None) -> None:
        counted[flow, state] += 1
        stopped.add(labels, state, now_ms)
        if lag is not None:
            lag = lag if contacts[flow].knows_lag else lag.lost_sight()
            behind.add(labels, lag, now_ms)
            lags.setdefault(flow, []).append(lag)

    for host in hosts:
        for connector, watch in host.watches.items():
            contacts[watch.flow] = host.contact(connector)
        for (connector, _), task in list(host.running.items()):
            contacts[task.flow] = host.contact(connector)
            async for partition, meter in in_turns(list(task.meters.partitions.items()), _AT_ONCE):
                labels = (*task.flow, task.target_topic(partition), str(partition.partition))
                measured.add(labels, meter, now_ms)
            async for view in in_turns(task.view(now_ms), _AT_ONCE):
                labels = (*task.flow, view.target_topic, str(view.target_partition))
                standing.add(labels, view, now_ms)
                stands(task.flow, labels, view.state, _lag(host.seen.get(connector), view, now_ms))
        for connector, seen in list(host.seen.items()):
            contacts[seen.flow] = host.contact(connector)
            running = {index for name, index in host.running if name == connector}
            if seen.is_stopped and running:
                continue  # it was resumed since that was seen
            if seen.is_stopped:
                lags.setdefault(seen.flow, [])
            async for one in in_turns(seen.resting, _AT_ONCE):
                if one.task not in running:
                    labels = (*seen.flow, one.target_topic, str(one.source.partition))
                    stands(seen.flow, labels, one.state, seen.resting_lag(one, now_ms))
    for flow, of_flow in lags.items():
        flows.add(flow, together(of_flow) if of_flow else _NOT_SEEN, now_ms)
    for flow, known in contacts.items():
        contacted.add(flow, known, now_ms)
    for (flow, state), count in counted.items():
        states.add_metric((*flow, state), count)
    tables = (measured, standing, behind, stopped, flows, contacted)
    return [*(family for table in tables for family in table), states]


def _lag(seen: LagSnapshot | None, view: PartitionView, now_ms: int) -> PartitionLag | None:
    """As the task tells it, until the first look at the source."""
    lag = None if seen is None else seen.lag_of(view, now_ms)
    if lag is not None or view.next_source_offset < 0:
        return lag
    at = (view.next_source_offset, view.source_end_offset, view.lag_records)
    size = -1 if view.lag_records else 0
    return PartitionLag(view.source_topic, view.source_partition, view.target_topic, *at, bytes=size, ms=view.lag_ms)


log = logging.getLogger(__name__)

#: By name, what gives each mirror that is a matter of this worker, whether it has tasks here or not.
ConnectorsHere = Callable[[], Mapping[str, Callable[[], ConnectorHere]]]
_TICK_S: Final = 1.0
_AFTER_ERROR_S: Final = 10.0
#: Looks take at most this share of the time: where one takes long, the next is put off.
_SHARE: Final = 0.1
#: Partitions whose oldest waiting record is looked up in one look; what stands still is looked up once.
_STAMPS: Final = 200
#: So many partitions are looked at before others of the loop have their turn; each takes some 4 us.
_PARTITIONS_AT_ONCE: Final = 500
#: States, by the group, of tasks that copy or are about to.
_TO_RUN: Final = frozenset({State.UNASSIGNED, State.RUNNING, State.RESTARTING})
#: The state of a partition that no task has.
_WITHOUT_TASK: Final = State.UNASSIGNED.lower()
#: How long stored positions of tasks that do not run are taken as they were read.
_STORED_S: Final = 60.0


@dataclass(slots=True)
class _Watched:
    """One connector, as long as its settings stay the same."""

    settings: MirrorSourceSettings
    clients: FlowClients
    parts: FlowParts
    closing: AsyncExitStack
    reader: LagReader
    watch: ContactWatch
    stored: dict[TopicPartition, int] = field(default_factory=dict)
    stored_s: float = float("-inf")
    #: As of the last look.
    is_stopped: bool = False


class LagWatch:
    """Of one worker. What it sees stands in ``host.seen``."""

    def __init__(self, host: MirrorHost, here: ConnectorsHere) -> None:
        self._host = host
        self._here = here
        self._watched: dict[str, _Watched] = {}
        self._due_s: dict[str, float] = {}
        self._said: dict[str, str] = {}
        #: Tasks that had begun to copy at the last look: where others have, the next is due.
        self._ran: dict[str, frozenset[tuple[str, int]]] = {}
        #: Since when connectors have tasks that are about to copy.
        self._starting_s: dict[str, float] = {}
        #: Since when connectors that were watched are no longer here.
        self._absent_s: dict[str, float] = {}
        self._scope = Scope("lag of mirrors")

    def start(self) -> None:
        """Begin to look, within a running loop."""
        self._scope.spawn(self._forever(), f"lag of mirrors in {self._host.group_id}")

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
                    self._host.forget_contact(name)
            self._absent_s = {name: since_s for name, since_s in self._absent_s.items() if name not in here}
            for name, connector in here.items():
                running = frozenset(
                    key for key, task in self._host.running.items() if key[0] == name and task.state != STARTING
                )
                if time.monotonic() >= self._due_s.get(name, 0.0) or running != self._ran.get(name):
                    await self._look(name, connector)
                    self._ran[name] = running
            await asyncio.sleep(_TICK_S)

    def _is_over(self, name: str) -> bool:
        """Whether a connector that is not here is no matter of this worker any more: not if the worker has lost it
        because a cluster does not answer, which has to be seen as long as that lasts."""
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
                before = self._host.seen.get(name)  # until the next look, which has to wait while the source is silent
                self._host.seen[name] = _of_stopped(
                    watched.settings.flow_name, {} if before is None else before.lags, {}
                )
                watched.stored_s = float("-inf")
            watched.is_stopped = here.is_stopped
            if not watched.watch.contact.knows_lag:
                interval_s = _TICK_S  # the watch has said why; once the source answers, the next look is due
            elif interval_s < float("inf") and here.is_stopped:
                await self._look_at_all(name, watched)
            elif interval_s < float("inf"):
                await self._look_at(name, watched, here.tasks)
            self._said.pop(name, None)
        except HeliographError as error:
            if self._said.get(name) != str(error):
                self._said[name] = str(error)
                log.warning("%s: how far behind it is cannot be told: %s", name, error)
        except Exception as error:  # a mistake of ours: metrics are not worth more than the copy
            log.error("%s: how far behind it is cannot be told", name, exc_info=error)
        took_s = time.monotonic() - began_s
        self._due_s[name] = began_s + max(interval_s, took_s / _SHARE)

    async def _look_at(self, name: str, watched: _Watched, tasks: Sequence[TaskReport]) -> None:
        running = [task for (connector, _), task in self._host.running.items() if connector == name]
        positions = {
            TopicPartition(view.source_topic, view.source_partition): view.next_source_offset
            async for view in in_turns(Views(running, 0), _PARTITIONS_AT_ONCE)
            if view.next_source_offset >= 0
        }
        starting = self._starting(name, tasks)
        assigned = assigned_before([task.config for task in tasks])
        partitions = sorted(
            one for task, own in zip(tasks, assigned, strict=True) if task.task not in starting for one in own
        )
        without = [one for one in partitions if one not in positions]
        positions |= {one: at for one, at in (await self._stored(watched, without)).items() if one not in positions}
        lag = await watched.reader.of(positions, _STAMPS)
        seen = {TopicPartition(one.topic, one.partition): one for one in lag.partitions}
        idle = [one for one in tasks if (name, one.task) not in self._host.running and one.task not in starting]
        resting = await _resting(watched, idle)
        self._host.seen[name] = LagSnapshot(watched.settings.flow_name, _now_ms(), seen, resting)

    async def _look_at_all(self, name: str, watched: _Watched) -> None:
        """Of a connector without tasks: what it selects, by what is stored."""
        now_s = time.monotonic()
        if now_s - watched.stored_s > _STORED_S:
            watched.stored, watched.stored_s = await watched.reader.positions(), now_s
        lag = await watched.reader.of(watched.stored, _STAMPS)
        noted = await read_states(watched.parts.store, record_settings(watched.settings))
        seen = {TopicPartition(one.topic, one.partition): one for one in lag.partitions}
        self._host.seen[name] = _of_stopped(watched.settings.flow_name, seen, noted)

    def _starting(self, name: str, tasks: Sequence[TaskReport]) -> set[int]:
        """Tasks that are reading where they go on, and tell it in a moment: nothing reads it beside them. One that
        takes long is no longer waited for."""
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
        settings, clients = settings_of(config, self._host)
        known = self._watched.get(name)
        if known is not None and known.clients == clients:
            known.settings = settings
            return known
        await self._forget(name)
        closing = AsyncExitStack()
        # Connections of its own: what a broker takes long over must not hold up the tasks'.
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


def _of_stopped(
    flow: FlowName, lags: Mapping[TopicPartition, PartitionLag], noted: Mapping[TopicPartition, PartitionState]
) -> LagSnapshot:
    resting = tuple(
        Resting(None, one, lag.target_topic, noted[one].state if one in noted else _WITHOUT_TASK)
        for one, lag in lags.items()
    )
    return LagSnapshot(flow, _now_ms(), lags, resting, is_stopped=True)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


async def _resting(watched: _Watched, idle: Sequence[TaskReport]) -> tuple[Resting, ...]:
    """Partitions of tasks that are here and do not run."""
    if not idle:
        return ()
    noted = await read_states(watched.parts.store, record_settings(watched.settings))
    return tuple(
        Resting(row["task"], TopicPartition(row["topic"], row["partition"]), row["target_topic"], row["state"])
        for row in await partition_rows(watched.settings, idle, noted)
    )
