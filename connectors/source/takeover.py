"""Taking over partitions whose last writer may still be alive: fence first, then say where each goes on.

The order matters and was learnt by losing records: hints are asked before the fence, the target is read only after
it, and what the slice then begins with is stored before it writes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from connect.kafka.cluster import Cluster
from connect.kafka.offsets import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED, list_offsets
from connect.kafka.transactions import describe_producers, fence, init_producer_id
from connectors.dataplane.plan import PartitionPlan, ProducerIdentity, Proof, TopicPartition
from connectors.positions import Position
from connectors.source.ledger import Entry
from connectors.source.store import Start

log = logging.getLogger(__name__)

_NEVER_WRITTEN: Final = -1


@dataclass(frozen=True, slots=True)
class Takeover:
    """The new producer, and a plan for every partition that may go on; those with a proof are resumed first."""

    producer: ProducerIdentity
    plans: tuple[PartitionPlan, ...]


@dataclass(frozen=True, slots=True)
class Clusters:
    """A flow's two clusters. Tasks fence one at a time: after partitions have moved between them, one fences the
    transactional id that another is just claiming, and whoever is interrupted in that would take itself for superseded.
    """

    source: Cluster
    target: Cluster
    fencing: asyncio.Lock = field(default_factory=asyncio.Lock)


async def take_over(
    clusters: Clusters,
    transactional_id: str,
    entries: Sequence[Entry],
    starts: Mapping[TopicPartition, Start],
    *,
    reset_to: int = EARLIEST,
    read_committed: bool = False,
) -> Takeover:
    """Fence whoever wrote before and plan each entry; entries that may not go on are stopped with their reason.

    ``starts`` is what the store knows of each source partition; ``reset_to`` is ``EARLIEST`` or ``LATEST``, for
    partitions that nothing is known of.
    """
    known = {entry.pair.source: starts[entry.pair.source] for entry in entries}
    for entry in entries:
        refuse_if_made_anew(entry, known[entry.pair.source])
    entries = [entry for entry in entries if not entry.is_stopped]
    # A writer that ended with everything acknowledged, whichever task's it was, has nothing under way to shut out.
    unclean = {
        entry.pair.source: position
        for entry in entries
        if (position := known[entry.pair.source].position) is not None and not position.is_handed_over
    }
    hints = await _hints(clusters.target, [entry for entry in entries if entry.pair.source in unclean], unclean)
    async with clusters.fencing:
        producer, fenced = await _fence(clusters.target, transactional_id, unclean)
    proven = [entry for entry in entries if _needs_proof(entry, known[entry.pair.source])]
    fresh = [entry for entry in entries if entry not in proven]
    plans = [
        _plan_with_proof(entry, unclean[entry.pair.source], hints.get(entry.pair.target), fenced) for entry in proven
    ]
    plans += await _plans_afresh(clusters, fresh, known, fenced, reset_to, read_committed)
    return Takeover(producer, tuple(plans))


def refuse_if_made_anew(entry: Entry, start: Start) -> None:
    """Stop an entry whose stored position speaks of another topic than the one that bears the name now."""
    position, pair = start.position, entry.pair
    if position is None or start.moved:
        return
    for what, name, stored_name, stored, current in (
        ("source", pair.source.topic, position.source_topic, position.source_topic_id, pair.source_topic_id),
        ("target", pair.target.topic, position.target_topic, position.target_topic_id, pair.target_topic_id),
    ):
        if stored_name == name and stored and current and stored != current:
            entry.stop(
                f"{what} topic {name} was deleted and made anew (topic id {current}, was {stored}); nothing is copied "
                f"until the stored source offset of {pair.source} is altered or reset"
            )
            return


def _needs_proof(entry: Entry, start: Start) -> bool:
    """Whether an unclean writer may have left more in the entry's target than the position says."""
    position = start.position
    if position is None or position.is_handed_over or start.moved:
        return False
    # Under another policy or separator the target is another topic, which knows nothing of what was copied since.
    return _target_of(position) == entry.pair.target


def _target_of(position: Position) -> TopicPartition:
    return TopicPartition(position.target_topic, position.target_partition)


