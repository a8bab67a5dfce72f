"""Build the batches that go to the target, and merge waiting batches of a partition when that is worth its cost.

A target answers a Produce request once its followers have it, and each request holds one batch of a partition. So each
merged batch saves a round trip. Merging costs time for each record.

If the target's producer has a codec, uncompressed batches are compressed here, once for all that are sent together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import chain, zip_longest
from typing import Final

from connect.wire import batch as wire
from connect.wire import records
from connect.wire.merge import IS_COMPILED, merge
from connect.wire.rebase import MORE_BYTES
from connectors.dataplane.batches.error_codes import Refusal
from connectors.formats.types import Compression, ProducerIdAndEpoch, Run, Skip

_NOTHING: Final = memoryview(b"")
#: (first source offset, count)
Segment = tuple[int, int]
#: What the bytes of a batch that is ready to send say: attributes without the codec, producer id, epoch, base sequence.
Stamp = tuple[int, int, int, int]


@dataclass(slots=True, eq=False)
class Outgoing:
    """A batch for the target: its bytes, its sequences, and the source offsets that it covers. Until it is made ready
    for its first sending, ``batch`` is what was fetched: ``source_batches`` batches of the source, one after the other.
    From then on it is one batch that never changes."""

    batch: memoryview
    base_sequence: int
    count: int
    #: (first source offset, count), in order; one if offsets are dense
    segments: Sequence[Segment]
    next_source_offset: int
    source_epoch: int
    timestamp_ms: int
    codec: int
    _: KW_ONLY
    #: number of unchanged source batches in it; 0 if it was built from records
    source_batches: int = 0
    #: what its bytes say, if they were made ready or built
    stamp: Stamp | None = None
    #: whether it may be merged with others
    is_mergeable: bool = True
    #: the answer's base offset once the batch is known to be in the target's log
    base_offset: int | None = field(default=None, init=False)
    #: once sent, its bytes may reach the target at any later time
    sent: bool = field(default=False, init=False)
    #: no answer says that a sent copy was not written
    is_doubtful: bool = field(default=False, init=False)
    #: number of its leader's errors without a reason
    unexplained: int = field(default=0, init=False)
    #: why the target will never accept it unchanged
    refusal: Refusal | None = field(default=None, init=False)
    #: what was left out between the batches around it
    skips: tuple[Skip, ...] = field(default=(), init=False)

    def release(self) -> None:
        self.batch = _NOTHING

    @property
    def last_sequence(self) -> int:
        return wire.add_sequence(self.base_sequence, self.count - 1)

    @property
    def what(self) -> str:
        """Its description in messages."""
        first, last = self.segments[0][0], sum(self.segments[-1]) - 1
        offsets = f"source offset {first}" if first == last else f"source offsets {first} to {last}"
        return f"the batch of {offsets}"

    def source_offsets(self) -> Iterator[int]:
        return chain.from_iterable(range(first, first + count) for first, count in self.segments)

    def opened(self) -> list[records.Record]:
        """Return its records with their source offsets."""
        decoded = records.decode(self.batch, 2)
        return [record._replace(offset=offset) for record, offset in zip(decoded, self.source_offsets(), strict=True)]

    def renumber(self, base_sequence: int) -> None:
        """Change its base sequence. Only for a batch of which no sent copy can still reach the target."""
        self.sent = False
        self.base_sequence = base_sequence

    def make_ready(self, stamp: Stamp) -> None:
        """Write ``stamp`` into its one batch, before its first sending."""
        if self.stamp != stamp:
            marks, producer_id, producer_epoch, base_sequence = stamp
            wire.rewrite(self.batch, self.codec | marks, producer_id, producer_epoch, base_sequence)
            self.stamp = stamp

    def join(self, others: Sequence[Outgoing], merged: bytearray, stamp: Stamp) -> None:
        """Cover ``others``, which follow it, as well; its bytes are then ``merged``."""
        segments = list(self.segments)
        for other in others:
            for first, count in other.segments:
                last_first, last_count = segments[-1]
                if first == last_first + last_count:
                    segments[-1] = (last_first, last_count + count)
                else:
                    segments.append((first, count))
            self.count += other.count
            self.source_batches += other.source_batches
            self.next_source_offset = other.next_source_offset
            self.timestamp_ms = max(self.timestamp_ms, other.timestamp_ms)
            self.skips += other.skips
        self.segments = segments
        self.batch, self.stamp = memoryview(merged), stamp
        self.codec = wire.read_header(merged).codec


@dataclass(frozen=True, slots=True)
class Builder:
    """Builds batches under one producer, with their source's codec; ``compression`` is for uncompressed batches."""

    producer: ProducerIdAndEpoch
    compression: Compression

    def outgoings(
        self, parts: Sequence[Sequence[records.Record]], codec: int, sequence: int, source_epoch: int
    ) -> Iterator[Outgoing]:
        """Yield a batch for each part, which covers its own records only; their offsets are the source's. A batch that
        ends among several records of one source record does not cover that one."""
        for part, after in zip_longest(parts, parts[1:]):
            built = self._built(part, codec, self.producer, sequence)
            timestamp_ms = max(record.timestamp_ms for record in part)
            behind = part[-1].offset + 1
            if after is not None:
                behind = min(behind, after[0].offset)
            yield Outgoing(
                memoryview(built),
                sequence,
                len(part),
                segments(part),
                behind,
                source_epoch,
                timestamp_ms,
                codec,
                stamp=(0, self.producer.producer_id, self.producer.epoch, sequence),
            )
            sequence = wire.add_sequence(sequence, len(part))

    def fitting(self, kept: Sequence[records.Record], codec: int, max_bytes: int) -> Iterator[Sequence[records.Record]]:
        """Split ``kept`` until each batch has at most ``max_bytes``; a single record is yielded whatever its size."""
        if not kept:
            return
        if len(kept) > 1 and not self._fit(kept, codec, max_bytes):
            for half in halves(kept):
                yield from self.fitting(half, codec, max_bytes)
            return
        yield kept

    def _fit(self, part: Sequence[records.Record], codec: int, max_bytes: int) -> bool:
        codecs = sorted({codec, codec or self.compression.codec})
        return any(len(self._built(part, one, _NO_PRODUCER, -1)) <= max_bytes for one in codecs)

    def _built(
        self, part: Sequence[records.Record], codec: int, producer: ProducerIdAndEpoch, sequence: int
    ) -> bytearray:
        level = self.compression.level_of(codec)
        return records.build(part, codec, producer.producer_id, producer.epoch, sequence, level)


