"""To which partitions records were appended, kept beside the lease: headers that say so are deleted one day.

A mark is written before the first batch, so it may say more than there is, and never less. It brings records into doubt
only where the target has deleted what lies behind the place that it names; until then headers tell all.
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
from connectors.failover.appended import Appended
from connectors.failover.lease import Lease, decode, encode_key, stored
from connectors.positions import text

#: Behind the key of the lease.
_APPENDED: Final = text("appended")


@dataclass(frozen=True, slots=True)
class Mark:
    """Of ``source``, in a topic with the id ``topic_id``: all that was ever appended of it to ``target`` lies there at
    ``begin`` or behind, and none of it is of an offset above ``last`` of the source."""

    source: TopicPartition
    topic_id: UUID | None
    target: TopicPartition
    begin: int
    last: int

    def __or__(self, other: Mark | None) -> Mark:
        """What was appended before beside this."""
        if other is None:
            return self
        return replace(self, begin=min(self.begin, other.begin), last=max(self.last, other.last))

    def is_about(self, other: Mark) -> bool:
        """The same topics; ids that nobody knows are taken for the same."""
        ids = self.topic_id, other.topic_id
        return (self.source, self.target) == (other.source, other.target) and (None in ids or ids[0] == ids[1])


class Marks(NamedTuple):
    """``is_complete``: whoever has appended for this flow has left one, as older versions do not."""

    is_complete: bool
    by_source: Mapping[TopicPartition, Mark]

    def before(self, fresh: Mark, appended: Appended, since: int) -> Mark | None:
        """What is known to have been appended, by marks and headers, where ``fresh`` is about to be (pure). ``since``:
        as for :meth:`may_hold`."""
        seen = None
        if appended.first_at is not None:
            seen = replace(fresh, begin=appended.first_at, last=appended.end - 1)
        mark = self._of(fresh, since)
        if mark is None or appended.log_begin <= mark.begin:  # headers tell all then
            return seen
        return mark | seen

    def may_hold(self, fresh: Mark, first: int, appended: Appended, since: int) -> bool:
        """Whether what has no header, from ``first`` of the source on, may have been appended nevertheless (pure).
        ``since`` is the first offset that can be stranded at all: marks of failovers before say nothing of it."""
        if not appended.is_cut:
            return False
        if not self.is_complete:
            return True
        mark = self._of(fresh, since)
        if mark is None:
            return appended.may_hold(first)
        return appended.log_begin > mark.begin and (first <= mark.last or appended.may_hold(first))

    def _of(self, fresh: Mark, since: int) -> Mark | None:
        mark = self.by_source.get(fresh.source)
        return mark if mark is not None and mark.is_about(fresh) and mark.last >= since else None


async def read_marks(target: Cluster, map_topic: str, flow: str) -> Marks:
    """As they stand. Raises as :func:`connectors.failover.lease.look`."""
    kept = await stored(target, map_topic, flow)
    record = kept.get(encode_key(flow))
    marks = [_decode(value) for key, value in kept.items() if key.startswith(encode_key(flow) + _APPENDED)]
    return Marks(record is None or decode(record).marks, {one.source: one for one in marks})


async def keep(lease: Lease, mark: Mark) -> None:
    """Instead of the one that was there. Raises as :meth:`connectors.failover.lease.Lease.keep`."""
    await lease.keep(_APPENDED + text(str(mark.source)), _encode(mark))


def _encode(mark: Mark) -> bytes:
    topic_id = None if mark.topic_id is None else str(mark.topic_id)
    document = {"source": mark.source, "topic_id": topic_id, "target": mark.target}
    return json.dumps({"format": 1, **document, "begin": mark.begin, "last": mark.last}).encode()


def _decode(value: bytes) -> Mark:
    found = json.loads(value)
    if found["format"] != 1:
        raise PermanentError("a later Heliograph has appended records of this flow: use that one")
    topic_id = None if found["topic_id"] is None else UUID(found["topic_id"])
    source, target = TopicPartition(*found["source"]), TopicPartition(*found["target"])
    return Mark(source, topic_id, target, found["begin"], found["last"])
