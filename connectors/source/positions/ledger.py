"""Track a task's partitions: acknowledged positions, runs that are not stored yet, when to store them, and counts.

There may be thousands of partitions, most of them idle. So whatever changes an entry calls :attr:`Entry.moved`. The
ledger then sorts that entry by what regular looks ask for, and their cost is that of the partitions that moved.

The ledger also trims the offset map below the targets' log start offsets. At long intervals it requests these, one
request per leader, for the partitions that moved since, and the trim is part of the next commit of each. Idle
partitions need no trim, because their maps do not grow.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NoReturn

from connect.core.errors import HeliographError
from connect.kafka.cluster import Cluster, ClusterMetadata
from connect.kafka.concurrency import in_turns
from connect.kafka.log.offsets import EARLIEST, list_offsets
from connectors.control_link.protocol import PartitionPlan, PartitionProgress
from connectors.dataplane.batches.fetched_batches import KIND_OF_REASON
from connectors.dataplane.batches.outgoing_batches import append_run
from connectors.flow_facts import PartitionFacts, Tally
from connectors.flow_progress import Meters, is_stopped
from connectors.formats.gap import Gap
from connectors.formats.position import Position
from connectors.formats.types import RUNNING, Run, TopicPartition
from connectors.source.positions.partition_pairs import LEAVING, Entry, PartitionPair, plan_of, unnoted
from connectors.source.positions.stored_positions import Commit, CommitScope


@dataclass(frozen=True, slots=True)
class Cadence:
    """When positions are stored. ``interval_s``: the longest interval, if anything was copied. ``sized_bytes``: once
    the task has copied this much since, positions of the busiest partitions are stored sooner. This bounds what a
    successor reads again to count, far below :data:`MAX_UNSTORED_BYTES` if the store works. ``uncountable_s``: for
    partitions that a successor cannot count, and so copies again from their position. ``flush_s``: how often Java's
    offsets are stored too, ``offset.flush.interval.ms``. ``complete_s``: how often whole maps are stored too, for an
    earlier version that continues after a kill."""

    flush_s: float = 60.0
    complete_s: float = 3600.0
    interval_s: float = 10.0
    uncountable_s: float = 1.0
    sized_bytes: int = 64 * 1024 * 1024


#: Unstored bytes of a task at which copying pauses, because a successor has to read them again.
MAX_UNSTORED_BYTES: Final = 256 * 1024 * 1024
#: The same in records of a partition, because sequences count modulo 2^31 and a commit may be in progress.
MAX_UNSTORED_RECORDS: Final = 2**29


#: Entries that a look concerns, by source partition.
Some = dict[TopicPartition, Entry]


class Ledger:
    """The entries of one task, by source partition."""

    def __init__(self, pairs: Iterable[PartitionPair], cadence: Cadence | None = None) -> None:
        self.entries: Some = {}
        #: Entries that no slice copies, for any reason.
        self.apart: Some = {}
        #: Entries with records at the source that are not copied yet, as far as slices have reported.
        self.behind: Some = {}
        self._unstored: Some = {}
        #: Entries of which the last commit did not write everything.
        self._incomplete: Some = {}
        self._readers: list[dict[TopicPartition, None]] = []
        self._topics: Counter[str] = Counter()
        self._wanted: dict[TopicPartition, None] | None = None
        #: Partitions that are wanted and have no entry; entries that are not wanted, as of the last :meth:`want`.
        self.missing: dict[TopicPartition, None] = {}
        self.unwanted: Some = {}
        self._cadence = cadence or Cadence()
        self._completed_s = self._flushed_s = self._stored_s = float("-inf")
        self._unstored_bytes = 0
        self._too_long: set[TopicPartition] = set()
        self.enter(pairs)

    def enter(self, pairs: Iterable[PartitionPair]) -> None:
        for pair in pairs:
            self._add(Entry(pair))

    def take_in(self, other: Ledger) -> None:
        """Add the entries of another ledger, which is not used again."""
        for entry in other.entries.values():
            self._add(entry)

    def clear(self) -> None:
        for source in list(self.entries):
            self.drop(source)

    def want(self, partitions: Iterable[TopicPartition]) -> None:
        """Compare the entries with what the task has to copy, from now on."""
        self._wanted = dict.fromkeys(partitions)
        self.missing = {source: None for source in self._wanted if source not in self.entries}
        self.unwanted = {source: entry for source, entry in self.entries.items() if source not in self._wanted}

    def reader(self) -> dict[TopicPartition, None]:
        """Return a set that gets the source of each entry that is added, moves or is dropped, at first that of all.
        Its owner removes them."""
        reader = dict.fromkeys(self.entries)
        self._readers.append(reader)
        return reader

    def tally(self, meters: Meters, now_ms: int) -> Tally:
        """Return all partitions together; ``meters`` has what was counted of them."""
        batches: Counter[str] = Counter()
        for reason, count in meters.batches.items():
            batches[KIND_OF_REASON[reason]] += count
        return Tally(
            frozenset(self._topics),
            len(self.entries),
            meters.records,
            meters.bytes,
            batches,
            meters.skipped,
            sum(entry.lag_records for entry in self.behind.values()),
            max((entry.lag_ms(now_ms) for entry in self.behind.values()), default=0),
            tuple(
                PartitionFacts(source, entry.state, entry.reason)
                for source, entry in self.apart.items()
                if entry.reason
            ),
        )

    def _add(self, entry: Entry) -> None:
        source = entry.pair.source
        self._topics[source.topic] += source not in self.entries
        self.entries[source] = entry
        self.missing.pop(source, None)
        if self._wanted is not None and source not in self._wanted:
            self.unwanted[source] = entry
        entry.moved = self._moved
        self._moved(entry)

    def _moved(self, entry: Entry) -> None:
        self._sort(entry)
        for reader in self._readers:
            reader[entry.pair.source] = None

    def _sort(self, entry: Entry) -> None:
        for some, belongs in (
            (self.apart, not entry.is_copied),
            (self.behind, entry.lag_records > 0),
            (self._unstored, entry.is_dirty),
            (self._incomplete, entry.written < CommitScope.ALL),
        ):
            if belongs:
                some[entry.pair.source] = entry
            else:
                some.pop(entry.pair.source, None)

    def going(self) -> list[Entry]:
        """Return the entries that are neither stopped nor leaving."""
        return [one for one in self.entries.values() if not (is_stopped(one.state) or one.state == LEAVING)]

    async def leave(self, wanted: Collection[TopicPartition]) -> None:
        """Hand over the entries that are not ``wanted``, which must have nothing in flight."""
        self.abandon(wanted)
        kept = set(wanted)
        leaving = [entry for source, entry in self.entries.items() if source not in kept]
        async for entry in in_turns(leaving):
            entry.hand_over()
            entry.become(LEAVING)

    def abandon(self, wanted: Collection[TopicPartition]) -> None:
        """Forget unwanted positions never copied here: their next owner may have stored newer ones."""
        for source in self.entries.keys() - set(wanted):
            entry = self.entries[source]
            if not entry.was_copied:
                entry.position, entry.runs, entry.passing = None, [], None
                entry.become(LEAVING)

    def leaving(self) -> list[TopicPartition]:
        """Return the partitions that are no longer copied here and have to be stored."""
        return [source for source, entry in self.apart.items() if entry.is_leaving]

    def drop(self, source: TopicPartition) -> None:
        """Forget a partition; do nothing if it was dropped before."""
        entry = self.entries.pop(source, None)
        if entry is None:
            return
        entry.moved = unnoted
        self._unstored_bytes -= entry.unstored_bytes
        self._too_long.discard(source)
        self._topics[source.topic] -= 1
        if not self._topics[source.topic]:
            del self._topics[source.topic]
        for some in (self.apart, self.behind, self._unstored, self._incomplete, self.unwanted):
            some.pop(source, None)
        if self._wanted and source in self._wanted:
            self.missing[source] = None
        for reader in self._readers:
            reader[source] = None

    def apply(self, progress: PartitionProgress) -> str:
        """Apply a slice's report; return the reason if the partition has just stopped."""
        entry = self.entries[progress.source]
        assert entry.position is not None, "a slice reports only on partitions of its plans"
        position = replace(
            entry.position,
            next_source_offset=progress.next_source_offset,
            source_leader_epoch=progress.last_source_epoch,
            target_end=progress.target_end,
            next_sequence=progress.next_sequence,
            is_handed_over=False,
            is_last_ours=entry.position.is_last_ours or progress.target_end != entry.position.target_end,
        )
        # Each slice reports all partitions at first, to say where their logs end, which moves nothing.
        has_moved = position != entry.position
        if has_moved:
            entry.position, entry.is_dirty = position, True
        has_moved |= progress.high_watermark != entry.high_watermark
        entry.high_watermark = progress.high_watermark
        entry.timestamp_ms = max(entry.timestamp_ms, progress.timestamp_ms)
        entry.records += progress.records
        entry.bytes += progress.bytes
        self._unstored_bytes += progress.bytes
        if entry.unstored_records >= MAX_UNSTORED_RECORDS:
            self._too_long.add(progress.source)
        for reason, count in progress.batches.items():
            entry.batches[KIND_OF_REASON[reason]] += count
        for run in progress.runs:
            append_run(entry.runs, run)
        entry.dropped += progress.dropped
        entry.changed += progress.changed
        entry.skipped += sum(last - first + 1 for first, last, _ in progress.skips)
        if has_moved:
            self._moved(entry)
        if progress.state != RUNNING and not entry.is_stopped:
            entry.stop(progress.reason, progress.state, progress.gap)
            return progress.reason
        return ""

    def begin(
        self, source: TopicPartition, position: Position, runs: Iterable[Run] = (), *, is_fenced: bool = True
    ) -> Gap | None:
        """Set where a partition continues, with the runs that a resume has counted. Return the gap that it passes."""
        entry = self.entries[source]
        entry.unfenced_end = None if is_fenced else position.target_end
        entry.target_log_start = None  # it may be another log
        entry.position = position
        entry.is_dirty = True
        entry.reason, entry.gap = "", None
        for run in runs:
            append_run(entry.runs, run)
        entry.become(RUNNING)
        if entry.passing is None:
            return None
        entry.lost += entry.passing.gap.lost_offsets
        return entry.passing.gap

    def late_records(self, progress: PartitionProgress) -> int:
        """Return how many records at most an unfenced predecessor wrote before our first batch fenced it."""
        entry = self.entries[progress.source]
        if entry.unfenced_end is None or not progress.runs:
            return 0
        late, entry.unfenced_end = progress.runs[0][1] - entry.unfenced_end, None
        return late

    async def hand_over(self) -> None:
        """Hand over all entries, because their writer ended cleanly."""
        async for entry in in_turns(list(self.entries.values())):
            entry.hand_over()

    async def committed_with_records(self) -> None:
        """Mark all positions as committed in the transaction of their records."""
        async for entry in in_turns(list(self.entries.values())):
            if entry.position is not None:
                entry.position = replace(entry.position, is_atomic=True)

    def forget_unstored(self) -> None:
        """Drop progress since the last commit, because its transaction was aborted."""
        for entry in list(self._unstored.values()):
            entry.is_dirty, entry.runs = False, []
            self._sort(entry)

    def plans(self, pipelined: Collection[TopicPartition] = ()) -> Iterator[PartitionPlan]:
        """Yield plans, made one by one, that continue at the acknowledged positions, under their producer.
        ``pipelined``: partitions where a fence has just written a marker. A sequence above 0 does not prove that the
        leader knows the producer: after a day without batches (``producer.id.expiration.ms``) it accepts any
        sequence."""
        return (plan_of(entry, entry.pair.source in pipelined) for entry in self.going() if not entry.holds_back)

    def stand_still(self, has_ended: Callable[[Entry], bool]) -> bool:
        """Return whether the task has all its partitions, at least one, and each of them ``has_ended``."""
        if self.missing or not self.entries or len(self.apart) < len(self.entries):
            return False
        return all(has_ended(entry) for entry in self.apart.values())

    def waiting(self) -> list[Entry]:
        return [entry for entry in self.apart.values() if entry.is_waiting]

    def take_commits(self, now_s: float | None = None) -> Iterator[Commit]:
        """Yield what to store at ``now_s`` of a monotonic clock; None: everything, for a successor. Call
        :meth:`commit_succeeded` for each, or :meth:`give_back` if storing failed."""
        scope, due = (CommitScope.ALL, self._unwritten(CommitScope.ALL)) if now_s is None else self._due(now_s)
        for entry in due:
            # It may have left since the last one was yielded.
            if entry.position is not None and self.entries.get(entry.pair.source) is entry:
                commit = _commit_of(entry, entry.position, scope)
                entry.is_dirty, entry.written = False, commit.scope
                entry.runs, entry.passing = [], None
                entry.taken = entry.bytes, entry.records
                entry.stored_s = now_s or entry.stored_s
                self._sort(entry)
                yield commit

    def _unwritten(self, scope: CommitScope) -> list[Entry]:
        if scope is CommitScope.PROGRESS:
            return list(self._unstored.values())
        rest = (entry for entry in self._incomplete.values() if entry.written < scope and not entry.is_dirty)
        return [*self._unstored.values(), *rest]

    def _due(self, now_s: float) -> tuple[CommitScope, list[Entry]]:
        cadence = self._cadence
        if now_s - self._flushed_s >= cadence.flush_s:
            self._flushed_s = self._stored_s = now_s
            scope = CommitScope.OFFSETS
            if now_s - self._completed_s >= cadence.complete_s:
                self._completed_s, scope = now_s, CommitScope.ALL
            return scope, self._unwritten(scope)
        dirty = self._unwritten(CommitScope.PROGRESS)
        if now_s - self._stored_s >= cadence.interval_s:
            self._stored_s = now_s
            return CommitScope.PROGRESS, dirty
        # At least the average, so that the other partitions copied less than sized_bytes together.
        is_sized = self._unstored_bytes >= cadence.sized_bytes
        due_bytes = cadence.sized_bytes / len(dirty) if is_sized and dirty else float("inf")
        return CommitScope.PROGRESS, [entry for entry in dirty if self._is_due(entry, now_s, due_bytes)]

    def _is_due(self, entry: Entry, now_s: float, due_bytes: float) -> bool:
        if entry.unstored_bytes >= due_bytes or entry.passing is not None:
            return True
        return not entry.pair.is_countable and now_s - entry.stored_s >= self._cadence.uncountable_s

    def must_wait(self) -> bool:
        """Return whether copying has to wait, because too much is copied and not stored."""
        return self._unstored_bytes >= MAX_UNSTORED_BYTES or bool(self._too_long)

    def commit_succeeded(self, commit: Commit) -> None:
        source = commit.position.source
        entry = self.entries.get(source)
        if entry is not None:
            self._unstored_bytes -= entry.taken[0] - entry.stored[0]
            self._too_long.discard(source)
            entry.stored = entry.taken

    def give_back(self, commits: Sequence[Commit]) -> None:
        """Keep commits that could not be stored for the next attempt, which is due at once, except those of partitions
        that were dropped meanwhile."""
        self._flushed_s = self._stored_s = float("-inf")
        if any(commit.scope is CommitScope.ALL for commit in commits):
            self._completed_s = float("-inf")
        for commit in commits:
            entry = self.entries.get(commit.position.source)
            if entry is None:
                continue
            newer, entry.runs = entry.runs, list(commit.runs)
            entry.passing = commit.passing or entry.passing
            for run in newer:
                append_run(entry.runs, run)
            entry.is_dirty = True
            self._sort(entry)


