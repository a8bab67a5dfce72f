"""Pairs of a source partition and its target partition: how they are made, and what a task knows of each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import in_turns
from connect.kafka.log.topic_admin import Admin, perhaps_compacted
from connectors.control_link.protocol import PartitionPlan
from connectors.dataplane.batches import fetched_batches
from connectors.flow_progress import PartitionView, is_stopped
from connectors.formats import types
from connectors.formats.gap import Gap
from connectors.formats.position import Position
from connectors.source.positions.stored_positions import CommitScope, MissingRights, PassedGap, Start

#: No slice copies it yet.
STARTING: Final = "starting"
WAITING: Final = "waiting"
LEAVING: Final = "leaving"
#: Stopped at a gap that a policy passes over at the next takeover, which is due.
RECOVERING: Final = "healing"
_NO_BATCHES: Final = dict.fromkeys(map(str, fetched_batches.BatchKind), 0)


@dataclass(frozen=True, slots=True)
class PartitionPair:
    """A source partition and the target partition that it is copied to; topic ids are None if brokers have none.
    ``ways``: as in a plan. ``is_countable``: whether a successor can count the records that a crash left after a stored
    position, because the source keeps all records and each becomes one target record. ``is_target_compacted``: whether
    the target's cleanup policy includes ``compact``."""

    source: types.TopicPartition
    source_topic_id: UUID | None
    target: types.TopicPartition
    target_topic_id: UUID | None
    max_message_bytes: int = types.DEFAULT_MAX_MESSAGE_BYTES
    ways: types.Ways = types.ONE_WAY
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
        proof: types.ResumeProof | None = None,
        producer: types.ProducerIdAndEpoch | None = None,
    ) -> PartitionPlan:
        """Return a plan of this pair; the arguments are the plan's fields."""
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


def unnoted(_: Entry) -> None:
    """Note nothing: the entry is in no ledger."""


@dataclass(slots=True)
class Entry:
    """One partition pair in the ledger. ``position`` is None until the task knows where to start. ``moved`` is called
    after each change of its state or position, so that nothing has to look at all entries for those that changed."""

    pair: PartitionPair
    position: Position | None = None
    runs: list[types.Run] = field(default_factory=list)
    is_dirty: bool = False
    #: the target's end when an unfenced predecessor's batches were counted, until our first batch is acknowledged
    unfenced_end: int | None = None
    #: the scope of the last commit
    written: CommitScope = CommitScope.ALL
    #: ``bytes`` and ``records`` when the position was taken for a commit, and when it was last stored
    taken: tuple[int, int] = (0, 0)
    stored: tuple[int, int] = (0, 0)
    stored_s: float = 0.0
    state: str = STARTING
    #: whether a slice of this task has ever copied it
    was_copied: bool = False
    reason: str = ""
    #: the gap that stopped it
    gap: Gap | None = None
    #: in state ``RECOVERING``: whether all that was sent is acknowledged
    has_drained: bool = False
    #: the passed gap that the next commit records
    passing: PassedGap | None = None
    #: the target's log start offset, below which the map is trimmed
    target_log_start: int | None = None
    #: source offsets that were passed over since the task started
    lost: int = 0
    high_watermark: int = -1
    timestamp_ms: int = -1
    records: int = 0
    bytes: int = 0
    skipped: int = 0
    dropped: int = 0
    changed: int = 0
    batches: dict[str, int] = field(default_factory=_NO_BATCHES.copy)
    moved: Callable[[Entry], None] = field(default=unnoted, repr=False, compare=False)

    @property
    def lag_records(self) -> int:
        """Source offsets that are not copied yet, as far as slices have reported."""
        return 0 if self.position is None else max(self.high_watermark - self.position.next_source_offset, 0)

    def lag_ms(self, now_ms: int) -> int:
        """Return the age of the last copied record while others wait, at ``now_ms`` since 1970."""
        return max(now_ms - self.timestamp_ms, 0) if self.lag_records and self.timestamp_ms >= 0 else 0

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
    def is_recovering(self) -> bool:
        """Whether it waits for a takeover that is due, to continue after its gap."""
        return self.state == RECOVERING

    @property
    def is_waiting(self) -> bool:
        """Whether it could not be taken over with the others, so that nothing is written for it."""
        return self.state == WAITING

    @property
    def is_drained(self) -> bool:
        """Whether it is ``RECOVERING`` after a source gap and all that was sent is acknowledged."""
        return self.is_recovering and self.has_drained and self.gap is not None and self.gap.is_of_source

    @property
    def holds_back(self) -> bool:
        """Whether slices do not copy it, though it is not stopped."""
        return self.is_waiting or self.is_recovering

    @property
    def is_copied(self) -> bool:
        return self.state == types.RUNNING

    @property
    def is_leaving(self) -> bool:
        """Whether it is no longer copied here and has yet to be stored."""
        return self.state == LEAVING

    @property
    def may_hand_over(self) -> bool:
        """Whether its position is marked as handed over once its writer has ended cleanly. The positions of stopped and
        waiting entries stay as they are."""
        if self.position is None or self.is_stopped or self.is_leaving:
            return False
        return self.is_drained or not self.holds_back

    def hand_over(self) -> None:
        """Mark the position as handed over: its writer ended cleanly, so nothing can arrive after it any more."""
        if self.may_hand_over:
            self.position = replace(_position(self), is_handed_over=True)
            self.is_dirty = True
            self.moved(self)

    def become(self, state: str) -> None:
        self.state = state
        self.moved(self)

    def wait(self, reason: str) -> None:
        self.reason = reason
        self.become(WAITING)

    def stop(self, reason: str, state: str = types.STOPPED, gap: Gap | None = None) -> None:
        """Stop; with a ``gap`` the state is the gap's, instead of ``state``."""
        self.reason, self.gap = reason, gap
        self.become(gap.state if gap else state)

    def resume_past_gap(self, *, has_drained: bool = False) -> None:
        """Let it continue after its gap at the next takeover; ``has_drained``: a slice has just reported the gap."""
        self.has_drained = has_drained
        self.become(RECOVERING)

    def view(self, now_ms: int) -> PartitionView:
        return PartitionView(
            source_topic=self.pair.source.topic,
            source_partition=self.pair.source.partition,
            target_topic=self.pair.target.topic,
            target_partition=self.pair.target.partition,
            state=self.state,
            records=self.records,
            bytes=self.bytes,
            batches=dict(self.batches),
            next_source_offset=self.position.next_source_offset if self.position else -1,
            source_end_offset=self.high_watermark,
            lag_records=self.lag_records,
            lag_ms=self.lag_ms(now_ms),
            reason=self.reason,
            gap=self.gap,
            lost=self.lost,
            skipped=self.skipped,
            dropped=self.dropped,
            changed=self.changed,
        )


