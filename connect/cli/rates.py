"""From a flow's running counters to what a person wants to see: speed now and how far behind. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from connect.cli.console import counted
from connectors.contact import NOTHING_KNOWN, Contact, since_text

if TYPE_CHECKING:
    from connectors.source.progress import FlowProgress, PartitionView

#: State of a flow whose connector has found nothing to copy.
NO_TOPICS: Final = "without topics"
BATCH_KINDS: Final = ("shallow", "merged", "rebuilt", "dropped")


@dataclass(frozen=True, slots=True)
class TopicRates:
    """One mirrored topic, its partitions taken together.

    ``records``, ``bytes``, ``batches`` (by kind) and ``skipped`` records count since the task began; ``lag_ms`` is the
    worst partition's. ``stopped``: partitions that go on no more.
    """

    flow: str
    source_topic: str
    target_topic: str
    partitions: int
    records: int
    bytes: int
    records_per_s: float
    bytes_per_s: float
    lag_records: int
    lag_ms: int
    batches: dict[str, int]
    skipped: int = 0
    stopped: int = 0


@dataclass(frozen=True, slots=True)
class FlowRates:
    """One flow and its topics."""

    flow: str
    state: str
    spark_epoch: int
    topics: tuple[TopicRates, ...]
    contact: Contact = NOTHING_KNOWN

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


_Key = tuple[str, str, str]
_Counts = dict[_Key, tuple[int, int]]


class RateMeter:
    """Speeds over the last ``window_s`` seconds. Time is an argument: feed it what a monotonic clock says."""

    def __init__(self, window_s: float = 3.0) -> None:
        self._window_s = window_s
        self._samples: deque[tuple[float, _Counts]] = deque()

    def observe(self, now_s: float, flows: Iterable[FlowProgress]) -> list[FlowRates]:
        """Takes the counters of this moment and gives the picture of it."""
        flows = list(flows)
        grouped = [(flow, _by_topic(flow.partitions)) for flow in flows]
        counts = {
            (flow.flow, *topic): (sum(p.records for p in partitions), sum(p.bytes for p in partitions))
            for flow, topics in grouped
            for topic, partitions in topics.items()
        }
        self._samples.append((now_s, counts))
        # One sample at or before the window's start stays, so that the speed covers the whole window.
        while len(self._samples) > 2 and self._samples[1][0] <= now_s - self._window_s:
            self._samples.popleft()
        return [
            FlowRates(
                flow.flow,
                flow.state,
                flow.spark_epoch,
                tuple(self._topic(flow.flow, topic, topics[topic]) for topic in sorted(topics)),
                flow.contact,
            )
            for flow, topics in grouped
        ]

    def _topic(self, flow: str, topic: tuple[str, str], partitions: Sequence[PartitionView]) -> TopicRates:
        then_s, before = self._samples[0]
        now_s, now = self._samples[-1]
        records, size = now[(flow, *topic)]
        records_before, size_before = before.get((flow, *topic), (0, 0))
        elapsed_s = now_s - then_s
        return TopicRates(
            flow=flow,
            source_topic=topic[0],
            target_topic=topic[1],
            partitions=len(partitions),
            records=records,
            bytes=size,
            records_per_s=max(0, records - records_before) / elapsed_s if elapsed_s > 0 else 0.0,
            bytes_per_s=max(0, size - size_before) / elapsed_s if elapsed_s > 0 else 0.0,
            lag_records=sum(each.lag_records for each in partitions),
            lag_ms=max(each.lag_ms for each in partitions),
            batches={kind: sum(each.batches.get(kind, 0) for each in partitions) for kind in BATCH_KINDS},
            skipped=sum(each.skipped for each in partitions),
            stopped=sum(bool(each.reason) for each in partitions),
        )


def flow_line(rates: FlowRates) -> str:
    """One flow as a line of a log; one that copies nothing has a sentence of its own (:func:`idle_text`).

    Like ``us->eu running: 5 topics, 20 partitions, 1,200 records/s, 1.2 MB/s, 35 records and 12 ms behind``.
    """
    if (idle := idle_text(rates)) is not None:
        return f"{rates.flow}: {idle}"
    return (
        f"{rates.flow} {rates.state}: {counted(len(rates.topics), 'topic')}, "
        f"{counted(sum(topic.partitions for topic in rates.topics), 'partition')}, "
        f"{rates.records_per_s:,.0f} records/s, {bytes_text(rates.bytes_per_s)}/s, "
        f"{lag_text(rates)}, "
        f"batches {' '.join(f'{kind} {rates.batches(kind):,}' for kind in BATCH_KINDS)}, "
        f"Spark epoch {rates.spark_epoch}{troubles(rates)}"
    )


def idle_text(rates: FlowRates) -> str | None:
    """Why a flow copies nothing, if its connector is the reason."""
    if rates.state == NO_TOPICS:
        return "no topic of the source is selected, so nothing is copied; see the flow's topics and topics.exclude"
    if rates.state in ("STOPPED", "PAUSED"):
        return (
            f"its connector MirrorSourceConnector is {rates.state}, so nothing is copied; resume it over REST: "
            f"PUT {'/'.join(('', *rates.flow.split('->'), 'connectors/MirrorSourceConnector/resume'))}"
        )
    return None


def lag_text(rates: FlowRates) -> str:
    """How far it is behind, or since when that is unknown."""
    source = rates.contact.source
    if not rates.contact.knows_lag:
        return f"lag unknown {since_text(source.answered_ms)}: the source does not answer"
    if not rates.topics:
        return "lag unknown"
    return f"{rates.lag_records:,} records and {rates.lag_ms:,} ms behind"


def troubles(rates: FlowRates) -> str:
    """What is not as it should be, behind a comma; nothing where all is well."""
    stopped = f", {counted(rates.stopped, 'partition')} stopped" if rates.stopped else ""
    target = rates.contact.target
    if target.answers is False:
        stopped += f", the target does not answer {since_text(target.answered_ms)}"
    return stopped + (f", {counted(rates.skipped, 'record')} skipped" if rates.skipped else "")


def bytes_text(count: float) -> str:
    """``1234567`` as ``1.2 MB``: powers of 1000, as network people count."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} GB"


def _by_topic(partitions: Iterable[PartitionView]) -> dict[tuple[str, str], list[PartitionView]]:
    topics: dict[tuple[str, str], list[PartitionView]] = {}
    for partition in partitions:
        topics.setdefault((partition.source_topic, partition.target_topic), []).append(partition)
    return topics
