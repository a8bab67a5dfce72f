"""Rates and lag of flows from their counters, and the log line of a flow."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from connect.core.wording import age_text, counted
from connect.kafka.concurrency import in_turns
from connectors.flow_progress import NOTHING_KNOWN, SOURCE, TARGET, UNKNOWN, Contact, since_text

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
    the largest of the partitions. ``stopped``: the number of stopped partitions.
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
    stopped: int = 0

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
        self.stopped += bool(view.reason)
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
    def skipped(self) -> int:
        return sum(topic.skipped for topic in self.topics)

    @property
    def stopped(self) -> int:
        return sum(topic.stopped for topic in self.topics)

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


def flow_line(rates: FlowRates) -> str:
    """Format a flow's log line, for one that copies nothing with :func:`idle_text`.

    Like ``us->eu running: 5 topics, 20 partitions, 1,200 records/s, 1.2 MB/s, 35 records and 12 ms behind``.
    """
    if (idle := idle_text(rates)) is not None:
        return f"{rates.flow}: {idle}{_silent_text(rates, SOURCE, TARGET)}"
    return (
        f"{rates.flow} {rates.state}: {counted(len(rates.topics), 'topic')}, "
        f"{counted(sum(topic.partitions for topic in rates.topics), 'partition')}, "
        f"{rates.records_per_s:,.0f} records/s, {bytes_text(rates.bytes_per_s)}/s, "
        f"{lag_text(rates)}, "
        f"batches {' '.join(f'{kind} {rates.batches(kind):,}' for kind in BATCH_KINDS)}, "
        f"Spark epoch {rates.spark_epoch}{troubles(rates)}"
    )


def status_line(rates: FlowRates) -> str:
    """Format a flow's log line with the ages of the last fetch and the last produce."""
    return ", ".join([flow_line(rates), *moved_texts(rates.contact.to_json(rates.at_ms))])


def moved_texts(contact: Mapping[str, Any]) -> list[str]:
    """Format the known ages, like ``last fetch 1.2 s ago``; ``contact`` in its JSON form."""
    return [
        f"last {what} {age_text(contact[f'last_{what}_age_ms'])} ago"
        for what in ("fetch", "produce")
        if contact[f"last_{what}_age_ms"] is not None
    ]


def idle_text(rates: FlowRates) -> str | None:
    """Return why a flow copies nothing, if the reason is its connector or its worker."""
    if rates.state == ENDED:
        return "its worker has ended, so nothing is copied. See the log, and restart this node"
    if rates.state == NO_TOPICS:
        return "no source topic is selected, so nothing is copied. Check the flow's topics and topics.exclude"
    if rates.state in ("STOPPED", "PAUSED"):
        return (
            f"MirrorSourceConnector is {rates.state}, so nothing is copied. Resume it over REST: "
            f"PUT {'/'.join(('', *rates.flow, 'connectors/MirrorSourceConnector/resume'))}"
        )
    return None


def lag_text(rates: FlowRates) -> str:
    """Format the lag, or since when it is unknown."""
    source = rates.contact.source
    if not rates.contact.knows_lag:
        return f"lag unknown {since_text(source.answered_ms)}: the source does not answer"
    if not rates.topics:
        return "lag unknown"
    return f"{rates.lag_records:,} records and {rates.lag_ms:,} ms behind"


def troubles(rates: FlowRates) -> str:
    """Format problems of a flow, each after a comma; empty if there are none."""
    stopped = f", {counted(rates.stopped, 'partition')} stopped" if rates.stopped else ""
    skipped = f", {counted(rates.skipped, 'record')} skipped" if rates.skipped else ""
    return stopped + _silent_text(rates, TARGET) + skipped


def _silent_text(rates: FlowRates, *sides: str) -> str:
    known = {SOURCE: rates.contact.source, TARGET: rates.contact.target}
    return "".join(
        f", the {side} does not answer {since_text(known[side].answered_ms)}"
        for side in sides
        if known[side].answers is False
    )


def bytes_text(count: float) -> str:
    """Format ``1234567`` as ``1.2 MB``, in powers of 1000."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} GB"


async def _by_topic(flow: FlowProgress) -> tuple[TopicRates, ...]:
    topics: dict[tuple[str, str], TopicRates] = {}
    async for view in in_turns(flow.partitions):
        key = view.source_topic, view.target_topic
        topics.setdefault(key, TopicRates(flow.flow, *key)).add(view)
    return tuple(topics[key] for key in sorted(topics))
