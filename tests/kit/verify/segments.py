"""A stopped broker's segments, read as committed and damaged; offsets, epochs and producers stay what they were."""

from __future__ import annotations

import mmap
import shutil
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from aiokafka.record.util import encode_varint

from connect.wire import batch as wire
from connect.wire import records
from connect.wire.records import Record

_ABORT: Final = 0
_COUNT: Final = struct.Struct(">i")
_TIME: Final = struct.Struct(">q")
_CRC: Final = struct.Struct(">I")
_BASE: Final = struct.Struct(">q")
_PRODUCER: Final = struct.Struct(">qhi")
_ATTRIBUTES: Final = struct.Struct(">h")
#: What the broker makes again from the segment.
_INDEXES: Final = (".index", ".timeindex", ".txnindex", ".snapshot")


class Batch(NamedTuple):
    """One batch as it lies in a segment; ``is_aborted``: a committed reader passes it over."""

    data: wire.Buffer
    header: wire.BatchHeader
    is_aborted: bool = False

    @property
    def is_visible(self) -> bool:
        return not (self.is_aborted or self.header.is_control)

    def records(self) -> list[Record]:
        return list(records.decode(self.data, self.header.magic))


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))


def batches(files: Iterable[Path]) -> Iterator[Batch]:
    """Yield the batches of segments in order, those of aborted transactions marked."""
    found = list(files)
    ends: dict[int, list[tuple[int, bool]]] = {}  # of transactions, by producer: the marker's offset, whether it aborts
    for one in _parsed(found):
        if one.header.is_control:
            (marker,) = one.records()
            kind = int.from_bytes((marker.key or b"")[2:4], "big")
            ends.setdefault(one.header.producer_id, []).append((one.header.base_offset, kind == _ABORT))
    for one in _parsed(found):
        header = one.header
        if header.is_transactional and not header.is_control:
            rest = ends.get(header.producer_id, [])
            while rest and rest[0][0] < header.base_offset:
                del rest[0]
            yield one._replace(is_aborted=not rest or rest[0][1])
        else:
            yield one


def _parsed(files: Iterable[Path]) -> Iterator[Batch]:
    for file in files:
        if not file.stat().st_size:
            continue
        with file.open("rb") as opened:
            # Mapped, because the batches of a whole partition are kept.
            data = memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
        for start, size, _ in wire.extents(data):
            one = data[start : start + size]
            yield Batch(one, wire.read_header(one))


def rebuilt(batch: Batch, found: Sequence[Record]) -> bytes:
    """Return a batch with other records at the offsets they name; its codec, producer and last offset stay."""
    header = batch.header
    data = bytearray(batch.data[: wire.HEADER_BYTES]) + _payload(header, found)
    if header.codec:
        data[wire.HEADER_BYTES :] = records.compress(bytes(data[wire.HEADER_BYTES :]), header.codec)
    _TIME.pack_into(data, 35, max(record.timestamp_ms for record in found))
    _COUNT.pack_into(data, 57, len(found))
    return _sealed(data)


def committed(batch: Batch, found: Sequence[Record]) -> bytes:
    """Return an aborted batch as one that no transaction and no producer's id holds, with other records."""
    data = bytearray(batch.data)
    _ATTRIBUTES.pack_into(data, 21, batch.header.attributes & ~wire.TRANSACTIONAL)
    _PRODUCER.pack_into(data, 43, -1, -1, -1)
    return rebuilt(Batch(bytes(data), wire.read_header(data)), found)


def _sealed(data: bytearray) -> bytes:
    _COUNT.pack_into(data, 8, len(data) - wire.LOG_OVERHEAD_BYTES)
    _CRC.pack_into(data, 17, wire.checksum(data))
    return bytes(data)


def _payload(header: wire.BatchHeader, found: Sequence[Record]) -> bytes:
    """The records section, with gaps between offsets kept, as a cleaner leaves them."""
    out = bytearray()
    for offset, timestamp_ms, key, value, headers in found:
        one = bytearray(1)
        encode_varint(timestamp_ms - header.base_timestamp, one.append)
        encode_varint(offset - header.base_offset, one.append)
        for part in (key, value):
            _put(one, part)
        encode_varint(len(headers), one.append)
        for name, content in headers:
            _put(one, wire.bytes_of(name))
            _put(one, content)
        encode_varint(len(one), out.append)
        out += one
    return bytes(out)


def _put(out: bytearray, part: bytes | None) -> None:
    encode_varint(-1 if part is None else len(part), out.append)
    out += part or b""


class Original:
    """The segments of partitions before any damage, kept beside the broker's folder; ``restore`` brings them back."""

    def __init__(self, data: Path, kept: Path) -> None:
        self._data, self._kept = data, kept

    def keep(self, partition: str) -> list[Path]:
        """Return the kept segments of ``<topic>-<partition>``, copied at the first call."""
        kept = self._kept / partition
        if not kept.exists():
            kept.mkdir(parents=True)
            for file in segments(self._data / partition):
                shutil.copy2(file, kept)
        return segments(kept)

    def write(self, partition: str, changed: dict[int, bytes]) -> None:
        """Write the segments with some batches replaced, by base offset; an empty one is left out."""
        folder = self._data / partition
        for file in self.keep(partition):
            with (folder / file.name).open("wb") as out:
                for batch in _parsed([file]):
                    out.write(changed.get(batch.header.base_offset, batch.data))
        for file in folder.iterdir():
            if file.suffix in _INDEXES:
                file.unlink()
