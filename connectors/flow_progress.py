"""Measure and show a flow's progress: contact with its clusters, when records last moved, and the lag of partitions,
topics and the flow, in records, bytes and time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from heapq import nsmallest
from typing import Any, Final

from connect.api.source import EngineMeter
from connect.core.metrics import Windowed
from connect.kafka.concurrency import wall_ms
from connectors.control_link.protocol import PartitionProgress
from connectors.formats.gap import STATES, Gap
from connectors.formats.types import QUARANTINED, STOPPED, FlowName, OfPair, TopicPartition, Wired

SOURCE: Final = "source"
TARGET: Final = "target"
#: Replaces an unknown time or age.
UNKNOWN: Final = -1


@dataclass(frozen=True, slots=True)
class ClusterContact(Wired):
    """One cluster. Times are in milliseconds since 1970, UNKNOWN before the first. ``answers``: None until it was
    contacted. ``answered_ms``: when it last answered this worker, which contacts it every few seconds. ``moved_ms``:
    when a slice here last got an answer: of the source to a fetch, of the target to a produce request. ``reason``: why
    it does not answer. ``throttled``: the share of the last minute in which a quota of it has delayed requests of a
    slice here."""

    answers: bool | None = None
    answered_ms: int = UNKNOWN
    moved_ms: int = UNKNOWN
    reason: str = ""
    throttled: float = 0.0


@dataclass(frozen=True, slots=True)
class Contact(Wired):
    """Both clusters of a flow, as one worker sees them."""

    source: ClusterContact = ClusterContact()
    target: ClusterContact = ClusterContact()

    def moved(self, fetched_ms: int, produced_ms: int, throttled: tuple[float, float]) -> Contact:
        """Return the same with what slices report."""
        return Contact(
            replace(self.source, moved_ms=fetched_ms, throttled=throttled[0]),
            replace(self.target, moved_ms=produced_ms, throttled=throttled[1]),
        )

    @property
    def knows_lag(self) -> bool:
        """Whether the lag of the flow is known: not while the source does not answer."""
        return self.source.answers is not False

    @property
    def silent(self) -> tuple[bool, bool]:
        """Whether the source, and whether the target, was contacted and does not answer."""
        return self.source.answers is False, self.target.answers is False

    def to_json(self, now_ms: int) -> dict[str, Any]:
        """Return what REST and ``heliograph lag`` show; null if unknown."""
        return {
            "source_answers": self.source.answers,
            "target_answers": self.target.answers,
            "last_fetch_age_ms": _or_none(age_ms(self.source.moved_ms, now_ms)),
            "last_produce_age_ms": _or_none(age_ms(self.target.moved_ms, now_ms)),
        }


NOTHING_KNOWN: Final = Contact()


def age_ms(at_ms: int, now_ms: int) -> int:
    return max(now_ms - at_ms, 0) if at_ms >= 0 else UNKNOWN


def since_text(at_ms: int) -> str:
    """Return ``since 2026-01-01T14:03:02Z``, or ``since the start`` for an unknown time."""
    if at_ms < 0:
        return "since the start"
    return "since " + datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _or_none(value: int) -> int | None:
    return None if value == UNKNOWN else value


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One source partition.

    Args:
        position: The next source offset to copy.
        end: The offset after the last record that may be copied: the high watermark, or under ``read_committed`` the
            last stable offset.
        records: Offsets that wait, an upper bound of records: markers and compacted records count until the copy has
            passed them. Offsets that the source no longer has are not included, but in ``lost``.
        bytes: Their size at the source, estimated by their share of the partition's offsets; -1 unknown.
        ms: Age of the oldest that waits, by its batch's timestamp; 0 if none waits, -1 unknown.
        offset_bytes: Average size of an offset of the source; -1 unknown.
    """

    topic: str
    partition: int
    target_topic: str
    position: int
    end: int
    records: int
    bytes: int = 0
    ms: int = 0
    lost: int = 0
    offset_bytes: float = field(default=-1.0, compare=False)

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in PartitionLag.__dataclass_fields__ if name != "offset_bytes"}

    def with_unknown_lag(self) -> PartitionLag:
        """Return the same for a source that does not answer."""
        return replace(self, records=-1, bytes=-1, ms=-1)

    def at(self, position: int, end: int, ms: int) -> PartitionLag:
        """Return the same once the copy has come to ``position``, and the source to ``end``."""
        begin = max(position, self.end - self.records) if self.lost else position
        records = max(end - begin, 0)
        size = -1 if self.offset_bytes < 0 else round(records * self.offset_bytes)
        return replace(self, position=position, end=end, records=records, bytes=size if records else 0, ms=ms)


