"""A batch on its way to the target, and how one is built from records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Final

from connect.wire import batch as wire
from connect.wire import records
from connectors.dataplane.plan import Compression, ProducerIdentity, Run, Skip
from connectors.dataplane.refusals import Refusal

_NOTHING: Final = memoryview(b"")
#: (first source offset, count)
Segment = tuple[int, int]
#: What a batch bears that is ready to be sent: attributes beside the codec, producer id and epoch, base sequence.
Stamp = tuple[int, int, int, int]


class Outgoing:
    """Its bytes, its sequences, and the source offsets it stands for.

    ``batch`` is as it was fetched, several batches of the source one behind the other if ``source_batches`` says so,
    until it is made ready for its first sending. From then on it is one batch, and changes no more.
    """

    __slots__ = (
        "base_offset",
        "base_sequence",
        "batch",
        "codec",
        "count",
        "is_doubtful",
        "is_mergeable",
        "next_source_offset",
        "refusal",
        "segments",
        "sent",
        "skips",
        "source_batches",
        "source_epoch",
        "stamp",
        "timestamp_ms",
        "unexplained",
    )

    def __init__(
        self,
        batch: memoryview,
        base_sequence: int,
        count: int,
        segments: Sequence[Segment],
        next_source_offset: int,
        source_epoch: int,
        timestamp_ms: int,
        codec: int,
        *,
        source_batches: int = 0,
        stamp: Stamp | None = None,
    ) -> None:
        self.batch = batch
        self.base_sequence = base_sequence
        self.count = count
        #: (first source offset, count), in order: one where offsets are dense
        self.segments = segments
        self.next_source_offset = next_source_offset
        self.source_epoch = source_epoch
        self.timestamp_ms = timestamp_ms
        self.codec = codec
        #: how many batches of the source are in it as they were; 0 if it was built from records
        self.source_batches = source_batches
        #: what its bytes bear, if they were made ready or built
        self.stamp = stamp
        #: its records can be read, as far as is known
        self.is_mergeable = True
        #: the answer's base offset once the batch is known to be in the target's log
        self.base_offset: int | None = None
        #: once sent, its bytes may reach the target at any later time
        self.sent = False
        #: a copy that was sent has no answer which says that it was not written
        self.is_doubtful = False
        #: how often its leader failed at it without a reason
        self.unexplained = 0
        #: why the target will never take it as it is
        self.refusal: Refusal | None = None
        #: what was left out between the batch before and the one behind
        self.skips: tuple[Skip, ...] = ()

    def release(self) -> None:
        """Let go of the bytes of what is never sent again."""
        self.batch = _NOTHING

    @property
    def last_sequence(self) -> int:
        return wire.add_sequence(self.base_sequence, self.count - 1)

    @property
    def what(self) -> str:
        """What it is, for people."""
        first, last = self.segments[0][0], sum(self.segments[-1]) - 1
        offsets = f"source offset {first}" if first == last else f"source offsets {first} to {last}"
        return f"the batch of {offsets}"

    def source_offsets(self) -> Iterator[int]:
        """The source offset of each of its records."""
        return chain.from_iterable(range(first, first + count) for first, count in self.segments)

    def opened(self) -> list[records.Record]:
        """Its records with their source offsets."""
        decoded = records.decode(self.batch, 2)
        return [record._replace(offset=offset) for record, offset in zip(decoded, self.source_offsets(), strict=True)]

    def renumber(self, base_sequence: int) -> None:
        """Give it another place in the sequence. Only for bytes of which no sent copy can reach the target any more."""
        self.sent = False
        self.base_sequence = base_sequence

    def make_ready(self, stamp: Stamp) -> None:
        """Have its one batch bear ``stamp``, for its first sending."""
        if self.stamp != stamp:
            marks, producer_id, producer_epoch, base_sequence = stamp
            wire.rewrite(self.batch, self.codec | marks, producer_id, producer_epoch, base_sequence)
            self.stamp = stamp

    def join(self, others: Sequence[Outgoing], merged: bytearray, stamp: Stamp) -> None:
        """Stand for ``others``, which follow it, as well; ``merged`` are its bytes then."""
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
    """Builds batches of records under one producer, each with the codec of its source: ``compression`` follows when
    it is sent, where that is none."""

    producer: ProducerIdentity
    compression: Compression

    def outgoings(
        self, parts: Sequence[Sequence[records.Record]], codec: int, sequence: int, source_epoch: int
    ) -> Iterator[Outgoing]:
        """Batches of ``parts``, their offsets the source's, none of which stands for more than its own records. One
        source record may have become several, so a batch may end inside what has become of one: it is not behind it.
        """
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
        """``kept`` in parts whose batches are no larger; a single record goes as it is, whatever its size."""
        if not kept:
            return
        if len(kept) > 1 and not self._fit(kept, codec, max_bytes):
            for half in halves(kept):
                yield from self.fitting(half, codec, max_bytes)
            return
        yield kept

    def _fit(self, part: Sequence[records.Record], codec: int, max_bytes: int) -> bool:
        codecs = sorted({codec, codec or self.compression.codec})
        return any(len(self._built(part, one, _NOBODY, -1)) <= max_bytes for one in codecs)

    def _built(
        self, part: Sequence[records.Record], codec: int, producer: ProducerIdentity, sequence: int
    ) -> bytearray:
        level = self.compression.level_of(codec)
        return records.build(part, codec, producer.producer_id, producer.epoch, sequence, level)


_NOBODY = ProducerIdentity(-1, -1)


def halves(part: Sequence[records.Record]) -> tuple[Sequence[records.Record], Sequence[records.Record]]:
    middle = len(part) // 2
    return part[:middle], part[middle:]


def segments(part: Sequence[records.Record]) -> list[Segment]:
    """Source offsets of ``part`` as (first, count) of what is dense."""
    out: list[Segment] = []
    for record in part:
        if out and record.offset == out[-1][0] + out[-1][1]:
            out[-1] = (out[-1][0], out[-1][1] + 1)
        else:
            out.append((record.offset, 1))
    return out


def append_run(runs: list[Run], run: Run) -> None:
    """Append, merging with the last run where offsets go on at the same difference."""
    if runs:
        up, down, count = runs[-1]
        if run[0] == up + count and run[1] == down + count:
            runs[-1] = (up, down, count + run[2])
            return
    runs.append(run)
