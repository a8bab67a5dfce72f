"""The facts of a flow from which :mod:`connectors.flow_verdict` judges it, its progress, the trend of a lag, and the
history of the last hour.

What is known of its last verification has its words here too, which all places share.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from connect.core.model import State, TaskId
from connect.core.wording import age_text, counted, named
from connectors.flow_progress import (
    NOTHING_KNOWN,
    UNKNOWN,
    Contact,
    FlowLag,
    Lag,
    PartitionView,
    furthest,
    is_stopped,
    together,
)
from connectors.formats.types import FlowName, TopicPartition, Wired

#: A trend is that of this time; not of less than the second, because positions are stored every 10 s.
_TREND_MS: Final = 60_000
_LEAST_TREND_MS: Final = 20_000
#: Partitions of one kind that facts name.
_MOST_NAMED: Final = 20
#: Seconds between two samples of a history, and how many it keeps.
SAMPLE_S: Final = 10.0
_SAMPLES: Final = 360
_COLUMNS: Final = ("at_ms", "records_per_s", "bytes_per_s", "lag_records", "lag_ms")
#: A rate is not taken over less time than this.
_LEAST_MS: Final = 2000
#: States of running tasks that do not copy yet, or not at the moment.
STARTING: Final = "STARTING"
RECOVERING: Final = "RECOVERING"

#: Records and bytes that each task has copied since it began. The key is of the task's run, which may be a later one of
#: the same task: then it has begun again from 0.
Copied = Mapping[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class TaskFacts(Wired):
    """A task: its state as in REST, or STARTING or RECOVERING on its own worker, and its error."""

    task: int
    state: str
    worker_id: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LagFacts(Wired):
    """The lag of a flow; -1 and None if unknown.

    Args:
        partitions: All of the flow.
        waiting: Those with records that wait.
        records: Source offsets that wait; ``bytes`` is their approximate size.
        ms: The age of the oldest.
        lost: Offsets after the position that the source no longer has.
        growth_per_s: The growth of ``records`` in a second; negative if they become fewer.
        not_checked: Partitions of which nothing could be read.
        furthest: The partition of greatest lag, and its records.
        known_ms: When it was last known, since 1970.
    """

    partitions: int = 0
    waiting: int = 0
    records: int = UNKNOWN
    bytes: int = UNKNOWN
    ms: int = UNKNOWN
    lost: int = 0
    growth_per_s: float | None = None
    not_checked: int = 0
    furthest: TopicPartition | None = None
    furthest_records: int = 0
    known_ms: int = UNKNOWN


@dataclass(frozen=True, slots=True)
class _LagRead:
    at_ms: int
    partitions: int
    records: int
    copied: int


class Trend:
    """How the lag of a flow changed, and how many records were copied, over the last minute of reads."""

    def __init__(self) -> None:
        self._samples: deque[_LagRead] = deque()

    def observe(self, at_ms: int, lag: FlowLag) -> None:
        """Take a lag that was read at ``at_ms``; after one that is not known the trend begins again."""
        whole = together(lag.partitions)
        if not lag.is_known or whole.records < 0:
            self._samples.clear()
            return
        copied = sum(one.position for one in lag.partitions)
        # The clock may have been set back.
        if self._samples and (self._samples[-1].partitions != whole.partitions or self._samples[-1].at_ms > at_ms):
            self._samples.clear()
        self._samples.append(_LagRead(at_ms, whole.partitions, whole.records, copied))
        while self._samples[0].at_ms < at_ms - _TREND_MS:
            self._samples.popleft()

    @property
    def growth_per_s(self) -> float | None:
        return self._per_s(lambda one: one.records)

    @property
    def copied_per_s(self) -> float | None:
        return self._per_s(lambda one: one.copied)

    def lag_facts(self, lag: FlowLag) -> LagFacts:
        """Return the facts of a lag, with the trend so far."""
        whole, most = together(lag.partitions), furthest(lag.partitions, 1)
        return LagFacts(
            partitions=whole.partitions,
            waiting=sum(one.records > 0 for one in lag.partitions),
            records=whole.records if lag.is_known else UNKNOWN,
            bytes=whole.bytes if lag.is_known else UNKNOWN,
            ms=whole.ms if lag.is_known else UNKNOWN,
            lost=whole.lost,
            growth_per_s=self.growth_per_s,
            not_checked=len(lag.unknown) if lag.is_known else 0,
            furthest=TopicPartition(most[0].topic, most[0].partition) if most else None,
            furthest_records=most[0].records if most else 0,
            known_ms=lag.known_ms,
        )

    def _per_s(self, number: Callable[[_LagRead], int]) -> float | None:
        """Return the change of a number in a second; None until the reads cover two stores of positions."""
        if not self._samples or self._samples[-1].at_ms - self._samples[0].at_ms < _LEAST_TREND_MS:
            return None
        first, last = self._samples[0], self._samples[-1]
        return (number(last) - number(first)) * 1000 / (last.at_ms - first.at_ms)


@dataclass(frozen=True, slots=True)
class PartitionFacts(Wired):
    """A partition that does not copy: its state and reason as in the report of partitions, and how it continues."""

    source: TopicPartition
    state: str
    reason: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Tally:
    """Several partitions of a flow together; ``topics`` are the source's. ``records``, ``bytes``, ``batches`` (by kind)
    and ``skipped`` records count since the tasks started; ``lag_ms`` is the largest of the partitions. ``not_copied``:
    partitions that are stopped or wait."""

    topics: frozenset[str] = frozenset()
    partitions: int = 0
    records: int = 0
    bytes: int = 0
    batches: Mapping[str, int] = field(default_factory=dict)
    skipped: int = 0
    lag_records: int = 0
    lag_ms: int = 0
    not_copied: tuple[PartitionFacts, ...] = ()

    @classmethod
    def of(cls, views: Sequence[PartitionView]) -> Tally:
        batches: Counter[str] = Counter()
        for view in views:
            batches.update(view.batches)
        return cls(
            frozenset(view.source_topic for view in views),
            len(views),
            sum(view.records for view in views),
            sum(view.bytes for view in views),
            batches,
            sum(view.skipped for view in views),
            sum(view.lag_records for view in views),
            max((view.lag_ms for view in views), default=0),
            tuple(PartitionFacts(view.source, view.state, view.reason) for view in views if view.reason),
        )

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.topics | other.topics,
            self.partitions + other.partitions,
            self.records + other.records,
            self.bytes + other.bytes,
            Counter(self.batches) + Counter(other.batches),
            self.skipped + other.skipped,
            self.lag_records + other.lag_records,
            max(self.lag_ms, other.lag_ms),
            self.not_copied + other.not_copied,
        )


@dataclass(frozen=True, slots=True)
class FlowProgress:
    """One flow, with the worst ``state`` of its tasks, as read at ``at_ms`` since 1970."""

    flow: FlowName
    state: str
    spark_epoch: int
    tally: Tally
    contact: Contact = NOTHING_KNOWN
    at_ms: int = UNKNOWN


@dataclass(frozen=True, slots=True)
class OtherFacts(Wired):
    """What failed in another connector of the flow, such as its checkpoints: the connector, or its task if not -1."""

    connector: str
    task: int
    reason: str


@dataclass(frozen=True, slots=True)
class VerifiedFacts(Wired):
    """What the last verification found, and what was copied since.

    Args:
        ended_ms: When the last run over all topics ended, in milliseconds since 1970; -1 if only some were verified.
        records: Source records compared since the last full run.
        differences: All that were found in them.
        unread: Partitions that could not be compared.
        new_offsets: Source offsets copied since, in partitions that were compared; -1 if unknown. Heartbeats do not
            count, here and below.
        new_partitions: Partitions with copies of which nothing was compared.
        rest_s: About how long a verification of all this would take; -1 if unknown.
        recreated: Source topics that were recreated since, or whose copies were; None if that is unknown.
        undecided: Records that look like differences, and no log says any more whether they are.
    """

    ended_ms: int
    records: int
    differences: int
    unread: int = 0
    new_offsets: int = -1
    new_partitions: int = 0
    rest_s: float = -1.0
    recreated: tuple[str, ...] | None = ()
    undecided: int = 0


def verified_text(facts: VerifiedFacts, at_ms: int) -> str:
    """Return when the flow was verified, what was found, and how much is new since.

    >>> verified_text(VerifiedFacts(0, 5, 0, new_offsets=2), 7_200_000)
    'Last verified 2 h 0 min ago: equal, 5 records compared. 2 records copied since are not verified.'
    """
    when = "Some topics were verified"
    if facts.ended_ms >= 0:
        when = f"Last verified {age_text(max(at_ms - facts.ended_ms, 0))} ago"
    found = differences_text(facts) if facts.differences else "equal"
    if facts.undecided:
        found += f", {facts.undecided:,} undecided"
    if facts.unread:
        found += f" in what could be compared, {counted(facts.unread, 'partition')} could not"
    recreated = ""
    if topics := facts.recreated:
        recreated = f" Recreated since at the source or the target, so not verified: {named(topics)}."
    return f"{when}: {found}, {counted(facts.records, 'record')} compared.{recreated}{_new(facts)}"


def _new(facts: VerifiedFacts) -> str:
    if facts.new_offsets < 0:
        return ""
    new = [counted(facts.new_offsets, "record")] if facts.new_offsets else []
    new += [counted(facts.new_partitions, "partition")] if facts.new_partitions else []
    if not new:
        return " Nothing was copied since."
    is_one = facts.new_offsets + facts.new_partitions == 1
    return f" {' and '.join(new)} copied since {'is' if is_one else 'are'} not verified."


def differences_text(facts: VerifiedFacts) -> str:
    return counted(facts.differences, "difference")


def rest_text(facts: VerifiedFacts | None) -> str:
    """Return how long a verification of the rest would take, ``about 12.0 s`` or ``an unknown time``."""
    return "an unknown time" if facts is None or facts.rest_s < 0 else f"about {age_text(round(facts.rest_s * 1000))}"


@dataclass(frozen=True, slots=True)
class FlowFacts(Wired):
    """What is known of a flow at ``at_ms``. Times are in ms since 1970; -1, None and ``""`` are unknown.

    Args:
        connector: The name of its MirrorSource; ``connector_state`` as REST shows it.
        tasks: Its tasks.
        others: What failed in other connectors of the flow.
        has_worker: False if no worker runs the flow, by heartbeats or its group.
        heartbeat_ms: When its worker last wrote a heartbeat.
        spark: Why Spark does not run, empty if it does.
        stopped: Partitions that wait for an operator, at most a few; ``stopped_count`` of all.
        waiting: Partitions that continue by themselves; ``waiting_count`` of all.
        checkpoint_ms: When a checkpoint was last written.
        records_per_s: Copied records a second.
        skipped: Records that the target refused and that were left out.
        lost: Source offsets that were lost and that a policy has passed over.
        stopped_by: ``failover`` or ``failback`` if one has stopped the flow and moved its groups, else empty;
            ``stopped_by_ms`` is when it ended.
        verified: What is known of its verifications; None if none has ended.
        unchecked: What could not be read, and why.
        rest: The URL of a worker's REST API, and ``file`` the properties file, for commands.
    """

    flow: FlowName
    at_ms: int
    connector: str = "MirrorSourceConnector"
    connector_state: str = ""
    connector_reason: str = ""
    tasks: tuple[TaskFacts, ...] = ()
    others: tuple[OtherFacts, ...] = ()
    has_worker: bool | None = None
    heartbeat_ms: int = UNKNOWN
    contact: Contact = NOTHING_KNOWN
    spark: str = ""
    lag: LagFacts = LagFacts()
    records_per_s: float | None = None
    stopped: tuple[PartitionFacts, ...] = ()
    stopped_count: int = 0
    waiting: tuple[PartitionFacts, ...] = ()
    waiting_count: int = 0
    checkpoint_ms: int = UNKNOWN
    skipped: int = 0
    lost: int = 0
    stopped_by: str = ""
    stopped_by_ms: int = UNKNOWN
    verified: VerifiedFacts | None = None
    unchecked: tuple[str, ...] = ()
    rest: str = ""
    file: str = ""

    def with_lost_tasks(self, held: Collection[TaskId]) -> FlowFacts:
        """Return the same with tasks that no member of the group holds as UNASSIGNED: a worker that was killed leaves
        its last status behind."""
        tasks = (
            replace(one, state=State.UNASSIGNED.value)
            if one.state == State.RUNNING and TaskId(self.connector, one.task) not in held
            else one
            for one in self.tasks
        )
        return replace(self, tasks=tuple(tasks))

    def with_partitions(self, found: Sequence[PartitionFacts]) -> FlowFacts:
        stopped = tuple(one for one in found if is_stopped(one.state))
        waiting = tuple(one for one in found if not is_stopped(one.state))
        named = replace(self, stopped=stopped[:_MOST_NAMED], waiting=waiting[:_MOST_NAMED])
        return replace(named, stopped_count=len(stopped), waiting_count=len(waiting))


class FlowHistory:
    """Rates and lag of one flow, the oldest first, as the worker that copies it knows them: 14 KB. A figure is -1 while
    it is not known."""

    def __init__(self) -> None:
        self._values = array("d")
        self._copied: Copied = {}

    def observe(self, at_ms: int, copied: Copied, lag: Lag | None) -> None:
        """Add a sample; ``lag`` is that of the partitions here, None if it is not known. After the clock was set back,
        the history begins again."""
        if self._values and at_ms < self._values[-len(_COLUMNS)]:
            del self._values[:]
        records_per_s, bytes_per_s = self.rates(at_ms, copied)
        known = (UNKNOWN, UNKNOWN) if lag is None else (lag.records, lag.ms)
        self._values.extend((at_ms, records_per_s, bytes_per_s, *known))
        del self._values[: -_SAMPLES * len(_COLUMNS)]
        self._copied = copied

    def rates(self, at_ms: int, copied: Copied) -> tuple[float, float]:
        """Return records and bytes a second since the last sample; soon after it, those of the sample."""
        if not self._values:
            return UNKNOWN, UNKNOWN
        sampled_ms, *sampled = self._values[-len(_COLUMNS) :][:3]
        took_ms = at_ms - sampled_ms
        if took_ms < _LEAST_MS:
            return sampled[0], sampled[1]
        before = self._copied
        records, size = (
            sum(now[column] - before.get(task, (0, 0))[column] for task, now in copied.items()) for column in (0, 1)
        )
        return records * 1000 / took_ms, size * 1000 / took_ms

    def to_json(self) -> dict[str, Any]:
        """Return a list for each figure, all of one length; times in ms since 1970, null if unknown."""
        return {
            name: [None if value < 0 else round(value, 1) for value in self._values[column :: len(_COLUMNS)]]
            for column, name in enumerate(_COLUMNS)
        }