def plan_of(entry: Entry, pipelined: bool) -> PartitionPlan:
    """Return a plan that continues exactly at the entry's position."""
    position = _position(entry)
    return entry.pair.plan(
        position.next_source_offset,
        position.source_leader_epoch,
        position.target_end,
        pipelined=pipelined,
        next_sequence=position.next_sequence,
        producer=types.ProducerIdAndEpoch(position.producer_id, position.producer_epoch),
    )


def start_of(entry: Entry, *, has_ended: bool) -> Start:
    """Return what the store would have of the entry once all is stored. ``has_ended``: its writer ended cleanly."""
    position = entry.position
    if position is None:
        return Start(None, None, False)
    position = replace(position, is_handed_over=position.is_handed_over or (has_ended and entry.may_hand_over))
    return Start(position, position.next_source_offset - 1, False)


def position_of(plan: PartitionPlan, transactional_id: str, producer: types.ProducerIdAndEpoch) -> Position:
    """Return the position that a plan starts at, as it is stored."""
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
        is_last_ours=plan.next_sequence == 0,  # else other writers may have appended since
    )


def _position(entry: Entry) -> Position:
    assert entry.position is not None, f"{entry.pair.source} has no position yet"
    return entry.position


@dataclass(frozen=True, slots=True)
class Clusters:
    """A flow's two clusters. Tasks fence one at a time, because after partitions have moved between tasks one fences
    the id that another may be claiming, and a task that is interrupted in its claim would count as superseded."""

    source: Cluster
    target: Cluster
    fencing: asyncio.Lock = field(default_factory=asyncio.Lock)
    missing_rights: MissingRights = field(default_factory=MissingRights)


class Pairing:
    def __init__(
        self,
        remote_topic: Callable[[str], str],
        clusters: tuple[Cluster, Cluster],
        admin: Admin,
        ways: Callable[[str], types.Ways] = lambda _: types.ONE_WAY,
        *,
        is_countable: bool = True,
    ) -> None:
        """``is_countable``: whether each record of the source becomes one record of the target."""
        self._is_countable, self._remote_topic = is_countable, remote_topic
        self._source, self._target = clusters
        self._admin, self._ways = admin, ways

    async def pairs(self, partitions: Sequence[types.TopicPartition]) -> list[PartitionPair]:
        """Return the pairs of the partitions that both clusters know now. Raises RetriableError without an answer."""
        if not partitions:
            return []
        source = (await self._source.metadata({partition.topic for partition in partitions})).topics
        names = {topic: self._remote_topic(topic) for topic in {partition.topic for partition in partitions}}
        target = (await self._target.metadata(set(names.values()))).topics
        configs = await self._admin.describe_topic_configs(set(names.values()))
        sizes = {name: int(size) for name, entries in configs.items() if (size := entries.get("max.message.bytes"))}
        compacted = {name for name, entries in configs.items() if "compact" in (entries.get("cleanup.policy") or "")}
        maybe_compacted = await perhaps_compacted(self._source, names) if self._is_countable else names
        found = []
        async for partition in in_turns(partitions):
            name = names[partition.topic]
            here, there = source.get(partition.topic), target.get(name)
            if here and there and partition.partition in here.partitions and partition.partition in there.partitions:
                remote, largest = (
                    types.TopicPartition(name, partition.partition),
                    sizes.get(name, types.DEFAULT_MAX_MESSAGE_BYTES),
                )
                ways, is_countable = self._ways(partition.topic), partition.topic not in maybe_compacted
                kinds = is_countable, name in compacted
                found.append(PartitionPair(partition, here.topic_id, remote, there.topic_id, largest, ways, *kinds))
        return found

    async def renew(self, entries: Sequence[Entry]) -> None:
        """Pair entries again before a takeover after a gap or after waiting, because their topics may have been
        recreated. Entries that a cluster does not know, or whose topics have no ids, keep their pairs."""
        again = [entry for entry in entries if entry.holds_back and entry.pair.source_topic_id]
        found = {pair.source: pair for pair in await self.pairs([entry.pair.source for entry in again])}
        for entry in again:
            entry.pair = found.get(entry.pair.source, entry.pair)
