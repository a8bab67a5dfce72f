"""Take over partitions whose last writer may still be alive: fence it first, then plan where each continues. The target
is read only after the fence, and start positions are stored before the slice writes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from connect.core.errors import RetriableError
from connect.kafka.cluster import Cluster
from connect.kafka.concurrency import in_turns
from connect.kafka.log.offsets import EARLIEST, LATEST, list_offsets
from connect.kafka.log.transactions import (
    TopicsRefused,
    TransactionalIdRefused,
    fence,
    init_producer_id,
    new_producer_id,
)
from connectors.control_link.protocol import PartitionPlan
from connectors.formats.position import Position
from connectors.formats.types import QUARANTINED, ProducerIdAndEpoch, ResumeProof, TopicPartition
from connectors.source.positions import position_checks
from connectors.source.positions.gap_policy import GapPasser
from connectors.source.positions.partition_pairs import Clusters, Entry
from connectors.source.positions.stored_positions import Start
from connectors.topic_sync.partition_assignment import Begin, first_offsets, warn_of_members, warn_of_skipped_backlog

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Takeover:
    """The new producer, and a plan for each partition that may be copied; plans with a proof are resumed first.
    ``transactional_id`` is the producer's, empty if it was refused."""

    producer: ProducerIdAndEpoch
    plans: tuple[PartitionPlan, ...]
    transactional_id: str = ""

    @property
    def unfenced(self) -> dict[TopicPartition, TopicPartition]:
        """The target of each source partition whose last writer could not be fenced."""
        return {one.source: one.target for one in self.plans if one.proof is not None and not one.proof.is_fenced}

    def writer_of(self, plan: PartitionPlan) -> tuple[str, ProducerIdAndEpoch]:
        """Return the transactional id, empty for none, and the producer that writes a partition."""
        if plan.producer is None or plan.producer == self.producer:
            return self.transactional_id, self.producer
        return "", plan.producer


@dataclass(frozen=True, slots=True)
class _Fenced:
    """Our identity now, the target partitions that have our marker, and those that could not be fenced."""

    producer: ProducerIdAndEpoch
    transactional_id: str
    marked: frozenset[TopicPartition]
    unfenced: frozenset[TopicPartition]


async def take_over(
    clusters: Clusters,
    transactional_id: str,
    entries: Sequence[Entry],
    starts: Mapping[TopicPartition, Start],
    *,
    reset_to: int = EARLIEST,
    read_committed: bool = False,
    passer: GapPasser | None = None,
    running: ProducerIdAndEpoch | None = None,
    initial_group: str = "",
    transaction_timeout_ms: int | None = None,
    may_all_wait: bool = False,
) -> Takeover:
    """Fence previous writers and plan each entry. Entries that must not continue are stopped, and entries that cannot
    be taken over now wait, each with its reason. ``starts`` has what the store knows of each source partition.
    ``reset_to`` (``EARLIEST`` or ``LATEST``) is for partitions without a stored position for which ``initial_group``
    has no committed offset. ``passer`` lets entries continue after gaps, by its policies; None: no entry. ``running``
    is the producer of a slice that copies others: then ``transactional_id`` is not claimed, and no entry may be unclean
    under it. ``transaction_timeout_ms``: of the records' transactions, under exactly-once. ``may_all_wait``: whether
    all entries may wait, because others will join."""
    known = {entry.pair.source: starts[entry.pair.source] for entry in entries}
    written = await position_checks.refuse_deleted_topics(clusters.source, clusters.target, entries, known)
    if passer is not None:
        passer.resume_past_gap(entries)
        known |= await passer.begin(clusters.source, entries, known)
    going = [entry for entry in entries if not entry.is_stopped]
    away = await position_checks.unavailable(clusters.source, clusters.target, going, known)
    entries = position_checks.let_wait(going, away, may_be_all=may_all_wait)
    # Without writers that ended cleanly, of any task, because they have nothing in flight to fence.
    unclean = {
        entry.pair.source: position
        for entry in entries
        if (position := known[entry.pair.source].unclean_position) and position.target_topic in written
    }
    await position_checks.refuse_truncated_targets(clusters.target, entries, known)
    if passer is not None:
        known |= passer.rewind(entries, known)
    entries = [entry for entry in entries if not entry.is_stopped]
    unclean = {entry.pair.source: unclean[entry.pair.source] for entry in entries if entry.pair.source in unclean}
    async with clusters.fencing:
        timeout_ms = transaction_timeout_ms
        fenced = await _fence_allowed(clusters, transactional_id, entries, unclean, running, timeout_ms)
        if running is None and fenced.transactional_id:
            fenced = await _beyond_raised(clusters, fenced, known, timeout_ms)
    entries = [entry for entry in entries if not entry.is_stopped]
    proven, fresh = list[Entry](), list[Entry]()
    for entry in entries:
        (proven if _needs_proof(entry, known[entry.pair.source]) else fresh).append(entry)
    in_proof = in_turns(proven)
    plans = [_plan_with_proof(entry, unclean[entry.pair.source], fenced) async for entry in in_proof]
    first = Begin(reset_to, read_committed, initial_group)
    plans += await _plans_afresh(clusters, fresh, known, fenced.marked, first)
    return Takeover(fenced.producer, tuple(plans), fenced.transactional_id)


