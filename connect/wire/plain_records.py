"""Records of a magic 2 batch read and written in plain Python: for headers whose keys are no UTF-8, at which aiokafka's
record classes raise. Layout: Kafka's ``DefaultRecord``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from aiokafka.errors import CorruptRecordException
from aiokafka.record.util import decode_varint, encode_varint

from connect.wire import batch as wire
from connect.wire.header_keys import bytes_of, key_of
from connect.wire.opening import opened_batch

Headers = list[tuple[str, bytes | None]]
#: Offset, timestamp, key, value, headers.
Fields = tuple[int, int, bytes | None, bytes | None, Headers]


def read(batch: bytes) -> Iterator[Fields]:
    """The records of a batch, whatever the keys of their headers. Raises CorruptRecordException or TooLarge."""
    header = wire.read_header(batch)
    reader = _Reader(opened_batch(batch)[wire.HEADER_BYTES :])
    for _ in range(header.record_count):
        end = reader.varint() + reader.position
        reader.position += 1  # its attributes, of which none are used
        time_ms = header.base_timestamp + reader.varint()
        offset = header.base_offset + reader.varint()
        key, value = reader.nullable(), reader.nullable()
        headers = [(key_of(reader.nullable() or b""), reader.nullable()) for _ in range(reader.varint())]
        if reader.position != end:
            raise CorruptRecordException(f"the record at offset {offset} is not as long as it says")
        yield offset, header.max_timestamp if header.is_log_append_time else time_ms, key, value, headers


class _Reader:
    def __init__(self, payload: bytes) -> None:
        self._payload = bytearray(payload)
        self.position = 0

    def varint(self) -> int:
        try:
            value, self.position = decode_varint(self._payload, self.position)
        except (IndexError, ValueError) as error:
            raise CorruptRecordException(f"a number cannot be read at byte {self.position} of the records") from error
        return int(value)

    def nullable(self) -> bytes | None:
        length = self.varint()
        if length < 0:
            return None
        start, self.position = self.position, self.position + length
        if self.position > len(self._payload):
            raise CorruptRecordException(f"the records end within the {length} bytes from byte {start}")
        return bytes(self._payload[start : self.position])


def payload(records: Iterable[Fields]) -> bytes:
    """What stands behind a batch's header, uncompressed, of records with dense offset deltas; the first has the base
    timestamp. Raises UnicodeEncodeError for a header's key that stands for no bytes."""
    out = bytearray()
    first_ms: int | None = None
    for delta, (_, timestamp_ms, key, value, headers) in enumerate(records):
        first_ms = timestamp_ms if first_ms is None else first_ms
        one = bytearray(1)
        _put(one, timestamp_ms - first_ms, delta)
        _put_bytes(one, key, value)
        _put(one, len(headers))
        for name, content in headers:
            _put_bytes(one, bytes_of(name), content)
        _put(out, len(one))
        out += one
    return bytes(out)


def _put(out: bytearray, *numbers: int) -> None:
    for number in numbers:
        encode_varint(number, out.append)


def _put_bytes(out: bytearray, *fields: bytes | None) -> None:
    for one in fields:
        _put(out, -1 if one is None else len(one))
        out += one or b""
