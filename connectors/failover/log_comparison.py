"""Compare a partition's logs on two clusters: which records only one has, and whether a group's next records match.

A few of the next records of each partition are read with stock consumers. If the operator asks, the whole copy is
verified before groups move, too: what the result decides is here.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as ConsumerPartition

from connect.core.errors import PermanentError, RetriableError
from connect.core.wording import counted, named
from connect.kafka.cluster import Cluster, TopicMetadata
from connect.kafka.log.committed_offsets import Partition
from connect.kafka.log.compacted_topic import reader, reading
from connect.kafka.log.log_ranges import Range, read_ranges, without
from connect.kafka.log.offsets import EARLIEST, LATEST, epoch_ends, known_offsets
from connect.kafka.log.topic_admin import perhaps_compacted
from connectors.failover.clusters_and_lease import Site
from connectors.failover.snapshot import DIFFERS, NOT_COMPARED, SAME, GroupMove, How, SampleCheck
from connectors.formats.position import Position
from connectors.formats.types import TopicPartition, is_recreated
from connectors.offset_map.reader import MapReader
from connectors.verification.alignment import abbreviate
from connectors.verification.report import VerificationResult, headline

#: Type of a timestamp that a producer gave its record.
CREATE_TIME: Final = 0
#: Verifies the flow from where its last verification ended, within a limit in seconds; None: until it is whole.
Verify = Callable[[float | None], Awaitable[VerificationResult]]
#: Reasons why a copy is not verified whole, that an error names.
_REASONS: Final = 3


@dataclass(frozen=True, slots=True)
class UnreplicatedRecords:
    """Records that only one cluster holds: the first and last offset, and how many."""

    topic: str
    partition: int
    first: int
    last: int
    records: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}: {counted(self.records, 'record')}, offsets {self.first} to {self.last}"


async def unreplicated_ranges(
    copies: MapReader, log: TopicPartition, topic_id: UUID | None, begin: int, end: int
) -> list[Range]:
    """Return ranges of ``log`` that are not copies according to ``copies``, the map of the flow that writes there. Maps
    of an earlier topic, with another id than ``topic_id``, do not count."""
    copied: list[Range] = []
    for pair in copies.pairs_to(log):
        if is_recreated(topic_id, pair.target_topic_id):
            continue
        for chunk in copies.chunks(pair):
            copied += [
                (run.downstream, run.downstream_end)
                for run in await copies.runs(pair, chunk)
                if run.downstream_end > begin and run.downstream < end
            ]
    return without([(begin, end)], sorted(copied))


def identity(record: Any) -> tuple[Any, ...]:
    """Return what a copy has in common with its record, a record of aiokafka, whatever its topic."""
    return record.key, record.value, tuple((name, bytes(value or b"")) for name, value in record.headers)


async def count(cluster: Cluster, log: TopicPartition, ranges: Sequence[Range]) -> UnreplicatedRecords | None:
    """Count the records; None if there are none."""
    first = last = -1
    records = 0
    async for record in read_ranges(cluster, log, ranges):
        first = record.offset if first < 0 else first
        last = record.offset
        records += 1
    return UnreplicatedRecords(log.topic, log.partition, first, last, records) if records else None


class Fate(StrEnum):
    SAME = "same"
    RECREATED = "recreated"
    CUT = "truncated"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Log:
    """A source partition of a flow as it is now. Below offset ``same_to`` it is what the flow has copied."""

    fate: Fate
    topic_id: UUID | None = None
    begin: int = 0
    end: int = 0
    same_to: int = 0


GONE: Final = Log(Fate.GONE)


def became(position: Position, topic_id: UUID | None, begin: int, end: int, epoch_end: int) -> Log:
    """Return what has become of the source of ``position``, whose log now reaches from ``begin`` to ``end``.
    ``epoch_end`` is where the leader epoch of the last batch copied ends now; -1 if unknown."""
    if is_recreated(topic_id, position.source_topic_id):
        return Log(Fate.RECREATED, topic_id, begin, end)
    copied = position.next_source_offset
    same_to = min(copied, end, epoch_end if epoch_end >= 0 else copied)
    return Log(Fate.CUT if same_to < copied else Fate.SAME, topic_id, begin, end, same_to)


def is_kept(position: Position, known: TopicMetadata | None) -> bool:
    """Whether the topic on the target is still the one that the flow has copied into."""
    return (
        known is not None
        and position.target_partition in known.partitions
        and (None in (known.topic_id, position.target_topic_id) or known.topic_id == position.target_topic_id)
    )


async def logs_now(
    source: Cluster, positions: Mapping[TopicPartition, Position], *, must_answer: bool = True
) -> dict[TopicPartition, Log]:
    """Return the logs of all positions. Without a leader RetriableError is raised, or the log is gone."""
    topics = (await source.metadata({one.topic for one in positions})).topics if positions else {}
    there = [one for one in positions if one.topic in topics and one.partition in topics[one.topic].partitions]
    begins, silent = await known_offsets(source, there, EARLIEST)
    ends, more = await known_offsets(source, there, LATEST)
    if must_answer and (silent := silent | more):
        raise RetriableError(f"cluster {source.name}: {next(iter(silent.values()))}")
    there = [one for one in there if one in begins and one in ends]
    ends_of_epochs = await epoch_ends(source, {one: positions[one].source_leader_epoch for one in there})
    found = dict.fromkeys(positions, GONE)
    for one in there:
        epoch_end = ends_of_epochs[one].offset if one in ends_of_epochs else -1
        found[one] = became(positions[one], topics[one.topic].topic_id, begins[one], ends[one], epoch_end)
    return found


#: Target offsets that a comparison says nothing about.
_BY_GUESS: Final = frozenset({How.TIME, How.CHECKPOINT, How.BEGIN, How.MOVED})
_POLL_MS: Final = 200
#: Without a record for this time, partitions not yet read to their end or count are not compared.
_SILENCE_S: Final = 15.0
#: For one fetch of a partition; one batch is returned, however large. Memory holds this for ``_AT_ONCE`` partitions.
_FETCH_BYTES: Final = 64 << 10
_AT_ONCE: Final = 200
_POSITION_S: Final = 0.05


async def prove(site: Site, moves: Sequence[GroupMove], count: int, *, is_gone: bool) -> list[SampleCheck]:
    """Compare the next ``count`` records of every move, unless the source ``is_gone``. Records that either flow changes
    are not compared, nor are those of compacted topics, because the cleaner may have removed different records on each
    side."""
    changing = [one for one in (site.flow, site.back) if one.changing_key]
    why = ", ".join(f"{one.flow} changes records ({one.changing_key})" for one in changing)
    if is_gone or not count:
        why = "the source is gone" if is_gone else "--sample 0"
    if why:
        return [_proof(one, 0, NOT_COMPARED, why) for one in moves]
    source, target = site.source, site.target
    reasons = await _not_comparable(source, target, moves)
    found = [_proof(one, 0, NOT_COMPARED, why) for one, why in zip(moves, reasons, strict=True) if why]
    for some in _rounds([one for one, why in zip(moves, reasons, strict=True) if not why]):
        ours, theirs = await asyncio.gather(
            next_records(source, {one.source: one.source_offset for one in some}, count, site.flow.read_committed),
            next_records(target, {one.target: one.after for one in some}, count, True),
        )
        for one in some:
            why = ""
            # A part of one side's records shows neither that it ends there nor that the two differ.
            if one.source not in ours or one.target not in theirs:
                why = f"the {'target' if one.source in ours else 'source'} could not be read in time"
            elif not ours[one.source]:
                more = len(theirs[one.target])
                why = "nothing follows on the source" + (f"; {_more('target', more)}" if more else "")
            compared = None if why else compare(one, ours[one.source], theirs[one.target])
            found.append(compared or _proof(one, 0, NOT_COMPARED, why))
    return sorted(found, key=lambda one: (one.group, one.source))


async def _not_comparable(source: Cluster, target: Cluster, moves: Sequence[GroupMove]) -> list[str]:
    """Why each move cannot be compared; empty if it can."""
    compacted_there = await perhaps_compacted(target, {one.target[0] for one in moves})
    compacted_here = await perhaps_compacted(source, {one.source[0] for one in moves}, in_doubt=False)
    begins, _ = await known_offsets(source, {one.source for one in moves}, EARLIEST)

    def why(one: GroupMove) -> str:
        if one.how in _BY_GUESS:
            return f"its target offset is not exact ({one.how})"
        begin = begins.get(one.source, 0)
        if one.source_offset < begin:  # a consumer would be reset to a record that is not the group's next
            return f"the source begins at {begin}: the group's next record was deleted there"
        if one.target[0] in compacted_there or one.source[0] in compacted_here:
            return "the topic is compacted, or its cleanup.policy cannot be read"
        return ""

    return [why(one) for one in moves]


def compare(move: GroupMove, ours: Sequence[Any], theirs: Sequence[Any]) -> SampleCheck:
    """Compare records of aiokafka. With offset syncs a group may begin earlier; from then on it must meet all of the
    source's records."""
    mine, other = _identities(ours, theirs)
    begin = 0
    if move.how is How.SYNCS:
        if not set(mine) & set(other):
            return _proof(move, 0, NOT_COMPARED, "none of the next records is among those on the target; see --sample")
        if mine[0] not in other:
            return _proof(move, 0, DIFFERS, f"{abbreviate(ours[0].value)} is skipped")
        begin = other.index(mine[0])
        mine = mine[: len(other) - begin]  # the rest is after the sample
    shared = min(len(mine), len(other) - begin)
    for at in range(shared):
        if mine[at] != other[begin + at]:
            return _proof(move, at, DIFFERS, _difference(ours[at], theirs[begin + at]))
    if len(mine) > shared:
        return _proof(move, shared, DIFFERS, _more("source", len(mine) - shared))
    surplus = len(other) - begin - shared
    return _proof(move, shared, SAME, _more("target", surplus) if surplus else "")


