"""What had arrived of a source topic that is gone, behind the position that its unclean writer left.

The source cannot be asked any more. But records that are at the target are not lost: so many records have so many
offsets at least, and a gap begins behind these. Where some of them held no record (markers, compaction), offsets at its
beginning are named as lost that are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from connect.kafka.cluster import Cluster
from connectors.dataplane.plan import PartitionPlan, ProducerIdentity, Proof, SliceSettings, TopicPartition
from connectors.dataplane.resuming import Resumer
from connectors.gaps import GapKind
from connectors.positions import Position
from connectors.source import resume_log
from connectors.source.ledger import Entry
from connectors.source.store import Start


async def narrow_gaps(
    source: Cluster,
    target: Cluster,
    settings: SliceSettings,
    entries: Iterable[Entry],
    starts: Mapping[TopicPartition, Start],
) -> None:
    """Let the gaps of ``entries`` whose source topic was made anew begin behind what had arrived. Their writers are
    fenced; entries that wait are not looked at, as theirs may not be, nor their targets be read. Raises RetriableError
    where the target of another one cannot be read now."""
    resumer = Resumer(source, target, settings)
    for entry in entries:
        if entry.is_waiting:
            continue
        position, passing = starts[entry.pair.source].position, entry.passing
        if passing is None or passing.gap.kind is not GapKind.SOURCE_RECREATED or passing.gap.first < 0:
            continue
        if position is None or position.is_handed_over or position.is_atomic or not await _is_there(target, position):
            continue
        arrived = await resumer.arrived(_plan(entry, position))
        if arrived:
            first = passing.gap.first + arrived
            entry.passing = replace(passing, gap=replace(passing.gap, first=first))
            resume_log.tell_gone(settings.flow, entry.pair.source, arrived, first)


async def _is_there(target: Cluster, position: Position) -> bool:
    """Whether the target still has the topic that was written to."""
    topic = (await target.metadata({position.target_topic})).topics.get(position.target_topic)
    return topic is not None and bool(topic.partitions) and topic.topic_id == position.target_topic_id


def _plan(entry: Entry, position: Position) -> PartitionPlan:
    return PartitionPlan(
        source=entry.pair.source,
        source_topic_id=position.source_topic_id,
        target=TopicPartition(position.target_topic, position.target_partition),
        target_topic_id=position.target_topic_id,
        next_source_offset=position.next_source_offset,
        last_source_epoch=position.source_leader_epoch,
        target_end=position.target_end,
        next_sequence=0,
        pipelined=False,
        proof=Proof(ProducerIdentity(position.producer_id, position.producer_epoch), position.next_sequence, None),
    )
