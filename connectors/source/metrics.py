"""The mirror's metrics for Prometheus, named as the usual exporter names Java's (``MirrorSourceMetrics``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from connect.core.gauges import Gauges, Rows
from connect.kafka.concurrency import in_turns
from connectors.contact import UNKNOWN, Contact, Side, age_ms
from connectors.flow_name import FlowName
from connectors.lag import Lag, PartitionLag, together
from connectors.source.host import MirrorHost
from connectors.source.progress import PartitionMeter, PartitionView, Seen, is_stopped

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


def _told(side: Side) -> int:
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


def _lag(seen: Seen | None, view: PartitionView, now_ms: int) -> PartitionLag | None:
    """As the task tells it, until the first look at the source."""
    lag = None if seen is None else seen.lag_of(view, now_ms)
    if lag is not None or view.next_source_offset < 0:
        return lag
    at = (view.next_source_offset, view.source_end_offset, view.lag_records)
    size = -1 if view.lag_records else 0
    return PartitionLag(view.source_topic, view.source_partition, view.target_topic, *at, bytes=size, ms=view.lag_ms)