def _more(side: str, records: int) -> str:
    return f"the {side} continues with {counted(records, 'record')} or more"


def _identities(ours: Sequence[Any], theirs: Sequence[Any]) -> list[list[tuple[Any, ...]]]:
    """Include timestamps, which a copy keeps and without which heartbeats and counters are all alike, unless a log sets
    its own or has none."""
    both = ours, theirs
    timed = all(one.timestamp_type == CREATE_TIME and one.timestamp >= 0 for some in both for one in some)
    return [[(*identity(one), one.timestamp if timed else 0) for one in some] for some in both]


def _difference(ours: Any, theirs: Any) -> str:
    if identity(ours) == identity(theirs):
        return f"{abbreviate(ours.value)} of {ours.timestamp} against the same of {theirs.timestamp}, in ms"
    return f"{abbreviate(ours.value)} against {abbreviate(theirs.value)}"


def _proof(move: GroupMove, records: int, outcome: str, why: str = "") -> SampleCheck:
    (topic, partition), (to_topic, to_partition) = move.source, move.target
    places = f"{topic}-{partition} at {move.source_offset}", f"{to_topic}-{to_partition} at {move.after}"
    return SampleCheck(move.group, *places, records, outcome, why)


def _rounds(moves: Sequence[GroupMove]) -> list[list[GroupMove]]:
    """Split moves into rounds: a consumer has one position in a partition, and memory is limited."""
    turns: dict[tuple[str, Partition], int] = {}
    rounds: dict[int, list[GroupMove]] = {}
    for one in moves:
        ends = ("source", one.source), ("target", one.target)
        turn = max(turns.get(end, 0) for end in ends)
        turns |= dict.fromkeys(ends, turn + 1)
        rounds.setdefault(turn, []).append(one)
    return [some[at : at + _AT_ONCE] for some in rounds.values() for at in range(0, len(some), _AT_ONCE)]


