"""Several waiting batches of a partition sent as one, where that is worth its cost.

A target answers a Produce request when its followers have it, and takes one batch of a partition with each. So what
waits for its turn saves a round trip for each batch that it is merged with. Merging costs time for each record.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from connect.wire import batch as wire
from connect.wire.merge import merge
from connectors.dataplane.outgoing import Outgoing, Stamp

#: Before any was measured: seconds a record, as it is and compressed.
_FIRST_COST_S: Final = (1.5e-6, 4e-6)
#: A record may need so many bytes more for its place in the merged batch.
_MORE_BYTES: Final = 8
#: How much of a new sample of the cost counts.
_WEIGHT: Final = 0.2
#: Fewer records say little of what one costs.
_SAMPLE_RECORDS: Final = 32


class Merging:
    """Decides for one partition, and measures what its records cost. ``clock`` gives CPU seconds of this thread: on a
    busy machine the time that others took is no cost of merging."""

    def __init__(self, most_bytes: int, clock: Callable[[], float] = time.thread_time) -> None:
        self.most_bytes = most_bytes
        self._clock = clock
        self._cost_s = list(_FIRST_COST_S)

    def takes(self, first: Outgoing, waiting: Iterable[Outgoing], max_message_bytes: int, saved_s: float) -> int:
        """How many of ``waiting`` are to be sent in one batch with ``first``.

        ``saved_s``: what it is worth, in seconds, that one batch less is to be sent.
        """
        most_bytes = min(self.most_bytes, max_message_bytes)
        size, records, number = _most_size(first), first.count, 0
        if not first.is_mergeable or size > most_bytes // 2:
            return 0
        for other in waiting:
            size += _most_size(other)
            if size > most_bytes or len(other.batch) > most_bytes // 2 or not _belong_together(first, other):
                break
            records += other.count
            number += 1
        return number if records * self._cost_s[first.codec > 0] <= number * saved_s else 0

    def merged(self, parts: Sequence[Outgoing], stamp: Stamp) -> bytearray:
        """The records of ``parts`` as one batch that bears ``stamp``. Raises Unmergeable."""
        began_s = self._clock()
        marks, producer_id, producer_epoch, base_sequence = stamp
        attributes = parts[0].codec | marks
        merged = merge([part.batch for part in parts], attributes, producer_id, producer_epoch, base_sequence)
        records = sum(part.count for part in parts)
        if records >= _SAMPLE_RECORDS:
            sample_s = (self._clock() - began_s) / records
            kind = parts[0].codec > 0
            self._cost_s[kind] += _WEIGHT * (sample_s - self._cost_s[kind])
        return merged


def _most_size(outgoing: Outgoing) -> int:
    """At most so many bytes it adds to a merged batch."""
    return len(outgoing.batch) + (0 if outgoing.codec else _MORE_BYTES * outgoing.count)


def _belong_together(first: Outgoing, other: Outgoing) -> bool:
    return (
        other.is_mergeable
        and not other.sent
        and other.refusal is None
        and other.codec == first.codec
        and other.source_epoch == first.source_epoch
    )


def apart(outgoing: Outgoing) -> list[Outgoing]:
    """Each batch of one that is several by itself, none to be merged again: their records could not be read."""
    if outgoing.source_batches <= 1:
        outgoing.is_mergeable = False
        return [outgoing]
    parts = []
    offset, sequence = outgoing.segments[0][0], outgoing.base_sequence
    for start, size, _ in wire.extents(outgoing.batch):
        batch = outgoing.batch[start : start + size]
        header = wire.read_header(batch)
        count = header.record_count
        part = Outgoing(
            batch,
            sequence,
            count,
            ((offset, count),),
            offset + count,
            outgoing.source_epoch,
            header.max_timestamp,
            header.codec,
            source_batches=1,
        )
        part.is_mergeable = False
        parts.append(part)
        offset += count
        sequence = wire.add_sequence(sequence, count)
    parts[-1].next_source_offset = outgoing.next_source_offset
    parts[-1].skips = outgoing.skips
    return parts
