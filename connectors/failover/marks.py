"""How far the records of each partition were appended to the new primary, kept beside the lease.

A mark is written in the transaction of the batch that it counts: what it names is there, and nothing else is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple
from uuid import UUID

from connect.core.errors import PermanentError
from connect.kafka.cluster import Cluster
from connectors.dataplane.plan import TopicPartition
from connectors.failover.lease import decode, decode_object, encode_key, stored
from connectors.failover.site import Site
from connectors.positions import Position, text
from connectors.stored_offsets import read_positions

#: Behind the key of the lease.
_APPENDED: Final = text("appended")
_ALL: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Mark:
    """The stranded records of ``source`` up to the offset ``appended`` were appended to ``target``; -1 for none.

    Those up to ``unknown_to`` may have been. Both topics are named by their ids, None for brokers that have none.
    ``copied``: up to which offset the flow had copied the source then, -1 without a position; None where an earlier
    version has written the mark, before it appended anything.
    """

    source: TopicPartition
    source_id: UUID | None
    target: TopicPartition
    target_id: UUID | None
    copied: int | None
    appended: int = -1
    unknown_to: int = -1

    def is_of(self, other: Mark) -> bool:
        """Whether it names the same topics; an unknown id may be any."""
        ids = (self.source_id, other.source_id), (self.target_id, other.target_id)
        same = all(None in pair or pair[0] == pair[1] for pair in ids)
        return same and (self.source, self.target) == (other.source, other.target)


class Marks(NamedTuple):
    """``is_complete``: every version that worked on the flow's failover has left marks."""

    is_complete: bool
    by_source: Mapping[TopicPartition, Mark]

    def of(self, wanted: Mark) -> Mark:
        """Return what is known of the topics of ``wanted``. A mark of a topic that was recreated since says nothing.
        One from before the flow copied on, or of an earlier version, says what may have been appended."""
        found = self.by_source.get(wanted.source)
        if found is None or not found.is_of(wanted):
            return wanted if self.is_complete else replace(wanted, unknown_to=_ALL)
        return found if found.copied == wanted.copied else replace(wanted, unknown_to=found.appended)


async def read_marks(site: Site) -> Marks:
    """Read the marks of the site's flow. Raises as :func:`connectors.failover.lease.look`."""
    flow = site.flow.flow
    kept = await stored(site.target, site.flow.map_topic, flow)
    record = kept.get(encode_key(flow))
    marks = [_decode(value) for key, value in kept.items() if key.startswith(encode_key(flow) + _APPENDED)]
    return Marks(record is None or decode(record).marks, {one.source: one for one in marks})


async def appended_up_to(site: Site) -> dict[TopicPartition, int]:
    """By partition of the source, the offset up to which stranded records were appended. Raises as the clusters."""
    marks = await read_marks(site)
    if not marks.by_source:
        return {}
    positions = await read_positions(site.target, site.flow.map_topic, site.flow.name)
    here = await _topic_ids(site.source, {one.source.topic for one in marks.by_source.values()})
    there = await _topic_ids(site.target, {one.target.topic for one in marks.by_source.values()})
    found = {}
    for one in marks.by_source.values():
        if one.source.topic in here and one.target.topic in there:
            ids = here[one.source.topic], there[one.target.topic]
            now = marks.of(Mark(one.source, ids[0], one.target, ids[1], copied_to(positions.get(one.source))))
            found[one.source] = now.appended
    return {source: offset for source, offset in found.items() if offset >= 0}


def copied_to(position: Position | None) -> int:
    """What a mark says of a partition with this position (pure)."""
    return -1 if position is None else position.next_source_offset


async def _topic_ids(cluster: Cluster, topics: set[str]) -> dict[str, UUID | None]:
    known = (await cluster.metadata(topics)).topics
    return {name: topic.topic_id for name, topic in known.items() if topic.partitions}


def encode_mark(flow: str, mark: Mark) -> tuple[bytes, bytes]:
    """Return key and value. ``begin`` and ``last`` are for the previous version, which looks for the records itself."""
    source_id, target_id = (None if one is None else str(one) for one in (mark.source_id, mark.target_id))
    document = {
        "format": 1,
        "source": mark.source,
        "topic_id": source_id,
        "target": mark.target,
        "target_id": target_id,
        "begin": 0,
        "last": mark.appended,
        "copied": mark.copied,
    }
    return encode_key(flow) + _APPENDED + text(str(mark.source)), json.dumps(document).encode()


def _decode(value: bytes) -> Mark:
    found = decode_object(value)
    if found["format"] != 1:
        raise PermanentError("a later version of Heliograph has appended records of this flow: use that one")
    source_id, target_id = (
        None if (one := found.get(name)) is None else UUID(one) for name in ("topic_id", "target_id")
    )
    source, target = TopicPartition(*found["source"]), TopicPartition(*found["target"])
    return Mark(source, source_id, target, target_id, found.get("copied"), found["last"])
