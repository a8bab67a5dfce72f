"""Two logs as plain Python: batches as a source holds them, and a target partition with the rules of a real broker."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from connect.wire import batch as wire
from connect.wire import records
from connectors.control_link.protocol import PartitionPlan
from connectors.dataplane.batches.copier import PartitionCopier
from connectors.formats.types import ProducerIdAndEpoch, TopicPartition

PRODUCER = ProducerIdAndEpoch(7, 0)
OUT_OF_ORDER = 45
FENCED = 47
INVALID_RECORD = 87


def source_batch(
    offsets: Sequence[int],
    *,
    codec: int = 0,
    attributes: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
    leader_epoch: int = 0,
    last_offset: int | None = None,
    timestamp_ms: int = 1_700_000_000_000,
    null_keys: Collection[int] = (),
    large: Collection[int] = (),
) -> bytes:
    """A batch with a record at each of ``offsets``; ``large`` are those of a kilobyte that no codec makes smaller."""
    base = offsets[0]
    builder = DefaultRecordBatchBuilder(2, codec, 0, *producer, 2**30)
    for offset in offsets:
        value = f"value {offset}".encode()
        if offset in large:
            value += random.Random(offset).randbytes(1024)
        key = None if offset in null_keys else str(offset).encode()
        builder.append(offset - base, timestamp_ms + offset, key, value, [("n", b"%d" % offset)])
    built = builder.build()
    struct.pack_into(">q", built, 0, base)
    struct.pack_into(">i", built, 12, leader_epoch)
    struct.pack_into(">h", built, 21, struct.unpack_from(">h", built, 21)[0] | attributes)
    if last_offset is not None:
        struct.pack_into(">i", built, 23, last_offset - base)
    struct.pack_into(">I", built, 17, wire.checksum(built))
    return bytes(built)


def bomb() -> bytes:
    """A MiB of gzip that expands to a GiB of zeros; its checksum, behind them, is of two MiB."""
    packer = zlib.compressobj(wbits=31)
    first, following = (packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    return first + following * 1023 + packer.flush()


def bomb_batch(offset: int) -> bytes:
    """A batch of one record that is a :func:`bomb`, with a right checksum."""
    return batch_of(offset, bomb(), wire.CODEC_NAMES.index("gzip"))


def batch_of(offset: int, payload: bytes, codec: int = 0) -> bytes:
    """A batch that says it holds one record, with any bytes instead, and a right checksum."""
    built = bytearray(source_batch([offset])[: wire.HEADER_BYTES] + payload)
    struct.pack_into(">i", built, 8, len(built) - wire.LOG_OVERHEAD_BYTES)
    struct.pack_into(">h", built, 21, codec)
    struct.pack_into(">I", built, 17, wire.checksum(built))
    return bytes(built)


def bomb_message(offset: int) -> bytes:
    """The same as a message of magic 1."""
    packed = bomb()
    inside = struct.pack(">bbqii", 1, wire.CODEC_NAMES.index("gzip"), 0, -1, len(packed)) + packed
    return struct.pack(">qiI", offset, 4 + len(inside), zlib.crc32(inside)) + inside


def control_batch(offset: int, producer_id: int, *, commit: bool, epoch: int = 0) -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, 0, producer_id, epoch, -1, 2**30)
    builder.append(0, 1_700_000_000_000, struct.pack(">hh", 0, int(commit)), b"\0\0\0\0\0\0", [])
    built = builder.build()
    struct.pack_into(">q", built, 0, offset)
    struct.pack_into(">h", built, 21, wire.CONTROL | wire.TRANSACTIONAL)
    struct.pack_into(">I", built, 17, wire.checksum(built))
    return bytes(built)


@dataclass
class Producer:
    epoch: int
    next_sequence: int | None = None
    recent: list[tuple[int, int, int]] = field(default_factory=list)  # first, last sequence, base offset


@dataclass
class TargetPartition:
    """What one leader does with produced batches."""

    end: int = 0
    batches: list[bytes] = field(default_factory=list)
    producers: dict[int, Producer] = field(default_factory=dict)

    def append(self, batch: bytes) -> tuple[int, int]:
        """(error code, base offset)."""
        header = wire.read_header(batch)
        if (
            header.base_offset != 0
            or header.record_count == 0
            or header.last_offset_delta + 1 != header.record_count
            or header.attributes & ~wire.CODEC_MASK
            or header.crc != wire.checksum(batch)
            or header.size_bytes != len(batch)
        ):
            return INVALID_RECORD, -1
        producer = self.producers.setdefault(header.producer_id, Producer(header.producer_epoch))
        if header.producer_epoch < producer.epoch:
            return FENCED, -1
        if header.producer_epoch > producer.epoch:
            producer.epoch, producer.next_sequence, producer.recent = header.producer_epoch, 0, []
        for first, last, base in producer.recent:
            if (first, last) == (header.base_sequence, header.last_sequence):
                return 0, base
        if producer.next_sequence not in (None, header.base_sequence):
            return OUT_OF_ORDER, -1
        return 0, self._write(batch, header, producer)

    def mark(self, producer_id: int, epoch: int) -> None:
        producer = self.producers.setdefault(producer_id, Producer(epoch))
        producer.epoch, producer.next_sequence, producer.recent = epoch, 0, []
        self._put(control_batch(0, producer_id, commit=False, epoch=epoch), 1)

    def last_sequence(self, producer_id: int) -> tuple[int, int] | None:
        producer = self.producers.get(producer_id)
        if producer is None:
            return None
        return producer.epoch, producer.recent[-1][1] if producer.recent else -1

    def fetch(self, position: int) -> memoryview:
        """Everything from the batch that holds ``position`` on."""
        return fetched_from(self.batches, position)

    def records(self) -> list[records.Record]:
        data = [batch for batch in self.batches if not wire.read_header(batch).is_control]
        return [record for batch in data for record in records.decode(batch, 2)]

    def _write(self, batch: bytes, header: wire.BatchHeader, producer: Producer) -> int:
        base = self._put(batch, header.record_count)
        producer.next_sequence = wire.add_sequence(header.base_sequence, header.record_count)
        producer.recent = [*producer.recent, (header.base_sequence, header.last_sequence, base)][-5:]
        return base

    def _put(self, batch: bytes, count: int) -> int:
        stored = bytearray(batch)
        struct.pack_into(">q", stored, 0, self.end)
        base, self.end = self.end, self.end + count
        self.batches.append(bytes(stored))
        return base


def plan(topic: str = "orders", partition: int = 0, **changes: Any) -> PartitionPlan:
    """From the beginning of both logs, for a leader that does not know the producer."""
    source, target = TopicPartition(topic, partition), TopicPartition(f"us.{topic}", partition)
    return replace(PartitionPlan(source, None, target, None, 0, -1, 0, 0, pipelined=False), **changes)


def copier(begin: PartitionPlan | None = None, producer: ProducerIdAndEpoch = PRODUCER, **settings: Any) -> Any:
    return PartitionCopier(begin or plan(), producer, **{"read_committed": False, **settings})


def copy_all(machine: PartitionCopier, target: TargetPartition, saved_s: float = 0.0) -> list[int]:
    """Send until nothing is left, every answer good. Returns how many records each batch had."""
    counts = []
    while (outgoing := machine.next_batch(saved_s)) is not None:
        error, base = target.append(bytes(outgoing.batch))
        assert error == 0
        machine.acknowledged(outgoing, base)
        counts.append(outgoing.count)
    return counts


def fetched(*batches: bytes) -> memoryview:
    """The batches as an answer holds them, to be changed in place."""
    return memoryview(bytearray(b"".join(batches)))


def fetched_from(log: Sequence[bytes], position: int = 0) -> memoryview:
    """What a fetch at ``position`` answers."""
    return fetched(*(batch for batch in log if wire.read_header(batch).last_offset >= position))


def held(target: TargetPartition) -> list[tuple[object, ...]]:
    return [(one.key, one.value, one.headers, one.timestamp_ms) for one in target.records()]


def settle(machine: PartitionCopier, target: TargetPartition, producer_id: int) -> None:
    """What a slice does after a fault: ask the leader, find what is there, send the rest again."""
    known = target.last_sequence(producer_id)
    unknown = machine.appended_unknown(None if known is None or known[1] < 0 else known[1])
    fetch, found = target.fetch(machine.target_end), {}
    for start, size, _ in wire.extents(fetch):
        header = wire.read_header(fetch[start : start + size])
        if header.producer_id == producer_id and not header.is_control:
            found[header.base_sequence] = header.base_offset
    machine.settle({outgoing.base_sequence: found[outgoing.base_sequence] for outgoing in unknown})