async def next_records(
    cluster: Cluster, offsets: Mapping[Partition, int], count: int, read_committed: bool, **more: Any
) -> dict[Partition, list[Any]]:
    """Return the next ``count`` records of each partition, without partitions that could not be read in time. ``more``
    configures the consumer, which commits nothing."""
    if not offsets:
        return {}
    found: dict[Partition, list[Any]] = {one: [] for one in offsets}
    with reading(cluster, ", ".join(sorted({topic for topic, _ in offsets}))):
        async with reader(
            cluster,
            read_committed=read_committed,
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=_FETCH_BYTES,
            **more,
        ) as consumer:
            partitions = {ConsumerPartition(*one): one for one in offsets}
            consumer.assign(list(partitions))
            ends = await consumer.end_offsets(list(partitions))
            for partition, one in partitions.items():
                consumer.seek(partition, offsets[one])
            waiting = set(partitions)
            clock = asyncio.get_running_loop().time
            give_up_s = clock() + _SILENCE_S
            while waiting and clock() < give_up_s:
                for partition, records in (await consumer.getmany(*waiting, timeout_ms=_POLL_MS)).items():
                    kept = found[partitions[partition]]
                    kept += records[: count - len(kept)]
                    give_up_s = clock() + _SILENCE_S
                for partition in list(waiting):
                    enough = len(found[partitions[partition]]) >= count
                    if enough or await _is_at(consumer, partition, ends[partition]):
                        waiting.discard(partition)
                        consumer.pause(partition)
    stalled = {partitions[partition] for partition in waiting}
    return {one: records for one, records in found.items() if one not in stalled}


async def _is_at(consumer: AIOKafkaConsumer, partition: ConsumerPartition, end: int) -> bool:
    """Whether it has reached ``end``. In a truncated log it has no position, which must not be waited for."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_POSITION_S):
            return bool(await consumer.position(partition) >= end)
    return False


class NotProved(PermanentError):
    """The copy differs, or the operator wants it verified whole and it is not. No group was moved."""


def proved(result: VerificationResult, *, is_whole_wanted: bool) -> str:
    """Return what was verified and what was not, in a sentence. Raises NotProved."""
    said, command = headline(result), f"heliograph verify --flow {shlex.quote(result.flow)}"
    if not result.is_equal:
        raise NotProved(
            f"{said}. No group was moved. See which records differ with {command}, repair the target, and run that "
            "with --full"
        )
    if result.is_complete:
        return said
    left = sum(max(one.copied_to - one.verified_to, 0) for one in result.partitions)
    missing = [f"{counted(left, 'record')} not compared in time"] if left else []
    missing += result.unread
    if not missing:
        missing = ["not all was compared in time"]
    said = f"{said}; {named(missing, _REASONS, between='; ')}"
    if is_whole_wanted:
        raise NotProved(
            f"{said}. No group was moved. Run this again, which continues there, or with --verify-within alone, which "
            "moves groups in spite of it"
        )
    return said