def _needs_proof(entry: Entry, start: Start) -> bool:
    """Return whether an unclean writer may have written more to the entry's target than the position says."""
    position = start.unmoved_position
    if position is None or position.is_handed_over or position.is_atomic:
        return False
    # Under another replication policy or separator the target is another topic, which has nothing of that writer.
    return position.target == entry.pair.target


async def _fence_allowed(
    clusters: Clusters,
    transactional_id: str,
    entries: Sequence[Entry],
    unclean: dict[TopicPartition, Position],
    running: ProducerIdAndEpoch | None,
    timeout_ms: int | None,
) -> _Fenced:
    """Fence the writers of ``unclean``. Stop entries that we may not write to, and remove them from ``unclean``."""
    while True:
        try:
            return await _fence(clusters, transactional_id, unclean, running, timeout_ms)
        except TopicsRefused as error:
            refused = {source for source, position in unclean.items() if position.target in error.partitions}
            if not refused:
                raise
            for entry in entries:
                if entry.pair.source in refused:
                    target = unclean.pop(entry.pair.source).target
                    entry.stop(f"target {target}: {error}, then start the flow again", QUARANTINED)


async def _fence(
    clusters: Clusters,
    transactional_id: str,
    unclean: Mapping[TopicPartition, Position],
    running: ProducerIdAndEpoch | None,
    timeout_ms: int | None,
) -> _Fenced:
    """Fence each transactional id that may still write, as far as our ACLs allow."""
    by_id: dict[str, list[Position]] = {}
    for position in unclean.values():
        by_id.setdefault(position.transactional_id, []).append(position)
    unfenced = {position.target for position in by_id.pop("", [])}
    own = by_id.pop(transactional_id, [])
    for other, positions in by_id.items():
        try:
            unfenced |= await _fence_one(clusters.target, other, positions)
        except TransactionalIdRefused as error:
            clusters.missing_rights.announce(error)
            unfenced |= {position.target for position in positions}
    if running is not None:
        assert not own, "a task does not fence the id that its slice writes under"
        return _Fenced(running, transactional_id, frozenset(), frozenset(unfenced))
    marked = {position.target for position in own}
    try:
        if own:
            identity = await fence(clusters.target, transactional_id, sorted(marked), transaction_timeout_ms=timeout_ms)
        else:
            identity = await init_producer_id(clusters.target, transactional_id, transaction_timeout_ms=timeout_ms)
    except TransactionalIdRefused as error:
        clusters.missing_rights.announce(error)
        identity, transactional_id = await new_producer_id(clusters.target), ""
        marked, unfenced = set(), unfenced | marked
    else:
        unfenced |= _of_another_id(identity.producer_id, own)
    producer = ProducerIdAndEpoch(identity.producer_id, identity.epoch)
    return _Fenced(producer, transactional_id, frozenset(marked), frozenset(unfenced))


