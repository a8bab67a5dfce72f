"""What a flow tells whoever watches it: a frozen picture, taken at any moment."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from connect.core.measures import Windowed
from connectors.contact import NOTHING_KNOWN, UNKNOWN, Contact
from connectors.dataplane.plan import QUARANTINED, STOPPED, PartitionProgress, TopicPartition
from connectors.flow_name import FlowName
from connectors.gaps import STATES, Gap
from connectors.lag import PartitionLag

_STOPPED: Final = frozenset({STOPPED, QUARANTINED, *STATES})


def is_stopped(state: str) -> bool:
    """Whether a partition in this state waits for somebody, and does not go on by itself."""
    return state in _STOPPED


@dataclass(frozen=True, slots=True)
class PartitionView:
    """One partition pair. ``state`` is ``starting``, ``running``, ``waiting`` (for a take-over), ``stopped``,
    ``QUARANTINED`` (the target refuses for good), what became of a log (``connectors.gaps``) or ``healing`` (a policy
    goes on behind that), all but the first two with a ``reason``, and with ``gap`` where a log is not what it was.
    ``lost`` counts source offsets that were passed over. ``records``, ``bytes``,
    ``batches`` (by kind: shallow, merged, rebuilt, dropped), ``skipped`` (records that the target refuses),
    ``dropped`` and ``changed`` (records that a transformation left out or changed) count since the task began;
    ``lag_ms`` is the age of the last copied record while records are waiting, 0 when none are."""

    source_topic: str
    source_partition: int
    target_topic: str
    target_partition: int
    state: str
    records: int
    bytes: int
    batches: Mapping[str, int]
    next_source_offset: int
    source_end_offset: int
    lag_records: int
    lag_ms: int
    reason: str = ""
    skipped: int = 0
    gap: Gap | None = None
    lost: int = 0
    dropped: int = 0
    changed: int = 0


class _Viewed(Protocol):
    def view(self, now_ms: int) -> Iterable[PartitionView]:
        """Return a picture of every partition."""
        ...


@dataclass(frozen=True, slots=True)
class Views:
    """Of the partitions of several tasks, as they are when it is iterated over."""

    tasks: Sequence[_Viewed]
    now_ms: int

    def __iter__(self) -> Iterator[PartitionView]:
        return (view for task in self.tasks for view in task.view(self.now_ms))

    def __bool__(self) -> bool:
        return next(iter(self), None) is not None


@dataclass(frozen=True, slots=True)
class FlowProgress:
    """One flow: ``state`` is ``starting``, ``running``, ``recovering``, ``stopped`` or ``failed``.

    ``partitions`` may be looked at again and again; each view is made when it is asked for. ``at_ms``: when the picture
    was taken, since 1970.
    """

    flow: FlowName
    state: str
    spark_epoch: int
    partitions: Iterable[PartitionView]
    contact: Contact = NOTHING_KNOWN
    at_ms: int = UNKNOWN

    @property
    def records(self) -> int:
        return sum(one.records for one in self.partitions)

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.partitions)

    @property
    def skipped(self) -> int:
        return sum(one.skipped for one in self.partitions)

    @property
    def lag_records(self) -> int:
        return sum(one.lag_records for one in self.partitions)


@dataclass(frozen=True, slots=True)
class Resting:
    """A partition whose task is here and does not run, or that no task has (None), for its connector is STOPPED;
    ``state`` as of REST."""

    task: int | None
    source: TopicPartition
    target_topic: str
    state: str


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen at ``at_ms`` (since 1970) of the partitions of one connector that a worker has. Of a connector that
    is STOPPED it may be that nothing was seen yet."""

    flow: FlowName
    at_ms: int
    lags: Mapping[TopicPartition, PartitionLag]
    resting: tuple[Resting, ...]
    is_stopped: bool = False

    def lag_of(self, view: PartitionView, now_ms: int) -> PartitionLag | None:
        """Of a partition that its task tells of now; None where it was not seen. No record that waits is older than the
        last one that was copied."""
        lag = self.lags.get(TopicPartition(view.source_topic, view.source_partition))
        if lag is None or view.next_source_offset < 0:
            return lag
        end = max(lag.end, view.source_end_offset)
        stood = view.next_source_offset == lag.position and lag.records > 0 and lag.ms >= 0
        waits = end > view.next_source_offset
        ms = lag.ms + now_ms - self.at_ms if stood else view.lag_ms if waits else 0
        return lag.at(view.next_source_offset, end, ms)

    def resting_lag(self, one: Resting, now_ms: int) -> PartitionLag | None:
        """Of a partition whose task does not run; None where it was not seen."""
        lag = self.lags.get(one.source)
        if lag is None or not lag.records or lag.ms < 0:
            return lag
        return replace(lag, ms=lag.ms + now_ms - self.at_ms)


@dataclass(slots=True)
class PartitionMeter:
    """Counts since the task began, and windows. A batch's age and latency are those of its newest record when it was
    heard to be acknowledged: batches are copied whole, so a record is read and acknowledged with its batch."""

    records: int = 0
    bytes: int = 0
    record_rate: Windowed = field(default_factory=Windowed)
    byte_rate: Windowed = field(default_factory=Windowed)
    age_ms: Windowed = field(default_factory=Windowed)


class Meters:
    """Of one task, by source partition."""

    def __init__(self) -> None:
        self.partitions: dict[TopicPartition, PartitionMeter] = {}
        #: When the source last answered a fetch, and the target a produce request, in ms since 1970; -1 for never.
        self.fetched_ms = self.produced_ms = UNKNOWN

    def answered(self, source_ago_s: float | None, target_ago_s: float | None) -> None:
        """Take in what a slice tells of its clusters."""
        now_ms = time.time_ns() // 1_000_000
        if source_ago_s is not None:
            self.fetched_ms = max(self.fetched_ms, now_ms - round(source_ago_s * 1000))
        if target_ago_s is not None:
            self.produced_ms = max(self.produced_ms, now_ms - round(target_ago_s * 1000))

    def apply(self, progress: PartitionProgress, now_ms: int) -> None:
        """Take in what a slice reports; ``now_ms`` since 1970, as record timestamps are."""
        meter = self.partitions.setdefault(progress.source, PartitionMeter())
        if not progress.records:
            return
        meter.records += progress.records
        meter.bytes += progress.bytes
        meter.record_rate.record(progress.records, now_ms)
        meter.byte_rate.record(progress.bytes, now_ms)
        if progress.timestamp_ms >= 0:
            meter.age_ms.record(max(now_ms - progress.timestamp_ms, 0), now_ms)