@dataclass(frozen=True, slots=True)
class FlowLag:
    """The lag of all partitions of a flow that are read. ``unknown``: partitions that could not be read, and why.
    ``known_ms``: when it was read, in milliseconds since 1970; -1 never. ``is_known``: False if nothing could be read
    now, so that these are the values of ``known_ms``."""

    partitions: tuple[PartitionLag, ...]
    unknown: Mapping[str, str] = field(default_factory=dict)
    known_ms: int = -1
    is_known: bool = True

    def lost(self, flow: str, why: str, known_ms: int = -1) -> FlowLag:
        """Return what is left of it if a cluster no longer answers; ``known_ms``: a later time when it was known."""
        return FlowLag(
            tuple(one.with_unknown_lag() for one in self.partitions),
            {flow: why},
            max(self.known_ms, known_ms),
            is_known=False,
        )

    def to_json(self, most: int) -> dict[str, Any]:
        """Return JSON with the ``most`` partitions of greatest lag; see docs/operations.md."""
        whole = together(self.partitions)
        if not self.is_known:
            whole = replace(whole, records=-1, bytes=-1, ms=-1)
        return {
            **asdict(whole),
            "unknown_since_ms": None if self.is_known or self.known_ms < 0 else self.known_ms,
            "topics": {topic: asdict(lag) for topic, lag in by_topic(self.partitions).items()},
            "furthest": [one.to_json() for one in furthest(self.partitions, most)],
            "unknown": dict(self.unknown),
        }


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of several partitions together: sums, and the greatest age; -1 if unknown. Records and age are unknown if
    they are unknown for one partition."""

    partitions: int
    records: int
    bytes: int
    ms: int
    lost: int


def lag_of(
    topic: str, partition: int, target_topic: str, position: int, start: int, end: int, size_bytes: int
) -> PartitionLag:
    """Return a lag by the source's offsets and size (-1 unknown); the age is -1 if records wait."""
    begin = max(position, start)
    records = max(end - begin, 0)
    span = end - start
    share = -1 if size_bytes < 0 or span <= 0 else min(round(size_bytes * records / span), size_bytes)
    return PartitionLag(
        topic,
        partition,
        target_topic,
        position,
        end,
        records,
        bytes=share if records else 0,
        ms=-1 if records else 0,
        lost=max(min(start, end) - position, 0),
        offset_bytes=-1.0 if size_bytes < 0 or span <= 0 else size_bytes / span,
    )


def together(lags: Iterable[PartitionLag], at_rest: int = 0) -> Lag:
    """Return ``lags`` together, and as many partitions ``at_rest``, for which nothing waits."""
    each = list(lags)
    known = [one.bytes for one in each if one.bytes >= 0]
    is_known = all(one.records >= 0 for one in each)
    return Lag(
        len(each) + at_rest,
        sum(one.records for one in each) if is_known else -1,
        sum(known) if known or at_rest or not each else -1,
        max((one.ms for one in each), default=0) if is_known else -1,
        sum(one.lost for one in each),
    )


def by_topic(lags: Iterable[PartitionLag]) -> dict[str, Lag]:
    found: dict[str, list[PartitionLag]] = {}
    for one in lags:
        found.setdefault(one.topic, []).append(one)
    return {topic: together(each) for topic, each in sorted(found.items())}