async def _beyond_raised(
    clusters: Clusters, fenced: _Fenced, known: Mapping[TopicPartition, Start], timeout_ms: int | None
) -> _Fenced:
    """Claim the id again until its epoch is above those that we raised ourselves while ACLs were missing, because its
    coordinator does not know these."""
    producer = fenced.producer
    positions = [start.position for start in known.values() if start.position and not start.position.transactional_id]
    raised_to = [one.producer_epoch + 1 for one in positions if one.producer_id == producer.producer_id]
    while producer.producer_id == fenced.producer.producer_id and producer.epoch <= max(raised_to, default=-1):
        claimed = await init_producer_id(clusters.target, fenced.transactional_id, transaction_timeout_ms=timeout_ms)
        producer = ProducerIdAndEpoch(claimed.producer_id, claimed.epoch)
    marked = fenced.marked if producer.producer_id == fenced.producer.producer_id else frozenset[TopicPartition]()
    return replace(fenced, producer=producer, marked=marked)


async def _fence_one(target: Cluster, transactional_id: str, positions: Sequence[Position]) -> set[TopicPartition]:
    """Fence an id; return the partitions that this did not fence."""
    identity = await fence(target, transactional_id, [position.target for position in positions])
    return _of_another_id(identity.producer_id, positions)


def _of_another_id(producer_id: int, positions: Sequence[Position]) -> set[TopicPartition]:
    """Return the partitions whose writer had another producer id, and so is not fenced by our markers: brokers forget a
    transactional id that is unused for a week. A writer in transactions is fenced by the claim alone."""
    return {position.target for position in positions if position.producer_id != producer_id and not position.is_atomic}


def _plan_with_proof(entry: Entry, position: Position, fenced: _Fenced) -> PartitionPlan:
    writer = ProducerIdAndEpoch(position.producer_id, position.producer_epoch)
    target = entry.pair.target
    is_fenced = target not in fenced.unfenced
    return entry.pair.plan(
        position.next_source_offset,
        position.source_leader_epoch,
        position.target_end,
        pipelined=is_fenced and target in fenced.marked,
        proof=ResumeProof(writer, position.next_sequence, is_fenced, position.is_last_ours),
        producer=None if is_fenced else writer.raised(),
    )


async def _plans_afresh(
    clusters: Clusters,
    entries: Sequence[Entry],
    known: Mapping[TopicPartition, Start],
    fenced: frozenset[TopicPartition],
    first: Begin,
) -> list[PartitionPlan]:
    """Plan partitions that need no proof: never written by us, handed over cleanly, or moved by an operator or a Java
    worker."""
    if not entries:
        return []
    unknown = [
        entry.pair.source
        for entry in entries
        if (start := known[entry.pair.source]).committed_source_offset is None and start.unmoved_position is None
    ]
    resets = await first_offsets(clusters.source, unknown, first)
    if unknown and first.group:
        await warn_of_members(clusters.source, first.group)
    elif first.reset_to == LATEST:
        await warn_of_skipped_backlog(clusters.source, resets)
    ends = await list_offsets(clusters.target, [entry.pair.target for entry in entries], LATEST)
    altered = "%s continues after source offset %s, because the stored offset was altered"
    plans = []
    async for entry in in_turns(entries):
        pair, start = entry.pair, known[entry.pair.source]
        committed, end = start.committed_source_offset, ends[pair.target]
        position = start.unmoved_position
        if position is not None and position.target == pair.target and end < position.target_end:
            raise RetriableError(f"target {pair.target} was truncated while it was taken over")
        if start.moved and not start.decided:
            log.info(altered, pair.source, committed)
        begin = begin_at(position, committed, resets.get(pair.source))
        epoch = -1 if position is None else position.source_leader_epoch
        plans.append(pair.plan(begin, epoch, end, pipelined=pair.target in fenced))
    return plans


def begin_at(position: Position | None, committed: int | None, reset: int | None) -> int:
    """Return the first source offset to copy: our position's, if given; else the one after Java's offset; else
    ``reset``."""
    if position is not None:
        return position.next_source_offset
    if committed is not None:
        return max(committed + 1, 0)
    assert reset is not None, "first_offsets has an offset for each partition without a position"
    return reset
