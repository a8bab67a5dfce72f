"""Rates and lag of flows from their counters, and the log line of a flow."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from connect.core.model import State
from connect.core.wording import age_text, bytes_text, counted
from connect.kafka.concurrency import in_turns
from connectors.flow_facts import FlowFacts, LagFacts, PartitionFacts
from connectors.flow_progress import NOTHING_KNOWN, UNKNOWN, Contact
from connectors.flow_verdict import FlowVerdict, FlowWord, Urgency, judge

if TYPE_CHECKING:
    from connectors.flow_progress import FlowProgress, PartitionView
    from connectors.formats.types import FlowName

#: State of a flow whose connector found nothing to copy.
NO_TOPICS: Final = "without topics"
#: State of a flow whose worker has ended by itself.
ENDED: Final = "ended"
BATCH_KINDS: Final = ("shallow", "merged", "rebuilt", "dropped")


_Key = tuple["FlowName", str, str]
_Counts = dict[_Key, tuple[int, int]]


@dataclass(slots=True)
class TopicRates:
    """One mirrored topic, with its partitions summed up.

    ``records``, ``bytes``, ``batches`` (by kind) and ``skipped`` records count since the task started; ``lag_ms`` is
    the largest of the partitions. ``not_copied``: partitions that are stopped or wait.
    """

    flow: FlowName
    source_topic: str
    target_topic: str
    partitions: int = 0
    records: int = 0
    bytes: int = 0
    records_per_s: float = 0.0
    bytes_per_s: float = 0.0
    lag_records: int = 0
    lag_ms: int = 0
    batches: dict[str, int] = field(default_factory=lambda: dict.fromkeys(BATCH_KINDS, 0))
    skipped: int = 0
    not_copied: list[PartitionFacts] = field(default_factory=list)

    @property
    def key(self) -> _Key:
        return self.flow, self.source_topic, self.target_topic

    def add(self, view: PartitionView) -> None:
        self.partitions += 1
        self.records += view.records
        self.bytes += view.bytes
        self.lag_records += view.lag_records
        self.lag_ms = max(self.lag_ms, view.lag_ms)
        self.skipped += view.skipped
        if view.reason:
            self.not_copied.append(PartitionFacts(view.source, view.state, view.reason))
        for kind in BATCH_KINDS:
            self.batches[kind] += view.batches.get(kind, 0)


@dataclass(frozen=True, slots=True)
class FlowRates:
    """One flow and its topics."""

    flow: FlowName
    state: str
    spark_epoch: int
    topics: tuple[TopicRates, ...]
    contact: Contact = NOTHING_KNOWN
    #: When the counters were read, in milliseconds since 1970.
    at_ms: int = UNKNOWN

    @property
    def records(self) -> int:
        return sum(topic.records for topic in self.topics)

    @property
    def records_per_s(self) -> float:
        return sum(topic.records_per_s for topic in self.topics)

    @property
    def bytes_per_s(self) -> float:
        return sum(topic.bytes_per_s for topic in self.topics)

    @property
    def lag_records(self) -> int:
        return sum(topic.lag_records for topic in self.topics)

    @property
    def lag_ms(self) -> int:
        return max((topic.lag_ms for topic in self.topics), default=0)

    def batches(self, kind: str) -> int:
        return sum(topic.batches.get(kind, 0) for topic in self.topics)


class RateMeter:
    """Rates over the last ``window_s`` seconds of a monotonic clock."""

    def __init__(self, window_s: float = 3.0) -> None:
        self._window_s = window_s
        self._samples: deque[tuple[float, _Counts]] = deque()

    async def observe(self, now_s: float, flows: Iterable[FlowProgress]) -> list[FlowRates]:
        """Take the current counters and return the rates, a few partitions in a turn of the loop."""
        summed = [(flow, await _by_topic(flow)) for flow in flows]
        every = [one for _, topics in summed for one in topics]
        counts = {one.key: (one.records, one.bytes) for one in every}
        self._samples.append((now_s, counts))
        # One sample at or before the window's start stays, so that rates cover the whole window.
        while len(self._samples) > 2 and self._samples[1][0] <= now_s - self._window_s:
            self._samples.popleft()
        then_s, before = self._samples[0]
        if now_s > then_s:
            for one in every:
                records, size = before.get(one.key, (0, 0))
                one.records_per_s = max(0, one.records - records) / (now_s - then_s)
                one.bytes_per_s = max(0, one.bytes - size) / (now_s - then_s)
        return [
            FlowRates(flow.flow, flow.state, flow.spark_epoch, topics, flow.contact, flow.at_ms)
            for flow, topics in summed
        ]


def verdict_of(rates: FlowRates) -> FlowVerdict:
    """Return the verdict on what this process copies of a flow."""
    source, lag = rates.contact.source, LagFacts()
    if rates.state == NO_TOPICS and rates.contact.knows_lag:
        lag = LagFacts(records=0, ms=0)
    elif rates.topics and rates.contact.knows_lag:
        count = sum(topic.partitions for topic in rates.topics)
        lag = LagFacts(partitions=count, records=rates.lag_records, ms=rates.lag_ms, known_ms=rates.at_ms)
    rest = "/".join(("URL", *rates.flow))
    facts = FlowFacts(
        rates.flow,
        rates.at_ms,
        connector_state=rates.state if rates.state in (State.STOPPED, State.PAUSED) else "",
        has_worker=False if rates.state == ENDED else None,
        contact=rates.contact,
        lag=replace(lag, known_ms=source.answered_ms) if lag.records < 0 else lag,
        skipped=sum(topic.skipped for topic in rates.topics),
        rest=rest,
    )
    return judge(facts.with_partitions([one for topic in rates.topics for one in topic.not_copied]))


def is_idle(verdict: FlowVerdict) -> bool:
    """Whether a flow copies nothing because of its connector or its worker."""
    return verdict.state in (FlowWord.ENDED, FlowWord.STOPPED, FlowWord.PAUSED, FlowWord.IDLE)


def flow_line(rates: FlowRates) -> str:
    """Format a flow's log line, with the ages of the last fetch and the last produce where they are known; what is
    wrong follows in the words of its verdict.

    Like ``us->eu running: 5 topics, 20 partitions, 1,200 records/s, 1.2 MB/s, 35 records and 12 ms behind``.
    """
    verdict, moved = verdict_of(rates), moved_texts(rates.contact.to_json(rates.at_ms))
    sentences = " ".join((verdict.sentence, *verdict.also))
    if is_idle(verdict):
        ages = f" ({', '.join(moved)})" if moved else ""
        return f"{sentences} {verdict.actions[0]}{ages}"
    is_well = verdict.urgency in (Urgency.OK, Urgency.UNKNOWN)
    lag = verdict.lag
    if verdict.failover.records >= 0:
        lag = f"{rates.lag_records:,} records and {rates.lag_ms:,} ms behind"
    parts = (
        f"{rates.flow} {rates.state if is_well else verdict.state}: {counted(len(rates.topics), 'topic')}",
        counted(sum(topic.partitions for topic in rates.topics), "partition"),
        f"{rates.records_per_s:,.0f} records/s",
        f"{bytes_text(rates.bytes_per_s)}/s",
        lag,
        f"batches {' '.join(f'{kind} {rates.batches(kind):,}' for kind in BATCH_KINDS)}",
        f"Spark epoch {rates.spark_epoch}",
        *moved,
    )
    return f"{', '.join(parts)}{'' if is_well else f'. {sentences}'}"


def moved_texts(contact: Mapping[str, Any]) -> list[str]:
    """Format the known ages, like ``last fetch 1.2 s ago``; ``contact`` in its JSON form."""
    return [
        f"last {what} {age_text(contact[f'last_{what}_age_ms'])} ago"
        for what in ("fetch", "produce")
        if contact[f"last_{what}_age_ms"] is not None
    ]


async def _by_topic(flow: FlowProgress) -> tuple[TopicRates, ...]:
    topics: dict[tuple[str, str], TopicRates] = {}
    async for view in in_turns(flow.partitions):
        key = view.source_topic, view.target_topic
        topics.setdefault(key, TopicRates(flow.flow, *key)).add(view)
    return tuple(topics[key] for key in sorted(topics))
