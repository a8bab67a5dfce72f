"""Export the mirror's metrics for Prometheus, under the names of Java's (``MirrorSourceMetrics``) in the usual
exporter, with the lag and states of all partitions of the worker's tasks (see ``lag_watch.py``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from connect.core.metrics import Families, Rows
from connect.kafka.concurrency import in_turns
from connectors.flow_facts import VerifiedFacts
from connectors.flow_progress import (
    UNKNOWN,
    ClusterContact,
    Contact,
    Lag,
    LagSnapshot,
    PartitionLag,
    PartitionMeter,
    PartitionView,
    Takeovers,
    age_ms,
    is_stopped,
    together,
)
from connectors.formats.types import RUNNING, FlowName
from connectors.source.task import MirrorSourceTask
from connectors.source.worker_context import MirrorHost
from connectors.spark.engine import SparkEngine

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
        "source_throttled_ratio",
        "Share of the last minute in which a quota of the source delayed fetches.",
        lambda one, _: one.source.throttled,
    ),
    (
        "target_throttled_ratio",
        "Share of the last minute in which a quota of the target delayed produce requests.",
        lambda one, _: one.target.throttled,
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
#: Of a flow that was never verified.
_NOT_VERIFIED: Final = VerifiedFacts(UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, undecided=UNKNOWN)
#: The two of what is unverified are of the partitions here, the others are the same on every worker.
_VERIFIED: Final[Rows[VerifiedFacts]] = (
    (
        "flow_verified_age_ms",
        "Time since a verification of the whole flow last ended; -1 if none did.",
        lambda one, now_ms: age_ms(one.ended_ms, now_ms),
    ),
    (
        "flow_verified_records",
        "Source records compared by verifications since the last full one; -1 if none ended.",
        lambda one, _: one.records,
    ),
    (
        "flow_verified_differences",
        "Differences that verifications found since the last full one; -1 if none ended.",
        lambda one, _: one.differences,
    ),
    (
        "flow_verified_undecided",
        "Records that look like differences to verifications, and no log decides; -1 if none ended.",
        lambda one, _: one.undecided,
    ),
    (
        "flow_verified_unread_partitions",
        "Partitions that the last verification could not compare; -1 if none ended.",
        lambda one, _: one.unread,
    ),
    (
        "flow_verified_recreated_topics",
        "Topics that were recreated since, at the source or the target; -1 if none ended, or it is unknown.",
        lambda one, _: UNKNOWN if one.records < 0 or one.recreated is None else len(one.recreated),
    ),
    (
        "flow_unverified_offsets",
        "Source offsets copied since the last verification, of partitions here; -1 if none ended.",
        lambda one, _: one.new_offsets,
    ),
    (
        "flow_unverified_partitions",
        "Partitions here with copies of which no verification has compared any; -1 if none ended.",
        lambda one, _: one.new_partitions,
    ),
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


async def verification_metrics(hosts: Sequence[MirrorHost], now_ms: int) -> list[Metric]:
    """Return the metrics of the flows of this process, one value for each flow."""
    families = Families(_PREFIX, _LABELS[:2], _VERIFIED)
    for host in hosts:
        for name, (settings, last) in list(host.verified.items()):
            lags = list(host.seen[name].lags.values()) if name in host.seen else []
            found = _NOT_VERIFIED if last is None else await last.facts(lags, settings.policy)
            families.add(settings.flow_name, found, now_ms)
    return list(families)