def furthest(lags: Sequence[PartitionLag], most: int) -> list[PartitionLag]:
    """Return the ``most`` partitions of greatest lag: by records, then by age; those without lag are left out."""
    behind = [one for one in lags if one.records > 0 or one.lost]
    return nsmallest(most, behind, key=lambda one: (-one.records, -one.ms, one.topic, one.partition))


_STOPPED: Final = frozenset({STOPPED, QUARANTINED, *STATES})


def is_stopped(state: str) -> bool:
    """Whether a partition in this state waits for an operator, and does not continue by itself."""
    return state in _STOPPED


# Not frozen, because that doubles its cost, and there are as many as partitions.
@dataclass(slots=True)
class PartitionView(OfPair):
    """One partition pair. ``state`` is ``starting``, ``running``, ``waiting`` (for a take-over), ``stopped``,
    ``QUARANTINED`` (the target rejects its records permanently), what became of a log (``connectors.formats.gap``) or
    ``healing`` (a policy continues after that). All but the first two have a ``reason``, and a ``gap`` if a log has
    changed. ``lost`` counts skipped source offsets. ``records``, ``bytes``, ``batches`` (by kind: shallow, merged,
    rebuilt, dropped), ``skipped`` (records that the target rejects), ``dropped`` and ``changed`` (records that a
    transformation removed or changed) count since the task began; ``lag_ms`` is the age of the last copied record while
    records wait, 0 when none do."""

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


@dataclass(frozen=True, slots=True)
class Resting:
    """A partition whose task (None: it has none) does not run; ``state`` as in REST."""

    task: int | None
    source: TopicPartition
    target_topic: str
    state: str


@dataclass(frozen=True, slots=True)
class LagSnapshot:
    """The lag here at ``at_ms``, since 1970; if the connector is STOPPED, perhaps not read yet."""

    flow: FlowName
    at_ms: int
    lags: Mapping[TopicPartition, PartitionLag]
    resting: tuple[Resting, ...]
    is_stopped: bool = False
    #: Those of ``lags`` for which something may wait; None: all of them.
    waiting: Mapping[TopicPartition, PartitionLag] | None = None

    def whole(self) -> Lag:
        """Return the lag of all partitions, which takes the time of those for which something may wait."""
        waiting = self.lags if self.waiting is None else self.waiting
        return together(waiting.values(), at_rest=len(self.lags) - len(waiting))

    def lag_of(self, view: PartitionView, now_ms: int) -> PartitionLag | None:
        """Return the lag of a partition that its task reports now; None if it was not read. No waiting record is older
        than the last one copied."""
        lag = self.lags.get(view.source)
        if lag is None or view.next_source_offset < 0:
            return lag
        end = max(lag.end, view.source_end_offset)
        unmoved = view.next_source_offset == lag.position and lag.records > 0 and lag.ms >= 0
        waits = end > view.next_source_offset
        ms = lag.ms + now_ms - self.at_ms if unmoved else view.lag_ms if waits else 0
        return lag.at(view.next_source_offset, end, ms)

    def resting_lag(self, one: Resting, now_ms: int) -> PartitionLag | None:
        """Return the lag of a partition whose task does not run; None if it was not read."""
        lag = self.lags.get(one.source)
        if lag is None or not lag.records or lag.ms < 0:
            return lag
        return replace(lag, ms=lag.ms + now_ms - self.at_ms)


@dataclass(slots=True)
class PartitionMeter:
    """Counts since the task began, and windows. A batch's age and latency are those of its newest record when its
    acknowledgement was reported: batches are copied whole, so records are acknowledged with their batch."""

    records: int = 0
    bytes: int = 0
    record_rate: Windowed = field(default_factory=Windowed)
    byte_rate: Windowed = field(default_factory=Windowed)
    age_ms: Windowed = field(default_factory=Windowed)