def _commit_of(entry: Entry, position: Position, scope: CommitScope) -> Commit:
    passing = entry.passing
    return Commit(
        position,
        tuple(entry.runs),
        passing,
        target_log_start=None if passing else entry.target_log_start,
        scope=CommitScope.ALL if passing else scope,
        is_target_compacted=entry.pair.is_target_compacted,
    )


log = logging.getLogger(__name__)

#: The interval at which brokers apply retention (``log.retention.check.interval.ms``).
_INTERVAL_S: Final = 300.0
#: The interval until the first successful request, and after a failed one.
_SOON_S: Final = 2.0


async def trim_forever(target: Cluster, ledger: Ledger, name: str) -> NoReturn:
    """Note log start offsets in the ledger, without end; retry failed requests."""
    moved = ledger.reader()
    while True:
        asked, sources = False, list(moved)
        moved.clear()
        entries = [entry for source in sources if (entry := ledger.entries.get(source)) and entry.is_copied]
        try:
            asked = bool(entries) and await note_log_starts(target, entries)
        except HeliographError as error:
            log.info("%s: the target's log start offsets are unknown: %s; retrying", name, error)
        if not asked:
            moved.update(dict.fromkeys(sources))
        await asyncio.sleep(_INTERVAL_S if asked else _SOON_S)