_NO_PRODUCER = ProducerIdAndEpoch(-1, -1)


def halves(part: Sequence[records.Record]) -> tuple[Sequence[records.Record], Sequence[records.Record]]:
    middle = len(part) // 2
    return part[:middle], part[middle:]


def segments(part: Sequence[records.Record]) -> list[Segment]:
    """Return the source offsets of ``part`` as (first, count) of each dense range."""
    out: list[Segment] = []
    for record in part:
        if out and record.offset == out[-1][0] + out[-1][1]:
            out[-1] = (out[-1][0], out[-1][1] + 1)
        else:
            out.append((record.offset, 1))
    return out


def append_run(runs: list[Run], run: Run) -> None:
    """Append a run, merged with the last one if it continues it in both logs."""
    if runs:
        up, down, count = runs[-1]
        if run[0] == up + count and run[1] == down + count:
            runs[-1] = (up, down, count + run[2])
            return
    runs.append(run)


#: Costs before any was measured: seconds per record if no codec is involved, else seconds per byte.
_RECORD_COST_S: Final = 1.5e-6
_BYTE_COST_S: Final = 20e-9 if IS_COMPILED else 200e-9
#: Of what is merged, where the producer sets none: 3, Kafka's default, takes twice the CPU for 7 % fewer bytes of JSON.
_ZSTD_LEVEL: Final = 1
#: How much the limit on what is opened grows with each merge, after one that failed has halved it.
_GROWTH: Final = 1.02
#: Weight of a new cost sample, and of the initial cost each time merging is too costly, because no sample comes then.
_WEIGHT: Final = 0.2
_FORGETS: Final = 0.01
#: Fewer records say little about the cost of one.
_SAMPLE_RECORDS: Final = 32
#: Batches up to this size cost more alone than merged, also where records are rewritten or opened in Python: a producer
#: that does not linger sends a few records in each.
_SMALL_BATCH_BYTES: Final = 2048
#: One merge blocks the event loop no longer than this.
_MOST_COST_S: Final = 0.015
#: Small batches form pieces of this fraction of a full batch, so that the rest of one answer is sent with the beginning
#: of the next, because a broker needs as long for a nearly empty request as for a full one.
_PIECES: Final = 16