@dataclass(slots=True)
class Takeovers:
    """What became of a flow's partitions at their takeovers, counted on this worker.

    Args:
        exact: Partitions of a predecessor that had not ended cleanly, continued without a duplicate.
        at_least_once: Such partitions that continued at their stored position, because no proof was possible.
        may_double: Records that may be duplicated at most, as announced.
        gaps: Gaps of a source that a policy passed over.
        lost: Source offsets that were lost in these gaps.
        slices_lost: Slices that ended without having been asked to.
    """

    exact: int = 0
    at_least_once: int = 0
    may_double: int = 0
    gaps: int = 0
    lost: int = 0
    slices_lost: int = 0

    def resumed(self, may_double: int, *, is_exact: bool) -> None:
        self.exact += is_exact
        self.at_least_once += not is_exact
        self.may_double += may_double

    def passed(self, gap: Gap | None) -> None:
        """Count a gap that the copy has passed over; None: there was none."""
        if gap is not None:
            self.gaps += 1
            self.lost += gap.lost_offsets

    def __add__(self, other: Takeovers) -> Takeovers:
        return Takeovers(*(getattr(self, name) + getattr(other, name) for name in Takeovers.__dataclass_fields__))


class Meters:
    def __init__(self) -> None:
        self.partitions: dict[TopicPartition, PartitionMeter] = {}
        self.takeovers = Takeovers()
        #: When the source last answered a fetch, and the target a produce request, in ms since 1970; -1 for never.
        self.fetched_ms = self.produced_ms = UNKNOWN
        self._throttled_ms = Windowed(), Windowed()
        #: Since the task began, of all partitions; batches by reason.
        self.records = self.bytes = self.skipped = 0
        self.batches: Counter[str] = Counter()
        self._records = self._batches = self._skipped = 0

    def answered(
        self, source_ago_s: float | None, target_ago_s: float | None, source_throttled_ms: int, target_throttled_ms: int
    ) -> None:
        """Take a slice's report about its clusters."""
        now_ms = wall_ms()
        for window, throttled_ms in zip(self._throttled_ms, (source_throttled_ms, target_throttled_ms), strict=True):
            window.record(throttled_ms, now_ms)
        if source_ago_s is not None:
            self.fetched_ms = max(self.fetched_ms, now_ms - round(source_ago_s * 1000))
        if target_ago_s is not None:
            self.produced_ms = max(self.produced_ms, now_ms - round(target_ago_s * 1000))

    def throttled(self, now_ms: int) -> tuple[float, float]:
        """Return the share of the last minute in which quotas delayed a slice: of the source, of the target."""
        source, target = (min(one.rate(now_ms) / 1000, 1.0) if one.recorded else 0.0 for one in self._throttled_ms)
        return source, target

    def apply(self, progress: PartitionProgress, now_ms: int) -> None:
        """Take a slice's progress report; ``now_ms`` since 1970, as record timestamps are."""
        meter = self.partitions.setdefault(progress.source, PartitionMeter())
        for first, last, _ in progress.skips:
            self._skipped += last - first + 1
            self.skipped += last - first + 1
        self.batches.update(progress.batches)
        if not progress.records:
            return
        self.records += progress.records
        self.bytes += progress.bytes
        self._records += progress.records
        self._batches += sum(progress.batches.values())
        meter.records += progress.records
        meter.bytes += progress.bytes
        meter.record_rate.record(progress.records, now_ms)
        meter.byte_rate.record(progress.bytes, now_ms)
        if progress.timestamp_ms >= 0:
            meter.age_ms.record(max(now_ms - progress.timestamp_ms, 0), now_ms)

    def tell(self, of_task: EngineMeter) -> None:
        """Add what was counted since the last call to the metrics of the worker's task."""
        if self._records:
            of_task.copied(self._records, self._batches)
        if self._skipped:
            of_task.left_out(self._skipped)
        self._records = self._batches = self._skipped = 0


@contextmanager
def timed_commit(meter: EngineMeter | None) -> Iterator[None]:
    """Measure a write of positions, which may fail."""
    began_s = time.monotonic()
    try:
        yield
    except Exception:
        if meter is not None:
            meter.commit_failed()
        raise
    if meter is not None:
        meter.committed((time.monotonic() - began_s) * 1000)
