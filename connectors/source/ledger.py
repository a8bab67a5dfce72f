"""What a task knows of its partitions: acknowledged positions, runs not yet stored, counts for people. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

from connectors.dataplane import shape
from connectors.dataplane.outgoing import append_run
from connectors.dataplane.plan import (
    DEFAULT_MAX_MESSAGE_BYTES,
    QUARANTINED,
    RUNNING,
    STOPPED,
    PartitionPlan,
    PartitionProgress,
    ProducerIdentity,
    Run,
    TopicPartition,
)
from connectors.positions import Position
from connectors.source.progress import PartitionView
from connectors.source.store import Commit

_KIND_OF_REASON: Final = {decision.reason: str(decision.kind) for decision in shape.DECISIONS}


@dataclass(frozen=True, slots=True)
class Pair:
    """A source partition and the target partition that it is copied to; ids None where brokers have none."""

    source: TopicPartition
    source_topic_id: UUID | None
    target: TopicPartition
    target_topic_id: UUID | None
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES


@dataclass(slots=True)
class Entry:
    """One partition pair in the ledger. ``position`` is None until the task knows where to begin."""

    pair: Pair
    position: Position | None = None
    runs: list[Run] = field(default_factory=list)
    is_dirty: bool = False
    state: str = "starting"
    reason: str = ""
    high_watermark: int = -1
    timestamp_ms: int = -1
    records: int = 0
    bytes: int = 0
    skipped: int = 0
    batches: dict[str, int] = field(default_factory=lambda: dict.fromkeys(map(str, shape.Kind), 0))

    @property
    def is_stopped(self) -> bool:
        return self.state in (STOPPED, QUARANTINED)

    def stop(self, reason: str, state: str = STOPPED) -> None:
        self.state, self.reason = state, reason

    def view(self, now_ms: int) -> PartitionView:
        position = self.position.next_source_offset if self.position else -1
        lag = max(self.high_watermark - position, 0) if position >= 0 else 0
        behind_ms = max(now_ms - self.timestamp_ms, 0) if lag and self.timestamp_ms >= 0 else 0
        return PartitionView(
            source_topic=self.pair.source.topic,
            source_partition=self.pair.source.partition,
            target_topic=self.pair.target.topic,
            target_partition=self.pair.target.partition,
            state=self.state,
            records=self.records,
            bytes=self.bytes,
            batches=dict(self.batches),
            next_source_offset=position,
            source_end_offset=self.high_watermark,
            lag_records=lag,
            lag_ms=behind_ms,
            reason=self.reason,
            skipped=self.skipped,
        )


class Ledger:
    """The entries of one task, by source partition."""

    def __init__(self, pairs: Iterable[Pair]) -> None:
        self.entries = {pair.source: Entry(pair) for pair in pairs}

    def going(self) -> list[Entry]:
        """Entries that are copied: not stopped."""
        return [entry for entry in self.entries.values() if not entry.is_stopped]

    def apply(self, progress: PartitionProgress) -> str:
        """Take a slice's report; returns the reason if it says that the partition stopped just now."""
        entry = self.entries[progress.source]
        assert entry.position is not None, "a slice reports on what it was told to copy"
        entry.position = replace(
            entry.position,
            next_source_offset=progress.next_source_offset,
            source_leader_epoch=progress.last_source_epoch,
            target_end=progress.target_end,
            next_sequence=progress.next_sequence,
            is_handed_over=False,
        )
        entry.is_dirty = True
        entry.high_watermark = progress.high_watermark
        entry.timestamp_ms = max(entry.timestamp_ms, progress.timestamp_ms)
        entry.records += progress.records
        entry.bytes += progress.bytes
        for reason, count in progress.batches.items():
            entry.batches[_KIND_OF_REASON[reason]] += count
        for run in progress.runs:
            append_run(entry.runs, run)
        entry.skipped += sum(last - first + 1 for first, last, _ in progress.skips)
        if progress.state != RUNNING and not entry.is_stopped:
            entry.stop(progress.reason, progress.state)
            return progress.reason
        return ""

    def begin(self, source: TopicPartition, position: Position, runs: Iterable[Run] = ()) -> None:
        """Set where a partition goes on, with the runs that a proof found."""
        entry = self.entries[source]
        entry.position = position
        entry.is_dirty = True
        entry.state = RUNNING
        for run in runs:
            append_run(entry.runs, run)

    def hand_over(self, unclean: Collection[TopicPartition]) -> None:
        """The writer ended: mark the positions behind which nothing of it can arrive any more."""
        for entry in self.entries.values():
            if entry.position is not None and entry.pair.source not in unclean and not entry.is_stopped:
                entry.position = replace(entry.position, is_handed_over=True)
                entry.is_dirty = True

    def plans(self, pipelined: Collection[TopicPartition] = ()) -> list[PartitionPlan]:
        """Plans that go on at the acknowledged positions, under the producer of those positions.

        ``pipelined``: partitions that bear the marker of a fence, written just now. A running sequence is no proof that
        the leader knows the producer: after a day of silence (``producer.id.expiration.ms``) it takes any sequence.
        """
        return [plan_of(entry, entry.pair.source in pipelined) for entry in self.going()]

    def take_commits(self) -> list[Commit]:
        """What changed since the last call; give it back with :meth:`give_back` if storing it failed."""
        commits = []
        for entry in self.entries.values():
            if entry.is_dirty and entry.position is not None:
                commits.append(Commit(entry.position, tuple(entry.runs)))
                entry.is_dirty = False
                entry.runs = []
        return commits

    def give_back(self, commits: Iterable[Commit]) -> None:
        """These could not be stored: keep them for the next try, in order."""
        for commit in commits:
            key = TopicPartition(commit.position.source_topic, commit.position.source_partition)
            entry = self.entries[key]
            newer, entry.runs = entry.runs, list(commit.runs)
            for run in newer:
                append_run(entry.runs, run)
            entry.is_dirty = True


def plan_of(entry: Entry, pipelined: bool) -> PartitionPlan:
    """A plan that goes on exactly at the entry's position."""
    position = _position(entry)
    pair = entry.pair
    return PartitionPlan(
        source=pair.source,
        source_topic_id=pair.source_topic_id,
        target=pair.target,
        target_topic_id=pair.target_topic_id,
        next_source_offset=position.next_source_offset,
        last_source_epoch=position.source_leader_epoch,
        target_end=position.target_end,
        next_sequence=position.next_sequence,
        pipelined=pipelined,
        max_message_bytes=pair.max_message_bytes,
        producer=ProducerIdentity(position.producer_id, position.producer_epoch),
    )


def position_of(plan: PartitionPlan, transactional_id: str, producer: ProducerIdentity) -> Position:
    """The position that a plan begins at, as it is stored."""
    return Position(
        source_topic=plan.source.topic,
        source_partition=plan.source.partition,
        source_topic_id=plan.source_topic_id,
        next_source_offset=plan.next_source_offset,
        source_leader_epoch=plan.last_source_epoch,
        target_topic=plan.target.topic,
        target_partition=plan.target.partition,
        target_topic_id=plan.target_topic_id,
        target_end=plan.target_end,
        transactional_id=transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        next_sequence=plan.next_sequence,
    )


def _position(entry: Entry) -> Position:
    assert entry.position is not None, f"{entry.pair.source} has no position yet"
    return entry.position