async def _hints(
    target: Cluster, entries: Sequence[Entry], written: Mapping[TopicPartition, Position]
) -> dict[TopicPartition, int | None]:
    """The last sequence that each target leader knows of the stored producer, None where it knows none."""
    states = await describe_producers(target, [entry.pair.target for entry in entries]) if entries else {}
    hints: dict[TopicPartition, int | None] = {}
    for entry in entries:
        position = written[entry.pair.source]
        epoch, last = states.get(entry.pair.target, {}).get(position.producer_id, (_NEVER_WRITTEN, _NEVER_WRITTEN))
        hints[entry.pair.target] = last if epoch == position.producer_epoch else None
    return hints


async def _fence(
    target: Cluster, transactional_id: str, unclean: Mapping[TopicPartition, Position]
) -> tuple[ProducerIdentity, set[TopicPartition]]:
    """Fence every id that may still write; returns our new identity and the partitions that bear its marker."""
    by_id: dict[str, list[TopicPartition]] = {}
    for position in unclean.values():
        by_id.setdefault(position.transactional_id, []).append(_target_of(position))
    own = by_id.pop(transactional_id, [])
    for other, partitions in by_id.items():
        await fence(target, other, partitions)
    identity = await fence(target, transactional_id, own) if own else await init_producer_id(target, transactional_id)
    return ProducerIdentity(identity.producer_id, identity.epoch), set(own)


def _plan_with_proof(entry: Entry, position: Position, hint: int | None, fenced: set[TopicPartition]) -> PartitionPlan:
    pair = entry.pair
    writer = ProducerIdentity(position.producer_id, position.producer_epoch)
    return PartitionPlan(
        source=pair.source,
        source_topic_id=pair.source_topic_id,
        target=pair.target,
        target_topic_id=pair.target_topic_id,
        next_source_offset=position.next_source_offset,
        last_source_epoch=position.source_leader_epoch,
        target_end=position.target_end,
        next_sequence=0,
        pipelined=pair.target in fenced,
        max_message_bytes=pair.max_message_bytes,
        proof=Proof(writer, position.next_sequence, hint),
    )


async def _plans_afresh(
    clusters: Clusters,
    entries: Sequence[Entry],
    known: Mapping[TopicPartition, Start],
    fenced: set[TopicPartition],
    reset_to: int,
    read_committed: bool,
) -> list[PartitionPlan]:
    """Plans for partitions with nothing to prove: never written by us, handed over cleanly, or moved meanwhile by
    an operator or a Java worker."""
    if not entries:
        return []
    unknown = [
        entry.pair.source
        for entry in entries
        if known[entry.pair.source].committed_source_offset is None
        and (known[entry.pair.source].position is None or known[entry.pair.source].moved)
    ]
    isolation = READ_COMMITTED if read_committed and reset_to == LATEST else READ_UNCOMMITTED
    resets = await list_offsets(clusters.source, unknown, reset_to, isolation) if unknown else {}
    ends = await list_offsets(clusters.target, [entry.pair.target for entry in entries], LATEST)
    plans = []
    for entry in entries:
        pair, start = entry.pair, known[entry.pair.source]
        committed = start.committed_source_offset
        position = None if start.moved else start.position
        if start.moved:
            log.info("%s goes on behind source offset %s, as the stored offset was altered", pair.source, committed)
        plans.append(
            PartitionPlan(
                source=pair.source,
                source_topic_id=pair.source_topic_id,
                target=pair.target,
                target_topic_id=pair.target_topic_id,
                next_source_offset=_begin_at(position, committed, resets.get(pair.source)),
                last_source_epoch=position.source_leader_epoch if position else -1,
                target_end=ends[pair.target],
                next_sequence=0,
                pipelined=pair.target in fenced,
                max_message_bytes=pair.max_message_bytes,
            )
        )
    return plans


def _begin_at(position: Position | None, committed: int | None, reset: int | None) -> int:
    if position is not None:
        return position.next_source_offset
    if committed is not None:
        return max(committed + 1, 0)
    assert reset is not None, "a partition that nothing is known of has been looked up"
    return reset
