"""What the flow has still to copy before readers leave: heartbeats, which never end, are not waited for, and
transactions that are open are."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from connect.api.policy import ReplicationPolicy
from connect.kafka.group_offsets import Partition
from connect.kafka.offsets import LATEST, list_offsets
from connectors.failover.site import Site
from connectors.lag import FlowLag, PartitionLag, together
from connectors.lag_reader import LagReader


@dataclass(frozen=True, slots=True)
class Behind:
    """``open``: partitions in which records wait for their transaction's end, behind what may be copied now."""

    lag: FlowLag
    open: tuple[str, ...] = ()

    @property
    def records(self) -> int:
        return together(self.lag.partitions).records

    @property
    def is_copied(self) -> bool:
        return not self.records and not self.open

    def __str__(self) -> str:
        if self.records:
            return f"{self.records} records behind"
        more = f" and {len(self.open) - 1} more" if len(self.open) > 1 else ""
        return f"a producer's transaction is open in {self.open[0]}{more}" if self.open else "0 records behind"


async def behind(site: Site, look: LagReader, left_out: Collection[str] = ()) -> Behind:
    """``left_out`` are partitions, such as ``orders-0``, that do not count. Raises as the clusters."""
    lag = await look.all()
    counted = [
        one
        for one in without_heartbeats(lag.partitions, site.flow.policy)
        if f"{one.topic}-{one.partition}" not in left_out
    ]
    unknown = {name: why for name, why in lag.unknown.items() if name not in left_out}
    lag = replace(lag, partitions=tuple(counted), unknown=unknown)
    if not site.flow.read_committed or not lag.partitions:
        return Behind(lag)
    # Asked later: what is written meanwhile counts as open, and is looked at again.
    ends = await list_offsets(site.source, [(one.topic, one.partition) for one in lag.partitions], LATEST)
    return Behind(lag, still_open(lag.partitions, ends))


def without_heartbeats(lags: Iterable[PartitionLag], policy: ReplicationPolicy) -> list[PartitionLag]:
    """Whoever emits heartbeats goes on while readers move (pure)."""
    return [one for one in lags if not policy.is_heartbeats_topic(one.topic)]


def still_open(lags: Iterable[PartitionLag], ends: Mapping[Partition, int]) -> tuple[str, ...]:
    """Of partitions whose ``ends`` lie behind what may be copied (pure)."""
    return tuple(f"{one.topic}-{one.partition}" for one in lags if one.end < ends[one.topic, one.partition])
