"""The two logs of a partition and a transaction coordinator, as brokers were seen to treat them, with their faults."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from connect.kafka.log.transactions import ProducerIdentity, Superseded, TransactionalIdRefused
from connect.wire import batch as wire
from connect.wire import records
from tests.kit.logs import Producer
from tests.kit.picky import PickyTarget

_TIME_MS = 1_700_000_000_000


@dataclass
class Leader(PickyTarget):
    """A target partition; ``history``: what was ever appended, by offset with its source offsets."""

    high_watermark: int = 0
    log_start: int = 0
    history: list[tuple[int, Sequence[int]]] = field(default_factory=list)

    def produce(self, batch: bytes, offsets: Sequence[int]) -> tuple[int, int]:
        end = self.end
        error, base = self.append(batch)
        if self.end > end:
            self.history.append((base, offsets))
        return error, base

    def replicate(self) -> None:
        self.high_watermark = self.end

    def shown(self, position: int) -> memoryview:
        """What a fetch brings: batches below the high watermark."""
        below = [
            one
            for one in self.batches
            if position <= wire.read_header(one).last_offset < self.high_watermark and _base(one) >= self.log_start
        ]
        return memoryview(bytearray(b"".join(below)))

    def elect(self, chance: random.Random, *, is_clean: bool) -> None:
        """Another leader has all that is replicated; an unclean one less, but not less than the last marker."""
        markers = [_end(one) for one in self.batches if wire.read_header(one).is_control]
        least = self.high_watermark if is_clean else max(markers, default=0)
        end = chance.choice([least, *(_end(one) for one in self.batches if _end(one) >= least)])
        self.batches = [one for one in self.batches if _end(one) <= end]
        self.history = [one for one in self.history if one[0] < end]
        self.end = self.high_watermark = end
        self.log_start = min(self.log_start, end)
        self._rebuild()

    def expire(self) -> None:
        self.producers.clear()

    def clean(self, chance: random.Random) -> None:
        """Compact: whole batches go, but for the last one of each producer whose state has data."""
        kept = {
            (producer_id, producer.recent[-1][2]) for producer_id, producer in self.producers.items() if producer.recent
        }
        gone = [
            one
            for one in self.batches
            if (header := wire.read_header(one)).last_offset < self.high_watermark
            and not header.is_control
            and (header.producer_id, header.base_offset) not in kept
            and chance.random() < 0.7
        ]
        self.batches = [one for one in self.batches if one not in gone]

    def retain(self, chance: random.Random) -> None:
        self.log_start = chance.choice([self.log_start, *(_base(one) for one in self.batches), self.high_watermark])
        self.log_start = min(self.log_start, self.high_watermark)

    def _rebuild(self) -> None:
        kept, end, history = self.batches, self.end, self.history
        self.batches, self.producers, self.end = [], {}, 0
        for batch in kept:
            header = wire.read_header(batch)
            self.end = header.base_offset
            if header.is_control:
                self.mark(header.producer_id, header.producer_epoch)
            else:
                producer = self.producers.setdefault(header.producer_id, Producer(header.producer_epoch))
                if header.producer_epoch > producer.epoch:
                    producer.epoch, producer.recent = header.producer_epoch, []
                self._write(batch, header, producer)
        self.batches, self.end, self.history = kept, end, history


def _base(batch: bytes) -> int:
    return wire.read_header(batch).base_offset


def _end(batch: bytes) -> int:
    return wire.read_header(batch).last_offset + 1


@dataclass
class Source:
    """A source partition: ``refused`` are offsets of records that the target does not take."""

    records: dict[int, records.Record]
    batches: list[list[int]]
    are_alike: bool
    log_start: int = 0
    refused: frozenset[int] = frozenset()
    #: Offsets that compaction took, and those that a copy found missing at the beginning, as it names them.
    compacted: set[int] = field(default_factory=set)
    named_lost: set[int] = field(default_factory=set)

    @classmethod
    def drawn(cls, chance: random.Random) -> Source:
        are_alike = chance.random() < 0.4
        with_refused = chance.random() < 0.4
        batches, at = list[list[int]](), 0
        for _ in range(chance.randrange(4, 14)):
            size = chance.choice([1, 1, 2, 3])
            batches.append(list(range(at, at + size)))
            at += size
        refused = frozenset(one for one in range(at) if with_refused and chance.random() < 0.15)
        return cls(
            {one: _record(one, are_alike, one in refused) for one in range(at)}, batches, are_alike, refused=refused
        )

    @property
    def end(self) -> int:
        return self.batches[-1][-1] + 1

    def fetch(self, position: int, chance: random.Random) -> memoryview:
        found = []
        for offsets in self.batches:
            left = [one for one in offsets if one not in self.compacted]
            if offsets[-1] >= max(position, self.log_start) and left:
                found.append(_batch([self.records[one] for one in left], offsets[-1]))
        return memoryview(bytearray(b"".join(found[: chance.randrange(1, 8)])))

    def compact(self, chance: random.Random) -> None:
        self.compacted |= {one for one in range(self.log_start, self.end - 1) if chance.random() < 0.2}

    def retain(self, chance: random.Random) -> None:
        self.log_start = max(self.log_start, chance.choice([offsets[0] for offsets in self.batches]))


def _record(offset: int, is_alike: bool, is_refused: bool) -> records.Record:
    key = None if is_refused else b"k" if is_alike else b"%d" % offset
    return records.Record(offset, _TIME_MS if is_alike else _TIME_MS + offset, key, b"v", [])


def _batch(found: Sequence[records.Record], last_offset: int) -> bytes:
    """A batch as a fetch returns it, of which compaction may have taken some records."""
    base = found[0].offset
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 2**20)
    for one in found:
        builder.append(one.offset - base, one.timestamp_ms, one.key, one.value, one.headers)
    built = builder.build()
    struct.pack_into(">q", built, 0, base)
    struct.pack_into(">i", built, 12, 0)
    struct.pack_into(">i", built, 23, last_offset - base)
    struct.pack_into(">I", built, 17, wire.checksum(built))
    return bytes(built)


@dataclass
class Coordinator:
    """Transactional ids: who holds which epoch. ``refuses``: no rights to any of them."""

    refuses: bool = False
    identities: dict[str, ProducerIdentity] = field(default_factory=dict)
    _ids: int = 100

    def new_id(self) -> ProducerIdentity:
        self._ids += 1
        return ProducerIdentity(self._ids, 0)

    def claim(self, name: str, held: ProducerIdentity | None = None) -> ProducerIdentity:
        if self.refuses:
            raise TransactionalIdRefused(f"grant WRITE and DESCRIBE on transactional id {name}")
        current = self.identities.get(name)
        if held is not None:
            self.check(name, held)
        if current is None:
            current = self.new_id()
        self.identities[name] = ProducerIdentity(current.producer_id, current.epoch + 1)
        return self.identities[name]

    def check(self, name: str, held: ProducerIdentity) -> None:
        if self.identities.get(name) != held:
            raise Superseded(f"{name} was claimed")
