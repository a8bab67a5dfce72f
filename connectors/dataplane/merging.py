"""Several waiting batches of a partition sent as one, where that is worth its cost.

A target answers a Produce request when its followers have it, and takes one batch of a partition with each. So what
waits for its turn saves a round trip for each batch that it is merged with. Merging costs time for each record.

Where the target's producer has a codec, batches without one get it here too: once for all that are sent together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from connect.wire import batch as wire
from connect.wire.merge import merge
from connect.wire.rebase import MORE_BYTES
from connectors.dataplane.outgoing import Outgoing, Stamp
from connectors.dataplane.plan import Compression

#: Before any was measured: seconds a record, where neither codec has to do anything, else seconds a byte.
_RECORD_COST_S: Final = 1.5e-6
_BYTE_COST_S: Final = 20e-9
#: How much of a new sample of the cost counts, and of the first one whenever merging would cost too much: an estimate
#: that stops all merging is never measured again.
_WEIGHT: Final = 0.2
_FORGETS: Final = 0.01
#: Fewer records say little of what one costs.
_SAMPLE_RECORDS: Final = 32
#: Batches up to this size cost more by themselves than merged: some records each, sent by a producer that does not
#: linger.
SMALL_BATCH_BYTES: Final = 2048
#: Others on the event loop wait no longer for one merging.
_MOST_COST_S: Final = 0.015
#: Small batches travel in pieces of this share of a full batch, so that what is left of one answer is sent with the
#: beginning of the next: a request with little in it takes its broker as long as a full one.
_PIECES: Final = 16


class Merging:
    """Decides for one partition, and measures what merging costs. ``clock`` gives CPU seconds of this thread: on a
    busy machine the time that others took is no cost of merging. ``compression`` is the target producer's."""

    def __init__(
        self, most_bytes: int, compression: Compression, clock: Callable[[], float] = time.thread_time
    ) -> None:
        self.most_bytes = most_bytes
        self._compression = compression
        self._clock = clock
        #: of batches that have no codec, and of those that have one
        self._first_costs_s = (_BYTE_COST_S if compression.codec else _RECORD_COST_S, _BYTE_COST_S)
        self._costs_s = list(self._first_costs_s)
        #: what one batch less was worth when the last one was sent
        self._saved_s = 0.0

    def run_limits(self, codec: int) -> tuple[int, int]:
        """Up to how many bytes a batch of the source travels together with others of its ``codec``, and these together.

        One that has a codec does where opening it costs less than sending it by itself.
        """
        piece_bytes = self.most_bytes // _PIECES
        if not codec and not self._compression.codec:
            return SMALL_BATCH_BYTES, piece_bytes
        cost_s = self._costs_s[codec > 0]
        small_bytes = min(SMALL_BATCH_BYTES, int(self._saved_s / cost_s)) if codec else SMALL_BATCH_BYTES
        return small_bytes, min(piece_bytes, int(_MOST_COST_S / cost_s))

    def opens(self, outgoing: Outgoing) -> bool:
        """Whether its records are touched when it is sent, merged with others or not."""
        return self.compresses(outgoing) or (outgoing.stamp is None and outgoing.source_batches > 1)

    def compresses(self, outgoing: Outgoing) -> bool:
        """Whether it gets the producer's codec when it is sent, merged or not."""
        return self._compression.codec > 0 and not outgoing.codec and outgoing.is_mergeable

    def takes(self, first: Outgoing, waiting: Iterable[Outgoing], max_message_bytes: int, saved_s: float) -> int:
        """How many of ``waiting`` are to be sent in one batch with ``first``.

        ``saved_s``: what it is worth, in seconds, that one batch less is to be sent. What is opened to be sent by
        itself costs nothing more.
        """
        self._saved_s = saved_s
        most_bytes = min(self.most_bytes, max_message_bytes)
        size, number = _most_size(first), 0
        if not first.is_mergeable or size > most_bytes // 2:
            return 0
        work_s, more_s = self._cost_s(first), self._more_s(first)
        for other in waiting:
            size += _most_size(other)
            if size > most_bytes or len(other.batch) > most_bytes // 2 or not _belong_together(first, other):
                break
            work_s += self._cost_s(other)
            its_s = self._more_s(other)
            if work_s > _MOST_COST_S or its_s > saved_s:
                break
            more_s += its_s
            number += 1
        if number and more_s <= number * saved_s:
            return number
        self._forget(first)
        return 0

    def merged(self, parts: Sequence[Outgoing], stamp: Stamp) -> bytearray:
        """The records of ``parts`` as one batch that bears ``stamp``. Raises Unmergeable."""
        began_s = self._clock()
        marks, producer_id, producer_epoch, base_sequence = stamp
        codec = parts[0].codec or self._compression.codec
        level = self._compression.level_of(codec)
        merged = merge([part.batch for part in parts], codec | marks, producer_id, producer_epoch, base_sequence, level)
        if sum(part.count for part in parts) >= _SAMPLE_RECORDS:
            units = sum(map(self._units, parts))
            self._learn(parts[0].codec > 0, (self._clock() - began_s) / units, _WEIGHT)
        return merged

    def was_refused_for_size(self, size: int) -> None:
        """The target takes less than we know, and a merged batch of ``size`` bytes was more."""
        self.most_bytes = min(self.most_bytes, size // 2)

    def _cost_s(self, outgoing: Outgoing) -> float:
        return self._units(outgoing) * self._costs_s[outgoing.codec > 0]

    def _more_s(self, outgoing: Outgoing) -> float:
        """What it costs beyond what is to be done anyway."""
        return 0.0 if self.opens(outgoing) else self._cost_s(outgoing)

    def _units(self, outgoing: Outgoing) -> int:
        return len(outgoing.batch) if outgoing.codec or self._compression.codec else outgoing.count

    def _forget(self, outgoing: Outgoing) -> None:
        has_codec = outgoing.codec > 0
        if self._costs_s[has_codec] > self._first_costs_s[has_codec]:
            self._learn(has_codec, self._first_costs_s[has_codec], _FORGETS)

    def _learn(self, has_codec: bool, sample_s: float, weight: float) -> None:
        self._costs_s[has_codec] += weight * (sample_s - self._costs_s[has_codec])


def _most_size(outgoing: Outgoing) -> int:
    """At most so many bytes it adds to a merged batch."""
    return len(outgoing.batch) + (0 if outgoing.codec else MORE_BYTES * outgoing.count)


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
    if outgoing.source_batches <= 1 or outgoing.stamp is not None:
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