async def note_log_starts(target: Cluster, entries: list[Entry]) -> bool:
    """Request the log start offsets of the targets of ``entries``; return False if there is none to request. A topic
    may be recreated at any time, with another log start: an answer counts only if the topic had the pair's id both
    before and after it. Raises :class:`HeliographError` if the cluster does not answer or refuses."""
    copied = [(entry, entry.pair) for entry in entries if entry.position is not None]
    before = await _metadata(target, [pair for _, pair in copied])
    asked = [(entry, pair) for entry, pair in copied if _is_its_own(before, pair)]
    if not asked:
        return False
    starts = await list_offsets(target, {pair.target for _, pair in asked}, EARLIEST)
    after = await _metadata(target, [pair for _, pair in asked])
    for entry, pair in asked:
        position, start = entry.position, starts[pair.target]
        if entry.pair is pair and _is_its_own(after, pair) and position and start <= position.target_end:
            entry.target_log_start = start
    return True


async def _metadata(target: Cluster, pairs: list[PartitionPair]) -> ClusterMetadata:
    return await target.metadata({pair.target.topic for pair in pairs})


def _is_its_own(metadata: ClusterMetadata, pair: PartitionPair) -> bool:
    topic, index = pair.target
    known = metadata.topics.get(topic)
    return known is not None and known.topic_id == pair.target_topic_id and metadata.leader(topic, index) is not None