class Merging:
    """Decides for one partition what to merge, and measures the cost. ``clock`` returns CPU seconds of this thread,
    because time that others take on a busy machine must not count. ``compression`` is the target producer's."""

    def __init__(
        self, most_bytes: int, compression: Compression, clock: Callable[[], float] = time.thread_time
    ) -> None:
        self.most_bytes = most_bytes
        self._compression = compression
        self._clock = clock
        #: of uncompressed and of compressed batches
        self._first_costs_s = (_BYTE_COST_S if compression.codec else _RECORD_COST_S, _BYTE_COST_S)
        self._costs_s = list(self._first_costs_s)
        #: seconds that one batch less saved when the last one was sent
        self._saved_s = 0.0
        #: Of compressed batches that are merged: more would be too large when opened, or as one batch.
        self._most_packed_bytes = float(most_bytes)

    def run_limits(self, codec: int) -> tuple[int, int]:
        """Return the largest size of a source batch that is sent with others of its ``codec``, and of all together. A
        compressed batch is merged if opening it costs less than sending it alone."""
        piece_bytes = self.most_bytes // _PIECES
        if codec or self._compression.codec:
            cost_s = self._costs_s[codec > 0]
            piece_bytes = min(piece_bytes, int(_MOST_COST_S / cost_s))
            if codec:
                return min(_SMALL_BATCH_BYTES, int(self._saved_s / cost_s)), piece_bytes
        return (piece_bytes // 2 if IS_COMPILED else _SMALL_BATCH_BYTES), piece_bytes

    def opens(self, outgoing: Outgoing) -> bool:
        """Return whether sending it needs its records, merged or not."""
        return self.compresses(outgoing) or (outgoing.stamp is None and outgoing.source_batches > 1)

    def compresses(self, outgoing: Outgoing) -> bool:
        """Return whether it gets the producer's codec when it is sent, merged or not."""
        return self._compression.codec > 0 and not outgoing.codec and outgoing.is_mergeable

    def takes(self, first: Outgoing, waiting: Iterable[Outgoing], max_message_bytes: int, saved_s: float) -> int:
        """Return how many of ``waiting`` to send in one batch with ``first``, if one batch less saves ``saved_s``. A
        batch that is opened anyway adds no cost."""
        self._saved_s = saved_s
        most_bytes = min(self.most_bytes, max_message_bytes)
        size, number = _most_size(first), 0
        if not first.is_mergeable or size > most_bytes // 2:
            return 0
        if first.codec:
            most_bytes = min(most_bytes, int(self._most_packed_bytes))
            self._most_packed_bytes = min(self._most_packed_bytes * _GROWTH, self.most_bytes)
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
        """Return one batch of the records of ``parts``, with ``stamp`` in it. Raises Unmergeable."""
        began_s = self._clock()
        marks, producer_id, producer_epoch, base_sequence = stamp
        codec = parts[0].codec or self._compression.codec
        level = self._compression.level_of(codec)
        if level is None and codec == records.ZSTD:
            level = _ZSTD_LEVEL
        producer = producer_id, producer_epoch, base_sequence
        try:
            return merge([part.batch for part in parts], codec | marks, *producer, level)
        finally:
            # Also of one that fails, which would be tried as eagerly the next time.
            if parts[0].codec or sum(part.count for part in parts) >= _SAMPLE_RECORDS:
                units = sum(map(self._units, parts))
                self._learn(parts[0].codec > 0, (self._clock() - began_s) / units, _WEIGHT)

    def failed(self, parts: Sequence[Outgoing]) -> None:
        """Merge less from now on, because ``parts`` were too large when opened or as one batch, or cannot be read."""
        self._most_packed_bytes = min(self._most_packed_bytes, sum(len(part.batch) for part in parts)) / 2

    def was_refused_for_size(self, size: int) -> None:
        """Lower the limit after the target refused a merged batch of ``size`` bytes."""
        self.most_bytes = min(self.most_bytes, size // 2)

    def _cost_s(self, outgoing: Outgoing) -> float:
        return self._units(outgoing) * self._costs_s[outgoing.codec > 0]

    def _more_s(self, outgoing: Outgoing) -> float:
        """Return the cost beyond what must be done anyway."""
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
    """Return the most bytes that it adds to a merged batch."""
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
    """Split a batch into its source batches, which are not merged again because their records could not be read."""
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
            is_mergeable=False,
        )
        parts.append(part)
        offset += count
        sequence = wire.add_sequence(sequence, count)
    parts[-1].next_source_offset = outgoing.next_source_offset
    parts[-1].skips = outgoing.skips
    return parts
