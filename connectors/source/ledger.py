"""What a task knows of its partitions: acknowledged positions, runs not yet stored, when to store them, counts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

from connect.kafka.concurrency import in_turns
from connectors.dataplane import shape
from connectors.dataplane.outgoing import append_run
from connectors.dataplane.plan import (
    DEFAULT_MAX_MESSAGE_BYTES,
    ONE_WAY,
    RUNNING,
    STOPPED,
    PartitionPlan,
    PartitionProgress,
    ProducerIdentity,
    Proof,
    Run,
    TopicPartition,
    Ways,
)
from connectors.gaps import Gap
from connectors.positions import Position
from connectors.source.progress import PartitionView, is_stopped
from connectors.source.store import Commit, Scope, Start

#: So many entries are changed before others of the loop have their turn; each takes some 3 us.
_AT_ONCE: Final = 1000
#: No slice copies it yet.
STARTING: Final = "starting"
WAITING: Final = "waiting"
LEAVING: Final = "leaving"
#: Stopped of a gap that a policy passes over: at the next take-over, which is due.
HEALING: Final = "healing"
_NO_BATCHES: Final = dict.fromkeys(map(str, shape.Kind), 0)
_KIND_OF_REASON: Final = {decision.reason: str(decision.kind) for decision in shape.DECISIONS}


@dataclass(frozen=True, slots=True)
class Pair:
    """A source partition and the target partition that it is copied to; ids None where brokers have none.

    ``ways``: as a plan's. ``is_countable``: whether a successor can count what a crash left behind a stored position:
    the source keeps all records, and each of them becomes one record of the target. ``is_target_compacted``: also with
    other policies.
    """

    source: TopicPartition
    source_topic_id: UUID | None
    target: TopicPartition
    target_topic_id: UUID | None
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    ways: Ways = ONE_WAY
    is_countable: bool = True
    is_target_compacted: bool = False

    def plan(
        self,
        next_source_offset: int,
        last_source_epoch: int,
        target_end: int,
        *,
        pipelined: bool,
        next_sequence: int = 0,
        proof: Proof | None = None,
        producer: ProducerIdentity | None = None,
    ) -> PartitionPlan:
        """Return a plan of this pair; arguments as its fields."""
        return PartitionPlan(
            self.source,
            self.source_topic_id,
            self.target,
            self.target_topic_id,
            next_source_offset,
            last_source_epoch,
            target_end,
            next_sequence,
            pipelined,
            self.max_message_bytes,
            proof,
            producer,
            self.ways,
        )


@dataclass(frozen=True, slots=True)
class Cadence:
    """When positions are stored.

    Args:
        interval_s: At the latest after so long, if anything was copied.
        sized_bytes: Sooner if the task copied so much since, of the partitions that copied most of it: it bounds what
            a successor reads again to count, and keeps a working store far below :data:`MAX_UNSTORED_BYTES`.
        uncountable_s: For partitions that a successor cannot count, and so copies again from their position.
        flush_s: Java's offsets with them, ``offset.flush.interval.ms``.
        complete_s: Whole maps with these, for an earlier version that continues after a kill.
    """

    flush_s: float = 60.0
    complete_s: float = 3600.0
    interval_s: float = 10.0
    uncountable_s: float = 1.0
    sized_bytes: int = 64 * 1024 * 1024


#: While nothing can be stored copying stops at so many bytes of a task: they are what a successor reads again.
MAX_UNSTORED_BYTES: Final = 256 * 1024 * 1024
#: And at so many records of a partition: sequences are counted modulo 2^31, and one commit is under way meanwhile.
MAX_UNSTORED_RECORDS: Final = 2**29


@dataclass(frozen=True, slots=True)
class Passing:
    """A gap that is passed over, and where the map ends because of it."""

    found_ms: int
    gap: Gap
    target_truncated_to: int | None = None
    source_truncated_to: int | None = None


@dataclass(slots=True)
class Entry:
    """One partition pair in the ledger. ``position`` is None until the task knows where to begin."""

    pair: Pair
    position: Position | None = None
    runs: list[Run] = field(default_factory=list)
    is_dirty: bool = False
    #: where the target ended when an unfenced predecessor's batches were counted, until the first own batch is there
    unfenced_end: int | None = None
    #: what was written with the position last
    written: Scope = Scope.ALL
    #: ``bytes`` and ``records`` when the position was taken for a commit, and when it was stored last
    taken: tuple[int, int] = (0, 0)
    stored: tuple[int, int] = (0, 0)
    stored_s: float = 0.0
    state: str = STARTING
    #: whether a slice of this task was ever told to copy it
    was_copied: bool = False
    reason: str = ""
    #: what became of its logs, where it stopped of that
    gap: Gap | None = None
    #: where it heals: whether all that was sent is acknowledged
    has_drained: bool = False
    #: what the next commit is to tell of a gap that is passed over
    passing: Passing | None = None
    #: where the target's log begins, below which the map is let go
    target_log_start: int | None = None
    #: source offsets that were passed over, since the task began
    lost: int = 0
    high_watermark: int = -1
    timestamp_ms: int = -1
    records: int = 0
    bytes: int = 0
    skipped: int = 0
    dropped: int = 0
    changed: int = 0
    batches: dict[str, int] = field(default_factory=_NO_BATCHES.copy)

    @property
    def unstored_bytes(self) -> int:
        return self.bytes - self.stored[0]

    @property
    def unstored_records(self) -> int:
        return self.records - self.stored[1]

    @property
    def is_stopped(self) -> bool:
        return is_stopped(self.state)

    @property
    def is_healing(self) -> bool:
        """Whether nothing is copied until a take-over that is due."""
        return self.state == HEALING

    @property
    def is_waiting(self) -> bool:
        """Whether it could not be taken over with the others, and nothing is written for it."""
        return self.state == WAITING

    @property
    def is_drained(self) -> bool:
        """Whether it heals and all that was sent is acknowledged: a slice that stops reading waits for that."""
        return self.is_healing and self.has_drained and self.gap is not None and self.gap.is_of_source

    @property
    def holds_back(self) -> bool:
        """Whether a slice is not told of it, though it is not stopped."""
        return self.is_waiting or self.is_healing

    @property
    def is_copied(self) -> bool:
        """Whether a slice copies it."""
        return self.state == RUNNING

    @property
    def is_leaving(self) -> bool:
        """Whether it is no longer copied here, and what is known of it is still to be stored."""
        return self.state == LEAVING

    @property
    def may_hand_over(self) -> bool:
        """Whether its position is to be marked as handed over once its writer has ended cleanly. What was stopped, or
        waits, is not: its position stays as it is."""
        if self.position is None or self.is_stopped or self.is_leaving:
            return False
        return self.is_drained or not self.holds_back

    def hand_over(self) -> None:
        """Its writer ended cleanly: nothing of it can arrive behind the position any more."""
        if self.may_hand_over:
            self.position = replace(_position(self), is_handed_over=True)
            self.is_dirty = True

    def wait(self, reason: str) -> None:
        self.state, self.reason = WAITING, reason

    def stop(self, reason: str, state: str = STOPPED, gap: Gap | None = None) -> None:
        """With ``gap`` the state is named after what happened, whatever ``state`` says."""
        self.state, self.reason, self.gap = gap.state if gap else state, reason, gap

    def heal(self, *, has_drained: bool = False) -> None:
        """A policy goes on behind its gap; ``has_drained``: a slice has just told of it."""
        self.state, self.has_drained = HEALING, has_drained

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
            gap=self.gap,
            lost=self.lost,
            skipped=self.skipped,
            dropped=self.dropped,
            changed=self.changed,
        )


class Ledger:
    """The entries of one task, by source partition."""

    def __init__(self, pairs: Iterable[Pair], cadence: Cadence | None = None) -> None:
        self.entries: dict[TopicPartition, Entry] = {}
        self._cadence = cadence or Cadence()
        self._completed_s = self._flushed_s = self._stored_s = float("-inf")
        self._unstored_bytes = 0
        self._too_long: set[TopicPartition] = set()
        self.enter(pairs)

    def enter(self, pairs: Iterable[Pair]) -> None:
        self.entries.update((pair.source, Entry(pair)) for pair in pairs)

    def clear(self) -> None:
        """Forget all entries."""
        self.entries.clear()
        self._unstored_bytes = 0
        self._too_long.clear()

    def going(self) -> list[Entry]:
        """Entries that are neither stopped nor leaving."""
        return [one for one in self.entries.values() if not (is_stopped(one.state) or one.state == LEAVING)]

    async def leave(self, wanted: Collection[TopicPartition]) -> None:
        """Hand over the entries that are not ``wanted``. Nothing of them is in flight."""
        self.abandon(wanted)
        kept = set(wanted)
        leaving = [entry for source, entry in self.entries.items() if source not in kept]
        async for entry in in_turns(leaving, _AT_ONCE):
            entry.hand_over()
            entry.state = LEAVING

    def abandon(self, wanted: Collection[TopicPartition]) -> None:
        """Store nothing more of the entries that are not ``wanted`` and that no slice of this task has copied: their
        next owner may have stored a newer position already."""
        for source in self.entries.keys() - set(wanted):
            entry = self.entries[source]
            if not entry.was_copied:
                entry.position, entry.runs, entry.passing = None, [], None
                entry.state = LEAVING

    def leaving(self) -> list[TopicPartition]:
        """Partitions that are no longer copied here, and are to be stored."""
        return [source for source, entry in self.entries.items() if entry.is_leaving]

    def drop(self, source: TopicPartition) -> None:
        """Forget an entry, once all of it is stored."""
        self._unstored_bytes -= self.entries.pop(source).unstored_bytes
        self._too_long.discard(source)

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
            is_last_ours=entry.position.is_last_ours or progress.target_end != entry.position.target_end,
        )
        entry.is_dirty = True
        entry.high_watermark = progress.high_watermark
        entry.timestamp_ms = max(entry.timestamp_ms, progress.timestamp_ms)
        entry.records += progress.records
        entry.bytes += progress.bytes
        self._unstored_bytes += progress.bytes
        if entry.unstored_records >= MAX_UNSTORED_RECORDS:
            self._too_long.add(progress.source)
        for reason, count in progress.batches.items():
            entry.batches[_KIND_OF_REASON[reason]] += count
        for run in progress.runs:
            append_run(entry.runs, run)
        entry.dropped += progress.dropped
        entry.changed += progress.changed
        entry.skipped += sum(last - first + 1 for first, last, _ in progress.skips)
        if progress.state != RUNNING and not entry.is_stopped:
            entry.stop(progress.reason, progress.state, progress.gap)
            return progress.reason
        return ""

    def begin(
        self, source: TopicPartition, position: Position, runs: Iterable[Run] = (), *, is_fenced: bool = True
    ) -> None:
        """Set where a partition continues, with the runs that were counted off."""
        entry = self.entries[source]
        entry.unfenced_end = None if is_fenced else position.target_end
        entry.target_log_start = None  # it may be another log
        entry.position = position
        entry.is_dirty = True
        entry.state, entry.reason, entry.gap = RUNNING, "", None
        if entry.passing is not None:
            entry.lost += entry.passing.gap.lost_offsets
        for run in runs:
            append_run(entry.runs, run)

    def late_records(self, progress: PartitionProgress) -> int:
        """How many records at most an unfenced predecessor wrote before our first batch shut it out."""
        entry = self.entries[progress.source]
        if entry.unfenced_end is None or not progress.runs:
            return 0
        late, entry.unfenced_end = progress.runs[0][1] - entry.unfenced_end, None
        return late

    async def hand_over(self) -> None:
        """The writer of all entries ended cleanly."""
        async for entry in in_turns(list(self.entries.values()), _AT_ONCE):
            entry.hand_over()

    async def committed_with_records(self) -> None:
        """Every position is as the transaction of its records left it."""
        async for entry in in_turns(list(self.entries.values()), _AT_ONCE):
            if entry.position is not None:
                entry.position = replace(entry.position, is_atomic=True)

    def forget_unstored(self) -> None:
        """What was told since the last commit is not so: its transaction was aborted."""
        for entry in self.entries.values():
            entry.is_dirty, entry.runs = False, []

    def plans(self, pipelined: Collection[TopicPartition] = ()) -> Iterator[PartitionPlan]:
        """Plans, made one by one, that go on at the acknowledged positions under the producer of those positions.

        ``pipelined``: partitions that bear the marker of a fence, written just now. A running sequence is no proof that
        the leader knows the producer: after a day of silence (``producer.id.expiration.ms``) it takes any sequence.
        """
        return (plan_of(entry, entry.pair.source in pipelined) for entry in self.going() if not entry.holds_back)

    def waiting(self) -> list[Entry]:
        """Entries that could not be taken over with the others."""
        return [entry for entry in self.entries.values() if entry.is_waiting]

    def take_commits(self, now_s: float | None = None) -> Iterator[Commit]:
        """What is to be stored at ``now_s``, of a monotonic clock; None: everything, for whoever continues. Follow each
        by :meth:`commit_succeeded`, or by :meth:`give_back` if storing failed."""
        scope, due = (Scope.ALL, self._unwritten(Scope.ALL)) if now_s is None else self._due(now_s)
        for entry in due:
            if entry.position is not None:
                commit = _commit_of(entry, entry.position, scope)
                entry.is_dirty, entry.written = False, commit.scope
                entry.runs, entry.passing = [], None
                entry.taken = entry.bytes, entry.records
                entry.stored_s = now_s or entry.stored_s
                yield commit

    def _unwritten(self, scope: Scope) -> list[Entry]:
        return [entry for entry in self.entries.values() if entry.is_dirty or entry.written < scope]

    def _due(self, now_s: float) -> tuple[Scope, list[Entry]]:
        cadence = self._cadence
        if now_s - self._flushed_s >= cadence.flush_s:
            self._flushed_s = self._stored_s = now_s
            scope = Scope.OFFSETS
            if now_s - self._completed_s >= cadence.complete_s:
                self._completed_s, scope = now_s, Scope.ALL
            return scope, self._unwritten(scope)
        dirty = self._unwritten(Scope.PROGRESS)
        if now_s - self._stored_s >= cadence.interval_s:
            self._stored_s = now_s
            return Scope.PROGRESS, dirty
        # The average of so many bytes: what the others copied is less than sized_bytes together.
        is_sized = self._unstored_bytes >= cadence.sized_bytes
        due_bytes = cadence.sized_bytes / len(dirty) if is_sized and dirty else float("inf")
        return Scope.PROGRESS, [entry for entry in dirty if self._is_due(entry, now_s, due_bytes)]

    def _is_due(self, entry: Entry, now_s: float, due_bytes: float) -> bool:
        if entry.unstored_bytes >= due_bytes or entry.passing is not None:
            return True
        return not entry.pair.is_countable and now_s - entry.stored_s >= self._cadence.uncountable_s

    def must_wait(self) -> bool:
        """Whether so much is copied and not stored that copying has to wait."""
        return self._unstored_bytes >= MAX_UNSTORED_BYTES or bool(self._too_long)

    def commit_succeeded(self, commit: Commit) -> None:
        """It is stored."""
        source = _source_of(commit)
        entry = self.entries.get(source)
        if entry is not None:
            self._unstored_bytes -= entry.taken[0] - entry.stored[0]
            self._too_long.discard(source)
            entry.stored = entry.taken

    def give_back(self, commits: Sequence[Commit]) -> None:
        """These could not be stored: keep them for the next try, in order, which is due at once."""
        self._flushed_s = self._stored_s = float("-inf")
        if any(commit.scope is Scope.ALL for commit in commits):
            self._completed_s = float("-inf")
        for commit in commits:
            entry = self.entries[_source_of(commit)]
            newer, entry.runs = entry.runs, list(commit.runs)
            if commit.gaps:
                entry.passing = Passing(*commit.gaps[0], commit.target_truncated_to, commit.source_truncated_to)
            for run in newer:
                append_run(entry.runs, run)
            entry.is_dirty = True


def _source_of(commit: Commit) -> TopicPartition:
    return TopicPartition(commit.position.source_topic, commit.position.source_partition)


def _commit_of(entry: Entry, position: Position, scope: Scope) -> Commit:
    passing = entry.passing
    if passing is None:
        return Commit(
            position,
            tuple(entry.runs),
            target_log_start=entry.target_log_start,
            scope=scope,
            is_target_compacted=entry.pair.is_target_compacted,
        )
    return Commit(
        position,
        tuple(entry.runs),
        target_truncated_to=passing.target_truncated_to,
        source_truncated_to=passing.source_truncated_to,
        gaps=((passing.found_ms, passing.gap),),
        scope=Scope.ALL,
    )


def plan_of(entry: Entry, pipelined: bool) -> PartitionPlan:
    """A plan that goes on exactly at the entry's position."""
    position = _position(entry)
    return entry.pair.plan(
        position.next_source_offset,
        position.source_leader_epoch,
        position.target_end,
        pipelined=pipelined,
        next_sequence=position.next_sequence,
        producer=ProducerIdentity(position.producer_id, position.producer_epoch),
    )


def start_of(entry: Entry, *, has_ended: bool) -> Start:
    """What the store would say of the entry once all of it is stored. ``has_ended``: its writer ended cleanly."""
    position = entry.position
    if position is None:
        return Start(None, None, False)
    position = replace(position, is_handed_over=position.is_handed_over or (has_ended and entry.may_hand_over))
    return Start(position, position.next_source_offset - 1, False)


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
        is_last_ours=plan.next_sequence == 0,  # else others may have written since we were there
    )


def _position(entry: Entry) -> Position:
    assert entry.position is not None, f"{entry.pair.source} has no position yet"
    return entry.position
