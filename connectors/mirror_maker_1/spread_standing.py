"""Where a partition stands whose records are spread, as data: what is stored of it, and what is shown. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

from connect.kafka.group_offsets import Committed
from connectors.dataplane import shape
from connectors.dataplane.plan import RUNNING, PartitionPlan, PartitionProgress, ProducerIdentity, TopicPartition
from connectors.mirror_maker_1.notes import STOPS, Note, Spread, decode, encode_spread
from connectors.positions import Position
from connectors.source.progress import PartitionView

_KIND_OF_REASON: Final = {decision.reason: str(decision.kind) for decision in shape.DECISIONS}


@dataclass(frozen=True, slots=True)
class Begin:
    """Where a partition is copied from.

    Args:
        offset: The next source offset; -1 where the source's log is another than was copied, so from its beginning.
        epoch: The leader epoch of what is before it, -1 where it is not known.
        topics: Topics of the target that a predecessor wrote to.
        state: What it stopped of, where it is not to go on; empty otherwise.
    """

    offset: int
    epoch: int = -1
    topics: tuple[str, ...] = ()
    state: str = ""


@dataclass(slots=True)
class Standing:
    """One partition. ``producer_id`` is of ``transactional_id``; counts are since the task began."""

    next_source_offset: int
    source_epoch: int = -1
    source_topic_id: UUID | None = None
    transactional_id: str = ""
    producer_id: int = -1
    topics: tuple[str, ...] = ()
    state: str = RUNNING
    reason: str = ""
    is_dirty: bool = True
    is_handed_over: bool = False
    high_watermark: int = -1
    timestamp_ms: int = -1
    records: int = 0
    bytes: int = 0
    skipped: int = 0
    batches: dict[str, int] = field(default_factory=lambda: dict.fromkeys(map(str, shape.Kind), 0))

    def add(self, progress: PartitionProgress) -> None:
        """What a slice tells, but for whether it stopped."""
        self.next_source_offset, self.is_dirty = progress.next_source_offset, True
        self.source_epoch = progress.last_source_epoch
        # Also those that were written to once: what was sent there may be under way.
        self.topics = tuple(sorted({*self.topics, *progress.topics}))
        self.high_watermark = progress.high_watermark
        self.timestamp_ms = max(self.timestamp_ms, progress.timestamp_ms)
        self.records += progress.records
        self.bytes += progress.bytes
        self.skipped += sum(last - first + 1 for first, last, _ in progress.skips)
        for reason, count in progress.batches.items():
            self.batches[_KIND_OF_REASON[reason]] += count

    def stored(self) -> Committed:
        """What the group keeps of it."""
        stopped_of = self.state if self.state in STOPS else ""
        note = Spread(
            self.transactional_id,
            self.topics,
            self.is_handed_over,
            self.source_topic_id,
            self.source_epoch,
            self.producer_id,
            stopped_of,
        )
        return Committed(self.next_source_offset, encode_spread(note))

    def plan(self, source: TopicPartition, producer: ProducerIdentity) -> PartitionPlan:
        """As it is told a slice."""
        return PartitionPlan(
            source=source,
            source_topic_id=self.source_topic_id,
            target=source,
            target_topic_id=None,
            next_source_offset=self.next_source_offset,
            last_source_epoch=self.source_epoch,
            target_end=0,
            next_sequence=0,
            pipelined=False,
            producer=producer,
            spreads=True,
        )

    def view(self, source: TopicPartition, now_ms: int) -> PartitionView:
        lag = max(self.high_watermark - self.next_source_offset, 0)
        return PartitionView(
            source_topic=source.topic,
            source_partition=source.partition,
            target_topic=source.topic,
            target_partition=-1,
            state=self.state,
            records=self.records,
            bytes=self.bytes,
            batches=dict(self.batches),
            next_source_offset=self.next_source_offset,
            source_end_offset=self.high_watermark,
            lag_records=lag,
            lag_ms=max(now_ms - self.timestamp_ms, 0) if lag and self.timestamp_ms >= 0 else 0,
            reason=self.reason,
            skipped=self.skipped,
        )


def begun(
    before: Standing | None, begin: Begin, topic_id: UUID | None, topics: Iterable[str], writer: tuple[str, int]
) -> Standing:
    """A partition at its beginning; counts go on from ``before``. ``writer``: transactional and producer id."""
    transactional_id, producer_id = writer
    return replace(
        before or Standing(begin.offset),
        next_source_offset=begin.offset,
        source_epoch=begin.epoch,
        source_topic_id=topic_id,
        transactional_id=transactional_id,
        producer_id=producer_id,
        topics=tuple(sorted({*topics, *begin.topics})),
        is_dirty=True,
        is_handed_over=False,
    )


def begin_of(partition: TopicPartition, stored: Committed, topic_id: UUID | None) -> Begin:
    """Where the copy goes on behind a stored offset; ``topic_id``: of the source's topic as it is now."""
    note: Note | None = decode(partition, stored.metadata)
    if note is None:
        return Begin(stored.offset)
    if isinstance(note, Spread):
        epoch, topics, state = note.source_epoch, note.topics, note.stopped_of
    else:
        # Another tool may have moved the group since.
        epoch = note.source_leader_epoch if note.next_source_offset == stored.offset else -1
        topics, state = (note.target_topic,), ""
    if state:
        return Begin(stored.offset, epoch, topics, state)
    if is_another(note, topic_id):
        return Begin(-1, topics=topics)
    return Begin(stored.offset, epoch, topics)


def is_another(note: Position | Spread, topic_id: UUID | None) -> bool:
    """Whether the source's topic was deleted and made anew since."""
    return note.source_topic_id is not None and topic_id is not None and note.source_topic_id != topic_id
